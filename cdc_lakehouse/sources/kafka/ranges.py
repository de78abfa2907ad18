"""The offsets that one run reads, and their distribution over tasks: pure functions.

A run is limited by records and by bytes. The size of records is known from the last batch of their topic; where it
turns out to be different, a range ends earlier than planned.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Final

from cdc_lakehouse.sources.record_log import LandedOffsets, LogPartition, OffsetRange

_UNKNOWN_SIZE: Final = 1024.0
"""The assumed bytes of a record, for a topic of which none was read."""
_USUAL_SIZE: Final = 1024
"""The bytes up to which the time depends on the number of records, not on their size."""
_WORTH_A_TASK: Final = 100_000
"""Ranges with fewer records are not cut further: starting a client in a task costs about as much."""
_SLACK: Final = 2
"""The factor by which a part of a range may be larger than estimated. Parts after one that ends early are read in vain.
"""


def choose_ranges(
    offsets: Mapping[LogPartition, tuple[int, int]], landed: LandedOffsets, max_records: int, max_bytes: int
) -> tuple[OffsetRange, ...]:
    """Choose the ranges to read from partitions with (from, before) offsets: at most `max_records` offsets, and about
    `max_bytes` bytes of keys and values.

    What a partition does not need is shared by the others. Each partition with new offsets gets at least one offset,
    whatever the limits are, so that none waits forever.
    """
    left = {partition: end - start for partition, (start, end) in offsets.items() if end > start}
    sizes = {partition: _size(landed, partition.topic) for partition in left}
    by_records = _share(left, max(max_records, len(left)))
    needs = {partition: math.ceil(count * sizes[partition]) for partition, count in by_records.items()}
    by_bytes = _share(needs, max_bytes)
    taken = {
        partition: max(1, min(count, int(by_bytes[partition] / sizes[partition])))
        for partition, count in by_records.items()
    }
    reckoned = sum(count * sizes[partition] for partition, count in taken.items())
    return tuple(
        OffsetRange(
            partition,
            offsets[partition][0],
            offsets[partition][0] + count,
            max(1, int(max_bytes * count * sizes[partition] / reckoned)),
        )
        for partition, count in sorted(taken.items())
    )


def _size(landed: LandedOffsets, topic: str) -> float:
    known = landed.record_bytes(topic)
    return _UNKNOWN_SIZE if known is None else max(1.0, known)


def _share(needs: Mapping[LogPartition, int], total: int) -> dict[LogPartition, int]:
    """Divide a total as equally as the needs allow: a partition that needs less than its share leaves the rest to the
    others."""
    shares: dict[LogPartition, int] = {}
    for position, partition in enumerate(sorted(needs, key=lambda partition: (needs[partition], partition))):
        shares[partition] = min(needs[partition], total // (len(needs) - position))
        total -= shares[partition]
    return shares


def useful_task_count(ranges: Sequence[OffsetRange], landed: LandedOffsets) -> int:
    """Return the maximum number of tasks that have enough to do: at least 1."""
    return max(1, math.ceil(sum(_cost(part, landed) for part in ranges) / _WORTH_A_TASK))


def split_ranges(
    ranges: Sequence[OffsetRange], landed: LandedOffsets, tasks: int
) -> tuple[tuple[OffsetRange, ...], ...]:
    """Distribute the ranges over groups, for about `tasks` tasks with about equal work.

    Large ranges are cut, and each part is a group of its own; but not where the size of records is not known: a part
    might have to end early, and what is behind would be read twice."""
    costs = {part: _cost(part, landed) for part in ranges}
    share = max(_WORTH_A_TASK, math.ceil(sum(costs.values()) / tasks))
    parts: list[OffsetRange] = []
    whole: list[OffsetRange] = []
    for part in ranges:
        count = min(round(costs[part] / share), len(part))
        if count > 1 and landed.record_bytes(part.partition.topic) is not None:
            parts += _parts(part, count)
        else:
            whole.append(part)
    groups: list[list[OffsetRange]] = [[] for _ in range(math.ceil(sum(map(costs.__getitem__, whole)) / share))]
    for part in sorted(whole, key=costs.__getitem__, reverse=True):
        min(groups, key=lambda group: sum(map(costs.__getitem__, group))).append(part)
    return (*((part,) for part in parts), *(tuple(group) for group in groups if group))


def _cost(part: OffsetRange, landed: LandedOffsets) -> float:
    """Return the cost of a range, in records of a usual size: larger records take longer."""
    return len(part) * max(1.0, (landed.record_bytes(part.partition.topic) or 0) / _USUAL_SIZE)


def _parts(whole: OffsetRange, count: int) -> list[OffsetRange]:
    ends = [whole.start + len(whole) * number // count for number in range(count + 1)]
    limit = _SLACK * math.ceil(whole.max_bytes / count)
    return [OffsetRange(whole.partition, start, end, limit) for start, end in itertools.pairwise(ends)]
