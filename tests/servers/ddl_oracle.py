"""A server and the product side by side: what the server takes goes to both; then they have the same tables."""

from __future__ import annotations

from dataclasses import dataclass, field
from decimal import Decimal, InvalidOperation
from typing import Any

import pymysql

from cdc_lakehouse.changelog.live_tables import LiveTables
from cdc_lakehouse.changelog.mysql_types import BLOBS, INTEGERS, server_type_text
from cdc_lakehouse.changelog.schema import Column, SchemaChange, TableVersion
from cdc_lakehouse.changelog.versions import versions_of
from tests.servers.ddl_sequences import ServerDatabase, ServerTable
from tests.servers.mysql import MySqlServer

_COLUMNS = """
    SELECT table_name, column_name, column_type, is_nullable = 'YES', column_default, data_type, extra
    FROM information_schema.columns JOIN information_schema.tables USING (table_schema, table_name)
    WHERE table_schema = %s AND table_type = 'BASE TABLE' ORDER BY table_name, ordinal_position
"""
_KEYS = """
    SELECT table_name, index_name, non_unique, column_name, sub_part FROM information_schema.statistics
    WHERE table_schema = %s ORDER BY table_name, index_name, seq_in_index
"""


@dataclass
class Oracle:
    """Two databases of one name, one on the server, one in the product."""

    server: MySqlServer
    database: str = "d"
    log: list[str] = field(default_factory=list[str])

    def __post_init__(self) -> None:
        self._cursor = self.server.connect().cursor()
        self.begin()

    def begin(self) -> None:
        """An empty database, in use."""
        self._live, self.log = LiveTables(), []
        for statement in (
            f"DROP DATABASE IF EXISTS {self.database}", f"CREATE DATABASE {self.database}", f"USE {self.database}"
        ):  # fmt: skip
            self._cursor.execute(statement)
        self.current = self._on_server()

    def run(self, statement: str) -> bool:
        """Whether the server took the statement; fails where the product makes other tables of it, or holds one."""
        try:
            self._cursor.execute(statement)
        except pymysql.MySQLError:
            return False
        self.log.append(statement)
        change = SchemaChange(
            len(self.log), self.database, "", None, statement, (), "", backslash_escapes=True, kind="text"
        )
        for version in versions_of(change, self._live):
            self._live.record(version)
            odd = [sign for sign in ("which is not known", "appears", "are gone") if sign in (version.note or "")]
            assert version.hold is None and not odd, f"{version.hold or version.note}\n{self.story()}"
        self.current = self._on_server()
        tables = {table.name.table: table for table in self._live.in_database(self.database)}
        assert set(tables) == set(self.current.tables), self.story()
        for name, table in tables.items():
            differences = list(_differences(self.current.tables[name], table))
            assert not differences, f"{name}: server, here: {differences}\n{self.story()}"
        return True

    def story(self) -> str:
        return ";\n".join(self.log)

    def _on_server(self) -> ServerDatabase:
        tables: dict[str, ServerTable] = {}
        self._cursor.execute(_COLUMNS, (self.database,))
        for table, name, kind, nullable, default, data_type, extra in self._cursor.fetchall():
            columns = tables.setdefault(table, ServerTable()).columns
            columns.append({
                "name": name, "type": kind, "nullable": bool(nullable), "default": default, "data_type": data_type,
                "extra": extra,
            })  # fmt: skip
        self._cursor.execute(_KEYS, (self.database,))
        for table, key, non_unique, column, length in self._cursor.fetchall():
            if table in tables:
                tables[table].add_key(key, column, unique=not non_unique, whole=length is None)
        return ServerDatabase(self.database, tables)


def _differences(server: ServerTable, table: TableVersion) -> Any:
    names = [column["name"] for column in server.columns]
    if names != [column.name for column in table.columns]:
        yield names, [column.name for column in table.columns]
        return
    for own, column in zip(server.columns, table.columns, strict=True):
        wanted, found = (own["type"], own["nullable"]), (server_type_text(column.type), column.nullable)
        if wanted != found:
            yield column.name, wanted, found
        # The default of an AUTO_INCREMENT column is the next number.
        if "auto_increment" not in own["extra"] and not _same_default(own["default"], column):
            yield column.name, own["default"], column.default
    primary = {column.name for column in table.columns if column.id in table.primary_key}
    if primary != set(server.keys.get("PRIMARY", ())):
        yield server.keys.get("PRIMARY", ()), primary


def _same_default(server: str | None, column: Column) -> bool:
    """Whether rows would hold the same value by it."""
    here = column.default
    if server is None or here is None or server == here:
        return server == here
    kind = column.type
    if kind.name in BLOBS:
        # The server prints the bytes up to the first that is zero.
        content = bytes.fromhex(here[2:]) if here.startswith("0x") else here.encode()
        return server.removeprefix("0x").lower() == content.partition(b"\0")[0].hex()
    if kind.name in INTEGERS | {"decimal", "float", "double", "year"}:
        try:
            one, other = Decimal(server), Decimal(here)
        except InvalidOperation:
            return False
        # The server prints six digits of a FLOAT.
        return abs(one - other) <= abs(one) * Decimal("1e-5") if kind.name == "float" else float(one) == float(other)
    if kind.name in ("enum", "set") and server.startswith("0x"):
        return bytes.fromhex(server[2:]).decode() == here
    return False
