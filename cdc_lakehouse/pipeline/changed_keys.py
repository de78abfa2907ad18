"""The events that a run applies, by the keys that they change, for all tables at once."""

from __future__ import annotations

import functools
import operator
from collections.abc import Sequence
from dataclasses import replace

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from cdc_lakehouse.changelog.positions import BEGINNING, synthetic_stage
from cdc_lakehouse.lake.current import value_parsing
from cdc_lakehouse.lake.current.keyed_events import keyed_frame, keys_where, no_row_before
from cdc_lakehouse.lake.current.latest_changes import key_part
from cdc_lakehouse.lake.current.typed_rows import any_of
from cdc_lakehouse.pipeline.run import FeedRun
from cdc_lakehouse.pipeline.table_changes import EventCounts, TableChanges


def find_changed_keys(run: FeedRun, tables: Sequence[TableChanges]) -> tuple[list[TableChanges], DataFrame | None]:
    """The tables, some of which turn out to need all their events, and the keyed events (see `keyed_events`) of those
    whose tasks do not read them themselves; None where there are none."""
    run.events.ensure()
    colliding = _with_colliding_keys(run, tables)
    tables = [replace(table, keys_may_collide=table.number in colliding) for table in tables]
    counts = EventCounts(run)
    tables = [replace(table, events=counts.of(table)) for table in tables]
    frames: list[DataFrame] = []
    onward = [span for table in tables if not (table.recomputes_keys or table.read_by_tasks) for span in table.spans()]
    if onward:
        frames.append(keyed_frame(run.events.frame(), onward))
    frames += _recomputed(run, [table for table in tables if table.recomputes_keys])
    return tables, functools.reduce(DataFrame.unionAll, frames) if frames else None


def _with_colliding_keys(run: FeedRun, tables: Sequence[TableChanges]) -> set[int]:
    """Tables with changed keys that the lake cannot tell from others."""
    concerned = [table for table in tables if not table.redecoded and _collides(run, table) is not None]
    spans = [span for table in concerned for span in table.spans()]
    condition = _colliding(run, concerned)
    if not spans or condition is None:
        return set()
    keyed = keyed_frame(run.events.frame(), spans)
    return {row["table_no"] for row in keyed.where(condition).select("table_no").distinct().collect()}


def _colliding(run: FeedRun, tables: Sequence[TableChanges]) -> Column | None:
    """Whether a key is of one of the tables and has a part that is NULL in the lake and not in the source; None where
    that cannot be."""
    conditions = {table.number: found for table in tables if (found := _collides(run, table)) is not None}
    return keys_where(conditions) if conditions else None


def _collides(run: FeedRun, table: TableChanges) -> str | None:
    value_format = run.value_format(table.target)
    parts = [
        f"({part} IS NOT NULL AND {value_parsing.value(part, column.type, value_format)} IS NULL)"
        for position, column in enumerate(table.key)
        if value_parsing.may_collide(column.type, value_format)
        for part in [key_part(position)]
    ]
    return any_of(parts) if parts else None


def _recomputed(run: FeedRun, tables: Sequence[TableChanges]) -> list[DataFrame]:
    """Only the keys that are new or that a segment decoded again contains (or contained), each with all of its events;
    with them those that the lake cannot tell from them."""
    spans = [span for table in tables for span in table.spans()]
    if not spans:
        return []  # All that was decoded again is from before a TRUNCATE.
    everything = keyed_frame(run.events.frame(), spans)
    new = [
        (F.col("table_no") == table.number) & (F.col("stage") > synthetic_stage(table.applied_ts)) for table in tables
    ]
    keys = everything.where(functools.reduce(operator.or_, new)).select("table_no", "key")
    colliding = _colliding(run, [table for table in tables if table.keys_may_collide])
    if colliding is not None:
        keys = keys.union(everything.where(colliding).select("table_no", "key"))
    segments = [segment for table in tables for segment in table.redecoded]
    if segments:
        names = run.spark.createDataFrame(pa.table({"redecoded": [segment.segment for segment in segments]}))
        redecoded = F.broadcast(names)
        of_segments = everything.join(redecoded, F.col("segment") == F.col("redecoded"), "left_semi")
        keys = keys.union(of_segments.select("table_no", "key"))
        for snapshot in sorted({s.replaces_snapshot for s in segments if s.replaces_snapshot is not None}):
            keys = keys.union(_earlier_keys(run, tables, snapshot, redecoded))
    keys = keys.distinct()
    return [everything.join(keys, ["table_no", "key"], "left_semi"), no_row_before(keys)]


def _earlier_keys(run: FeedRun, tables: Sequence[TableChanges], snapshot: int, redecoded: DataFrame) -> DataFrame:
    """Keys of the events that the segments had before they were decoded again."""
    spans = [replace(span, above=max(span.above, BEGINNING)) for table in tables for span in table.spans()]
    earlier = keyed_frame(run.events.frame(snapshot), spans)
    of_segments = earlier.join(redecoded, F.col("segment") == F.col("redecoded"), "left_semi")
    return of_segments.select("table_no", "key")
