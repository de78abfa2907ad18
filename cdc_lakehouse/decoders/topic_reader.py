"""Decoding of topics' messages into events and, besides these, statements, watermarks and observed columns.

Records of a partition go to one task, in the order of their offsets. Where messages have a commit-ts, it is the
event's; elsewhere it is made: the milliseconds of the source's clock in TiDB's notation, always above the previous one
in the partition, so that the order is the topic's.

Two halves of an update become one, redelivered messages are left out. For this a batch is read together with the
messages before it, as many as `Format.messages_before` says, which give no events themselves. They are in the lake, so
no state is kept between batches, and a batch that is decoded again gives the same result.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from cdc_lakehouse.changelog.events import Message, MessageError, Origin, RowChange, TransactionEnd, Watermark
from cdc_lakehouse.changelog.history import LogEntry
from cdc_lakehouse.changelog.positions import AHEAD_MS, END_TS, LOGICAL_BITS, is_time_ms
from cdc_lakehouse.decoders import problems
from cdc_lakehouse.decoders.arrow import Positions, batch_of, where
from cdc_lakehouse.decoders.event_schema import NEW_EVENTS, image_text
from cdc_lakehouse.decoders.format import Options, Redelivery, Row, RowShape, UsualRow, UsualRows
from cdc_lakehouse.decoders.problems import BEHIND_WATERMARK, PROBLEMS, RAW_LIMIT, Rejected
from cdc_lakehouse.decoders.registry import format_of

WINDOW: Final = 20_000
"""The number of messages of a partition that are remembered. A redelivery from further back is treated as new, as a
whole and in order: at its end the rows are as before, but statements are applied twice, or hold their table."""


class UpdatePairing:
    """Joins the two halves of an update, as messages of one partition come: a change U without `after`, then one
    without `before`, of one table and one `Origin.log_file`. The update takes the position of its second half; a half
    that is not next to its other half becomes an error. A waiting half is read again together with what comes after it,
    so it is kept nowhere but in the topic."""

    def __init__(self, join: Callable[[Row, Row], Row]) -> None:
        self._join = join
        self.waiting: Message | None = None

    def next(self, message: Message | MessageError) -> Iterator[Message | MessageError]:
        """Yield the messages that are determined by one more message, that of the waiting half first."""
        half, self.waiting = self.waiting, None
        match half, message:
            case (
                Message(Origin(log_file=first), (RowChange(before=dict() as before) as old,)),
                Message(Origin(log_file=second), (RowChange(op="U", before=None, after=dict() as after) as new,)),
            ) if (old.database, old.table, first) == (new.database, new.table, second):
                yield Message(half.origin)
                change = RowChange(new.database, new.table, "U", before, self._join(after, before))
                yield Message(message.origin, (change,))
                return
            case Message(), _:
                yield self._alone(half, "BEFORE that came before this message")
            case _:
                pass
        match message:
            case Message(parts=(RowChange(op="U", after=None),)):
                self.waiting = message
            case Message(parts=(RowChange(op="U", before=None),)):
                yield self._alone(message, "AFTER")
            case _:
                yield message

    def _alone(self, half: Message, which: str) -> MessageError:
        of = next((part.database, part.table) for part in half.parts if isinstance(part, RowChange))
        said = f"the UPDATE {which} stands alone: its other half is not next to it"
        return MessageError(said, of=of, advice="let the DTS task write the table to one partition")


class RedeliveryFilter:
    """Recognises messages that a partition has delivered before: it remembers the last `WINDOW`.

    A DTS task that restarts goes back to a saved position of the source's log, and sends again what it has sent since.
    But a position before the last one need not be old: another server may have become the primary, whose log has other
    positions. So a message is left out if it equals an earlier one: the same position, time and rows. One at an earlier
    position that is *not* equal begins something else, and everything before it is forgotten: otherwise newer rows
    could be left out because they equal older ones.

    With `shared_positions`, one row can change in the same way twice at a position (0 to 1, 1 to 0, 0 to 1): then the
    n-th time differs from the first. With `stale_positions`, only the GTID proves that two messages are the same.
    """

    def __init__(self, redelivery: Redelivery) -> None:
        self._redelivery = redelivery
        self._known = dict[bytes, None]()  # In the order of arrival.
        self._greatest = ("", -1)
        self._last: tuple[str, int] | None = None
        self._at_position = Counter[bytes]()

    def is_redelivered(self, message: Message) -> bool:
        """Whether the message, which is the next one of the partition, was delivered before."""
        origin, parts = message.origin, message.parts
        if not parts:
            return False
        has_no_gtid = self._redelivery.stale_positions and not origin.gtid
        if origin.log_file is None or origin.log_offset is None or has_no_gtid:
            # Without a position it cannot be compared with others.
            self._known.clear()
            return False
        position = (origin.log_file.zfill(20), origin.log_offset)
        content = repr((position, origin.time_ms, origin.gtid, parts))
        identity = hashlib.blake2b(content.encode("utf-8", "surrogatepass"), digest_size=16).digest()
        if position != self._last:
            self._last = position
            self._at_position.clear()
        if self._redelivery.shared_positions and isinstance(parts[0], RowChange):
            self._at_position[identity] += 1
            identity += self._at_position[identity].to_bytes(8)
        if identity in self._known:
            return True
        if position < self._greatest:
            self._known.clear()
        self._greatest = position
        self._known[identity] = None
        if len(self._known) > WINDOW:
            del self._known[next(iter(self._known))]
        return False


# What a task finds in a partition besides the rows: statements, watermarks, observed columns, and problems.

PartitionBatch = tuple[str, int, int]  # Topic, partition and batch.


@dataclass(frozen=True)
class OptionConflict:
    """Messages that contradict an option of the format: the offset and reason of the first one, and their number."""

    topic: str
    partition: int
    offset: int
    reason: str
    count: int = 1


def origin_of(topic: str, partition: int, offset: int, commit_ts: int) -> str:
    """Return the position of a statement or row in the log, of which a message can hold several, as text."""
    return f"{topic}/{partition}/{offset}@{commit_ts}"


@dataclass
class PartitionSummary:
    """What a task found in a partition and batch besides the rows. All times are TSO.

    `seed`: the greatest commit-ts of all batches before, above which those that are made begin. `last_ts`: that of a
    row or statement of the partition. `watermark`: what is at or below it has been sent before. `late_before`: messages
    before this offset were waiting when an earlier batch landed without them, 0 for none. `ended_ts`: that of the last
    complete transaction, None where messages do not show where they end. `replays`: how many messages were left out as
    delivered before. `statements`, `observed`: DDL, and the first row with some columns, each with a message's offset.
    `lossy`: how many changes had lossy text, by (database, table) and column. `sent_before`: rows at or below the
    watermark, by (database, table, commit-ts) and segment, as rejected, in case `events` does not have them;
    `stated_before`: the same for statements and `signals`. `left_out`: unwanted tables, as (database, table), that had
    rows. `bad`: messages that cannot be used, by segment; `counted` gives, by segment, class, database and table, the
    entry that stands for those that are not listed. `others`: by segment, the number of records that are neither events
    nor bad, less the rows beyond a record's first. `strict`: by segment, records with events that were read by
    themselves though others are read at once.
    """

    seed: int
    last_ts: int
    watermark: int | None = None
    late_before: int = 0
    ended_ts: int | None = None
    others: Counter[str] = field(default_factory=Counter)
    tombstones: Counter[str] = field(default_factory=Counter)
    strict: Counter[str] = field(default_factory=Counter, compare=False)
    replays: int = 0
    statements: list[tuple[int, LogEntry]] = field(default_factory=list)
    observed: dict[Any, tuple[int, LogEntry]] = field(default_factory=dict)
    lossy: dict[tuple[str, str], Counter[str]] = field(default_factory=dict)
    sent_before: dict[tuple[tuple[str, str, int], str], Rejected] = field(default_factory=dict)
    stated_before: dict[tuple[str, str, int], Rejected] = field(default_factory=dict)
    left_out: set[tuple[str, str]] = field(default_factory=set)
    bad: dict[str, list[Rejected]] = field(default_factory=dict)
    counted: dict[tuple[str, str, str | None, str | None], int] = field(default_factory=dict)
    option_conflict: OptionConflict | None = None

    def commit_ts(self, commit_ts: int | None, offset: int, *times_ms: int | None) -> int | None:
        """Return the commit-ts of the row or statement that comes next, at this offset; None if it was delivered
        before: at or below the partition's watermark. Where the message has none it is made from the first valid one of
        some times (milliseconds), and exceeds the partition's last one and those of earlier batches, as what is sent
        after them comes after them whatever its time says: a statement's is when it began. A late message alone keeps
        its own time."""
        if commit_ts is None:
            moment = next((time for time in times_ms if time is not None and is_time_ms(time)), 0)
            if offset >= self.late_before or not (moment or self.last_ts):
                self.last_ts = max(self.last_ts, self.seed)
            self.last_ts = max(self.last_ts + 1, moment << LOGICAL_BITS)
        elif commit_ts <= (self.watermark or 0):
            self.replays += 1
            return None
        else:
            self.last_ts = max(self.last_ts, commit_ts)
        return self.last_ts if commit_ts is None else commit_ts

    def note_sent_before(self, database: str, table: str, commit_ts: int, segment: str, offset: int) -> None:
        place, message = ((database, table, commit_ts), segment), PROBLEMS[BEHIND_WATERMARK]
        new = Rejected(segment, offset, BEHIND_WATERMARK, message, None, database, table, count=0)
        known = self.sent_before.get(place, new)
        self.sent_before[place] = replace(known, line=min(known.line or 0, offset), count=known.count + 1)

    def note_bad(self, segment: str, offset: int, error: MessageError, raw: bytes) -> None:
        listed = self.bad.setdefault(segment, [])
        error_class = problems.BAD_WATERMARK if error.is_watermark else problems.BAD_MESSAGE
        database, table = error.of or _table_of(raw)
        found = Rejected(segment, offset, error_class, str(error), raw[:RAW_LIMIT], database, table)
        if len(listed) < problems.LISTED_PER_SEGMENT:
            listed.append(found)
            return
        # One entry for each table, so that no other table is held for them.
        at = self.counted.setdefault((segment, error_class, database, table), len(listed))
        if at == len(listed):
            listed.append(replace(found, raw=b"", count=0))
        listed[at] = replace(listed[at], message=found.message, count=listed[at].count + 1)


Summaries = dict[PartitionBatch, PartitionSummary]


def _table_of(raw: bytes) -> tuple[str | None, str | None]:
    """Return the table that an unusable message in JSON names: only that table is held then."""
    try:
        message = json.loads(raw)
    except (ValueError, RecursionError):
        return None, None
    names = (message.get("database"), message.get("table")) if isinstance(message, dict) else (None, None)
    # Half of a surrogate pair, which JSON's escapes allow, cannot be written as UTF-8.
    is_storable = all(isinstance(of, str) and of and of.encode(errors="replace").decode() == of for of in names)
    return names if is_storable else (None, None)


@dataclass
class _Known:
    """The columns of a table as its rows show them, where no statement gives them."""

    key: tuple[str, ...] | None
    types: dict[str, str] = field(default_factory=dict)
    orders: set[tuple[str, ...]] = field(default_factory=set)
    noted: dict[tuple[str, tuple[str, ...]], tuple[Mapping[str, str], tuple[int, int]]] = field(default_factory=dict)
    """By op and columns, types and place of the row that was noted last: most rows are as one before."""


class ColumnObserver:
    """The columns of each table that rows of a partition have shown since its last statement.

    With `in_order`, where the positions of rows determine their commit-ts, types that a row does not show (for NULL,
    for columns that it leaves out) are not new: else each pattern of NULLs would be. With `in_table_order` another
    order of columns is."""

    def __init__(self, *, in_order: bool, in_table_order: bool) -> None:
        self._in_order, self._in_table_order = in_order, in_table_order
        self._tables: dict[tuple[str, str], _Known] = {}
        self._last: RowShape | None = None
        self._last_at = 0, 0

    def forget(self, database: str, table: str) -> None:
        """Forget a table, or all, after a statement: rows may look as before, and mean other columns."""
        self._last = None
        if table:
            self._tables.pop((database, table), None)
        else:
            self._tables.clear()

    def new_columns(self, shape: RowShape, at: tuple[int, int]) -> tuple[tuple[str, str], ...] | None:
        """Return the columns of a row of this shape with their types as far as rows have shown them, None where it
        shows nothing new. Rows come in any order of their places `at`."""
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
        if not self._in_order:
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
    feed_date: str | None
    offset: int
    time_ms: int | None
    key: bytes | None
    value: bytes | None
    segment: str
    is_before: bool


RECORDS: Final = pa.schema([
    ("feed_date", pa.string()), ("topic", pa.string()), ("partition", pa.int32()), ("offset", pa.int64()),
    ("time_ms", pa.int64()), ("key", pa.binary()), ("value", pa.binary()), ("segment", pa.string()),
    ("batch", pa.int64()), ("is_before", pa.bool_()),
])  # fmt: skip
"""Records as they are read. `batch` is the batch that they are read with; `is_before` says that they came before it."""


class TopicReader:
    """Decodes records, columns of `RECORDS`, into rows of events, in any order; at the end `summaries` has everything
    else. The records of a topic, partition and batch are in the order of their offsets.

    `starts` are the first values of each `PartitionSummary`, which are the same when a batch is decoded again. `takes`
    says which tables are wanted. `landed_ms` is when each batch landed, in milliseconds since 1970: the times of
    messages are validated against it, not against the clock at decoding. `has_record_times`: whether a record's
    timestamp comes from another clock than its message's time. `ignores_tombstones`: whether a message with a key and
    no value, which mirrors and connectors write for compaction, is only counted."""

    def __init__(
        self, name: str, options: Options, starts: Mapping[PartitionBatch, tuple[int, int, int | None, int]],
        takes: Callable[[str, str], bool], landed_ms: Mapping[int, int], *, has_record_times: bool,
        ignores_tombstones: bool,
    ) -> None:  # fmt: skip
        self._format = format_of(name)
        self._decode = self._format.make(options)
        self._usual, self._columns = self._format.row_reader(options), self._format.column_reader(options)
        self._starts, self._takes, self._landed = starts, functools.cache(takes), landed_ms
        self._has_record_times, self._ignores_tombstones = has_record_times, ignores_tombstones
        # Where positions of rows determine their commit-ts.
        self._in_order = not self._format.watermarks(options)
        self._rows = list[tuple[object, ...]]()
        self._size = 0
        self._states = dict[PartitionBatch, tuple[RedeliveryFilter | None, UpdatePairing | None, ColumnObserver]]()
        self.summaries: Summaries = {}

    def read(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        form = self._format
        for records in _by_place(batch):
            topic, partition, number = (records.column(name)[0].as_py() for name in ("topic", "partition", "batch"))
            self._place = place = topic, partition, number
            if place not in self.summaries:
                self.summaries[place] = PartitionSummary(*self._starts[place])
                self._states[place] = (
                    None if form.redelivery is None else RedeliveryFilter(form.redelivery),
                    None if form.joined_update is None else UpdatePairing(form.joined_update),
                    ColumnObserver(in_order=self._in_order, in_table_order=form.in_table_order),
                )
            self._summary, self._landed_ms = self.summaries[place], self._landed[number]
            self._filter, self._pairing, self._observer = self._states[place]
            yield from self._read(records)

    def _read(self, records: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Decode the records of a topic, partition and batch."""
        summary, columns, left = self._summary, list[UsualRows](), np.ones(records.num_rows, bool)
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
                self._read_strictly(_Record(*record), value)
                if (summary.watermark or 0) > watermarks[-1]:
                    places.append(at)
                    watermarks.append(summary.watermark or 0)
            else:
                commit_ts = summary.commit_ts(row.commit_ts, offset, row.time_ms)
                summary.others[segment] += not self._take(row, commit_ts, date, segment, offset)
            if self._size >= _BYTES_AT_ONCE or len(self._rows) >= _ROWS_AT_ONCE:
                yield from self.rest()
        for rows in columns:
            sent_upto = np.array(watermarks)[np.searchsorted(places, rows.places) - 1]
            yield from self._take_rows(rows, records, sent_upto)

    def _take_rows(self, rows: UsualRows, records: pa.RecordBatch, sent_upto: Positions) -> Iterator[pa.RecordBatch]:
        """Yield the events of rows, and note what they show. Those up to `sent_upto` were delivered before."""
        change, count, new = rows.change, len(rows.places), rows.commit_ts > sent_upto
        wanted, summary = self._takes(change.database, change.table), self._summary
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
            self._observe(shapes[int(which[row])], int(rows.commit_ts[row]), offsets[row].as_py())
        version, none = pa.repeat(pa.scalar(0, pa.int64()), count), pa.nulls(count, pa.int64())
        database, table, op = (pa.repeat(each, count) for each in (change.database, change.table, change.op))
        found = dates, database, table, version, none, op, rows.commit_ts, rows.before, rows.after, segments, offsets
        yield where(pa.RecordBatch.from_arrays([*found], schema=NEW_EVENTS), events)

    def _read_strictly(self, record: _Record, value: bytes | None) -> None:
        segment, time_ms, summary = record.segment, record.time_ms, self._summary
        if record.value is None and record.key is not None and self._ignores_tombstones:
            if not record.is_before:
                summary.others[segment] += 1
                summary.tombstones[segment] += 1
            return
        latest_ms = max(self._landed_ms, (time_ms or 0) if self._has_record_times else 0) + AHEAD_MS
        try:
            found = self._decode(value)
        except MessageError as error:
            found = error
        decoded = [
            message.not_after(latest_ms) if isinstance(message, Message) else message
            for message in (found if isinstance(found, list) else [found])
        ]
        # Those that had not come before, and those that are complete with them: of each 0, 1 or 2.
        known = self._filter
        new = [each for each in decoded if not (known and isinstance(each, Message) and known.is_redelivered(each))]
        messages = new if self._pairing is None else [whole for each in new for whole in self._pairing.next(each)]
        if record.is_before:
            return  # The partition's order alone has to know of it.
        bad = events = 0
        # As the feed's clock, where the message has no time, the record's time must not be further ahead either.
        clock_ms = None if time_ms is None or time_ms > self._landed_ms + AHEAD_MS else time_ms
        for message in messages:
            if isinstance(message, Message):
                events += self._take_parts(message, record, clock_ms)
            else:
                summary.note_bad(segment, record.offset, message, value or b"")
                bad += 1
        summary.others[segment] += 1 - bad - events
        summary.strict[segment] += self._usual is not None and events > 0
        summary.replays += len(decoded) - len(new)

    def rest(self) -> Iterator[pa.RecordBatch]:
        if self._rows:
            rows, self._rows, self._size = self._rows, [], 0
            yield batch_of(rows, NEW_EVENTS)

    def _take_parts(self, message: Message, record: _Record, clock_ms: int | None) -> int:
        """Take the parts of a message; return the number of events."""
        origin, events, segment, offset, summary = message.origin, 0, record.segment, record.offset, self._summary
        topic, partition, _ = self._place
        if message.option_conflict is not None:
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
                    images = image_text(part.before), image_text(part.after)
                    row = UsualRow(RowShape.of(part), origin.commit_ts, origin.time_ms or 0, *images)
                    is_event = self._take(row, commit_ts, record.feed_date, segment, offset)
                    lossy = self._format.lossy_columns if is_event else None
                    if lossy is not None and (columns := lossy(part)):
                        summary.lossy.setdefault((part.database, part.table), Counter()).update(columns)
                    events += is_event
                elif commit_ts is None:
                    raw, of = part.sql.encode(errors="replace")[:RAW_LIMIT], (part.database or None, part.table or None)
                    found = Rejected(segment, offset, BEHIND_WATERMARK, PROBLEMS[BEHIND_WATERMARK], raw, *of)
                    summary.stated_before.setdefault((part.database, part.table, origin.commit_ts or 0), found)
                else:
                    place = origin_of(topic, partition, offset, commit_ts)
                    statement = LogEntry(commit_ts, part.database, part.table, place, part.sql, origin.time_ms)
                    summary.statements.append((offset, statement))
                    self._observer.forget(part.database, part.table)
                    if self._format.transactions == "all":
                        summary.ended_ts = summary.last_ts  # Elsewhere `Signals.positions` sees to it.
        return events

    def _take(self, row: UsualRow, commit_ts: int | None, date: str | None, segment: str, offset: int) -> bool:
        """Add the event of a row; return whether it is one. Without a `commit_ts` it was delivered before."""
        shape, summary = row.shape, self._summary
        if not self._takes(shape.database, shape.table):
            # Whether it came before is checked when its table becomes wanted.
            summary.left_out.add((shape.database, shape.table))
            return False
        if commit_ts is None:
            summary.note_sent_before(shape.database, shape.table, row.commit_ts or 0, segment, offset)
            return False
        self._observe(shape, commit_ts, offset)
        self._rows.append(
            (date, shape.database, shape.table, 0, None, shape.op, commit_ts, row.before, row.after, segment, offset)
        )
        self._size += len(row.before or "") + len(row.after or "")
        return True

    def _observe(self, shape: RowShape, commit_ts: int, offset: int) -> None:
        """Note the columns of a row, unless they are known."""
        columns = self._observer.new_columns(shape, (commit_ts, offset))
        if columns is None:
            return
        topic, partition, _ = self._place
        statements = len(self._summary.statements) if self._in_order else 0
        place = shape.database, shape.table, columns, shape.key, statements
        known = self._summary.observed.get(place)
        if known is None or (commit_ts, offset) < (known[1].commit_ts, known[0]):
            origin = origin_of(topic, partition, offset, commit_ts)
            observed = LogEntry(commit_ts, shape.database, shape.table, origin, columns=columns, key=shape.key)
            self._summary.observed[place] = offset, observed


def _cells(column: pa.Array) -> list[Any]:
    """Return the values of a column, in a tenth of the time of `to_pylist` where numpy has them."""
    if column.null_count and pa.types.is_integer(column.type):
        return column.to_pylist()
    return column.to_numpy(zero_copy_only=False).tolist()


_LEAST_TOGETHER: Final = 1000  # Records of a topic, partition and batch are looked for where fewer come together.


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
    return np.flatnonzero(np.diff(places, prepend=-1).any(axis=0))
