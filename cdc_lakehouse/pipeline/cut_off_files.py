"""Files that were cut off, such as by a crash, and whose rows have been sent again since.

The line in which such a file ends is bad, and holds its table like any other bad line. It is resolved once a later file
of the table has all of the cut one's records again, one after the other, and the record that was cut off, whole: the
changefeed has started again before them, so what followed in the cut file comes again too. It is proved by the content
of both files; where it cannot be, the table stays held."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Final

import pyarrow.compute as pc

from cdc_lakehouse.decoders.files.registry import FORMATS
from cdc_lakehouse.decoders.problems import BAD_VALUE, RAW_LIMIT
from cdc_lakehouse.errors import SourceError
from cdc_lakehouse.lake.tables.quarantine import Quarantined
from cdc_lakehouse.lake.tables.segments import DECODED, FILE, Segment
from cdc_lakehouse.pipeline.context import FeedContext
from cdc_lakehouse.sources.object_store import SEGMENT_LIMIT

_LINE_ENDS: Final = (b"\n", b"\r")
_LOOKED_AT: Final = 8
"""Later files that are read for one that was cut off, at most."""


def resolve_redelivered(run: FeedContext) -> None:
    """Resolve the open rows of the quarantine that stand for the end of a file whose rows have come again. Reads such
    files and the later ones that can have their rows; none where nothing is open. Needs no JVM."""
    by_segment: dict[str, list[Quarantined]] = defaultdict(list)
    for row in run.quarantine.open():
        if row.line is not None and row.error_class != BAD_VALUE:
            by_segment[row.segment].append(row)
    reasons: dict[str, str] = {}
    for segment in run.segments.find(by_segment).values():
        (row, *others) = by_segment[segment.segment]
        if not others and (later := _redelivery(run, segment)) is not None:
            reasons[row.id] = f"{row.message}. The file was cut off: {later.segment} has its rows again, and more"
            run.log.info("%s was cut off, and its rows have come again in %s", segment.segment, later.segment)
    run.quarantine.redeliver(reasons, run.clock())


def _redelivery(run: FeedContext, cut: Segment) -> Segment | None:
    """The later segment that has the rows of one that was cut off, and more."""
    if cut.kind != FILE or cut.state != DECODED or not cut.events or cut.quarantined != 1:
        return None
    candidates = _candidates(run, cut)
    content = _content(run, cut) if candidates else None
    if content is None or content.endswith(_LINE_ENDS):
        return None
    source = run.feed.storage_sink
    for later in candidates[:_LOOKED_AT]:
        redelivered = _content(run, later)
        if redelivered is None or not all(_is_cut_off_there(row, redelivered) for row in _bad_lines(run, later)):
            continue
        if FORMATS[source.protocol].redelivers(content, redelivered, source.csv):
            return later
    return None


def _candidates(run: FeedContext, cut: Segment) -> list[Segment]:
    """The segments that were written later and can have all of the cut one's rows and more, by their counts."""
    same_table = (pc.field("database") == cut.database) & (pc.field("table") == cut.table)
    covers = (pc.field("min_commit_ts") <= cut.min_commit_ts) & (pc.field("max_commit_ts") >= cut.max_commit_ts)
    decoded = (pc.field("kind") == FILE) & (pc.field("state") == DECODED) & (pc.field("events") > cut.events)
    found = [
        segment
        for segment in run.segments.select(decoded & same_table & covers)
        if segment.physical_partition == cut.physical_partition and _is_later(segment, cut)
    ]
    return sorted(found, key=_place)


def _is_later(segment: Segment, cut: Segment) -> bool:
    if _place(segment)[:2] == _place(cut)[:2] and segment.dispatcher != cut.dispatcher:
        # Each dispatcher has numbers of its own.
        before, after = cut.modified_at, segment.modified_at
        return before is not None and after is not None and after > before
    return _place(segment) > _place(cut)


def _place(segment: Segment) -> tuple[int, str, int]:
    return segment.table_version or 0, segment.feed_date or "", segment.file_index or 0


def _bad_lines(run: FeedContext, segment: Segment) -> Iterator[Quarantined]:
    if segment.quarantined:
        yield from (row for row in run.quarantine.rows if row.segment == segment.segment and row.state != "replayed")


def _is_cut_off_there(row: Quarantined, content: bytes) -> bool:
    """Whether a bad line is the end of a file that was cut off itself: all lines before it are sound."""
    raw = row.raw
    return raw is not None and 0 < len(raw) < RAW_LIMIT and content.endswith(raw) and not raw.endswith(_LINE_ENDS)


def _content(run: FeedContext, segment: Segment) -> bytes | None:
    """None where it cannot be read, or is another by now."""
    try:
        return run.raw.store.read(run.raw.place(segment), limit=SEGMENT_LIMIT, etag=run.raw.etag(segment))
    except SourceError as error:
        if error.segment is None:
            raise  # The whole store cannot be read.
        return None
