"""Tables that are left out and taken as names and configuration change: what is taken is true at every cut."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests import LONG
from tests.kit.data_sets import apply_stage
from tests.kit.hand_sinks import CREATE, CSV, ID, RENAME, T0, HandSink, integer, put, text
from tests.kit.lakes import TestLake, run_all
from tests.kit.truth import Truth

pytestmark = pytest.mark.spark

COLUMNS = (ID, integer("v"), text("s"))


def copy_of_a_table(sink: HandSink) -> None:
    """Tools that change a schema copy the table into another one, and let the two change names."""
    sink.schema("t", 1, *COLUMNS, action=CREATE, query="CREATE TABLE `t` (`id` BIGINT PRIMARY KEY, `v` INT)")
    put(sink, "t", 1, ("I", 2, 1, 10), ("I", 2, 2, 20))
    sink.schema("_t_gho", 5, *COLUMNS, action=CREATE, query="CREATE TABLE `_t_gho` LIKE `t`")
    put(sink, "_t_gho", 5, ("I", 6, 1, 10), ("I", 6, 2, 20))
    put(sink, "t", 1, ("I", 7, 3, 30), index=2)
    put(sink, "_t_gho", 5, ("I", 8, 3, 30), index=2)


def change_names(sink: HandSink) -> None:
    sink.schema("_t_del", 20, *COLUMNS, action=RENAME, query="RENAME TABLE `d`.`t` TO `d`.`_t_del`")
    sink.schema("t", 20, *COLUMNS, action=RENAME, query="RENAME TABLE `d`.`_t_gho` TO `d`.`t`")
    put(sink, "t", 20, ("U", 22, 1, 11))


NEW = [(1, 11, "t22"), (2, 20, "_t_gho6"), (3, 30, "_t_gho8")]
OLD = [(1, 10, "t2"), (2, 20, "t2"), (3, 30, "t7")]
SHADOWS: list[tuple[dict[str, Any], set[str]]] = [
    ({"exclude": ["d._t_gho"]}, {"t", "_t_del"}),
    ({"exclude": ["d._t_del"]}, {"t"}),
    ({"exclude": ["d._*"]}, {"t"}),
    ({"include": ["d.t"]}, {"t"}),
    ({}, {"t", "_t_del"}),
    ({"exclude": ["d.t"]}, {"_t_del"}),
]


@pytest.mark.parametrize(("tables", "taken"), SHADOWS, ids=[str(tables) for tables, _ in SHADOWS])
def test_a_table_that_takes_the_place_of_another(
    tables: dict[str, Any], taken: set[str], new_lake: Callable[..., TestLake]
) -> None:
    lake = new_lake(source=CSV, tables=tables)
    sink = HandSink(lake.sink)
    copy_of_a_table(sink)
    sink.checkpoint(10)
    lake.go_through()
    if "t" in taken:
        assert lake.rows("t") == OLD
    change_names(sink)
    sink.checkpoint(30)
    lake.go_through()
    true = {"t": NEW, "_t_del": OLD}
    assert {table for _, table in lake.tables()} == taken
    assert {name: lake.rows(name) for name in taken} == {name: true[name] for name in taken}
    before = lake.metadata()
    lake.go_through()
    assert lake.metadata() == before

    # All at once it is the same.
    late = new_lake(source=CSV, tables=tables)
    late.sink.symlink_to(lake.sink)
    late.go_through()
    assert {name: late.rows(name) for _, name in late.tables()} == {name: true[name] for name in taken}


def test_a_table_that_comes_back(new_lake: Callable[..., TestLake]) -> None:
    """It is in the lake meanwhile, marked, and goes on where it was."""
    lake = new_lake(source=CSV, tables={"exclude": ["d.aside"]})
    sink = HandSink(lake.sink)
    sink.schema("t", 1, *COLUMNS, action=CREATE, query="CREATE TABLE `t` (`id` BIGINT PRIMARY KEY, `v` INT)")
    put(sink, "t", 1, ("I", 2, 1, 10))
    sink.checkpoint(5)
    lake.go_through()
    sink.schema("aside", 10, *COLUMNS, action=RENAME, query="RENAME TABLE `d`.`t` TO `d`.`aside`")
    put(sink, "aside", 10, ("I", 12, 2, 20))
    sink.checkpoint(15)
    lake.go_through()
    assert lake.tables() == {}
    (left,) = [name for name in lake.metadata() if name.endswith(".t")]
    properties = lake.lake.catalog.load_table(tuple(left.split("."))).properties
    assert properties["cdc.dropped-ts"] == str(T0 + 10)
    sink.schema("t", 20, *COLUMNS, action=RENAME, query="RENAME TABLE `d`.`aside` TO `d`.`t`")
    put(sink, "t", 20, ("I", 22, 3, 30))
    sink.checkpoint(25)
    lake.go_through()
    assert lake.rows("t") == [(1, 10, "t2"), (2, 20, "aside12"), (3, 30, "t22")]


def test_a_table_that_has_a_taken_name_for_a_while(new_lake: Callable[..., TestLake]) -> None:
    """Its sink is further than the checkpoint: there the table has its old name again."""
    lake = new_lake(source=CSV, tables={"exclude": ["d.t"]})
    sink = HandSink(lake.sink)
    sink.schema("t", 1, *COLUMNS, action=CREATE, query="CREATE TABLE `t` (`id` BIGINT PRIMARY KEY, `v` INT)")
    put(sink, "t", 1, ("I", 2, 1, 10))
    sink.schema("shown", 10, *COLUMNS, action=RENAME, query="RENAME TABLE `d`.`t` TO `d`.`shown`")
    put(sink, "shown", 10, ("I", 12, 2, 20))
    sink.schema("t", 20, *COLUMNS, action=RENAME, query="RENAME TABLE `d`.`shown` TO `d`.`t`")
    put(sink, "t", 20, ("I", 22, 3, 30))
    sink.checkpoint(15)
    lake.go_through()
    assert lake.rows("shown") == [(1, 10, "t2"), (2, 20, "shown12")]
    sink.checkpoint(25)
    lake.go_through()
    assert lake.tables() == {}


RENAMING = [
    "canal-json/rename_chain",
    "canal-json/rename_swap",
    "canal-json/drop_recreate",
    pytest.param("canal-json/random_6", marks=pytest.mark.long),
]


@pytest.mark.parametrize("seed", range(10 if LONG else 1))
@pytest.mark.parametrize("name", RENAMING)
def test_whatever_is_taken_at_each_stage_is_true(
    name: str, seed: int, data_sets: Path, new_lake: Callable[..., TestLake]
) -> None:
    chance = random.Random(f"{name} {seed}")
    truth = Truth(data_sets / name)
    lake = new_lake(source=truth.source)
    names = sorted({table for stage in range(len(truth.stages)) for table in truth.tables(stage)})
    last = len(truth.stages) - 1
    for stage in range(last + 1):
        out = {table for table in names if chance.random() < 0.4}
        lake.configure(tables={"exclude": [".".join(table) for table in sorted(out)]})
        apply_stage(truth.dataset, stage, lake.sink)
        take(lake, truth, stage, out)
    lake.configure(tables={})
    take(lake, truth, last, set())


def take(lake: TestLake, truth: Truth, stage: int, out: set[tuple[str, str]]) -> None:
    """Held are tables without a key alone, and those that exchange rows with one that is left out."""
    true = truth.tables(stage)
    done = run_all(lake.run())
    held = {done.applied.lives[id].last.name: reason for id, reason in done.applied.held.items()}
    waiting = {(name.database, name.table) for name, reason in held.items() if "configuration takes" in reason}
    keyless = {name for name, table in true.items() if not table["key"]}
    assert {(name.database, name.table) for name in held} <= waiting | keyless, held
    lake.check(true, except_for=out | waiting | keyless | truth.older())
