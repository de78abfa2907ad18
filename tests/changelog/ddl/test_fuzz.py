"""Whatever text comes, `parse` gives clauses or raises DdlSyntaxError; its work grows as the text does. What befalls
statements byte by byte is in tests/fuzz."""

from __future__ import annotations

import contextlib
import sys
from types import FrameType
from typing import Any

import pytest

from cdc_lakehouse.changelog.ddl.lexer import DdlSyntaxError
from cdc_lakehouse.changelog.ddl.statements import parse


def survives(statement: str) -> None:
    for backslash_escapes in (True, False):
        with contextlib.suppress(DdlSyntaxError):
            hash(parse(statement, backslash_escapes=backslash_escapes))


# --- Depth and length ---

DEEP = {
    "default": "ALTER TABLE t ADD a INT DEFAULT {open}1{close}",
    "generated": "ALTER TABLE t ADD a INT AS {open}1{close}",
    "check": "CREATE TABLE t (a INT, CHECK {open}1{close})",
    "key": "ALTER TABLE t ADD INDEX ({open}a{close})",
    "bound": "ALTER TABLE t ADD PARTITION (PARTITION p VALUES LESS THAN {open}1{close})",
    "list": "ALTER TABLE t ADD PARTITION (PARTITION p VALUES IN {open}1{close})",
    "expression": "ALTER TABLE t PARTITION BY RANGE {open}a{close}",
    "view": "CREATE VIEW v AS {open}SELECT 1{close}",
    "query": "CREATE TABLE t {open}SELECT 1{close}",
    "option": "ALTER TABLE t UNION {open}a{close}",
}
LONG = {
    "columns": "CREATE TABLE t ({list})".replace("{list}", "{items:c INT DEFAULT 'x'}"),
    "clauses": "ALTER TABLE t {items:DROP COLUMN c}",
    "labels": "ALTER TABLE t ADD a ENUM ({items:'it''s'})",
    "partitions": "ALTER TABLE t ADD PARTITION ({items:PARTITION p VALUES LESS THAN (1)})",
    "values": "ALTER TABLE t ADD PARTITION (PARTITION p VALUES IN ({items:(1, f(2))}))",
    "tables": "DROP TABLE {items:a.b}",
    "pairs": "RENAME TABLE {items:a TO b}",
    "comments": "ALTER TABLE t {items:/*!50100 DROP a */ /* b */ -- c\n}",
    "view": "CREATE VIEW v AS SELECT {items:a + (b)}",
    "query": "CREATE TABLE t (a INT) SELECT {items:a + (b) AS c}",
    "keys": "CREATE TABLE t (a INT, {items:KEY (a, b)})",
}


def items(statement: str, count: int) -> str:
    start, _, rest = statement.partition("{items:")
    item, _, end = rest.partition("}")
    return start + ",".join([item] * count) + end


@pytest.mark.parametrize("place", DEEP)
def test_parentheses_can_be_as_deep_as_they_like(place: str) -> None:
    deep = 3_000  # three times Python's limit of recursion
    for opened, closed in ((deep, deep), (deep, 0), (1, deep)):
        survives(DEEP[place].format(open="(" * opened, close=")" * closed))


@pytest.mark.parametrize("filler", [r"\'", "''", '""', "``", "a'", "41", r"\`", "1.", "1e", "表\u3000"])
@pytest.mark.parametrize("opening", ["'", '"', "`", "x'", "1"])
def test_text_that_is_not_closed_is_read_once(opening: str, filler: str) -> None:
    """Were it tried again from each of its characters, this would not end."""
    survives(f"ALTER TABLE t ADD a INT COMMENT {opening}{filler * 50_000}")


def work(statement: str) -> int:
    """Calls of functions, Python's and C's, while a statement is parsed: the same on every machine."""
    calls = 0

    def count(_: FrameType, event: str, __: Any) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        parse(statement)
    finally:
        sys.setprofile(None)
    return calls


@pytest.mark.parametrize("place", LONG)
def test_work_grows_as_the_statement_does(place: str) -> None:
    parse(items(LONG[place], 1))  # what is made once
    few, many = work(items(LONG[place], 100)), work(items(LONG[place], 1_000))
    assert 8 * few < many < 11 * few


@pytest.mark.parametrize("place", ["default", "check", "view"])
def test_work_grows_as_the_depth_does(place: str) -> None:
    few, many = (work(DEEP[place].format(open="(" * n, close=")" * n)) for n in (200, 2_000))
    assert many < 11 * few
