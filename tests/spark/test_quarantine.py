"""Rows that a person gave up, and segments that are decoded again, in a whole run."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest

from cdc_lakehouse.pipeline.replay import replay
from tests.kit.lakes import TestLake
from tests.lake import NOON
from tests.spark.test_held import Table

pytestmark = pytest.mark.spark


def discard(table: Table, count: int = 1) -> None:
    run = table.lake.run()
    ids = {row.id for row in run.quarantine.open()[:count]}
    assert len(run.quarantine.discard(ids, "ann", "test data", NOON)) == count


def states(table: Table) -> list[str]:
    return sorted(row["state"] for row in table.lake.machinery("quarantine"))


@pytest.fixture
def table(new_lake: Callable[..., TestLake]) -> Table:
    table = Table(new_lake())
    table.create("id")
    table.put(1, 10)
    assert not table.run().applied.held
    return table


def test_a_table_goes_on_without_exactly_the_rows_that_were_discarded(table: Table) -> None:
    table.put(2, 20)
    table.spoil('"v":"20"', '"v":"twenty"')
    table.put(3, 30)
    table.put(4, 40)
    table.spoil('"v":"40"', '"v":"forty"')
    assert table.run().applied.held and table.open() == ["BadValue"] * 2
    discard(table)
    assert table.run().applied.held and table.rows() == {1: 10}
    discard(table)
    assert not table.run().applied.held
    assert (table.rows(), states(table)) == ({1: 10, 3: 30}, ["discarded"] * 2)
    # What comes later holds the table as before.
    table.put(5, 50)
    table.spoil('"v":"50"', '"v":"fifty"')
    assert table.run().applied.held and table.open() == ["BadValue"]


@pytest.mark.parametrize("value", [",", '"twenty"'], ids=["a line", "a row that the table cannot take"])
def test_a_decision_stands_when_a_date_is_decoded_again_and_a_replay_takes_it_back(table: Table, value: str) -> None:
    table.put(2, 20)
    table.spoil('"v":"20"', f'"v":{value}')
    table.put(3, 30)
    assert table.run().applied.held
    discard(table)
    assert not table.run().applied.held
    assert table.rows() == {1: 10, 3: 30}
    dates = {row["feed_date"] for row in table.lake.machinery("segments") if row["feed_date"]}
    assert dates
    table.lake.go_through(dates=frozenset(dates))
    assert (table.rows(), states(table)) == ({1: 10, 3: 30}, ["discarded"])
    run = table.lake.run()
    assert replay(run, run.quarantine.rows).landed
    assert table.run().applied.held
    assert len(table.open()) == 1


def test_rows_that_were_mended_and_replayed_come_between_the_others_of_their_keys(table: Table) -> None:
    for id, values in ((2, (20, 21, 22)), (3, (30, 31))):
        for before, v in zip((None, *values), values, strict=False):
            table.put(id, v, before)
    # In the place, so that only a replay takes it again: the file is the one that is known.
    table.feed.flush(9)
    path = max(table.lake.sink.rglob("CDC*.json"))
    sound, times = path.read_bytes(), path.stat()

    def write(content: bytes) -> None:
        assert len(content) == len(sound)
        with path.open("r+b") as file:
            file.write(content)
        os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))

    write(sound.replace(b'"v":"21"', b'"v":,21,', 1).replace(b'"v":"31"', b'"v":,31,', 1))
    assert table.run().applied.held and table.open() == ["NotJson"] * 2
    discard(table, 2)
    assert not table.run().applied.held
    assert table.rows() == {1: 10, 2: 22, 3: 30}
    write(sound)
    assert not table.run().decoded.segments
    run = table.lake.run()
    assert replay(run, run.quarantine.rows).landed
    assert not table.run().applied.held
    assert (table.rows(), states(table)) == ({1: 10, 2: 22, 3: 31}, ["replayed"] * 2)
    events = sorted(table.lake.machinery("events"), key=lambda event: event["commit_ts"])
    assert [event["after"]["v"] for event in events] == ["10", "20", "21", "22", "30", "31"]
