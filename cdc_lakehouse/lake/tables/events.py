"""The `events` table: every row change of a feed, each segment's once, with values as the source's text.

Tasks write its data files (`event_files`); a batch is one commit. The snapshot's summary holds the batch's number, so
that a run after a crash can tell whether the batch was committed.
"""

from __future__ import annotations

import datetime
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot, ancestors_of
from pyiceberg.types import MapType
from pyiceberg.utils.concurrent import ExecutorFactory
from pyroaring import BitMap64
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import MapType as SparkMap

from cdc_lakehouse.decoders.event_schema import EVENTS, NEW_EVENTS, SYNTHETIC, spark_columns
from cdc_lakehouse.decoders.problems import Rejected
from cdc_lakehouse.errors import TransientError
from cdc_lakehouse.lake.catalog import Lake, system_table
from cdc_lakehouse.lake.data_files import (
    POSITION,
    StoredFile,
    column,
    live_files,
    may_contain,
    read_rows,
)
from cdc_lakehouse.lake.iceberg_java import IcebergJavaApi
from cdc_lakehouse.lake.properties import BATCH, SETTINGS, of_batch, summary_of
from cdc_lakehouse.lake.row_deletes import delete_rows
from cdc_lakehouse.lake.table_operations import Add, Drop, Move
from cdc_lakehouse.lake.tables.event_files import WRITTEN, EventReader, EventWriter, reader_of
from cdc_lakehouse.lake.tables.segments import DECODED, MOVED_ROWS_PREFIX, Segment

_compute: Any = pc  # What its functions take is hidden from type checkers.


@dataclass(frozen=True, slots=True)
class SegmentCounts:
    """The counts of a segment: events by operation, and the range of their commit-ts."""

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
    """The counts of one or more batches by (segment, database, table): a range of a topic holds rows of many tables."""

    rows: Mapping[tuple[str, str, str], SegmentCounts]

    @property
    def by_segment(self) -> dict[str, SegmentCounts]:
        found: dict[str, SegmentCounts] = {}
        for (segment, _, _), counts in self.rows.items():
            found[segment] = found.get(segment, SegmentCounts()) + counts
        return found

    @property
    def by_table(self) -> dict[tuple[str, str], SegmentCounts]:
        """Counts by (database, table)."""
        found: dict[tuple[str, str], SegmentCounts] = {}
        for (_, *name), counts in self.rows.items():
            found[name[0], name[1]] = found.get((name[0], name[1]), SegmentCounts()) + counts
        return found


def with_counts(
    segments: Iterable[Segment], counts: BatchCounts, rejected: Iterable[Rejected], decoded_at: datetime.datetime
) -> list[Segment]:
    """Return the segments in state decoded, with their counts and the number of their rejected records."""
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


_PROPERTIES: Final = {
    "format-version": "3",
    # Measured: level 1 writes 15 % faster than the default and is hardly larger on JSON text.
    "write.parquet.compression-codec": "zstd",
    "write.parquet.compression-level": "1",
    # Minima and maxima of row images exclude nothing.
    "write.metadata.metrics.column.before": "none",
    "write.metadata.metrics.column.after": "none",
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "20",
    # Every batch adds a manifest.
    "commit.manifest.min-count-to-merge": "10",
}
_IMAGES: Final = ("before", "after")


class Events:
    def __init__(self, lake: Lake, feed: str, spark: SparkSession, iceberg: IcebergJavaApi) -> None:
        self._lake = lake
        self._spark = spark
        self._iceberg = iceberg
        self.identifier = system_table(feed, "events")

    def ensure(self) -> None:
        """Create the table. A table of an earlier release, with row images as maps, is rewritten in one commit."""
        table = self._lake.load(self.identifier)
        if table is not None:
            if isinstance(table.schema().find_type("after"), MapType):
                self._migrate(table)
            return
        self._lake.ensure_namespace(self.identifier.namespace)
        properties = ", ".join(f"'{key}'='{value}'" for key, value in _PROPERTIES.items())
        self._spark.sql(
            f"CREATE TABLE IF NOT EXISTS {self.identifier.sql} ({spark_columns(EVENTS)}) USING iceberg "
            f"PARTITIONED BY (feed_date) TBLPROPERTIES ({properties})"
        )

    def _migrate(self, table: Table) -> None:
        transaction = self._iceberg.transaction(self.identifier, table.metadata.current_snapshot_id)
        has_synthetic = SYNTHETIC in table.schema().column_names
        added = [
            *(Add(name, "string", None) for name in _IMAGES),
            *(() if has_synthetic else (Add(SYNTHETIC, "boolean", None),)),
        ]
        moved = [Move(name, after) for name, after in zip(_IMAGES, ("commit_time", "before"), strict=True)]
        transaction.change_schema([[Drop(name) for name in _IMAGES], added, moved])
        schema = Schema.model_validate_json(transaction.schema_json())
        events = self.frame().select(*NEW_EVENTS.names, SYNTHETIC)
        # The table gets these properties in the same commit as the files.
        properties = {**table.properties, **_PROPERTIES}
        writer = EventWriter(schema, table.location(), properties, dict(self._lake.catalog.properties))
        files = _written_by(events, writer)
        transaction.commit(data_files=files, replace_all=table.current_snapshot() is not None, properties=_PROPERTIES)

    def frame(self) -> DataFrame:
        """Return all events, with the columns of `EVENTS`."""
        frame = self._spark.read.format("iceberg").load(self.identifier.sql)
        if isinstance(frame.schema["after"].dataType, SparkMap):
            # A snapshot from before the images were texts.
            texts = {name: F.to_json(name, {"ignoreNullFields": "false"}) for name in _IMAGES}
            told_by_name = F.col("segment").startswith(MOVED_ROWS_PREFIX)
            known = [F.col(SYNTHETIC)] if SYNTHETIC in frame.columns else []
            frame = frame.withColumns({**texts, SYNTHETIC: F.coalesce(*known, told_by_name)})
        return frame.select(*EVENTS.names)

    def reader(self, lowest: int, highest: int, earlier: Collection[int] = ()) -> EventReader:
        """Return a reader, for tasks, of the current events with a commit-ts in [lowest, highest], and of those in the
        `earlier` snapshots (ids)."""
        table = self._load()
        commit_ts = table.schema().find_field("commit_ts")

        def of(snapshot: Snapshot | None) -> EventReader:
            whole = reader_of(self._lake, table, snapshot)
            wanted = tuple(file for file in whole.files if may_contain(file, commit_ts, lowest, highest))
            return replace(whole, files=wanted)

        return replace(of(None), earlier=tuple(of(_snapshot(table, id)) for id in sorted(earlier)))

    def without(self, changes: Collection[tuple[str, str, int]]) -> set[tuple[str, str, int]]:
        """Return the changes (database, table, commit-ts) that have no event."""
        lowest, highest = min(at for *_, at in changes), max(at for *_, at in changes)
        left = set(changes)
        names = {(database, table) for database, table, _ in changes}
        columns = ("schema_name", "table_name", "commit_ts")
        for rows in self.reader(lowest, highest).read(names, lowest, highest, columns):
            groups = rows.group_by(columns).aggregate([])
            left.difference_update(zip(*(groups.column(name).to_pylist() for name in columns), strict=True))
        return left

    def writer(self) -> EventWriter:
        """Return a writer of events for tasks; `commit` takes the files that it writes."""
        table = self._load()
        return EventWriter(table.schema(), table.location(), table.properties, dict(self._lake.catalog.properties))

    def snapshot_of(self, batch: int) -> Snapshot | None:
        """Return the snapshot that appended a batch; None when the batch was not committed."""
        return _snapshot_of(self._lake.load(self.identifier), batch)

    def newest_batch(self) -> int:
        """Return the batch that was appended last; 0 before the first."""
        return next((number for number, _ in _batches(self._lake.load(self.identifier))), 0)

    def write(self, events: Iterable[pa.RecordBatch]) -> list[str]:
        """Write events (columns of `NEW_EVENTS`, and `synthetic`) in this process; return the files for `commit`."""
        return [path for files in self.writer().write(events) for path in files.column("data_file").to_pylist()]

    def write_in_tasks(self, events: DataFrame) -> list[str]:
        """Write events in tasks; otherwise like `write`."""
        return _written_by(events, self.writer())

    def commit(self, data_files: Sequence[str], segments: Sequence[Segment], settings: str | None = None) -> None:
        """Add what tasks wrote of a batch's segments, in the place of the earlier events of those that have
        `replaces_snapshot`. Readers see all of it at once. `settings`: a digest of those that decided which events
        there are.

        Raises TransientError where another run has changed the table meanwhile."""
        table, batch = self._load(), segments[0].batch
        if _snapshot_of(table, batch) is not None:
            raise TransientError(f"another run has appended batch {batch} of {self.identifier}", advice="run again")
        transaction = self._iceberg.transaction(self.identifier, table.metadata.current_snapshot_id)
        again = [segment.segment for segment in segments if segment.replaces_snapshot is not None]
        deletes, replaced = self._deleted(table, again) if again else ((), ())
        transaction.commit(
            data_files=data_files,
            delete_files=deletes,
            replaced_deletes=replaced,
            mark=True,
            summary={**of_batch(batch), **({} if settings is None else {SETTINGS: settings})},
        )

    def _deleted(self, table: Table, segments: Collection[str]) -> tuple[list[str], list[str]]:
        """Write deletion vectors for all events of some segments; return them, and the ones that they replace."""
        field = table.schema().find_field("segment")
        ends = min(segments), max(segments)
        files = [file for file in live_files(table, (field.field_id,)) if may_contain(file, field, *ends)]
        wanted = pa.array(sorted(segments))

        def positions(file: StoredFile) -> BitMap64:
            found = BitMap64()
            for rows in read_rows(table.io, file, table.schema(), [field.field_id], between={field.field_id: ends}):
                own = _compute.is_in(rows.column(column(field.field_id)), wanted)
                found.update(rows.column(POSITION).filter(own).to_pylist())
            return found

        found = ExecutorFactory.get_or_create().map(positions, files)
        deleted = dict(zip((file.path for file in files), found, strict=True))
        return delete_rows(table.io, table.location(), table.properties, table.format_version, files, deleted)

    def counts(self, batch: int) -> BatchCounts:
        """Count the events of each segment of a batch, read from the batch's own commit."""
        table = self._load()
        snapshot = _snapshot_of(table, batch)
        if snapshot is None:
            return BatchCounts({})
        schema = table.schema()
        ids = [schema.find_field(name).field_id for name in ("segment", "schema_name", "table_name", "op", "commit_ts")]
        files = live_files(table, (), added_by={snapshot.snapshot_id}, snapshot=snapshot)

        def counted(file: StoredFile) -> list[tuple[tuple[str, str, str], SegmentCounts]]:
            batches = read_rows(table.io, file, schema, ids, as_dictionaries=ids[:-1])
            return [each for rows in batches for each in _counted(rows.select([column(id) for id in ids]))]

        found: dict[tuple[str, str, str], SegmentCounts] = {}
        for of_file in ExecutorFactory.get_or_create().map(counted, files):
            for name, counts in of_file:
                found[name] = found.get(name, SegmentCounts()) + counts
        return BatchCounts(found)

    def _load(self) -> Table:
        table = self._lake.load(self.identifier)
        assert table is not None, "`ensure` comes first"
        return table


def _written_by(events: DataFrame, writer: EventWriter) -> list[str]:
    return [row["data_file"] for row in events.mapInArrow(writer.write, spark_columns(WRITTEN)).collect()]


def _batches(table: Table | None) -> Iterator[tuple[int, Snapshot]]:
    """Yield batches with their snapshots, newest first."""
    for snapshot in () if table is None else ancestors_of(table.current_snapshot(), table.metadata):
        found = summary_of(snapshot).get(BATCH)
        if found is not None:
            yield int(found), snapshot


def snapshots_of_batches(table: Table, lowest: int | None) -> set[int]:
    """Return the snapshots that a run needs to continue after another one: that of the newest batch, and those of the
    batches from `lowest` on."""
    found: set[int] = set()
    for number, snapshot in _batches(table):
        if found and (lowest is None or number < lowest):
            break
        found.add(snapshot.snapshot_id)
    return found


def settings_of_batches(lake: Lake, feed: str, batches: Collection[int]) -> dict[int, str | None]:
    """Return the digest of the settings of each of the batches that is committed; None when its commit does not have
    it. Needs no JVM."""
    found: dict[int, str | None] = {}
    table = lake.load(system_table(feed, "events")) if batches else None
    for number, snapshot in _batches(table):
        if number < min(batches):
            break
        if number in batches:
            found[number] = summary_of(snapshot).get(SETTINGS)
    return found


def _snapshot_of(table: Table | None, batch: int) -> Snapshot | None:
    for number, snapshot in _batches(table):
        if number <= batch:  # Numbers rise from commit to commit.
            return snapshot if number == batch else None
    return None


def _snapshot(table: Table, id: int) -> Snapshot:
    found = table.snapshot_by_id(id)
    assert found is not None, f"{table.name()} has no snapshot {id}"
    return found


def _counted(rows: pa.Table) -> Iterator[tuple[tuple[str, str, str], SegmentCounts]]:
    """Count rows (segment, database, table, op, commit-ts) by the first three columns."""
    *names, op, commit_ts = rows.column_names
    grouped = rows.group_by([*names, op]).aggregate([([], "count_all"), (commit_ts, "min"), (commit_ts, "max")])
    for segment, database, table, kind, count, lowest, highest in zip(
        *(grouped.column(n).to_pylist() for n in (*names, op, "count_all", f"{commit_ts}_min", f"{commit_ts}_max")),
        strict=True,
    ):
        inserts, updates, deletes = (count if kind == each else 0 for each in ("I", "U", "D"))
        yield (segment, database, table), SegmentCounts(count, inserts, updates, deletes, lowest, highest)
