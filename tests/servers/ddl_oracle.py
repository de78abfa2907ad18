"""A server and the product side by side: what the server takes goes to both; then they have the same tables."""

from __future__ import annotations

import contextlib
import re
from dataclasses import dataclass, field
from decimal import Decimal, InvalidOperation
from typing import Any

import pymysql

from cdc_lakehouse.changelog.mysql_types import BLOBS, INTEGERS, server_type_text, type_change
from cdc_lakehouse.changelog.schema import Column, SchemaChange, TableVersion
from cdc_lakehouse.changelog.versions import LiveTables, versions_of
from tests.servers.ddl_sequences import ServerDatabase, ServerTable, quoted
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


_HOLDS = (
    (re.compile(r"numbers its rows in column"), re.compile(r"AUTO_INCREMENT|SERIAL", re.IGNORECASE)),
    (re.compile(r"computes column"), re.compile(r"STORED|MODIFY|CHANGE|CONVERT", re.IGNORECASE)),
    (re.compile(r"have the default .* in column"), re.compile(r"(CURRENT_TIMESTAMP|NOW)\b", re.IGNORECASE)),
)
"""Reasons of holds, and what the statement has that makes each of them true."""


def holds_by_rule(statement: str, reason: str) -> bool:
    """Whether the server does to rows what neither the log nor the statement says, so that the table has to be held."""
    return any(said.search(reason) and cause.search(statement) for said, cause in _HOLDS)


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
        self._live, self.log = LiveTables(), []
        for statement in (
            f"DROP DATABASE IF EXISTS {self.database}", f"CREATE DATABASE {self.database}", f"USE {self.database}"
        ):  # fmt: skip
            self._cursor.execute(statement)
        self.current = self._on_server()

    def run(self, statement: str) -> bool:
        """Whether the server took the statement; fails where the product makes other tables of it, or holds one."""
        before = {table.incarnation: (table, self._values(table)) for table in self._live.in_database(self.database)}
        try:
            self._cursor.execute(statement)
        except pymysql.MySQLError:
            return False
        self.log.append(statement)
        change = SchemaChange(
            len(self.log), self.database, "", None, statement, (), "", backslash_escapes=True, kind="text"
        )
        effects: dict[str, set[str]] = {}
        for version in versions_of(change, self._live):
            self._live.record(version)
            effects.setdefault(version.incarnation, set()).add(version.effect)
            odd = [sign for sign in ("which is not known", "appears", "are gone") if sign in (version.note or "")]
            held = version.hold is not None and not holds_by_rule(statement, version.hold)
            assert not held and not odd, f"{version.hold or version.note}\n{self.story()}"
        self.current = self._on_server()
        live = self._live.in_database(self.database)
        tables = {self._on_server_as(table): table for table in live}
        assert len(live) == len(tables) and set(tables) == set(self.current.tables), self.story()
        for name, table in tables.items():
            differences = list(_differences(self.current.tables[name], table))
            assert not differences, f"{name}: server, here: {differences}\n{self.story()}"
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
        own = self.current.tables[self._on_server_as(table)].columns
        names = [quoted(column["name"]) for column in own if "GENERATED" not in column["extra"]]
        for number in range(1, 4) if self.has_rows and names else ():
            insert = f"INSERT IGNORE INTO {quoted(table.name.table)} ({', '.join(names)}) VALUES "
            with contextlib.suppress(pymysql.MySQLError):
                self._cursor.execute(f"{insert}({', '.join([str(number)] * len(names))})")

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
