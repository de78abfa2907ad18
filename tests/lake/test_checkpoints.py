"""A published cut is one commit, and the newest is read without its rows."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cdc_lakehouse.lake.tables.checkpoints import Checkpoints, Cut, CutRow
from tests.kit.other_writer import rewrite
from tests.lake import LATER, NOON, runs, stored

Runs = Callable[[], Checkpoints]


@pytest.fixture
def checkpoints(tmp_path: Path) -> Runs:
    return runs(Checkpoints, tmp_path)


def row(checkpoint_ts: int, table: str, rows: int = 1) -> CutRow:
    return CutRow(checkpoint_ts, "d", table, 2**62, rows, NOON)


def by_table(rows: list[CutRow]) -> list[CutRow]:
    return sorted(rows, key=lambda row: row.table)


def test_before_the_first_cut_nothing_is_published(checkpoints: Runs) -> None:
    cut = checkpoints().last()
    assert (cut.checkpoint_ts, cut.batch, cut.versions, cut.held_incarnations) == (0, 0, 0, frozenset())
    assert checkpoints().rows(0) == []


BATCHES = st.integers(0, 2**40)
HELD = st.lists(st.tuples(st.text(), st.text()), max_size=3).map(tuple)


@settings(max_examples=10, deadline=None)
@given(cut=st.builds(Cut, st.integers(1, 2**63 - 1), BATCHES, BATCHES, st.text(max_size=12), HELD))
def test_the_newest_cut_is_in_the_snapshot_as_it_was_published(
    tmp_path_factory: pytest.TempPathFactory, cut: Cut
) -> None:
    checkpoints = runs(Checkpoints, tmp_path_factory.mktemp("cut"))
    checkpoints().publish(cut, [])
    assert checkpoints().last() == cut


def test_the_newest_cut_needs_no_data_file(checkpoints: Runs, tmp_path: Path) -> None:
    cut = Cut(10, 1, 2, "s", (("d.t#1", "it's held"),))
    checkpoints().publish(cut, [row(10, "a")])
    files = list(tmp_path.rglob("*.parquet"))
    assert files
    for file in files:
        file.unlink()
    assert checkpoints().last() == cut
    with pytest.raises(FileNotFoundError):
        checkpoints().rows(10)


def test_newest_cut_is_found_after_another_writers_rewrite(checkpoints: Runs, tmp_path: Path) -> None:
    cut = Cut(20, 3, 2, "s", (("d.t#1", "it's held"),))
    checkpoints().publish(Cut(10), [row(10, "a")])
    checkpoints().publish(cut, [row(20, "a")])
    rewrite(stored(tmp_path, "checkpoints"))
    assert len(stored(tmp_path, "checkpoints").snapshots()) == 1
    assert checkpoints().last() == cut
    assert checkpoints().published() == [10, 20]
    checkpoints().publish(replace(cut, held=()), [row(20, "a", 5), row(20, "t")])
    assert by_table(checkpoints().rows(20)) == [row(20, "a", 5), row(20, "t")]


def test_earlier_cuts_stay(checkpoints: Runs) -> None:
    run = checkpoints()
    run.publish(Cut(10), [row(10, "a"), row(10, "b")])
    empty = CutRow(20, "d", "t", None, 0, LATER)  # A table that never had a row has no snapshot.
    run.publish(Cut(20), [row(20, "a", 5), empty])
    for seen in (run, checkpoints()):
        assert seen.last().checkpoint_ts == 20
        assert by_table(seen.rows(10)) == [row(10, "a"), row(10, "b")]
        assert by_table(seen.rows(20)) == [row(20, "a", 5), empty]


def test_a_cut_at_the_same_checkpoint_takes_the_place_of_the_earlier(checkpoints: Runs) -> None:
    checkpoints().publish(Cut(10), [row(10, "a")])
    checkpoints().publish(Cut(20, batch=1, held=(("x", "y"),)), [row(20, "a")])
    checkpoints().publish(Cut(20, batch=2), [row(20, "a", 7), row(20, "b", 8)])
    assert checkpoints().last() == Cut(20, batch=2)
    assert by_table(checkpoints().rows(20)) == [row(20, "a", 7), row(20, "b", 8)]
    assert checkpoints().rows(10) == [row(10, "a")]


def test_a_cut_is_the_last_commit_of_its_table(checkpoints: Runs, tmp_path: Path) -> None:
    """Readers of the table by its current snapshot never see a cut half replaced."""
    checkpoints().publish(Cut(10), [row(10, "a"), row(10, "b")])
    checkpoints().publish(Cut(10, batch=1), [row(10, "a", 2)])
    assert len(stored(tmp_path, "checkpoints").metadata.metadata_log) == 2  # Made, first cut, second cut.


def test_old_cuts_are_forgotten_but_for_the_newest_and_a_held_tables_last(checkpoints: Runs) -> None:
    def at(hours: int) -> datetime.datetime:
        return NOON + datetime.timedelta(hours=hours)

    def publish(ts: int, *rows: CutRow) -> None:
        checkpoints().publish(Cut(ts, batch=ts, settings="s", held=(("h", "why"),)), rows)

    publish(10, CutRow(10, "d", "t", 1, 5, at(0)), CutRow(10, "d", "held", 2, 5, at(0)))
    publish(20, CutRow(20, "d", "t", 3, 5, at(1)))
    publish(30, CutRow(30, "d", "t", 4, 6, at(2)))
    now = checkpoints()
    assert now.named_snapshots(at(1)) == {2, 3, 4}
    assert now.outdated(at(1)) == 1
    last = now.last()
    assert now.forget(at(9)) == 2
    now = checkpoints()
    assert now.last() == last
    assert [[row.snapshot_id for row in now.rows(ts)] for ts in (10, 20, 30)] == [[2], [], [4]]
    assert not now.show_instead("d", "t", {3: 9})
    assert now.show_instead("d", "t", {4: 9})
    now = checkpoints()
    assert now.last() == last
    assert now.rows(30) == [CutRow(30, "d", "t", 9, 6, at(2))]
    assert now.forget(at(9)) == 0
