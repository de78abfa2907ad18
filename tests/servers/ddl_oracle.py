"""A server and the product side by side: what the server takes goes to both; then they have the same tables."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from typing import Any

import pymysql

from cdc_lakehouse.changelog.mysql_types import type_change
from cdc_lakehouse.changelog.schema import TableVersion
from tests.changelog.server_tables import NEXT_NUMBER, ProductTables, ShownTable, differences
from tests.servers.mysql import MySqlServer
from tests.servers.random_ddl import ServerTable, quoted

_COLUMNS = """
    SELECT table_name, column_name, column_type, is_nullable = 'YES', column_default, data_type, extra
    FROM information_schema.columns JOIN information_schema.tables USING (table_schema, table_name)
    WHERE table_schema = %s AND table_type = 'BASE TABLE' ORDER BY table_name, ordinal_position
"""
_KEYS = """
    SELECT table_name, index_name, column_name FROM information_schema.statistics
    WHERE table_schema = %s ORDER BY table_name, index_name, seq_in_index
"""


def tables_of(cursor: Any, database: str) -> dict[str, ServerTable]:
    tables: dict[str, ServerTable] = {}
    cursor.execute(_COLUMNS, (database,))
    for table, name, kind, nullable, default, data_type, extra in cursor.fetchall():
        columns = tables.setdefault(table, ServerTable()).columns
        columns.append({
            "name": name, "type": kind, "nullable": bool(nullable), "default": default, "data_type": data_type,
            "extra": extra,
        })  # fmt: skip
    cursor.execute(_KEYS, (database,))
    for table, key, column in cursor.fetchall():
        if table in tables:
            tables[table].keys.setdefault(key, []).append(column or "")
    return tables


def shown(table: ServerTable) -> ShownTable:
    columns = [
        [
            column["name"], column["type"], column["nullable"],
            NEXT_NUMBER if "auto_increment" in column["extra"] else column["default"],
        ]
        for column in table.columns
    ]  # fmt: skip
    return {"columns": columns, "primary": table.keys.get("PRIMARY", [])}


@dataclass
class Oracle:
    """Two databases of one name, one on the server, one in the product."""

    server: MySqlServer
    database: str = "d"
    has_rows: bool = False
    folding: bool = False
    """Whether the server compares names of tables without case."""
    log: list[str] = field(default_factory=list[str])

    def __post_init__(self) -> None:
        self._cursor = self.server.connect().cursor()
        self.begin()

    def begin(self) -> None:
        """An empty database, in use."""
        self._here, self.log = ProductTables(self.database), []
        for statement in (
            f"DROP DATABASE IF EXISTS {self.database}", f"CREATE DATABASE {self.database}", f"USE {self.database}"
        ):  # fmt: skip
            self._cursor.execute(statement)
        self.current = tables_of(self._cursor, self.database)

    def run(self, statement: str) -> bool:
        """Whether the server took the statement; fails where the product makes other tables of it, or holds one."""
        before = {table.incarnation: (table, self._values(table)) for table in self._here.tables}
        try:
            self._cursor.execute(statement)
        except pymysql.MySQLError:
            return False
        self.log.append(statement)
        effects = self._here.run(statement)
        self.current = tables_of(self._cursor, self.database)
        tables = [(self._on_server_as(table), table) for table in self._here.tables]
        wrong = [*differences({name: shown(table) for name, table in self.current.items()}, tables)]
        assert not wrong, f"server, here: {wrong}\n{self.story()}"
        for name, table in tables:
            if table.incarnation not in before or "empty" in effects.get(table.incarnation, ()):
                self._fill(table)
            elif "hold" not in effects.get(table.incarnation, ()):
                changed = _changed(*before[table.incarnation], table, self._values(table))
                assert not changed, f"{name}: the server changed {changed}, and the table is not held\n{self.story()}"
        return True

    def _on_server_as(self, table: TableVersion) -> str:
        return table.name.table.lower() if self.folding else table.name.table

    def _values(self, table: TableVersion) -> dict[int, list[Any]]:
        """The values of each column that rows have, by its id, in the same order of rows for all columns."""
        if not self.has_rows:
            return {}
        self._cursor.execute(
            f"SELECT {', '.join(quoted(each.name) for each in table.columns)} FROM {quoted(table.name.table)}"
        )
        # Labels in the character set binary are bytes to the client.
        values = [[v.decode("latin1") if isinstance(v, bytes) else v for v in row] for row in self._cursor.fetchall()]
        rows = sorted(values, key=repr)
        return {each.id: [row[n] for row in rows] for n, each in enumerate(table.columns) if each.carried}

    def _fill(self, table: TableVersion) -> None:
        """Insert rows with other values in each column, as far as the server takes them."""
        own = self.current[self._on_server_as(table)].columns
        names = [quoted(column["name"]) for column in own if "GENERATED" not in column["extra"]]
        for number in range(1, 4) if self.has_rows and names else ():
            insert = f"INSERT IGNORE INTO {quoted(table.name.table)} ({', '.join(names)}) VALUES "
            with contextlib.suppress(pymysql.MySQLError):
                self._cursor.execute(f"{insert}({', '.join([str(number)] * len(names))})")

    def story(self) -> str:
        return ";\n".join(self.log)


def _changed(
    before: TableVersion, old: dict[int, list[Any]], after: TableVersion, new: dict[int, list[Any]]
) -> list[str]:
    """The columns whose values were changed though their type was not, or that are new and not the same in all rows."""
    changed: list[str] = []
    for column in after.columns:
        was, values = before.column(column.id), new.get(column.id, [])
        if was is None:
            changed += [column.name] if len(set(map(repr, values))) > 1 else []
        elif column.id in old and type_change(was.type, column.type) == "none":
            changed += [column.name] if sorted(map(repr, old[column.id])) != sorted(map(repr, values)) else []
    return changed
