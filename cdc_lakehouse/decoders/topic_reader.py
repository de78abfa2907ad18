"""Decoding of topics' messages into events and, besides these, statements, watermarks and observed columns.

Records of a partition go to one task, in the order of their offsets. Where messages have a commit-ts, it is the
event's; elsewhere it is made: the milliseconds of the source's clock in TiDB's notation, always above the previous one
in the partition, so that the order is the topic's. Records before a batch may be read with it: they give no events
themselves (see `topic_order`).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

from cdc_lakehouse.changelog.events import Ddl, Message, MessageError, Origin, RowChange, TransactionEnd, Watermark
from cdc_lakehouse.changelog.history import ObservedColumns, Statement
from cdc_lakehouse.changelog.positions import AHEAD_MS, LOGICAL_BITS
from cdc_lakehouse.decoders.arrow import pc
from cdc_lakehouse.decoders.event_schema import NEW_EVENTS, EventRows, image_text
from cdc_lakehouse.decoders.format import UsualRows
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

# The columns of a table as its rows show them, where no statement gives them.


@dataclass
class _Known:
    key: tuple[str, ...] | None
    types: dict[str, str] = field(default_factory=dict[str, str])
    orders: set[tuple[str, ...]] = field(default_factory=set[tuple[str, ...]])


class ColumnObserver:
    """The columns of each table that rows of a partition have shown since its last statement. Types that a row does not
    show (for NULL, for columns that it leaves out) are not new: else each pattern of NULLs would be."""

    def __init__(self) -> None:
        self._tables: dict[tuple[str, str], _Known] = {}

    def forget(self, database: str, table: str) -> None:
        """Forget a table after a statement: rows may look as before, and mean other columns. Without a table, forget
        all."""
        if table:
            self._tables.pop((database, table), None)
        else:
            self._tables.clear()

    def new_columns(
        self, row: RowChange, names: Sequence[str], *, in_order: bool
    ) -> tuple[tuple[str, str], ...] | None:
        """Return the row's columns with their types as far as rows have shown them, None where the row shows nothing
        new; with `in_order` another order is new."""
        known = self._tables.get((row.database, row.table))
        if known is None or known.key != row.key:
            known = self._tables[row.database, row.table] = _Known(row.key)
        types, order = row.types, tuple(names) if in_order else ()
        is_known = all(
            name in known.types and (not (type := types.get(name, "")) or type == known.types[name]) for name in names
        )
        if is_known and order in known.orders:
            return None
        columns = tuple((name, types.get(name, "") or known.types.get(name, "")) for name in names)
        known.types.update(columns)
        known.orders.add(order)
        return columns


_ROWS_AT_ONCE: Final = 8192


@dataclass(frozen=True)
class TopicFormat:
    """The format of a feed's messages with its options. `seeds` are, by batch, the commit-ts above which the commit-ts
    made for its rows begin: so they are the same when the batch is decoded again. `takes` says which tables are wanted.
    """

    name: str
    options: Mapping[str, object]
    seeds: Mapping[int, int]
    watermarks: Mapping[int, Mapping[tuple[str, int], int]]
    """By batch, the watermarks of each partition as the batch begins: what is at or below them has been sent before."""
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
        files = [*write(_events(reader, records(number)))]
        yield files, reader.summaries

    data_files: list[str] = []
    found: Summaries = {}
    for files, summaries in run_tasks(spark, range(tasks), decode):
        data_files += files
        found |= summaries
    return data_files, found


def _events(reader: TopicReader, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        yield from reader.read(batch)
    yield from reader.rest()


class TopicReader:
    """Decodes records, columns of `RECORDS`, with those of a topic, partition and batch in the order of their offsets;
    several of these may alternate. It yields rows of events, in any order; at the end `summaries` has everything else.
    """

    def __init__(self, topic_format: TopicFormat) -> None:
        self._format = format_of(topic_format.name)
        self._decode = self._format.decoder(topic_format.options)
        self._columns = self._format.column_reader(topic_format.options)
        self._topic_format = topic_format
        self._takes = functools.cache(topic_format.takes)
        self._rows = EventRows()
        self._states: dict[PartitionBatch, tuple[PartitionSequence, ColumnObserver]] = {}
        self.summaries: Summaries = {}

    def read(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        for each in self._format.batches(batch):
            yield from self._read(each)

    def _read(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        usual = (
            None
            if self._columns is None
            else self._columns(batch.column("value").to_numpy(zero_copy_only=False).tolist())
        )
        number = np.full(batch.num_rows, -1)
        if usual is not None:
            number[usual.places] = np.arange(len(usual.places))
        for rows in _by_place(batch):
            summary = self._enter(_place(batch.slice(int(rows[0]), 1)))
            if usual is not None:
                number[self._ahead(usual, number[rows[number[rows] >= 0]], batch)] = -1
            others, own = rows[number[rows] < 0], number[rows[number[rows] >= 0]]
            if usual is not None and usual.in_order:
                yield from self._read_in_order(summary, usual, own, others, batch)
                continue
            # Only a watermark between messages makes their order matter.
            watermarks = [(-1, summary.watermark or 0)]
            yield from self._read_each(summary, batch.take(pa.array(others)), watermarks)
            if usual is not None:
                yield from self._take_usual(summary, usual, own, batch, np.array(watermarks))

    def _ahead(self, usual: UsualRows, own: np.ndarray[Any, Any], batch: pa.RecordBatch) -> np.ndarray[Any, Any]:
        """Return the positions in the batch of the usual rows in `own` whose time is invalid because it is too far
        ahead."""
        places, latest_ms = usual.places[own], np.full(len(own), self._landed_ms)
        if self._topic_format.has_record_times:
            record_ms: Any = pc.fill_null(batch.column("time_ms"), 0)
            latest_ms = np.maximum(latest_ms, record_ms.to_numpy()[places])
        return places[usual.times_ms[own] > latest_ms + AHEAD_MS]

    def _read_in_order(
        self,
        summary: PartitionSummary,
        usual: UsualRows,
        own: np.ndarray[Any, Any],
        others: np.ndarray[Any, Any],
        batch: pa.RecordBatch,
    ) -> Iterator[pa.RecordBatch]:
        """Yield the events of the usual rows in `own`, and of the other messages between them: each message comes after
        the rows before it, and before the rows after it."""
        offsets = batch.column("offset").to_numpy()[usual.places]
        commit_ts = np.zeros(len(usual.places), np.int64)
        takes = self._taken(usual)
        ends = np.searchsorted(usual.places[own], others).tolist()
        start = 0
        for at, end in zip([*others.tolist(), None], [*ends, len(own)], strict=True):
            if rows := own[start:end].tolist():
                # Each commit-ts is above the previous one.
                steps = np.arange(1, len(rows) + 1)
                made = (usual.times[rows] << LOGICAL_BITS) - steps
                commit_ts[rows] = np.maximum(np.maximum.accumulate(made), summary.last_ts) + steps
                summary.last_ts = int(commit_ts[rows[-1]])
                for row in self._shown(usual, own[start:end], takes):
                    self._observe_shape(summary, usual, row, int(commit_ts[row]), int(offsets[row]))
                start = end
            if at is not None:
                yield from self._read_each(summary, batch.slice(at, 1), [(-1, 0)])
        yield from self._events(summary, usual, own, commit_ts, takes, batch)

    def _taken(self, usual: UsualRows) -> np.ndarray[Any, Any]:
        """Return which shapes belong to tables that are wanted."""
        return np.array([self._takes(each.database, each.table) for each in usual.shapes], bool)

    def _read_each(
        self, summary: PartitionSummary, records: pa.RecordBatch, watermarks: list[tuple[int, int]]
    ) -> Iterator[pa.RecordBatch]:
        """Decode records one by one. Watermarks that come are appended to `watermarks`, each with its offset."""
        cells = [records.column(name).to_pylist() for name in _OF_EACH]
        for date, offset, time_ms, key, value, segment, is_before in zip(*cells, strict=True):
            if value is None and key is not None and self._topic_format.ignores_tombstones:
                if not is_before:
                    summary.others[segment] += 1
                    summary.tombstones[segment] += 1
                continue
            redelivered, bad, taken = self._order.redelivered, 0, len(self._rows)
            # As the feed's clock, where the message has no time, the record's time must not be further ahead either.
            clock_ms = None if time_ms is None or time_ms > self._landed_ms + AHEAD_MS else time_ms
            for message in self._messages(key, value, time_ms):
                if is_before:
                    pass  # The partition's order alone has to know of it.
                elif isinstance(message, MessageError):
                    summary.note_bad(segment, offset, message, value or b"")
                    bad += 1
                else:
                    self._take(summary, message, date, segment, offset, clock_ms)
            if is_before:
                continue
            summary.others[segment] += 1 - bad - (len(self._rows) - taken)
            summary.strict[segment] += self._columns is not None and len(self._rows) > taken
            summary.replays += self._order.redelivered - redelivered
            if summary.watermark is not None and summary.watermark != watermarks[-1][1]:
                watermarks.append((offset, summary.watermark))
            if len(self._rows) >= _ROWS_AT_ONCE:
                yield self._rows.take()

    def _enter(self, place: PartitionBatch) -> PartitionSummary:
        """Switch to the records of a topic, partition and batch; return their summary."""
        if place not in self.summaries:
            topic, partition, number = place
            seed = self._topic_format.seeds[number]
            sent = self._topic_format.watermarks[number].get((topic, partition))
            self.summaries[place] = PartitionSummary(seed, seed, sent)
            self._states[place] = PartitionSequence(self._format), ColumnObserver()
        self._place: PartitionBatch = place
        self._landed_ms = self._topic_format.landed_ms[place[2]]
        self._order, self._observer = self._states[place]
        return self.summaries[place]

    def _messages(
        self, key: bytes | None, value: bytes | None, record_ms: int | None
    ) -> Iterator[Message | MessageError]:
        try:
            decoded = self._decode(key, value)
        except MessageError as error:
            decoded = [error]
        own_ms = record_ms if self._topic_format.has_record_times else None
        latest_ms = max(self._landed_ms, own_ms or 0) + AHEAD_MS
        for message in decoded if isinstance(decoded, list) else [decoded]:
            yield from self._order.next(_not_after(latest_ms, message))

    def rest(self) -> Iterator[pa.RecordBatch]:
        if self._rows:
            yield self._rows.take()

    def _take_usual(
        self,
        summary: PartitionSummary,
        usual: UsualRows,
        own: np.ndarray[Any, Any],
        batch: pa.RecordBatch,
        watermarks: np.ndarray[Any, Any],
    ) -> Iterator[pa.RecordBatch]:
        """Do the same as `_take` for the usual rows in `own`. `watermarks` are the valid ones, each after an offset."""
        behind, sent = watermarks.T
        offsets = batch.column("offset").to_numpy()[usual.places]
        commit_ts = usual.times[own]
        is_new = commit_ts > sent[np.searchsorted(behind, offsets[own]) - 1]
        summary.replays += len(is_new) - int(is_new.sum())
        _note_others(summary, usual, own[~is_new], batch)
        summary.last_ts = max(summary.last_ts, int(commit_ts[is_new].max(initial=0)))
        takes = self._taken(usual)
        wanted = takes[usual.shape_of[own]]
        self._note_sent_before(summary, usual, own[~is_new & wanted], batch)
        # Whether they came before is checked when their table becomes wanted.
        self._note_left_out(summary, usual, own[~is_new & ~wanted])
        new = own[is_new]
        self._observe_usual(summary, usual, new[takes[usual.shape_of[new]]], offsets)
        yield from self._events(summary, usual, new, usual.times, takes, batch)

    def _events(
        self,
        summary: PartitionSummary,
        usual: UsualRows,
        rows: np.ndarray[Any, Any],
        commit_ts: np.ndarray[Any, Any],
        takes: np.ndarray[Any, Any],
        batch: pa.RecordBatch,
    ) -> Iterator[pa.RecordBatch]:
        """Yield the events of `rows`; `commit_ts` has those of all usual rows. Rows whose shape is not in `takes` are
        noted instead."""
        left_out = rows[~takes[usual.shape_of[rows]]]
        self._note_left_out(summary, usual, left_out)
        _note_others(summary, usual, left_out, batch)
        kept = rows[takes[usual.shape_of[rows]]]
        if not len(kept):
            return
        before, after = usual.before, usual.after
        if len(kept) < len(before):
            before, after = before.take(pa.array(kept)), after.take(pa.array(kept))
        places, shapes = pa.array(usual.places[kept]), pa.array(usual.shape_of[kept])
        columns = {
            **{name: batch.column(name).take(places) for name in ("feed_date", "segment")},
            **{
                name: pa.array([getattr(each, own_name) for each in usual.shapes], pa.string()).take(shapes)
                for name, own_name in (("schema_name", "database"), ("table_name", "table"), ("op", "op"))
            },
            "table_version": pa.array(np.zeros(len(kept), np.int64)),
            "physical_partition": pa.nulls(len(kept), pa.int64()),
            "commit_ts": pa.array(commit_ts[kept]),
            "before": before,
            "after": after,
            "line": batch.column("offset").take(places),
        }
        yield pa.RecordBatch.from_arrays([columns[name] for name in NEW_EVENTS.names], schema=NEW_EVENTS)

    def _note_left_out(self, summary: PartitionSummary, usual: UsualRows, rows: np.ndarray[Any, Any]) -> None:
        for at in np.unique(usual.shape_of[rows]).tolist():
            summary.left_out.add((usual.shapes[at].database, usual.shapes[at].table))

    def _note_sent_before(
        self, summary: PartitionSummary, usual: UsualRows, rows: np.ndarray[Any, Any], batch: pa.RecordBatch
    ) -> None:
        if not len(rows):
            return
        segments = batch.column("segment").dictionary_encode().indices.to_numpy()[usual.places[rows]]
        parts = np.stack([usual.shape_of[rows], usual.times[rows], segments], axis=1)
        _, first, counts = np.unique(parts, axis=0, return_index=True, return_counts=True)
        for row, count in zip(rows[first].tolist(), counts.tolist(), strict=True):
            shape, place = usual.shapes[int(usual.shape_of[row])], int(usual.places[row])
            segment, offset = batch.column("segment")[place].as_py(), batch.column("offset")[place].as_py()
            commit_ts = int(usual.times[row])
            summary.note_sent_before(shape.database, shape.table, commit_ts, segment, offset, count)

    def _observe_usual(
        self, summary: PartitionSummary, usual: UsualRows, rows: np.ndarray[Any, Any], offsets: np.ndarray[Any, Any]
    ) -> None:
        """Note, for each shape, the first row with the smallest commit-ts."""
        order = rows[np.lexsort((usual.times[rows], usual.shape_of[rows]))]
        for row in order[np.unique(usual.shape_of[order], return_index=True)[1]].tolist():
            self._observe_shape(summary, usual, row, int(usual.times[row]), int(offsets[row]))

    def _observe_shape(
        self, summary: PartitionSummary, usual: UsualRows, row: int, commit_ts: int, offset: int
    ) -> None:
        shape = usual.shapes[int(usual.shape_of[row])]
        image = dict.fromkeys(shape.names)
        change = RowChange(shape.database, shape.table, shape.op, None, image, shape.types, shape.key)
        self._observe(summary, change, commit_ts, offset, in_order=usual.in_order)

    def _shown(self, usual: UsualRows, rows: np.ndarray[Any, Any], takes: np.ndarray[Any, Any]) -> list[int]:
        """Return those of the rows that show other columns than the previous row of their table."""
        tables: dict[tuple[str, str], int] = {}
        forms: dict[Any, int] = {}
        # The table of each shape, and the columns that it shows, as numbers.
        numbers = np.full((len(usual.shapes), 2), -1)
        for at, shape in enumerate(usual.shapes):
            if takes[at] and shape.op != "D":
                table = tables.setdefault((shape.database, shape.table), len(tables))
                form = (table, self._names(shape.op, shape.names, shape.types), (*shape.types.items(),), shape.key)
                numbers[at] = table, forms.setdefault(form, len(forms))
        table_of, form_of = numbers[usual.shape_of[rows]].T
        order = np.argsort(table_of, kind="stable")
        order = order[table_of[order] >= 0]
        is_other = np.diff(form_of[order], prepend=-1) != 0
        return rows[np.sort(order[is_other])].tolist()

    def _names(self, op: str, names: Sequence[str], types: Mapping[str, str]) -> tuple[str, ...]:
        """Return the columns of an image in the order that it shows."""
        if op != "U" or not self._format.in_table_order:
            return tuple(names)
        # Images that are incomplete put columns out of the table's order.
        shown = set(names)
        return (*(name for name in types if name in shown), *(name for name in names if name not in types))

    def _take(
        self,
        summary: PartitionSummary,
        message: Message,
        date: str | None,
        segment: str,
        offset: int,
        time_ms: int | None,
    ) -> None:
        origin = message.origin
        if message.option_conflict is not None:
            topic, partition, _ = self._place
            summary.note_option_conflict(OptionConflict(topic, partition, offset, message.option_conflict))
        for part in message.parts:
            if isinstance(part, Watermark):
                summary.watermark = max(part.commit_ts, summary.watermark or 0)
            elif isinstance(part, TransactionEnd):
                summary.ended_ts = summary.last_ts
            elif (commit_ts := summary.commit_ts(origin, time_ms)) is None:
                summary.replays += 1
                self._note_part_sent_before(summary, part, origin, segment, offset)
            elif isinstance(part, Ddl):
                place = self._origin(offset, commit_ts)
                statement = Statement(commit_ts, part.database, part.table, part.sql, place, origin.time_ms)
                self._note_statement(summary, offset, statement)
            elif self._takes(part.database, part.table):
                self._observe(summary, part, commit_ts, offset, in_order=origin.commit_ts is None)
                if self._format.lossy_columns is not None:
                    summary.note_lossy(part, self._format.lossy_columns(part))
                images = image_text(part.before), image_text(part.after)
                self._rows.add(date, part.database, part.table, part.op, commit_ts, *images, segment, offset)
            else:
                summary.left_out.add((part.database, part.table))

    def _note_part_sent_before(
        self, summary: PartitionSummary, part: RowChange | Ddl, origin: Origin, segment: str, offset: int
    ) -> None:
        assert origin.commit_ts is not None, "others are never behind a watermark"
        if isinstance(part, Ddl):
            summary.note_stated_before(part, origin.commit_ts, segment, offset)
        elif self._takes(part.database, part.table):
            summary.note_sent_before(part.database, part.table, origin.commit_ts, segment, offset)
        else:
            # Whether it came before is checked when its table becomes wanted.
            summary.left_out.add((part.database, part.table))

    def _note_statement(self, summary: PartitionSummary, offset: int, statement: Statement) -> None:
        summary.statements.append((offset, statement))
        self._observer.forget(statement.database, statement.table)
        if self._format.transactions == "all":
            summary.ended_ts = summary.last_ts  # Elsewhere `Signals.positions` sees to it.

    def _observe(
        self, summary: PartitionSummary, row: RowChange, commit_ts: int, offset: int, *, in_order: bool
    ) -> None:
        # A DELETE may have only its key: it shows nothing about a table's columns.
        image = row.after if row.after is not None else row.before
        if image is None or row.op == "D":
            return
        names = self._names(row.op, tuple(image), row.types)
        if in_order:
            columns = self._observer.new_columns(row, names, in_order=self._format.in_table_order)
        else:
            columns = tuple((name, row.types.get(name, "")) for name in names)
        if columns is not None:
            place = self._origin(offset, commit_ts)
            observed = ObservedColumns(commit_ts, row.database, row.table, columns, row.key, place)
            summary.note_observed(offset, observed, in_order=in_order)

    def _origin(self, offset: int, commit_ts: int) -> str:
        topic, partition, _ = self._place
        return origin_of(topic, partition, offset, commit_ts)


def _note_others(
    summary: PartitionSummary, usual: UsualRows, rows: np.ndarray[Any, Any], batch: pa.RecordBatch
) -> None:
    if len(rows):
        for each in batch.column("segment").take(pa.array(usual.places[rows])).value_counts().to_pylist():
            summary.others[each["values"]] += each["counts"]


def _not_after(latest_ms: int, message: Message | MessageError) -> Message | MessageError:
    if isinstance(message, Message):
        try:
            message.require_not_after(latest_ms)
        except MessageError as error:
            return error
    return message


_OF_EACH: Final = ("feed_date", "offset", "time_ms", "key", "value", "segment", "is_before")


def _by_place(batch: pa.RecordBatch) -> Iterator[np.ndarray[Any, Any]]:
    """Yield the rows of each topic, partition and batch, in their order."""
    places = [
        column.to_numpy()
        for column in (
            batch.column("topic").dictionary_encode().indices,
            batch.column("partition"),
            batch.column("batch"),
        )
    ]
    order = np.arange(batch.num_rows)
    if any((place != place[0]).any() for place in places if len(place)):
        order = np.lexsort(places)
    changed = np.zeros(max(len(order) - 1, 0), dtype=bool)
    for place in places:
        changed |= np.diff(place[order]) != 0
    if len(order):
        yield from np.split(order, np.flatnonzero(changed) + 1)


def _place(record: pa.RecordBatch) -> PartitionBatch:
    topic, partition, number = (record.column(name)[0].as_py() for name in ("topic", "partition", "batch"))
    return topic, partition, number
