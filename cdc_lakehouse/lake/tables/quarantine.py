"""The `quarantine` table: one row for each thing that could not be used. Nothing is dropped without one.

A row is `open` until what it speaks of could be used after all (`replayed`) or a person gave it up (`discarded`).
`line` is None where the whole segment is meant; `segment` may also be a schema file, a directory or a DDL's origin. Of
very many things in one segment the first have a row each, and one more row has the `count` of the others.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal

import pyarrow as pa
from pyiceberg.expressions import AlwaysTrue

from cdc_lakehouse.lake.catalog import Lake
from cdc_lakehouse.lake.tables.small_table import SmallTable

State = Literal["open", "replayed", "discarded"]

RAW_LIMIT: Final = 64 * 1024
"""Bytes of a line that a row keeps; the rest is still in the segment."""

LINES_PER_SEGMENT: Final = 1000
"""Rows for single lines of one segment; further lines are one row that counts them."""

SCHEMA: Final = pa.schema([
    pa.field("segment", pa.string(), nullable=False),
    pa.field("line", pa.int64()),
    pa.field("database", pa.string()),
    pa.field("table", pa.string()),
    pa.field("error_class", pa.string(), nullable=False),
    pa.field("message", pa.string(), nullable=False),
    pa.field("raw", pa.binary()),
    pa.field("state", pa.string(), nullable=False),
    pa.field("quarantined_at", pa.timestamp("us", tz="UTC"), nullable=False),
    pa.field("resolved_at", pa.timestamp("us", tz="UTC")),
    pa.field("count", pa.int64(), nullable=False),
])  # fmt: skip


@dataclass(frozen=True, slots=True)
class Quarantined:
    segment: str
    line: int | None
    database: str | None
    table: str | None
    error_class: str
    message: str
    raw: bytes | None
    state: State
    quarantined_at: datetime.datetime
    resolved_at: datetime.datetime | None = None
    count: int = 1

    @property
    def identity(self) -> tuple[str, int, str, int]:
        # With the count: a row that stands for more than it did is told again rather than not at all.
        return self.segment, -1 if self.line is None else self.line, self.error_class, self.count


class Quarantine:
    """The quarantine of one feed, read once and kept up with what this object itself writes."""

    def __init__(self, lake: Lake, feed: str) -> None:
        self._table = SmallTable(lake, feed, "quarantine", SCHEMA)
        self._rows: list[Quarantined] | None = None

    @property
    def rows(self) -> Sequence[Quarantined]:
        if self._rows is None:
            self._rows = [Quarantined(**row) for row in self._table.read()]
        return self._rows

    def open(self) -> list[Quarantined]:
        return [row for row in self.rows if row.state == "open"]

    def count(self) -> int:
        """How many things are open, those that have no row of their own too."""
        return sum(row.count for row in self.open())

    def add(self, found: Iterable[Quarantined]) -> int:
        """Add what is not open already; how many that were."""
        known = {row.identity for row in self.open()}
        new: list[Quarantined] = []
        for row in found:
            if row.identity not in known:
                known.add(row.identity)
                new.append(row)
        if new:
            self._table.write(new)
            self._rows = [*self.rows, *new]
        return len(new)

    def resolve(self, matches: Callable[[Quarantined], bool], state: State, now: datetime.datetime) -> int:
        """Give a state to the open rows that match; how many those were."""
        rows = [
            replace(row, state=state, resolved_at=now) if row.state == "open" and matches(row) else row
            for row in self.rows
        ]
        changed = sum(new is not old for new, old in zip(rows, self.rows, strict=True))
        if changed:
            self._table.write(rows, replacing=AlwaysTrue())
            self._rows = rows
        return changed
