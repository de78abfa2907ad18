"""One transaction of the shop under way: what a trade needs to read and change rows.

Tables are named as they were created and columns by all the names they ever have: what a table does not have (any more,
or yet) is left out, so a trade need not know which DDL has been.
"""

from __future__ import annotations

import datetime
import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from cdc_lakehouse.changelog.schema import TableName
from cdc_lakehouse.sample.database import Database
from cdc_lakehouse.sample.row_change import Row
from cdc_lakehouse.sample.shop_tables import BASKETS, CARTS

_RENAMED: Final = {CARTS: BASKETS}


@dataclass(frozen=True, slots=True)
class Transaction:
    database: Database
    rng: random.Random
    moment: datetime.datetime
    last_ids: dict[str, int]
    """The last number given out, by table."""

    def count(self, table: TableName) -> int:
        return len(self.database.rows(self._name(table)))

    def rows(self, table: TableName, **equal: str | None) -> list[Row]:
        """Rows whose columns have these values, the oldest first."""
        found = self.database.rows(self._name(table)).values()
        for column, value in equal.items():
            found = [row for row in found if row[column] == value]
        return list(found)

    def any_row(self, table: TableName, **equal: str | None) -> Row | None:
        found = self.rows(table, **equal)
        return self.rng.choice(found) if found else None

    def next_id(self, table: TableName) -> str:
        self.last_ids[table.table] = self.last_ids.get(table.table, 0) + 1
        return str(self.last_ids[table.table])

    def insert(self, table: TableName, values: Mapping[str, str | None]) -> None:
        """Columns that are not given take their default."""
        name = self._name(table)
        columns = self.database.table(name).columns
        self.database.put(name, {column.name: values.get(column.name, column.default) for column in columns})

    def update(self, table: TableName, row: Row, values: Mapping[str, str | None]) -> None:
        """Change a row; with other values in its key it goes and comes again."""
        name = self._name(table)
        changed = {column: values.get(column, value) for column, value in row.items()}
        if self.database.table(name).key_of(changed) != self.database.table(name).key_of(row):
            self.delete(table, row)
        self.database.put(name, changed)

    def delete(self, table: TableName, row: Row) -> None:
        name = self._name(table)
        self.database.remove(name, self.database.table(name).key_of(row))

    def _name(self, table: TableName) -> TableName:
        return table if table in self.database.names else _RENAMED[table]
