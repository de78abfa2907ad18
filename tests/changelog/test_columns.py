"""Which column is which after a change. Columns are a, b, c with the ids 1, 2, 3 before it."""

from __future__ import annotations

import pytest

from cdc_lakehouse.changelog import column_matching
from cdc_lakehouse.changelog.column_matching import MatchedColumns, clauses_of, first_columns, match_columns
from cdc_lakehouse.changelog.ddl.statements import parse
from cdc_lakehouse.changelog.schema import Column, TableUniqueKey
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


NONSENSE = "FROBNICATE EVERYTHING"
NUMBERED = "a:int:#11 b:int:#12 c:int:#13"


@pytest.mark.parametrize(
    ("clauses", "after", "expected", "note", "hold"),
    [
        # The source's columns go before the statement.
        ("", "a b c d", [1, 2, 3, 4], "column d appears", None),
        ("", "a c", [1, 3], "columns b are gone", None),
        ("ADD INDEX (a)", "a b", [1, 2], "columns c are gone", None),
        # A statement that nobody understands may be plain from its columns; a rename is not.
        (NONSENSE, "a b c d", [1, 2, 3, 4], "", None),
        (NONSENSE, "b c", [2, 3], "", None),
        (NONSENSE, "b a c", [2, 1, 3], "", None),
        (NONSENSE, "a b x", [1, 2, 3], "", "rename"),
    ],
)
def test_columns_without_a_statement_that_explains_them(
    clauses: str, after: str, expected: list[int], note: str, hold: str | None
) -> None:
    found = matched(clauses, after)
    assert ids(found) == expected
    assert len(found.notes) == (1 if note else 0) and note in "".join(found.notes)
    assert found.hold is None if hold is None else found.hold is not None and hold in found.hold


@pytest.mark.parametrize(
    ("clauses", "after", "expected"),
    [
        *(
            (clauses, after, expected)
            for clauses in ("", NONSENSE)
            for after, expected in (
                ("x:int:#11 b:int:#12 c:int:#13", [1, 2, 3]),
                ("x:int:#12 c:int:#13 d:int:#14", [2, 3, 4]),
                ("b:int:#11 a:int:#12 c:int:#13", [1, 2, 3]),
            )
        ),
        # A statement goes before the numbers: TiDB gives a column another one when MODIFY has to rewrite it.
        ("MODIFY COLUMN a TEXT", "a:text:#14 b:int:#12 c:int:#13", [1, 2, 3]),
    ],
)
def test_numbers_of_the_source_decide_what_the_statement_does_not(
    clauses: str, after: str, expected: list[int]
) -> None:
    assert ids(matched(clauses, after, NUMBERED)) == expected


def test_only_added_columns_have_defaults() -> None:
    made = change(1, "db.t", 3, "CREATE TABLE t (a INT NOT NULL)", "a:int:!null")
    assert [column.initial.text for column in first_columns(made.columns, clauses_of(made)[0] or ()).columns] == [None]
    found = matched("ADD COLUMN d INT NOT NULL", "a b c d:int:!null")
    assert [column.initial.text for column in found.columns] == [None, None, None, "0"]


# --- What is not in rows, and labels ---


@pytest.mark.parametrize(
    ("query", "name", "carried"),
    [
        ("CREATE TABLE t (a INT, g INT AS (a + 1))", "g", False),
        ("CREATE TABLE t (a INT, g INT GENERATED ALWAYS AS (a + 1) VIRTUAL)", "g", False),
        ("CREATE TABLE t (a INT, g INT AS (a + 1) STORED)", "g", True),
        ("CREATE TABLE t (a INT, g INT)", "g", True),
        ("", "g", True),
        # The hidden column of an expression index.
        ("", "_v$_i_0", False),
        ("", "_V$_i_0", False),
    ],
)
def test_virtual_columns_are_not_in_rows(query: str, name: str, carried: bool) -> None:
    assert [column.carried for column in first(query, f"a {name}")] == [True, carried]


def altered(before: tuple[Column, ...], clauses: str, spec: str) -> tuple[Column, ...]:
    made = change(2, "db.t", 12, f"ALTER TABLE t {clauses}", spec)
    return match_columns(before, len(before) + 1, made.columns, clauses_of(made)[0]).columns


@pytest.mark.parametrize(
    ("clauses", "after", "carried"),
    [
        ("ADD INDEX (a)", "a g", False),
        ("RENAME COLUMN g TO h", "a h", False),
        ("MODIFY COLUMN g INT AS (a) STORED", "a g", True),
    ],
)
def test_a_virtual_column_stays_one(clauses: str, after: str, carried: bool) -> None:
    before = first("CREATE TABLE t (a INT, g INT AS (a + 1))", "a g")
    found = altered(before, clauses, after)
    assert [(column.id, column.carried) for column in found] == [(1, True), (2, carried)]


def test_a_table_made_like_another_takes_what_the_source_leaves_out() -> None:
    model = first("CREATE TABLE u (e ENUM('x','y'), g INT AS (1))", "e:enum g")
    made = change(2, "db.t", 3, "CREATE TABLE t LIKE u", "e:enum g")
    found = first_columns(made.columns, clauses_of(made)[0] or (), model).columns
    assert [(column.type.elements, column.carried) for column in found] == [(("x", "y"), True), ((), False)]


@pytest.mark.parametrize(
    ("clauses", "after", "labels"),
    [
        ("ADD INDEX (e)", "e:enum", ("x", "y")),
        ("MODIFY COLUMN e ENUM('x','y','z')", "e:enum", ("x", "y", "z")),
        ("RENAME COLUMN e TO f", "f:enum", ("x", "y")),
    ],
)
def test_labels_come_from_the_statement_or_stay(clauses: str, after: str, labels: tuple[str, ...]) -> None:
    (column,) = altered(first("CREATE TABLE t (e ENUM('x','y'))", "e:enum"), clauses, after)
    assert column.type.elements == labels


# --- Keys ---

TABLE = first("", "a:int:!null b:int:!null c")


def keys(*statements: str, start: tuple[TableUniqueKey, ...] = ()) -> list[tuple[str, tuple[int, ...]]]:
    for statement in statements:
        start = column_matching.unique_keys_after(start, TABLE, parse(statement))
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
        (["ALTER TABLE t ADD COLUMN c INT UNIQUE"], [("c", (3,))]),
        (["CREATE TABLE t (a INT, b INT, UNIQUE (a, b), UNIQUE (a))", "DROP INDEX a_2 ON t"], [("a", (1, 2))]),
    ],
)
def test_unique_keys(statements: list[str], expected: list[tuple[str, tuple[int, ...]]]) -> None:
    assert keys(*statements) == expected


def test_a_key_goes_with_its_column() -> None:
    """MySQL, "ALTER TABLE Statement": a dropped column is taken out of its keys; a key without columns is dropped."""
    left = column_matching.unique_keys_after((TableUniqueKey("u", (2,)), TableUniqueKey("v", (1, 2))), TABLE[:1], ())
    assert left == (TableUniqueKey("v", (1,)),)


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
    keys = [TableUniqueKey(f"u{n}", key) for n, key in enumerate(unique)]
    assert column_matching.handle_key(primary, keys, TABLE) == expected
