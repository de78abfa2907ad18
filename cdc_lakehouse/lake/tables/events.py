"""The `events` table: every row change of a feed, each segment's once, values as the source's text.

The commit that appends a batch carries the batch's number in its snapshot's summary, so that a run that follows a crash
can tell whether the batch is in.
"""

from __future__ import annotations

import datetime
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import functions as F

from cdc_lakehouse.changelog.positions import LOGICAL_BITS
from cdc_lakehouse.decoders import problems
from cdc_lakehouse.decoders.event_schema import EVENTS, SYNTHETIC, spark_columns
from cdc_lakehouse.decoders.files.registry import DECODERS
from cdc_lakehouse.decoders.files.segment_files import SegmentFiles
from cdc_lakehouse.decoders.problems import LISTED_PER_SEGMENT, PROBLEMS, RAW_LIMIT, Rejected
from cdc_lakehouse.lake.catalog import Lake, system_table
from cdc_lakehouse.lake.iceberg_java import IcebergJavaApi
from cdc_lakehouse.lake.names import quote
from cdc_lakehouse.lake.properties import BATCH
from cdc_lakehouse.lake.tables.segments import DECODED, MOVED_ROWS_PREFIX, Segment


@dataclass(frozen=True, slots=True)
class SegmentCounts:
    """What a segment gave: events by operation, and the range of their commit-ts."""

    events: int = 0
    inserts: int = 0
    updates: int = 0
    deletes: int = 0
    min_commit_ts: int | None = None
    max_commit_ts: int | None = None

    def __add__(self, other: SegmentCounts) -> SegmentCounts:
        lowest = [each for each in (self.min_commit_ts, other.min_commit_ts) if each is not None]
        highest = [each for each in (self.max_commit_ts, other.max_commit_ts) if each is not None]
        return SegmentCounts(
            self.events + other.events,
            self.inserts + other.inserts,
            self.updates + other.updates,
            self.deletes + other.deletes,
            min(lowest, default=None),
            max(highest, default=None),
        )


@dataclass(frozen=True)
class BatchCounts:
    """Of one batch or several, by segment, database and table: a range of a topic holds rows of many tables."""

    rows: Mapping[tuple[str, str, str], SegmentCounts]

    @property
    def by_segment(self) -> dict[str, SegmentCounts]:
        found: dict[str, SegmentCounts] = {}
        for (segment, _, _), counts in self.rows.items():
            found[segment] = found.get(segment, SegmentCounts()) + counts
        return found

    @property
    def by_table(self) -> dict[tuple[str, str], SegmentCounts]:
        """By database and table."""
        found: dict[tuple[str, str], SegmentCounts] = {}
        for (_, *name), counts in self.rows.items():
            found[name[0], name[1]] = found.get((name[0], name[1]), SegmentCounts()) + counts
        return found


def with_counts(
    segments: Iterable[Segment], counts: BatchCounts, rejected: Iterable[Rejected], decoded_at: datetime.datetime
) -> list[Segment]:
    """Segments as they are once they are decoded."""
    by_segment = counts.by_segment
    quarantined: Counter[str] = Counter()
    for each in rejected:
        quarantined[each.segment] += each.count
    return [
        replace(
            segment,
            state=DECODED,
            decoded_at=decoded_at,
            quarantined=quarantined[segment.segment],
            **asdict(by_segment.get(segment.segment, SegmentCounts())),
        )
        for segment in segments
    ]


_BRANCH: Final = "decode"
_REPLACED: Final = "cdc_replaced_segments"
_BYTES_PER_FILE: Final = 256 * 1024 * 1024
"""Of the source, for one data file of events."""

_PROPERTIES: Final = {
    "format-version": "3",
    "write.delete.mode": "merge-on-read",
    "write.merge.mode": "merge-on-read",
    # Tasks follow the sink's files, which are by table and date already: a shuffle of wide rows would buy nothing.
    "write.distribution-mode": "none",
    "write.spark.fanout.enabled": "true",
    # Measured: level 1 writes 15 % faster than the default and is hardly larger on JSON text.
    "write.parquet.compression-codec": "zstd",
    "write.parquet.compression-level": "1",
    # Minima and maxima of map keys and values cost time and can prune nothing.
    **{
        f"write.parquet.stats-enabled.column.{map_column}.{part}": "false"
        for map_column in ("before", "after")
        for part in ("key", "value")
    },
    "write.metadata.delete-after-commit.enabled": "true",
}
_ATTRIBUTES: Final = pa.schema([
    ("of_file", pa.string()),
    ("segment", pa.string()),
    ("of_database", pa.string()),
    ("of_table", pa.string()),
    ("table_version", pa.int64()),
    ("physical_partition", pa.int64()),
    ("feed_date", pa.string()),
])  # fmt: skip


class Events:
    def __init__(self, lake: Lake, feed: str, spark: SparkSession) -> None:
        self._lake = lake
        self._spark = spark
        self.identifier = system_table(feed, "events")

    def ensure(self) -> None:
        """Make the table; one of before `synthetic` gets that column."""
        table = self._lake.load(self.identifier)
        if table is not None:
            if SYNTHETIC not in table.schema().column_names:
                self._spark.sql(f"ALTER TABLE {self.identifier.sql} ADD COLUMN {SYNTHETIC} boolean")
            return
        self._lake.ensure_namespace(self.identifier.namespace)
        properties = ", ".join(f"'{key}'='{value}'" for key, value in _PROPERTIES.items())
        self._spark.sql(
            f"CREATE TABLE IF NOT EXISTS {self.identifier.sql} ({spark_columns(EVENTS)}) USING iceberg "
            f"PARTITIONED BY (feed_date) TBLPROPERTIES ({properties})"
        )

    def frame(self, snapshot: int | None = None) -> DataFrame:
        """All events, columns of the table and `_row_id`: as they are, or as they were in a snapshot."""
        reader = self._spark.read.format("iceberg")
        if snapshot is not None:
            reader = reader.option("versionAsOf", str(snapshot))
        frame = reader.load(self.identifier.sql).select("*", "_row_id")
        # Rows of before the column: their segments' names tell. A snapshot of then has no such column.
        told_by_name = F.col("segment").startswith(MOVED_ROWS_PREFIX)
        known = [F.col(SYNTHETIC)] if SYNTHETIC in frame.columns else []
        return frame.withColumn(SYNTHETIC, F.coalesce(*known, told_by_name))

    def snapshot_of(self, batch: int) -> tuple[int, int | None] | None:
        """Snapshot that appended a batch, and the one before it; None when the batch is not in."""
        for number, snapshot, parent in self._batches():
            if number <= batch:  # Numbers rise along a branch.
                return (snapshot, parent) if number == batch else None
        return None

    def newest_batch(self) -> int:
        """The batch that was appended last; 0 before the first."""
        return next((number for number, _, _ in self._batches()), 0)

    def _batches(self) -> Iterator[tuple[int, int, int | None]]:
        """Batch, snapshot and the snapshot before it, the newest first."""
        table = self._lake.load(self.identifier)
        snapshot = None if table is None else table.current_snapshot()
        # Along the parents: what stands on a branch that a crash left behind is not in.
        while table is not None and snapshot is not None:
            parent = snapshot.parent_snapshot_id
            found = None if snapshot.summary is None else snapshot.summary.additional_properties.get(BATCH)
            if found is not None:
                yield int(found), snapshot.snapshot_id, parent
            snapshot = None if parent is None else table.snapshot_by_id(parent)

    def append(self, decoded: DataFrame, batch: int, segments: Sequence[Segment], replacing: Sequence[str]) -> int:
        """Write a batch's good lines, in the place of the earlier events of the segments `replacing`.

        Readers see all of it at once. Gives how many lines were not good.
        """
        seen = Observation()
        good = decoded.observe(seen, F.count("problem").alias("bad")).where(F.col("problem").isNull())
        frame = _as_rows(good)
        files = math.ceil(sum(segment.size for segment in segments) / _BYTES_PER_FILE)
        tasks = max(files, self._spark.sparkContext.defaultParallelism)
        if tasks < len(segments):
            frame = frame.coalesce(tasks)
        if len({(segment.database, segment.table) for segment in segments}) > 1:
            frame = frame.sortWithinPartitions("schema_name", "table_name")
        self._commit(frame, batch, replacing)
        # Spark measures nothing where there is nothing to read.
        return int(seen.get["bad"]) if any(segment.size for segment in segments) else 0

    def replace_segments(self, events: DataFrame | None, batch: int, replacing: Sequence[str]) -> None:
        """Append events (columns of the table but `commit_time`; `synthetic` where they are) in the place of those that
        the segments `replacing` had; with None only these go. One commit."""
        self._commit(_as_rows(self.frame().limit(0) if events is None else events), batch, replacing)

    def _commit(self, frame: DataFrame, batch: int, replacing: Sequence[str]) -> None:
        if not replacing:
            frame.writeTo(self.identifier.sql).option(f"snapshot-property.{BATCH}", str(batch)).append()
            return
        api = IcebergJavaApi(self._spark)
        api.open_branch(self.identifier, _BRANCH)
        target = self.identifier.branch(_BRANCH)
        earlier = self._spark.createDataFrame(pa.table({"replaced": list(replacing)}))
        earlier.createOrReplaceTempView(_REPLACED)
        try:
            self._spark.sql(f"DELETE FROM {target} WHERE segment IN (SELECT replaced FROM {_REPLACED})")
        finally:
            self._spark.catalog.dropTempView(_REPLACED)
        frame.writeTo(target).option(f"snapshot-property.{BATCH}", str(batch)).append()
        api.publish(self.identifier, _BRANCH)

    def decode(self, files: SegmentFiles, segments: Mapping[str, Segment]) -> DataFrame:
        """The lines of some segments (by their paths in `files`) as events, good and bad, with what the segments' own
        paths say of them."""
        decoded = DECODERS[files.source.protocol](self._spark, files)
        rows = [
            (file, s.segment, s.database, s.table, s.table_version, s.physical_partition, s.feed_date)
            for file, path in decoded.segments.items()
            for s in [segments[path]]
        ]
        columns = [
            pa.array(column, field.type) for column, field in zip(zip(*rows, strict=True), _ATTRIBUTES, strict=True)
        ]
        attributes = F.broadcast(self._spark.createDataFrame(pa.Table.from_arrays(columns, schema=_ATTRIBUTES)))
        joined = decoded.events.join(attributes, F.col("file") == F.col("of_file"), "left")
        own = (F.col("schema_name") == F.col("of_database")) & (F.col("table_name") == F.col("of_table"))
        wrong = F.when(~F.coalesce(own, F.lit(False)), problems.WRONG_TABLE)
        return joined.withColumn("problem", F.coalesce("problem", wrong))

    def rejected(self, decoded: DataFrame) -> list[Rejected]:
        """The lines that are not good: the first of each segment, and one that counts those beyond."""
        bad = decoded.where(F.col("problem").isNotNull()).select(
            "segment", "of_database", "of_table", "line", "problem", "value", "before", "after"
        )
        bad = bad.persist()
        try:
            counts = bad.groupBy("segment", "of_database", "of_table").count().collect()
            # Decoders that give no bytes of a sound record: it is here because it is in the wrong place.
            whole = F.coalesce(F.col("value"), F.to_json(F.struct("before", "after")).cast("binary"))
            raw = F.substring(whole, 1, RAW_LIMIT).alias("raw")
            found: list[Rejected] = []
            for segment, database, table, count in sorted(counts):
                first = bad.where(F.col("segment") == segment).orderBy("line").limit(LISTED_PER_SEGMENT)
                rows = first.select("line", "problem", raw).collect()
                found += [
                    Rejected(segment, line, problem, PROBLEMS[problem], bytes(raw), database, table)
                    for line, problem, raw in rows
                ]
                if (more := count - len(rows)) > 0:
                    problem = rows[0]["problem"]
                    message = f"{PROBLEMS[problem]} ({more} further lines of the segment, not listed one by one)"
                    found.append(Rejected(segment, None, problem, message, None, database, table, more))
            return found
        finally:
            bad.unpersist()

    def counts(self, batch: int) -> BatchCounts:
        """What each segment of a batch gave, read back from the batch's own commit."""
        found = self.snapshot_of(batch)
        if found is None:
            return BatchCounts({})
        snapshot, parent = found
        reader = self._spark.read.format("iceberg")
        if parent is None:
            reader = reader.option("versionAsOf", str(snapshot))
        else:
            reader = reader.option("start-snapshot-id", str(parent)).option("end-snapshot-id", str(snapshot))

        def of(op: str) -> Any:
            return F.count_if(F.col("op") == op)

        rows = (
            reader.load(self.identifier.sql)
            .groupBy("segment", "schema_name", "table_name")
            .agg(F.count("*"), of("I"), of("U"), of("D"), F.min("commit_ts"), F.max("commit_ts"))
            .collect()
        )
        return BatchCounts({(row[0], row[1], row[2]): SegmentCounts(*row[3:]) for row in rows})


def _as_rows(events: DataFrame) -> DataFrame:
    if SYNTHETIC not in events.columns:
        events = events.withColumn(SYNTHETIC, F.lit(False))
    return events.select(*(_event_column(name) for name in EVENTS.names))


def _event_column(name: str) -> Any:
    if name == "commit_time":
        return F.timestamp_millis(F.shiftright("commit_ts", LOGICAL_BITS)).alias(name)
    return F.col(quote(name))
