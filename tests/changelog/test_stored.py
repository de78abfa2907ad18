"""What is stored of versions and changes, key by key.

The texts here are in lakes: a test that fails says that lakes cannot be read, not that the text must follow."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from cdc_lakehouse.changelog import schema
from cdc_lakehouse.changelog.ddl import clauses as ddl
from cdc_lakehouse.changelog.ddl.clauses import LessThan, NumberLiteral, Partition, Partitioning
from cdc_lakehouse.changelog.mysql_types import ColumnType
from cdc_lakehouse.changelog.schema import Column, SchemaChange, SourceColumn, TableName, TableVersion
from cdc_lakehouse.changelog.stored import from_json, to_json
from cdc_lakehouse.errors import StoredFormError
from tests.changelog.statements import partitioned_by
from tests.kit.case_files import Case, read_cases

PARTITIONING = Partitioning(
    method="range columns", expression="a, b", columns=("a", "b"), count=3, interval="(1)",
    partitions=(
        Partition("p", LessThan((ddl.TextLiteral("x", "latin1"), ddl.BytesLiteral(b"\xff\x00")))),
        Partition("q", LessThan((NumberLiteral("-1"), ddl.NullLiteral()))),
        Partition("r", LessThan((ddl.Expression("to_days('2026-01-01')"), ddl.MaxValue()))),
        Partition("s", ddl.InValues(((NumberLiteral("1"),), (ddl.DefaultValue(),)))),
        Partition("t"),
    ),
)  # fmt: skip
VERSION = TableVersion(
    10, TableName("d", "ö.t"), "d.t#1", "exchange partition", "swap", "ALTER TABLE t …", "d/t/meta/schema.json",
    columns=(
        Column(1, "id", ColumnType("bigint", unsigned=True, length=20, zerofill=True), nullable=False, source_id=4),
        Column(3, "e", ColumnType("enum", elements=("a", "b'"), charset="latin1"), initial=schema.InitialDefault("a")),
        Column(4, "d", ColumnType("datetime", scale=0), carried=False),
    ),
    key=(1,), unique_keys=(schema.TableUniqueKey("u", (3, 1)),), next_id=5, partitioning=PARTITIONING, emptied=("p",),
    swap=schema.PartitionExchange("d.t#1", "p", "d.u#1"), restored=schema.RestoredRows("d.t#0", 8),
    previous_name=TableName("d", "s"), since=9, note="a note", hold="why", primary_key=(1,),
)  # fmt: skip
CHANGE = SchemaChange(
    11, "d", "t", 42, "ALTER TABLE t …",
    (
        SourceColumn("id", ColumnType("bigint", length=20), nullable=False, primary_key=True, source_id=1),
        SourceColumn("v", ColumnType("varchar", length=5), default="", virtual="seen"),
    ),
    "topic:0:7", backslash_escapes=True, fault="bad",
)  # fmt: skip
DATABASE = TableVersion(1, TableName("d", ""), "", "create database", "none", "CREATE DATABASE d", "o")
KEYS_OF_LATER = TableVersion(
    12, TableName("d", "t"), "d.t#1", "alter", "evolve", "", "o", (Column(1, "n", ColumnType("int"), default="1",
    comment="how many", computed_as="a + 1"),), next_id=2, charset="latin1",
    foreign_keys=(ddl.ForeignKey("_ibfk_1", "ON DELETE CASCADE"), ddl.ForeignKey("x")),
)  # fmt: skip
ROW = SchemaChange(13, "d", "t", None, "", (), "o", kind="row")

VALUES: dict[str, Any] = {
    "VERSION": VERSION, "DATABASE": DATABASE, "KEYS_OF_LATER": KEYS_OF_LATER, "CHANGE": CHANGE, "ROW": ROW,
}  # fmt: skip


def lines_of(stored: dict[str, Any]) -> Iterator[str]:
    """A key in each line, and in each an object of a list of them."""
    for key, value in sorted(stored.items()):
        of_objects = isinstance(value, list) and value and isinstance(value[0], dict)
        yield f"{key}:" if of_objects else f"{key}: {json.dumps(value, ensure_ascii=False)}"
        yield from (f"  {json.dumps(each, ensure_ascii=False)}" for each in (value if of_objects else ()))


def with_unknown_keys(stored: Any) -> Any:
    """With a key of a later release in each object."""
    if isinstance(stored, list):
        return [with_unknown_keys(each) for each in cast("list[Any]", stored)]
    if not isinstance(stored, dict):
        return stored
    fields = cast("dict[str, Any]", stored)
    return {"of later": {"a": 1}, **{key: with_unknown_keys(value) for key, value in fields.items()}}


@pytest.mark.parametrize("case", read_cases(Path(__file__).parent / "cases/stored/stored.txt"), ids=str)
def test_stored_text_is_that_of_lakes(case: Case) -> None:
    """Not to be updated: other keys are those of another form."""
    value = VALUES[case.own[0]]
    text = to_json(value)
    case.compare(list(lines_of(json.loads(text))), update=False)
    assert from_json(type(value), text) == value
    assert from_json(type(value), json.dumps(with_unknown_keys(json.loads(text)))) == value


@pytest.mark.parametrize("clause", [
    "LIST (a) (PARTITION x VALUES IN (1, 2), PARTITION y VALUES IN (NULL, 3), PARTITION rest VALUES IN (DEFAULT))",
    "HASH (a + b) PARTITIONS 4",
    "KEY () PARTITIONS 2",
    "RANGE COLUMNS (a, b) (PARTITION p VALUES LESS THAN ('it''s', x'ff'), PARTITION q VALUES LESS THAN (-1, NULL))",
])  # fmt: skip
def test_partitioning_comes_back_as_it_was(clause: str) -> None:
    version = TableVersion(1, TableName("d", "t"), "d.t#1", "", "create", "", "", partitioning=partitioned_by(clause))
    assert from_json(TableVersion, to_json(version)) == version


def test_a_form_of_newer_code_is_refused() -> None:
    with pytest.raises(StoredFormError, match="form 3"):
        from_json(TableVersion, '{"format": 3}')
