"""A server and the pure model side by side: each statement goes to both, and they must agree."""

from __future__ import annotations

from dataclasses import dataclass, field

import pymysql

from cdc_lakehouse.changelog.ddl.parser import parse
from cdc_lakehouse.changelog.ddl_apply import apply
from cdc_lakehouse.changelog.ddl_schema import Database, Schema, TableSchema
from cdc_lakehouse.changelog.mysql_types import server_type_text
from cdc_lakehouse.errors import DdlError
from tests.servers.mysql import MySqlServer

Column = tuple[str, str, bool, str | None, bool]
"""Name, type, whether it can be NULL, default, whether it is shown as PRI."""
Shown = dict[str, list[Column]]

_COLUMNS = """
    SELECT table_name, column_name, column_type, is_nullable = 'YES', column_default, column_key = 'PRI'
    FROM information_schema.columns JOIN information_schema.tables USING (table_schema, table_name)
    WHERE table_schema = %s AND table_type = 'BASE TABLE' ORDER BY table_name, ordinal_position
"""

_BEYOND = {1210}
"""Incorrect arguments: the model does not know the types within an expression."""


@dataclass
class Oracle:
    """Two databases of one name, one on the server, one in the model."""

    server: MySqlServer
    database: str = "d"
    schema: Schema = field(init=False)
    log: list[str] = field(default_factory=list[str])

    def __post_init__(self) -> None:
        self._cursor = self.server.connect().cursor()
        self.begin()

    def begin(self) -> None:
        """An empty database, in use."""
        self.schema = Schema()
        self.log = []
        for statement in (
            f"DROP DATABASE IF EXISTS {self.database}", f"CREATE DATABASE {self.database}", f"USE {self.database}"
        ):  # fmt: skip
            self._cursor.execute(statement)
            self.schema = apply(self.schema, parse(statement))

    @property
    def current(self) -> Database:
        return self.schema.databases[self.database]

    def run(self, statement: str) -> bool:
        """Whether the server took the statement; fails where the model does not agree, or has other columns then."""
        self.log.append(statement)
        refused = refused_here = None
        try:
            self._cursor.execute(statement)
        except pymysql.MySQLError as error:
            if error.args[0] in _BEYOND:
                return False
            refused = error
        try:
            self.schema = apply(self.schema, parse(statement))
        except DdlError as error:
            refused_here = error
        if (refused is None) != (refused_here is None):
            raise AssertionError(f"server: {refused}; here: {refused_here}\n{self.story()}")
        server, here = self.shown_by_server(), self.shown_here()
        assert here == server, self.story()
        return refused is None

    def story(self) -> str:
        return ";\n".join(self.log)

    def shown_by_server(self) -> Shown:
        self._cursor.execute(_COLUMNS, (self.database,))
        shown: Shown = {}
        for table, name, kind, nullable, default, key in self._cursor.fetchall():
            shown.setdefault(table, []).append((name, kind, bool(nullable), default, bool(key)))
        return shown

    def shown_here(self) -> Shown:
        return {name: _shown(table) for name, table in self.current.tables.items()}


def _shown(table: TableSchema) -> list[Column]:
    return [
        (column.name, server_type_text(column.type), column.nullable, column.default, column.id in table.primary_key)
        for column in table.columns
    ]
