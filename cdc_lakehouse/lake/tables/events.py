"""The `events` table: every row change of a feed, each segment's once, with values as the source's text.

Tasks write its data files (`EventWriter`); a batch is one commit. The table's properties say which batches were
committed (`segments.Appended`), so that a run after a crash can tell, whatever has become of the snapshots.

Decoding tasks write data files, applying tasks read them. Files of a failed task are never committed, and so never
read.
"""

from __future__ import annotations

import datetime
import heapq
import json
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.utils.concurrent import ExecutorFactory
from pyroaring import BitMap64

from cdc_lakehouse.changelog.positions import LOGICAL_BITS
from cdc_lakehouse.decoders.arrow import pc
from cdc_lakehouse.decoders.event_schema import CHANGE_COLUMNS, EVENTS, SYNTHETIC, spark_columns
from cdc_lakehouse.decoders.problems import Rejected
from cdc_lakehouse.errors import ConcurrentRunError, TransientError
from cdc_lakehouse.lake import files as lake_files
from cdc_lakehouse.lake.catalog import Lake, system_table
from cdc_lakehouse.lake.iceberg_java import IcebergJavaApi
from cdc_lakehouse.lake.tables.segments import DECODED, Appended, Segment, Segments, has_other_content

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_PLAIN: Final = ("before", "after", "commit_ts", "line")
"""Columns whose values hardly repeat."""
_REPEATED: Final = ("schema_name", "table_name", "segment", "feed_date")
"""Columns with a single value in each file of a sink."""


@dataclass(frozen=True)
class EventWriter:
    """Writes events in tasks."""

    table: lake_files.TableFiles

    def write(self, events: Iterable[pa.RecordBatch]) -> list[str]:
        """Write events (columns of `NEW_EVENTS`, and `synthetic` if present) to data files of one feed date each;
        return the files as JSON for Iceberg's `ContentFileParser`."""
        time, millis = EVENTS.field("commit_time"), pa.timestamp("ms", "UTC")
        with lake_files.DatedFiles(self.table, _PLAIN, _REPEATED) as files:
            for rows in (pa.Table.from_batches([batch]) for batch in events if batch.num_rows):
                if SYNTHETIC not in rows.column_names:
                    rows = rows.append_column(EVENTS.field(SYNTHETIC), pa.repeat(False, rows.num_rows))
                committed_at = pc.shift_right(rows.column("commit_ts"), LOGICAL_BITS).cast(millis)
                rows = rows.append_column(time, committed_at.cast(time.type))
                dates = pc.unique(rows.column("feed_date")).to_pylist()
                for date in dates:
                    own = pc.field("feed_date").is_null() if date is None else pc.field("feed_date") == date
                    files.add(date, rows if len(dates) == 1 else rows.filter(own))
        return files.written


# --- Reading ---


def event_reader(lake: Lake, feed: str) -> EventReader | None:
    """Return a reader of a feed's current events, without a JVM; None when the table does not exist."""
    table = lake.load(system_table(feed, "events"))
    return None if table is None else _reader(lake, table)


def _reader(lake: Lake, table: Table, snapshot: Snapshot | None = None) -> EventReader:
    stored = lake_files.TableFiles.of(table, lake, snapshot)
    fields = [stored.schema.find_field(name).field_id for name in ("commit_ts", "schema_name", "table_name")]
    return EventReader(tuple(lake_files.live_files(table, fields, snapshot=snapshot)), stored)


_LOW_CARDINALITY: Final = ("schema_name", "table_name", "op", "segment")


@dataclass(frozen=True)
class EventReader:
    """Reads events in tasks, from the `files` that the table had when the work was planned. `earlier` readers read its
    state before segments were decoded again."""

    files: tuple[lake_files.StoredFile, ...]
    table: lake_files.TableFiles
    earlier: tuple[EventReader, ...] = ()

    def shares(self, count: int) -> list[EventReader]:
        """Split into `count` readers of about the same size that together read what this one does."""
        readers = (self, *self.earlier)
        files = [(number, file) for number, reader in enumerate(readers) for file in reader.files]
        shares: list[list[list[lake_files.StoredFile]]] = [[[] for _ in readers] for _ in range(count)]
        sizes = [(0, place) for place in range(count)]
        for number, file in sorted(files, key=lambda each: each[1].size, reverse=True):
            size, place = heapq.heappop(sizes)
            shares[place][number].append(file)
            heapq.heappush(sizes, (size + file.size, place))
        parts = ([replace(of, files=tuple(own)) for of, own in zip(readers, share, strict=True)] for share in shares)
        return [replace(own, earlier=tuple(earlier)) for own, *earlier in parts]

    def read(
        self, names: Collection[tuple[str, str]], lowest: int, highest: int, columns: Sequence[str] = CHANGE_COLUMNS
    ) -> Iterator[pa.Table]:
        """Read the events of some tables, (database, table), with a commit-ts in [lowest, highest]; others that are
        stored near them are read too.

        Yields tables with `columns`, which must include `commit_ts`, `schema_name` and `table_name`. Names, operations
        and segments are dictionaries where the file has them."""
        io, databases, tables = self.table.open(), {name for name, _ in names}, {name for _, name in names}
        of_tables = {"schema_name": (min(databases), max(databases)), "table_name": (min(tables), max(tables))}
        between = {"commit_ts": (lowest, highest), **of_tables}
        for file in self.files:
            for rows in lake_files.read_columns(io, file, self.table.schema, columns, between, _LOW_CARDINALITY):
                yield rows.select(columns)


COUNTS: Final = pa.schema([
    *(EVENTS.field(name) for name in ("segment", "schema_name", "table_name")),
    *((name, pa.int64()) for name in ("events", "inserts", "updates", "deletes", "min_commit_ts", "max_commit_ts")),
])  # fmt: skip
"""Events by segment and table, by operation, and the range of their commit-ts: a range of a topic holds rows of many
tables."""


def summed(counts: pa.Table, *by: str) -> list[dict[str, Any]]:
    """Sum the counts of each segment, by the names of `Segment`, or those of each table, without commit-ts."""
    numbers = COUNTS.names[3:] if "segment" in by else COUNTS.names[3:7]
    ways = [(each, each[:3] if each.endswith("_ts") else "sum") for each in numbers]
    return counts.group_by(by).aggregate(ways).rename_columns([*by, *numbers]).to_pylist()


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


class Events:
    """The table as one run writes it: on top of the batches that it found when it began."""

    def __init__(
        self,
        lake: Lake,
        feed: str,
        spark: Callable[[], SparkSession],
        iceberg: Callable[[], IcebergJavaApi],
        segments: Segments,
        require_lease: Callable[[], None],
    ) -> None:
        self._lake, self._spark, self._iceberg = lake, spark, iceberg
        self._segments, self._require_lease = segments, require_lease
        self._snapshots: dict[int, int | None] = {}  # Those that this run has made, by batch.
        self.identifier = system_table(feed, "events")

    def ensure(self) -> None:
        """Create the table, unless it exists."""
        _ = self.appended
        if self._lake.load(self.identifier) is not None:
            return
        self._lake.ensure_namespace(self.identifier.namespace)
        properties = ", ".join(f"'{key}'='{value}'" for key, value in _PROPERTIES.items())
        self._spark().sql(
            f"CREATE TABLE IF NOT EXISTS {self.identifier.sql} ({spark_columns(EVENTS)}) USING iceberg "
            f"PARTITIONED BY (feed_date) TBLPROPERTIES ({properties})"
        )

    def reader(self, lowest: int, highest: int, earlier: Collection[int] = ()) -> EventReader:
        """Return a reader, for tasks, of the current events with a commit-ts in [lowest, highest], and of those in the
        `earlier` snapshots (ids). Raises `TransientError` when one of them no longer exists."""
        table, between = self._load(), {"commit_ts": (lowest, highest)}

        def of(id: int | None) -> EventReader:
            snapshot = None if id is None else table.snapshot_by_id(id)
            if id is not None and snapshot is None:
                raise TransientError(
                    f"another writer has just expired a snapshot of {self.identifier}: {id}", advice="run again"
                )
            whole = _reader(self._lake, table, snapshot)
            wanted = tuple(file for file in whole.files if lake_files.may_hold(file, whole.table.schema, between))
            return replace(whole, files=wanted)

        return replace(of(None), earlier=tuple(of(id) for id in sorted(earlier)))

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
        return EventWriter(lake_files.TableFiles.of(self._load(), self._lake))

    @cached_property
    def appended(self) -> Appended:
        """The batches in the table, as this run found and left them."""
        return Appended.of(self._lake.load(self.identifier))

    def commit(self, data_files: Sequence[str], segments: Sequence[Segment]) -> None:
        """Add what tasks wrote of a batch's segments, in the place of the earlier events of those that have such; of a
        file whose content is another one, in the place of those with a commit-ts that it has, too.
        Readers see all of it at once.

        Raises `ConcurrentRunError` when the run has lost its lease or another run has committed a batch since this one
        looked, and TransientError where another writer has changed the table just now."""
        self._require_lease()
        table, batch = self._load(), segments[0].batch
        if Appended.of(table) != self.appended or batch <= self.appended.newest:
            raise ConcurrentRunError(f"another run has committed to {self.identifier}: batch {batch} is not appended")
        transaction = self._iceberg().transaction(self.identifier, table.metadata.current_snapshot_id)
        again = [segment for segment in segments if segment.replaces is not None]
        deletes, replaced = self._deleted(table, again, data_files) if again else ((), ())
        landed = self._segments.landed_batches
        after = Appended(batch, (self.appended.unmarked & landed) | {batch})
        self._snapshots[batch] = made = transaction.commit(
            data_files=data_files,
            delete_files=deletes,
            replaced_deletes=replaced,
            # A snapshot, even without events: it makes the commit of a run fail that has not seen this batch.
            mark=True,
            properties=after.as_properties(),
        )
        assert made is not None  # By `mark`.
        self.appended = replace(after, snapshot_id=made, snapshots=self.appended.snapshots | {made})

    def _deleted(
        self, table: Table, again: Sequence[Segment], data_files: Sequence[str]
    ) -> tuple[list[str], list[str]]:
        """Write deletion vectors for the events that the new ones in `data_files` replace; return them, and the ones
        that they replace."""
        wanted = pa.array(sorted(segment.segment for segment in again))
        other = pa.array([segment.segment for segment in again if has_other_content(segment)], pa.large_string())
        transactions = [pa.table({"segment": pa.array([], pa.large_string()), "commit_ts": pa.array([], pa.int64())})]
        form = transactions[0].schema
        for data_file in data_files if len(other) else ():
            with table.io.new_input(json.loads(data_file)["file-path"]).open() as stream:
                rows = pq.read_table(stream, columns=form.names).cast(form)
            transactions.append(rows.filter(pc.is_in(rows.column("segment"), other)))
        new = pa.concat_tables(transactions).group_by(form.names).aggregate([])
        schema, between = table.schema(), {"segment": (wanted[0].as_py(), wanted[-1].as_py())}
        live = lake_files.live_files(table, [schema.find_field("segment").field_id])
        files = [file for file in live if lake_files.may_hold(file, schema, between)]
        read = new.column_names if len(other) else ["segment"]

        def positions(file: lake_files.StoredFile) -> BitMap64:
            found = BitMap64()
            for rows in lake_files.read_columns(table.io, file, schema, read, between):
                own = rows.filter(pc.is_in(rows.column("segment"), wanted))
                found.update(own.column(lake_files.POSITION).to_pylist())
                if len(other):
                    others = own.filter(pc.is_in(own.column("segment"), other))
                    stay = others.join(new, read, join_type="left anti")
                    found -= BitMap64(stay.column(lake_files.POSITION).to_pylist())
            return found

        found = ExecutorFactory.get_or_create().map(positions, files)
        deleted = dict(zip((file.path for file in files), found, strict=True))
        return lake_files.delete_rows(
            table.io, table.location(), table.properties, table.format_version, files, deleted
        )

    def counts(self, segments: Sequence[Segment]) -> pa.Table:
        """Count the events of each segment of a batch (columns of `COUNTS`); none when the batch is not in the table. A
        batch that this run has committed is read from the files of its commit, if these have all of its events."""
        batch, names = segments[0].batch, pa.array([segment.segment for segment in segments])
        if batch not in self.appended.unmarked:
            return COUNTS.empty_table()
        table, made = self._load(), self._snapshots.get(batch)
        snapshot = None if made is None else table.snapshot_by_id(made)
        is_whole = not any(map(has_other_content, segments))
        added_by = {snapshot.snapshot_id} if snapshot is not None and is_whole else None
        bounds_of = [table.schema().find_field("segment").field_id]
        files = lake_files.live_files(table, bounds_of, added_by=added_by, snapshot=snapshot)
        within = {"segment": (pc.min(names).as_py(), pc.max(names).as_py())}

        read = ("segment", "schema_name", "table_name", "op", "commit_ts")
        ways = [([], "count_all"), ("commit_ts", "min"), ("commit_ts", "max")]

        def counted(file: lake_files.StoredFile) -> list[pa.Table]:
            parts: list[pa.Table] = []
            for rows in lake_files.read_columns(table.io, file, table.schema(), read, within, read[:-1]):
                grouped = rows.group_by(read[:-1]).aggregate(ways)
                count = grouped["count_all"]
                by_op = [pc.if_else(pc.equal(grouped["op"].cast(pa.string()), op), count, 0) for op in "IUD"]
                ends = (grouped["commit_ts_min"], grouped["commit_ts_max"])
                columns = [*grouped.select(read[:3]).columns, count, *by_op, *ends]
                parts.append(pa.table(columns, COUNTS.names).cast(COUNTS))
            return parts

        found = [each for of_file in ExecutorFactory.get_or_create().map(counted, files) for each in of_file]
        counts = pa.concat_tables([COUNTS.empty_table(), *found])
        return counts.filter(pc.is_in(counts["segment"], value_set=names))

    def mark_decoded(
        self, segments: Sequence[Segment], now: datetime.datetime, rejected: Sequence[Rejected] = ()
    ) -> tuple[list[Segment], pa.Table]:
        """Record that the segments of a batch that is committed are decoded, with their counts and the number of their
        rejected records; return them, and the counts of the commit."""
        counts, quarantined = self.counts(segments), Counter[str]()
        by_segment = {row.pop("segment"): row for row in summed(counts, "segment")}
        none: dict[str, Any] = {name: None if name.endswith("_ts") else 0 for name in COUNTS.names[3:]}
        for each in rejected:
            quarantined[each.segment] += each.count
        found: list[Segment] = []
        for segment in segments:
            numbers = by_segment.get(segment.segment, none) | {"quarantined": quarantined[segment.segment]}
            if has_other_content(segment) and segment.lines is not None:
                numbers["others"] = segment.lines - numbers["events"] - numbers["quarantined"]
            found.append(replace(segment, state=DECODED, decoded_at=now, **numbers))
        self._segments.mark_decoded(found)
        return found, counts

    def _load(self) -> Table:
        return self._lake.existing(self.identifier)
