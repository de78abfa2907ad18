"""Statements: what they say (`cases/ddl`, whose values come from the manuals and TiCDC's format), that any text gives
clauses or a DdlSyntaxError, with work that grows as the text does, and that a statement has one verdict: with the
columns after it, as schema files have them, and from its text alone. What befalls statements byte by byte is in
tests/fuzz."""

import contextlib
import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from types import FrameType
from typing import Any

import pytest

from cdc_lakehouse.changelog.ddl import clauses as ddl
from cdc_lakehouse.changelog.ddl.lexer import DdlSyntaxError
from cdc_lakehouse.changelog.ddl.statements import parse, parse_type
from cdc_lakehouse.changelog.history import History, LogEntry, schema_changes
from cdc_lakehouse.changelog.schema import TableName
from tests.changelog.statements import cases, files_of, in_any_case, in_odd_case, show, verdicts
from tests.kit.case_files import bytes_of


def shown(statement: str, *, backslash_escapes: bool = True) -> str:
    return "; ".join(show(clause) for clause in parse(statement, backslash_escapes=backslash_escapes))


# What TiCDC prints has no escapes.
READ = {"types": lambda text: show(parse_type(text)), "ticdc, as printed": partial(shown, backslash_escapes=False)}


@pytest.mark.parametrize("name", ["columns", "tables", "keys", "partitions", "others", "ticdc", *READ])
def test_statement_says_the_clauses_of_its_case(name: str) -> None:
    found = [(statement, READ.get(name, shown)(statement)) for statement, _ in cases(name.partition(",")[0])]
    assert found == list(cases(name.partition(",")[0]))


def test_partitioning_is_the_same_in_create_table() -> None:
    prefix = "ALTER TABLE t PARTITION BY "
    definitions = [text.removeprefix(prefix) for text, _ in cases("partitions") if text.startswith(prefix)]
    assert len(definitions) == 16
    for definition in definitions:
        *_, partitioning = parse(f"CREATE TABLE t (a INT) /*!50100 PARTITION BY {definition} */")[0].clauses
        assert (partitioning,) == parse(f"{prefix}{definition}")


ERRORS = [(statement, *said.split(" ", 1)) for statement, said in cases("errors")]


@pytest.mark.parametrize(("statement", "offset", "reason"), ERRORS)
def test_what_is_not_understood_is_an_error_with_its_place(statement: str, offset: str, reason: str) -> None:
    with pytest.raises(DdlSyntaxError) as caught:
        parse(statement)
    assert f"line 1, column {int(offset) + 1}: {reason}" in caught.value.message


# --- Any text, depth and length ---


def survives(statement: str) -> None:
    for backslash_escapes in (True, False):
        with contextlib.suppress(DdlSyntaxError):
            hash(parse(statement, backslash_escapes=backslash_escapes))


DEEP, LONG = ([bytes_of(statement).decode() for statement, _ in cases(name)] for name in ("deep", "long"))
"""With `{open}` and `{close}` for parentheses, and with `{items:…}` for what a list repeats."""


def items(statement: str, count: int) -> str:
    start, _, rest = statement.partition("{items:")
    item, _, end = rest.partition("}")
    return start + ",".join([item] * count) + end


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


@pytest.mark.parametrize("statement", LONG)
def test_work_grows_as_the_statement_does(statement: str) -> None:
    parse(items(statement, 1))  # what is made once
    few, many = (work(items(statement, count)) for count in (100, 1_000))
    assert 8 * few < many < 11 * few


@pytest.mark.parametrize("statement", DEEP)
def test_parentheses_can_be_as_deep_as_they_like(statement: str) -> None:
    """Work grows as the depth does."""
    deep = 3_000  # three times Python's limit of recursion
    for opened, closed in ((deep, deep), (deep, 0), (1, deep)):
        survives(statement.format(open="(" * opened, close=")" * closed))
    few, many = (work(statement.format(open="(" * n, close=")" * n)) for n in (200, 2_000))
    assert many < 11 * few


# --- One verdict ---

STATEMENTS = [
    statement for name in ("columns", "keys", "partitions", "others", "tables", "ticdc") for statement, _ in cases(name)
]
NOT_COMPARED, HELD = (dict(cases(name)) for name in ("not_compared", "held"))
COLUMNS = "(id BIGINT PRIMARY KEY, a INT, b VARCHAR(9), c INT, x INT, y INT, `b c` INT)"
PARTITIONS = "PARTITION BY RANGE (id) (PARTITION p VALUES LESS THAN (10), PARTITION q VALUES LESS THAN (20))"
SESSION = "s"
"""Its database is not `d`: `t` and `d.t` are two tables."""


@pytest.mark.parametrize("statement", STATEMENTS)
def test_a_statement_has_one_verdict(statement: str) -> None:
    clauses = parse(statement)
    base = [
        LogEntry(number, SESSION, "", f"o{number}", f"CREATE TABLE {name.quoted} {COLUMNS} {partitions}")
        for number, (name, partitions) in enumerate(_tables_before(clauses).items(), start=1)
    ]
    changed = [LogEntry(20, SESSION, "t", "o20", statement)]
    for clause in clauses:
        match clause:
            case ddl.RecoverTable(table):
                changed.append(LogEntry(15, SESSION, "", "o15", f"DROP TABLE {table or 't'}"))
            case ddl.OfDatabase("recover_database", name):
                changed.append(LogEntry(15, SESSION, "", "o15", f"DROP DATABASE {name}"))
            case _:
                pass
    told = History().apply(schema_changes([*base, *changed], escapes=True))
    assert [version.effect for version in told[: len(base)]] == ["create"] * len(base)
    shown = History().apply(files_of(told))
    if statement in NOT_COMPARED:
        assert verdicts(shown, 20) != verdicts(told, 20), "it can be compared"
    else:
        assert verdicts(shown, 20) == verdicts(told, 20) != {}
    # Typed in another letter case it is the same.
    typed = [replace(each, text=in_odd_case(each.text or "")) for each in changed]
    odd = History().apply(schema_changes([*base, *typed], escapes=True))
    assert in_any_case(odd, 20) == in_any_case(told, 20)
    flashback = any(isinstance(clause, ddl.Flashback) for clause in clauses)
    assert flashback or {version.hold for version in told} - {None} == {*filter(None, [HELD.get(statement)])}


def _tables_before(clauses: Sequence[ddl.Clause]) -> dict[TableName, str]:
    """The tables that a statement needs, so that it changes something, with their partitions."""
    found: dict[ddl.TableRef, str] = {}
    made: set[ddl.TableRef] = set()
    own = ddl.TableRef(None, "t")
    for clause in clauses or [ddl.OtherClause(own, "other")]:
        match clause:
            case ddl.CreateTable(_, _, None):
                pass
            case ddl.OtherClause(_, "create_view" | "drop_view"):
                pass
            case ddl.CreateTable(_, _, source) if source is not None:
                found[source] = PARTITIONS
            case ddl.RenameTable(table, new_name):
                found |= {} if table in made else {table: PARTITIONS}
                made.add(new_name)
            case ddl.ExchangePartition(table, _, other):
                found |= {table: PARTITIONS, other: ""}
            case ddl.Flashback(_, None, tables):
                found |= dict.fromkeys(tables or (own,), PARTITIONS)
            case ddl.Flashback(_, database) | ddl.OfDatabase("drop_database" | "recover_database", database):
                found[ddl.TableRef(database, "t")] = PARTITIONS
            case _:
                found[getattr(clause, "table", None) or own] = PARTITIONS
    return {TableName(name.database or SESSION, name.name): partitions for name, partitions in found.items()}
