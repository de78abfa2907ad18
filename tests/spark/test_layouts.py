"""Layouts that no data set has: directories called by table ids, labels that nothing says, files that expired."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from typing import Any

import pytest

from cdc_lakehouse.pipeline.steps import Steps, run_all
from tests.hand_sinks import ADD_COLUMN, CREATE, DAY, ID, RENAME, T0, TRUNCATE, HandSink, row, text
from tests.lakes import TestLake

pytestmark = pytest.mark.spark

CREATE_A = "CREATE TABLE `a` (`id` BIGINT PRIMARY KEY, `s` VARCHAR(50))"
CSV = {"protocol": "csv", "csv": {"include-commit-ts": True}}


def run(lake: TestLake) -> Steps:
    done = run_all(lake.run())
    assert not done.applied.held
    return done


def rows(lake: TestLake, table: str) -> list[tuple[Any, ...]]:
    found = lake.tables()["d", table].scan().to_arrow().drop(["_commit_ts"])
    return sorted(tuple(each.values()) for each in found.to_pylist())


@pytest.mark.parametrize("stepwise", [True, False])
def test_directories_called_by_table_ids(stepwise: bool, new_lake: Callable[..., TestLake]) -> None:
    """A RENAME keeps the id, a TRUNCATE gives another, and two tables have the same name one after the other."""
    lake = new_lake(source={**CSV, "use_table_id_as_path": True}, tables={"include": ["d.*"]})
    sink = HandSink(lake.sink)

    def step(at: int) -> None:
        sink.checkpoint(at)
        if stepwise:
            run(lake)

    sink.schema("a", 1, ID, text("s"), action=CREATE, query=CREATE_A, directory="101")
    sink.rows("101", 1, row("I", "a", 2, "1", '"one"'), row("I", "a", 3, "2", '"two"'))
    step(5)
    sink.schema("b", 6, ID, text("s"), action=RENAME, query="RENAME TABLE `d`.`a` TO `d`.`b`", directory="101")
    sink.rows("101", 6, row("U", "b", 7, "1", '"uno"'))
    step(8)
    sink.schema("a", 9, ID, text("s"), action=CREATE, query=CREATE_A, directory="102")
    sink.rows("102", 9, row("I", "a", 10, "7", '"seven"'))
    step(11)
    sink.schema("b", 12, ID, text("s"), action=TRUNCATE, query="TRUNCATE TABLE `b`", directory="103")
    sink.rows("103", 12, row("I", "b", 13, "3", '"three"'))
    step(14)
    if not stepwise:
        run(lake)
    assert rows(lake, "a") == [(7, "seven")]
    assert rows(lake, "b") == [(3, "three")]
    assert {(s["database"], s["table"]) for s in lake.machinery("segments")} == {("d", "a"), ("d", "b")}


def test_files_wait_for_the_schema_file_that_says_their_table(new_lake: Callable[..., TestLake]) -> None:
    lake = new_lake(source={**CSV, "use_table_id_as_path": True})
    sink = HandSink(lake.sink)
    sink.rows("101", 1, row("I", "a", 2, "1", '"one"'))
    sink.checkpoint(5)
    done = run(lake)
    assert "wait for the schema file" in done.landed.faults[0] and "101/" in done.landed.faults[0]
    sink.schema("a", 1, ID, text("s"), directory="101")
    run(lake)
    assert rows(lake, "a") == [(1, "one")]


def test_files_that_expire_after_they_landed_are_not_missed(new_lake: Callable[..., TestLake]) -> None:
    lake = new_lake(source=CSV)
    sink = HandSink(lake.sink)
    sink.schema("t", 1, ID, text("s"))
    for index in (1, 2, 3):
        sink.rows("d/t", 1, row("I", "t", 1 + index, str(index), '"x"'), index=index)
    sink.checkpoint(5)
    run(lake)
    for index in (1, 2):
        (lake.sink / f"d/t/{T0 + 1}/{DAY}/CDC{index:020d}.csv").unlink()
    sink.rows("d/t", 1, row("D", "t", 6, "1", '"x"'), index=4)
    sink.schema("t", 7, ID, text("s"), text("u"), action=ADD_COLUMN, query="ALTER TABLE `t` ADD COLUMN `u` VARCHAR(50)")
    sink.rows("d/t", 7, row("I", "t", 8, "4", '"x"', '"y"'), date="2026-06-11")
    shutil.rmtree(lake.sink / f"d/t/{T0 + 1}/{DAY}", ignore_errors=False)
    sink.checkpoint(9)
    run(lake)
    # The fourth file expired before it was seen: nothing can tell. What was seen is all there.
    assert rows(lake, "t") == [(1, "x", None), (2, "x", None), (3, "x", None), (4, "x", "y")]
