"""The frontier as the next run finds it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from cdc_lakehouse.errors import ConcurrentRunError
from cdc_lakehouse.lake.tables.frontiers import Frontiers
from cdc_lakehouse.sources.sink.listing_state import FileSequence, Frontier, KnownTable
from tests.lake import NOON, runs

FULL = Frontier(
    (
        KnownTable("d b/订'单", 2**40, 2**62, True, ("7", "7/77"), (
            FileSequence("7/77/2026-06-01", "12", 9, "CDC_12_9", "CDC_12_8", "e", "f"),
            FileSequence("7/77/2026-06-02", None, 1, "CDC1", "", "e", None),
        )),
        KnownTable("d/empty", 0, 0, False, (), ()),
    ),
    "2026-05-30",
    "digest",
    NOON,
)  # fmt: skip


@pytest.fixture
def frontiers(tmp_path: Path) -> Callable[[], Frontiers]:
    return runs(Frontiers, tmp_path)


@pytest.mark.parametrize("frontier", [FULL, replace(FULL, oldest_date=None, unclear=True), replace(FULL, tables=())])
def test_everything_is_there_for_the_next_run(frontiers: Callable[[], Frontiers], frontier: Frontier) -> None:
    assert frontiers().last() is None
    frontiers().write(FULL)
    frontiers().write(frontier)
    assert frontiers().last() == frontier


def test_a_run_that_has_not_seen_the_others_is_refused(frontiers: Callable[[], Frontiers]) -> None:
    frontiers().write(FULL)
    slow, quick = frontiers(), frontiers()
    assert slow.last() == quick.last()
    quick.write(replace(FULL, tables=()))
    with pytest.raises(ConcurrentRunError):
        slow.write(FULL)
