"""Dumps' rows read to plain values: by both readers, or by one of them alone."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Literal
from unittest.mock import patch

from cdc_lakehouse.changelog.mysql_types import ColumnType
from cdc_lakehouse.decoders.event_schema import DECODED
from cdc_lakehouse.decoders.formats import dump_insert
from cdc_lakehouse.decoders.formats.dump import TextReader, decode_rows
from cdc_lakehouse.decoders.formats.dump_insert import InsertReader
from cdc_lakehouse.decoders.formats.dump_values import DumpContext
from cdc_lakehouse.sources.dump.contents import Notation
from tests.decoders.dump_writing import COLUMNS, COMMIT_TS, DATABASE, TABLE
from tests.kit.duckdb_sql import connection

PIECES = (32, 250, 1500, 1 << 20)
"""Bytes read at a time."""


def context(
    notation: Notation,
    columns: Mapping[str, ColumnType] = COLUMNS,
    labels: bool = False,
    binary: Literal["characters", "base64", "hex"] = "characters",
    zones: tuple[str, str] = ("UTC", "UTC"),
) -> DumpContext:
    return DumpContext(DATABASE, TABLE, COMMIT_TS, notation, columns, labels, binary, *zones)


def read(pieces: bytes | Sequence[bytes], of: DumpContext, piece: int = 1 << 20) -> list[dict[str, Any]]:
    """The events of a file, with their images parsed."""
    found: list[dict[str, Any]] = []
    for batch in decode_rows(connection(), iter([pieces] if isinstance(pieces, bytes) else pieces), of, piece=piece):
        batch.validate(full=True)
        assert batch.schema == DECODED
        found += batch.to_pylist()
    return [event | {"after": event["after"] and json.loads(event["after"])} for event in found]


def images(events: Sequence[Mapping[str, Any]]) -> list[Any]:
    """Of sound events; of others, what is wrong with them."""
    return [event["problem"] or event["after"] for event in events]


@contextmanager
def strictly() -> Iterator[None]:
    """Only the readers that go row by row."""
    with (
        patch.object(TextReader, "fast", lambda *_: None),
        patch.object(InsertReader, "fast", lambda *_: None),
    ):
        yield


@contextmanager
def at_once() -> Iterator[None]:
    """The readers of many rows alone, for a file that has no header."""

    def refuse(*_: object) -> None:
        raise AssertionError("the file was taken for one that is not sound")

    with (
        patch.object(TextReader, "strict", refuse),
        patch.object(InsertReader, "strict", refuse),
        patch.object(dump_insert, "LEAST", 0),
    ):
        yield


@contextmanager
def eagerly() -> Iterator[None]:
    """The readers of many rows also where those are few."""
    with patch.object(dump_insert, "LEAST", 0):
        yield
