"""The text of a column's default, as MySQL's information_schema.columns.column_default prints it.

A server puts the literal into the column and prints what is then there: `1.5` in an INT is `2`. What does not fit is
refused, as in the strict SQL mode that MySQL 8.0 and 5.7 start with.
"""

from __future__ import annotations

import re
from typing import Final, assert_never

from cdc_lakehouse.changelog.charsets import decoded, encoded, folded
from cdc_lakehouse.changelog.ddl.definitions import (
    BytesLiteral,
    Expression,
    NullLiteral,
    NumberLiteral,
    TextLiteral,
    Value,
)
from cdc_lakehouse.changelog.ddl_default_numbers import double_text, integral, number_default, parsed, rounded
from cdc_lakehouse.changelog.ddl_default_times import time_default, year_default
from cdc_lakehouse.changelog.ddl_schema import is_large
from cdc_lakehouse.changelog.mysql_types import INTEGERS, LABELS, TEMPORALS, ColumnType
from cdc_lakehouse.errors import DdlError

_NOW: Final = re.compile(
    r"(?:current_timestamp|now|localtimestamp|localtime)\s*(?:\(\s*(?P<digits>[0-9]*)\s*\))?", re.IGNORECASE
)
_NUMBERS: Final = INTEGERS | {"decimal", "float", "double"}


def default_text(value: Value | None, kind: ColumnType, column: str) -> str | None:
    """What the server prints for the default, None for none and for NULL. Raises DdlError where it does not fit."""
    match value:
        case None | NullLiteral():
            return None
        case Expression(text):
            return _expression(text, kind, column)
        case TextLiteral() | NumberLiteral() | BytesLiteral():
            if is_large(kind):
                raise no_default(kind, column)
            found = _literal(value, kind)
            if found is None:
                raise invalid(column)
            return found
        case _:
            assert_never(value)


def no_default(kind: ColumnType, column: str) -> DdlError:
    return DdlError(f"column {column}: {kind.name} cannot have a default")


def invalid(column: str) -> DdlError:
    return DdlError(f"column {column}: the default is not valid")


def now_digits(text: str) -> int | None:
    """The fractional digits of CURRENT_TIMESTAMP and its synonyms; None for any other expression."""
    match = _NOW.fullmatch(text.strip())
    return None if match is None else int(match["digits"] or 0)


def _expression(text: str, kind: ColumnType, column: str) -> str:
    digits = now_digits(text)
    if digits is None:
        return text
    if kind.name not in ("datetime", "timestamp") or digits != kind.fraction:
        raise invalid(column)
    return f"CURRENT_TIMESTAMP({digits})" if digits else "CURRENT_TIMESTAMP"


def _literal(value: TextLiteral | NumberLiteral | BytesLiteral, kind: ColumnType) -> str | None:
    if kind.name in _NUMBERS:
        return number_default(value, kind)
    if kind.name in TEMPORALS:
        return time_default(value, kind)
    if kind.name in LABELS:
        return _labels(value, kind)
    match kind.name:
        case "bit":
            return _bits(value, kind)
        case "year":
            return year_default(value)
        case "char" | "varchar":
            return _text(value, kind)
        case "binary" | "varbinary":
            return _bytes(value, kind)
        case _:
            return _as_text(value, kind)


def _as_text(value: TextLiteral | NumberLiteral | BytesLiteral, kind: ColumnType) -> str | None:
    """The literal as a text in the column's character set; a number as a server prints it."""
    match value:
        case TextLiteral(text):
            return text
        case BytesLiteral(content):
            return decoded(content, kind.charset or "utf8mb4")
        case NumberLiteral(text):
            number = parsed(text)
            if number is None:
                return None
            return double_text(float(number), width=kind.length or 64) if "e" in text.lower() else _plain(text)
        case _:
            assert_never(value)


def _plain(text: str) -> str:
    """A number without an exponent, printed: `00012` is `12`, `.5` is `0.5`."""
    sign, digits = ("-", text[1:]) if text.startswith("-") else ("", text.removeprefix("+"))
    whole, _, fraction = digits.partition(".")
    whole = whole.lstrip("0") or "0"
    shown = f"{whole}.{fraction}" if fraction else whole
    return shown if not shown.strip("0.") and not fraction else sign + shown


def _text(value: TextLiteral | NumberLiteral | BytesLiteral, kind: ColumnType) -> str | None:
    text, length = _as_text(value, kind), kind.length or 0
    if text is None or encoded(text, kind.charset or "utf8mb4") is None:
        return None
    # Spaces at the end may be cut off; CHAR does not keep any.
    if len(text) > length and text[length:].strip(" "):
        return None
    return text[:length].rstrip(" ") if kind.name == "char" else text[:length]


def _bytes(value: TextLiteral | NumberLiteral | BytesLiteral, kind: ColumnType) -> str | None:
    match value:
        case BytesLiteral(content):
            pass
        case TextLiteral() | NumberLiteral():
            text = _as_text(value, kind)
            if text is None:
                return None
            content = text.encode("utf-8", "surrogatepass")
        case _:
            assert_never(value)
    if len(content) > (kind.length or 0):
        return None
    if not content and kind.name == "varbinary":
        return ""
    # The server prints the bytes up to the first that is zero.
    return "0x" + content.partition(b"\0")[0].hex().upper()


def _bits(value: TextLiteral | NumberLiteral | BytesLiteral, kind: ColumnType) -> str | None:
    match value:
        case BytesLiteral(content):
            if not content:
                return None
            number = int.from_bytes(content)
        case TextLiteral(text):
            number = int.from_bytes(text.encode("utf-8", "surrogatepass"))
        case NumberLiteral(text):
            whole = rounded(text)
            if whole is None or whole < -(1 << 63) or (text.startswith("-") and "." in text and "e" not in text):
                return None
            # A number with an exponent goes through a signed one.
            number = min(whole, 1 << 63) if "e" in text.lower() else whole
            number += 1 << 64 if number < 0 else 0
        case _:
            assert_never(value)
    return f"b'{number:b}'" if number < 1 << kind.precision else None


def _labels(value: TextLiteral | NumberLiteral | BytesLiteral, kind: ColumnType) -> str | None:
    text = _as_text(value, kind)
    if text is None:
        return None
    charset = kind.charset or "binary"
    labels = [folded(label, charset) for label in kind.elements]
    wanted = [text] if kind.name == "enum" else text.split(",") if text else []
    places = [labels.index(key) if (key := folded(each.rstrip(" "), charset)) in labels else -1 for each in wanted]
    if -1 in places:
        return None
    if isinstance(value, NumberLiteral):
        # The number has to be a label, and is then taken as the label's place.
        shown = _numbered(integral(value.text), kind)
    else:
        shown = ",".join(kind.elements[place] for place in sorted(set(places)))
    return shown if not shown or charset != "binary" else f"0x{shown.encode().hex().upper()}"


def _numbered(number: int | None, kind: ColumnType) -> str | None:
    if number is None or number < 0:
        return None
    if kind.name == "enum":
        return kind.elements[number - 1] if 1 <= number <= len(kind.elements) else None
    if number >> len(kind.elements):
        return None
    return ",".join(label for place, label in enumerate(kind.elements) if number >> place & 1)
