"""Decoding of topics' messages into events and, besides these, statements, watermarks and observed columns.

Records of a partition go to one task, in the order of their offsets. Where messages have a commit-ts, it is the
event's; elsewhere it is made: the milliseconds of the source's clock in TiDB's notation, always above the previous one
in the partition, so that the order is the topic's. Records before a batch may be read with it: they give no events
themselves (see `topic_order`).
"""

from __future__ import annotations

import functools
import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from cdc_lakehouse.changelog.events import Message, MessageError, RowChange, TransactionEnd, Watermark
from cdc_lakehouse.changelog.history import ObservedColumns, Statement
from cdc_lakehouse.changelog.positions import AHEAD_MS, END_TS, LOGICAL_BITS
from cdc_lakehouse.decoders.arrow import Mask, Positions, batch_of, where
from cdc_lakehouse.decoders.event_schema import NEW_EVENTS
from cdc_lakehouse.decoders.format import RowShape, UsualRow, UsualRows
from cdc_lakehouse.decoders.problems import BEHIND_WATERMARK, PROBLEMS, RAW_LIMIT, Rejected
from cdc_lakehouse.decoders.registry import format_of
from cdc_lakehouse.decoders.tasks import run_tasks
from cdc_lakehouse.decoders.topic_order import (
    OptionConflict,
    PartitionBatch,
    PartitionSequence,
    PartitionSummary,
    Summaries,
    origin_of,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass
class _Known:
    """The columns of a table as its rows show them, where no statement gives them."""

    key: tuple[str, ...] | None
    types: dict[str, str] = field(default_factory=dict[str, str])
    orders: set[tuple[str, ...]] = field(default_factory=set[tuple[str, ...]])
    noted: dict[tuple[str, tuple[str, ...]], tuple[Mapping[str, str], tuple[int, int]]] = field(
        default_factory=dict[tuple[str, tuple[str, ...]], tuple[Mapping[str, str], tuple[int, int]]]
    )
    """By op and columns, types and place of the row that was noted last: most rows are as one before."""


class ColumnObserver:
    """The columns of each table that rows of a partition have shown since its last statement.

    With `in_order`, where the positions of rows determine their commit-ts, types that a row does not show (for NULL,
    for columns that it leaves out) are not new: else each pattern of NULLs would be. With `in_table_order` another
    order of columns is."""

    def __init__(self, *, in_table_order: bool) -> None:
        self._in_table_order = in_table_order
        self._tables: dict[tuple[str, str], _Known] = {}
        self._last: RowShape | None = None
        self._last_at = 0, 0

    def forget(self, database: str, table: str) -> None:
        """Forget a table after a statement: rows may look as before, and mean other columns. Without a table, forget
        all."""
        self._last = None
        if table:
            self._tables.pop((database, table), None)
        else:
            self._tables.clear()

    def new_columns(
        self, shape: RowShape, at: tuple[int, int], *, in_order: bool
    ) -> tuple[tuple[str, str], ...] | None:
        """Return the columns of a row of this shape with their types as far as rows have shown them, None where it
        shows nothing new. Rows come in any order of their places `at`, the commit-ts and the offset."""
        # A DELETE may have only its key: it shows nothing about a table's columns.
        if shape.op == "D" or (shape is self._last and self._last_at <= at):
            return None
        self._last, self._last_at = shape, at
        known = self._tables.get((shape.database, shape.table))
        if known is None or known.key != shape.key:
            known = self._tables[shape.database, shape.table] = _Known(shape.key)
        types, names = shape.types, shape.names
        if shape.op == "U" and self._in_table_order:
            # Images that are incomplete put columns out of the table's order.
            shown = set(names)
            names = (*(name for name in types if name in shown), *(name for name in names if name not in types))
        place = shape.op, names
        noted = known.noted.get(place)
        if noted is not None and noted[1] <= at and (noted[0] is types or noted[0] == types):
            return None
        order = names if self._in_table_order else ()
        if not in_order:
            columns = tuple((name, types.get(name, "")) for name in names)
        elif order in known.orders and all(
            name in known.types and types.get(name, known.types[name]) == known.types[name] for name in names
        ):
            columns = None
        else:
            columns = tuple((name, types.get(name) or known.types.get(name, "")) for name in names)
            known.noted.clear()  # What it shows depends on what is known.
            known.types.update(columns)
            known.orders.add(order)
        known.noted[place] = types, at
        return columns


_ROWS_AT_ONCE: Final = 8192
_BYTES_AT_ONCE: Final = 16 << 20
"""Of images, in characters: rows with much text are written sooner, as a column of Arrow has 2 GiB at most."""


class _Record(NamedTuple):
    """What is read of a record."""

    feed_date: str | None
    offset: int
    time_ms: int | None
    key: bytes | None
    value: bytes | None
    segment: str
    is_before: bool


@dataclass(frozen=True)
class TopicFormat:
    """The format of a feed's messages with its options. `seeds` are, by batch, the greatest commit-ts before it, from
    which the commit-ts of its rows are made: so they are the same when the batch is decoded again. `takes` says which
    tables are wanted."""

    name: str
    options: Mapping[str, object]
    seeds: Mapping[int, int]
    positions: Mapping[int, Mapping[tuple[str, int], tuple[int, int]]]
    """By batch, the last commit-ts and the watermark (or 0) of each partition as the batch begins: what is at or below
    the watermark has been sent before."""
    late_before: Mapping[int, Mapping[tuple[str, int], int]]
    """By batch, for partitions that were behind, the offset before which messages were waiting when the batch before it
    landed."""
    takes: Callable[[str, str], bool]
    landed_ms: Mapping[int, int]
    """The time at which each batch landed, in milliseconds since 1970. The times of messages are validated against it,
    not against the clock at decoding: so a batch that is decoded again gives the same result."""
    has_record_times: bool
    """Whether a record's timestamp comes from another clock than its message's time."""
    ignores_tombstones: bool
    """Whether a message with a key and no value, which mirrors and connectors write for compaction, is only counted."""


RECORDS: Final = pa.schema([
    ("feed_date", pa.string()),
    ("topic", pa.string()),
    ("partition", pa.int32()),
    ("offset", pa.int64()),
    ("time_ms", pa.int64()),
    ("key", pa.binary()),
    ("value", pa.binary()),
    ("segment", pa.string()),
    ("batch", pa.int64()),
    ("is_before", pa.bool_()),
])  # fmt: skip
"""Records as they are read. `batch` is the batch that they are read with; `is_before` says that they came before it."""


def changes_in_tasks(
    spark: SparkSession | None,
    tasks: int,
    records: Callable[[int], Iterator[pa.RecordBatch]],
    topic_format: TopicFormat,
    write: Callable[[Iterator[pa.RecordBatch]], Iterable[str]],
) -> tuple[list[str], Summaries]:
    """Decode records, and write the events (columns of `NEW_EVENTS`); return the files, and the summaries of the rest.
    `records` returns the records of a task by its number, as `TopicReader.read` expects them. Without Spark the tasks
    run here."""

    def decode(number: int) -> Iterator[tuple[list[str], Summaries]]:
        reader = TopicReader(topic_format)
        events = itertools.chain.from_iterable(map(reader.read, records(number)))
        files = [*write(itertools.chain(events, reader.rest()))]
        yield files, reader.summaries

    data_files: list[str] = []
    found: Summaries = {}
    for files, summaries in run_tasks(spark, range(tasks), decode):
        data_files += files
        found |= summaries
    return data_files, found


class TopicReader:
    """Decodes records, columns of `RECORDS`, with those of a topic, partition and batch in the order of their offsets;
    several of these may alternate. It yields rows of events, in any order; at the end `summaries` has everything else.
    """

    def __init__(self, topic_format: TopicFormat) -> None:
        self._format = format_of(topic_format.name)
        self._decode = self._format.decoder(topic_format.options)
        self._usual = self._format.row_reader(topic_format.options)
        self._columns = self._format.column_reader(topic_format.options)
        self._topic_format = topic_format
        self._takes = functools.cache(topic_format.takes)
        self._rows: list[tuple[object, ...]] = []
        self._size = 0
        self._states: dict[PartitionBatch, tuple[PartitionSequence, ColumnObserver]] = {}
        self.summaries: Summaries = {}

    def read(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        for records in _by_place(batch):
            topic, partition, number = (records.column(name)[0].as_py() for name in ("topic", "partition", "batch"))
            yield from self._read(self._enter((topic, partition, number)), records)

    def _read(self, summary: PartitionSummary, records: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Decode the records of a topic, partition and batch."""
        columns, left = list[UsualRows](), np.ones(records.num_rows, bool)
        if self._columns is not None:
            end_ts = min(END_TS, (self._landed_ms + AHEAD_MS + 1) << LOGICAL_BITS)
            columns = list(self._columns(records.column("value"), end_ts))
        for rows in columns:
            left[rows.places] = False
        # The watermarks among the records, and before them: rows at or below the last one before them came before.
        places, watermarks = [-1], [summary.watermark or 0]
        others, ahead_ms = where(records, left), self._landed_ms + AHEAD_MS
        usual, text_of = self._usual, self._format.text_of
        cells = (_cells(others.column(name)) for name in _Record._fields)
        for at, record in zip(np.flatnonzero(left).tolist(), zip(*cells, strict=True), strict=True):
            date, offset, _, _, value, segment, _ = record
            value = text_of(value)
            row = None if usual is None else usual(value)
            if row is None or row.time_ms > ahead_ms:
                self._read_strictly(summary, _Record(*record), value)
                if (summary.watermark or 0) > watermarks[-1]:
                    places.append(at)
                    watermarks.append(summary.watermark or 0)
            else:
                commit_ts = summary.commit_ts(row.commit_ts, offset, row.time_ms)
                summary.others[segment] += not self._take(summary, row, commit_ts, date, segment, offset)
            if self._size >= _BYTES_AT_ONCE or len(self._rows) >= _ROWS_AT_ONCE:
                yield from self.rest()
        for rows in columns:
            sent_upto = np.array(watermarks)[np.searchsorted(places, rows.places) - 1]
            yield from self._take_rows(summary, rows, records, sent_upto)

    def _take_rows(
        self, summary: PartitionSummary, rows: UsualRows, records: pa.RecordBatch, sent_upto: Positions
    ) -> Iterator[pa.RecordBatch]:
        """Yield the events of rows, and note what they show. Those with a commit-ts of at most `sent_upto` were
        delivered before."""
        change, count, new = rows.change, len(rows.places), rows.commit_ts > sent_upto
        wanted = self._takes(change.database, change.table)
        summary.replays += int(np.count_nonzero(~new))
        summary.last_ts = max(summary.last_ts, int(rows.commit_ts[new].max(initial=0)))
        if not wanted:
            summary.left_out.add((change.database, change.table))
        of = records.select(["feed_date", "segment", "offset"]).take(pa.array(rows.places))
        dates, segments, offsets = of.columns
        events = new & wanted
        for row in np.flatnonzero(~events).tolist():
            segment = segments[row].as_py()
            summary.others[segment] += 1
            if wanted:
                sent = int(rows.commit_ts[row]), segment, offsets[row].as_py()
                summary.note_sent_before(change.database, change.table, *sent)
        if not events.any():
            return
        # The first event of each shape.
        shapes, which = rows.shapes()
        order = np.lexsort([rows.commit_ts, which])
        order = order[events[order]]
        for row in order[np.flatnonzero(np.diff(which[order], prepend=-1))].tolist():
            at = int(rows.commit_ts[row]), offsets[row].as_py()
            self._observe(summary, shapes[int(which[row])], at, in_order=False)
        version, none = pa.repeat(pa.scalar(0, pa.int64()), count), pa.nulls(count, pa.int64())
        database, table, op = (pa.repeat(each, count) for each in (change.database, change.table, change.op))
        commit_ts = pa.array(rows.commit_ts)
        columns = [dates, database, table, version, none, op, commit_ts, rows.before, rows.after, segments, offsets]
        yield where(pa.RecordBatch.from_arrays(columns, schema=NEW_EVENTS), events)

    def _read_strictly(self, summary: PartitionSummary, record: _Record, value: bytes | None) -> None:
        segment, time_ms = record.segment, record.time_ms
        if record.value is None and record.key is not None and self._topic_format.ignores_tombstones:
            if not record.is_before:
                summary.others[segment] += 1
                summary.tombstones[segment] += 1
            return
        latest_ms = max(self._landed_ms, (time_ms or 0) if self._topic_format.has_record_times else 0) + AHEAD_MS
        try:
            decoded = self._decode(record.key, value)
        except MessageError as error:
            decoded = [error]
        decoded = decoded if isinstance(decoded, list) else [decoded]
        # Those that are complete with this record's, and how many of its own had come before.
        messages, redelivered = self._order.next([_not_after(latest_ms, message) for message in decoded])
        if record.is_before:
            return  # The partition's order alone has to know of it.
        bad = events = 0
        # As the feed's clock, where the message has no time, the record's time must not be further ahead either.
        clock_ms = None if time_ms is None or time_ms > self._landed_ms + AHEAD_MS else time_ms
        for message in messages:
            if isinstance(message, Message):
                events += self._take_parts(summary, message, record, clock_ms)
            else:
                summary.note_bad(segment, record.offset, message, value or b"")
                bad += 1
        summary.others[segment] += 1 - bad - events
        summary.strict[segment] += self._usual is not None and events > 0
        summary.replays += redelivered

    def _enter(self, place: PartitionBatch) -> PartitionSummary:
        """Switch to the records of a topic, partition and batch; return their summary."""
        if place not in self.summaries:
            topic, partition, number = place
            seed = self._topic_format.seeds[number]
            last_ts, sent = self._topic_format.positions[number].get((topic, partition), (0, 0))
            # Of a server's log there is one: what is read after something else comes after it.
            last_ts = seed if self._format.transactions == "all" else last_ts
            late_before = self._topic_format.late_before[number].get((topic, partition), 0)
            self.summaries[place] = PartitionSummary(seed, last_ts, sent or None, late_before)
            self._states[place] = (
                PartitionSequence(self._format),
                ColumnObserver(in_table_order=self._format.in_table_order),
            )
        self._place: PartitionBatch = place
        self._landed_ms = self._topic_format.landed_ms[place[2]]
        self._order, self._observer = self._states[place]
        return self.summaries[place]

    def rest(self) -> Iterator[pa.RecordBatch]:
        if self._rows:
            rows, self._rows, self._size = self._rows, [], 0
            yield batch_of(rows, NEW_EVENTS)

    def _take_parts(self, summary: PartitionSummary, message: Message, record: _Record, clock_ms: int | None) -> int:
        """Take the parts of a message in their order; return the number of events. `clock_ms` is the record's time
        where it can be the feed's."""
        origin, events, segment, offset = message.origin, 0, record.segment, record.offset
        if message.option_conflict is not None:
            topic, partition, _ = self._place
            known = summary.option_conflict or OptionConflict(topic, partition, offset, message.option_conflict, 0)
            summary.option_conflict = replace(known, count=known.count + 1)
        for part in message.parts:
            if isinstance(part, Watermark):
                summary.watermark = max(part.commit_ts, summary.watermark or 0)
            elif isinstance(part, TransactionEnd):
                summary.ended_ts = summary.last_ts
            else:
                commit_ts = summary.commit_ts(origin.commit_ts, offset, origin.time_ms, clock_ms)
                if isinstance(part, RowChange):
                    row = UsualRow.of(part, origin)
                    is_event = self._take(summary, row, commit_ts, record.feed_date, segment, offset)
                    lossy = self._format.lossy_columns if is_event else None
                    if lossy is not None and (columns := lossy(part)):
                        summary.lossy.setdefault((part.database, part.table), Counter()).update(columns)
                    events += is_event
                elif commit_ts is None:
                    raw, of = part.sql.encode(errors="replace")[:RAW_LIMIT], (part.database or None, part.table or None)
                    found = Rejected(segment, offset, BEHIND_WATERMARK, PROBLEMS[BEHIND_WATERMARK], raw, *of)
                    summary.stated_before.setdefault((part.database, part.table, origin.commit_ts or 0), found)
                else:
                    place = self._origin(offset, commit_ts)
                    statement = Statement(commit_ts, part.database, part.table, part.sql, place, origin.time_ms)
                    summary.statements.append((offset, statement))
                    self._observer.forget(part.database, part.table)
                    if self._format.transactions == "all":
                        summary.ended_ts = summary.last_ts  # Elsewhere `Signals.positions` sees to it.
        return events

    def _take(
        self,
        summary: PartitionSummary,
        row: UsualRow,
        commit_ts: int | None,
        date: str | None,
        segment: str,
        offset: int,
    ) -> bool:
        """Add the event of a row; return whether it is one. Without a `commit_ts` it was delivered before."""
        shape = row.shape
        if not self._takes(shape.database, shape.table):
            # Whether it came before is checked when its table becomes wanted.
            summary.left_out.add((shape.database, shape.table))
            return False
        if commit_ts is None:
            summary.note_sent_before(shape.database, shape.table, row.commit_ts or 0, segment, offset)
            return False
        self._observe(summary, shape, (commit_ts, offset), in_order=row.commit_ts is None)
        self._rows.append(
            (date, shape.database, shape.table, 0, None, shape.op, commit_ts, row.before, row.after, segment, offset)
        )
        self._size += len(row.before or "") + len(row.after or "")
        return True

    def _observe(self, summary: PartitionSummary, shape: RowShape, at: tuple[int, int], *, in_order: bool) -> None:
        columns = self._observer.new_columns(shape, at, in_order=in_order)
        if columns is not None:
            commit_ts, offset = at
            place = self._origin(offset, commit_ts)
            observed = ObservedColumns(commit_ts, shape.database, shape.table, columns, shape.key, place)
            summary.note_observed(offset, observed, in_order=in_order)

    def _origin(self, offset: int, commit_ts: int) -> str:
        topic, partition, _ = self._place
        return origin_of(topic, partition, offset, commit_ts)


def _not_after(latest_ms: int, message: Message | MessageError) -> Message | MessageError:
    if isinstance(message, Message):
        try:
            message.require_not_after(latest_ms)
        except MessageError as error:
            return error
    return message


def _cells(column: pa.Array) -> list[Any]:
    """Return the values of a column, in a tenth of the time of `to_pylist` where numpy has them."""
    if column.null_count and pa.types.is_integer(column.type):
        return column.to_pylist()
    return column.to_numpy(zero_copy_only=False).tolist()


_LEAST_TOGETHER: Final = 1000
"""Records of a topic, partition and batch are looked for where fewer come together."""


def _by_place(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Yield records of one topic, partition and batch together, in their order."""
    topics = batch.column("topic").dictionary_encode().indices
    places = np.array([topics, batch.column("partition"), batch.column("batch")])
    starts = _starts(places)
    if len(starts) > 1 and len(starts) * _LEAST_TOGETHER > batch.num_rows:
        order = np.lexsort(places)
        batch, starts = batch.take(pa.array(order)), _starts(places[:, order])
    for start, end in itertools.pairwise([*starts.tolist(), batch.num_rows]):
        yield batch.slice(start, end - start)


def _starts(places: Positions) -> Positions:
    is_new: Mask = np.ones(places.shape[1], bool)
    is_new[1:] = (places[:, 1:] != places[:, :-1]).any(axis=0)
    return np.flatnonzero(is_new)
