"""Tables as a server has them, beside those that the product makes of the same statements."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal, InvalidOperation
from typing import Any, Final, TypedDict

from cdc_lakehouse.changelog.mysql_types import BLOBS, INTEGERS, ColumnType, server_type_text
from cdc_lakehouse.changelog.schema import SchemaChange, TableVersion
from cdc_lakehouse.changelog.versions import LiveTables, versions_of

_HOLDS = (
    (re.compile(r"numbers its rows in column"), re.compile(r"AUTO_INCREMENT|SERIAL", re.IGNORECASE)),
    (re.compile(r"computes column"), re.compile(r"STORED|MODIFY|CHANGE|CONVERT", re.IGNORECASE)),
    (re.compile(r"have the default .* in column"), re.compile(r"(CURRENT_TIMESTAMP|NOW)\b", re.IGNORECASE)),
)
"""Reasons of holds, and what the statement has that makes each of them true."""


def _holds_by_rule(statement: str, reason: str) -> bool:
    """Whether the server does to rows what neither the log nor the statement says, so that the table has to be held."""
    return any(said.search(reason) and cause.search(statement) for said, cause in _HOLDS)


NEXT_NUMBER: Final = "AUTO_INCREMENT"


class ShownTable(TypedDict):
    """`columns`: name, type, whether it can be NULL, and default, as information_schema has them; `NEXT_NUMBER` is that
    of an AUTO_INCREMENT column."""

    columns: list[list[Any]]
    primary: list[str]


class ProductTables:
    """What the product makes of a log of statements, from an empty database on."""

    def __init__(self, database: str) -> None:
        self.database, self._live, self._count = database, LiveTables(), 0

    @property
    def tables(self) -> list[TableVersion]:
        return self._live.in_database(self.database)

    def run(self, statement: str) -> dict[str, set[str]]:
        """The effects on each table, by incarnation."""
        self._count += 1
        change = SchemaChange(
            self._count, self.database, "", None, statement, (), "", backslash_escapes=True, kind="text"
        )
        effects: dict[str, set[str]] = {}
        for version in versions_of(change, self._live):
            self._live.record(version)
            effects.setdefault(version.incarnation, set()).add(version.effect)
            odd = [sign for sign in ("which is not known", "appears", "are gone") if sign in (version.note or "")]
            held = version.hold is not None and not _holds_by_rule(statement, version.hold)
            assert not held and not odd, f"{statement}: {version.hold or version.note}"
        return effects


def differences(server: Mapping[str, ShownTable], here: Sequence[tuple[str, TableVersion]]) -> Iterator[Any]:
    """The tables `here` have the names that they have on the server."""
    names = sorted(name for name, _ in here)
    if names != sorted(server):
        yield sorted(server), names
        return
    for name, table in here:
        own = server[name]
        shown = [[c.name, server_type_text(c.type), c.nullable] for c in table.columns]
        if [column[:3] for column in own["columns"]] != shown:
            yield name, own["columns"], shown
            continue
        for (column, *_, default), found in zip(own["columns"], table.columns, strict=True):
            if default != NEXT_NUMBER and not is_same_default(default, found.default, found.type):
                yield name, column, default, found.default
        primary = {column.name for column in table.columns if column.id in table.primary_key}
        if primary != set(own["primary"]):
            yield name, own["primary"], primary


def is_same_default(server: str | None, here: str | None, kind: ColumnType) -> bool:
    """Whether rows would hold the same value by it."""
    if server is None or here is None or server == here:
        return server == here
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
