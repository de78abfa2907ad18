"""Dropped tables: kept and marked, or purged with their data, by policy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from cdc_lakehouse.changelog.mysql_types import ColumnType
from cdc_lakehouse.changelog.schema import SourceColumn
from cdc_lakehouse.pipeline import steps
from tests.kit.hand_sinks import CREATE, CSV, DROP, ID, HandSink, row, text
from tests.kit.lakes import TestLake

pytestmark = pytest.mark.spark

NUMBER = SourceColumn("number", ColumnType.of("BIGINT", length=20), nullable=False, primary_key=True)
PURGE = {"ddl": {"drop": "purge"}}


def create(sink: HandSink, table: str, at: int, *ids: int) -> None:
    query = f"CREATE TABLE `{table}` (`id` BIGINT PRIMARY KEY, `s` VARCHAR(50))"
    sink.schema(table, at, ID, text("s"), action=CREATE, query=query)
    sink.rows(f"d/{table}", at, *(row("I", table, at + 1, str(id), '"x"') for id in ids))


def drop(sink: HandSink, table: str, at: int) -> None:
    sink.schema(table, at, ID, text("s"), action=DROP, query=f"DROP TABLE `d`.`{table}`")


def run(lake: TestLake, sink: HandSink, at: int) -> None:
    sink.checkpoint(at)
    lake.go_through()


def identifiers(lake: TestLake) -> list[str]:
    return sorted(name for _, name in lake.lake.catalog.list_tables(f"{lake.name}__d"))


@pytest.mark.parametrize(
    ("feed", "left"),
    [
        ({}, ["a", "b"]),
        ({"policy": PURGE}, []),
        ({"tables": {"settings": {"d.a": PURGE}}}, ["b"]),
        ({"policy": PURGE, "tables": {"settings": {"d.a": {"ddl": {"drop": "keep"}}}}}, ["a"]),
    ],
)
def test_by_policy_of_the_feed_and_of_the_table(
    feed: dict[str, Any], left: list[str], new_lake: Callable[..., TestLake]
) -> None:
    lake = new_lake(source=CSV, **feed)
    sink = HandSink(lake.sink)
    for table in "abc":
        create(sink, table, 1, 1, 2)
    run(lake, sink, 5)
    assert identifiers(lake) == ["a", "b", "c"] and lake.data_files("a")
    for table in "ab":
        drop(sink, table, 6)
    run(lake, sink, 8)
    assert identifiers(lake) == [*left, "c"]
    assert bool(lake.data_files("a")) == ("a" in left)
    assert [key[1] for key in lake.tables()] == ["c"]


def test_a_table_that_is_created_again_is_another_one(new_lake: Callable[..., TestLake]) -> None:
    lake = new_lake(source=CSV, policy=PURGE)
    sink = HandSink(lake.sink)
    create(sink, "a", 1, 1, 2)
    run(lake, sink, 5)
    drop(sink, "a", 6)
    create(sink, "a", 7, 3)
    run(lake, sink, 9)
    assert identifiers(lake) == ["a"]
    assert lake.tables()["d", "a"].scan().to_arrow()["id"].to_pylist() == [3]
    # In one run from its creation to its drop.
    create(sink, "b", 10, 1)
    drop(sink, "b", 12)
    run(lake, sink, 13)
    assert identifiers(lake) == ["a"]


def test_a_run_that_ends_before_the_purge_leaves_it_to_the_next(
    new_lake: Callable[..., TestLake], monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = new_lake(source=CSV, policy=PURGE)
    sink = HandSink(lake.sink)
    create(sink, "a", 1, 1)
    create(sink, "b", 1, 1)
    drop(sink, "a", 3)
    with monkeypatch.context() as patch:
        patch.setattr(steps, "purge_dropped", _killed)
        with pytest.raises(KeyboardInterrupt):
            run(lake, sink, 5)
    assert identifiers(lake) == ["a", "b"]
    run(lake, sink, 5)
    assert identifiers(lake) == ["b"]


def _killed(*_: Any) -> None:
    raise KeyboardInterrupt


def test_the_key_of_the_configuration_is_that_of_the_table_which_has_the_name_now(
    new_lake: Callable[..., TestLake], caplog: pytest.LogCaptureFixture
) -> None:
    lake = new_lake(source=CSV)
    sink = HandSink(lake.sink)
    create(sink, "a", 1, 1)
    run(lake, sink, 5)
    sink.rows("d/a", 1, row("I", "a", 6, "2", '"x"'), index=2)
    drop(sink, "a", 7)
    sink.schema("a", 8, NUMBER, text("s"), action=CREATE, query="CREATE TABLE a (number BIGINT PRIMARY KEY, s TEXT)")
    sink.rows("d/a", 8, row("I", "a", 9, "3", '"x"'))
    lake.configure(tables={"settings": {"d.a": {"primary_key": ["number"]}}})
    run(lake, sink, 10)
    assert lake.rows("a") == [(3, "x")]
    assert "none of its columns is known to be its key" in caplog.text and "could not be updated" not in caplog.text
