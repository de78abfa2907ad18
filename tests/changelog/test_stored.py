"""What is stored of versions and changes, key by key.

The texts here are in lakes: a test that fails says that lakes cannot be read, not that the text must follow."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest

from cdc_lakehouse.changelog import schema
from cdc_lakehouse.changelog.ddl import clauses as ddl
from cdc_lakehouse.changelog.ddl.clauses import LessThan, NumberLiteral, Partition, Partitioning
from cdc_lakehouse.changelog.mysql_types import ColumnType
from cdc_lakehouse.changelog.schema import Column, SchemaChange, SourceColumn, TableName, TableVersion
from cdc_lakehouse.changelog.stored import change_from_json, change_to_json, version_from_json, version_to_json
from cdc_lakehouse.errors import StoredFormError
from tests.changelog.statements import partitioned_by

DATA = Path(__file__).parents[1] / "data"

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
    foreign_keys=(schema.TableForeignKey("_ibfk_1", "ON DELETE CASCADE"), schema.TableForeignKey("x")),
)  # fmt: skip
ROW = SchemaChange(13, "d", "t", None, "", (), "o", kind="row")

STORED_VERSION = {
    "format": 2, "commit_ts": 10, "name": {"database": "d", "table": "ö.t"}, "incarnation": "d.t#1",
    "kind": "exchange partition", "effect": "swap", "query": "ALTER TABLE t …", "origin": "d/t/meta/schema.json",
    "columns": [
        {"id": 1, "name": "id", "type": {"name": "bigint", "unsigned": True, "length": 20, "zerofill": True},
         "source_id": 4, "carried": True},
        {"id": 3, "name": "e", "type": {"name": "enum", "elements": ["a", "b'"], "charset": "latin1"},
         "nullable": True, "initial": {"text": "a"}, "carried": True},
        {"id": 4, "name": "d", "type": {"name": "datetime", "scale": 0}, "nullable": True},
    ],
    "key": [1], "unique_keys": [{"name": "u", "columns": [3, 1]}], "next_id": 5,
    "partitioning": {
        "method": "range columns", "expression": "a, b", "columns": ["a", "b"], "count": 3,
        "partitions": [
            {"name": "p", "less_than": [{"text": "x", "charset": "latin1"}, {"bytes": "ff00"}]},
            {"name": "q", "less_than": [{"number": "-1"}, {"null": True}]},
            {"name": "r",
             "less_than": [{"expression": "to_days('2026-01-01')"}, {"maxvalue": True}]},
            {"name": "s", "in": [[{"number": "1"}], [{"default": True}]]},
            {"name": "t"},
        ],
        "interval": "(1)",
    },
    "emptied": ["p"], "swap": {"partitioned": "d.t#1", "partition": "p", "plain": "d.u#1"},
    "restored": {"incarnation": "d.t#0", "ended_ts": 8},
    "previous_name": {"database": "d", "table": "s"}, "since": 9, "note": "a note", "hold": "why", "primary_key": [1],
}  # fmt: skip
STORED_CHANGE = {
    "format": 2, "commit_ts": 11, "database": "d", "table": "t", "action": 42, "kind": "statement",
    "query": "ALTER TABLE t …",
    "columns": [
        {"name": "id", "type": {"name": "bigint", "length": 20}, "primary_key": True, "source_id": 1},
        {"name": "v", "type": {"name": "varchar", "length": 5}, "nullable": True, "default": "", "virtual": "seen"},
    ],
    "origin": "topic:0:7", "backslash_escapes": True, "fault": "bad",
}  # fmt: skip
STORED_DATABASE = {
    "format": 2, "commit_ts": 1, "name": {"database": "d", "table": ""}, "incarnation": "", "kind": "create database",
    "effect": "none", "query": "CREATE DATABASE d", "origin": "o", "next_id": 1, "since": 0,
}  # fmt: skip
STORED_KEYS_OF_LATER = {
    "format": 2, "commit_ts": 12, "name": {"database": "d", "table": "t"}, "incarnation": "d.t#1", "kind": "alter",
    "effect": "evolve", "query": "", "origin": "o",
    "columns": [{"id": 1, "name": "n", "type": {"name": "int"}, "nullable": True, "carried": True, "default": "1",
                 "comment": "how many", "computed_as": "a + 1"}],
    "next_id": 2, "since": 0, "charset": "latin1",
    "foreign_keys": [{"name": "_ibfk_1", "actions": "ON DELETE CASCADE"}, {"name": "x"}],
}  # fmt: skip
STORED_ROW = {
    "format": 2, "commit_ts": 13, "database": "d", "table": "t", "kind": "row", "query": "", "origin": "o",
}  # fmt: skip


def with_unknown_keys(stored: Any) -> Any:
    """With a key of a later release in each object."""
    if isinstance(stored, list):
        return [with_unknown_keys(each) for each in cast("list[Any]", stored)]
    if not isinstance(stored, dict):
        return stored
    fields = cast("dict[str, Any]", stored)
    return {"of later": {"a": 1}, **{key: with_unknown_keys(value) for key, value in fields.items()}}


@pytest.mark.parametrize(
    ("value", "stored", "to_json", "from_json"),
    [
        (VERSION, STORED_VERSION, version_to_json, version_from_json),
        (DATABASE, STORED_DATABASE, version_to_json, version_from_json),
        (KEYS_OF_LATER, STORED_KEYS_OF_LATER, version_to_json, version_from_json),
        (CHANGE, STORED_CHANGE, change_to_json, change_from_json),
        (ROW, STORED_ROW, change_to_json, change_from_json),
    ],
    ids=["version", "database", "keys of later", "change", "row"],
)
def test_what_is_stored(
    value: Any, stored: object, to_json: Callable[[Any], str], from_json: Callable[[str], Any]
) -> None:
    text = to_json(value)
    assert json.loads(text) == stored
    assert from_json(text) == value
    assert from_json(json.dumps(with_unknown_keys(stored))) == value


@pytest.mark.parametrize("clause", [
    "RANGE (a) (PARTITION p0 VALUES LESS THAN (10), PARTITION `p 2` VALUES LESS THAN (MAXVALUE))",
    "LIST (a) (PARTITION x VALUES IN (1, 2), PARTITION y VALUES IN (NULL, 3), PARTITION rest VALUES IN (DEFAULT))",
    "HASH (a + b) PARTITIONS 4",
    "KEY () PARTITIONS 2",
    "RANGE COLUMNS (a, b) (PARTITION p VALUES LESS THAN ('it''s', x'ff'), PARTITION q VALUES LESS THAN (-1, NULL))",
    "RANGE (to_days(a)) (PARTITION p VALUES LESS THAN (to_days('2026-01-01')))",
])  # fmt: skip
def test_a_partitioning_comes_back(clause: str) -> None:
    version = TableVersion(1, TableName("d", "t"), "d.t#1", "", "create", "", "", partitioning=partitioned_by(clause))
    assert version_from_json(version_to_json(version)) == version


def test_a_form_of_newer_code_is_refused() -> None:
    for read in (version_from_json, change_from_json):
        with pytest.raises(StoredFormError, match="form 3"):
            read('{"format": 3}')
