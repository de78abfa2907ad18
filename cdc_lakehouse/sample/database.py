"""A database small enough to hold in memory: the rows that are true now, and what a changefeed sees of each change.

Rows are changed with `put` and `remove` and become visible to the feed with `commit`, as one transaction's net effect:
a row that was removed and put again under its key is an UPDATE, a row under a new key a DELETE and an INSERT.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from typing import Any, Final

from cdc_lakehouse.changelog import ddl_kinds
from cdc_lakehouse.changelog.mysql_types import ColumnType
from cdc_lakehouse.changelog.positions import tso
from cdc_lakehouse.changelog.schema import SchemaChange, SourceColumn, TableName
from cdc_lakehouse.sample import statement
from cdc_lakehouse.sample.row_change import Key, Row, RowChange, Table

_ADD_COLUMN: Final = 5
_DROP_COLUMN: Final = 6
_ADD_INDEX: Final = 7
_MODIFY_COLUMN: Final = 12
_ORDER: Final = {"DELETE": 0, "UPDATE": 1, "INSERT": 2}


class Database:
    def __init__(self) -> None:
        self._last_ts = 0
        self._tables: dict[TableName, Table] = {}
        self._rows: dict[TableName, dict[Key, Row]] = {}
        self._before: dict[tuple[TableName, Key], Row | None] = {}

    @property
    def last_ts(self) -> int:
        """The last commit-ts (or resolved-ts) that was given out."""
        return self._last_ts

    def next_ts(self, moment: datetime.datetime) -> int:
        """A TSO of `moment`, or just above the last one when the clock stands or goes back."""
        self._last_ts = max(tso(moment), self._last_ts + 1)
        return self._last_ts

    @property
    def names(self) -> tuple[TableName, ...]:
        return tuple(self._tables)

    def table(self, name: TableName) -> Table:
        return self._tables[name]

    def rows(self, name: TableName) -> Mapping[Key, Row]:
        """The rows by key, the oldest first."""
        return self._rows[name]

    def put(self, name: TableName, row: Row) -> None:
        """Insert a row, or replace the one that has its key."""
        key = self._tables[name].key_of(row)
        self._before.setdefault((name, key), self._rows[name].get(key))
        self._rows[name][key] = row

    def remove(self, name: TableName, key: Key) -> None:
        self._before.setdefault((name, key), self._rows[name].get(key))
        del self._rows[name][key]

    def commit(self, moment: datetime.datetime) -> list[RowChange]:
        """End the transaction; empty when it changed nothing. In TiDB's order: DELETE, UPDATE, INSERT, then by key."""
        before, self._before = self._before, {}
        touched = [(name, key, old, self._rows[name].get(key)) for (name, key), old in before.items()]
        touched = [change for change in touched if change[2] != change[3]]
        if not touched:
            return []
        commit_ts = self.next_ts(moment)
        changes = [_change(self._tables[name], commit_ts, old, new) for name, _, old, new in touched]
        return sorted(changes, key=lambda change: (_ORDER[change.kind], _sortable(change.table.key_of(change.row))))

    def create_database(self, database: str, moment: datetime.datetime) -> SchemaChange:
        query = statement.create_database(database)
        return SchemaChange(self.next_ts(moment), database, "", ddl_kinds.CREATE_DATABASE, query, (), "")

    def create_table(
        self, name: TableName, columns: tuple[SourceColumn, ...], moment: datetime.datetime
    ) -> SchemaChange:
        self._tables[name] = Table(name, 0, columns)
        self._rows[name] = {}
        return self._changed(name, moment, ddl_kinds.CREATE_TABLE, statement.create_table(name, columns))

    def add_column(
        self, name: TableName, column: SourceColumn, held: str | None, moment: datetime.datetime
    ) -> SchemaChange:
        """`held` is what rows that are older than the column hold in it; they are not sent again."""
        self._reshape(name, (*self._tables[name].columns, column), lambda row: {**row, column.name: held})
        clause = f"ADD COLUMN {statement.column_definition(column)}"
        return self._changed(name, moment, _ADD_COLUMN, statement.alter_table(name, clause))

    def drop_column(self, name: TableName, column: str, moment: datetime.datetime) -> SchemaChange:
        kept = tuple(each for each in self._tables[name].columns if each.name != column)
        self._reshape(name, kept, lambda row: {key: value for key, value in row.items() if key != column})
        clause = f"DROP COLUMN {statement.quoted(column)}"
        return self._changed(name, moment, _DROP_COLUMN, statement.alter_table(name, clause))

    def rename_column(self, name: TableName, old: str, new: str, moment: datetime.datetime) -> SchemaChange:
        renamed = tuple(replace(each, name=new) if each.name == old else each for each in self._tables[name].columns)
        self._reshape(name, renamed, lambda row: {new if key == old else key: value for key, value in row.items()})
        clause = f"RENAME COLUMN {statement.quoted(old)} TO {statement.quoted(new)}"
        return self._changed(name, moment, _MODIFY_COLUMN, statement.alter_table(name, clause))

    def modify_column(self, name: TableName, column: SourceColumn, moment: datetime.datetime) -> SchemaChange:
        """For a wider type only, which leaves the text of every value as it is."""
        modified = tuple(column if each.name == column.name else each for each in self._tables[name].columns)
        self._reshape(name, modified, lambda row: row)
        clause = f"MODIFY COLUMN {statement.column_definition(column)}"
        return self._changed(name, moment, _MODIFY_COLUMN, statement.alter_table(name, clause))

    def add_index(self, name: TableName, index: str, column: str, moment: datetime.datetime) -> SchemaChange:
        clause = f"ADD INDEX {statement.quoted(index)}({statement.quoted(column)})"
        return self._changed(name, moment, _ADD_INDEX, statement.alter_table(name, clause))

    def truncate_table(self, name: TableName, moment: datetime.datetime) -> SchemaChange:
        self._rows[name] = {}
        return self._changed(name, moment, ddl_kinds.TRUNCATE_TABLE, statement.truncate_table(name))

    def rename_table(self, name: TableName, new: TableName, moment: datetime.datetime) -> SchemaChange:
        self._tables[new] = replace(self._tables.pop(name), name=new)
        self._rows[new] = self._rows.pop(name)
        return self._changed(new, moment, ddl_kinds.RENAME_TABLE, statement.rename_table(name, new))

    def state(self) -> dict[str, Any]:
        """All of it as JSON can hold it, between two transactions."""
        tables = [
            {
                "name": [name.database, name.table],
                "version": table.version,
                "columns": [asdict(column) for column in table.columns],
                "rows": list(self._rows[name].values()),
            }
            for name, table in self._tables.items()
        ]
        return {"last_ts": self._last_ts, "tables": tables}

    @staticmethod
    def from_state(state: Mapping[str, Any]) -> Database:
        database = Database()
        database._last_ts = state["last_ts"]
        for saved in state["tables"]:
            name = TableName(*saved["name"])
            table = Table(name, saved["version"], tuple(_column(column) for column in saved["columns"]))
            database._tables[name] = table
            database._rows[name] = {table.key_of(row): row for row in saved["rows"]}
        return database

    def _reshape(self, name: TableName, columns: tuple[SourceColumn, ...], row_of: Callable[[Row], Row]) -> None:
        self._tables[name] = replace(self._tables[name], columns=columns)
        self._rows[name] = {key: row_of(row) for key, row in self._rows[name].items()}

    def _changed(self, name: TableName, moment: datetime.datetime, action: int, query: str) -> SchemaChange:
        version = self.next_ts(moment)
        self._tables[name] = replace(self._tables[name], version=version)
        columns = self._tables[name].columns
        return SchemaChange(version, name.database, name.table, action, query, columns, "")


def _change(table: Table, commit_ts: int, old: Row | None, new: Row | None) -> RowChange:
    if old is None:
        assert new is not None
        return RowChange("INSERT", table, commit_ts, new)
    return (
        RowChange("DELETE", table, commit_ts, old) if new is None else RowChange("UPDATE", table, commit_ts, new, old)
    )


def _sortable(key: Key) -> tuple[tuple[int, str], ...]:
    """Numbers that are written as text sort as numbers."""
    return tuple((len(value), value) for value in key)


def _column(saved: dict[str, Any]) -> SourceColumn:
    kind = ColumnType(**{**saved["type"], "elements": tuple(saved["type"]["elements"])})
    return SourceColumn(**{**saved, "type": kind})
