"""The readers of dumps, by tool.

To add a tool: add its name to `config.initial`, a module next to this one, and its row here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from cdc_lakehouse.config import InitialLoad
from cdc_lakehouse.sources.dump.contents import Dump
from cdc_lakehouse.sources.dump.dumpling import read_dumpling
from cdc_lakehouse.sources.dump.mydumper import read_mydumper
from cdc_lakehouse.sources.dump.mysqlshell import read_mysqlshell
from cdc_lakehouse.sources.object_store import ObjectStore

_TOOLS: Final[dict[str, Callable[[ObjectStore, InitialLoad], Dump]]] = {
    "dumpling": read_dumpling, "mydumper": read_mydumper, "mysqlshell": read_mysqlshell,
}  # fmt: skip


def read_dump(store: ObjectStore, initial: InitialLoad) -> Dump:
    """Read the tables of a finished dump, its position, and the list of its other content. Only small files of the
    store are read: rows are read by tasks (`reading.open_pieces`).

    Raises `SourceUnreachableError` when the store cannot be listed, and `SourceError` when the dump is not finished,
    has no position that changes can follow, lacks a file, or has an unknown one.
    """
    return _TOOLS[initial.type](store, initial)
