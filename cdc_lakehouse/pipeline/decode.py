"""Step 2, events: each landed segment's changes go to `events` once, whatever crashes when.

A batch's events are one commit that carries the batch's number; the counts are read back from that commit, so a run
that finds the commit but not the counts (its forerunner ended between the two) does the same as one that has just
committed."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from pyspark.sql import DataFrame

from cdc_lakehouse.decoders.files.segment_files import SegmentFiles
from cdc_lakehouse.decoders.files.tasks import SegmentRef, errors_of_tasks
from cdc_lakehouse.decoders.problems import NO_COMMIT_TS, NOT_LOOKED_AT, PROBLEMS
from cdc_lakehouse.errors import SourceError
from cdc_lakehouse.lake.properties import of_batch
from cdc_lakehouse.lake.tables.event_counts import BatchCounts, with_counts
from cdc_lakehouse.lake.tables.events import BadLine
from cdc_lakehouse.lake.tables.quarantine import Quarantined
from cdc_lakehouse.lake.tables.segments import FILE, Segment
from cdc_lakehouse.pipeline.csv_columns import Layouts, find_layouts
from cdc_lakehouse.pipeline.deferred_segments import (
    SET_ASIDE,
    UNKNOWN_COLUMNS,
    UNREADABLE_SEGMENT,
    set_aside,
    unreadable,
)
from cdc_lakehouse.pipeline.run import FeedRun
from cdc_lakehouse.pipeline.schema_files import SchemaFiles

_HEAD: Final = 1024 * 1024
"""Bytes of a segment that are looked at for its first line."""


@dataclass(frozen=True)
class Decoded:
    """What a run decoded, and how much it was."""

    segments: tuple[Segment, ...] = ()
    counts: BatchCounts = field(default_factory=lambda: BatchCounts({}))

    def __add__(self, other: Decoded) -> Decoded:
        # A segment is of one batch.
        return Decoded(self.segments + other.segments, BatchCounts({**self.counts.rows, **other.counts.rows}))


def decode(run: FeedRun, files: SchemaFiles) -> Decoded:
    """Decode every batch that landed and is not decoded yet."""
    done = Decoded()
    for batch, segments in run.segments.undecoded(FILE).items():
        done += _decode_batch(run, files, batch, segments)
    return done


def _decode_batch(run: FeedRun, files: SchemaFiles, batch: int, segments: Sequence[Segment]) -> Decoded:
    run.events.ensure()
    bad: int | None = None
    if run.events.snapshot_of(batch) is None:
        segments, bad = _append(run, files, segments)
        if not segments:
            return Decoded()
        batch = segments[0].batch
    # After a crash the number of bad lines is not known: look.
    lines = [] if bad == 0 else _bad_lines(run, files, segments)
    _quarantine(run, segments, lines)
    counts = run.events.counts(batch)
    decoded = with_counts(segments, counts, lines, run.clock())
    run.segments.mark_decoded(batch, decoded, of_batch(batch))
    run.log.info("batch %d: decoded %d segments, %d bad lines", batch, len(decoded), len(lines))
    return Decoded(tuple(decoded), counts)


def _bad_lines(run: FeedRun, files: SchemaFiles, segments: Sequence[Segment]) -> list[BadLine]:
    try:
        return _look_for_bad_lines(run, files, segments)
    except SourceError as error:
        if error.segment is None:
            raise
        # A run ended right after its commit, and files expired before this one: their events are in, and the batch must
        # not wait for ever. Whether they had bad lines is not known, so it is said of each.
        gone = unreadable(run, segments)
        if not gone:
            raise
    rest = [segment for segment in segments if segment.segment not in gone]
    lines = _look_for_bad_lines(run, files, rest) if rest else []
    return lines + [BadLine(segment, None, NOT_LOOKED_AT, None) for segment in gone]


def _look_for_bad_lines(run: FeedRun, files: SchemaFiles, segments: Sequence[Segment]) -> list[BadLine]:
    with errors_of_tasks():
        return run.events.bad_lines(_frame(run, _layouts(run, files, segments), segments))


def _append(run: FeedRun, files: SchemaFiles, segments: Sequence[Segment]) -> tuple[Sequence[Segment], int]:
    """Append the segments that can be decoded, as one commit: which they are, and how many bad lines they have."""
    lost = run.raw.keep(segments)
    look_first = run.raw.store.uri.startswith("file:")  # Elsewhere a look costs a request, and the tasks tell.
    while True:
        faults = dict(lost)
        if look_first:
            faults |= unreadable(run, [segment for segment in segments if segment.segment not in faults])
        readable = [segment for segment in segments if segment.segment not in faults]
        try:
            layouts = _layouts(run, files, readable)
            ready = set_aside(run, segments, {UNREADABLE_SEGMENT: faults, UNKNOWN_COLUMNS: layouts.reasons})
            if not ready:
                return [], 0
            _require_commit_ts(run, ready)
            again = [segment.segment for segment in ready if segment.replaces_snapshot is not None]
            with errors_of_tasks():
                return ready, run.events.append(_frame(run, layouts, ready), ready[0].batch, ready, again)
        except SourceError as error:
            # What is of one segment is set aside; what is of the whole store ends the run. So does what a look at
            # each segment did not find.
            if error.segment is None or (look_first and len(readable) == len(segments)):
                raise
        segments, look_first = readable, True


def _frame(run: FeedRun, layouts: Layouts, segments: Sequence[Segment]) -> DataFrame:
    raw = run.raw
    refs = {raw.place(segment): segment for segment in segments}
    files = SegmentFiles(
        raw.store.uri,
        run.lake.storage,
        run.feed.storage_sink,
        tuple(SegmentRef(place, segment.size, raw.etag(segment)) for place, segment in refs.items()),
        {place: layouts.found[segment.segment] for place, segment in refs.items() if segment.segment in layouts.found},
    )
    return run.events.decode(files, refs)


def _layouts(run: FeedRun, files: SchemaFiles, segments: Sequence[Segment]) -> Layouts:
    options = run.feed.storage_sink.csv
    return Layouts() if options is None else find_layouts(run, options, files, segments)


def _require_commit_ts(run: FeedRun, segments: Sequence[Segment]) -> None:
    """A sink without commit-ts has it nowhere: say so once, instead of quarantining every line."""
    if run.feed.storage_sink.protocol != "canal-json":
        return
    first = next((segment for segment in segments if segment.size), None)
    if first is None:
        return
    line = run.raw.head(first, _HEAD).splitlines()[0]
    try:
        message: Any = json.loads(line)
    except ValueError:
        return  # A bad line, or one that is longer than what was looked at: the decoder judges it.
    if isinstance(message, dict) and "type" in message and "_tidb" not in message:
        raise SourceError(
            PROBLEMS[NO_COMMIT_TS],
            feed=run.feed.name,
            segment=first.segment,
            line=1,
            advice="then start the feed afresh",
        )


def _quarantine(run: FeedRun, segments: Sequence[Segment], lines: Sequence[BadLine]) -> None:
    """Rows for the bad lines; what the same segments had in quarantine before they were decoded again is done with."""
    landed = {segment.segment: segment.landed_at for segment in segments}
    now = run.clock()
    run.quarantine.resolve(
        lambda row: (
            row.segment in landed and (row.error_class in SET_ASIDE or row.quarantined_at < landed[row.segment])
        ),
        "replayed",
        now,
    )
    tables = {segment.segment: (segment.database, segment.table) for segment in segments}
    run.quarantine.add(
        Quarantined(
            bad.segment,
            bad.line,
            *tables[bad.segment],
            bad.problem,
            _message(bad),
            bad.raw,
            "open",
            now,
            count=bad.count,
        )
        for bad in lines
    )


def _message(bad: BadLine) -> str:
    if bad.line is not None or bad.problem == NOT_LOOKED_AT:
        return PROBLEMS[bad.problem]
    return f"{PROBLEMS[bad.problem]} ({bad.count} further lines of the segment, not listed one by one)"
