"""Column types in DDL text: MySQL reference manual, "Data Types"; TiDB's VECTOR; MariaDB's UUID and INET.

What is said is kept: FLOAT(30) stays a float of length 30. Only what the server itself makes into another
type at once is given as that type (text types with CHARACTER SET binary or BYTE).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from cdc_lakehouse.changelog.ddl.cursor import Cursor
from cdc_lakehouse.changelog.mysql_types import (
    BLOBS,
    GEOMETRIES,
    INTEGERS,
    LABELS,
    TEMPORALS,
    TEXTS,
    ColumnType,
)

_REALS: Final = frozenset({"decimal", "float", "double"})
_PLAIN: Final = frozenset({"json", "uuid", "inet4", "inet6"}) | GEOMETRIES

_SYNONYMS: Final = frozenset({
    "integer", "int1", "int2", "int3", "middleint", "int4", "int8", "bool", "boolean", "dec", "numeric",
    "fixed", "real", "float4", "float8", "character", "varcharacter", "long", "nchar", "nvarchar",
})  # fmt: skip

# The words of a type -> the words that `ColumnType.of` knows it by.
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
_MOST_WORDS: Final = 3
_NATIONAL: Final = frozenset({"nchar", "nvarchar"})

_NUMBER_FLAGS: Final = frozenset({"UNSIGNED", "SIGNED", "ZEROFILL"})
_NUMBERS: Final = INTEGERS | _REALS | {"bit", "year"}
_OF_BYTES: Final = {
    "char": "binary", "varchar": "varbinary", "tinytext": "tinyblob", "text": "blob",
    "mediumtext": "mediumblob", "longtext": "longblob",
}  # fmt: skip
_CHARSET_WORDS: Final = {"ASCII": "latin1", "UNICODE": "ucs2", "BYTE": "binary"}


def read_type(cursor: Cursor) -> ColumnType:
    """A column's type with its length, signs, labels and character set."""
    declared = _read_name(cursor)
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
    """The binary type that a text type in the character set binary is (MySQL, "String Data Type Syntax")."""
    return replace(kind, name=_OF_BYTES[kind.name], charset=None) if kind.name in _OF_BYTES else kind


def _read_name(cursor: Cursor) -> str:
    for count in range(_MOST_WORDS, 0, -1):
        words = cursor.words(count)
        if words in _NAMES:
            cursor.expect(*words)
            return _NAMES[words]
    raise cursor.expected("a column type")


def _read_length(cursor: Cursor, name: str) -> tuple[int | None, int | None]:
    """Length and scale; the number after a type of time is its scale: the digits of the second's fraction."""
    if name == "vector" and cursor.accept("<"):
        cursor.expect("FLOAT", ">")
    if name in LABELS or name in _PLAIN or not cursor.accept("("):
        return None, None
    first = cursor.integer()
    second = cursor.integer() if name in _REALS and cursor.accept(",") else None
    cursor.expect(")")
    return (None, first) if name in TEMPORALS else (first, second)


def _read_labels(cursor: Cursor) -> tuple[str, ...]:
    # The server cuts trailing spaces off labels (MySQL, "The ENUM Type"): values never have them.
    return tuple(label.rstrip(" ") for label in cursor.enclosed(lambda: cursor.string("a label")))


def _read_charset_attributes(cursor: Cursor) -> str | None:
    charset = None
    while True:
        if word := cursor.accept_any(_CHARSET_WORDS):
            charset = _CHARSET_WORDS[word]
        elif cursor.accept("BINARY"):
            continue
        elif accept_charset(cursor):
            charset = read_charset(cursor)
        else:
            return charset


def accept_charset(cursor: Cursor) -> bool:
    return cursor.accept("CHARACTER", "SET") or cursor.accept("CHAR", "SET") or cursor.accept("CHARSET")


def read_charset(cursor: Cursor) -> str | None:
    """The name of a character set or collation in lower case; None for DEFAULT."""
    if cursor.accept("DEFAULT"):
        return None
    return cursor.word_or_string("a character set").lower()
