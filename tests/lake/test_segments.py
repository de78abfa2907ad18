"""The states that a segment goes through, as the next run finds them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdc_lakehouse.lake.catalog import Lake
from cdc_lakehouse.lake.tables.segments import Segments, index_gaps, totals
from tests.kit.lakes import lake_config
from tests.lake import LATER, segment

A, B, C = (segment(f"d/t/1/CDC00000{number}.json", file_index=number) for number in (1, 2, 3))


@pytest.fixture
def segments(tmp_path: Path) -> Callable[[], Segments]:
    return lambda: Segments(Lake(lake_config(tmp_path)), "f")


def test_a_new_feed_has_none(segments: Callable[[], Segments]) -> None:
    run = segments()
    assert (dict(run.rows), run.batch, run.undecoded()) == ({}, 0, {})


def test_every_field_is_there_for_the_next_run(segments: Callable[[], Segments]) -> None:
    full = segment(
        "d b/订'单/7/2026-06-01/CDC_12_000009.json", 4, "decoded",
        physical_partition=77, feed_date="2026-06-01", dispatcher="12", file_index=9, decoded_at=LATER,
        events=6, inserts=3, updates=2, deletes=1, quarantined=0, min_commit_ts=2**62, max_commit_ts=2**63 - 1,
        replaces_snapshot=2**63 - 1,
    )  # fmt: skip
    segments().land([full, A], {})
    assert segments().rows == {full.segment: full, A.segment: A}


def test_batches_that_are_not_decoded_come_in_order(segments: Callable[[], Segments]) -> None:
    run = segments()
    run.land([replace(B, batch=2)], {})
    run.land([replace(C, batch=3)], {})
    run.land([A], {})
    assert list(segments().undecoded().items()) == [(1, [A]), (2, [replace(B, batch=2)]), (3, [replace(C, batch=3)])]
    assert segments().batch == 3


def test_decoding_a_batch_leaves_the_others(segments: Callable[[], Segments]) -> None:
    run = segments()
    run.land([A, B], {})
    run.land([replace(C, batch=2)], {})
    done = [replace(each, state="decoded", decoded_at=LATER, events=1) for each in (A, B)]
    run.mark_decoded(1, done, {"cdc.batch": "1"})
    for seen in (run, segments()):
        assert seen.rows == {A.segment: done[0], B.segment: done[1], C.segment: replace(C, batch=2)}
        assert list(seen.undecoded()) == [2]


def test_a_segment_that_lands_again_is_one_row_in_its_new_batch(segments: Callable[[], Segments]) -> None:
    run = segments()
    run.land([A, B], {})
    run.mark_decoded(1, [replace(each, state="decoded") for each in (A, B)], {})
    again = replace(A, batch=2, etag="changed", replaces_snapshot=5)
    run.land([again, replace(C, batch=2)], {})
    for seen in (run, segments()):
        assert seen.rows[A.segment] == again
        assert len(seen.rows) == 3 and seen.undecoded() == {2: [again, replace(C, batch=2)]}


@given(st.sets(st.integers(1, 30), min_size=1))
def test_gaps_and_files_together_are_all_numbers_up_to_the_last(present: set[int]) -> None:
    rows = [segment(f"d/t/1/CDC{number:06}.json", file_index=number) for number in present]
    missing = index_gaps(rows).get("d/t/1", [])
    assert missing == sorted(missing)
    assert sorted([*missing, *present]) == [number + 1 for number in range(max(present))]


def test_each_directory_and_each_dispatcher_counts_for_itself() -> None:
    def file(path: str, index: int, dispatcher: str | None = None) -> object:
        return segment(f"{path}/{dispatcher}-{index}", file_index=index, dispatcher=dispatcher)

    rows = [
        file("d/t/1", 1), file("d/t/1", 2),
        file("d/t/2", 2),
        file("d/t/3/2026-06-01", 1, "8"), file("d/t/3/2026-06-01", 2, "9"), file("d/t/3/2026-06-01", 4, "9"),
    ]  # fmt: skip
    assert index_gaps(rows) == {"d/t/2": [1], "d/t/3/2026-06-01 (dispatcher 9)": [1, 3]}  # pyright: ignore[reportArgumentType]


def test_totals_take_what_is_not_counted_yet_as_nothing() -> None:
    rows = [A, replace(B, state="decoded", events=5, inserts=3, updates=1, deletes=1, quarantined=2)]
    assert totals(rows) == {"size": 20, "events": 5, "inserts": 3, "updates": 1, "deletes": 1, "quarantined": 2}
