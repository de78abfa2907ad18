"""Proof that what was measured made the same rows: counts, and a checksum over all columns in any order."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import click
import duckdb
import pyarrow as pa

_CURRENT: Final = ("id", "k", "c", "pad", "_commit_ts")
_EVENTS: Final = ("op", "commit_ts", "before::VARCHAR", "after::VARCHAR", "segment", "line")


class Disagreement(click.ClickException):
    """The figures are worth nothing: two results that must be equal are not."""


def check_current(
    ours: pa.RecordBatchReader, theirs: str, rows: int, what: str, columns: tuple[str, ...] = _CURRENT
) -> None:
    """Both hold the same rows, as many as the workload left."""
    _check(ours, theirs, columns, {"rows": rows}, what)


def check_events(ours: pa.RecordBatchReader, theirs: str, events: Mapping[str, int], what: str) -> None:
    """Both hold the same events, as many of each operation as the workload wrote."""
    expected = {"rows": sum(events.values()), **{op: events.get(op, 0) for op in "IUD"}}
    _check(ours, theirs, _EVENTS, expected, what)


def _check(
    ours: pa.RecordBatchReader, theirs: str, columns: tuple[str, ...], expected: Mapping[str, int], what: str
) -> None:
    aggregates = [
        "count(*) AS rows",
        *(f"count(*) FILTER (op = '{op}') AS {op}" for op in expected if op != "rows"),
        f"sum(hash({', '.join(columns)})) AS checksum",
    ]
    with duckdb.connect() as connection:
        connection.register("ours", ours)
        seen = [_row(connection, f"SELECT {', '.join(aggregates)} FROM {source}") for source in ("ours", theirs)]
    for name, found in zip(("cdc_lakehouse", "the other"), seen, strict=True):
        if any(found[key] != count for key, count in expected.items()):
            raise Disagreement(f"{what}: {name} has {found}, the workload {dict(expected)}")
    if seen[0] != seen[1]:
        raise Disagreement(f"{what}: cdc_lakehouse has {seen[0]}, the other {seen[1]}")


def _row(connection: duckdb.DuckDBPyConnection, query: str) -> dict[str, int]:
    result = connection.execute(query)
    names = [column[0] for column in result.description or []]
    return dict(zip(names, result.fetchone() or (), strict=True))
