"""Which tags a commit makes and takes away."""

from __future__ import annotations

import datetime

import pytest

from cdc_lakehouse.changelog.positions import tso
from cdc_lakehouse.config import CutsConfig
from cdc_lakehouse.lake.current.cut_tags import ShownState, cut_of_tag, day_of_tag, end_of_day, plan_tags

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
