"""The `records` table: every message of a feed's topics, each once, as it was on the broker.

A batch is written on a branch. One commit makes it what readers see, and with it the offsets that are landed (see
`landed_offsets`); it is refused when another run has landed something meanwhile. So whatever ends a run, a range of
offsets is in whole and the position behind it, or neither is."""

from __future__ import annotations

import itertools
import json
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from cdc_lakehouse.config import FeedConfig
from cdc_lakehouse.decoders.segment_tasks import errors_of_tasks
from cdc_lakehouse.errors import ConcurrentRunError
from cdc_lakehouse.lake.catalog import Lake
from cdc_lakehouse.lake.events import BATCH
from cdc_lakehouse.lake.landed_offsets import (
    LandedBatch,
    LandedSegment,
    advanced,
    as_properties,
    landed_offsets,
    last_batch,
    records_table,
)
from cdc_lakehouse.lake.record_rows import COLUMNS, RecordRows
from cdc_lakehouse.lake.record_tasks import ReadRanges, records_in_tasks
from cdc_lakehouse.lake.table_api import TableApi
from cdc_lakehouse.sources.kafka import Client, Landed, OffsetRange, Partition, Pending, split_ranges

OFFSETS: Final = "cdc.offsets"
"""In a snapshot's summary: the ranges of its batch, as {topic: {partition: [from, before]}}."""
_BRANCH: Final = "land-"
_PROPERTIES: Final = {
    "format-version": "3",
    "write.delete.mode": "merge-on-read",
    "write.distribution-mode": "none",
    "write.spark.fanout.enabled": "true",
    "write.parquet.compression-codec": "zstd",
    "write.parquet.compression-level": "1",
    # Minima and maxima of bytes cost time and can prune nothing.
    **{
        f"write.parquet.stats-enabled.column.{column}": "false"
        for column in ("key", "value", "headers.element.key", "headers.element.value")
    },
    "write.metadata.delete-after-commit.enabled": "true",
}


class Records:
    def __init__(self, lake: Lake, feed: FeedConfig, spark: SparkSession, client: Client | None = None) -> None:
        self._lake = lake
        self._feed = feed.name
        self._source = feed.kafka
        self._client = client or Client.of(feed.kafka)
        self._spark = spark
        self._api = TableApi(spark)
        self.identifier = records_table(feed.name)

    def ensure(self) -> None:
        if self._lake.load(self.identifier) is not None:
            return
        self._lake.ensure_namespace(self.identifier.namespace)
        properties = ", ".join(f"'{key}'='{value}'" for key, value in _PROPERTIES.items())
        self._spark.sql(
            f"CREATE TABLE IF NOT EXISTS {self.identifier.sql} ({COLUMNS}) USING iceberg "
            f"PARTITIONED BY (feed_date) TBLPROPERTIES ({properties})"
        )

    def frame(self, batch: int | None = None) -> DataFrame:
        """All records, or those of a batch: files are found by their statistics, so its snapshot may be gone."""
        records = self._spark.read.format("iceberg").load(self.identifier.sql)
        return records if batch is None else records.where(F.col("batch") == batch)

    def append(self, ranges: Sequence[OffsetRange], pending: Pending, batch: int) -> LandedBatch:
        """Land ranges of what is pending as the batch with this number, which is above all before. It may hold less
        than was asked for: see `OffsetRange`. Where there is nothing to land nothing is committed.

        Raises as `read_ranges` does, and `ConcurrentRunError` when another run has landed something meanwhile."""
        starts = {partition: start for partition, (start, _) in pending.offsets.items()}
        landed, last = landed_offsets(self._lake, self._feed), last_batch(self._lake, self._feed)
        known = as_properties(landed, last)
        if not ranges and landed.began and as_properties(advanced(landed, pending.ids, starts, ()), last) == known:
            return LandedBatch(batch, ())
        self.ensure()
        branch = self._open_branch()
        # What another run lands from here on makes the publication fail; what it landed before is looked at now.
        landed, last = landed_offsets(self._lake, self._feed), last_batch(self._lake, self._feed)
        self._check(starts, landed, batch > last.number)
        written = self._write(branch, ranges, landed, batch) if ranges else _Written((), (), as_planned=True)
        ends = starts | {segment.partition: segment.end for segment in written.segments}
        now = LandedBatch(batch, written.segments)
        self._api.publish(
            self.identifier,
            branch,
            properties=as_properties(advanced(landed, pending.ids, ends, now.segments), now if ranges else last),
            # Where a range ended early, the summary that the rows were written with says too much.
            marked=None if written.as_planned else _summary(batch, now.segments),
        )
        return now

    def _open_branch(self) -> str:
        """A branch of this run's own. Those of runs that ended before they published are thrown away."""
        table = self._lake.load(self.identifier)
        assert table is not None, "it was made"
        for name in table.metadata.refs:
            if name.startswith(_BRANCH):
                self._api.drop_branch(self.identifier, name)
        branch = f"{_BRANCH}{uuid.uuid4()}"
        self._api.open_branch(self.identifier, branch)
        return branch

    def _check(self, starts: Mapping[Partition, int], landed: Landed, is_next: bool) -> None:
        if is_next and all((landed.end(partition) or 0) <= start for partition, start in starts.items()):
            return
        raise ConcurrentRunError(
            f"another run has landed what this one was to land in {self.identifier}",
            feed=self._feed,
            advice="wait for it to end, then run again",
        )

    def _write(self, branch: str, ranges: Sequence[OffsetRange], landed: Landed, batch: int) -> _Written:
        target = self.identifier.branch(branch)
        groups = split_ranges(ranges, landed, self._spark.sparkContext.defaultParallelism)
        rows = RecordRows(self._source.time_zone, self._source.date_separator, batch)
        records, read = records_in_tasks(self._spark, self._client, groups, rows)
        writer = records.writeTo(target)
        for key, value in _summary(batch, ranges).items():
            writer = writer.option(f"snapshot-property.{key}", value)
        with errors_of_tasks():
            writer.append()
        written = _written(read.value)
        if written.surplus:
            surplus = self._spark.createDataFrame([(segment,) for segment in written.surplus], "surplus string")
            delete = F.broadcast(surplus).mergeInto(target, F.col("segment") == F.col("surplus"))
            delete.whenMatched().delete().merge()
        return written


@dataclass(frozen=True)
class _Written:
    """What is on a branch. `surplus` are segments behind one that ended early."""

    segments: tuple[LandedSegment, ...]
    surplus: tuple[str, ...]
    as_planned: bool


def _written(read: ReadRanges) -> _Written:
    segments: list[LandedSegment] = []
    surplus: list[str] = []
    as_planned = True
    in_order = sorted(read.items(), key=lambda item: (item[0].partition, item[0].start))
    for partition, parts in itertools.groupby(in_order, key=lambda item: item[0].partition):
        ended = False
        for part, found in parts:
            if ended:
                surplus.append(part.segment)
                continue
            dates = tuple(sorted(found.dates))
            segments.append(
                LandedSegment(part.segment, partition, part.start, found.end, found.records, found.bytes, dates)
            )
            ended = found.end < part.end
        as_planned &= not ended
    return _Written(tuple(segments), tuple(surplus), as_planned)


def _summary(batch: int, ranges: Iterable[OffsetRange | LandedSegment]) -> dict[str, str]:
    offsets: dict[str, dict[int, list[int]]] = {}
    for each in sorted(ranges, key=lambda each: (each.partition, each.start)):
        whole = offsets.setdefault(each.partition.topic, {}).setdefault(each.partition.number, [each.start, 0])
        whole[1] = each.end
    return {BATCH: str(batch), OFFSETS: json.dumps(offsets)}
