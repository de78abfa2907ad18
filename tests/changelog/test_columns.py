"""Which column is which after a change. Columns are a, b, c with the ids 1, 2, 3 before it."""

from __future__ import annotations

import pytest

from cdc_lakehouse.changelog.column_matching import (
    MatchedColumns,
    clauses_of,
    first_columns,
    handle_key,
    match_columns,
    unique_keys_after,
)
from cdc_lakehouse.changelog.ddl.parser import parse
from cdc_lakehouse.changelog.schema import Column, UniqueKey
from tests.changelog.statements import change, columns

ABC = "a b c"


def first(query: str, spec: str) -> tuple[Column, ...]:
    made = change(1, "db.t", 3, query, spec)
    return first_columns(made.columns, clauses_of(made)[0] or ()).columns


def matched(clauses: str, after: str, before: str = ABC) -> MatchedColumns:
    query = f"ALTER TABLE `db`.`t` {clauses}" if clauses else ""
    made = change(2, "db.t", 12, query, after)
    return match_columns(first("", before), len(before.split()) + 1, made.columns, clauses_of(made)[0])


def ids(found: MatchedColumns) -> list[int]:
    return [column.id for column in found.columns]


@pytest.mark.parametrize(
    ("clauses", "after", "expected"),
    [
        ("RENAME COLUMN a TO x", "x b c", [1, 2, 3]),
        ("RENAME COLUMN a TO A", "A b c", [1, 2, 3]),
        ("RENAME COLUMN A TO x", "x b c", [1, 2, 3]),
        ("RENAME COLUMN a TO b, RENAME COLUMN b TO a", "b a c", [1, 2, 3]),
        ("RENAME COLUMN a TO b, RENAME COLUMN b TO c, RENAME COLUMN c TO a", "b c a", [1, 2, 3]),
        ("CHANGE COLUMN a b INT, CHANGE COLUMN b a INT", "b a c", [1, 2, 3]),
        ("CHANGE COLUMN a x BIGINT AFTER c", "b c x:bigint", [2, 3, 1]),
        ("MODIFY COLUMN c TEXT FIRST", "c:text a b", [3, 1, 2]),
        ("DROP COLUMN B", "a c", [1, 3]),
        ("ADD COLUMN d INT", "a b c d", [1, 2, 3, 4]),
        ("ADD COLUMN (d INT, e INT)", "a b c d e", [1, 2, 3, 4, 5]),
        ("ADD COLUMN d INT FIRST, ADD COLUMN e INT AFTER a", "d a e b c", [4, 1, 5, 2, 3]),
        ("DROP COLUMN a, ADD COLUMN a TEXT", "b c a:text", [2, 3, 4]),
        ("ADD COLUMN a TEXT, DROP COLUMN a", "b c a:text", [2, 3, 4]),
        ("DROP COLUMN a, RENAME COLUMN b TO a", "a c", [2, 3]),
        ("RENAME COLUMN a TO x, ADD COLUMN a INT FIRST", "a x b c", [4, 1, 2, 3]),
        ("ADD INDEX (a)", "a b c", [1, 2, 3]),
        ("", "c b a", [3, 2, 1]),
    ],
)
def test_a_column_keeps_its_id(clauses: str, after: str, expected: list[int]) -> None:
    found = matched(clauses, after)
    assert ids(found) == expected
    assert [column.name for column in found.columns] == [column.name for column in columns(after)]
    assert (found.notes, found.hold) == ((), None)
    assert found.next_id == max(4, *(id + 1 for id in expected))


def test_an_id_is_never_given_twice() -> None:
    dropped = matched("DROP COLUMN c", "a b")
    made = change(3, "db.t", 5, "ALTER TABLE t ADD COLUMN c TEXT", "a b c:text")
    again = match_columns(dropped.columns, dropped.next_id, made.columns, clauses_of(made)[0])
    assert (ids(again), again.next_id) == ([1, 2, 4], 5)


@pytest.mark.parametrize(
    ("clauses", "after", "note", "expected"),
    [
        ("", "a b c d", "column d appears", [1, 2, 3, 4]),
        ("", "a c", "columns b are gone", [1, 3]),
        ("ADD INDEX (a)", "a b", "columns c are gone", [1, 2]),
    ],
)
def test_the_sources_columns_go_before_the_statement(clauses: str, after: str, note: str, expected: list[int]) -> None:
    found = matched(clauses, after)
    assert ids(found) == expected and len(found.notes) == 1 and note in found.notes[0]


NONSENSE = "FROBNICATE EVERYTHING"


@pytest.mark.parametrize(("after", "expected"), [("a b c d", [1, 2, 3, 4]), ("b c", [2, 3]), ("b a c", [2, 1, 3])])
def test_a_statement_that_nobody_understands_may_be_plain_from_its_columns(after: str, expected: list[int]) -> None:
    found = matched(NONSENSE, after)
    assert (ids(found), found.hold) == (expected, None)


def test_a_rename_that_nobody_understands_holds() -> None:
    found = matched(NONSENSE, "a b x")
    assert ids(found) == [1, 2, 3] and found.hold is not None and "rename" in found.hold


NUMBERED = "a:int:#11 b:int:#12 c:int:#13"


@pytest.mark.parametrize("clauses", ["", NONSENSE])
@pytest.mark.parametrize(
    ("after", "expected"),
    [
        ("x:int:#11 b:int:#12 c:int:#13", [1, 2, 3]),
        ("x:int:#12 c:int:#13 d:int:#14", [2, 3, 4]),
        pytest.param(
            "b:int:#11 a:int:#12 c:int:#13", [1, 2, 3]),
    ],
)  # fmt: skip
def test_numbers_of_the_source_decide_what_the_statement_does_not(
    clauses: str, after: str, expected: list[int]
) -> None:
    assert ids(matched(clauses, after, NUMBERED)) == expected


def test_a_statement_goes_before_the_numbers() -> None:
    """TiDB gives a column another number when MODIFY has to rewrite it."""
    assert ids(matched("MODIFY COLUMN a TEXT", "a:text:#14 b:int:#12 c:int:#13", NUMBERED)) == [1, 2, 3]


def test_only_added_columns_have_defaults() -> None:
    made = change(1, "db.t", 3, "CREATE TABLE t (a INT NOT NULL)", "a:int:!null")
    assert [column.initial.text for column in first_columns(made.columns, clauses_of(made)[0] or ()).columns] == [None]
    found = matched("ADD COLUMN d INT NOT NULL", "a b c d:int:!null")
    assert [column.initial.text for column in found.columns] == [None, None, None, "0"]


# --- What is not in rows, and labels ---


@pytest.mark.parametrize(
    ("query", "carried"),
    [
        ("CREATE TABLE t (a INT, g INT AS (a + 1))", False),
        ("CREATE TABLE t (a INT, g INT GENERATED ALWAYS AS (a + 1) VIRTUAL)", False),
        ("CREATE TABLE t (a INT, g INT AS (a + 1) STORED)", True),
        ("CREATE TABLE t (a INT, g INT)", True),
        ("", True),
    ],
)
def test_virtual_columns_are_not_in_rows(query: str, carried: bool) -> None:
    assert [column.carried for column in first(query, "a g")] == [True, carried]


@pytest.mark.parametrize(
    ("clauses", "carried"),
    [("ADD INDEX (a)", False), ("RENAME COLUMN g TO h", False), ("MODIFY COLUMN g INT AS (a) STORED", True)],
)
def test_a_virtual_column_stays_one(clauses: str, carried: bool) -> None:
    before = first("CREATE TABLE t (a INT, g INT AS (a + 1))", "a g")
    made = change(2, "db.t", 12, f"ALTER TABLE t {clauses}", "a h" if "RENAME" in clauses else "a g")
    after = match_columns(before, 3, made.columns, clauses_of(made)[0]).columns
    assert [(column.id, column.carried) for column in after] == [(1, True), (2, carried)]


@pytest.mark.parametrize("name", ["_v$_i_0", "_V$_i_0"])
def test_the_hidden_column_of_an_expression_index_is_not_in_rows(name: str) -> None:
    assert [column.carried for column in first("", f"a {name}")] == [True, False]


def test_a_table_made_like_another_takes_what_the_source_leaves_out() -> None:
    model = first("CREATE TABLE u (e ENUM('x','y'), g INT AS (1))", "e:enum g")
    made = change(2, "db.t", 3, "CREATE TABLE t LIKE u", "e:enum g")
    found = first_columns(made.columns, clauses_of(made)[0] or (), model).columns
    assert [(column.type.elements, column.carried) for column in found] == [(("x", "y"), True), ((), False)]


@pytest.mark.parametrize(
    ("clauses", "labels"),
    [
        ("ADD INDEX (e)", ("x", "y")),
        ("MODIFY COLUMN e ENUM('x','y','z')", ("x", "y", "z")),
        ("RENAME COLUMN e TO f", ("x", "y")),
    ],
)
def test_labels_come_from_the_statement_or_stay(clauses: str, labels: tuple[str, ...]) -> None:
    before = first("CREATE TABLE t (e ENUM('x','y'))", "e:enum")
    made = change(2, "db.t", 12, f"ALTER TABLE t {clauses}", "f:enum" if "RENAME" in clauses else "e:enum")
    (column,) = match_columns(before, 2, made.columns, clauses_of(made)[0]).columns
    assert column.type.elements == labels


# --- Keys ---

TABLE = first("", "a:int:!null b:int:!null c")


def keys(*statements: str, start: tuple[UniqueKey, ...] = ()) -> list[tuple[str, tuple[int, ...]]]:
    for statement in statements:
        start = unique_keys_after(start, TABLE, parse(statement))
    return [(key.name, key.columns) for key in start]


CREATED = "CREATE TABLE t (a INT, b INT, c INT, UNIQUE KEY u (b, a), UNIQUE (c))"


@pytest.mark.parametrize(
    ("statements", "expected"),
    [
        ([CREATED], [("u", (2, 1)), ("c", (3,))]),
        (["CREATE TABLE t (a INT UNIQUE, b INT, c INT)"], [("a", (1,))]),
        ([CREATED, "ALTER TABLE t DROP INDEX U"], [("c", (3,))]),
        ([CREATED, "DROP INDEX c ON t"], [("u", (2, 1))]),
        ([CREATED, "ALTER TABLE t RENAME INDEX u TO v, DROP KEY c"], [("v", (2, 1))]),
        ([CREATED, "CREATE UNIQUE INDEX w ON t (A)"], [("u", (2, 1)), ("c", (3,)), ("w", (1,))]),
        (["CREATE TABLE t (a INT, b INT, c VARCHAR(9), UNIQUE (c(3)), UNIQUE ((a + b)), KEY (a))"], []),
        pytest.param(
            ["ALTER TABLE t ADD COLUMN c INT UNIQUE"], [("c", (3,))]),
        pytest.param(
            ["CREATE TABLE t (a INT, b INT, c INT, UNIQUE (a, b), UNIQUE (a))", "DROP INDEX a_2 ON t"],
            [("a", (1, 2))],
        ),
    ],
)  # fmt: skip
def test_unique_keys(statements: list[str], expected: list[tuple[str, tuple[int, ...]]]) -> None:
    assert keys(*statements) == expected


def test_a_key_goes_with_its_column() -> None:
    """MySQL, "ALTER TABLE Statement": a dropped column is taken out of its keys; a key without columns is dropped."""
    left = unique_keys_after((UniqueKey("u", (2,)), UniqueKey("v", (1, 2))), TABLE[:1], ())
    assert left == (UniqueKey("v", (1,)),)


@pytest.mark.parametrize(
    ("primary", "unique", "expected"),
    [
        ([3], [(1,)], (3,)),
        ([], [(2, 1), (2,)], (2,)),
        ([], [(1,), (2,)], (1,)),
        ([], [(3,)], ()),
        ([], [(3, 1), (2, 1)], (2, 1)),
        ([], [], ()),
    ],
)
def test_rows_are_known_by_the_primary_or_else_the_shortest_key_without_null(
    primary: list[int], unique: list[tuple[int, ...]], expected: tuple[int, ...]
) -> None:
    assert handle_key(primary, [UniqueKey(f"u{n}", key) for n, key in enumerate(unique)], TABLE) == expected
