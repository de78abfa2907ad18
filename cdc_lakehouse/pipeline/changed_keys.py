"""The winners of a run: which change of each key is the last, for all tables at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from cdc_lakehouse.changelog.positions import BEGINNING, restated_stage
from cdc_lakehouse.lake.current import value_parsing
from cdc_lakehouse.lake.current.latest_changes import Winners, find_winners, keyed_events
from cdc_lakehouse.lake.expressions import any_of
from cdc_lakehouse.pipeline.run import FeedRun
from cdc_lakehouse.pipeline.table_changes import Work


def find_touched(run: FeedRun, work: Sequence[Work]) -> tuple[list[Work], Mapping[int, Winners]]:
    """The winners by the number of each work, and the works, some of which turn out to need all their events.

    Tables that only go on share one grouping; those that look at all their events again share another.
    """
    run.events.ensure()
    found: dict[int, Winners] = {}
    onward = [each for each in work if not each.again]
    if onward:
        spans = [span for each in onward for span in each.spans()]
        winners = find_winners(keyed_events(run.spark, run.events.frame(), spans)) if spans else _none(run)
        found |= {each.number: winners for each in onward}
        blurred = _blurred(run, onward, winners)
        work = [replace(each, blurred=each.number in blurred) for each in work]
    again = [each for each in work if each.again or each.blurred]
    if again:
        winners = _again(run, again)
        found |= {each.number: winners for each in again}
    return list(work), found


def _blurred(run: FeedRun, work: Sequence[Work], winners: Winners) -> set[int]:
    """Tables with touched keys that the lake cannot tell from others."""
    conditions = [condition for each in work if (condition := _blurs(run, each)) is not None]
    if not conditions:
        return set()
    rows = winners.frame.where(any_of(conditions)).select("table_no").distinct().collect()
    return {row["table_no"] for row in rows}


def _blurs(run: FeedRun, work: Work) -> Column | None:
    """Whether a row of keys is of the table and has a part that is NULL in the lake and not in the source."""
    reading = run.reading(work.target)
    parts: list[Column] = []
    for position, column in enumerate(work.key):
        if value_parsing.blurs(column.type, reading):
            part = F.col("key")[position]
            parts.append(part.isNotNull() & value_parsing.value(part, column.type, reading).isNull())
    return (F.col("table_no") == work.number) & any_of(parts) if parts else None


def _again(run: FeedRun, work: Sequence[Work]) -> Winners:
    """Only the keys that are new or that a segment decoded again touches (or touched), each from all of its events;
    with them those that the lake cannot tell from them."""
    spans = [span for each in work for span in each.spans()]
    if not spans:
        return _none(run)  # All that was decoded again is from before a TRUNCATE.
    everything = keyed_events(run.spark, run.events.frame(), spans)
    fresh = any_of(
        [(F.col("table_no") == each.number) & (F.col("position.stage") > restated_stage(each.above)) for each in work]
        + [condition for each in work if each.blurred and (condition := _blurs(run, each)) is not None]
    )
    keys = everything.where(fresh).select("table_no", "key")
    segments = [segment for each in work for segment in each.again]
    if segments:
        names = run.spark.createDataFrame([(segment.segment,) for segment in segments], "again string")
        redone = F.broadcast(names)
        of_segments = everything.join(redone, F.col("position.segment") == F.col("again"), "left_semi")
        keys = keys.union(of_segments.select("table_no", "key"))
        for snapshot in sorted({s.replaces_snapshot for s in segments if s.replaces_snapshot is not None}):
            keys = keys.union(_earlier_keys(run, work, snapshot, redone))
    return find_winners(everything, keys.distinct())


def _earlier_keys(run: FeedRun, work: Sequence[Work], snapshot: int, redone: DataFrame) -> DataFrame:
    """Keys of the events that the segments had before they were decoded again."""
    spans = [replace(span, above=max(span.above, BEGINNING)) for each in work for span in each.spans()]
    earlier = keyed_events(run.spark, run.events.frame(snapshot), spans)
    return earlier.join(redone, F.col("position.segment") == F.col("again"), "left_semi").select("table_no", "key")


def _none(run: FeedRun) -> Winners:
    """No table has events: only DDL is applied."""
    schema = (
        "table_no int, key array<string>, commit_ts bigint, stage bigint, upsert boolean, segment string, "
        "line bigint, event bigint, version_no int"
    )
    return Winners(run.spark.createDataFrame([], schema), {}, {}, {}, frozenset())
