"""Which rows a partition holds, against a row-by-row reading of the definition."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cdc_lakehouse.changelog.ddl.clauses import DefaultValue, NumberLiteral, Partitioning
from cdc_lakehouse.changelog.ddl.partitions import HashRows, ListRows, RangeRows, after, rows_of
from cdc_lakehouse.changelog.ddl.statements import parse
from cdc_lakehouse.errors import DdlError
from tests.changelog.statements import partitioned_by

RANGE = "RANGE (a) (PARTITION p0 VALUES LESS THAN (10), PARTITION P1 VALUES LESS THAN (20), PARTITION `p 2` VALUES LESS"
RANGE += " THAN (MAXVALUE))"
LIST = "LIST (a) (PARTITION x VALUES IN (1, 2), PARTITION y VALUES IN (NULL, 3), PARTITION rest VALUES IN (DEFAULT))"


def altered(clause: str, *statements: str) -> Partitioning | None:
    found: Partitioning | None = partitioned_by(clause)
    for statement in statements:
        found = after(found, parse(f"ALTER TABLE t {statement}"))
    return found


def names(found: Partitioning | None) -> list[str]:
    return [] if found is None else [partition.name for partition in found.partitions]


def numbers(rows: Any) -> Any:
    """A bound's values as plain numbers, other kinds by their name."""
    if rows is None:
        return None
    return tuple(int(value.text) if isinstance(value, NumberLiteral) else type(value).__name__ for value in rows)


# --- Rows ---


TWO = "RANGE COLUMNS (a, b) (PARTITION p VALUES LESS THAN (1, 5), PARTITION q VALUES LESS THAN (1, MAXVALUE))"


@pytest.mark.parametrize(
    ("clause", "name", "lower", "upper"),
    [
        (RANGE, "p0", None, (10,)),
        (RANGE, "P0", None, (10,)),
        (RANGE, "p1", (10,), (20,)),
        (RANGE, "p 2", (20,), ("MaxValue",)),
        (TWO, "q", (1, 5), (1, "MaxValue")),
    ],
)
def test_a_range_begins_where_the_one_before_ends(clause: str, name: str, lower: object, upper: object) -> None:
    rows = rows_of(partitioned_by(clause), name)
    assert isinstance(rows, RangeRows) and (numbers(rows.lower), numbers(rows.upper)) == (lower, upper)


@settings(deadline=None)
@given(st.lists(st.integers(-50, 50), min_size=1, max_size=6, unique=True).map(sorted), st.integers(-60, 60), st.data())
def test_every_value_is_in_the_first_range_above_it(bounds: list[int], value: int, data: st.DataObject) -> None:
    """Also after some of the partitions were dropped: the next one takes their values in."""
    gone = data.draw(st.sets(st.sampled_from(bounds), max_size=len(bounds) - 1))
    definitions = ", ".join(f"PARTITION p{n} VALUES LESS THAN ({bound})" for n, bound in enumerate(bounds))
    drops = [f"DROP PARTITION p{bounds.index(bound)}" for bound in gone]
    found = altered(f"RANGE (a) ({definitions})", *drops)
    assert found is not None
    holding = []
    for name in names(found):
        rows = rows_of(found, name)
        assert isinstance(rows, RangeRows)
        lower, upper = numbers(rows.lower), numbers(rows.upper)
        if (lower is None or lower <= (value,)) and (value,) < upper:
            holding.append(name)
    first = next((f"p{n}" for n, bound in enumerate(bounds) if value < bound and bound not in gone), None)
    assert holding == ([] if first is None else [first])


def test_rows_of_a_list() -> None:
    """Its default has what no other partition has."""
    listed, rest = (rows_of(partitioned_by(LIST), name) for name in ("Y", "rest"))
    assert isinstance(listed, ListRows) and [numbers(row) for row in listed.rows] == [("NullLiteral",), (3,)]
    assert isinstance(rest, ListRows) and rest.rows == ((DefaultValue(),),)
    assert [numbers(row) for row in rest.others] == [(1,), (2,), ("NullLiteral",), (3,)]


@pytest.mark.parametrize(
    ("clause", "statements", "name", "rows"),
    [
        ("HASH (a) PARTITIONS 4", [], "p3", HashRows(3, 4)),
        ("HASH (a) PARTITIONS 4", [], "P0", HashRows(0, 4)),
        ("HASH (a)", [], "p0", HashRows(0, 1)),
        ("HASH (a) (PARTITION x, PARTITION y)", [], "y", HashRows(1, 2)),
        ("HASH (a) PARTITIONS 4", ["ADD PARTITION PARTITIONS 2"], "p5", HashRows(5, 6)),
        ("HASH (a) PARTITIONS 4", ["COALESCE PARTITION 3"], "p0", HashRows(0, 1)),
        ("HASH (a) PARTITIONS 2 (PARTITION x, PARTITION y)", ["ADD PARTITION PARTITIONS 1"], "p2", HashRows(2, 3)),
        ("HASH (a) PARTITIONS 4", ["ADD PARTITION (PARTITION extra)"], "extra", HashRows(4, 5)),
    ],
)
def test_rows_of_a_hash(clause: str, statements: list[str], name: str, rows: HashRows) -> None:
    found = altered(clause, *statements)
    assert found is not None and rows_of(found, name) == rows


@pytest.mark.parametrize(
    ("clause", "name", "said"),
    [
        (RANGE, "p9", "not known"),
        (LIST, "p0", "not known"),
        ("HASH (a) PARTITIONS 4", "p4", "not known"),
        ("HASH (a) PARTITIONS 4", "x", "not known"),
        ("KEY (a) PARTITIONS 4", "p0", "BY KEY"),
        ("LINEAR HASH (a) PARTITIONS 4", "p0", "BY LINEAR HASH"),
        ("RANGE (a) INTERVAL (10) FIRST PARTITION LESS THAN (10) LAST PARTITION LESS THAN (30)", "p0", "INTERVAL"),
    ],
)
def test_rows_that_cannot_be_told(clause: str, name: str, said: str) -> None:
    with pytest.raises(DdlError, match=said):
        rows_of(partitioned_by(clause), name)


# --- Changes ---


@pytest.mark.parametrize(
    ("statement", "left"),
    [
        ("ADD PARTITION (PARTITION n VALUES LESS THAN (5))", ["p0", "P1", "p 2", "n"]),
        ("DROP PARTITION P0, `p 2`", ["P1"]),
        ("TRUNCATE PARTITION p0", ["p0", "P1", "p 2"]),
        ("REORGANIZE PARTITION p0, p1 INTO (PARTITION n VALUES LESS THAN (20))", ["n", "p 2"]),
        ("REORGANIZE PARTITION p1 INTO (PARTITION m VALUES LESS THAN (15), PARTITION n VALUES LESS THAN (20))",
         ["p0", "m", "n", "p 2"]),
        ("PARTITION BY RANGE (b) (PARTITION z VALUES LESS THAN (5))", ["z"]),
        ("REMOVE PARTITIONING", []),
        ("ADD COLUMN c INT", ["p0", "P1", "p 2"]),
    ],
)  # fmt: skip
def test_partitions_after_a_change(statement: str, left: list[str]) -> None:
    assert names(altered(RANGE, statement)) == left


def test_what_is_not_known_stays_unknown() -> None:
    assert after(None, parse("ALTER TABLE t ADD PARTITION (PARTITION n VALUES LESS THAN (5))")) is None
