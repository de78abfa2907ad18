"""The `events` table: every row change of a feed, each segment's once, with values as the source's text.

Tasks write its data files (`EventWriter`); a batch is one commit. The table's properties say which batches were
committed (`segments.Appended`), so that a run after a crash can tell, whatever has become of the snapshots.

Decoding tasks read files of a sink or a dump, decode them and write data files (`Events.decode`), applying tasks read
them. Files of a failed task are never committed, and so never read. Rejected records are returned to the driver, the
first ones of each file one by one.
"""

from __future__ import annotations

import datetime
import functools
import heapq
import itertools
import json
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from py4j.protocol import Py4JJavaError
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.types import NestedField
from pyiceberg.utils.concurrent import ExecutorFactory
from pyroaring import BitMap64

from cdc_lakehouse.changelog.positions import LOGICAL_BITS
from cdc_lakehouse.decoders.arrow import batch_of, pc
from cdc_lakehouse.decoders.event_schema import CHANGE_COLUMNS, EVENTS, NEW_EVENTS, SYNTHETIC, SYNTHETIC_EVENTS
from cdc_lakehouse.decoders.format import FileContext
from cdc_lakehouse.decoders.formats.dump import DumpContext
from cdc_lakehouse.decoders.problems import LISTED_PER_SEGMENT, PROBLEMS, RAW_LIMIT, Rejected
from cdc_lakehouse.decoders.tasks import run_tasks
from cdc_lakehouse.decoders.topic_reader import Summaries, TopicReader
from cdc_lakehouse.errors import ConcurrentRunError, SourceError, TransientError
from cdc_lakehouse.lake import files as lake_files
from cdc_lakehouse.lake.catalog import Lake, system_table
from cdc_lakehouse.lake.faults import warehouse_fault
from cdc_lakehouse.lake.iceberg_java import IcebergJavaApi
from cdc_lakehouse.lake.tables.segments import DECODED, DUMP, LANDED, Appended, Segment, Segments, has_other_content
from cdc_lakehouse.lake.tables.small_table import BY_DATE
from cdc_lakehouse.sources.object_store import SegmentRef

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
        try:
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
        except OSError as error:  # In a task it says that it is not of the segment or the table there.
            raise warehouse_fault(error) from error
        return files.written

    def decode(self, make: Callable[[], TopicReader], rows: Iterable[pa.RecordBatch]) -> tuple[list[str], Summaries]:
        """Write the events of records; return the files, and what else is in the records."""
        reader = make()
        events = itertools.chain.from_iterable(map(reader.read, rows))
        return self.write(itertools.chain(events, reader.rest())), reader.summaries


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
            for rows in lake_files.read_rows(io, file, self.table.schema, columns, between, _LOW_CARDINALITY):
                yield rows.select(columns)


COUNTS: Final = pa.schema([
    *(EVENTS.field(name) for name in ("segment", "schema_name", "table_name")),
    *((name, pa.int64()) for name in ("events", "inserts", "updates", "deletes", "min_commit_ts", "max_commit_ts")),
])  # fmt: skip
"""Events by segment and table (a range of a topic holds many), by operation, and the range of their commit-ts."""


def summed(counts: pa.Table, *by: str) -> list[dict[str, Any]]:
    """Sum the counts of each segment, by the names of `Segment`, or those of each table, without commit-ts."""
    numbers = COUNTS.names[3:] if "segment" in by else COUNTS.names[3:7]
    ways = [(each, each[:3] if each.endswith("_ts") else "sum") for each in numbers]
    return counts.group_by(by).aggregate(ways).rename_columns([*by, *numbers]).to_pylist()


_TYPES: Final = {"int64": "long", "bool": "boolean", "timestamp[us, tz=UTC]": "timestamptz"}
"""Iceberg's names of types, by Arrow's, where they differ."""
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
        self, lake: Lake, feed: str, spark: Callable[[], SparkSession], iceberg: Callable[[], IcebergJavaApi],
        segments: Segments, require_lease: Callable[[], None],
    ) -> None:  # fmt: skip
        self._lake, self._spark, self._iceberg = lake, spark, iceberg
        self._segments, self._require_lease = segments, require_lease
        # By batch: the snapshot that this run has made, and how many rows its files have.
        self._snapshots, self._rows = dict[int, int | None](), dict[int, int]()
        self.identifier = system_table(feed, "events")

    def ensure(self) -> None:
        """Create the table, unless it exists."""
        _ = self.appended
        if self._lake.load(self.identifier) is not None:
            return
        self._lake.ensure_namespace(self.identifier.namespace)
        columns = [NestedField(id, of.name, _TYPES.get(str(of.type), str(of.type))) for id, of in enumerate(EVENTS, 1)]
        try:
            self._iceberg().create(self.identifier, Schema(*columns), None, _PROPERTIES, BY_DATE)
        except Py4JJavaError:
            if self._lake.load(self.identifier) is None:
                raise  # Else another run has just created it.

    def reader(self, lowest: int, highest: int, earlier: Collection[int] = ()) -> EventReader:
        """Return a reader, for tasks, of the current events with a commit-ts in [lowest, highest], and of those in the
        `earlier` snapshots (ids). Raises `TransientError` when one of them no longer exists."""
        table, between = self._lake.existing(self.identifier), {"commit_ts": (lowest, highest)}

        def of(id: int | None) -> EventReader:
            snapshot = None if id is None else table.snapshot_by_id(id)
            if id is not None and snapshot is None:
                message = f"another writer has just expired a snapshot of {self.identifier}: {id}"
                raise TransientError(message, advice="run again")
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
        return EventWriter(lake_files.TableFiles.of(self._lake.existing(self.identifier), self._lake))

    def decode(
        self, files: Sequence[SegmentFile], read: Read, decode: Decode, typing: Callable[[int], Any] | None = None
    ) -> DecodedFiles:
        """Decode files. `typing` begins what each of so many tasks makes of rows beside events (`TypingTask`)."""
        is_small = fits_driver([file.ref.size for file in files])
        groups = [[*files]] if is_small else _groups(files, self._spark().sparkContext.defaultParallelism)
        begun = None if typing is None else functools.partial(typing, len(groups))
        work, found = functools.partial(_decode, read, decode, self.writer(), begun), DecodedFiles()
        rejected: list[Rejected] = []
        for each in run_tasks(None if is_small else self._spark(), groups, work):
            found.data_files += each.data_files
            found.lines.update(each.lines)
            found.strict.update(each.strict)
            found.further.update(each.further)
            found.typed += each.typed
            rejected += each.rejected
        for segment, of_segment in itertools.groupby(rejected, lambda each: each.segment):
            listed = [*of_segment]
            further = found.further[segment] + len(listed[LISTED_PER_SEGMENT:])
            found.rejected += listed[:LISTED_PER_SEGMENT]
            if further:
                message = f"{listed[0].message} ({further} further lines of the segment, not listed one by one)"
                found.rejected.append(replace(listed[0], line=None, message=message, raw=None, count=further))
        return found

    @functools.cached_property
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
        table, batch = self._lake.existing(self.identifier), segments[0].batch
        if Appended.of(table) != self.appended or batch <= self.appended.newest:
            raise ConcurrentRunError(f"another run has committed to {self.identifier}: batch {batch} is not appended")
        transaction = self._iceberg().transaction(self.identifier, table.metadata.current_snapshot_id)
        again = [segment for segment in segments if segment.replaces is not None]
        deletes, replaced = self._deleted(table, again, data_files) if again else ((), ())
        landed = self._segments.rows.filter(pc.field("state") == LANDED)["batch"].to_pylist()
        after = Appended(batch, self.appended.unmarked.intersection(landed) | {batch})
        self._snapshots[batch] = made = transaction.commit(
            data_files=data_files,
            delete_files=deletes,
            replaced_deletes=replaced,
            # A snapshot, even without events: it makes the commit of a run fail that has not seen this batch.
            mark=True,
            properties=after.as_properties(),
        )
        assert made is not None  # By `mark`.
        self._rows[batch] = sum(json.loads(file)["record-count"] for file in data_files)
        self.appended = replace(after, snapshot_id=made, snapshots=self.appended.snapshots | {made})

    def _deleted(
        self, table: Table, again: Sequence[Segment], data_files: Sequence[str]
    ) -> tuple[list[str], list[str]]:
        """Write deletion vectors for events that those in `data_files` replace; return them, and those they replace."""
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
            for rows in lake_files.read_rows(table.io, file, schema, read, between):
                own = rows.filter(pc.is_in(rows.column("segment"), wanted))
                found.update(own.column(lake_files.POSITION).to_pylist())
                if len(other):
                    others = own.filter(pc.is_in(own.column("segment"), other))
                    stay = others.join(new, read, join_type="left anti")
                    found -= BitMap64(stay.column(lake_files.POSITION).to_pylist())
            return found

        found = ExecutorFactory.get_or_create().map(positions, files)
        deleted = dict(zip((file.path for file in files), found, strict=True))
        of_table = table.io, table.location(), table.properties, table.format_version
        return lake_files.delete_rows(*of_table, files, deleted)

    def counts(self, segments: Sequence[Segment]) -> pa.Table:
        """Count the events of each segment of a batch (columns of `COUNTS`). One that this run has committed is read
        from the files of its commit, if these have all of its events."""
        batch, names = segments[0].batch, pa.array([segment.segment for segment in segments])
        table, made = self._lake.existing(self.identifier), self._snapshots.get(batch)
        snapshot = None if made is None else table.snapshot_by_id(made)
        added_by = None if snapshot is None or any(map(has_other_content, segments)) else {snapshot.snapshot_id}
        bounds_of = [table.schema().find_field("segment").field_id]
        files = lake_files.live_files(table, bounds_of, added_by=added_by, snapshot=snapshot)
        within = {"segment": (pc.min(names).as_py(), pc.max(names).as_py())}

        read = ("segment", "schema_name", "table_name", "op", "commit_ts")
        ways = [([], "count_all"), ("commit_ts", "min"), ("commit_ts", "max")]

        def counted(file: lake_files.StoredFile) -> list[pa.Table]:
            parts: list[pa.Table] = []
            for rows in lake_files.read_rows(table.io, file, table.schema(), read, within, read[:-1]):
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
        rejected records; return them, and the counts of the commit. Those of a dump's files, each with one
        commit-ts, are known without reading them where as many rows were written as were decoded."""
        quarantined = Counter[str]()
        for each in rejected:
            quarantined[each.segment] += each.count
        left = [(s, (s.lines or 0) - quarantined[s.segment]) for s in segments]
        if self._rows.get(segments[0].batch) == sum(n for _, n in left) and all(s.kind == DUMP for s in segments):
            rows = [(s.segment, s.database, s.table, n, 0, 0, 0, *[s.table_version] * 2) for s, n in left if n]
            counts = pa.Table.from_batches([batch_of(rows, COUNTS)])
        else:
            counts = self.counts(segments)
        by_segment = {row.pop("segment"): row for row in summed(counts, "segment")}
        none: dict[str, Any] = {name: None if name.endswith("_ts") else 0 for name in COUNTS.names[3:]}
        found: list[Segment] = []
        for segment in segments:
            numbers = by_segment.get(segment.segment, none) | {"quarantined": quarantined[segment.segment]}
            if has_other_content(segment) and segment.lines is not None:
                numbers["others"] = segment.lines - numbers["events"] - numbers["quarantined"]
            found.append(replace(segment, state=DECODED, decoded_at=now, **numbers))
        self._segments.mark_decoded(found)
        return found, counts


# --- Decoding ---

_REQUEST: Final = 1024 * 1024
"""A request takes about as much time as reading this many bytes."""
_TASK_BYTES: Final = 4 * 1024 * 1024
_DRIVER_SEGMENTS: Final = 64
_GROUP_BYTES: Final = 192 * 1024 * 1024

Read = Callable[[Sequence[SegmentRef]], Iterator[Any]]
"""Yields the content of each file, in a task."""
Decode = Callable[[Any, Any], Iterator[pa.RecordBatch]]
"""Yields batches of `event_schema.DECODED` for a content and a file's context."""


@dataclass(frozen=True)
class SegmentFile:
    """A segment that is a file: its content's location, and what its decoder needs. Tasks can share it by `pieces`."""

    segment: Segment
    ref: SegmentRef
    context: FileContext | DumpContext
    pieces: int = 1


@dataclass
class DecodedFiles:
    """The result of decoding. `data_files` are JSON for Iceberg's `ContentFileParser`. `lines` is the number of lines
    read by segment, events and rejected lines; `strict` of those that were read one by one, `further` of rejected ones
    that are not listed. `typed` is what was made of the rows beside events."""

    data_files: list[str] = field(default_factory=list[str])
    rejected: list[Rejected] = field(default_factory=list[Rejected])
    lines: Counter[str] = field(default_factory=Counter[str])
    strict: Counter[str] = field(default_factory=Counter[str])
    further: Counter[str] = field(default_factory=Counter[str])
    typed: list[Any] = field(default_factory=list[Any])

    def counted(self, segments: Sequence[Segment]) -> list[Segment]:
        """Return the segments with their line counts; None where a segment was not read."""
        return [replace(s, lines=self.lines.get(s.segment), strict=self.strict.get(s.segment)) for s in segments]


def _decode(
    read: Read, decode: Decode, writer: EventWriter, typing: Callable[[], Any] | None, files: Sequence[SegmentFile]
) -> Iterator[DecodedFiles]:
    """Decode the files of a task, one after the other."""
    found, typed = DecodedFiles(), None if typing is None else typing()

    def events() -> Iterator[pa.RecordBatch]:
        for file, content in zip(files, read([file.ref for file in files]), strict=True):
            left, context, segment = LISTED_PER_SEGMENT, file.context, file.segment.segment
            found.lines[segment] += 0  # An empty file is counted.
            found.strict[segment] += 0
            for batch in _of_segment(segment, decode(content, context)):
                sound = batch
                found.lines[segment] += batch.num_rows
                found.strict[segment] += batch.column("strict").true_count
                if (problems := batch.column("problem")).null_count < batch.num_rows:
                    bad = batch.select(["line", "problem", "value"]).filter(problems.is_valid())
                    first = bad.slice(0, left)
                    for line, problem, value in zip(*map(pa.Array.to_pylist, first.columns), strict=True):
                        of = segment, line, problem, PROBLEMS[problem], bytes(value[:RAW_LIMIT])
                        found.rejected.append(Rejected(*of, context.database, context.table, 1))
                    left -= first.num_rows
                    found.further[segment] += bad.num_rows - first.num_rows
                    sound = batch.filter(problems.is_null())
                if sound.num_rows:
                    if typed is not None:
                        typed.add(file, sound)
                    yield _events(sound, file)

    try:
        found.data_files += writer.write(events())
        found.typed += [] if typed is None else typed.parts()
    except Exception:
        if typed is not None:
            typed.discard()
        raise
    yield found


def _of_segment(segment: str, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Set the segment of errors that concern the file and not the whole store."""
    try:
        yield from batches
    except SourceError as error:
        if error.segment is not None or error.table is not None:
            error.segment = segment
        raise


def _events(decoded: pa.RecordBatch, file: SegmentFile) -> pa.RecordBatch:
    """Convert decoded records to events with the columns of `NEW_EVENTS` (with `synthetic` for a synthetic file).
    Values that all share are dictionaries of one entry."""
    of, names, count = file.segment, ("feed_date", "table_version", "physical_partition", "segment"), decoded.num_rows
    common = {"schema_name": file.context.database, "table_name": file.context.table}
    common |= {name: getattr(of, name) for name in names}
    schema = SYNTHETIC_EVENTS if of.kind == DUMP else NEW_EVENTS
    none, first = pa.nulls(count, pa.int32()), pa.array(np.zeros(count, np.int32))
    columns: list[pa.Array] = []
    for each in schema:
        if each.name == SYNTHETIC:
            columns.append(pa.repeat(True, count))
        elif each.name in common:
            value = common[each.name]
            dictionary = pa.array([] if value is None else [value], each.type)
            columns.append(pa.DictionaryArray.from_arrays(none if value is None else first, dictionary))
        else:
            columns.append(decoded.column(decoded.schema.get_field_index(each.name)))
    return pa.RecordBatch.from_arrays(columns, names=schema.names)


def fits_driver(sizes: Sequence[int]) -> bool:
    """Whether the driver works on segments of these sizes, in bytes: a job would take longer than the work."""
    return len(sizes) <= _DRIVER_SEGMENTS and sum(sizes) <= _TASK_BYTES


def _groups(files: Sequence[SegmentFile], tasks: int) -> list[list[SegmentFile]]:
    """Group adjacent files (of one table) into tasks that take about the same time, which can share a file for that."""
    weights = [file.ref.size + _REQUEST for file in files]
    total, most = sum(weights), tasks if any(file.pieces > 1 for file in files) else 2 * tasks
    # A task has a cost, and reads past others' pieces. Of whole files a slot has two tasks, so that all end together.
    wanted = max(1, min(most, math.ceil(total / _TASK_BYTES)))
    if total > most * _GROUP_BYTES:
        wanted = tasks * math.ceil(total / _GROUP_BYTES / tasks)
    share, start = total / wanted, 0.0
    groups: defaultdict[int, list[SegmentFile]] = defaultdict(list)
    for file, weight in zip(files, weights, strict=True):
        each = weight / file.pieces
        # A piece belongs to the task in whose share its middle is: no rest is left for a task of its own.
        tasks_of = [int((start + (at + 0.5) * each) / share) for at in range(file.pieces)]
        start += weight
        for task, same in itertools.groupby(range(file.pieces), tasks_of.__getitem__):
            at, *more = same
            stop = at + 1 + len(more)
            pieces = at, None if stop == file.pieces else stop
            whole = pieces == (0, None)
            groups[task].append(file if whole else replace(file, context=replace(file.context, pieces=pieces)))
    return [*groups.values()]
