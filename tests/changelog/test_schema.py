"""What a table version says of its columns, and the difference between two by the identity of columns."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdc_lakehouse.changelog.mysql_types import ColumnType
from cdc_lakehouse.changelog.schema import Column, ColumnChange, TableName, TableVersion, column_changes

INT, BIGINT = ColumnType.of("INT"), ColumnType.of("BIGINT")
A, B, C, D = (Column(id, name, INT) for id, name in enumerate("abcd", 1))


def version(*columns: Column, key: tuple[int, ...] = (1,)) -> TableVersion:
    return TableVersion(1, TableName("my db", "t.x"), "my db.t.x#1", "seen", "none", "", "", columns, key)


VERSION = version(Column(3, "Id", INT), Column(1, "Straße", INT), Column(2, "v", INT, carried=False), key=(1, 3))


@pytest.mark.parametrize(
    ("name", "id"), [("id", 3), ("ID", 3), ("STRASSE", None), ("straße", 1), ("V", 2), ("x", None)]
)
def test_names_of_columns_have_no_case(name: str, id: int | None) -> None:
    found = VERSION.named(name)
    assert (found and found.id) == id


def test_a_version_has_columns_by_id_a_key_in_its_own_order_and_what_rows_carry() -> None:
    assert [column.name for id in (1, 2, 3, 4) if (column := VERSION.column(id))] == ["Straße", "v", "Id"]
    assert VERSION.key_names == ("Straße", "Id")
    assert [column.name for column in VERSION.carried] == ["Id", "Straße"]
    assert str(VERSION.name) == "my db.t.x"


def shown(change: ColumnChange) -> str:
    names = [column.name if column else "-" for column in (change.before, change.after)]
    key = " joins the key" if change.key_after > change.key_before else ""
    return " → ".join(names) + key + (" moved" if change.moved else "")


@pytest.mark.parametrize(
    ("before", "after", "changes"),
    [
        (version(A, B), version(A, B), []),
        (version(A, B, C), version(A, replace(B, name="x"), Column(9, "c", INT)), ["c → -", "b → x", "- → c"]),
        (version(A, B, C, D), version(A, replace(B, type=BIGINT), replace(C, nullable=False), D, key=(1, 4)),
         ["b → b", "c → c", "d → d joins the key"]),
        (version(A, B, C, D), version(D, A, B, C), ["d → d moved"]),
    ],
    ids=["nothing", "dropped, renamed, added again", "type, nullability, key", "moved"],
)  # fmt: skip
def test_what_differs_between_versions(before: TableVersion, after: TableVersion, changes: list[str]) -> None:
    assert [shown(each) for each in column_changes(before, after)] == changes


@given(st.permutations([A, B, C, D]))
def test_those_that_did_not_move_are_in_their_old_order(order: list[Column]) -> None:
    moved = {change.after for change in column_changes(version(A, B, C, D), version(*order))}
    stayed = [column for column in order if column not in moved]
    assert stayed == sorted(stayed, key=lambda column: column.id)
    assert len(moved) <= 3 and (not moved) == (order == [A, B, C, D])
