"""The difference between two versions, by the identity of columns."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from cdc_lakehouse.changelog.mysql_types import ColumnType
from cdc_lakehouse.changelog.schema import Column, TableName, TableVersion, column_changes

INT, BIGINT = ColumnType.of("INT"), ColumnType.of("BIGINT")
A, B, C, D = (Column(id, name, INT) for id, name in enumerate("abcd", 1))


def version(*columns: Column, key: tuple[int, ...] = (1,)) -> TableVersion:
    return TableVersion(1, TableName("d", "t"), "d.t#1", "seen", "none", "", "", columns, key)


def names(before: TableVersion, after: TableVersion) -> list[tuple[str | None, str | None]]:
    changes = column_changes(before, after)
    return [(c.before and c.before.name, c.after and c.after.name) for c in changes]


def test_nothing() -> None:
    assert column_changes(version(A, B), version(A, B)) == []


def test_added_dropped_renamed_and_readded_under_the_same_name() -> None:
    after = version(A, replace(B, name="x"), Column(9, "c", INT))
    assert names(version(A, B, C), after) == [("c", None), ("b", "x"), (None, "c")]


def test_types_nullability_and_keys() -> None:
    after = version(A, replace(B, type=BIGINT), replace(C, nullable=False), D, key=(1, 4))
    assert names(version(A, B, C, D), after) == [("b", "b"), ("c", "c"), ("d", "d")]
    (*_, key) = column_changes(version(A, B, C, D), after)
    assert (key.key_before, key.key_after) == (False, True)


def test_only_the_column_that_was_moved_has_moved() -> None:
    (change,) = column_changes(version(A, B, C, D), version(D, A, B, C))
    assert change.moved and change.after == D


@given(st.permutations([A, B, C, D]))
def test_those_that_did_not_move_are_in_their_old_order(order: list[Column]) -> None:
    moved = {change.after for change in column_changes(version(A, B, C, D), version(*order))}
    stayed = [column for column in order if column not in moved]
    assert stayed == sorted(stayed, key=lambda column: column.id)
    assert len(moved) <= 3 and (not moved) == (order == [A, B, C, D])
