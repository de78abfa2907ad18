"""Rows that a DDL moves, as synthetic events with its commit-ts and the version that it made.

The source sends no row changes for them: EXCHANGE PARTITION moves rows between tables, and a change of the primary key
changes which columns identify a row. As events they are folded, decoded again and rebuilt like all others. Values are
copied as text when the column's type stayed the same; otherwise they are converted and written as the source would have
written them."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

import numpy as np
import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from cdc_lakehouse import duckdb_sql as sql
from cdc_lakehouse.changelog.mysql_types import converts
from cdc_lakehouse.changelog.schema import Column, TableVersion
from cdc_lakehouse.decoders.arrow import pc
from cdc_lakehouse.decoders.event_schema import SYNTHETIC, SYNTHETIC_EVENTS, spark_columns
from cdc_lakehouse.decoders.row_images import row_images as images_of_columns
from cdc_lakehouse.decoders.task_errors import TaskError
from cdc_lakehouse.errors import CdcError
from cdc_lakehouse.lake.current import value_parsing
from cdc_lakehouse.lake.current.event_shuffle import EventShuffle, all_keyed_events, events_of_blocks
from cdc_lakehouse.lake.current.keyed_events import KeyedSpan
from cdc_lakehouse.lake.current.latest_changes import latest_changes
from cdc_lakehouse.lake.current.partial_rows import events_of_keys, fold_events, typed_rows
from cdc_lakehouse.lake.current.partition_filter import PartitionRows, without_emptied
from cdc_lakehouse.lake.current.typed_rows import (
    RowImages,
    Target,
    row_images,
    rows_of_fold,
    rows_of_version,
    types_by_version,
)
from cdc_lakehouse.lake.current.value_parsing import ValueFormat
from cdc_lakehouse.lake.tables.event_files import EventReader

LIVE_ROWS: Final = pa.schema([
    ("commit_ts", pa.int64()),
    ("before", pa.string()),
    ("after", pa.string()),
    ("partial", pa.bool_()),
    ("exchanged", pa.bool_()),
])  # fmt: skip
"""Live rows: the row's image in the table that it leaves and in the table that it enters, whether its events omit a
column, and whether it is in the exchanged partition, or fits into it (NULL: uncertain)."""

_LINE_BITS: Final = 33
"""The number of bits for the line numbers of one task."""


def rows_at(spark: SparkSession, events: EventReader, spans: Sequence[KeyedSpan], reader: LiveRows) -> DataFrame:
    """Return the rows that are live after the events of one table's spans, without those of emptied partitions, with
    the columns of `LIVE_ROWS`. Tasks raise `TableHeldError` for events without their key."""
    tasks = spark.sparkContext.defaultParallelism
    # The frame is computed later, when a directory of this process would be gone.
    shuffle = EventShuffle(tuple(spans), frozenset(), {span.table_no: (0, tasks) for span in spans}, None)

    def read(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for_task = list(batches)
        if for_task:
            yield from reader(events_of_blocks(pa.Table.from_batches(for_task)).to_batches())

    blocks = shuffle.blocks(spark, events)
    return blocks.repartitionById(tasks, F.col("task")).mapInArrow(read, spark_columns(LIVE_ROWS))


def read_rows_at(events: EventReader, spans: Sequence[KeyedSpan], readers: Sequence[LiveRows]) -> list[pa.Table]:
    """Like `rows_at`, in this process, for several tables, which are numbered as their readers."""
    with sql.database() as connection:
        keyed = all_keyed_events(events, connection, spans)
    own = (keyed.filter(pc.field("table_no") == number) for number in range(len(readers)))
    return [
        pa.Table.from_batches(reader(rows.to_batches()), LIVE_ROWS) for reader, rows in zip(readers, own, strict=True)
    ]


@dataclass(frozen=True)
class LiveRows:
    """Reads all keyed events of its keys as the rows that they leave, in tasks: see `rows_at`. `width` is the number of
    the key's parts. `other` is the table that the rows go to, None when they stay: tables that exchange rows have the
    same columns in the same order."""

    width: int
    target: Target
    other: TableVersion | None
    emptied: tuple[PartitionRows, ...]
    exchanged: PartitionRows | None
    value_format: ValueFormat

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with sql.database() as connection:
            read = list(batches)
            if not read:
                return
            events = pa.Table.from_batches(read)
            try:
                latest = events.take(pa.array(latest_changes(connection, events, self.width)))
                live = without_emptied(
                    connection,
                    latest.filter(latest.column("upsert")),
                    self.emptied,
                    self.value_format,
                    lambda live, target: typed_rows(connection, events, live, target, self.value_format),
                )
            except CdcError as error:
                raise TaskError(error) from None
            partial: list[pa.Table] = []
            for number in pc.unique(live.column("version_no")).to_pylist():
                version = self.target.versions[number]
                for own in sql.slices(live.filter(pc.field("version_no") == number)):
                    images = row_images(connection, own, version, {column.id for column in version.columns})
                    if pc.any(images.absent).as_py():
                        partial.append(own.select(["key"]).filter(images.absent))
                    yield from self._rows(connection, version, own, images).to_batches()
            if partial:
                for found in self._folded(connection, events, pa.concat_tables(partial)):
                    yield from found.to_batches()

    def _rows(self, connection: Any, version: TableVersion, events: pa.Table, images: RowImages) -> pa.Table:
        """Return the complete rows among events of one version."""
        whole = pc.invert(images.absent)
        read = pa.table({**images.texts, "commit_ts": events.column("commit_ts")}).filter(whole)
        given = sql.by_name(read)
        texts = {id: given[f"t{id}"] for column in version.carried if (id := column.id) in self._ids}
        fault = pa.repeat(False, read.num_rows)
        converted = {c.id for c in self.target.columns if converts(self.target.types_since(c.id, version))}
        if not self._ids <= texts.keys() - converted:
            types = {id: self.target.types_since(id, version) for id in self._ids}
            own = {f"t{id}": text for id, text in texts.items() if id in converted}
            row = pa.array(np.arange(read.num_rows))
            typed = rows_of_version(connection, version, self.target, types, own, row, self.value_format)
            missing = [c for c in self.target.columns if c.id not in texts or c.id in converted]
            texts |= self._texts(connection, typed, missing)
            fault = typed.column("fault")
        return self._shown(connection, texts, read.column("commit_ts"), fault)

    def _folded(self, connection: Any, events: pa.Table, keys: pa.Table) -> Iterator[pa.Table]:
        """Yield the rows of keys whose last event omits columns, folded from all of their events."""
        own = events_of_keys(connection, events, keys)
        folded = fold_events(own, self.target)
        table = folded.table.append_column("commit_ts", own.column("commit_ts").take(pa.array(folded.last)))
        for part in sql.slices(table):
            typed = rows_of_fold(connection, part, self.target, self.value_format)
            texts, given = self._texts(connection, typed, self.target.columns), sql.by_name(part)
            for column in self.target.columns:
                ways = enumerate(dict.fromkeys(types_by_version(column, self.target).values()))
                kept = pa.array([number for number, types in ways if not converts(types)], pa.int32())
                is_kept = pc.is_in(given[f"n{column.id}"], kept)
                texts[column.id] = pc.if_else(is_kept, given[f"t{column.id}"], texts[column.id])
            yield self._shown(connection, texts, part.column("commit_ts"), typed.column("fault"))

    @functools.cached_property
    def _ids(self) -> frozenset[int]:
        return frozenset(column.id for column in self.target.columns)

    def _texts(self, connection: Any, typed: pa.Table, columns: Sequence[Column]) -> dict[int, Any]:
        """Return the texts of typed values (`c<id>`) by the column's id."""
        values = sql.by_name(typed)
        statements = [
            (
                f"SELECT {value_parsing.text('value', column.type, self.value_format)} AS text FROM stacked",
                values[f"c{column.id}"],
            )
            for column in columns
        ]
        texts = sql.over_columns(connection, statements)
        return {column.id: each.column("text") for column, each in zip(columns, texts, strict=True)}

    def _shown(self, connection: Any, texts: Mapping[int, Any], commit_ts: Any, partial: Any) -> pa.Table:
        """Return live rows with these texts, by the column's id."""
        exchanged = "false"
        if self.exchanged is not None:
            exchanged = self.exchanged.condition(lambda column: f"p{column.id}", self.value_format)
        tested = () if self.exchanged is None else self.exchanged.columns
        parts = [f"{value_parsing.value(f'x{c.id}', c.type, self.value_format)} AS p{c.id}" for c in tested]
        own = self._images(self.target.columns, texts, len(commit_ts))
        leaves, enters = (None, own) if self.other is None else (own, self._images(self.other.carried, texts, len(own)))
        rows = {
            "commit_ts": commit_ts,
            "before": pa.nulls(len(own), pa.string()) if leaves is None else leaves,
            "after": enters,
            "partial": partial,
            **{f"x{column.id}": texts[column.id] for column in tested},
        }
        return sql.query(
            connection,
            f"SELECT commit_ts, before, after, partial, {exchanged} AS exchanged "
            f"FROM (SELECT {', '.join(['*', *parts])} FROM texts)",
            texts=pa.table(rows),
        )

    def _images(self, columns: Sequence[Column], texts: Mapping[int, Any], count: int) -> Any:
        """Return the rows' images under the names of these columns."""
        own = [texts[column.id].combine_chunks() for column in self.target.columns]
        return images_of_columns([column.name for column in columns], own, count)


@dataclass(frozen=True)
class SyntheticEvents:
    """Makes events from live rows at a version's DDL, in tasks, with the columns of `SYNTHETIC_EVENTS`: INSERTs into
    the table that they enter, DELETEs from the one that they leave. `only_exchanged` limits them to rows of the
    exchanged partition. `part` numbers what is written for one DDL when no Spark task does."""

    op: Literal["I", "D"]
    version: TableVersion
    segment: str
    part: int
    only_exchanged: bool = False

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        task = TaskContext.get()
        first = ((self.part if task is None else task.partitionId()) << _LINE_BITS) + 1
        for batch in batches:
            rows = batch.filter(batch.column("exchanged")) if self.only_exchanged else batch
            yield self._events(rows, first)
            first += rows.num_rows

    def _events(self, rows: pa.RecordBatch, first: int) -> pa.RecordBatch:
        image = "before" if self.op == "D" else "after"
        values = {
            "schema_name": self.version.name.database,
            "table_name": self.version.name.table,
            "table_version": self.version.commit_ts,
            "op": self.op,
            "commit_ts": self.version.commit_ts,
            "segment": self.segment,
            SYNTHETIC: True,
        }
        columns = {
            **{name: pa.repeat(value, rows.num_rows) for name, value in values.items()},
            image: rows.column(image),
            "line": pa.array(np.arange(first, first + rows.num_rows), pa.int64()),
        }
        nothing = pa.nulls(rows.num_rows)
        arrays = [columns.get(field.name, nothing).cast(field.type) for field in SYNTHETIC_EVENTS]
        return pa.RecordBatch.from_arrays(arrays, schema=SYNTHETIC_EVENTS)
