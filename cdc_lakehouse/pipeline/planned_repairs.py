"""A repair in the form in which a run gets it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from cdc_lakehouse.changelog.schema import TableName

Image = Mapping[str, str | None]
"""A row's texts by column, in the form of the feed's events."""


@dataclass(frozen=True, slots=True)
class RowRepair:
    """The repair of one row: I for a row that the lake lacks, U for one that it has with other values, D for one that
    the source lacks."""

    op: Literal["I", "U", "D"]
    image: Image


@dataclass(frozen=True, slots=True)
class TableRepair:
    """The repair of one table, by its name and incarnation, as of the cut at `checkpoint_ts`. `requested_by` is the
    person who requested it."""

    name: TableName
    incarnation: str
    checkpoint_ts: int
    rows: tuple[RowRepair, ...]
    requested_by: str

    def count(self, op: str) -> int:
        return sum(row.op == op for row in self.rows)
