"""Column definitions in DDL text: MySQL reference manual, "CREATE TABLE Statement"; TiDB's own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from cdc_lakehouse.changelog.ddl.cursor import Cursor
from cdc_lakehouse.changelog.ddl.definitions import After, ColumnDefinition, First, Generated, Position, Value
from cdc_lakehouse.changelog.ddl.keys import skip_check, skip_references
from cdc_lakehouse.changelog.ddl.literals import read_default, read_function
from cdc_lakehouse.changelog.ddl.types import of_bytes, read_charset, read_type
from cdc_lakehouse.changelog.mysql_types import ColumnType


@dataclass(slots=True)
class _Draft:
    """A column while its attributes are read."""

    name: str
    type: ColumnType
    nullable: bool | None = None
    default: Value | None = None
    primary_key: bool = False
    unique: bool = False
    auto_increment: bool = False
    generated: Generated | None = None
    expression: str | None = None
    on_update: str | None = None
    comment: str | None = None
    collation: str | None = None

    def be_serial(self) -> None:
        """NOT NULL AUTO_INCREMENT UNIQUE (MySQL reference manual, "Numeric Data Type Syntax")."""
        self.nullable, self.auto_increment, self.unique = False, True, True

    def definition(self) -> ColumnDefinition:
        kind = of_bytes(self.type) if self.collation == "binary" else self.type
        return ColumnDefinition(
            self.name, kind, self.nullable, self.default, self.primary_key, self.unique, self.auto_increment,
            self.generated, self.expression, self.on_update, self.comment, self.collation,
        )  # fmt: skip


def read_column(cursor: Cursor) -> ColumnDefinition:
    """A column's name, type and attributes."""
    return read_definition(cursor, cursor.column_name())


def read_definition(cursor: Cursor, name: str) -> ColumnDefinition:
    """A column's type and attributes."""
    if cursor.accept("SERIAL"):
        draft = _Draft(name, ColumnType.of("bigint unsigned"))
        draft.be_serial()
    else:
        draft = _Draft(name, read_type(cursor))
    while word := cursor.accept_any(_ATTRIBUTES):
        _ATTRIBUTES[word](cursor, draft)
    return draft.definition()


def read_position(cursor: Cursor) -> Position | None:
    if cursor.accept("FIRST"):
        return First()
    if cursor.accept("AFTER"):
        return After(cursor.column_name())
    return None


# --- Attributes: each is called after its first word ---


def _not(cursor: Cursor, draft: _Draft) -> None:
    if not cursor.accept("SECONDARY"):
        cursor.expect("NULL")
        draft.nullable = False


def _null(_: Cursor, draft: _Draft) -> None:
    draft.nullable = True


def _default(cursor: Cursor, draft: _Draft) -> None:
    draft.default = read_default(cursor)


def _auto_increment(_: Cursor, draft: _Draft) -> None:
    draft.auto_increment = True


def _auto_random(cursor: Cursor, _: _Draft) -> None:
    if cursor.at("("):
        cursor.enclosed(cursor.integer)


def _primary(cursor: Cursor, draft: _Draft) -> None:
    cursor.accept("KEY")
    draft.primary_key = True


def _key(_: Cursor, draft: _Draft) -> None:
    draft.primary_key = True


def _unique(cursor: Cursor, draft: _Draft) -> None:
    cursor.accept("KEY")
    draft.unique = True


def _serial(cursor: Cursor, draft: _Draft) -> None:
    cursor.expect("DEFAULT", "VALUE")
    draft.be_serial()


def _comment(cursor: Cursor, draft: _Draft) -> None:
    draft.comment = cursor.string()


def _collate(cursor: Cursor, draft: _Draft) -> None:
    draft.collation = read_charset(cursor)


def _on(cursor: Cursor, draft: _Draft) -> None:
    cursor.expect("UPDATE")
    draft.on_update = read_function(cursor)


def _generated(cursor: Cursor, draft: _Draft) -> None:
    cursor.expect("ALWAYS", "AS")
    _as(cursor, draft)


def _as(cursor: Cursor, draft: _Draft) -> None:
    draft.expression = cursor.parenthesized()
    draft.generated = "virtual"
    if cursor.accept_any(("STORED", "PERSISTENT")):
        draft.generated = "stored"
    else:
        cursor.accept("VIRTUAL")


def _check(cursor: Cursor, _: _Draft) -> None:
    skip_check(cursor)


def _constraint(cursor: Cursor, _: _Draft) -> None:
    if not cursor.at("CHECK"):
        cursor.name()
    cursor.expect("CHECK")
    skip_check(cursor)


def _references(cursor: Cursor, _: _Draft) -> None:
    skip_references(cursor)


def _nothing(_: Cursor, __: _Draft) -> None:
    pass


def _one_word(cursor: Cursor, _: _Draft) -> None:
    cursor.accept("=")
    cursor.word_or_string("a value")


def _compressed(cursor: Cursor, _: _Draft) -> None:
    if cursor.accept("="):
        cursor.name()


_ATTRIBUTES: Final[dict[str, Callable[[Cursor, _Draft], None]]] = {
    "NOT": _not, "NULL": _null, "DEFAULT": _default, "AUTO_INCREMENT": _auto_increment,
    "AUTO_RANDOM": _auto_random, "PRIMARY": _primary, "KEY": _key, "UNIQUE": _unique, "SERIAL": _serial,
    "COMMENT": _comment, "COLLATE": _collate, "ON": _on, "GENERATED": _generated, "AS": _as, "CHECK": _check,
    "CONSTRAINT": _constraint, "REFERENCES": _references, "COLUMN_FORMAT": _one_word, "STORAGE": _one_word,
    "ENGINE_ATTRIBUTE": _one_word, "SECONDARY_ENGINE_ATTRIBUTE": _one_word, "SRID": _one_word,
    "VISIBLE": _nothing, "INVISIBLE": _nothing, "COMPRESSED": _compressed,
    # TiDB: how a key of the column is kept.
    "CLUSTERED": _nothing, "NONCLUSTERED": _nothing, "GLOBAL": _nothing, "LOCAL": _nothing,
}  # fmt: skip
