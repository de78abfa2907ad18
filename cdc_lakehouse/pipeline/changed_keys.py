"""The latest change of each key of a run, for all tables at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from cdc_lakehouse.changelog.positions import BEGINNING, synthetic_stage
from cdc_lakehouse.lake.current import value_parsing
from cdc_lakehouse.lake.current.latest_changes import LatestChanges, find_latest, keyed_events, no_changes
from cdc_lakehouse.lake.current.typed_rows import any_of
from cdc_lakehouse.pipeline.run import FeedRun
from cdc_lakehouse.pipeline.table_changes import TableChanges


def find_latest_changes(
    run: FeedRun, tables: Sequence[TableChanges]
) -> tuple[list[TableChanges], Mapping[int, LatestChanges]]:
    """The latest changes by the number of each table, and the tables, some of which turn out to need all their events.

    Tables that read only new events share one grouping; those that read all their events share another.
    """
    run.events.ensure()
    found: dict[int, LatestChanges] = {}
    onward = [table for table in tables if not table.redecoded]
    if onward:
        spans = [span for table in onward for span in table.spans()]
        latest = find_latest(keyed_events(run.spark, run.events.frame(), spans)) if spans else no_changes(run.spark)
        found |= {table.number: latest for table in onward}
        colliding = _with_colliding_keys(run, onward, latest)
        tables = [replace(table, keys_may_collide=table.number in colliding) for table in tables]
    reading_all = [table for table in tables if table.redecoded or table.keys_may_collide]
    if reading_all:
        latest = _recompute(run, reading_all)
        found |= {table.number: latest for table in reading_all}
    return list(tables), found


def _with_colliding_keys(run: FeedRun, tables: Sequence[TableChanges], latest: LatestChanges) -> set[int]:
    """Tables with changed keys that the lake cannot tell from others."""
    conditions = [condition for table in tables if (condition := _collides(run, table)) is not None]
    if not conditions:
        return set()
    rows = latest.frame.where(any_of(conditions)).select("table_no").distinct().collect()
    return {row["table_no"] for row in rows}


def _collides(run: FeedRun, table: TableChanges) -> Column | None:
    """Whether a row of keys is of the table and has a part that is NULL in the lake and not in the source."""
    value_format = run.value_format(table.target)
    parts: list[Column] = []
    for position, column in enumerate(table.key):
        if value_parsing.may_collide(column.type, value_format):
            part = F.col("key")[position]
            parts.append(part.isNotNull() & value_parsing.value(part, column.type, value_format).isNull())
    return (F.col("table_no") == table.number) & any_of(parts) if parts else None


def _recompute(run: FeedRun, tables: Sequence[TableChanges]) -> LatestChanges:
    """Only the keys that are new or that a segment decoded again contains (or contained), each from all of its events;
    with them those that the lake cannot tell from them."""
    spans = [span for table in tables for span in table.spans()]
    if not spans:
        return no_changes(run.spark)  # All that was decoded again is from before a TRUNCATE.
    everything = keyed_events(run.spark, run.events.frame(), spans)
    fresh = any_of(
        [
            (F.col("table_no") == table.number) & (F.col("position.stage") > synthetic_stage(table.applied_ts))
            for table in tables
        ]
        + [condition for table in tables if table.keys_may_collide and (condition := _collides(run, table)) is not None]
    )
    keys = everything.where(fresh).select("table_no", "key")
    segments = [segment for table in tables for segment in table.redecoded]
    if segments:
        names = run.spark.createDataFrame([(segment.segment,) for segment in segments], "redecoded string")
        redecoded = F.broadcast(names)
        of_segments = everything.join(redecoded, F.col("position.segment") == F.col("redecoded"), "left_semi")
        keys = keys.union(of_segments.select("table_no", "key"))
        for snapshot in sorted({s.replaces_snapshot for s in segments if s.replaces_snapshot is not None}):
            keys = keys.union(_earlier_keys(run, tables, snapshot, redecoded))
    return find_latest(everything, keys.distinct())


def _earlier_keys(run: FeedRun, tables: Sequence[TableChanges], snapshot: int, redecoded: DataFrame) -> DataFrame:
    """Keys of the events that the segments had before they were decoded again."""
    spans = [replace(span, above=max(span.above, BEGINNING)) for table in tables for span in table.spans()]
    earlier = keyed_events(run.spark, run.events.frame(snapshot), spans)
    return earlier.join(redecoded, F.col("position.segment") == F.col("redecoded"), "left_semi").select(
        "table_no", "key"
    )
