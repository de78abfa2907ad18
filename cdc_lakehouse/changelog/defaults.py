"""What rows that are older than a column hold in it: the default that ALTER TABLE … ADD COLUMN gave them."""

from __future__ import annotations

import re
from typing import Final

from cdc_lakehouse.changelog.ddl.definitions import (
    BytesLiteral,
    ColumnDefinition,
    Expression,
    NullLiteral,
    NumberLiteral,
    TextLiteral,
)
from cdc_lakehouse.changelog.mysql_types import BLOBS, INTEGERS, TEXTS, ColumnType
from cdc_lakehouse.changelog.schema import InitialDefault, SourceColumn

_BITS: Final = re.compile(r"b'([01]+)'", re.IGNORECASE)
# MySQL: "implicit default" of a NOT NULL column without DEFAULT (Data Type Default Values).
_ZERO_DATES: Final = {"date": "0000-00-00", "datetime": "0000-00-00 00:00:00", "timestamp": "0000-00-00 00:00:00"}
_FUNCTIONS: Final = ("current_timestamp", "now", "localtime", "localtimestamp", "current_date", "curdate")


def initial_default(column: SourceColumn, definition: ColumnDefinition | None) -> tuple[InitialDefault, str | None]:
    """The default of an added column, and a warning where it cannot be known.

    The text is as a row value prints, with an ENUM's or SET's labels instead of its number, and a binary value's bytes
    as one character each. The statement's own literal goes before the source's text of it, which TiDB spoils for bytes
    that are not UTF-8.
    """
    if definition is not None and definition.generated == "virtual":
        return InitialDefault(), None
    literal = _literal(definition)
    text = literal if literal is not None else _source_text(column)
    if text is None and column.nullable and (definition is None or not isinstance(definition.default, Expression)):
        return InitialDefault(), None
    if text is None and definition is not None and isinstance(definition.default, Expression):
        return _unknown(column, definition.default.text)
    if text is not None and _is_function(column.type, text):
        return _unknown(column, text)
    if text is None:
        return InitialDefault(_implicit(column.type)), None
    return InitialDefault(_filled(column.type, text)), None


def _literal(definition: ColumnDefinition | None) -> str | None:
    match None if definition is None else definition.default:
        case BytesLiteral(value):
            if definition is not None and (definition.type.name in INTEGERS or definition.type.name == "bit"):
                return str(int.from_bytes(value))
            # Of a text the source prints the characters, in whatever character set the bytes are.
            return value.decode("latin-1") if definition is not None and definition.type.name in BLOBS else None
        case TextLiteral(value) if definition is not None and definition.type.name in BLOBS:
            return value.encode().decode("latin-1")
        case TextLiteral() | NumberLiteral() | NullLiteral() | Expression() | None:
            # The source prints these itself, in the form of the column's type.
            return None


def _source_text(column: SourceColumn) -> str | None:
    if column.default is not None and column.type.name in BLOBS:
        return column.default.encode().decode("latin-1")
    if column.default is not None and column.type.name == "bit" and (bits := _BITS.fullmatch(column.default)):
        return str(int(bits[1], 2))
    return column.default


def _is_function(column: ColumnType, text: str) -> bool:
    return column.name in ("date", "datetime", "timestamp", "time") and text.lower().startswith(_FUNCTIONS)


def _unknown(column: SourceColumn, text: str) -> tuple[InitialDefault, str]:
    warning = f"rows older than column {column.name} hold NULL in it: its default {text} cannot be known from the log"
    return InitialDefault(), warning


def _implicit(column: ColumnType) -> str | None:
    if column.name in _ZERO_DATES:
        return _with_fraction(column, _ZERO_DATES[column.name])
    if column.name == "time":
        return _with_fraction(column, "00:00:00")
    if column.name == "enum":
        return column.elements[0] if column.elements else None
    if column.name == "binary":
        return "\x00" * (column.length or 1)
    if column.name == "json":
        return "null"
    if column.name in TEXTS or column.name in BLOBS or column.name == "set":
        return ""
    if column.name == "decimal" and column.fraction:
        return f"0.{'0' * column.fraction}"
    return None if column.name == "vector" else "0"


def _with_fraction(column: ColumnType, text: str) -> str:
    return f"{text}.{'0' * column.fraction}" if column.fraction and column.name != "date" else text


def _filled(column: ColumnType, text: str) -> str:
    """BINARY(n) is filled with zero bytes; a time prints all its digits."""
    if column.name == "binary":
        return text.ljust(column.length or 1, "\x00")
    if column.name in ("datetime", "timestamp", "time") and column.fraction and "." not in text:
        return _with_fraction(column, text)
    return text
