"""A database small enough to hold in memory: its current rows, and the changes that a changefeed sees.

`commit` ends a transaction and returns its net effect: a row that was deleted and inserted under its key is an UPDATE,
a row under a new key a DELETE and an INSERT. DDL text is as TiCDC prints it: names in backquotes, key words in upper
case, texts with their character set.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from pydantic import TypeAdapter

from cdc_lakehouse.changelog import ddl_kinds
from cdc_lakehouse.changelog.mysql_types import INTEGERS, type_text
from cdc_lakehouse.changelog.positions import tso
from cdc_lakehouse.changelog.schema import SchemaChange, SourceColumn, TableName, quoted
from cdc_lakehouse.sample.sink_writer import Key, Row, SampleRowChange, Table

_ADD_COLUMN: Final = 5
_DROP_COLUMN: Final = 6
_ADD_INDEX: Final = 7
_MODIFY_COLUMN: Final = 12
_ORDER: Final = {"DELETE": 0, "UPDATE": 1, "INSERT": 2}
_BARE_DEFAULTS: Final = INTEGERS | {"decimal", "float", "double", "year", "bit"}
_NOW: Final = "CURRENT_TIMESTAMP"
_COLUMNS: Final = TypeAdapter(tuple[SourceColumn, ...])


class Database:
    """The rows of some tables. Moments have a time zone. Commit-ts (TSO) rise strictly, even where the clock stands
    still or goes back. The methods for DDL return the statement with the resulting columns, and take effect at once."""

    def __init__(self) -> None:
        self._last_ts = 0
        self._tables: dict[TableName, Table] = {}
        self._rows: dict[TableName, dict[Key, Row]] = {}
        self._last_ids: dict[str, int] = {}
        self._before: dict[tuple[TableName, Key], Row | None] = {}
        """Rows as they were before the current transaction."""

    @property
    def last_ts(self) -> int:
        """The last commit-ts (or resolved-ts) that was assigned."""
        return self._last_ts

    def next_ts(self, moment: datetime.datetime) -> int:
        """Return the TSO of `moment`, or the last one plus 1 when that is greater."""
        self._last_ts = max(tso(moment), self._last_ts + 1)
        return self._last_ts

    @property
    def names(self) -> tuple[TableName, ...]:
        """The names of all tables."""
        return tuple(self._tables)

    def table(self, name: TableName) -> Table:
        """Return a table in its current state. Raises `KeyError` where there is none."""
        return self._tables[name]

    def rows(self, name: TableName, /, **equal: str | None) -> list[Row]:
        """Return the rows whose columns have these values, the oldest first."""
        rows = self._rows[name].values()
        return [row for row in rows if all(row[column] == value for column, value in equal.items())]

    def next_id(self, name: TableName) -> str:
        """Return the next number of a table's AUTO_INCREMENT."""
        self._last_ids[name.table] = self._last_ids.get(name.table, 0) + 1
        return str(self._last_ids[name.table])

    def insert(self, name: TableName, /, **values: str | None) -> None:
        """Insert a row. Columns that are not given get their default; values for columns that the table does not have
        are ignored."""
        columns = self._tables[name].columns
        self._put(name, {column.name: values.get(column.name, column.default) for column in columns})

    def update(self, name: TableName, row: Row, /, **values: str | None) -> None:
        """Change those columns of a row that the table has. With another key the row is deleted and inserted."""
        changed = {column: values.get(column, value) for column, value in row.items()}
        if self._tables[name].key_of(changed) != self._tables[name].key_of(row):
            self.delete(name, row)
        self._put(name, changed)

    def delete(self, name: TableName, row: Row) -> None:
        """Delete the row with the same key."""
        del self._rows[name][self._remember(name, row)]

    def commit(self, moment: datetime.datetime) -> list[SampleRowChange]:
        """End the transaction; return its changes in TiDB's order: DELETE, UPDATE, INSERT, then by key. Empty when
        nothing changed."""
        before, self._before = self._before, {}
        changed = [(name, old, self._rows[name].get(key)) for (name, key), old in before.items()]
        changed = [(name, old, new) for name, old, new in changed if old != new]
        if not changed:
            return []
        commit_ts = self.next_ts(moment)
        changes = [_change(self._tables[name], commit_ts, old, new) for name, old, new in changed]
        return sorted(changes, key=lambda change: (_ORDER[change.kind], _sortable(change.table.key_of(change.row))))

    def create_database(self, database: str, moment: datetime.datetime) -> SchemaChange:
        """Create a database."""
        query = f"CREATE DATABASE {quoted(database)}"
        return SchemaChange(self.next_ts(moment), database, "", ddl_kinds.CREATE_DATABASE, query, (), "")

    def create_table(
        self, name: TableName, columns: tuple[SourceColumn, ...], moment: datetime.datetime
    ) -> SchemaChange:
        """Create an empty table."""
        self._tables[name] = Table(name, 0, columns)
        self._rows[name] = {}
        return self._changed(name, moment, ddl_kinds.CREATE_TABLE, create_statement(name, columns))

    def add_column(self, name: TableName, column: SourceColumn, moment: datetime.datetime) -> SchemaChange:
        """Add a column. Older rows get its default; they are not sent again."""
        self._reshape(name, (*self._tables[name].columns, column), lambda row: {**row, column.name: column.default})
        return self._alter(name, moment, _ADD_COLUMN, f"ADD COLUMN {column_definition(column)}")

    def drop_column(self, name: TableName, column: str, moment: datetime.datetime) -> SchemaChange:
        """Drop a column with its values."""
        kept = tuple(kept for kept in self._tables[name].columns if kept.name != column)
        self._reshape(name, kept, lambda row: {key: value for key, value in row.items() if key != column})
        return self._alter(name, moment, _DROP_COLUMN, f"DROP COLUMN {quoted(column)}")

    def rename_column(self, name: TableName, old: str, new: str, moment: datetime.datetime) -> SchemaChange:
        """Rename a column; its values stay."""
        columns = self._tables[name].columns
        renamed = tuple(replace(column, name=new) if column.name == old else column for column in columns)
        self._reshape(name, renamed, lambda row: {new if key == old else key: value for key, value in row.items()})
        return self._alter(name, moment, _MODIFY_COLUMN, f"RENAME COLUMN {quoted(old)} TO {quoted(new)}")

    def modify_column(self, name: TableName, column: SourceColumn, moment: datetime.datetime) -> SchemaChange:
        """Change a column to a wider type: the text of every value stays as it is."""
        columns = tuple(column if old.name == column.name else old for old in self._tables[name].columns)
        self._reshape(name, columns, lambda row: row)
        return self._alter(name, moment, _MODIFY_COLUMN, f"MODIFY COLUMN {column_definition(column)}")

    def add_index(self, name: TableName, index: str, column: str, moment: datetime.datetime) -> SchemaChange:
        """Add an index; no row changes."""
        return self._alter(name, moment, _ADD_INDEX, f"ADD INDEX {quoted(index)}({quoted(column)})")

    def truncate_table(self, name: TableName, moment: datetime.datetime) -> SchemaChange:
        """Remove all rows."""
        self._rows[name] = {}
        return self._changed(name, moment, ddl_kinds.TRUNCATE_TABLE, f"TRUNCATE TABLE {name.quoted}")

    def rename_table(self, name: TableName, new: TableName, moment: datetime.datetime) -> SchemaChange:
        """Rename a table; its rows stay."""
        self._tables[new] = replace(self._tables.pop(name), name=new)
        self._rows[new] = self._rows.pop(name)
        query = f"RENAME TABLE {name.quoted} TO {new.quoted}"
        return self._changed(new, moment, ddl_kinds.RENAME_TABLE, query)

    def state(self) -> dict[str, Any]:
        """Return everything as JSON-compatible values, between two transactions."""
        tables = [
            {
                "name": [name.database, name.table],
                "version": table.version,
                "columns": _COLUMNS.dump_python(table.columns, mode="json"),
                "rows": list(self._rows[name].values()),
            }
            for name, table in self._tables.items()
        ]
        return {"last_ts": self._last_ts, "last_ids": self._last_ids, "tables": tables}

    @staticmethod
    def from_state(state: Mapping[str, Any]) -> Database:
        """Restore the database from its `state`."""
        database = Database()
        database._last_ts, database._last_ids = state["last_ts"], dict(state["last_ids"])
        for saved in state["tables"]:
            name = TableName(*saved["name"])
            table = Table(name, saved["version"], _COLUMNS.validate_python(saved["columns"]))
            database._tables[name] = table
            database._rows[name] = {table.key_of(row): row for row in saved["rows"]}
        return database

    def _put(self, name: TableName, row: Row) -> None:
        self._rows[name][self._remember(name, row)] = row

    def _remember(self, name: TableName, row: Row) -> Key:
        key = self._tables[name].key_of(row)
        self._before.setdefault((name, key), self._rows[name].get(key))
        return key

    def _reshape(self, name: TableName, columns: tuple[SourceColumn, ...], row_of: Callable[[Row], Row]) -> None:
        self._tables[name] = replace(self._tables[name], columns=columns)
        self._rows[name] = {key: row_of(row) for key, row in self._rows[name].items()}

    def _alter(self, name: TableName, moment: datetime.datetime, action: int, clause: str) -> SchemaChange:
        return self._changed(name, moment, action, f"ALTER TABLE {name.quoted} {clause}")

    def _changed(self, name: TableName, moment: datetime.datetime, action: int, query: str) -> SchemaChange:
        version = self.next_ts(moment)
        self._tables[name] = replace(self._tables[name], version=version)
        return SchemaChange(version, name.database, name.table, action, query, self._tables[name].columns, "")


def create_statement(name: TableName, columns: Sequence[SourceColumn]) -> str:
    """Return the CREATE TABLE of a table."""
    key = [column for column in columns if column.primary_key]
    parts = [column_definition(column) + " PRIMARY KEY" * (key == [column]) for column in columns]
    if len(key) > 1:
        parts.append(f"PRIMARY KEY({', '.join(quoted(column.name) for column in key)})")
    return f"CREATE TABLE {name.quoted} ({','.join(parts)})"


def column_definition(column: SourceColumn) -> str:
    """Return a column's definition for a statement: name, type, NOT NULL, DEFAULT."""
    # Only the words are in upper case: an ENUM's labels keep their case.
    name, bracket, rest = type_text(column.type).partition("(")
    type_words = name.upper() + bracket + rest
    return f"{quoted(column.name)} {type_words}{' NOT NULL' * (not column.nullable)}{_default(column)}"


def _default(column: SourceColumn) -> str:
    if column.default is None:
        return ""
    if column.default == _NOW:
        return f" DEFAULT {_NOW}({column.type.scale or ''})"
    if column.type.name in _BARE_DEFAULTS:
        return f" DEFAULT {column.default}"
    text = column.default.replace("\\", "\\\\").replace("'", "''")
    return f" DEFAULT _UTF8MB4'{text}'"


def _change(table: Table, commit_ts: int, old: Row | None, new: Row | None) -> SampleRowChange:
    if new is None:
        assert old is not None
        return SampleRowChange("DELETE", table, commit_ts, old)
    return SampleRowChange("INSERT" if old is None else "UPDATE", table, commit_ts, new, old)


def _sortable(key: Key) -> tuple[tuple[int, str], ...]:
    """Return a sort key in which numbers that are written as text sort as numbers."""
    return tuple((len(value), value) for value in key)
