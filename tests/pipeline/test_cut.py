"""A cut says which snapshot of each table shows the checkpoint, once, and without the tables that are held."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from cdc_lakehouse.lake.current.tables import CurrentTables, TableState
from cdc_lakehouse.pipeline.apply import Applied, AppliedTable
from cdc_lakehouse.pipeline.publish import Published, publish_cut
from tests.kit.lakes import TestLake
from tests.lake import CREATE, DROP, KEY_ALONE, NOON, change, make_current_table, segment
from tests.pipeline import lake_in, lives_upto


class Feed:
    def __init__(self, directory: Path) -> None:
        self.lake: TestLake = lake_in(directory)
        self.lake.run().history.record([change(10, "a", CREATE), change(11, "b", CREATE)], NOON)

    def put(self, table: str, rows: int) -> TableState:
        """Rows into a current-state table, which is made when it is not there."""
        run = self.lake.run()
        tables = CurrentTables(run.lake, run.feed)
        life = run.history.history.incarnations()[f"d.{table}#1"]
        where = tables.identifier(life.last.name)
        if tables.find(life) is None:
            make_current_table(self.lake, life, where)
        run.lake.catalog.load_table(where.parts).append(pa.table({"id": list(range(rows))}, schema=KEY_ALONE))
        state = tables.find(life)
        assert state is not None
        return state

    def publish(self, upto: int, *states: TableState, **held: str) -> Published:
        run = self.lake.run()
        lives = lives_upto(run, upto)
        done = tuple(AppliedTable(lives[s.incarnation], s, ("id",), 1, 0, 0, 0, False) for s in states)
        return publish_cut(run, Applied(upto, lives, done, held))

    def rows(self, checkpoint_ts: int) -> dict[str, tuple[Any, ...]]:
        rows = [row for row in self.lake.machinery("checkpoints") if row["checkpoint_ts"] == checkpoint_ts]
        return {row["table"]: (row["snapshot_id"], row["row_count"]) for row in rows}


@pytest.fixture
def feed(tmp_path: Path) -> Feed:
    return Feed(tmp_path)


def test_without_a_checkpoint_nothing_is_published(feed: Feed) -> None:
    published = feed.publish(0)
    assert (published.new, published.rows, feed.lake.machinery("checkpoints")) == (False, (), [])


def test_a_cut_names_the_snapshot_of_each_table_that_is_there(feed: Feed) -> None:
    """Also of one that an earlier run made before it crashed."""
    state, before = feed.put("a", 3), feed.put("b", 2)
    published = feed.publish(50, state)
    assert published.new and published.cut.checkpoint_ts == 50
    assert feed.rows(50) == {"a": (state.snapshot_id, 3), "b": (before.snapshot_id, 2)}


def test_nothing_new_commits_nothing_and_a_checkpoint_that_moved_is_a_cut_with_the_same_snapshots(feed: Feed) -> None:
    state = feed.put("a", 1)
    feed.publish(50, state)
    before = feed.lake.metadata()
    again = feed.publish(50)
    assert (again.new, [row.table for row in again.rows]) == (False, ["a"])
    assert feed.lake.metadata() == before
    assert feed.publish(60).new
    assert feed.rows(60) == feed.rows(50) == {"a": (state.snapshot_id, 1)}


def test_a_held_table_is_not_in_the_cut_and_its_reason_is(feed: Feed) -> None:
    feed.publish(50, feed.put("a", 1), feed.put("b", 2))
    changed = feed.put("b", 3)
    published = feed.publish(60, changed, **{"d.a#1": "it's bad"})
    assert feed.rows(60) == {"b": (changed.snapshot_id, 5)}
    assert published.cut.held == feed.lake.run().last_cut.held == (("d.a#1", "it's bad"),)
    assert set(feed.rows(50)) == {"a", "b"}


def test_a_table_that_is_held_no_more_is_a_new_cut_at_the_same_checkpoint(feed: Feed) -> None:
    state = feed.put("a", 1)
    feed.publish(50, **{"d.a#1": "bad"})
    assert feed.rows(50) == {}
    assert feed.publish(50, state).new
    assert feed.rows(50) == {"a": (state.snapshot_id, 1)}


def test_a_backfilled_table_takes_its_place_in_the_cut(feed: Feed) -> None:
    feed.publish(50, feed.put("a", 1), feed.put("b", 1))
    again = feed.put("a", 1)
    feed.publish(50, again)
    rows = feed.rows(50)
    assert rows["a"] == (again.snapshot_id, 2) and set(rows) == {"a", "b"}
    assert len(feed.lake.machinery("checkpoints")) == 2


def test_segments_without_a_row_that_counts_move_the_cut_on(feed: Feed) -> None:
    """The next run must not look at them again."""
    feed.publish(50, feed.put("a", 1))
    feed.lake.run().segments.land([segment("d/a/10/CDC000001.json", 4, "decoded")])
    assert feed.publish(50).new
    assert feed.lake.run().last_cut.batch == 4


def test_a_dropped_table_leaves_the_cut(feed: Feed) -> None:
    feed.publish(50, feed.put("a", 1), feed.put("b", 1))
    feed.lake.run().history.record([change(55, "a", DROP, "DROP TABLE a")], NOON)
    published = feed.publish(60)
    assert list(feed.rows(60)) == ["b"] and published.cut.versions == 3
