"""Which records are read to decode batches: theirs, and as many before as the format needs."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from cdc_lakehouse.lake.tables.record_files import PartitionRecords
from cdc_lakehouse.lake.tables.segments import OFFSETS
from cdc_lakehouse.pipeline.topics import wanted_records
from cdc_lakehouse.sources.record_log import LogPartition, OffsetRange

ONE, TWO = LogPartition("t", 0), LogPartition("t", 1)
LANDED = [(ONE, 0, 1), (ONE, 100, 2), (ONE, 150, 4), (TWO, 7, 2), (TWO, 900, 4)]
"""Partition, first offset, batch."""


def wanted(before: int, batches: list[int]) -> list[PartitionRecords]:
    segments = pa.table(
        {
            "segment": [OffsetRange(partition, start, start + 1, 0).segment for partition, start, _ in LANDED],
            "record_batch": [batch for *_, batch in LANDED],
            "size": [10] * len(LANDED),
            "kind": [OFFSETS] * len(LANDED),
        }
    )
    run: Any = SimpleNamespace(segments=SimpleNamespace(rows=segments))
    message_format: Any = SimpleNamespace(messages_before=lambda partitions: before // partitions)
    return sorted(wanted_records(run, message_format, batches), key=lambda each: (each.batch, each.partition))


@pytest.mark.parametrize(
    ("before", "batches", "expected"),
    [
        (0, [1, 4], [(ONE, 1, 0, 0, 1), (ONE, 4, 150, 150, 4), (TWO, 4, 900, 900, 4)]),
        (40, [4], [(ONE, 4, 150, 130, 2), (TWO, 4, 900, 880, 2)]),
        (200, [2, 4], [(ONE, 2, 100, 0, 1), (TWO, 2, 7, -93, 2), (ONE, 4, 150, 50, 1), (TWO, 4, 900, 800, 2)]),
    ],
)
def test_records_with_those_before(before: int, batches: list[int], expected: list[tuple[Any, ...]]) -> None:
    assert wanted(before, batches) == [PartitionRecords(*each, 10) for each in expected]
