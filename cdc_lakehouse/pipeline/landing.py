"""Segments that landed and cannot be decoded now: they wait, with a reason, and every run tries them again."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from pyspark.sql import SparkSession

from cdc_lakehouse.changelog.positions import is_commit_ts
from cdc_lakehouse.changelog.schema import SchemaChange, TableName
from cdc_lakehouse.decoders.problems import Rejected
from cdc_lakehouse.decoders.tasks import SPARK_ERRORS
from cdc_lakehouse.errors import SourceError
from cdc_lakehouse.lake.spark import run_isolated
from cdc_lakehouse.lake.tables.decoding import DecodedFiles
from cdc_lakehouse.lake.tables.schema_history import SchemaHistory
from cdc_lakehouse.lake.tables.segments import Segment, moved_segment
from cdc_lakehouse.pipeline.context import FeedContext
from cdc_lakehouse.pipeline.source import JoinPoint
from cdc_lakehouse.sources.dump.contents import DumpPosition

UNREADABLE_SEGMENT: Final = "UnreadableSegment"
UNKNOWN_COLUMNS: Final = "UnknownColumns"
DEFERRED_CLASSES: Final = frozenset({UNREADABLE_SEGMENT, UNKNOWN_COLUMNS})

_LOOKS_AT_ONCE: Final = 16
_SEE_SPARK: Final = "see the log of Spark, and whether its workers have memory for the segment"


def find_unreadable(run: FeedContext, segments: Sequence[Segment]) -> dict[str, str]:
    """Return the segments that cannot be read or have changed, with the reasons; the next listing reports changed
    ones."""

    def look(segment: Segment) -> tuple[str, str | None]:
        try:
            run.raw.head(segment, 1)
        except SourceError as error:
            if error.segment is None:
                raise  # The whole store cannot be read.
            return segment.segment, error.advised
        return segment.segment, None

    with ThreadPoolExecutor(_LOOKS_AT_ONCE) as pool:
        return {path: reason for path, reason in pool.map(look, segments) if reason is not None}


def decode_isolated(
    spark: SparkSession, segments: Sequence[Segment], decode: Callable[[Sequence[Segment]], DecodedFiles]
) -> DecodedFiles:
    """Decode segments in a Spark job. Raise `SourceError` with its segment for one at which Spark fails alone."""
    try:
        return decode(segments)
    except SPARK_ERRORS:
        failed = run_isolated(spark, segments, decode)
        if not failed:
            raise
        index, reason = next(iter(failed.items()))
        raise SourceError(
            f"Spark fails when it decodes this segment alone ({reason})",
            advice=_SEE_SPARK,
            segment=segments[index].segment,
        ) from None


def defer(run: FeedContext, segments: Sequence[Segment], faults: Mapping[str, Mapping[str, str]]) -> Sequence[Segment]:
    """Split a batch. Segments with a fault stay in it, and every run tries them again; the rest move to a new batch,
    because a batch is decoded as a whole. So do segments that an earlier run has landed: batch numbers rise in the
    order of commits, and tables look for batches after the one that they have applied.

    `faults` maps error classes to reasons by segment. Returns the segments to decode now; writes `quarantine` and
    `segments`."""
    names = {segment.segment for segment in segments}
    rejected = [
        Rejected(s.segment, None, error_class, reasons[s.segment], None, s.database, s.table)
        for error_class, reasons in faults.items()
        for s in segments
        if s.segment in reasons
    ]
    run.quarantine.replace(
        lambda row: row.error_class in DEFERRED_CLASSES and row.segment in names, rejected, run.clock()
    )
    is_new = segments[0].landed_at == run.landed_at
    if not rejected and is_new and segments[0].batch > run.events.appended.newest:
        return segments
    deferred = {row.segment for row in rejected}
    batch = run.segments.batch + 1
    rest = [moved_segment(s, batch, is_new=is_new) for s in segments if s.segment not in deferred]
    if rest:
        run.segments.land(rest)
    return rest


# Which tables were loaded from a dump, and whether the log continues where the dump ends.


def loads_of(history: SchemaHistory) -> Mapping[TableName, int]:
    """Return the loaded tables, by the names that they had in their dumps, with the commit-ts of their rows; for a
    table that was loaded again, of the last dump."""
    return {TableName(each.database, each.table): each.commit_ts for each in load_changes(history)}


def load_changes(history: SchemaHistory) -> list[SchemaChange]:
    """Return the recorded loads, in the order of their commit-ts."""
    return sorted((each for each in history.changes.values() if each.kind == "load"), key=lambda each: each.commit_ts)


def require_no_gap(run: FeedContext, first_ts: int | None, loaded_ts: int | None = None) -> None:
    """Raises `SourceError` when changes between a dump and the start of the log are missing. `first_ts` is the
    commit-ts from which on the log has changes, as far as it shows that; `loaded_ts` is that of the dump, None for all
    loaded ones."""
    initial = run.feed.initial
    positions = loads_of(run.history).values() if loaded_ts is None else [loaded_ts]
    if initial is None or not positions:
        return
    if initial.start_ts is not None:
        first_ts = initial.start_ts
    if first_ts is not None and first_ts > min(positions):
        raise SourceError(
            f"the dump is of {min(positions)} and the change log begins at {first_ts}: what changed in between is in "
            "neither",
            feed=run.feed.name,
            advice="create the changefeed with the dump's position as its start-ts, or dump again; where it has that, "
            "and only showed itself later, say so with source.initial.start_ts",
        )


def join_at_tso(run: FeedContext, position: DumpPosition) -> JoinPoint:
    """Return the point at which a dump joins a log of TiDB. Raises `SourceError` for a dump of another database
    server."""
    if position.tso is None or not is_commit_ts(position.tso):
        raise SourceError(
            f"the dump's position is not a TSO of TiDB ({position})",
            feed=run.feed.name,
            advice="load a dump of TiDB; the rows of a MySQL can be put into the order of a feed of Canal alone",
        )
    return JoinPoint(position.tso)
