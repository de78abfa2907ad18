"""Columns as statements define them: what they are in the table, or why the server refuses them."""

from __future__ import annotations

import re
from collections.abc import Container, Iterable
from dataclasses import dataclass, replace
from typing import Final

from cdc_lakehouse.changelog.ddl.definitions import (
    BytesLiteral,
    ColumnDefinition,
    NullLiteral,
    NumberLiteral,
    TextLiteral,
)
from cdc_lakehouse.changelog.ddl.tokens import Token, name_value, tokenize
from cdc_lakehouse.changelog.ddl_column_types import server_type
from cdc_lakehouse.changelog.ddl_default import default_text, invalid, no_default, now_digits
from cdc_lakehouse.changelog.ddl_schema import Generation, TableColumn, is_large
from cdc_lakehouse.changelog.mysql_types import INTEGERS, ColumnType
from cdc_lakehouse.errors import DdlError

MOST_CHARACTERS: Final = 64
"""Of a name."""

# Words that can stand between commas or parentheses of an expression, and are no columns: constants, and what
# functions such as CONVERT and TIMESTAMPDIFF take.
_CONSTANTS: Final = frozenset({
    "NULL", "TRUE", "FALSE", "UNKNOWN", "DATE", "TIME", "DATETIME", "CHAR", "BINARY", "SIGNED", "UNSIGNED", "DECIMAL",
    "JSON", "YEAR", "MICROSECOND", "SECOND", "MINUTE", "HOUR", "DAY", "WEEK", "MONTH", "QUARTER", "NCHAR", "FLOAT",
    "DOUBLE", "REAL", "INTEGER",
})  # fmt: skip


@dataclass(frozen=True, slots=True)
class Drafted:
    """A column while a statement is applied; `said_null` where the statement wants it to hold NULL.

    `was` is the name before, in lower case, of a column that the statement redefines or renames.
    """

    column: TableColumn
    said_null: bool = False
    was: str | None = None

    @property
    def folded(self) -> str:
        return self.column.name.lower()

    def not_null(self) -> Drafted:
        return replace(self, column=replace(self.column, nullable=False))


def drafted(definition: ColumnDefinition, column_id: int, charset: str, forced: str | None = None) -> Drafted:
    """The column of a table in that character set. Raises DdlError."""
    name = definition.name
    kind = check_definition(definition, charset, forced)
    said_null = definition.nullable is True or isinstance(definition.default, NullLiteral)
    generation = None
    if definition.generated is not None:
        generation = Generation(definition.generated, definition.expression or "")
    return Drafted(
        TableColumn(
            column_id, name, kind,
            nullable=definition.nullable is not False and not definition.auto_increment,
            default=default_text(definition.default, kind, name),
            auto_increment=definition.auto_increment,
            generation=generation,
        ),
        said_null,
    )  # fmt: skip


def check_definition(definition: ColumnDefinition, charset: str, forced: str | None = None) -> ColumnType:
    """The column's type, where nothing but its default could still be refused."""
    check_name(definition.name, "column")
    kind = server_type(definition, charset, forced)
    _check_attributes(definition, kind)
    return kind


def check_name(name: str, what: str) -> None:
    if not name or name.endswith(" ") or len(name) > MOST_CHARACTERS:
        raise DdlError(f"{name!r} cannot be the name of a {what}")


def _check_attributes(definition: ColumnDefinition, kind: ColumnType) -> None:
    name = definition.name
    if definition.generated is not None and (definition.default is not None or definition.auto_increment):
        raise DdlError(f"column {name}: a generated column has neither a default nor AUTO_INCREMENT")
    obliged = definition.nullable is False or definition.primary_key
    if obliged and isinstance(definition.default, NullLiteral):
        raise invalid(name)
    if is_large(kind) and isinstance(definition.default, TextLiteral | NumberLiteral | BytesLiteral):
        raise no_default(kind, name)
    if definition.auto_increment:
        if kind.name not in INTEGERS | {"float", "double"}:
            raise DdlError(f"column {name}: {kind.name} cannot be AUTO_INCREMENT")
        if definition.default not in (None, NullLiteral()):
            raise invalid(name)
    if definition.on_update is not None and (
        kind.name not in ("datetime", "timestamp") or now_digits(definition.on_update) != kind.fraction
    ):
        raise DdlError(f"column {name}: ON UPDATE {definition.on_update} does not fit its type")


def with_reads(columns: Iterable[Drafted]) -> list[Drafted]:
    """The columns, each generated one with what its expression reads. Raises DdlError for what it cannot read."""
    found = list(columns)
    places = {each.folded: place for place, each in enumerate(found)}
    return [_with_reads(each, place, places, found) for place, each in enumerate(found)]


def _with_reads(each: Drafted, place: int, places: dict[str, int], columns: list[Drafted]) -> Drafted:
    generation = each.column.generation
    if generation is None:
        return each
    reads = columns_read(generation.expression, places) if not generation.reads else generation.reads
    for name in sorted(reads):
        if name not in places:
            raise DdlError(f"column {each.column.name}: its expression reads {name}, which is no column of the table")
        other = columns[places[name]].column
        if other.auto_increment:
            raise DdlError(f"column {each.column.name}: its expression reads {name}, which is AUTO_INCREMENT")
        if other.generation is not None and places[name] >= place:
            raise DdlError(f"column {each.column.name}: its expression reads {name}, which is generated after it")
    return replace(each, column=replace(each.column, generation=replace(generation, reads=frozenset(reads))))


def columns_read(expression: str, known: Container[str]) -> set[str]:
    """Names, in lower case, that can only be columns, and words that are the names of known ones."""
    _, tokens = tokenize(expression)
    reads: set[str] = set()
    for place, token in enumerate(tokens):
        if token.kind not in ("word", "name") or tokens[place + 1].word in ("(", "."):
            continue
        name = name_value(token).lower()
        if token.kind == "name" or name in known or _stands_alone(tokens, place):
            reads.add(name)
    return reads


def _stands_alone(tokens: list[Token], place: int) -> bool:
    """A word with operators or punctuation on both sides is an operand: a column, if not a constant."""
    token, after = tokens[place], tokens[place + 1]
    before = tokens[place - 1] if place else None
    alone = (before is None or before.kind == "symbol") and after.kind in ("symbol", "end")
    variable = before is not None and before.word in ("@", ":")
    literal = re.fullmatch(r"[0-9]+.*|_[a-z0-9]+", token.text, re.IGNORECASE)
    return alone and not variable and token.word not in _CONSTANTS and literal is None
