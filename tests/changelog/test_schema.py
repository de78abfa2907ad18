from __future__ import annotations

import pytest

from cdc_lakehouse.changelog.mysql_types import ColumnType
from cdc_lakehouse.changelog.schema import Column, TableName, TableVersion

INT = ColumnType("int")
VERSION = TableVersion(
    commit_ts=7,
    name=TableName("my db", "t.x"),
    incarnation="my db.t.x#1",
    kind="create_table",
    effect="create",
    query="",
    origin="",
    columns=(Column(3, "Id", INT), Column(1, "Straße", INT), Column(2, "v", INT, carried=False)),
    key=(1, 3),
)


@pytest.mark.parametrize(
    ("name", "id"), [("id", 3), ("ID", 3), ("STRASSE", None), ("straße", 1), ("V", 2), ("x", None)]
)
def test_names_of_columns_have_no_case(name: str, id: int | None) -> None:
    found = VERSION.named(name)
    assert (found and found.id) == id


def test_columns_by_id() -> None:
    assert [column.name for id in (1, 2, 3, 4) if (column := VERSION.column(id))] == ["Straße", "v", "Id"]


def test_the_key_keeps_its_own_order() -> None:
    assert VERSION.key_names == ("Straße", "Id")


def test_rows_have_what_is_carried() -> None:
    assert [column.name for column in VERSION.carried] == ["Id", "Straße"]


def test_a_name_prints_as_people_say_it() -> None:
    assert str(VERSION.name) == "my db.t.x"
