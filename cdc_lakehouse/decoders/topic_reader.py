"""Messages of topics as events, and beside them what is not of a row: statements, watermarks, observed columns.

Records come to a task by topic and partition, in the order of their offsets. Where messages have a commit-ts, that is
an event's; elsewhere it is made: the milliseconds of the source's clock in TiDB's notation, and always above the one
before in the partition, so that the order is the topic's. Records that come before a batch may be read with it: they
give nothing themselves (see `partition_sequence`)."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
from pyspark import AccumulatorParam
from pyspark.accumulators import Accumulator
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from cdc_lakehouse.changelog.events import Ddl, Message, MessageError, RowChange, TransactionEnd, Watermark
from cdc_lakehouse.changelog.observed_schema import ObservedColumns, Statement
from cdc_lakehouse.decoders.event_schema import EventRows, image_text
from cdc_lakehouse.decoders.messages.format import PlainRow
from cdc_lakehouse.decoders.messages.registry import format_of
from cdc_lakehouse.decoders.observed_columns import ColumnObserver
from cdc_lakehouse.decoders.partition_sequence import PartitionSequence
from cdc_lakehouse.decoders.partition_summary import (
    OptionConflict,
    PartitionBatch,
    PartitionSummary,
    Summaries,
    origin_of,
)

PlainShape = tuple[str, str, tuple[bytes, bytes], tuple[str, ...]]

_NEVER: Final = 1 << 63
_SHAPES_KEPT: Final = 1000
_ROWS_AT_ONCE: Final = 8192


class _Merged(AccumulatorParam[Summaries]):
    """A task that is run again summary the same again."""

    def zero(self, value: Summaries) -> Summaries:
        return {}

    def addInPlace(self, value1: Summaries, value2: Summaries) -> Summaries:  # noqa: N802 - PySpark's name
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


Take = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]
"""What becomes of a task's events, columns of `NEW_EVENTS`."""


def changes_in_tasks(
    spark: SparkSession,
    records: DataFrame,
    topic_format: TopicFormat,
    take: Take,
    columns: str,
    before: DataFrame | None = None,
) -> tuple[DataFrame, Accumulator[Summaries]]:
    """What `take` makes of the records' events, a frame with these columns; and what else is in the records, known once
    the frame has been worked out. `before` are records that come before them, with the batch that they are to be read
    with."""
    found: Accumulator[Summaries] = spark.sparkContext.accumulator({}, _MERGED)
    wanted = _wanted(records, is_before=False)
    if before is not None:
        wanted = wanted.unionByName(_wanted(before, is_before=True))
    tasks = spark.sparkContext.defaultParallelism
    # By turns, for partitions of a topic are of one size: hashes would give a task three of four.
    turn = F.pmod(F.crc32("topic") + F.col("partition"), F.lit(tasks)).cast("int")
    ordered = wanted.repartitionById(tasks, turn).sortWithinPartitions("topic", "partition", "batch", "offset")

    def changes(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        reader = TopicReader(topic_format)

        def events() -> Iterator[pa.RecordBatch]:
            for batch in batches:
                yield from reader.read(batch)
            yield from reader.rest()

        yield from take(events())
        found.add(reader.summaries)

    return ordered.mapInArrow(changes, columns), found


def _wanted(records: DataFrame, *, is_before: bool) -> DataFrame:
    return records.select(
        "feed_date", "topic", "partition", "offset", F.unix_millis("timestamp").alias("time_ms"), "key", "value",
        "segment", "batch", F.lit(is_before).alias("is_before"),
    )  # fmt: skip


class TopicReader:
    """Reads records in order of topic, partition, batch and offset: columns as `changes_in_tasks` selects them. It
    gives rows of events, and at the end has in `summaries` what else is in them."""

    def __init__(self, topic_format: TopicFormat) -> None:
        self._format = format_of(topic_format.name)
        self._decode = self._format.decoder(topic_format.options)
        self._plain = self._format.plain_reader(topic_format.options)
        self._topic_format = topic_format
        self._takes = functools.cache(topic_format.takes)
        if self._plain is not None:
            self._types_and_key = functools.lru_cache(_SHAPES_KEPT)(self._plain.types_and_key)
        self._rows = EventRows()
        self._place: PartitionBatch | None = None
        self._order = PartitionSequence(self._format)
        self._observer = ColumnObserver()
        self._plain_shapes: dict[PlainShape, int] = {}
        self.summaries: Summaries = {}

    def read(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        for date, topic, partition, offset, time_ms, key, value, segment, number, is_before in zip(
            *map(_listed, batch.columns), strict=True
        ):
            summary = self._summary((topic, partition, number))
            if is_before:
                for _ in self._messages(key, value):
                    pass  # The partition's order alone has to know of it.
                continue
            plain = self._plain.read(value) if self._plain is not None and value is not None else None
            if plain is None or not self._take_plain(summary, plain, date, segment, offset):
                self._read(summary, (key, value), date, segment, offset, time_ms)
            if len(self._rows) >= _ROWS_AT_ONCE:
                yield self._rows.take()

    def _summary(self, place: PartitionBatch) -> PartitionSummary:
        if place != self._place:
            # Places come one after the other.
            topic, partition, number = self._place = place
            self._order, self._observer, self._plain_shapes = PartitionSequence(self._format), ColumnObserver(), {}
            seed = self._topic_format.seeds[number]
            sent = self._topic_format.watermarks[number].get((topic, partition))
            self.summaries[place] = PartitionSummary(seed, seed, sent)
        return self.summaries[place]

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
        summary: PartitionSummary,
        record: tuple[bytes | None, bytes | None],
        date: str | None,
        segment: str,
        offset: int,
        time_ms: int | None,
    ) -> None:
        redelivered = self._order.redelivered
        for message in self._messages(*record):
            if isinstance(message, MessageError):
                summary.note_bad(segment, offset, message, record[1] or b"")
            else:
                self._take(summary, message, date, segment, offset, time_ms)
        summary.replays += self._order.redelivered - redelivered

    def _take_plain(
        self, summary: PartitionSummary, row: PlainRow, date: str | None, segment: str, offset: int
    ) -> bool:
        """Whether it could be: what `_take` does, for the one row of a message with a commit-ts."""
        types_and_key = self._types_and_key(row.shape)
        if types_and_key is None:
            return False
        commit_ts = row.commit_ts
        if not summary.begins(commit_ts):
            summary.replays += 1
            return True
        database, table, after = row.database, row.table, row.after
        if not self._takes(database, table):
            return True
        if after is not None:
            shape = (database, table, row.shape, tuple(after))
            if commit_ts < self._plain_shapes.get(shape, _NEVER):
                self._plain_shapes[shape] = commit_ts
                seen = RowChange(database, table, row.op, None, after, *types_and_key)
                self._observe(summary, seen, commit_ts, offset, in_order=False)
        before = image_text(row.before)
        self._rows.add(date, database, table, row.op, commit_ts, before, image_text(after), segment, offset)
        return True

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
            topic, partition, _ = self._batch
            summary.note_option_conflict(OptionConflict(topic, partition, offset, message.option_conflict))
        for part in message.parts:
            if isinstance(part, Watermark):
                summary.watermark = max(part.commit_ts, summary.watermark or 0)
            elif isinstance(part, TransactionEnd):
                summary.ended_ts = summary.last_ts
            elif (commit_ts := summary.commit_ts(origin, time_ms)) is None:
                summary.replays += 1
            elif isinstance(part, Ddl):
                place = self._origin(offset, commit_ts)
                statement = Statement(commit_ts, part.database, part.table, part.sql, place, origin.time_ms)
                self._note_statement(summary, offset, statement)
            elif self._takes(part.database, part.table):
                self._observe(summary, part, commit_ts, offset, in_order=origin.commit_ts is None)
                if self._format.made_by_canal:
                    summary.note_lossy(part)
                images = image_text(part.before), image_text(part.after)
                self._rows.add(date, part.database, part.table, part.op, commit_ts, *images, segment, offset)

    def _note_statement(self, summary: PartitionSummary, offset: int, statement: Statement) -> None:
        summary.statements.append((offset, statement))
        self._observer.forget(statement.database, statement.table)
        if self._format.transactions == "all":
            summary.ended_ts = summary.last_ts  # Elsewhere `Signals.positions` sees to it.

    def _observe(
        self, summary: PartitionSummary, row: RowChange, commit_ts: int, offset: int, *, in_order: bool
    ) -> None:
        # A DELETE may have its key alone: it shows nothing of a table's columns.
        image = row.after if row.after is not None else row.before
        if image is None or row.op == "D":
            return
        names = tuple(image)
        if row.op == "U" and self._format.made_by_canal:
            # Images that are not whole put columns out of the table's order.
            names = (*(name for name in row.types if name in image), *(n for n in names if n not in row.types))
        if in_order:
            columns = self._observer.new_columns(row, names, in_order=self._format.made_by_canal)
        else:
            columns = tuple((name, row.types.get(name, "")) for name in names)
        if columns is not None:
            place = self._origin(offset, commit_ts)
            observed = ObservedColumns(commit_ts, row.database, row.table, columns, row.key, place)
            summary.note_observed(offset, observed, in_order=in_order)

    @property
    def _batch(self) -> PartitionBatch:
        assert self._place is not None, "messages come after their place"
        return self._place

    def _origin(self, offset: int, commit_ts: int) -> str:
        topic, partition, _ = self._batch
        return origin_of(topic, partition, offset, commit_ts)


def _listed(column: pa.Array) -> list[Any]:
    """Its values. Texts are the same for many rows: each is made once."""
    if pa.types.is_string(column.type):
        encoded = column.dictionary_encode()
        texts = encoded.dictionary.to_pylist()
        return [None if at is None else texts[at] for at in encoded.indices.to_pylist()]
    if column.null_count == 0 and pa.types.is_integer(column.type):
        return column.to_numpy().tolist()
    return column.to_pylist()
