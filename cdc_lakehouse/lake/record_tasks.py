"""Ranges of offsets read in Spark's tasks, by the client of the sensor and with its settings."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

import pyarrow as pa
from pyspark import AccumulatorParam
from pyspark.accumulators import Accumulator
from pyspark.sql import DataFrame, SparkSession

from cdc_lakehouse.decoders.segment_tasks import SegmentTaskError
from cdc_lakehouse.errors import CdcError
from cdc_lakehouse.lake.record_rows import COLUMNS, DATE, RecordRows
from cdc_lakehouse.sources.kafka import Client, Messages, OffsetRange, read_ranges


@dataclass
class ReadRange:
    """What was read of a range. `end` is the first offset that was not."""

    end: int
    records: int = 0
    bytes: int = 0
    dates: set[str] = field(default_factory=set[str])


ReadRanges = dict[OffsetRange, ReadRange]


class _Merged(AccumulatorParam[ReadRanges]):
    """A task that is run again finds the same again."""

    def zero(self, value: ReadRanges) -> ReadRanges:
        return {}

    def addInPlace(self, value1: ReadRanges, value2: ReadRanges) -> ReadRanges:  # noqa: N802 - PySpark's name
        return {**value1, **value2}


_MERGED: Final = _Merged()


def records_in_tasks(
    spark: SparkSession, client: Client, groups: Sequence[Sequence[OffsetRange]], rows: RecordRows
) -> tuple[DataFrame, Accumulator[ReadRanges]]:
    """The records of some ranges, a group to a task, and what was read of each: known once the frame is written."""
    read: Accumulator[ReadRanges] = spark.sparkContext.accumulator({}, _MERGED)

    def records(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                found = {each: ReadRange(each.end) for each in groups[number]}
                try:
                    for messages in read_ranges(client, groups[number]):
                        for part in rows.of(messages):
                            yield part
                            found[messages.range].dates.update(part.column(DATE).drop_null().unique().to_pylist())
                        _count(found[messages.range], messages)
                except CdcError as error:
                    raise SegmentTaskError(error) from None
                read.add(found)

    tasks = len(groups)
    return spark.range(0, tasks, 1, tasks).mapInArrow(records, COLUMNS), read


def _count(read: ReadRange, messages: Messages) -> None:
    read.records += len(messages.offsets)
    read.bytes += sum(messages.sizes)
    if read.bytes >= messages.range.max_bytes:
        read.end = messages.offsets[-1] + 1
