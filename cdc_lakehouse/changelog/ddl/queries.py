"""The names of a query's columns, as far as its text says them."""

from __future__ import annotations

from typing import Final

from cdc_lakehouse.changelog.ddl.cursor import Cursor
from cdc_lakehouse.changelog.ddl.tokens import Token, name_value

_MODIFIERS: Final = frozenset({
    "ALL", "DISTINCT", "DISTINCTROW", "HIGH_PRIORITY", "STRAIGHT_JOIN", "SQL_SMALL_RESULT", "SQL_BIG_RESULT",
    "SQL_BUFFER_RESULT", "SQL_NO_CACHE", "SQL_CACHE", "SQL_CALC_FOUND_ROWS",
})  # fmt: skip
_ENDS: Final = frozenset({"FROM", "INTO", "WHERE", "LIMIT", "ORDER", "UNION", "EXCEPT", "INTERSECT", "FOR", ";", ")"})


def selected_names(cursor: Cursor, start: int) -> tuple[str, ...] | None:
    """Names of the columns of the query between position `start` and the cursor; None where a star or an expression
    without an alias stands for one."""
    tokens = list(cursor.tokens_between(start, cursor.position))
    while tokens and tokens[0].word in ("IGNORE", "REPLACE", "AS", "("):
        del tokens[0]
    if not tokens or tokens[0].word != "SELECT":
        return None
    del tokens[0]
    while tokens and tokens[0].word in _MODIFIERS:
        del tokens[0]
    names = [_name(item) for item in _items(tokens)]
    known = [name for name in names if name is not None]
    return tuple(known) if len(known) == len(names) else None


def _items(tokens: list[Token]) -> list[list[Token]]:
    items: list[list[Token]] = [[]]
    depth = 0
    for token in tokens:
        if depth == 0 and token.word in _ENDS:
            break
        depth += (token.word == "(") - (token.word == ")")
        if depth == 0 and token.word == ",":
            items.append([])
        else:
            items[-1].append(token)
    return items


def _name(item: list[Token]) -> str | None:
    """`a`, `t.a`, `… AS a`, `… a`; a word alone may also be a literal, which names itself."""
    if not item or item[-1].kind not in ("word", "name"):
        return None
    plain = all(token.kind in ("word", "name") or token.word == "." for token in item)
    aliased = len(item) > 1 and item[-2].word != "."
    return name_value(item[-1]) if aliased or plain else None
