"""Reading of a whole table: its rows in ranges of its key, each value as the text that dumps have of it.

Ranges use the first columns of the key, as far as MySQL can compare their order with a constant; a table without such a
column is one range. Bounds are texts as in rows."""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, Final

from cdc_lakehouse.changelog.ddl import apply
from cdc_lakehouse.changelog.ddl.clauses import CreateTable, Key, KeyPart
from cdc_lakehouse.changelog.ddl.lexer import DdlSyntaxError
from cdc_lakehouse.changelog.ddl.statements import parse
from cdc_lakehouse.changelog.mysql_types import BLOBS, GEOMETRIES, INTEGERS, TEXTS, ColumnType
from cdc_lakehouse.changelog.schema import TableName, quoted
from cdc_lakehouse.errors import SourceError

Bound = tuple[str, ...]
"""Values of the columns that ranges use."""
Statement = tuple[str, list[Any]]
"""A statement, and the values that are bound in it."""

_IN_ORDER: Final = INTEGERS | TEXTS | BLOBS | {"decimal", "year", "date", "datetime", "timestamp", "time"}
_LEAVE_OUT: Final = "leave the table out (tables.exclude)"
_NUMBER_OF_ROWS: Final = re.compile(r"(?m)^(\).*?) AUTO_INCREMENT=\d+")


@dataclass(frozen=True, slots=True)
class KeyRange:
    """The keys above `lower` up to and including `upper`; None for no bound."""

    lower: Bound | None = None
    upper: Bound | None = None


@dataclass(frozen=True)
class TableDefinition:
    """A table at one moment. `statement` is its CREATE TABLE, without what changes with its rows; `created` is the
    server's creation time, which statements that replace its rows change. `estimated_rows` comes from the server's
    statistics."""

    name: TableName
    statement: str
    created: str
    estimated_rows: int = field(default=0, compare=False)

    @classmethod
    def of(cls, name: TableName, statement: str, created: str, estimated_rows: int = 0) -> TableDefinition:
        return cls(name, _NUMBER_OF_ROWS.sub(r"\1", statement), created, estimated_rows)

    @functools.cached_property
    def parsed(self) -> CreateTable:
        """The parsed statement. Raises `SourceError` for a statement that cannot be parsed."""
        try:
            (clause,) = parse(self.statement)
        except DdlSyntaxError as error:
            raise SourceError(f"the CREATE TABLE: {error.message}", table=str(self.name), advice=_LEAVE_OUT) from None
        if not isinstance(clause, CreateTable) or not clause.columns:
            raise SourceError("the CREATE TABLE lists no columns", table=str(self.name), advice=_LEAVE_OUT)
        return clause

    @property
    def is_understood(self) -> bool:
        """Whether its columns are known. Otherwise no rows of it can be loaded."""
        try:
            _ = self.parsed
        except SourceError:
            return False
        return True

    @functools.cached_property
    def types(self) -> dict[str, ColumnType]:
        """The types of the stored columns, in order."""
        stored = {each.name for each in self.parsed.columns if not each.virtual}
        return {each.name: each.type for each in apply.created(self.parsed).columns if each.name in stored}

    @property
    def key(self) -> tuple[str, ...]:
        """The columns that ranges use: the first ones of the primary key, or of a unique key without NULL."""
        return self._chosen[0]

    @property
    def is_numbered(self) -> bool:
        """Whether the key is one integer: each number has at most one row."""
        columns, whole = self._chosen
        return whole and len(columns) == 1 and self.types[columns[0]].name in INTEGERS

    @functools.cached_property
    def _chosen(self) -> tuple[tuple[str, ...], bool]:
        """The columns of a key, and whether they are the whole key."""
        primary, unique = self.parsed.keys
        for key in primary + [key for key in unique if self._has_no_null(key)]:
            if columns := self._in_order(key.parts):
                return columns, len(columns) == len(key.parts)
        return (), False

    def _has_no_null(self, key: Key) -> bool:
        nullable = {each.name.lower() for each in self.parsed.columns if each.nullable is not False}
        return not key.has_expression and nullable.isdisjoint(column.lower() for column in key.columns)

    def _in_order(self, parts: Sequence[KeyPart]) -> tuple[str, ...]:
        """Return the first columns of a key, as far as MySQL compares them with a constant and indexes them as a
        whole."""
        by_name = {name.lower(): name for name in self.types}
        found: list[str] = []
        for part in parts:
            name = by_name.get((part.column or "").lower())
            if name is None or part.length is not None or self.types[name].name not in _IN_ORDER:
                break
            found.append(name)
        return tuple(found)

    @property
    def encoded(self) -> frozenset[str]:
        """The columns whose texts are the hexadecimal digits of their bytes."""
        return frozenset(name for name, each in self.types.items() if each.name in _BINARY)

    def rows(self, of: KeyRange) -> Statement:
        """Return the statement for the texts of all columns of a range's rows."""
        condition, values = self._within(of)
        texts = ", ".join(_text(name, each) for name, each in self.types.items())
        return f"SELECT {_bound(texts)} FROM {_bound(self.name.quoted)}{condition}", values

    def bound(self, after: Bound | None, rows: int) -> Statement:
        """Return the statement for the key of the `rows`th row after a key; it has no result where there are fewer."""
        condition, values = self._within(KeyRange(after))
        texts = ", ".join(_text(name, self.types[name]) for name in self.key)
        order = ", ".join(map(quoted, self.key))
        return (
            f"SELECT {_bound(texts)} FROM {_bound(self.name.quoted)}{condition} ORDER BY {_bound(order)} "
            f"LIMIT 1 OFFSET {rows - 1:d}",
            values,
        )

    def least_and_greatest(self) -> Statement:
        """Return the statement for the smallest and the greatest key of a table whose key is one integer."""
        (key,) = self.key
        return f"SELECT MIN({quoted(key)}), MAX({quoted(key)}) FROM {self.name.quoted}", []

    def _within(self, of: KeyRange) -> Statement:
        parts: list[str] = []
        values: list[Any] = []
        for bound, sign, including in ((of.lower, ">", ""), (of.upper, "<", "=")):
            if bound is not None:
                condition, found = self._beside(bound, sign, including)
                parts.append(condition)
                values += found
        return (f" WHERE {' AND '.join(parts)}" if parts else ""), values

    def _beside(self, bound: Bound, sign: str, including: str) -> Statement:
        """Return a condition that MySQL's index supports: `a >= 1 AND (a > 1 OR a = 1 AND b > 2)`, unlike `(a, b) > (1,
        2)`."""
        names = [_bound(quoted(name)) for name in self.key]
        constants = [_constant(text, self.types[name]) for name, text in zip(self.key, bound, strict=True)]
        alternatives: list[str] = []
        values: list[Any] = []
        for place, name in enumerate(names):
            last = including if place == len(names) - 1 else ""
            same = "".join(f"{other} = %s AND " for other in names[:place])
            alternatives.append(f"{same}{name} {sign}{last} %s")
            values += constants[: place + 1]
        if len(names) == 1:
            return alternatives[0], values
        return f"({names[0]} {sign}= %s AND ({' OR '.join(alternatives)}))", [constants[0], *values]


_BINARY: Final = BLOBS | GEOMETRIES | {"bit"}


def _text(name: str, of: ColumnType) -> str:
    """Return the expression of a value in the form of a dump."""
    value = quoted(name)
    if of.name == "bit":
        # Whole bytes, for any number of bits.
        return f"LPAD(HEX({value} + 0), 16, '0')"
    if of.name in _BINARY:
        return f"HEX({value})"
    # A FLOAT is printed with six digits, which may not be all of them.
    return f"{value} + 0e0" if of.name == "float" else value


def _constant(text: str, of: ColumnType) -> Any:
    """Convert a bound's text to a value that MySQL compares by the column's type."""
    if of.name in INTEGERS or of.name == "year":
        return int(text)
    if of.name == "decimal":
        return Decimal(text)
    return bytes.fromhex(text) if of.name in BLOBS else text


def _bound(text: str) -> str:
    """Escape a text for a statement with bound values."""
    return text.replace("%", "%%")
