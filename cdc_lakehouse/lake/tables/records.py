"""The `records` table: every message of a feed's topics, each once, as it was on the broker.

A batch is one commit: the files that tasks have written, the offsets that are then landed (see `landed_offsets`), and
the batch's number and ranges in the snapshot's summary. It goes on top of what the run began with, so of two runs that
land the same only one does. Whatever ends a run, a range is in whole with the position behind it, or not at all."""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pyiceberg.manifest import DataFile
from pyspark.sql import SparkSession

from cdc_lakehouse.config import FeedConfig
from cdc_lakehouse.errors import CdcError
from cdc_lakehouse.lake.catalog import Lake
from cdc_lakehouse.lake.tables.landed_offsets import (
    LandedBatch,
    LandedSegment,
    LandedState,
    state_of,
)
from cdc_lakehouse.lake.tables.record_commits import RecordCommits, offsets_summary
from cdc_lakehouse.lake.tables.record_files import RecordTable
from cdc_lakehouse.lake.tables.record_rows import RecordRows
from cdc_lakehouse.lake.tables.record_tasks import ReadGroup, ReadRange, RecordTask, run_tasks
from cdc_lakehouse.sources.kafka import Client, split_ranges, useful_task_count
from cdc_lakehouse.sources.record_log import OffsetRange, Pending


@dataclass(frozen=True, slots=True)
class Appended:
    """What landed, and what stood in the way of more: those ranges end before their fault, the others are whole."""

    batch: LandedBatch
    faults: tuple[CdcError, ...] = ()


class Records:
    """`spark` is asked for its session where there is work for several tasks."""

    def __init__(
        self, lake: Lake, feed: FeedConfig, spark: Callable[[], SparkSession], client: Client | None = None
    ) -> None:
        self._lake = lake
        self._feed = feed.name
        self._source = feed.kafka
        self._client = client or Client.of(feed.kafka)
        self._spark = spark
        self._commits = RecordCommits(lake, feed.name)
        self.identifier = self._commits.identifier

    def append(self, ranges: Sequence[OffsetRange], pending: Pending, batch: int) -> Appended:
        """Land ranges of what is pending as the batch with this number, which is above all before. It may hold less
        than was asked for: see `OffsetRange` and `RangeReader`. Where there is nothing to land nothing is committed.

        Raises `ConcurrentRunError` when another run has landed something meanwhile."""
        table = self._commits.load()
        state = state_of(table)
        self._check(pending, state, batch)
        if not ranges and state.after(pending, None) == state:
            return Appended(LandedBatch(batch, ()))
        table = table or self._commits.create()
        landed = self._read(RecordTable.of(table, self._lake), ranges, state, batch)
        now = LandedBatch(batch, landed.segments)
        after = state.after(pending, now if now.segments else None)
        if after != state:
            summary = offsets_summary(now) if now.segments else {}
            self._commits.commit(table, state, after.as_properties(), landed.files, summary)
        return Appended(now, landed.faults)

    def _check(self, pending: Pending, state: LandedState, batch: int) -> None:
        starts = ((partition, start) for partition, (start, _) in pending.offsets.items())
        if batch <= state.last.number or any((state.landed.end(partition) or 0) > start for partition, start in starts):
            raise self._commits.too_late()

    def _read(self, table: RecordTable, ranges: Sequence[OffsetRange], state: LandedState, batch: int) -> _Landed:
        if not ranges:
            return _Landed((), (), ())
        tasks = useful_task_count(ranges, state.landed)
        if tasks > 1:
            tasks = min(tasks, self._spark().sparkContext.defaultParallelism)
        rows = RecordRows(self._source.time_zone, self._source.date_separator, batch, table.arrow)
        task = RecordTask(self._client, rows, table, f"batch-{batch}-{uuid.uuid4()}")
        groups = run_tasks(task, split_ranges(ranges, state.landed, tasks), self._spark)
        landed, surplus = _without_surplus(groups)
        table.delete(surplus)
        return landed


@dataclass(frozen=True)
class _Landed:
    segments: tuple[LandedSegment, ...]
    files: tuple[DataFile, ...]
    faults: tuple[CdcError, ...]


def _without_surplus(groups: Sequence[ReadGroup]) -> tuple[_Landed, list[DataFile]]:
    """What can be landed of what was read, and the files of parts behind one that ended early: a part of a range is a
    group of its own."""
    segments: list[LandedSegment] = []
    surplus: set[int] = set()
    read = [(found, number) for number, group in enumerate(groups) for found in group.ranges]
    read.sort(key=lambda each: (each[0].range.partition, each[0].range.start))
    for _, parts in itertools.groupby(read, key=lambda each: each[0].range.partition):
        ended = False
        for found, number in parts:
            if ended:
                surplus.add(number)
            elif found.end > found.range.start:
                segments.append(_segment(found))
            ended = ended or found.end < found.range.end
    files = [file for number, group in enumerate(groups) if number not in surplus for file in group.files]
    faults = {str(fault): fault for group in groups for fault in group.faults}
    left = [file for number in surplus for file in groups[number].files]
    return _Landed(tuple(segments), tuple(files), tuple(faults.values())), left


def _segment(read: ReadRange) -> LandedSegment:
    whole, dates = read.range, tuple(sorted(read.dates))
    return LandedSegment(whole.segment, whole.partition, whole.start, read.end, read.records, read.bytes, dates)
