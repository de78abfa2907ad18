"""Which tags a commit makes and takes away."""

from __future__ import annotations

import datetime

import pyarrow as pa
import pytest

from cdc_lakehouse.changelog.positions import tso
from cdc_lakehouse.config import CutsConfig
from cdc_lakehouse.lake.catalog import Lake
from cdc_lakehouse.lake.current.tables import ShownState, cut_of_tag, day_of_tag, end_of_day, plan_tags, shown_state
from tests.kit.lakes import TestLake

KEPT = CutsConfig(keep_all_hours=24, keep_daily_days=3)


def at(day: int, hour: int = 0) -> int:
    return tso(datetime.datetime(2026, 3, day, hour, tzinfo=datetime.UTC))


def test_the_state_that_is_replaced_is_tagged() -> None:
    changes = plan_tags({}, ShownState(7, at(5, 9)), at(5, 10), KEPT)
    assert (changes.added, changes.moved, changes.removed) == ({f"cut_{at(5, 9)}": 7}, {}, ())


def test_it_stands_for_each_day_that_it_was_the_last_of() -> None:
    changes = plan_tags({}, ShownState(7, at(3, 9)), at(5, 10), KEPT)
    assert changes.added == {f"cut_{at(3, 9)}": 7, "day_2026-03-03": 7, "day_2026-03-04": 7}
    # At midnight the day is over; a day that is not kept any more gets none.
    assert set(plan_tags({}, ShownState(7, at(4, 9)), at(5), KEPT).added) == {f"cut_{at(4, 9)}", "day_2026-03-04"}
    old = plan_tags({}, ShownState(7, at(1)), at(20), KEPT).added
    assert set(old) == {f"cut_{at(1)}", *(f"day_2026-03-{day}" for day in (17, 18, 19))}


def test_a_tag_lasts_as_long_as_its_state_is_within_the_window() -> None:
    tags = {f"cut_{at(1)}": 1, f"cut_{at(4, 9)}": 2, f"cut_{at(4, 12)}": 3, "day_2026-03-01": 1, "day_2026-03-02": 1}
    changes = plan_tags(tags, ShownState(4, at(5, 1)), at(5, 10), KEPT)
    # The second ended at 12 o'clock, within 24 hours, the first before that.
    assert changes.removed == (f"cut_{at(1)}", "day_2026-03-01")
    assert changes.added == {f"cut_{at(5, 1)}": 4}


def test_another_cut_at_the_same_checkpoint_takes_the_place_of_its_state() -> None:
    assert plan_tags({}, ShownState(7, at(5, 9)), at(5, 9), KEPT).added == {}
    tags = {f"cut_{at(5, 9)}": 7}
    assert plan_tags(tags, ShownState(8, at(5, 9)), at(5, 10), KEPT).moved == {f"cut_{at(5, 9)}": 8}


def test_a_commit_that_is_tried_again_finds_its_tags() -> None:
    first = plan_tags({}, ShownState(7, at(3, 9)), at(5, 10), KEPT)
    again = plan_tags(first.added, ShownState(7, at(3, 9)), at(5, 10), KEPT)
    assert (again.added, again.moved, again.removed) == ({}, {}, ())


def test_nothing_is_tagged_where_nothing_was_shown() -> None:
    assert plan_tags({}, None, at(5), KEPT).added == {}


def test_tags_can_be_switched_off_and_those_of_others_stay() -> None:
    off = CutsConfig(keep_all_hours=0, keep_daily_days=0)
    tags = {f"cut_{at(4, 9)}": 2, "day_2026-03-04": 2, "release": 1, "day_of_reckoning": 1, "day_2026-13-77": 1}
    changes = plan_tags(tags, ShownState(7, at(5, 9)), at(5, 10), off)
    assert (changes.added, changes.removed) == ({}, (f"cut_{at(4, 9)}", "day_2026-03-04"))


@pytest.mark.parametrize("name", ["cut_", "cut_x", "Cut_1", "day_2026-3-1", "day_2026-02-30", "main"])
def test_names_of_others_are_no_tags_of_cuts(name: str) -> None:
    assert cut_of_tag(name) is None and day_of_tag(name) is None


def test_a_day_ends_before_the_next_begins() -> None:
    assert end_of_day(datetime.date(2026, 3, 4)) + 1 == at(5)


class CommittedTable:
    """A table with snapshots of runs, which say their checkpoint-ts, and of others."""

    def __init__(self, lake: Lake) -> None:
        lake.ensure_namespace("d")
        schema = pa.schema([("id", pa.int64())])
        self.table = lake.catalog.create_table(("d", "t"), schema, properties={"cdc.applied-ts": "0"})

    def commit(self, checkpoint_ts: int | None = None) -> int:
        summary = {} if checkpoint_ts is None else {"cdc.checkpoint-ts": str(checkpoint_ts)}
        self.table.append(pa.table({"id": [1]}), summary)
        if checkpoint_ts is not None:
            self.table.transaction().set_properties({"cdc.applied-ts": str(checkpoint_ts)}).commit_transaction()
        snapshot = self.table.current_snapshot()
        assert snapshot is not None
        return snapshot.snapshot_id


def test_the_state_that_is_shown_is_the_newest_that_a_cut_names(lake: TestLake) -> None:
    table = CommittedTable(lake.lake)
    assert shown_state(table.table, {1}) is None
    first = table.commit(at(1))
    assert shown_state(table.table, set()) is None
    assert shown_state(table.table, {first}) == ShownState(first, at(1))
    # A run that ended before its cut.
    second = table.commit(at(2))
    assert shown_state(table.table, {first}) == ShownState(first, at(1))
    assert shown_state(table.table, {first, second}) == ShownState(second, at(2))


def test_a_compacted_table_shows_what_the_run_before_has_committed(lake: TestLake) -> None:
    table = CommittedTable(lake.lake)
    first = table.commit(at(1))
    compacted = table.commit()
    assert shown_state(table.table, {first}) == ShownState(first, at(1))
    assert shown_state(table.table, {compacted}) == ShownState(compacted, at(1))
    table.table.maintenance.expire_snapshots().by_id(first).commit()
    assert shown_state(table.table.refresh(), {compacted}) == ShownState(compacted, at(1))
    # What a run has committed since says nothing of the state before.
    table.commit(at(2))
    assert shown_state(table.table, {compacted}) is None
