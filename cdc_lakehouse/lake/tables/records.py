"""The `records` table: every message of a feed's topics, each once, unchanged from the broker.

A batch is one commit: the files that tasks have written, the offsets that have then landed, and the batch's number and
ranges in the snapshot's summary. It is committed on top of the state at the start of the run, so only one of two runs
lands the same ranges. Whatever ends a run, a range has landed completely, together with the position after it, or not
at all. The offsets are properties of the table (`LandedState`): they stay when snapshots expire or files are rewritten.

Messages are written as rows where they are read, in Spark's tasks or in this process. The files are unused until the
driver commits them, for which it needs no JVM.
"""

from __future__ import annotations

import datetime
import functools
import itertools
import json
import logging
import uuid
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
from pyiceberg import types
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.types import NestedField
from pyiceberg.utils.concurrent import ExecutorFactory

from cdc_lakehouse.config import DateSeparator, FeedConfig
from cdc_lakehouse.config.section import zone_of
from cdc_lakehouse.decoders.arrow import pc
from cdc_lakehouse.decoders.tasks import run_tasks, spark_errors
from cdc_lakehouse.decoders.topic_reader import RECORDS
from cdc_lakehouse.errors import CdcError, ConcurrentRunError, StoredFormError
from cdc_lakehouse.lake import files as lake_files
from cdc_lakehouse.lake.catalog import Lake, system_table
from cdc_lakehouse.lake.faults import described
from cdc_lakehouse.lake.names import BATCH, BATCH_SEGMENTS, FIRST_BATCH, LANDED, OFFSETS, REMOVED_UPTO
from cdc_lakehouse.lake.tables.events import fits_driver
from cdc_lakehouse.lake.tables.small_table import BY_DATE, commit, create
from cdc_lakehouse.sources import kafka
from cdc_lakehouse.sources.record_log import LandedOffsets, LandedTopic, LogPartition, Messages, OffsetRange, Pending

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_LOG: Final = logging.getLogger("cdc_lakehouse")


@dataclass(frozen=True, slots=True)
class LandedSegment:
    """Offsets in `records`, from `start` to before `end`, with feed dates. `late_before`: see `PartitionSummary`."""

    partition: LogPartition
    start: int
    end: int
    records: int
    bytes: int
    dates: tuple[str, ...]
    late_before: int = 0

    @property
    def segment(self) -> str:
        return OffsetRange(self.partition, self.start, self.end, 0).segment


@dataclass(frozen=True, slots=True)
class LandedState:
    """The state of `records`: the landed offsets, and the last batch (0 before the first) with its segments.
    Maintenance alone changes what was removed: the first batch whose records are all kept (0: none were removed), and
    the last feed date that is not whole ("")."""

    landed: LandedOffsets = field(default_factory=LandedOffsets)
    batch: int = 0
    segments: tuple[LandedSegment, ...] = ()
    first_batch: int = field(default=0, compare=False)
    removed_upto: str = field(default="", compare=False)

    def after(self, pending: Pending, batch: int, segments: tuple[LandedSegment, ...]) -> LandedState:
        """Return the state after segments of the pending offsets have landed as a batch; without any, after a look."""
        new_ends = {partition: start for partition, (start, _) in pending.offsets.items()}
        new_ends |= {segment.partition: segment.end for segment in segments}
        topics = dict(self.landed.topics)
        for name in {*topics, *(partition.topic for partition in new_ends)}:
            known = topics.get(name, LandedTopic("", {}))
            own_ends = {each.number: end for each, end in new_ends.items() if each.topic == name}
            ends = {**known.ends, **own_ends}
            listed = {each.number: end for each, (_, end) in pending.offsets.items() if each.topic == name}
            behind = {number: listed.get(number) for number, end in ends.items() if listed.get(number) != end}
            own = [each for each in segments if each.partition.topic == name]
            # Per offset: missing offsets lower it accordingly.
            offsets = sum(each.end - each.start for each in own)
            size = round(sum(each.bytes for each in own) / offsets, 1) if offsets else known.record_bytes
            id = (pending.ids.get(name) if own_ends else None) or known.id
            topics[name] = LandedTopic(id, ends, size, behind if segments else known.behind)
        now = replace(self, landed=LandedOffsets(topics, began=True))
        return replace(now, batch=batch, segments=segments) if segments else now

    def not_read_up(self) -> list[LogPartition]:
        """Return the partitions that the last batch has read, and not to their ends."""
        partitions = {segment.partition for segment in self.segments}
        return sorted(each for each in partitions if each.number in self.landed.topics[each.topic].behind)

    def as_properties(self) -> dict[str, str]:
        """Return the state as table properties. Each topic has its own, because some catalogs limit their size."""
        topics = {
            LANDED + name: json.dumps(
                {"id": topic.id, "ends": dict(topic.ends), "bytes": topic.record_bytes, "behind": dict(topic.behind)}
            )
            for name, topic in self.landed.topics.items()
        }
        segments = json.dumps([[each.segment, *each.partition, *astuple(each)[1:]] for each in self.segments])
        return {**topics, BATCH: str(self.batch), BATCH_SEGMENTS: segments}


def state_of(table: Table | None) -> LandedState:
    properties: Mapping[str, str] = {} if table is None else table.properties
    topics: dict[str, LandedTopic] = {}
    try:
        for key, value in properties.items():
            if key.startswith(LANDED):
                stored: dict[str, Any] = json.loads(value)
                ends, behind = ({int(n): end for n, end in stored[name].items()} for name in ("ends", "behind"))
                topics[key.removeprefix(LANDED)] = LandedTopic(stored["id"], ends, stored["bytes"], behind)
        segments = [
            LandedSegment(LogPartition(topic, number), start, end, records, size, tuple(dates), late_before)
            for _, topic, number, start, end, records, size, dates, late_before in json.loads(
                properties.get(BATCH_SEGMENTS, "[]")
            )
        ]
        landed = LandedOffsets(topics, began=BATCH in properties)
        batch, first = (int(properties.get(name, "0")) for name in (BATCH, FIRST_BATCH))
        return LandedState(landed, batch, tuple(segments), first, properties.get(REMOVED_UPTO, ""))
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise StoredFormError(
            "the properties of `records` cannot be read: an earlier version made this lake"
        ) from error


def landed_state(lake: Lake, feed: str) -> LandedState:
    """Return the state of a feed's `records`. After a crash, nothing else may know of its last batch yet."""
    return state_of(lake.load(system_table(feed, "records")))


_HEADER: Final = types.StructType(
    NestedField(14, "key", types.StringType()), NestedField(15, "value", types.BinaryType())
)
SCHEMA: Final = Schema(
    NestedField(1, "feed_date", types.StringType(), doc="The timestamp's date in the feed's time zone."),
    NestedField(2, "topic", types.StringType(), required=True),
    NestedField(3, "partition", types.IntegerType(), required=True),
    NestedField(4, "offset", types.LongType(), required=True),
    NestedField(5, "timestamp", types.TimestamptzType()),
    NestedField(6, "timestamp_type", types.StringType(), doc="CreateTime or LogAppendTime."),
    NestedField(7, "key", types.BinaryType()),
    NestedField(8, "value", types.BinaryType()),
    NestedField(9, "headers", types.ListType(13, _HEADER)),
    NestedField(10, "size", types.IntegerType(), required=True, doc="Bytes of key and value."),
    NestedField(11, "segment", types.StringType(), required=True, doc="The range of offsets that it landed with."),
    NestedField(12, "batch", types.LongType(), required=True),
)
ARROW_SCHEMA: Final = schema_to_pyarrow(SCHEMA)

_TYPES: Final = (None, "CreateTime", "LogAppendTime")
"""Kafka's names for the client's timestamp types, by number."""
_WHOLE_MINUTES_SINCE: Final = 100_000_000
"""1973, in seconds: since then every zone's offset from UTC is in whole minutes, and changes at a full minute."""
LAST_SECOND: Final = 253_370_764_800
"""The start of the year 9999: Python's calendar ends with that year."""
_DATE_LENGTH: Final[dict[DateSeparator, int]] = {"year": 4, "month": 7, "day": 10}


@dataclass(frozen=True)
class RecordRows:
    """Makes the rows of a batch. Their dates are those of the timestamps in `time_zone`."""

    time_zone: str
    date_separator: DateSeparator
    batch: int

    def add(self, messages: Messages, files: lake_files.DatedFiles) -> tuple[pa.Table, set[str]]:
        """Add the rows to files; return them, with the columns of `SCHEMA`, and their feed dates."""
        flat = np.fromiter(messages.timestamps, np.int64, len(messages.timestamps))
        kinds, times = flat[::2], flat[1::2]
        dated = (kinds > 0) & (times >= 0) & (times < LAST_SECOND * 1000)
        count, partition = len(messages.offsets), messages.range.partition
        dates, which = self._dates(times // 1000, dated)
        keys, values = (_binary(of.lengths, of.content) for of in (messages.keys, messages.values))
        columns = {
            "feed_date": pa.array(dates, pa.large_string()).take(pa.array(which)),
            "topic": pa.repeat(partition.topic, count),
            "partition": pa.repeat(partition.number, count),
            "offset": pa.array(messages.offsets, pa.int64()),
            "timestamp": pa.array(times * 1000, pa.int64(), mask=~dated).view(pa.timestamp("us", "UTC")),
            "timestamp_type": pa.array(_TYPES, pa.large_string()).take(pa.array(kinds)),
            "key": keys,
            "value": values,
            # To Kafka an empty list of headers is the same as none.
            "headers": pa.array([each or None for each in messages.headers], ARROW_SCHEMA.field("headers").type),
            "size": pc.add(*(pc.binary_length(each).fill_null(0) for each in (keys, values))),
            "segment": pa.repeat(messages.range.segment, count),
            "batch": pa.repeat(self.batch, count),
        }
        rows = pa.table([columns[each.name].cast(each.type) for each in ARROW_SCHEMA], schema=ARROW_SCHEMA)
        for number, date in enumerate(dates):
            files.add(date, rows if len(dates) == 1 else rows.filter(pa.array(which == number)))
        return rows, {*filter(None, dates)}

    def _dates(
        self, seconds: np.ndarray[Any, Any], dated: np.ndarray[Any, Any]
    ) -> tuple[list[str | None], np.ndarray[Any, Any]]:
        """Return the distinct dates, and for each second the index of its date."""
        length = _DATE_LENGTH.get(self.date_separator)
        if length is None or not dated.any():
            return [None], np.zeros(len(seconds), dtype=np.int64)
        step = 60 if seconds[dated].min() >= _WHOLE_MINUTES_SINCE else 1
        moments, of_moment = np.unique(np.where(dated, seconds // step, -1), return_inverse=True)
        zone = zone_of(self.time_zone)
        names = [
            None if moment < 0 else datetime.datetime.fromtimestamp(moment * step, zone).date().isoformat()[:length]
            for moment in moments.tolist()
        ]
        dates = list(dict.fromkeys(names))
        return dates, np.array([dates.index(name) for name in names])[of_moment]


def _binary(lengths: Sequence[int], content: bytearray) -> pa.Array:
    """Return the values of a `ByteColumn`, which share its memory."""
    known = np.array(lengths, np.int64)
    ends, valid = np.append(0, np.cumsum(np.maximum(known, 0))), np.packbits(known >= 0, bitorder="little")
    return pa.Array.from_buffers(pa.large_binary(), len(known), [*map(pa.py_buffer, (valid, ends, content))])


_DATES_AT_ONCE: Final = 8


def record_files(table: lake_files.TableFiles, name: str) -> lake_files.DatedFiles:
    """Return new files of records. `name` is part of their names and must be unique to the attempt of a task."""
    plain, repeated = ("offset", "key", "value"), ("feed_date", "topic", "timestamp_type", "segment")
    return lake_files.DatedFiles(table, plain, repeated, _DATES_AT_ONCE, name)


_PROPERTIES: Final = {
    "write.parquet.compression-level": "1",
    # Values hardly ever repeat: building a dictionary costs time.
    "write.parquet.dict-size-bytes": str(64 << 10),
    # Minima and maxima of bytes exclude nothing.
    **{f"write.metadata.metrics.column.{column}": "none" for column in ("key", "value")},
    # Every batch adds a manifest.
    "commit.manifest-merge.enabled": "true",
    "commit.manifest.min-count-to-merge": "10",
}


def files_before(table: Table, batch: int) -> list[lake_files.StoredFile]:
    """Return the data files that hold only records of earlier batches."""
    schema = table.schema()
    live = lake_files.live_files(table, [schema.find_field("batch").field_id])
    return [file for file in live if not lake_files.may_hold(file, schema, {"batch": (batch, None)})]


def remove_before(table: Table, batch: int, files: Sequence[lake_files.StoredFile]) -> None:
    """Remove data files with records of batches before `batch`; these batches are then incomplete. Raises
    `ConcurrentRunError` when another run has changed the table."""
    dates = [table.properties.get(REMOVED_UPTO), *(file.partition[0] for file in files)]
    upto = max((date for date in dates if date is not None), default=None)
    properties = {FIRST_BATCH: str(batch), **({} if upto is None else {REMOVED_UPTO: upto})}
    try:
        commit(table, removed=files, properties=properties)
    except CommitFailedException as error:
        raise ConcurrentRunError("another run has written to `records`") from error


class RecordCommits:
    """Commits to the `records` of a feed."""

    def __init__(self, lake: Lake, feed: str) -> None:
        self._lake, self._feed, self.identifier = lake, feed, system_table(feed, "records")

    def create(self) -> Table:
        """Create the table. Raises `ConcurrentRunError` when another run has just created it."""
        return create(self._lake, self.identifier, SCHEMA, _PROPERTIES, BY_DATE)

    def commit(
        self, table: Table, before: LandedState, properties: Mapping[str, str], files: Sequence[str], batch: int,
        segments: Iterable[LandedSegment],
    ) -> None:  # fmt: skip
        """Commit files and properties together, and a batch's ranges in the summary. Raises `ConcurrentRunError` when
        another run has landed something since `before`; the files are then deleted."""
        self._lake.on_write()
        offsets = defaultdict[str, dict[int, list[int]]](dict)
        for each in segments:
            offsets[each.partition.topic].setdefault(each.partition.number, [each.start, 0])[1] = each.end
        about = {BATCH: str(batch), OFFSETS: json.dumps(offsets)} if offsets else {}

        def stands(now: Table) -> bool:
            return state_of(now) == before  # Another writer may be maintenance, which lands nothing.

        try:
            commit(table, added=files, properties=properties, summary=about, stands=stands)
        except CommitFailedException as error:
            lake_files.delete_unused(table.io.properties, files)
            raise self.too_late() from error

    def too_late(self) -> ConcurrentRunError:
        said = f"another run has landed what this one was to land in {self.identifier}"
        return ConcurrentRunError(said, feed=self._feed)


Decode = Callable[[Iterator[pa.RecordBatch]], tuple[list[str], Any]]
"""Writes what it makes of records (columns of `RECORDS`) to files that nobody has committed; returns them, and more."""


class _TaskResult(NamedTuple):
    """What a task has landed and decoded. `failed` says why it has not decoded its records."""

    segments: list[LandedSegment]
    files: list[str]
    faults: list[CdcError]
    decoded: tuple[list[str], Any] | None
    failed: str | None


def append_records(
    lake: Lake, feed: FeedConfig, spark: Callable[[], SparkSession], pending: Pending, batch: int,
    decode: Decode | None = None,
) -> tuple[tuple[LandedSegment, ...], Sequence[CdcError], Sequence[tuple[list[str], Any]] | None]:  # fmt: skip
    """Land as many of the pending offsets as a run takes as the batch with this number, which must be above all earlier
    ones; return its segments, the faults that limited it, and what `decode` made of each task's records, as they came.
    That is None where more tasks can decode what has landed, and where `decode` failed, which keeps nothing from
    landing. When there is nothing to land, nothing is committed. `spark` is only called for several tasks. Raises
    `ConcurrentRunError` when another run has landed something."""
    commits, source = RecordCommits(lake, feed.name), feed.kafka
    table = lake.load(commits.identifier)
    state = state_of(table)
    starts = {partition: start for partition, (start, _) in pending.offsets.items()}
    if batch <= state.batch or any((state.landed.end(each) or 0) > start for each, start in starts.items()):
        raise commits.too_late()
    ranges = kafka.choose_ranges(pending.offsets, state.landed, source.max_records, source.max_bytes)
    if not ranges and state.after(pending, batch, ()) == state:
        return (), (), None
    lake.on_write()
    table = table or commits.create()
    rows_of = RecordRows(source.time_zone, source.date_separator, batch)
    stored, attempt = lake_files.TableFiles.of(table, lake), f"batch-{batch}-{uuid.uuid4()}"
    late = {each: state.landed.late_before(each, end) for each, (_, end) in pending.offsets.items()}

    def read(numbered: tuple[int, kafka.RangeReader], decode: Decode | None) -> Iterator[_TaskResult]:
        """Read the ranges of the task with this number, and decode them."""
        (number, reader), counts, sizes = numbered, Counter[OffsetRange](), Counter[OffsetRange]()
        dates, own_errors = defaultdict[OffsetRange, set[str]](set), list[Exception]()

        def landed() -> Iterator[pa.Table]:
            try:
                for messages in reader.messages():
                    counts[messages.range] += len(messages.offsets)
                    sizes[messages.range] += messages.size
                    rows, own_dates = rows_of.add(messages, files)
                    dates[messages.range] |= own_dates
                    yield rows
            except Exception as error:
                own_errors.append(error)
                raise

        decoded, failed = None, None
        try:
            # Of two attempts of a task, the one that fails deletes its files: they are not the other's.
            with record_files(stored, f"{attempt}-{number:05d}-{uuid.uuid4().hex[:8]}") as files:
                rows = landed()
                try:
                    decoded = None if decode is None else decode(_as_they_come(rows))
                except Exception as error:  # noqa: BLE001 - Whatever it is, messages land.
                    if own_errors:
                        raise own_errors[0] from None
                    failed = described(error)
                for _ in rows:
                    pass  # What was not decoded.
        except Exception:
            if decoded:
                lake_files.delete_unused(stored.open().properties, decoded[0])
            raise
        found = [
            LandedSegment(of.partition, of.start, end, counts[of], sizes[of], (*sorted(dates[of]),), late[of.partition])
            for of, end in reader.ends.items()
            if end > of.start
        ]
        yield _TaskResult(found, files.written, reader.faults, decoded, failed)

    split = kafka.split_ranges(ranges, state.landed, lambda: spark().sparkContext.defaultParallelism)
    session = spark() if len(split) > 1 else None
    # One task decodes a partition. Where that leaves others without work, the next step divides it.
    is_cut = sum(map(len, split)) > len(ranges)
    if is_cut or (session is None and not fits_driver(kafka.expected_bytes(ranges, state.landed))):
        decode = None

    def run(decode: Decode | None) -> list[_TaskResult]:
        shares = [*enumerate(kafka.RangeReader(source, group) for group in split)]
        return run_tasks(session, shares, functools.partial(read, decode=decode))

    try:
        groups = run(decode)
    except spark_errors() as error:
        # The code of a task fails by what it reads and writes; a worker may have ended by what it decodes.
        if decode is None or type(error).__name__ == "PythonException":
            raise
        groups = [of._replace(failed=described(error)) for of in run(None)]
    decoded, failed = [of.decoded for of in groups if of.decoded], [of.failed for of in groups if of.failed]
    decoded_files = [file for made, _ in decoded for file in made]
    if failed:
        _LOG.warning("%s: messages could not be decoded as they came: %s", feed.name, failed[0])
        lake_files.delete_unused(table.io.properties, decoded_files)
    segments, files, surplus = _whole(groups, starts)
    lake_files.delete_unused(table.io.properties, surplus)
    after = state.after(pending, batch, tuple(segments))
    if after != state:
        try:
            commits.commit(table, state, after.as_properties(), files, batch, segments)
        except ConcurrentRunError:
            lake_files.delete_unused(table.io.properties, decoded_files)
            raise
    faults = {str(fault): fault for of in groups for fault in of.faults}
    return tuple(segments), [*faults.values()], None if decode is None or failed else decoded


def _whole(
    groups: Sequence[_TaskResult], starts: Mapping[LogPartition, int]
) -> tuple[list[LandedSegment], list[str], list[str]]:
    """Return the segments that follow each other from the starts on, their files, and those of other parts: they come
    after one that was not read up."""
    segments, files, surplus, ends = list[LandedSegment](), list[str](), list[str](), dict(starts)
    for of in sorted(groups, key=lambda of: max((part.start for part in of.segments), default=0)):
        if any(part.start > ends[part.partition] for part in of.segments):
            surplus += of.files
        else:
            segments, files = segments + of.segments, files + of.files
            ends |= {part.partition: part.end for part in of.segments}
    return sorted(segments, key=lambda each: (each.partition, each.start)), files, surplus


# Read records in tasks.


_BATCH_BYTES: Final = 16 << 20
_PLACE: Final = ("topic", "partition", "offset", "batch")
_READ: Final = ("feed_date", "topic", "partition", "offset", "timestamp", "key", "value", "segment", "batch")


@dataclass(frozen=True, slots=True)
class PartitionRecords:
    """The records of a partition that landed with a batch, from the offset `start` on, and those from `before` up to
    `start`, which landed with batch `since` or later and are read with them. `bytes` is about their size."""

    partition: LogPartition
    batch: int
    start: int
    before: int
    since: int
    bytes: int


@dataclass(frozen=True, slots=True)
class RecordShare:
    """The records that one task reads. The order of `files` is right for all partitions but `shuffled`."""

    table: lake_files.TableFiles
    files: Sequence[lake_files.StoredFile]
    in_order: Sequence[PartitionRecords]
    shuffled: Sequence[PartitionRecords]

    def read(self) -> Iterator[pa.RecordBatch]:
        """Read them with the columns of `RECORDS`, each partition and batch in the order of its offsets."""
        io, schema = self.table.open(), self.table.schema
        for file in self.files if self.in_order else ():
            for rows in lake_files.read_rows(io, file, schema, _READ, _ranges(self.in_order)):
                yield from _in_batches(_read(rows, self.in_order))
        for each in self.shuffled:
            # Read them in windows, ranges of offsets of some megabytes or one record each.
            places = [
                (rows["offset"].to_numpy()[at], rows["size"].to_numpy()[at])
                for file in self.files
                for rows in lake_files.read_rows(io, file, schema, (*_PLACE, "size"), _ranges([each]))
                for _, at, _ in _matches(rows, [each])
            ]
            offsets, sizes = (np.concatenate(parts) for parts in zip(*places, strict=True))
            order = np.argsort(offsets)
            windows = np.unique(np.cumsum(sizes[order]) // _BATCH_BYTES, return_index=True)[1]
            for start, end in itertools.pairwise([*offsets[order][windows].tolist(), int(offsets.max()) + 1]):
                window = (pc.field("offset") >= start) & (pc.field("offset") < end)
                within = _ranges([each]) | {"offset": (start, end - 1)}
                found = [
                    _read(rows.filter(window), [each])
                    for file in self.files
                    for rows in lake_files.read_rows(io, file, schema, _READ, within)
                ]
                yield from _in_batches(pa.concat_tables(found).sort_by("offset"))


def record_shares(lake: Lake, feed: str, wanted: Sequence[PartitionRecords], tasks: int) -> list[RecordShare]:
    """Divide the wanted records of a feed among at most `tasks` tasks."""
    table = lake.load(system_table(feed, "records"))
    if table is None:
        raise ValueError(f"the feed {feed} has no records")
    ids = {name: table.schema().find_field(name).field_id for name in _PLACE}

    def order(file: lake_files.StoredFile) -> tuple[int, str]:
        # Batches rise with offsets; within a batch, file names sort in the order in which the files were written.
        least, _ = file.bounds.get(ids["batch"], (None, None))
        return 0 if least is None else int.from_bytes(least, "little"), file.path

    def extents_in(file: lake_files.StoredFile) -> dict[PartitionRecords, tuple[int, int, bool]]:
        """Return the first and the last offset that a file has of each, and whether they are in their order."""
        found: dict[PartitionRecords, tuple[int, int, bool]] = {}
        some = [each for each in wanted if lake_files.may_hold(file, table.schema(), _ranges([each]))]
        for rows in lake_files.read_rows(table.io, file, table.schema(), _PLACE, _ranges(some)) if some else ():
            for each, at, _ in _matches(rows, some):
                offsets = rows.column("offset").to_numpy()[at]
                first, last, in_order = found.get(each, (int(offsets[0]), int(offsets[0]) - 1, True))
                in_order = in_order and last < offsets[0] and bool((np.diff(offsets) > 0).all())
                found[each] = min(first, int(offsets.min())), max(last, int(offsets.max())), in_order
        return found

    files = sorted(lake_files.live_files(table, list(ids.values())), key=order)
    # Partitions that share files go to one task each, as far as the tasks get about the same amount of work.
    all_extents = list(ExecutorFactory.get_or_create().map(extents_in, files))
    places = {each: [n for n, extents in enumerate(all_extents) if each in extents] for each in wanted}
    found = sorted(
        (each for each in wanted if places[each]), key=lambda each: (each.batch, places[each], each.partition)
    )
    total, done = sum(each.bytes for each in found) or 1, 0
    shares: dict[int, tuple[set[int], list[PartitionRecords], list[PartitionRecords]]] = {}
    for each in found:
        # By its middle: of four that are about equal, the third does not go to the first task too.
        task = min((done + each.bytes // 2) * tasks // total, tasks - 1)
        own, in_order, shuffled = shares.setdefault(task, (set(), [], []))
        extents = [all_extents[n][each] for n in places[each]]
        follow = all(last < first for (_, last, _), (first, _, _) in itertools.pairwise(extents))
        (in_order if follow and all(right for *_, right in extents) else shuffled).append(each)
        own.update(places[each])
        done += each.bytes
    stored = lake_files.TableFiles.of(table, lake)
    return [RecordShare(stored, [files[n] for n in sorted(own)], *lists) for own, *lists in shares.values()]


def _ranges(wanted: Sequence[PartitionRecords]) -> dict[str, lake_files.Range]:
    """Return the ranges of topics, partitions, batches and offsets that are wanted."""
    topics, numbers = [each.partition.topic for each in wanted], [each.partition.number for each in wanted]
    return {
        "topic": (min(topics), max(topics)),
        "partition": (min(numbers), max(numbers)),
        "batch": (min(each.since for each in wanted), max(each.batch for each in wanted)),
        "offset": (min(each.before for each in wanted), None),
    }


def _matches(
    rows: pa.Table, wanted: Sequence[PartitionRecords]
) -> Iterator[tuple[PartitionRecords, np.ndarray[Any, Any], np.ndarray[Any, Any]]]:
    """Yield the indices of the rows for each wanted item that has some, and which of them came before it."""
    if not rows.num_rows:
        return
    by_partition: dict[LogPartition, list[PartitionRecords]] = {}
    for each in wanted:
        by_partition.setdefault(each.partition, []).append(each)
    topics = rows.column("topic").combine_chunks().dictionary_encode()
    names = topics.dictionary.to_pylist()
    numbers, offsets, batches = (rows.column(name).to_numpy() for name in ("partition", "offset", "batch"))
    codes = topics.indices.to_numpy().astype(np.int64) << 32 | numbers
    order = np.argsort(codes, kind="stable")
    distinct, starts = np.unique(codes[order], return_index=True)
    for code, at in zip(distinct.tolist(), np.split(order, starts[1:]), strict=True):
        for each in by_partition.get(LogPartition(names[code >> 32], code & 0xFFFFFFFF), ()):
            own = batches[at] == each.batch
            chosen = own | ((offsets[at] >= each.before) & (offsets[at] < each.start))
            if chosen.any():
                yield each, at[chosen], ~own[chosen]


def _read(rows: pa.Table, wanted: Sequence[PartitionRecords]) -> pa.Table:
    """Return the wanted rows, in their order, with the columns of `RECORDS`."""
    matches = list(_matches(rows, wanted))
    at = np.concatenate([np.empty(0, np.int64), *(at for _, at, _ in matches)])
    batches = np.repeat([each.batch for each, _, _ in matches], [len(at) for _, at, _ in matches])
    is_before = np.concatenate([np.empty(0, np.bool_), *(is_before for _, _, is_before in matches)])
    order = np.argsort(at, kind="stable")
    if len(at) != rows.num_rows or (np.diff(at[order]) != 1).any():
        rows = rows.take(pa.array(at[order]))
    return _records(rows, pa.array(batches[order], pa.int64()), pa.array(is_before[order], pa.bool_()))


def _records(rows: pa.Table, batches: Any, is_before: pa.Array) -> pa.Table:
    columns = {name: rows.column(name) for name in _READ} | {"batch": batches, "is_before": is_before}
    columns["time_ms"] = pc.divide(rows.column("timestamp").cast(pa.int64()), 1000)
    return pa.table({each.name: columns[each.name].cast(each.type) for each in RECORDS}, schema=RECORDS)


def _as_they_come(landed: Iterator[pa.Table]) -> Iterator[pa.RecordBatch]:
    for rows in landed:
        yield from _records(rows, rows["batch"], pa.repeat(False, rows.num_rows)).to_batches()


def _in_batches(rows: pa.Table) -> Iterator[pa.RecordBatch]:
    """Split rows into batches of some megabytes or one record each."""
    if not rows.num_rows:
        return
    lengths = (pc.fill_null(pc.binary_length(rows.column(name)), 0) for name in ("key", "value"))
    ends = np.cumsum(pc.add(*lengths).to_numpy().astype(np.int64))
    number = ends // (ends[-1] // (ends[-1] // _BATCH_BYTES + 1) + 1)
    starts = np.flatnonzero(np.diff(number, prepend=-1)).tolist()
    for start, end in itertools.pairwise([*starts, rows.num_rows]):
        yield from rows.slice(start, end - start).combine_chunks().to_batches()
