"""The plan says what the next run does, and does nothing itself."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from cdc_lakehouse.changelog.mysql_types import ColumnType
from cdc_lakehouse.changelog.schema import SourceColumn
from cdc_lakehouse.cli import main
from tests.kit.hand_sinks import (
    ADD_COLUMN,
    CREATE,
    CSV,
    DROP,
    DROP_COLUMN,
    EXCHANGE,
    ID,
    MODIFY,
    T0,
    HandSink,
    integer,
    row,
    text,
)
from tests.kit.lakes import TestLake, run_all

pytestmark = pytest.mark.spark


@pytest.fixture
def plan(monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    def call(lake: TestLake, *options: str) -> str:
        monkeypatch.setenv("CDC_LAKEHOUSE_CONFIG", str(lake.sink.parent / "lakehouse.yaml"))
        before = (lake.metadata(), _files(lake.sink))
        result = CliRunner().invoke(main, ["plan", *options])
        assert result.exit_code == 0, result.output
        assert (lake.metadata(), _files(lake.sink)) == before, "a plan has changed something"
        return result.output

    return call


def _files(directory: Path) -> list[tuple[str, int]]:
    return sorted((str(path), path.stat().st_mtime_ns) for path in directory.rglob("*"))


def create(sink: HandSink, table: str, at: int) -> None:
    query = f"CREATE TABLE `{table}` (`id` BIGINT PRIMARY KEY, `v` INT, `s` VARCHAR(50))"
    sink.schema(table, at, ID, integer("v"), text("s"), action=CREATE, query=query)
    sink.rows(f"d/{table}", at, *(row("I", table, at + n, str(n), "5", '"x"') for n in (1, 2, 3)))


def test_what_waits_and_what_it_does(new_lake: Callable[..., TestLake], plan: Callable[..., str]) -> None:
    lake = new_lake(source=CSV)
    sink = HandSink(lake.sink)
    create(sink, "t", 1)
    create(sink, "gone", 1)
    sink.checkpoint(9)
    told = plan(lake).replace("`", "")
    assert f"CREATE TABLE lake.{lake.name}__d.t (id long, v int, s string)" in told
    run_all(lake.run())
    assert "no DDL is pending" in plan(lake)

    columns = (ID, text("v"), text("s"))
    sink.schema("t", 10, *columns, action=MODIFY, query="ALTER TABLE `t` MODIFY COLUMN `v` VARCHAR(50)")
    query = "ALTER TABLE `t` ADD COLUMN `n` INT DEFAULT 7"
    sink.schema("t", 11, *columns, integer("n"), action=ADD_COLUMN, query=query)
    sink.schema("gone", 12, ID, integer("v"), text("s"), action=DROP, query="DROP TABLE `d`.`gone`")
    sink.schema("t", 99, ID, text("v"), action=DROP_COLUMN, query="ALTER TABLE `t` DROP COLUMN `s`")
    sink.checkpoint(20)
    (feed,) = json.loads(plan(lake, "--json"))["feeds"]
    assert [(s["commit_ts"] - T0, s["effect"], s["waits"]) for s in feed["statements"]] == [
        (10, "rewrite", False), (11, "evolve", False), (12, "drop", False), (99, "evolve", True),
    ]  # fmt: skip
    assert feed["statements"][0]["columns"] == ["- v int", "+ v varchar(50)"]
    tables: dict[str, Any] = {table["table"]: table for table in feed["tables"]}
    assert (tables["d.t"]["rows"], tables["d.t"]["rewritten"]) == (3, 3)
    statements = "\n".join(tables["d.t"]["statements"]).replace("`", "")
    assert "SET v = convert(v)" in statements and "ADD COLUMN n int" in statements
    assert "DROP COLUMN s" not in statements
    assert tables["d.gone"]["statements"] == ["(kept, marked as dropped)"]

    run_all(lake.run())
    told = plan(lake)
    assert "above the checkpoint" in told and "ALTER TABLE `t` DROP COLUMN `s`" in told and "rewritten" not in told


def test_a_statement_that_holds_its_table(new_lake: Callable[..., TestLake], plan: Callable[..., str]) -> None:
    lake = new_lake(source=CSV)
    sink = HandSink(lake.sink)
    create(sink, "t", 1)
    sink.checkpoint(9)
    run_all(lake.run())
    query = "ALTER TABLE `t` EXCHANGE PARTITION p WITH TABLE u"
    sink.schema("t", 10, ID, integer("v"), text("s"), action=EXCHANGE, query=query)
    sink.checkpoint(20)
    assert "holds the table: the rows of table u are not in the log" in plan(lake)
    run_all(lake.run())
    told = plan(lake)
    assert "held: " in told and "table u are not in the log" in told and query not in told.split("held")[0]


REWRITE_WAITS = {"ddl": {"rewrite": "hold"}}


@pytest.mark.parametrize("feed", [{"policy": REWRITE_WAITS}, {"tables": {"settings": {"d.t": REWRITE_WAITS}}}])
def test_a_rewrite_waits_for_a_person(
    feed: dict[str, Any], new_lake: Callable[..., TestLake], plan: Callable[..., str]
) -> None:
    lake = new_lake(source=CSV, **feed)
    sink = HandSink(lake.sink)
    create(sink, "t", 1)
    query = "ALTER TABLE `t` MODIFY COLUMN `v` BIGINT UNSIGNED"
    columns = (ID, SourceColumn("v", ColumnType.of("BIGINT UNSIGNED")), text("s"))
    sink.schema("t", 5, *columns, action=MODIFY, query=query)
    sink.checkpoint(9)
    # Nothing is there yet that could be rewritten.
    lake.go_through()
    assert "no rewrite of d.t waits" in command(lake, "resume", "d.t", code=1)

    again = query.replace("BIGINT UNSIGNED", "VARCHAR(50)")
    sink.schema("t", 10, ID, text("v"), text("s"), action=MODIFY, query=again)
    sink.rows("d/t", 10, row("I", "t", 11, "9", '"nine"', '"x"'))
    sink.checkpoint(20)
    assert f"held: {again}" in plan(lake)
    held = run_all(lake.run()).applied.held["d.t#1"]
    assert again in held and "cdc-lakehouse resume d.t" in held
    assert held in command(lake, "status")
    assert [field.name for field in lake.tables()["d", "t"].schema().fields] == ["id", "v", "s", "_commit_ts"]
    assert [v for _, v, _ in lake.rows("t")] == [5, 5, 5]
    assert again in command(lake, "resume", "d.t")
    lake.go_through()
    assert sorted(lake.tables()["d", "t"].scan().to_arrow()["v"].to_pylist()) == ["5", "5", "5", "nine"]
    assert "no rewrite of d.t waits" in command(lake, "resume", "d.t", code=1)

    # Only where it says so, and what comes later waits anew.
    sink.schema("t", 30, ID, SourceColumn("v", ColumnType.of("BLOB")), text("s"), action=MODIFY, query=query)
    sink.checkpoint(40)
    assert run_all(lake.run()).applied.held
    sink.schema("t", 41, ID, SourceColumn("v", ColumnType.of("BLOB")), text("s"), action=4, query="DROP TABLE `d`.`t`")
    sink.checkpoint(42)
    lake.go_through()


def test_resume_says_why_else_a_table_is_held(new_lake: Callable[..., TestLake]) -> None:
    lake = new_lake(source=CSV)
    sink = HandSink(lake.sink)
    create(sink, "t", 1)
    sink.rows("d/t", 1, "garbage", index=2)
    sink.checkpoint(9)
    run_all(lake.run())
    assert "for another reason" in command(lake, "resume", "d.t", code=1)


def command(lake: TestLake, *words: str, code: int = 0) -> str:
    environment = {"CDC_LAKEHOUSE_CONFIG": str(lake.sink.parent / "lakehouse.yaml")}
    result = CliRunner().invoke(main, words, env=environment)
    assert result.exit_code == code, result.output
    return result.output
