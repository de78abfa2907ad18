"""A change of one row, as a changefeed sees it; and the table as it was then.

Values are text in canal-json's notation: an ENUM is the number of its label, a SET a bitmask, bytes one character each.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from cdc_lakehouse.changelog.schema import SourceColumn, TableName

Row = dict[str, str | None]
Key = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Table:
    """`version` is the commit-ts of the table's last DDL."""

    name: TableName
    version: int
    columns: tuple[SourceColumn, ...]

    @property
    def key_columns(self) -> tuple[str, ...]:
        return tuple(column.name for column in self.columns if column.primary_key)

    def key_of(self, row: Row) -> Key:
        return tuple(value for name in self.key_columns if (value := row[name]) is not None)


@dataclass(frozen=True, slots=True)
class RowChange:
    """`row` is the row after an INSERT or UPDATE and before a DELETE; `old` is only an UPDATE's."""

    kind: Literal["INSERT", "UPDATE", "DELETE"]
    table: Table
    commit_ts: int
    row: Row
    old: Row | None = None
