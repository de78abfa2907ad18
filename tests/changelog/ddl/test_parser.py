"""Statements and what they say: expected values come from the manuals and TiCDC's format. Most stand in `cases/`."""

from __future__ import annotations

import pickle

import pytest

from cdc_lakehouse.changelog.ddl import clauses as ddl
from cdc_lakehouse.changelog.ddl.lexer import DdlSyntaxError
from cdc_lakehouse.changelog.ddl.statements import parse, parse_type
from tests.changelog.ddl.cases import cases, show


def shown(statement: str, *, backslash_escapes: bool = True) -> str:
    return "; ".join(show(clause) for clause in parse(statement, backslash_escapes=backslash_escapes))


@pytest.mark.parametrize("name", ["columns", "tables", "keys", "partitions", "others", "ticdc"])
def test_what_statements_say(name: str) -> None:
    wrong = [f"{statement} => {found}" for statement, said in cases(name) if (found := shown(statement)) != said]
    assert wrong == []


def test_what_ticdc_prints_has_no_escapes() -> None:
    for statement, said in cases("ticdc"):
        assert shown(statement, backslash_escapes=False) == said


def test_types() -> None:
    assert [(text, show(parse_type(text))) for text, _ in cases("types")] == list(cases("types"))


def test_partitioning_is_the_same_in_create_table() -> None:
    prefix = "ALTER TABLE t PARTITION BY "
    definitions = [text.removeprefix(prefix) for text, _ in cases("partitions") if text.startswith(prefix)]
    assert len(definitions) == 16
    for definition in definitions:
        (clause,) = parse(f"{prefix}{definition}")
        (table,) = parse(f"CREATE TABLE t (a INT) /*!50100 PARTITION BY {definition} */")
        assert isinstance(clause, ddl.PartitionBy) and isinstance(table, ddl.CreateTable)
        assert table.clauses[-1] == clause


ERRORS = [(statement, *said.split(" ", 1)) for statement, said in cases("errors")]


@pytest.mark.parametrize(("statement", "offset", "reason"), ERRORS)
def test_what_is_not_understood_is_an_error_with_its_place(statement: str, offset: str, reason: str) -> None:
    error = error_of(statement)
    assert f"line 1, column {int(offset) + 1}: {reason}" in error.message


def error_of(statement: str) -> DdlSyntaxError:
    with pytest.raises(DdlSyntaxError) as caught:
        parse(statement)
    return caught.value


def test_an_error_knows_line_and_column_and_shortens_the_statement() -> None:
    error = error_of("ALTER TABLE t\n  ADD a INT,\n  ADD ?")
    assert error.line is None
    assert error.message.startswith("DDL cannot be understood at line 3, column 7: expected a column, found '?', in: ")
    assert len(str(error_of(f"ALTER TABLE t ADD {'x' * 10_000} {'y' * 10_000}"))) < 1_000


def test_clauses_are_values() -> None:
    statement = "CREATE TABLE t (a INT DEFAULT 'x', PRIMARY KEY (a)) PARTITION BY KEY (a) (PARTITION p)"
    assert parse(statement) == parse(statement)
    assert hash(parse(statement)) == hash(parse(statement))
    assert pickle.loads(pickle.dumps(parse(statement))) == parse(statement)
