"""Decode the data files of a storage sink: those that can be read, with the columns of their schema files."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Final

from cdc_lakehouse.changelog.positions import end_ts_at
from cdc_lakehouse.decoders.files.file_format import FileContext
from cdc_lakehouse.decoders.files.registry import FORMATS
from cdc_lakehouse.decoders.problems import NO_COMMIT_TS, NOT_LOOKED_AT, PROBLEMS, Rejected
from cdc_lakehouse.decoders.task_errors import errors_of_tasks
from cdc_lakehouse.errors import SourceError
from cdc_lakehouse.lake.tables.event_files import EventWriter
from cdc_lakehouse.lake.tables.segment_decoding import DecodedFiles, SegmentFile, decode_segments
from cdc_lakehouse.lake.tables.segments import Segment
from cdc_lakehouse.pipeline.context import FeedContext
from cdc_lakehouse.pipeline.csv_columns import Layouts, find_layouts
from cdc_lakehouse.pipeline.deferred_segments import (
    UNKNOWN_COLUMNS,
    UNREADABLE_SEGMENT,
    decode_isolated,
    defer,
    find_unreadable,
)
from cdc_lakehouse.pipeline.sink_schemas import SchemaFiles
from cdc_lakehouse.sources.object_store.segments import SegmentRef, read_in_parts, read_whole

_HEAD: Final = 1024 * 1024
"""Bytes of a segment that are searched for its first line."""
_LOOKED_AT: Final = 16
"""The most segments that are searched."""


def decode_files(
    run: FeedContext, schemas: SchemaFiles, segments: Sequence[Segment], *, append: bool
) -> tuple[Sequence[Segment], Sequence[Rejected]]:
    """Implements `Source.decode`."""
    return _append(run, schemas, segments) if append else _rejected(run, schemas, segments)


def _rejected(
    run: FeedContext, schemas: SchemaFiles, segments: Sequence[Segment]
) -> tuple[Sequence[Segment], Sequence[Rejected]]:
    try:
        return _read_rejected(run, schemas, segments)
    except SourceError as error:
        if error.segment is None:
            raise
        # A run ended right after its commit, and files expired before this one: their events are in, and the batch must
        # not wait forever. Whether they had bad lines is unknown, so each gets a row that says so.
        gone = find_unreadable(run, segments)
        if not gone:
            raise
    rest = [segment for segment in segments if segment.segment not in gone]
    unknown = [
        Rejected(s.segment, None, NOT_LOOKED_AT, PROBLEMS[NOT_LOOKED_AT], None, s.database, s.table)
        for s in segments
        if s.segment in gone
    ]
    rest, rejected = _read_rejected(run, schemas, rest) if rest else ([], [])
    return [*rest, *(segment for segment in segments if segment.segment in gone)], [*unknown, *rejected]


def _read_rejected(
    run: FeedContext, schemas: SchemaFiles, segments: Sequence[Segment]
) -> tuple[Sequence[Segment], Sequence[Rejected]]:
    with errors_of_tasks():
        found = _decode(run, _layouts(run, schemas, segments), segments, None)
    return found.counted(segments), found.rejected


def _append(
    run: FeedContext, schemas: SchemaFiles, segments: Sequence[Segment]
) -> tuple[Sequence[Segment], Sequence[Rejected]]:
    """Append the segments that can be decoded, in one commit; return them, and what was rejected in them."""
    faults = run.raw.keep(segments)
    if run.raw.store.uri.startswith("file:"):  # Elsewhere a check costs a request, and the tasks report it.
        faults |= find_unreadable(run, [segment for segment in segments if segment.segment not in faults])
    while True:
        readable = [segment for segment in segments if segment.segment not in faults]
        try:
            layouts = _layouts(run, schemas, readable)
            ready = defer(run, segments, {UNREADABLE_SEGMENT: faults, UNKNOWN_COLUMNS: layouts.reasons})
            if not ready:
                return [], []
            _require_commit_ts(run, ready)
            decode = functools.partial(_decode, run, layouts, writer=run.events.writer())
            decoded = decode_isolated(run.spark, ready, decode)
            run.events.commit(decoded.data_files, ready)
            return decoded.counted(ready), decoded.rejected
        except SourceError as error:
            # A fault of one segment defers it; one of the whole store, or of the feed's settings, ends the run.
            if error.segment is None or error.feed is not None:
                raise
            found = find_unreadable(run, readable) or _fault_of(run, readable, error)
            if not found:
                raise
            faults |= found


def _fault_of(run: FeedContext, segments: Sequence[Segment], error: SourceError) -> dict[str, str]:
    """Return the faults that a check of each segment does not find, such as a segment that is too large."""
    return {
        segment.segment: error.advised
        for segment in segments
        if error.segment in (segment.segment, run.raw.place(segment))
    }


def _decode(
    run: FeedContext, layouts: Layouts, segments: Sequence[Segment], writer: EventWriter | None
) -> DecodedFiles:
    raw, source = run.raw, run.feed.storage_sink
    files = [
        SegmentFile(
            SegmentRef(raw.place(segment), segment.size, raw.etag(segment)),
            segment.segment,
            FileContext(
                segment.database or "",
                segment.table or "",
                source.csv,
                layouts.found.get(segment.segment),
                end_ts_at(segment.landed_at),
            ),
            segment.table_version,
            segment.physical_partition,
            segment.feed_date,
        )
        for segment in segments
    ]
    file_format = FORMATS[source.protocol]
    read = functools.partial(read_in_parts if file_format.in_parts else read_whole, raw.store.uri, run.lake.storage)
    return decode_segments(run.spark, files, read, file_format.decode, writer)


def _layouts(run: FeedContext, schemas: SchemaFiles, segments: Sequence[Segment]) -> Layouts:
    source = run.feed.storage_sink
    if not FORMATS[source.protocol].needs_layout:
        return Layouts()
    assert source.csv is not None, "rows without names are csv"
    return find_layouts(run, source.csv, schemas, segments)


def _require_commit_ts(run: FeedContext, segments: Sequence[Segment]) -> None:
    """Raises `SourceError` for a sink without commit-ts, once instead of quarantining every line. When lines were ever
    decoded, or one of the first files has it, the other files are bad."""
    lacks_commit_ts = FORMATS[run.feed.storage_sink.protocol].lacks_commit_ts
    if lacks_commit_ts is None or run.appended().snapshot_id is not None:
        return
    looked_at = [segment for segment in segments if segment.size][:_LOOKED_AT]
    if looked_at and all(lacks_commit_ts(run.raw.head(segment, _HEAD)) for segment in looked_at):
        raise SourceError(
            PROBLEMS[NO_COMMIT_TS],
            feed=run.feed.name,
            segment=looked_at[0].segment,
            line=1,
            advice="then start the feed afresh",
        )
