"""The events that a run applies, by the keys that they change: where tasks read them, and what Spark reads for those of
the largest tables."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from dataclasses import replace

from pyspark.sql import DataFrame

from cdc_lakehouse.lake.current.keyed_events import commit_ts_range, keyed_frame
from cdc_lakehouse.lake.tables.event_files import EventReader
from cdc_lakehouse.pipeline.run import FeedRun
from cdc_lakehouse.pipeline.table_changes import EventCounts, TableChanges


def with_counts(run: FeedRun, tables: Sequence[TableChanges]) -> list[TableChanges]:
    """The tables with what their tasks have to read."""
    run.events.ensure()
    counts = EventCounts(run)
    of_maps = {id for id in _replaced(tables) if run.events.has_maps(id)}
    return [
        replace(table, events=counts.of(table), has_maps=not of_maps.isdisjoint(_replaced([table]))) for table in tables
    ]


def reader_for_tasks(run: FeedRun, tables: Iterable[TableChanges]) -> EventReader | None:
    """What tasks read the events with that they read themselves; None where there are none."""
    read = [table for table in tables if table.read_by_tasks]
    spans = [span for table in read for span in table.spans()]
    return run.events.reader(*commit_ts_range(spans), _replaced(read)) if spans else None


def frame_for_tasks(run: FeedRun, tables: Iterable[TableChanges]) -> DataFrame | None:
    """The keyed events (columns of `KEYED_EVENTS`) that Spark reads for tasks; None where there are none."""
    given = [table for table in tables if not table.read_by_tasks]
    spans = [span for table in given for span in table.spans()]
    if not spans:
        return None
    frames = [keyed_frame(run.events.frame(), spans)]
    segments = frozenset(segment.segment for table in given for segment in table.redecoded)
    frames += [keyed_frame(run.events.frame(id), spans, segments) for id in sorted(_replaced(given))]
    return functools.reduce(DataFrame.unionAll, frames)


def _replaced(tables: Iterable[TableChanges]) -> set[int]:
    """The snapshots of `events` of before segments were decoded again."""
    segments = (segment for table in tables for segment in table.redecoded)
    return {segment.replaces_snapshot for segment in segments if segment.replaces_snapshot is not None}
