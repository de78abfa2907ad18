"""Ranges of offsets read, and written as data files, where there is room for it: in Spark's tasks, or in this process
where one task would do."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
from pyiceberg.manifest import DataFile
from pyspark.sql import SparkSession

from cdc_lakehouse.errors import CdcError
from cdc_lakehouse.lake.tables.record_files import RecordFiles, RecordTable
from cdc_lakehouse.lake.tables.record_rows import RecordRows
from cdc_lakehouse.sources.kafka import Client, RangeReader
from cdc_lakehouse.sources.record_log import Messages, OffsetRange


@dataclass
class ReadRange:
    """What was read of a range. `end` is the first offset that was not."""

    range: OffsetRange
    end: int
    records: int = 0
    bytes: int = 0
    dates: set[str] = field(default_factory=set[str])


@dataclass
class ReadGroup:
    """What a task has read of its ranges, the files that it is in, and what went wrong."""

    ranges: list[ReadRange]
    files: list[DataFile]
    faults: list[CdcError]


@dataclass(frozen=True)
class RecordTask:
    """What all tasks of a batch have in common. `name` is the batch's own among all that write to the table."""

    client: Client
    rows: RecordRows
    table: RecordTable
    name: str

    def run(self, number: int, ranges: Sequence[OffsetRange]) -> ReadGroup:
        found = {each: ReadRange(each, each.start) for each in ranges}
        reader = RangeReader(self.client, ranges)
        files = RecordFiles(self.table, f"{self.name}-{number:05d}")
        try:
            for messages in reader.messages():
                _count(found[messages.range], messages)
                for date, rows in self.rows.of(messages):
                    files.add(date, rows)
                    if date is not None:
                        found[messages.range].dates.add(date)
            written = files.close()
        except BaseException:
            files.discard()
            raise
        for each, end in reader.ends.items():
            found[each].end = end
        return ReadGroup(list(found.values()), written, reader.faults)


def run_tasks(
    task: RecordTask, groups: Sequence[Sequence[OffsetRange]], spark: Callable[[], SparkSession]
) -> list[ReadGroup]:
    """A task for each group of ranges; Spark is started where there are several."""
    if len(groups) == 1:
        return [task.run(0, groups[0])]

    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                group = pickle.dumps(task.run(number, groups[number]))
                yield pa.RecordBatch.from_arrays([pa.array([group], pa.binary())], names=["read"])

    frame = spark().range(0, len(groups), 1, len(groups)).mapInArrow(run, "read binary")
    answers: list[Any] = frame.collect()
    return [pickle.loads(answer["read"]) for answer in answers]


def _count(read: ReadRange, messages: Messages) -> None:
    read.records += len(messages.offsets)
    read.bytes += messages.size
