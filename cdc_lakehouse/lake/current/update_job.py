"""The job that updates the current-state tables of a run: one job for all of them. Spark groups the events by table
(`keyed_events`) and schedules the tasks (`update_tasks`), which work on columns. Nothing is committed here."""

from __future__ import annotations

import functools
import math
import pickle
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
from pyroaring import BitMap64
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from cdc_lakehouse import duckdb_sql as sql
from cdc_lakehouse.decoders.tasks import results_of, run_tasks
from cdc_lakehouse.lake.current.keyed_events import (
    KEYED_EVENTS,
    EventShuffle,
    KeyedSpan,
    all_keyed_events,
    block_directory,
)
from cdc_lakehouse.lake.current.update_tasks import (
    TASK_ROWS,
    FileRewrite,
    TableUpdate,
    UpdatedTable,
    update_tables,
    update_with_blocks,
)
from cdc_lakehouse.lake.spark import run_isolated
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
            found[update.table_no] = update.updated(f"{_SPARK_FAILS} ({reason})")
        return found

    def _run(self, tables: Sequence[PlannedTable], reader: EventReader) -> dict[int, UpdatedTable]:
        found = {table.update.table_no: table.update.updated() for table in tables}
        places, tasks = _places(tables, self._spark.sparkContext.defaultParallelism)
        spans = tuple(span for table in tables for span in table.spans)
        redecoded = frozenset(name for table in tables if (keys := table.update.recomputed) for name in keys.segments)
        if tasks == 1 and _fits_driver(tables):
            with sql.database() as connection:
                events = all_keyed_events(reader, connection, spans, redecoded)
            parts = [*update_tables(self._properties, [table.update for table in tables], events)]
        else:
            plans = [
                {"task": first + bucket, "plan": pickle.dumps(table.update)}
                for table in tables
                for first, buckets in [places[table.update.table_no]]
                for bucket in range(buckets)
            ]
            with block_directory(self._spark) as directory:
                blocks = EventShuffle(spans, redecoded, places, directory).blocks(self._spark, reader)
                rows = self._spark.createDataFrame(pa.Table.from_pylist(plans, TASK_ROWS))
                rows = rows.unionByName(blocks, allowMissingColumns=True).repartitionById(tasks, F.col("task"))
                parts = results_of(rows, functools.partial(update_with_blocks, self._properties))
        for part in parts:
            found[part.table_no].add(part)
        rewrites = [
            FileRewrite(table.update, file, updated.deleted.get(file.path, BitMap64()))
            for table in tables
            for updated in [found[table.update.table_no]]
            if table.rewrites and table.update.stored is not None
            if updated.failure is None and not updated.collides
            for file in table.update.stored.files
        ]
        spark = None if sum(rewrite.file.record_count for rewrite in rewrites) <= _DRIVER_ROWS else self._spark
        work = functools.partial(_rewritten, self._properties)
        for part in run_tasks(spark, rewrites, work) if rewrites else ():
            found[part.table_no].add(part)
        return found


def _rewritten(properties: Mapping[str, str], rewrite: FileRewrite) -> Iterable[UpdatedTable]:
    return update_tables(properties, [rewrite], KEYED_EVENTS.empty_table())


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
