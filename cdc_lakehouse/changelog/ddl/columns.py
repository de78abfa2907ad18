"""Columns in DDL text: MySQL reference manual, "CREATE TABLE Statement" and "Data Types"; TiDB's and MariaDB's own.

A type is kept as it is written: FLOAT(30) stays a float of length 30. Only a type that the server itself replaces at
once is returned as the replacement (text types with the character set binary).

To add a type, add its words to `_NAMES`. To add an attribute, add its first word to `_ATTRIBUTES`, or to `_SKIPPED`
where it does not affect rows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

from cdc_lakehouse.changelog.ddl.clauses import After, ColumnDefinition, First, ForeignKey, Position
from cdc_lakehouse.changelog.ddl.cursor import Cursor
from cdc_lakehouse.changelog.ddl.keys import read_references, skip_check
from cdc_lakehouse.changelog.ddl.literals import read_default, read_function
from cdc_lakehouse.changelog.mysql_types import BLOBS, GEOMETRIES, INTEGERS, LABELS, TEMPORALS, TEXTS, ColumnType


def read_column(cursor: Cursor) -> ColumnDefinition:
    """Read a column's name, type and attributes."""
    return read_definition(cursor, cursor.column_name())


def read_definition(cursor: Cursor, name: str) -> ColumnDefinition:
    """Read a column's type and attributes."""
    said: dict[str, Any] = {}
    if cursor.accept("SERIAL"):
        kind = ColumnType.of("bigint unsigned")
        said |= _SERIAL
    else:
        kind = _read_type(cursor)
    while True:
        if word := cursor.accept_any(_ATTRIBUTES):
            said |= _ATTRIBUTES[word](cursor)
        elif word := cursor.accept_any(_SKIPPED):
            _SKIPPED[word](cursor)
        else:
            break
    kind = of_bytes(kind) if said.get("collation") == "binary" else kind
    return ColumnDefinition(name, kind, **said)


def read_position(cursor: Cursor) -> Position | None:
    if cursor.accept("FIRST"):
        return First()
    return After(cursor.column_name()) if cursor.accept("AFTER") else None


# --- Attributes: each function is called after the first word, and returns fields of a ColumnDefinition ---

# SERIAL is BIGINT UNSIGNED with these attributes (MySQL reference manual, "Numeric Data Type Syntax").
_SERIAL: Final = {"nullable": False, "auto_increment": True, "unique": True}


def _not(cursor: Cursor) -> dict[str, Any]:
    if cursor.accept("SECONDARY"):
        return {}
    cursor.expect("NULL")
    return {"nullable": False}


def _flag(name: str) -> Callable[[Cursor], dict[str, Any]]:
    def read(cursor: Cursor) -> dict[str, Any]:
        cursor.accept("KEY")
        return {name: True}

    return read


def _serial(cursor: Cursor) -> dict[str, Any]:
    cursor.expect("DEFAULT", "VALUE")
    return _SERIAL


def _on(cursor: Cursor) -> dict[str, Any]:
    cursor.expect("UPDATE")
    read_function(cursor)
    return {}


def _generated(cursor: Cursor) -> dict[str, Any]:
    cursor.expect("ALWAYS", "AS")
    return _as(cursor)


def _as(cursor: Cursor) -> dict[str, Any]:
    if cursor.accept("ROW", "START") or cursor.accept("ROW", "END"):  # MariaDB: rows have it
        return {}
    expression = cursor.parenthesized()
    stored = cursor.accept_any(("STORED", "PERSISTENT", "VIRTUAL")) not in (None, "VIRTUAL")
    return {"expression": expression, "generated": "stored" if stored else "virtual"}


def _versioned(cursor: Cursor) -> dict[str, Any]:
    cursor.expect("SYSTEM", "VERSIONING")
    return {"versioned": True}


_ATTRIBUTES: Final[dict[str, Callable[[Cursor], dict[str, Any]]]] = {
    "NOT": _not, "NULL": lambda _: {"nullable": True}, "DEFAULT": lambda cursor: {"default": read_default(cursor)},
    "AUTO_INCREMENT": lambda _: {"auto_increment": True}, "PRIMARY": _flag("primary_key"), "KEY": _flag("primary_key"),
    "UNIQUE": _flag("unique"), "SERIAL": _serial, "COMMENT": lambda cursor: {"comment": cursor.string()},
    "COLLATE": lambda cursor: {"collation": cursor.charset_name()}, "ON": _on, "GENERATED": _generated, "AS": _as,
    "REFERENCES": lambda cursor: {"references": ForeignKey(None, read_references(cursor))},
    "WITH": _versioned,
}  # fmt: skip


def _nothing(_: Cursor) -> None:
    pass


def _auto_random(cursor: Cursor) -> None:
    if cursor.at("("):
        cursor.parenthesized()


def _compressed(cursor: Cursor) -> None:
    if cursor.accept("="):
        cursor.name()


def _constraint(cursor: Cursor) -> None:
    if not cursor.at("CHECK"):
        cursor.name()
    cursor.expect("CHECK")
    skip_check(cursor)


_SKIPPED: Final[dict[str, Callable[[Cursor], object]]] = {
    "CHECK": skip_check, "CONSTRAINT": _constraint, "WITHOUT": lambda cursor: cursor.expect("SYSTEM", "VERSIONING"),
    **dict.fromkeys(
        ("COLUMN_FORMAT", "STORAGE", "ENGINE_ATTRIBUTE", "SECONDARY_ENGINE_ATTRIBUTE", "SRID"), Cursor.skip_value
    ),
    **dict.fromkeys(("VISIBLE", "INVISIBLE"), _nothing), "COMPRESSED": _compressed,
    # TiDB: storage of a key of the column.
    **dict.fromkeys(("CLUSTERED", "NONCLUSTERED", "GLOBAL", "LOCAL"), _nothing), "AUTO_RANDOM": _auto_random,
}  # fmt: skip


# --- Types ---

_REALS: Final = frozenset({"decimal", "float", "double"})
_PLAIN: Final = frozenset({"json", "uuid", "inet4", "inet6"}) | GEOMETRIES

_SYNONYMS: Final = frozenset({
    "integer", "int1", "int2", "int3", "middleint", "int4", "int8", "bool", "boolean", "dec", "numeric",
    "fixed", "real", "float4", "float8", "character", "varcharacter", "long", "nchar", "nvarchar",
})  # fmt: skip

# The words of a type -> the name that `ColumnType.of` takes.
_NAMES: Final[dict[tuple[str, ...], str]] = {
    **{
        (name.upper(),): name
        for name in (
            *INTEGERS, *TEXTS, *BLOBS, *LABELS, *TEMPORALS, *_REALS, *_PLAIN, *_SYNONYMS, "bit", "year",
            "vector",
        )
    },
    ("CHAR", "VARYING"): "varchar", ("CHARACTER", "VARYING"): "varchar", ("DOUBLE", "PRECISION"): "double",
    ("NATIONAL", "CHAR"): "nchar", ("NATIONAL", "CHARACTER"): "nchar",
    ("NATIONAL", "VARCHAR"): "nvarchar", ("NATIONAL", "VARCHARACTER"): "nvarchar",
    ("NATIONAL", "CHAR", "VARYING"): "nvarchar", ("NATIONAL", "CHARACTER", "VARYING"): "nvarchar",
    ("NCHAR", "VARYING"): "nvarchar", ("NCHAR", "VARCHAR"): "nvarchar", ("NCHAR", "VARCHARACTER"): "nvarchar",
    ("LONG", "VARCHAR"): "long", ("LONG", "VARCHARACTER"): "long", ("LONG", "CHAR", "VARYING"): "long",
    ("LONG", "CHARACTER", "VARYING"): "long", ("LONG", "VARBINARY"): "long varbinary",
}  # fmt: skip
_NATIONAL: Final = frozenset({"nchar", "nvarchar"})

_NUMBER_FLAGS: Final = frozenset({"UNSIGNED", "SIGNED", "ZEROFILL"})
_NUMBERS: Final = INTEGERS | _REALS | {"bit", "year"}
_OF_BYTES: Final = {
    "char": "binary", "varchar": "varbinary", "tinytext": "tinyblob", "text": "blob",
    "mediumtext": "mediumblob", "longtext": "longblob",
}  # fmt: skip
_CHARSET_WORDS: Final = {"ASCII": "latin1", "UNICODE": "ucs2", "BYTE": "binary"}


def _read_type(cursor: Cursor) -> ColumnType:
    """Read a column's type with its length, signs, labels and character set."""
    declared = cursor.accept_longest(_NAMES)
    if declared is None:
        raise cursor.expected("a column type")
    base = ColumnType.of(declared)
    length, scale = _read_length(cursor, base.name)
    elements = _read_labels(cursor) if base.name in LABELS else ()
    flags: list[str] = []
    while base.name in _NUMBERS and (flag := cursor.accept_any(_NUMBER_FLAGS)):
        flags.append(flag.lower())
    charset = "utf8" if declared in _NATIONAL else None
    if base.name in _OF_BYTES or base.name in LABELS:
        charset = _read_charset_attributes(cursor) or charset
    words = " ".join((declared, *flags))
    kind = ColumnType.of(words, length=length, scale=scale, elements=elements, charset=charset)
    return of_bytes(kind) if charset == "binary" else kind


def of_bytes(kind: ColumnType) -> ColumnType:
    """Return the binary type that a text type in the character set binary is (MySQL, "String Data Type Syntax")."""
    return replace(kind, name=_OF_BYTES[kind.name], charset=None) if kind.name in _OF_BYTES else kind


def _read_length(cursor: Cursor, name: str) -> tuple[int | None, int | None]:
    """Read length and scale. The number after a temporal type is its scale: the digits of the second's fraction."""
    if name == "vector" and cursor.accept("<"):
        cursor.expect("FLOAT", ">")
    if name in LABELS or name in _PLAIN or not cursor.accept("("):
        return None, None
    first = cursor.integer()
    second = cursor.integer() if name in _REALS and cursor.accept(",") else None
    cursor.expect(")")
    return (None, first) if name in TEMPORALS else (first, second)


def _read_labels(cursor: Cursor) -> tuple[str, ...]:
    # The server removes trailing spaces from labels (MySQL, "The ENUM Type"): values never have them.
    return tuple(label.rstrip(" ") for label in cursor.enclosed(lambda: cursor.string("a label")))


def _read_charset_attributes(cursor: Cursor) -> str | None:
    charset = None
    while True:
        if word := cursor.accept_any(_CHARSET_WORDS):
            charset = _CHARSET_WORDS[word]
        elif cursor.accept("BINARY"):
            continue
        elif cursor.accept_charset():
            charset = cursor.charset_name()
        else:
            return charset
