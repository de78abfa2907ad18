"""The states that a segment goes through, as the next run finds them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdc_lakehouse.changelog.schema import TableName
from cdc_lakehouse.lake.tables.segments import (
    Appended,
    Segment,
    Segments,
    Totals,
    applied_content,
    as_rows,
    as_segments,
    contents_of,
    has_other_content,
    index_gaps,
    may_hold,
    replaced_contents,
    replayed_segment,
    table_versions,
    totals,
)
from tests.lake import LATER, NOON, runs, segment

Runs = Callable[[], Segments]

A, B, C = (segment(f"d/t/1/CDC00000{number}.json", file_index=number) for number in (1, 2, 3))


def by_name(segments: Segments) -> dict[str, Segment]:
    return {row.segment: row for row in as_segments(segments.rows)}


@pytest.fixture
def segments(tmp_path: Path) -> Runs:
    return runs(Segments, tmp_path)


def test_a_new_feed_has_none(segments: Runs) -> None:
    run = segments()
    assert (run.rows.num_rows, run.batch, run.undecoded("file"), run.etags(["a"])) == (0, 0, {}, [None])


def test_every_field_is_there_for_the_next_run(segments: Runs) -> None:
    full = segment(
        "d b/订'单/7/2026-06-01/CDC_12_000009.json", 4, "decoded",
        physical_partition=77, feed_date="2026-06-01", dispatcher="12", file_index=9, decoded_at=LATER,
        events=6, inserts=3, updates=2, deletes=1, quarantined=0, min_commit_ts=2**62, max_commit_ts=2**63 - 1,
        replaces='[[3, 9223372036854775807, "e"]]',
    )  # fmt: skip
    segments().land([full, A])
    assert as_segments(segments().rows) == [full, A]


def test_batches_that_are_not_decoded_come_in_order(segments: Runs) -> None:
    run, second, third = segments(), replace(B, batch=2), replace(C, batch=3)
    for landed in (second, third, A):
        run.land([landed])
    assert list(segments().undecoded("file").items()) == [(1, [A]), (2, [second]), (3, [third])]
    assert segments().batch == 3


def test_decoding_a_batch_leaves_the_others(segments: Runs) -> None:
    run = segments()
    run.land([A, B])
    run.land([replace(C, batch=2)])
    done = [replace(each, state="decoded", decoded_at=LATER, events=1) for each in (A, B)]
    run.mark_decoded(done)
    for seen in (run, segments()):
        assert by_name(seen) == {A.segment: done[0], B.segment: done[1], C.segment: replace(C, batch=2)}
        assert list(seen.undecoded("file")) == [2]


def test_a_segment_that_lands_again_is_one_row_in_its_new_batch(segments: Runs) -> None:
    run = segments()
    run.land([A, B])
    run.mark_decoded([replace(each, state="decoded") for each in (A, B)])
    again = replace(A, batch=2, etag="changed", replaces='[[1, 5, "e"]]')
    run.land([again, replace(C, batch=2)])
    for seen in (run, segments()):
        assert seen.find([A.segment, "d/t/1/another"]) == {A.segment: again}
        assert seen.rows.num_rows == 3 and seen.undecoded("file") == {2: [again, replace(C, batch=2)]}


@given(st.sets(st.integers(1, 30), min_size=1))
def test_gaps_and_files_together_are_all_numbers_up_to_the_last(present: set[int]) -> None:
    rows = [segment(f"d/t/1/CDC{number:06}.json", file_index=number) for number in present]
    missing = [number for gap in index_gaps(as_rows(rows)) for number in gap.missing]
    assert missing == sorted(missing)
    assert sorted([*missing, *present]) == [number + 1 for number in range(max(present))]


def test_each_directory_and_each_dispatcher_counts_for_itself() -> None:
    def file(path: str, index: int, dispatcher: str | None = None) -> Segment:
        return segment(f"{path}/{dispatcher}-{index}", file_index=index, dispatcher=dispatcher)

    rows = [
        file("d/t/1", 1), file("d/t/1", 2),
        file("d/t/2", 2),
        file("d/t/3/2026-06-01", 1, "8"), file("d/t/3/2026-06-01", 2, "9"), file("d/t/3/2026-06-01", 4, "9"),
    ]  # fmt: skip
    gaps = index_gaps(as_rows(rows))
    assert {str(gap): gap.missing for gap in gaps} == {"d/t/2": (1,), "d/t/3/2026-06-01 (dispatcher 9)": (1, 3)}
    assert [(gap.table, gap.table_version) for gap in gaps] == [("t", 2), ("t", 3)]


def test_totals_take_what_is_not_counted_yet_as_nothing() -> None:
    rows = [A, replace(B, state="decoded", events=5, inserts=3, updates=1, deletes=1, quarantined=2)]
    assert totals(as_rows(rows)) == Totals(2, 20, 5, 3, 1, 1, 2, 0, None, None)


def test_contents_are_found_by_the_batch_that_a_table_has_applied() -> None:
    decoded = replace(A, batch=3, state="decoded")
    twice = decoded
    for batch, snapshot in ((5, 70), (9, 80)):
        twice = replayed_segment(replace(twice, state="decoded"), batch, Appended(batch - 1, {}, snapshot), NOON)
    assert contents_of(twice.replaces) == [(3, 70), (5, 80)]
    assert [applied_content(twice, batch) for batch in (2, 3, 4, 5, 8)] == [None, 70, 70, 80, 80]
    # What landed and is in no commit has left nothing; of a commit that is not marked it is not known who applied it.
    assert replaced_contents(replace(twice, state="landed"), Appended(8, {7: ""}, 90)) == twice.replaces
    assert contents_of(replaced_contents(twice, Appended(9, {9: ""}, 90))) == [(3, 70), (5, 80), (9, 90)]
    assert replaced_contents(A, Appended()) == "[]"


def test_other_content_of_a_file_is_known_however_often_it_lands() -> None:
    again = replace(A, batch=1, state="decoded")
    for batch in range(2, 20):
        again = replayed_segment(replace(again, state="decoded"), batch, Appended(batch - 1, {}, 100 + batch), NOON)
        assert not has_other_content(again)
    again = replace(again, etag="other")
    for batch in range(20, 40):
        assert has_other_content(again) and not has_other_content(replace(again, kind="dump"))
        again = replayed_segment(replace(again, state="decoded"), batch, Appended(batch - 1, {}, 100 + batch), NOON)


def test_the_oldest_of_many_contents_are_not_kept() -> None:
    again = replace(A, batch=1, state="decoded")
    for batch in range(2, 20):
        again = replayed_segment(replace(again, state="decoded"), batch, Appended(batch - 1, {}, 100 + batch), NOON)
    assert len(contents_of(again.replaces)) == 8
    assert [applied_content(again, batch) for batch in (0, 1, 11, 12, 18)] == [None, 0, 0, 113, 119]


def test_a_condition_on_tables_holds_for_what_can_be_of_any_table(segments: Runs) -> None:
    run = segments()
    offsets = Segment(segment="x/0/1", kind="offsets", size=1, batch=1, state="landed", landed_at=NOON, record_batch=1)
    other = segment("d/u/1/CDC000001.json")
    run.land([A, other, offsets])
    assert run.select(may_hold([TableName("d", "t")])) == [A, offsets]
    assert run.select(may_hold([])) == [offsets]


def test_each_table_version_that_has_files_is_there_once() -> None:
    rows = [segment(f"d/t/{version}/2026-06-0{day}/CDC1", file_index=1) for version in (1, 2) for day in (2, 1)]
    versions = [("d/t/1/2026-06-01", TableName("d", "t"), 1), ("d/t/2/2026-06-01", TableName("d", "t"), 2)]
    assert table_versions(as_rows(rows)) == versions
    assert table_versions(as_rows([])) == []
