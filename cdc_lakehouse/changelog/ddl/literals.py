"""Literals, defaults and partition bounds in DDL."""

from __future__ import annotations

from typing import Final

from cdc_lakehouse.changelog.ddl import clauses as ddl
from cdc_lakehouse.changelog.ddl.cursor import Cursor
from cdc_lakehouse.changelog.ddl.tokens import bytes_value

_WORDS: Final[dict[str, ddl.Value]] = {
    "NULL": ddl.NullLiteral(),
    "TRUE": ddl.NumberLiteral("1"),
    "FALSE": ddl.NumberLiteral("0"),
}
_TEMPORAL: Final = frozenset({"DATE", "TIME", "TIMESTAMP"})
# Functions that can be called without parentheses.
_BARE_FUNCTIONS: Final = frozenset({
    "CURRENT_TIMESTAMP", "LOCALTIME", "LOCALTIMESTAMP", "CURRENT_DATE", "CURRENT_TIME", "CURRENT_USER",
    "UTC_DATE", "UTC_TIME", "UTC_TIMESTAMP",
})  # fmt: skip
_NATIONAL_CHARSET: Final = "utf8"


def read_literal(cursor: Cursor) -> ddl.Value | None:
    """Read the literal at the cursor; return None and consume nothing where there is none."""
    token = cursor.token
    if token.word in _WORDS:
        cursor.take()
        return _WORDS[token.word]
    if token.word in _TEMPORAL and cursor.next_token.kind == "string":
        cursor.take()
        return ddl.TextLiteral(cursor.string())
    if token.kind == "word" and token.text.startswith("_"):
        return _introduced(cursor)
    match token.kind:
        case "string":
            return ddl.TextLiteral(_strings(cursor), _NATIONAL_CHARSET if token.text[0] in "nN" else None)
        case "hex" | "bit":
            return ddl.BytesLiteral(bytes_value(cursor.take()))
        case "number" | "symbol":
            return _number(cursor)
        case "word" | "name" | "end":
            return None


def _introduced(cursor: Cursor) -> ddl.Value | None:
    """Read a literal after a character set introducer: `_utf8mb4'x'`, `_binary 0x00`."""
    charset = cursor.token.text[1:].lower()
    match cursor.next_token.kind:
        case "string":
            cursor.take()
            return ddl.TextLiteral(_strings(cursor), charset)
        case "hex" | "bit":
            cursor.take()
            return ddl.BytesLiteral(bytes_value(cursor.take()), charset)
        case _:
            return None


def _strings(cursor: Cursor) -> str:
    """Read adjacent strings as one string."""
    pieces = [cursor.string()]
    while cursor.token.kind == "string":
        pieces.append(cursor.string())
    return "".join(pieces)


def _number(cursor: Cursor) -> ddl.NumberLiteral | None:
    start = cursor.position
    sign = cursor.accept_any(("+", "-"))
    adjacent = cursor.token.end == cursor.next_token.start
    point = "." if adjacent and cursor.accept(".") else ""
    if cursor.token.kind != "number" or (point and not cursor.token.text[:1].isdigit()):
        cursor.position = start
        return None
    return ddl.NumberLiteral(("-" if sign == "-" else "") + point + cursor.take().text)


def read_default(cursor: Cursor) -> ddl.Value:
    """Read the value after DEFAULT: a literal, a function, or an expression in parentheses."""
    literal = read_literal(cursor)
    if literal is not None:
        return literal
    if cursor.at("("):
        return _enclosed(cursor)
    start = cursor.position
    if cursor.accept("NEXT", "VALUE", "FOR"):
        cursor.table_name()
        return ddl.Expression(cursor.text_between(start, cursor.position))
    return ddl.Expression(read_function(cursor))


def _enclosed(cursor: Cursor) -> ddl.Value:
    """Read a value in parentheses: `(1)` is the literal, everything else an expression."""
    start = cursor.position
    cursor.expect("(")
    literal = read_literal(cursor)
    if literal is not None and cursor.accept(")"):
        return literal
    cursor.position = start
    text = cursor.parenthesized()
    if not text:
        raise cursor.error("an expression is missing")
    return ddl.Expression(text)


def read_function(cursor: Cursor) -> str:
    """Read a function call; return its text."""
    start = cursor.position
    word = cursor.token.word
    if cursor.token.kind != "word" or not (word in _BARE_FUNCTIONS or cursor.next_token.word == "("):
        raise cursor.expected("a value")
    cursor.take()
    if cursor.at("("):
        cursor.parenthesized()
    return cursor.text_between(start, cursor.position)


def read_bound(cursor: Cursor) -> ddl.BoundValue:
    """Read one value of a partition's bound, up to the next comma or closing parenthesis."""
    start = cursor.position
    value: ddl.BoundValue | None
    if cursor.accept("MAXVALUE"):
        value = ddl.MaxValue()
    elif cursor.accept("DEFAULT"):
        value = ddl.DefaultValue()
    else:
        value = read_literal(cursor)
    if value is not None and (cursor.at(",") or cursor.at(")")):
        return value
    cursor.position = start
    text = cursor.skip_until((",", ")"))
    if not text:
        raise cursor.expected("a value")
    return ddl.Expression(text)
