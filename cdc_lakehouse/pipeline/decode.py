"""Step 2, events: each landed segment's changes go to `events` once, whatever crashes when.

A batch's events are one commit that carries the batch's number; the counts are read back from that commit, so a run
that finds the commit but not the counts (its forerunner ended between the two) does the same as one that has just
committed."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

from pyspark.sql import DataFrame

from cdc_lakehouse.decoders.problems import NO_COMMIT_TS, PROBLEMS
from cdc_lakehouse.decoders.segment_files import SegmentFile, SegmentFiles
from cdc_lakehouse.errors import SourceError
from cdc_lakehouse.lake.events import BadLine, SegmentCounts
from cdc_lakehouse.lake.quarantine import Quarantined
from cdc_lakehouse.lake.segments import DECODED, Segment
from cdc_lakehouse.pipeline.csv_layouts import Layouts, find_layouts
from cdc_lakehouse.pipeline.feed_run import FeedRun
from cdc_lakehouse.pipeline.schema_files import SchemaFiles

_HEAD: Final = 1024 * 1024
"""Bytes of a segment that are looked at for its first line."""

UNREADABLE_SEGMENT: Final = "UnreadableSegment"
UNKNOWN_COLUMNS: Final = "UnknownColumns"


@dataclass(frozen=True)
class Decoded:
    """What a run decoded, with the counts."""

    segments: tuple[Segment, ...]


def decode(run: FeedRun, files: SchemaFiles) -> Decoded:
    """Decode every batch that landed and is not decoded yet."""
    done: list[Segment] = []
    for batch, segments in run.segments.undecoded().items():
        done += _decode_batch(run, files, batch, segments)
    return Decoded(tuple(done))


def _decode_batch(run: FeedRun, files: SchemaFiles, batch: int, segments: Sequence[Segment]) -> list[Segment]:
    run.events.ensure()
    bad: int | None = None
    layouts = Layouts()
    appended = run.events.snapshot_of(batch) is not None
    if not appended:
        unreadable = _unreadable(run, segments)
        readable = [segment for segment in segments if segment.segment not in unreadable]
        layouts = _layouts(run, files, readable)
        segments = _set_aside(run, segments, {UNREADABLE_SEGMENT: unreadable, UNKNOWN_COLUMNS: layouts.reasons})
        if not segments:
            return []
        batch = segments[0].batch
        _require_commit_ts(run, segments)
        again = [segment.segment for segment in segments if segment.replaces_snapshot is not None]
        bad = run.events.append(_frame(run, layouts, segments), batch, segments, again)
    else:
        layouts = _layouts(run, files, segments)
    # After a crash the number of bad lines is not known: look.
    lines = [] if bad == 0 else run.events.bad_lines(_frame(run, layouts, segments))
    _quarantine(run, segments, lines)
    decoded = _counted(run, segments, run.events.counts(batch), lines)
    run.segments.mark_decoded(batch, decoded, {"cdc.batch": str(batch)})
    run.log.info("batch %d: decoded %d segments, %d bad lines", batch, len(decoded), len(lines))
    return decoded


def _frame(run: FeedRun, layouts: Layouts, segments: Sequence[Segment]) -> DataFrame:
    files = tuple(SegmentFile(segment.segment, segment.size, segment.etag) for segment in segments)
    source = run.feed.source
    return run.events.decode(SegmentFiles(run.store.uri, run.lake.storage, source, files, layouts.found), segments)


def _layouts(run: FeedRun, files: SchemaFiles, segments: Sequence[Segment]) -> Layouts:
    options = run.feed.source.csv
    return Layouts() if options is None else find_layouts(run, options, files, segments)


def _unreadable(run: FeedRun, segments: Sequence[Segment]) -> dict[str, str]:
    """The segments that cannot be read, and why."""
    reasons: dict[str, str] = {}
    for segment in segments:
        try:
            run.store.head(segment.segment, 1)
        except SourceError as error:
            reasons[segment.segment] = error.message
    return reasons


def _set_aside(run: FeedRun, segments: Sequence[Segment], faults: Mapping[str, Mapping[str, str]]) -> Sequence[Segment]:
    """The segments that can be decoded. Those with a fault (reasons by segment, by class) keep the batch, where each
    run tries them again; the others get the next one, for a batch is decoded as a whole."""
    now = run.clock()
    looked_at = {segment.segment for segment in segments}
    run.quarantine.resolve(
        lambda row: row.segment in looked_at and row.segment not in faults.get(row.error_class, {row.segment: ""}),
        "replayed",
        now,
    )
    aside = {segment for reasons in faults.values() for segment in reasons}
    if not aside:
        return segments
    run.quarantine.add(
        Quarantined(s.segment, None, s.database, s.table, error_class, reasons[s.segment], None, "open", now)
        for error_class, reasons in faults.items()
        for s in segments
        if s.segment in reasons
    )
    batch = run.segments.batch + 1
    rest = [replace(s, batch=batch) for s in segments if s.segment not in aside]
    if rest:
        run.segments.land(rest, {"cdc.batch": str(batch)})
    return rest


def _require_commit_ts(run: FeedRun, segments: Sequence[Segment]) -> None:
    """A sink without commit-ts has it nowhere: say so once, instead of quarantining every line."""
    if run.feed.source.protocol != "canal-json":
        return
    first = next((segment.segment for segment in segments if segment.size), None)
    if first is None:
        return
    line = run.store.head(first, _HEAD).splitlines()[0]
    try:
        message: Any = json.loads(line)
    except ValueError:
        return  # A bad line, or one that is longer than what was looked at: the decoder judges it.
    if isinstance(message, dict) and "type" in message and "_tidb" not in message:
        raise SourceError(
            PROBLEMS[NO_COMMIT_TS], feed=run.feed.name, segment=first, line=1, advice="then start the feed afresh"
        )


def _quarantine(run: FeedRun, segments: Sequence[Segment], lines: Sequence[BadLine]) -> None:
    """Rows for the bad lines; what the same segments had in quarantine before they were decoded again is done with."""
    landed = {segment.segment: segment.landed_at for segment in segments}
    now = run.clock()
    run.quarantine.resolve(
        lambda row: row.segment in landed and row.quarantined_at < landed[row.segment], "replayed", now
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
    more = "" if bad.line is not None else f" ({bad.count} further lines of the segment, not listed one by one)"
    return PROBLEMS[bad.problem] + more


def _counted(
    run: FeedRun, segments: Sequence[Segment], counts: Mapping[str, SegmentCounts], lines: Sequence[BadLine]
) -> list[Segment]:
    bad: dict[str, int] = {}
    for line in lines:
        bad[line.segment] = bad.get(line.segment, 0) + line.count
    now = run.clock()
    nothing = SegmentCounts(0, 0, 0, 0, None, None)
    return [
        replace(
            segment,
            state=DECODED,
            decoded_at=now,
            quarantined=bad.get(segment.segment, 0),
            **asdict(counts.get(segment.segment, nothing)),
        )
        for segment in segments
    ]
