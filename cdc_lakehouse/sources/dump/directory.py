"""The readers of dumps, by tool.

To add a tool: its name in `config.sources`, its reader, its row here, and what `detect_dump` knows it
by."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from typing import Final

from cdc_lakehouse.config import InitialLoad
from cdc_lakehouse.config.sources import DumpType
from cdc_lakehouse.errors import ObjectMissingError
from cdc_lakehouse.sources.dump.contents import Dump
from cdc_lakehouse.sources.dump.flat_files import METADATA, TIDB_LOG, read_dumpling, read_mydumper
from cdc_lakehouse.sources.dump.mysqlshell import read_mysqlshell
from cdc_lakehouse.sources.dump.reading import SMALL_FILE_LIMIT
from cdc_lakehouse.sources.object_store import ObjectStore, StoredObject

_TOOLS: Final[dict[str, Callable[[ObjectStore, InitialLoad], Dump]]] = {
    "dumpling": read_dumpling, "mydumper": read_mydumper, "mysqlshell": read_mysqlshell,
}  # fmt: skip
_LOOKED_AT: Final = 1_000
_OF_SHELL: Final = "@.json"
_OF_DUMPLING: Final = re.compile(r".+\.\d{9,}\.(?:sql|csv)(?:\.\w+)?")
_OF_TEXT: Final = b"Started dump at:"


def detect_dump(store: ObjectStore) -> DumpType | None:
    """Return the tool that made the dump in a store; None where it is not a finished dump. Raises as `ObjectStore.list`
    does. Dumpling's metadata and that of mydumper before 0.13 are alike: the source's log and the numbers of files
    differ."""
    found = list(itertools.islice(store.list(), _LOOKED_AT))
    paths = {each.path for each in found if isinstance(each, StoredObject)}
    if _OF_SHELL in paths:
        return "mysqlshell"
    try:
        metadata = store.read(METADATA, limit=SMALL_FILE_LIMIT)
    except ObjectMissingError:
        return None
    if metadata.startswith((b"#", b"[")):
        return "mydumper"
    if _OF_TEXT not in metadata:
        return None
    numbered = any(_OF_DUMPLING.fullmatch(path) for path in paths)
    return "dumpling" if numbered or TIDB_LOG.encode() in metadata else "mydumper"


def read_dump(store: ObjectStore, initial: InitialLoad) -> Dump:
    """Read the tables of a finished dump, its position, and the list of its other content. Only small files of the
    store are read: rows are read by tasks (`reading.open_pieces`). Raises `SourceUnreachableError` when the store
    cannot be listed, and `SourceError` when the dump is not finished, has no position that changes can follow, lacks a
    file, or has an unknown one."""
    return _TOOLS[initial.type](store, initial)
