"""Which offsets a run takes and how its tasks share them, over generated topics."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdc_lakehouse.sources.kafka import choose_ranges, split_ranges, useful_task_count
from cdc_lakehouse.sources.kafka import ranges as ranges_module
from cdc_lakehouse.sources.record_log import LandedOffsets, LandedTopic, LogPartition, OffsetRange

Offsets = Mapping[LogPartition, tuple[int, int]]
TOPICS = ("a", "b")
GREAT = 10**12

partitions = st.builds(LogPartition, st.sampled_from(TOPICS), st.integers(0, 3))
spans = st.tuples(st.integers(0, 10**6), st.integers(0, 500) | st.integers(0, 10**6)).map(lambda p: (p[0], sum(p)))
offsets = st.dictionaries(partitions, spans, max_size=8)
sizes = st.fixed_dictionaries({topic: st.none() | st.floats(0, 2000) for topic in TOPICS})
limits = st.integers(1, 2000) | st.integers(1, 10**7)


def landed(record_bytes: Mapping[str, float | None]) -> LandedOffsets:
    return LandedOffsets({topic: LandedTopic("", {}, size) for topic, size in record_bytes.items()}, began=True)


def count(ranges: tuple[OffsetRange, ...]) -> int:
    return sum(map(len, ranges))


@given(offsets, sizes, limits, limits)
def test_a_run_begins_where_it_must_and_takes_no_more_than_it_may(
    offsets: Offsets, sizes: dict[str, float | None], max_records: int, max_bytes: int
) -> None:
    chosen = choose_ranges(offsets, landed(sizes), max_records, max_bytes)
    assert len({each.partition for each in chosen}) == len(chosen)
    for each in chosen:
        start, end = offsets[each.partition]
        assert each.start == start < each.end <= end
        assert each.max_bytes >= 1
    assert count(chosen) <= max(max_records, len(chosen))
    assert sum(each.max_bytes for each in chosen) <= max_bytes + len(chosen)
    known = {topic: ranges_module._UNKNOWN_SIZE if size is None else max(1, size) for topic, size in sizes.items()}
    assert sum(len(each) * known[each.partition.topic] for each in chosen if len(each) > 1) <= max_bytes


@given(offsets, sizes, limits, limits)
def test_no_partition_with_something_new_is_left_out(
    offsets: Offsets, sizes: dict[str, float | None], max_records: int, max_bytes: int
) -> None:
    chosen = choose_ranges(offsets, landed(sizes), max_records, max_bytes)
    assert [each.partition for each in chosen] == sorted(p for p, (start, end) in offsets.items() if end > start)


@given(offsets, st.integers(1, 10**7))
def test_records_are_shared_fairly_and_none_is_left_that_was_free(offsets: Offsets, max_records: int) -> None:
    taken = {each.partition: len(each) for each in choose_ranges(offsets, landed({}), max_records, GREAT * 10**6)}
    needs = {partition: end - start for partition, (start, end) in offsets.items()}
    assert sum(taken.values()) == min(max(max_records, len(taken)), sum(needs.values()))
    for partition, need in needs.items():
        if taken.get(partition, 0) < need:
            assert all(other <= taken.get(partition, 0) + 1 for other in taken.values())


@given(offsets, sizes.filter(lambda sizes: None not in sizes.values()), st.integers(1, 10**8))
def test_bytes_are_used_up_but_for_parts_of_records(offsets: Offsets, sizes: dict[str, float], max_bytes: int) -> None:
    known = {topic: max(1.0, sizes[topic]) for topic in TOPICS}
    chosen = choose_ranges(offsets, landed(sizes), GREAT, max_bytes)
    taken = {each.partition: len(each) for each in chosen}
    if any(taken.get(partition, 0) < end - start for partition, (start, end) in offsets.items()):
        used = sum(number * known[partition.topic] for partition, number in taken.items())
        assert used > max_bytes - sum(known[partition.topic] + 1 for partition in offsets)


@given(offsets, sizes, st.integers(1, 8), st.integers(1, 1000))
def test_tasks_share_the_ranges_whole(
    offsets: Offsets, sizes: dict[str, float | None], tasks: int, worth_a_task: int
) -> None:
    chosen = choose_ranges(offsets, landed(sizes), GREAT, GREAT * 10**6)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ranges_module, "_WORTH_A_TASK", worth_a_task)
        groups = split_ranges(chosen, landed(sizes), tasks)
    assert len(groups) <= 2 * tasks and all(groups)
    wholes = {each.partition: each for each in chosen}
    for group in groups:
        assert len(group) == 1 or all(part == wholes[part.partition] for part in group), "a part stands alone"
    for whole in chosen:
        parts = sorted(
            (part for group in groups for part in group if part.partition == whole.partition),
            key=lambda part: part.start,
        )
        assert [part.start for part in parts] == [whole.start, *(part.end for part in parts[:-1])]
        assert parts[-1].end == whole.end
        assert len({part.segment for part in parts}) == len(parts)
        if len(parts) > 1:
            assert sizes[whole.partition.topic] is not None
            assert sum(part.max_bytes for part in parts) >= whole.max_bytes
        else:
            assert parts == [whole]


def test_a_large_partition_is_cut_for_all_tasks() -> None:
    whole = OffsetRange(LogPartition("a", 0), 1000, 2_001_000, 10**9)
    groups = split_ranges([whole], landed({"a": 250.0}), 4)
    assert [(part.start, part.end) for (part,) in groups] == [
        (1000, 501_000),
        (501_000, 1_001_000),
        (1_001_000, 1_501_000),
        (1_501_000, 2_001_000),
    ]


def test_large_records_are_worth_a_task() -> None:
    whole = OffsetRange(LogPartition("a", 0), 0, 1000, 10**9)
    assert (useful_task_count([whole], landed({"a": 250.0})), useful_task_count([whole], landed({"a": 400_000.0}))) == (
        1,
        4,
    )
    groups = split_ranges([whole], landed({"a": 400_000.0}), 3)
    assert [len(part) for (part,) in groups] == [333, 333, 334]


def test_small_partitions_are_one_task() -> None:
    small = [OffsetRange(LogPartition("a", number), 0, 100, 1000) for number in range(50)]
    (group,) = split_ranges(small, landed({"a": 250.0}), 4)
    assert sorted(group, key=lambda part: part.partition) == small


def test_names_of_segments_are_in_the_order_of_offsets() -> None:
    starts = [0, 9, 10, 99, 10**6, 2**62]
    names = [OffsetRange(LogPartition("a.b-c_d", 12), start, start + 1, 1).segment for start in starts]
    assert names == sorted(names)
    assert names[1] == "a.b-c_d/12/00000000000000000009"
