"""`schema`: what a table's columns are in the source and in the lake, and by which statements."""

from __future__ import annotations

import json

import pytest

from cdc_lakehouse.changelog.schema import SchemaChange
from cdc_lakehouse.lake.tables.checkpoints import Cut, CutRow
from tests.commands import call
from tests.kit.lakes import TestLake
from tests.lake import NOON
from tests.pipeline import T0

CREATE = """CREATE TABLE `a` (`id` BIGINT NOT NULL PRIMARY KEY COMMENT 'of the\tshop', `_commit_ts` INT DEFAULT '7',
    `double` INT GENERATED ALWAYS AS (`_commit_ts` * 2) VIRTUAL)"""
ADD = "ALTER TABLE `a` ADD COLUMN `price` DECIMAL(10,2) NOT NULL"


@pytest.fixture
def published(lake: TestLake, monkeypatch: pytest.MonkeyPatch) -> TestLake:
    monkeypatch.setenv("CDC_LAKEHOUSE_CONFIG", str(lake.sink.parent / "lakehouse.yaml"))
    told = [SchemaChange(T0 + n, "d", "a", None, query, (), "o", kind="text") for n, query in ((1, CREATE), (3, ADD))]
    lake.run().history.record(told, NOON)
    lake.run().checkpoints.publish(Cut(T0 + 5), [CutRow(T0 + 5, "d", "a", None, 0, NOON)])
    return lake


def test_columns_and_statements(published: TestLake) -> None:
    (shown,) = json.loads(call("schema", "d.a", "--json").stdout)["tables"]
    assert (shown["feed"], shown["database"], shown["table"]) == (published.name, "d", "a")
    keys = ("name", "type", "nullable", "default", "comment", "key", "lake_name", "lake_type")
    assert [tuple(column[key] for key in keys) for column in shown["columns"]] == [
        ("id", "bigint", False, None, "of the\tshop", True, "id", "long"),
        ("_commit_ts", "int", True, "7", None, False, "_commit_ts_", "int"),
        ("double", "int", True, None, None, False, None, None),
        ("price", "decimal(10,2)", False, None, None, False, "price", "decimal(10,2)"),
    ]
    assert [(each["commit_ts"] - T0, each["effect"], each["statement"]) for each in shown["ddl"]] == [
        (1, "create", CREATE), (3, "evolve", ADD),
    ]  # fmt: skip


def test_for_people(published: TestLake) -> None:
    lines = [" ".join(line.split()) for line in call("schema", "d.a").stdout.splitlines()]
    assert "id bigint NOT NULL long key of the shop" in lines
    assert "_commit_ts int _commit_ts_ int 7" in lines
    assert "double int -" in lines
    assert any(line.endswith(f"evolve {ADD}") for line in lines)


def test_a_table_that_there_is_not(published: TestLake) -> None:
    result = call("schema", "d.b")
    assert result.exit_code == 2 and "no table d.b is published" in result.stderr and "d.a" in result.stderr
