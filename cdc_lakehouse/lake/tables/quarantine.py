"""The `quarantine` table: one row for each thing that could not be used. Nothing is dropped without one.

A row is `open` until what it names could be used after all (`replayed`) or a person gave it up (`discarded`). The
columns are those of `decoders.problems.Rejected`, and the row's state with its times.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from dataclasses import replace as changed
from typing import Final, Literal

import pyarrow as pa
from pyiceberg.expressions import AlwaysTrue

from cdc_lakehouse.decoders.problems import Rejected
from cdc_lakehouse.lake.catalog import Lake
from cdc_lakehouse.lake.tables.small_table import SmallTable

State = Literal["open", "replayed", "discarded"]

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
    """One row of the table; times are UTC."""

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

    def replace(
        self, scope: Callable[[Quarantined], bool], rejected: Iterable[Rejected], now: datetime.datetime
    ) -> None:
        """Make `rejected` the open rows of a scope, in one commit; without one where nothing changes.

        Open rows in the scope that are not among the rejected things become `replayed`. A rejected thing that is open
        already keeps its row, whatever the message says now.
        """
        wanted = {_identity(each): each for each in rejected}
        rows: list[Quarantined] = []
        resolved = False
        for row in self.rows:
            known = row.state == "open" and wanted.pop(_identity(row), None) is not None
            if row.state == "open" and not known and scope(row):
                row, resolved = changed(row, state="replayed", resolved_at=now), True
            rows.append(row)
        new = [Quarantined(**asdict(each), state="open", quarantined_at=now) for each in wanted.values()]
        if resolved:
            self._table.write([*rows, *new], replacing=AlwaysTrue())
        elif new:
            self._table.write(new)
        self._rows = [*rows, *new]


def _identity(row: Rejected | Quarantined) -> tuple[str, int, str, bytes | None, int]:
    # With the count: a row that stands for more than it did is another one.
    return row.segment, -1 if row.line is None else row.line, row.error_class, row.raw, row.count
