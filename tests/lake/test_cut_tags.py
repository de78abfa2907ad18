"""Which tags a commit makes and takes away, and which state readers are shown."""

from __future__ import annotations

import datetime
from typing import Any

import pyarrow as pa
import pytest

from cdc_lakehouse.changelog.positions import tso
from cdc_lakehouse.config import CutsConfig
from cdc_lakehouse.lake.current.tables import ShownState, plan_tags, shown_state
from tests.kit.lakes import TestLake


def at(text: str) -> int:
    """`5.10`: ten o'clock on the fifth."""
    day, _, hour = text.partition(".")
    return tso(datetime.datetime(2026, 3, int(day), int(hour or 0), tzinfo=datetime.UTC))


def name_of(tag: str) -> str:
    """`c4.9` is the tag of a cut, `d04` that of a day; others are as they stand."""
    return f"cut_{at(tag[1:])}" if tag[0] == "c" else f"day_2026-03-{tag[1:]}" if tag[1:].isdigit() else tag


@pytest.mark.parametrize(
    ("tags", "shown", "now", "added", "moved", "removed"),
    [
        # The state that is replaced is tagged, for each day that it was the last of, too.
        ("", "5.9", "5.10", "c5.9", "", ""),
        ("", "3.9", "5.10", "c3.9 d03 d04", "", ""),
        # At midnight the day is over; a day that is not kept any more gets none.
        ("", "4.9", "5", "c4.9 d04", "", ""),
        ("", "1", "20", "c1 d17 d18 d19", "", ""),
        # A tag lasts as long as its state is in the window: the second ended at 12 o'clock, the first before that.
        ("c1 c4.9 c4.12 d01 d02", "5.1", "5.10", "c5.1", "", "c1 d01"),
        # Another cut at the same checkpoint takes the place of its state.
        ("", "5.9", "5.9", "", "", ""),
        ("c5.9", "5.9", "5.10", "", "c5.9", ""),
        ("", "", "5", "", "", ""),
        # Switched off; those of others stay.
        ("c4.9 d04 release day_of_reckoning day_2026-13-77", "5.9", "5.10", "", "", "c4.9 d04"),
    ],
)
def test_tags_follow_from_states_and_days(
    tags: str, shown: str, now: str, added: str, moved: str, removed: str
) -> None:
    """The state that was shown is snapshot 7, tags are of others."""
    kept = (0, 0) if "release" in tags else (24, 3)
    config = CutsConfig(keep_all_hours=kept[0], keep_daily_days=kept[1])
    state = ShownState(7, at(shown)) if shown else None
    before = {name_of(tag): number for number, tag in enumerate(tags.split())}
    changes = plan_tags(before, state, at(now), config)
    assert changes.added == {name_of(tag): 7 for tag in added.split()}
    assert (changes.moved, set(changes.removed)) == (
        {name_of(tag): 7 for tag in moved.split()}, {name_of(tag) for tag in removed.split()},
    )  # fmt: skip
    # A commit that is tried again finds its tags.
    after = {**before, **changes.added, **changes.moved}
    again = plan_tags({name: after[name] for name in after.keys() - {*changes.removed}}, state, at(now), config)
    assert (again.added, again.moved, again.removed) == ({}, {}, ())


def test_state_that_is_shown_is_the_newest_that_a_cut_names(lake: TestLake) -> None:
    """Snapshots of runs say their checkpoint-ts, those of others do not."""
    lake.lake.ensure_namespace("d")
    table = lake.lake.catalog.create_table(
        ("d", "t"), pa.schema([("id", pa.int64())]), properties={"cdc.applied-ts": "0"}
    )

    def commit(day: str = "") -> int:
        table.append(pa.table({"id": [1]}), {"cdc.checkpoint-ts": str(at(day))} if day else {})
        if day:
            table.transaction().set_properties({"cdc.applied-ts": str(at(day))}).commit_transaction()
        snapshot: Any = table.current_snapshot()
        return snapshot.snapshot_id

    assert shown_state(table, {1}) is None
    first = commit("1")
    assert shown_state(table, set()) is None
    assert shown_state(table, {first}) == ShownState(first, at("1"))
    # A compacted table shows what the run before has committed.
    compacted = commit()
    assert shown_state(table, {first}) == ShownState(first, at("1"))
    assert shown_state(table, {compacted}) == ShownState(compacted, at("1"))
    table.maintenance.expire_snapshots().by_id(first).commit()
    assert shown_state(table.refresh(), {compacted}) == ShownState(compacted, at("1"))
    # What a run has committed since, which ended before its cut, says nothing of the state before.
    second = commit("2")
    assert shown_state(table, {compacted}) is None
    assert shown_state(table, {compacted, second}) == ShownState(second, at("2"))
    third = commit("3")
    assert shown_state(table, {second}) == ShownState(second, at("2"))
    assert shown_state(table, {second, third}) == ShownState(third, at("3"))
