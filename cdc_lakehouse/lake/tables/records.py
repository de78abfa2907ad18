"""The `records` table: every message of a feed's topics, each once, unchanged from the broker.

A batch is one commit: the files that tasks have written, the offsets that have then landed (see `landed_offsets`), and
the batch's number and ranges in the snapshot's summary. It is committed on top of the state at the start of the run, so
only one of two runs lands the same ranges. Whatever ends a run, a range has landed completely, together with the
position after it, or not at all."""

from __future__ import annotations

import itertools
import json
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from pyiceberg.conversions import from_bytes
from pyiceberg.exceptions import CommitFailedException, TableAlreadyExistsError
from pyiceberg.expressions import AlwaysTrue
from pyiceberg.manifest import DataFile
from pyiceberg.table import Table
from pyspark.sql import DataFrame, SparkSession

from cdc_lakehouse.config import FeedConfig
from cdc_lakehouse.errors import CdcError, ConcurrentRunError
from cdc_lakehouse.lake.catalog import Lake
from cdc_lakehouse.lake.properties import FIRST_BATCH, OFFSETS, REMOVED_UPTO, of_batch
from cdc_lakehouse.lake.tables.landed_offsets import LandedBatch, LandedSegment, LandedState, records_table, state_of
from cdc_lakehouse.lake.tables.record_writer import (
    SCHEMA,
    SPEC,
    ReadGroup,
    ReadRange,
    RecordRows,
    RecordTable,
    RecordTask,
    run_tasks,
)
from cdc_lakehouse.sources.kafka import KafkaClient, split_ranges, useful_task_count
from cdc_lakehouse.sources.record_log import OffsetRange, Pending

_TRIES: Final = 3
_PROPERTIES: Final = {
    "format-version": "2",
    "write.parquet.compression-codec": "zstd",
    "write.parquet.compression-level": "1",
    # Values hardly ever repeat: building a dictionary costs time.
    "write.parquet.dict-size-bytes": str(64 << 10),
    # Minima and maxima of bytes exclude nothing.
    **{f"write.metadata.metrics.column.{column}": "none" for column in ("key", "value")},
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "20",
    # Every batch adds a manifest.
    "commit.manifest-merge.enabled": "true",
    "commit.manifest.min-count-to-merge": "10",
    # A conflict with another run that has landed something must be noticed.
    "commit.retry.num-retries": "0",
}


def records_frame(spark: SparkSession, feed: str) -> DataFrame:
    """Return all records of a feed."""
    return spark.read.format("iceberg").load(records_table(feed).sql)


def first_batch(lake: Lake, feed: str) -> int:
    """Return the first batch whose records are all kept; 0 when none were removed."""
    table = lake.load(records_table(feed))
    return 0 if table is None else int(table.properties.get(FIRST_BATCH, "0"))


def removed_upto(lake: Lake, feed: str) -> str:
    """Return the last feed date whose records were removed; empty when none were."""
    table = lake.load(records_table(feed))
    return "" if table is None else table.properties.get(REMOVED_UPTO, "")


def files_before(table: Table, batch: int) -> list[DataFile]:
    """Return the data files that hold only records of earlier batches."""
    field = table.schema().find_field("batch")

    def last(file: DataFile) -> int:
        bound = file.upper_bounds.get(field.field_id)
        return batch if bound is None else int(from_bytes(field.field_type, bound))

    return [task.file for task in table.scan().plan_files() if last(task.file) < batch]


def remove_before(table: Table, batch: int, files: Sequence[DataFile]) -> None:
    """Remove data files with records of batches before `batch`; these batches are then incomplete. Raises
    `ConcurrentRunError` when another run has changed the table."""
    dates = [table.properties.get(REMOVED_UPTO), *(file.partition[0] for file in files)]
    upto = max((date for date in dates if date is not None), default=None)
    try:
        with table.transaction() as transaction:
            with transaction.update_snapshot().overwrite() as overwrite:
                overwrite.delete_by_predicate(AlwaysTrue())  # Otherwise it reads no manifest.
                for file in files:
                    overwrite.delete_data_file(file)
            transaction.set_properties({FIRST_BATCH: str(batch), **({} if upto is None else {REMOVED_UPTO: upto})})
    except CommitFailedException as error:
        raise ConcurrentRunError("another run has written to `records`") from error


class RecordCommits:
    def __init__(self, lake: Lake, feed: str) -> None:
        self._lake = lake
        self._feed = feed
        self.identifier = records_table(feed)

    def load(self) -> Table | None:
        return self._lake.load(self.identifier)

    def create(self) -> Table:
        """Create the table. Raises `ConcurrentRunError` when another run has just created it."""
        self._lake.ensure_namespace(self.identifier.namespace)
        try:
            return self._lake.catalog.create_table(
                self.identifier.parts, SCHEMA, partition_spec=SPEC, properties=dict(_PROPERTIES)
            )
        except TableAlreadyExistsError:
            raise self.too_late() from None

    def commit(
        self,
        table: Table,
        before: LandedState,
        properties: Mapping[str, str],
        files: Sequence[DataFile],
        summary: Mapping[str, str],
    ) -> None:
        """Commit files, properties and summary together. Raises `ConcurrentRunError` when another run has landed
        something since `before`; the files are then deleted."""
        about = RecordTable.of(table, self._lake)
        for _ in range(_TRIES):
            try:
                with table.transaction() as transaction:
                    update = transaction.update_snapshot(snapshot_properties=dict(summary))
                    # Even without a file: the snapshot shows whether another run has landed something.
                    with update.merge_append() as append:
                        for file in files:
                            append.append_data_file(file)
                    transaction.set_properties(dict(properties))
                return
            except CommitFailedException:
                # It may have been maintenance, which lands nothing.
                table = table.refresh()
                if state_of(table) != before:
                    break
        about.delete(files)
        raise self.too_late()

    def too_late(self) -> ConcurrentRunError:
        return ConcurrentRunError(
            f"another run has landed what this one was to land in {self.identifier}",
            feed=self._feed,
        )


def offsets_summary(batch: LandedBatch) -> dict[str, str]:
    offsets: dict[str, dict[int, list[int]]] = {}
    for each in batch.segments:
        whole = offsets.setdefault(each.partition.topic, {}).setdefault(each.partition.number, [each.start, 0])
        whole[1] = each.end
    return {**of_batch(batch.number), OFFSETS: json.dumps(offsets)}


@dataclass(frozen=True, slots=True)
class Appended:
    """The batch that landed, and the faults that limited it: ranges with a fault end before it, the others are
    complete."""

    batch: LandedBatch
    faults: tuple[CdcError, ...] = ()


class Records:
    """Lands records of topics. `spark` is only called when there is work for several tasks."""

    def __init__(
        self, lake: Lake, feed: FeedConfig, spark: Callable[[], SparkSession], client: KafkaClient | None = None
    ) -> None:
        self._lake = lake
        self._feed = feed.name
        self._source = feed.kafka
        self._client = client or KafkaClient.of(feed.kafka)
        self._spark = spark
        self._commits = RecordCommits(lake, feed.name)
        self.identifier = self._commits.identifier

    def append(self, ranges: Sequence[OffsetRange], pending: Pending, batch: int) -> Appended:
        """Land ranges of the pending offsets as the batch with this number, which must be above all earlier ones. It
        may hold less than was asked for: see `OffsetRange` and `RangeReader`. When there is nothing to land, nothing is
        committed.

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
    """Separate what can land from the files of parts that follow an incomplete part: each part of a range is a
    group."""
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
