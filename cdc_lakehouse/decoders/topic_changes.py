"""Messages of topics as events, and beside them what is not of a row: statements, watermarks, columns as they are seen.

Records come to a task by topic and partition, in the order of their offsets. Where messages have a commit-ts, that is
an event's; elsewhere it is made: the milliseconds of the source's clock in TiDB's notation, and always above the one
before in the partition, so that the order is the topic's. Records that come before a batch may be read with it: they
give nothing themselves (see `partition_order`)."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

import pyarrow as pa
from pyspark import AccumulatorParam
from pyspark.accumulators import Accumulator
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from cdc_lakehouse.changelog.messages import Ddl, Ended, Message, MessageError, RowChange, Watermark
from cdc_lakehouse.changelog.positions import LOGICAL_BITS
from cdc_lakehouse.decoders.column_sights import ColumnSights
from cdc_lakehouse.decoders.event_rows import COLUMNS, EventRows
from cdc_lakehouse.decoders.messages.registry import decoder, plain_reader
from cdc_lakehouse.decoders.messages.ticdc_plain_rows import PlainRow, Shape, told
from cdc_lakehouse.decoders.partition_order import PartitionOrder

Place = tuple[str, int, int]
"""Topic, partition and batch."""

PlainSight = tuple[str, str, Shape, tuple[str, ...]]

_NEVER: Final = 1 << 63
_SHAPES_KEPT: Final = 1000
_ROWS_AT_ONCE: Final = 8192
_BAD_LISTED: Final = 1000
_RAW_LIMIT: Final = 64 * 1024


@dataclass(frozen=True)
class FoundStatement:
    commit_ts: int
    database: str
    table: str
    text: str
    offset: int
    segment: str


@dataclass(frozen=True)
class FoundSight:
    """The first row of the partition that has these columns."""

    commit_ts: int
    database: str
    table: str
    columns: tuple[tuple[str, str], ...]
    key: tuple[str, ...] | None
    offset: int
    segment: str


@dataclass(frozen=True)
class BadMessage:
    """A message that cannot be used; those beyond the first ones of a segment are only counted."""

    segment: str
    offset: int
    message: str
    raw: bytes
    count: int = 1
    database: str | None = None
    table: str | None = None


@dataclass(frozen=True)
class FoundDoubts:
    """Messages that contradict an option of the format: the first one, and how many they are."""

    first: str
    offset: int
    count: int = 1


@dataclass
class PartitionFinds:
    """What a task found in a partition beside the rows. `last_ts` is the greatest commit-ts of a row or statement,
    `seed` where there is none; `ended_ts` that of the last transaction that is whole, None where messages do not tell
    transactions apart. `replays` were left out, for they had come before."""

    seed: int
    last_ts: int
    watermark: int | None = None
    ended_ts: int | None = None
    replays: int = 0
    statements: list[FoundStatement] = field(default_factory=list[FoundStatement])
    sights: dict[Any, FoundSight] = field(default_factory=dict[Any, FoundSight])
    plain_sights: dict[PlainSight, int] = field(default_factory=dict[PlainSight, int])
    bad: dict[str, list[BadMessage]] = field(default_factory=dict[str, list[BadMessage]])
    doubts: FoundDoubts | None = None


Finds = dict[Place, PartitionFinds]


class _Merged(AccumulatorParam[Finds]):
    """A task that is run again finds the same again."""

    def zero(self, value: Finds) -> Finds:
        return {}

    def addInPlace(self, value1: Finds, value2: Finds) -> Finds:  # noqa: N802 - PySpark's name
        return {**value1, **value2}


_MERGED: Final = _Merged()


@dataclass(frozen=True)
class TopicFormat:
    """The format of a feed's messages with its options. `seeds` are the commit-ts, by batch, above which those begin
    that are made for its rows: so they are the same when it is decoded again. `takes` says which tables are wanted."""

    name: str
    options: Mapping[str, object]
    seeds: Mapping[int, int]
    watermarks: Mapping[int, Mapping[tuple[str, int], int]]
    """By batch, of each partition as the batch begins: what is at or below them has been sent before."""
    takes: Callable[[str, str], bool]


def changes_in_tasks(
    spark: SparkSession, records: DataFrame, topic_format: TopicFormat, before: DataFrame | None = None
) -> tuple[DataFrame, Accumulator[Finds]]:
    """Events of the records, and what else is in them: known once the frame is written. `before` are records that come
    before them, with the batch that they are to be read with."""
    found: Accumulator[Finds] = spark.sparkContext.accumulator({}, _MERGED)
    wanted = _wanted(records, is_before=False)
    if before is not None:
        wanted = wanted.unionByName(_wanted(before, is_before=True))
    tasks = spark.sparkContext.defaultParallelism
    # By turns, for partitions of a topic are of one size: hashes would give a task three of four.
    turn = F.pmod(F.crc32("topic") + F.col("partition"), F.lit(tasks)).cast("int")
    ordered = wanted.repartitionById(tasks, turn).sortWithinPartitions("topic", "partition", "batch", "offset")

    def changes(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        reader = TopicReader(topic_format)
        for batch in batches:
            yield from reader.read(batch)
        yield from reader.rest()
        found.add(reader.finds)

    return ordered.mapInArrow(changes, COLUMNS), found


def _wanted(records: DataFrame, *, is_before: bool) -> DataFrame:
    return records.select(
        "feed_date", "topic", "partition", "offset", F.unix_millis("timestamp").alias("time_ms"), "key", "value",
        "segment", "batch", F.lit(is_before).alias("is_before"),
    )  # fmt: skip


class TopicReader:
    """Reads records in order of topic, partition, batch and offset: columns as `changes_in_tasks` selects them. It
    gives rows of events, and at the end has in `finds` what else is in them."""

    def __init__(self, topic_format: TopicFormat) -> None:
        self._decode = decoder(topic_format.name, topic_format.options)
        self._plain = plain_reader(topic_format.name, topic_format.options)
        self._format = topic_format
        self._takes = functools.cache(topic_format.takes)
        self._told = functools.lru_cache(_SHAPES_KEPT)(told)
        self._rows = EventRows()
        self._place: Place | None = None
        self._order = PartitionOrder(topic_format.name)
        self._sights = ColumnSights()
        self.finds: Finds = {}

    def read(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        for date, topic, partition, offset, time_ms, key, value, segment, number, is_before in zip(
            *map(_listed, batch.columns), strict=True
        ):
            finds = self._finds((topic, partition, number))
            if is_before:
                for _ in self._messages(key, value):
                    pass
                continue
            plain = self._plain(value) if self._plain is not None and value is not None else None
            if plain is None or not self._take_plain(finds, plain, date, segment, offset):
                self._read(finds, key, value, date, segment, offset, time_ms)
            if len(self._rows) >= _ROWS_AT_ONCE:
                yield self._rows.take()

    def _finds(self, place: Place) -> PartitionFinds:
        if place != self._place:
            # Places come one after the other.
            topic, partition, number = self._place = place
            self._order, self._sights = PartitionOrder(self._format.name), ColumnSights()
            seed = self._format.seeds[number]
            sent = self._format.watermarks[number].get((topic, partition))
            self.finds[place] = PartitionFinds(seed, seed, sent)
        return self.finds[place]

    def _messages(self, key: bytes | None, value: bytes | None) -> Iterator[Message | MessageError]:
        try:
            decoded = self._decode(key, value)
        except MessageError as error:
            decoded = [error]
        for message in decoded if isinstance(decoded, list) else [decoded]:
            yield from self._order.next(message)

    def rest(self) -> Iterator[pa.RecordBatch]:
        if self._rows:
            yield self._rows.take()

    def _read(
        self,
        finds: PartitionFinds,
        key: bytes | None,
        value: bytes | None,
        date: str | None,
        segment: str,
        offset: int,
        time_ms: int | None,
    ) -> None:
        left_out = self._order.left_out
        for message in self._messages(key, value):
            if isinstance(message, MessageError):
                _note_bad(finds, segment, offset, message, value or b"")
            else:
                self._take(finds, message, date, segment, offset, time_ms)
        finds.replays += self._order.left_out - left_out

    def _take_plain(self, finds: PartitionFinds, row: PlainRow, date: str | None, segment: str, offset: int) -> bool:
        """Whether it could be: what `_take` and `_row` do, for the one row of a message with a commit-ts."""
        types_and_key = self._told(row.shape)
        if types_and_key is None:
            return False
        commit_ts = row.commit_ts
        if commit_ts <= (finds.watermark or 0):
            finds.replays += 1
            return True
        finds.last_ts = max(finds.last_ts, commit_ts)
        database, table, after = row.database, row.table, row.after
        if not self._takes(database, table):
            return True
        if after is not None:
            seen = (database, table, row.shape, tuple(after))
            if commit_ts < finds.plain_sights.get(seen, _NEVER):
                finds.plain_sights[seen] = commit_ts
                types, key = types_and_key
                self._sight(
                    finds, RowChange(database, table, row.op, None, after, types, key), commit_ts, segment, offset
                )
        self._rows.add(date, database, table, row.op, commit_ts, row.before, after, segment, offset)
        return True

    def _take(
        self, finds: PartitionFinds, message: Message, date: str | None, segment: str, offset: int, time_ms: int | None
    ) -> None:
        origin = message.origin
        if message.doubt is not None:
            first = finds.doubts or FoundDoubts(message.doubt, offset, 0)
            finds.doubts = replace(first, count=first.count + 1)
        for part in message.parts:
            if isinstance(part, Watermark):
                finds.watermark = max(part.commit_ts, finds.watermark or 0)
                continue
            if isinstance(part, Ended):
                finds.ended_ts = finds.last_ts
                continue
            commit_ts = origin.commit_ts
            if commit_ts is None:
                moment = origin.time_ms if origin.time_ms is not None else time_ms or 0
                commit_ts = max(finds.last_ts + 1, moment << LOGICAL_BITS)
            elif commit_ts <= (finds.watermark or 0):
                finds.replays += 1  # A changefeed that starts again sends what it has sent.
                continue
            finds.last_ts = max(finds.last_ts, commit_ts)
            if isinstance(part, Ddl):
                finds.statements.append(FoundStatement(commit_ts, part.database, part.table, part.sql, offset, segment))
                self._sights.forget(part.database, part.table)
                # A statement commits what is open.
                finds.ended_ts = finds.last_ts if finds.ended_ts is not None else None
            elif self._takes(part.database, part.table):
                self._row(finds, part, commit_ts, date, segment, offset, in_order=origin.commit_ts is None)

    def _row(
        self,
        finds: PartitionFinds,
        row: RowChange,
        commit_ts: int,
        date: str | None,
        segment: str,
        offset: int,
        *,
        in_order: bool,
    ) -> None:
        # A DELETE may have its key alone: it tells nothing of a table's columns.
        if row.op != "D":
            self._sight(finds, row, commit_ts, segment, offset, in_order=in_order)
        self._rows.add(date, row.database, row.table, row.op, commit_ts, row.before, row.after, segment, offset)

    def _sight(
        self,
        finds: PartitionFinds,
        row: RowChange,
        commit_ts: int,
        segment: str,
        offset: int,
        *,
        in_order: bool = False,
    ) -> None:
        image = row.after if row.after is not None else row.before
        if image is None:
            return
        if in_order:
            columns, statements = self._sights.of(row, image), len(finds.statements)
        else:
            columns, statements = tuple((name, row.types.get(name) or "") for name in image), 0
        if columns is None:
            return
        shape = (row.database, row.table, columns, row.key, statements)
        known = finds.sights.get(shape)
        if known is None or commit_ts < known.commit_ts:
            finds.sights[shape] = FoundSight(commit_ts, row.database, row.table, columns, row.key, offset, segment)


def _listed(column: pa.Array) -> list[Any]:
    """Its values. Texts are the same for many rows: each is made once."""
    if pa.types.is_string(column.type):
        encoded = column.dictionary_encode()
        texts = encoded.dictionary.to_pylist()
        return [None if at is None else texts[at] for at in encoded.indices.to_pylist()]
    if column.null_count == 0 and pa.types.is_integer(column.type):
        return column.to_numpy().tolist()
    return column.to_pylist()


def _table_of(raw: bytes) -> tuple[str | None, str | None]:
    """The table that a message in JSON names, though the rest of it cannot be used: it alone is held then."""
    try:
        told = json.loads(raw)
    except (ValueError, RecursionError):
        return None, None
    names = (told.get("database"), told.get("table")) if isinstance(told, dict) else (None, None)
    return names if all(isinstance(name, str) and name for name in names) else (None, None)


def _note_bad(finds: PartitionFinds, segment: str, offset: int, error: MessageError, raw: bytes) -> None:
    listed = finds.bad.setdefault(segment, [])
    message = str(error)
    if len(listed) < _BAD_LISTED:
        database, table = error.of or _table_of(raw)
        listed.append(BadMessage(segment, offset, message, raw[:_RAW_LIMIT], database=database, table=table))
        return
    last = listed[-1]
    count = last.count + 1 if len(listed) > _BAD_LISTED else 1
    del listed[_BAD_LISTED:]
    listed.append(BadMessage(segment, offset if count == 1 else last.offset, message, b"", count))
