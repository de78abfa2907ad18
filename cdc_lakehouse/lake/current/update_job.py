"""The job that updates the current-state tables of a run: one job for all of them. Spark groups the events by table
(`keyed_events`) and schedules the tasks (`update_tasks`), which work on columns. Nothing is committed here."""

from __future__ import annotations

import functools
import json
import math
import operator
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import pyarrow as pa
from pyroaring import BitMap64
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from cdc_lakehouse import duckdb_sql as sql
from cdc_lakehouse.decoders.arrow import rows_of
from cdc_lakehouse.decoders.event_schema import spark_columns
from cdc_lakehouse.decoders.problems import BAD_VALUE, Rejected
from cdc_lakehouse.decoders.task_errors import errors_of_tasks
from cdc_lakehouse.lake.current.keyed_events import (
    KEYED_EVENTS,
    EventShuffle,
    KeyedSpan,
    all_keyed_events,
    block_directory,
)
from cdc_lakehouse.lake.current.update_tasks import (
    RESULTS,
    TASK_ROWS,
    FileRewrite,
    RowCounts,
    TableUpdate,
    TaskResult,
    pickled,
    run_tasks,
    summarized,
    update_tables,
)
from cdc_lakehouse.lake.isolation import run_isolated
from cdc_lakehouse.lake.tables.events import EventReader

_TASK_EVENTS: Final = 500_000
"""The approximate number of a table's events for one task."""
_SMALL_TASK_EVENTS: Final = 50_000
"""A table with fewer events is never split."""
_TABLE_WEIGHT: Final = 2000
"""The cost of a table for a task, as a number of events."""
_DRIVER_ROWS: Final = 1_000_000
"""The number of rows, of all tables together, up to which the driver looks up keys in them or rewrites them: a job
takes longer than such small updates."""

_DOES_NOT_FIT: Final = (
    "the row does not fit the table's columns: a value that is not of its type, a column that is not known, or one "
    "that is missing (virtual generated columns can be named in virtual_columns)"
)
_SPARK_FAILS: Final = (
    "Spark or its memory fails when this table alone is updated. The next run tries again; where it fails again, see "
    "the log of Spark, and whether its workers have memory for the largest values of the table"
)


@dataclass(frozen=True)
class PlannedTable:
    """One table's part of the job. Its events, about `events` many, are in the `spans`; `rewrites` says that existing
    rows must be rewritten."""

    update: TableUpdate
    spans: tuple[KeyedSpan, ...]
    events: int
    rewrites: bool = False


@dataclass
class UpdatedTable:
    """The result of the job for one table: the data files of new rows (`files`) and of rewritten rows as Iceberg's
    JSON, the positions of deleted rows by the path of their file, counts, and the reason when the table cannot be
    updated. `rejections` are as in `update_tasks.summarized`. `collides`: nothing was written, because its keys must be
    recomputed from all of their events."""

    update: TableUpdate
    files: list[str] = field(default_factory=list[str])
    rewritten: list[str] = field(default_factory=list[str])
    deleted: dict[str, BitMap64] = field(default_factory=dict[str, BitMap64])
    counts: RowCounts = field(default_factory=lambda: RowCounts(0, 0, 0, 0, 0))
    rejections: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    failure: str | None = None
    collides: bool = False

    @property
    def misfit(self) -> str | None:
        """What does not fit in an unusable row."""
        return next((why for row in summarized(self.rejections) if (why := row["why"])), None)

    @functools.cached_property
    def rejected(self) -> tuple[Rejected, ...]:
        """The rows that could not be used."""
        name = list(self.update.target.versions.values())[-1].name
        return tuple(_as_rejected(row, name.database, name.table) for row in summarized(self.rejections))


class UpdateJob:
    """Updates current-state tables. `properties` are those of PyIceberg's FileIO for the warehouse."""

    def __init__(self, spark: SparkSession, properties: Mapping[str, str]) -> None:
        self._spark = spark
        self._properties = dict(properties)

    def run(self, tables: Sequence[PlannedTable], reader: EventReader) -> dict[int, UpdatedTable]:
        """Update tables with the events that the reader has; return what was made of each, by its number.

        A table at which Spark fails has a `failure`, and the others go on. Raise what tasks raise of the project's
        errors, and Spark's own where no table is to blame.
        """
        found: dict[int, UpdatedTable] = {}
        failed = run_isolated(self._spark, tables, lambda part: found.update(self._run(part, reader)))
        for index, reason in failed.items():
            update = tables[index].update
            found[update.table_no] = UpdatedTable(update, failure=f"{_SPARK_FAILS} ({reason})")
        return found

    def _run(self, tables: Sequence[PlannedTable], reader: EventReader) -> dict[int, UpdatedTable]:
        found = {table.update.table_no: UpdatedTable(table.update) for table in tables}
        places, tasks = _places(tables, self._spark.sparkContext.defaultParallelism)
        spans = tuple(span for table in tables for span in table.spans)
        redecoded = frozenset(name for table in tables if (keys := table.update.recomputed) for name in keys.segments)
        with errors_of_tasks():
            if tasks == 1 and _fits_driver(tables):
                with sql.database() as connection:
                    events = all_keyed_events(reader, connection, spans, redecoded)
                results = rows_of(update_tables(self._properties, [table.update for table in tables], events))
            else:
                plans = [
                    (first + bucket, table.update)
                    for table in tables
                    for first, buckets in [places[table.update.table_no]]
                    for bucket in range(buckets)
                ]
                with block_directory(self._spark) as directory:
                    blocks = EventShuffle(spans, redecoded, places, directory).blocks(self._spark, reader)
                    results = self._run_tasks(plans, tasks, blocks)
            for result in map(TaskResult._make, results):
                _add(result, found[result.table_no])
        rewrites = [
            FileRewrite(table.update, file, updated.deleted.get(file.path, BitMap64()).serialize())
            for table in tables
            for updated in [found[table.update.table_no]]
            if table.rewrites and table.update.stored is not None
            if updated.failure is None and not updated.collides
            for file in table.update.stored.files
        ]
        if rewrites:
            self._rewrite(rewrites, found)
        return found

    def _rewrite(self, rewrites: Sequence[FileRewrite], found: Mapping[int, UpdatedTable]) -> None:
        with errors_of_tasks():
            if sum(rewrite.file.record_count for rewrite in rewrites) <= _DRIVER_ROWS:
                results = rows_of(update_tables(self._properties, rewrites, KEYED_EVENTS.empty_table()))
            else:
                results = self._run_tasks([*enumerate(rewrites)], len(rewrites), None)
            for result in map(TaskResult._make, results):
                table = found[result.table_no]
                if result.kind == "file":
                    table.rewritten.append(result.text or "")
                else:
                    table.failure = result.text

    def _run_tasks(
        self, plans: Sequence[tuple[int, TableUpdate | FileRewrite]], tasks: int, blocks: DataFrame | None
    ) -> Iterable[tuple[Any, ...]]:
        """Run plans in their tasks, (task number, plan); return rows of `RESULTS`."""
        planned = [{"task": task, "plan": pickled(plan)} for task, plan in plans]
        rows = self._spark.createDataFrame(pa.Table.from_pylist(planned, TASK_ROWS))
        if blocks is not None:
            rows = rows.unionByName(blocks, allowMissingColumns=True)
        work = functools.partial(run_tasks, self._properties)
        return rows.repartitionById(tasks, F.col("task")).mapInArrow(work, spark_columns(RESULTS)).collect()


def _fits_driver(tables: Sequence[PlannedTable]) -> bool:
    stored = (file.record_count for table in tables if table.update.stored for file in table.update.stored.files)
    return sum(stored) <= _DRIVER_ROWS


def _places(tables: Sequence[PlannedTable], parallelism: int) -> tuple[dict[int, tuple[int, int]], int]:
    """Return for each table the number of its first task and the number of its tasks, and the number of all tasks.
    Large tables have their own tasks, small ones share one."""
    places: dict[int, tuple[int, int]] = {}
    tasks = 0
    small: list[PlannedTable] = []
    for table in tables:
        buckets = max(math.ceil(table.events / _TASK_EVENTS), min(parallelism, table.events // _SMALL_TASK_EVENTS))
        if buckets > 1:
            places[table.update.table_no] = (tasks, buckets)
            tasks += buckets
        else:
            small.append(table)
    share = max(_SMALL_TASK_EVENTS, sum(table.events + _TABLE_WEIGHT for table in small) / parallelism)
    filled = share
    for table in small:
        if filled >= share:
            tasks, filled = tasks + 1, 0
        places[table.update.table_no] = (tasks - 1, 1)
        filled += table.events + _TABLE_WEIGHT
    return places, tasks


def _add(result: TaskResult, table: UpdatedTable) -> None:
    text = result.text or ""
    match result.kind:
        case "file":
            table.files.append(text)
        case "deleted":
            assert result.data is not None
            found = BitMap64.deserialize(bytes(result.data))
            table.deleted[text] = table.deleted.get(text, BitMap64()) | found
        case "counts":
            counts = RowCounts(**json.loads(text))
            table.counts = RowCounts(*map(operator.add, table.counts, counts))
        case "colliding":
            table.collides = True
        case "rejected":
            table.rejections.append(json.loads(text))
        case _:
            table.failure = text


def _as_rejected(row: Mapping[str, Any], database: str, table: str) -> Rejected:
    # The first of the uncounted rows keeps its line, even though the next run may leave out others.
    count = row["count"]
    more = f" (and {count - 1} further rows of the segment, not listed one by one)" if count > 1 else ""
    message = f"{_DOES_NOT_FIT}{f': {why}' if (why := row['why']) else ''}{more}"
    return Rejected(row["segment"], row["line"], BAD_VALUE, message, row["after"].encode(), database, table, count)
