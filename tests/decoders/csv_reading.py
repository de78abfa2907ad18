"""Csv content read to plain values: by both readers, or by one of them alone."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from cdc_lakehouse.changelog.positions import END_TS
from cdc_lakehouse.config import CsvOptions
from cdc_lakehouse.decoders import problems
from cdc_lakehouse.decoders.event_schema import DECODED
from cdc_lakehouse.decoders.format import FileContext, Layout
from cdc_lakehouse.decoders.formats import csv
from cdc_lakehouse.decoders.formats.csv import decode
from cdc_lakehouse.decoders.text.columns import PieceReader
from tests.decoders.ticdc_csv import DATABASE, TABLE
from tests.kit.duckdb_sql import connection

NAMES = ("id", "name", "note")
PIECES = (32, 250, 1500, 1 << 20)
"""Bytes read at a time."""


def options(**given: object) -> CsvOptions:
    return CsvOptions.model_validate({"include-commit-ts": True} | {k.replace("_", "-"): v for k, v in given.items()})


def read(
    content: bytes,
    csv_options: CsvOptions,
    names: Sequence[str] = NAMES,
    handle_key: bool = False,
    piece: int = 1 << 20,
    of: tuple[str, str] = (DATABASE, TABLE),
    end_ts: int = END_TS,
) -> list[dict[str, Any]]:
    """The events of a file of the table `of`."""
    context = FileContext(*of, csv_options, Layout(tuple(names), handle_key), end_ts)
    found: list[dict[str, Any]] = []
    for batch in decode(connection(), content, context, piece=piece):
        batch.validate(full=True)
        assert batch.schema == DECODED
        found += map(_parsed, batch.to_pylist())
    return found


def _parsed(event: dict[str, Any]) -> dict[str, Any]:
    names = ("value",) if event["problem"] == problems.WRONG_TABLE else ("before", "after")
    return event | {name: event[name] and json.loads(event[name]) for name in names}


@contextmanager
def strictly() -> Iterator[None]:
    """Only the reader that goes record by record."""
    with patch.object(PieceReader, "read", lambda self, start, size: None):
        yield


@contextmanager
def at_once() -> Iterator[None]:
    """Only Arrow's reader."""

    def refuse(*_: object) -> None:
        raise AssertionError("the file was taken for one that is not sound")

    with patch.object(csv, "strict_rows", refuse):
        yield
