"""Segments that landed and cannot be decoded now: they wait, with a reason, and every run tries them again."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from pyspark.sql import SparkSession

from cdc_lakehouse.decoders.problems import Rejected
from cdc_lakehouse.decoders.task_errors import errors_of_tasks
from cdc_lakehouse.errors import SourceError
from cdc_lakehouse.lake.isolation import SPARK_ERRORS, run_isolated
from cdc_lakehouse.lake.tables.segment_decoding import DecodedFiles
from cdc_lakehouse.lake.tables.segments import Segment, moved_segment
from cdc_lakehouse.pipeline.context import FeedContext

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

    def job(part: Sequence[Segment]) -> DecodedFiles:
        with errors_of_tasks():
            return decode(part)

    try:
        return job(segments)
    except SPARK_ERRORS:
        failed = run_isolated(spark, segments, job)
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
