"""Resolve quarantine rows of files that were cut off, such as by a crash, and whose rows have been sent again since.

The last line of such a file is incomplete, and holds its table like any other bad line. It is resolved once later
files of the table, of one dispatcher and in its order, contain all of the file's records again, in sequence, and the
incomplete record in full: the changefeed has restarted before them, so everything after them is sent again too. The
contents must prove this; otherwise the table stays held."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Final

from cdc_lakehouse.decoders.arrow import pc
from cdc_lakehouse.decoders.files.registry import FORMATS
from cdc_lakehouse.decoders.problems import BAD_VALUE, RAW_LIMIT
from cdc_lakehouse.errors import SourceError
from cdc_lakehouse.lake.tables.quarantine import Quarantined
from cdc_lakehouse.lake.tables.segments import DECODED, FILE, Segment
from cdc_lakehouse.pipeline.context import FeedContext
from cdc_lakehouse.sources.object_store import SEGMENT_LIMIT

_LINE_ENDS: Final = (b"\n", b"\r")
_LOOKED_AT: Final = 8
"""The most later files at which the rows of one that was cut off are looked for."""
_FILES: Final = 8
"""The most later files over which these rows may be spread."""


def resolve_redelivered(run: FeedContext) -> None:
    """Resolve the open rows of the quarantine that stand for the end of a file whose rows were sent again. Reads such
    files and the later ones that can have their rows; none when nothing is open. Needs no JVM."""
    by_segment: dict[str, list[Quarantined]] = defaultdict(list)
    for row in run.quarantine.open():
        if row.line is not None and row.error_class != BAD_VALUE:
            by_segment[row.segment].append(row)
    reasons: dict[str, str] = {}
    for segment in run.segments.find(by_segment).values():
        (row, *others) = by_segment[segment.segment]
        if not others and (later := _redelivery(run, segment)):
            have = " and ".join(each.segment for each in later) + (" has" if len(later) == 1 else " have")
            reasons[row.id] = f"{row.message}. The file was cut off: {have} its rows again, and more"
            run.log.info("%s was cut off, and %s its rows again", segment.segment, have)
    run.quarantine.redeliver(reasons, run.clock())


def _redelivery(run: FeedContext, cut: Segment) -> Sequence[Segment]:
    """Return the later segments that together contain the rows of one that was cut off, and more; none when there are
    none."""
    if cut.kind != FILE or cut.state != DECODED or not cut.events or cut.quarantined != 1:
        return ()
    later = _later(run, cut)
    firsts = [n for n, each in enumerate(later) if _first_ts(each) <= _first_ts(cut)][:_LOOKED_AT]
    content = _content(run, cut) if firsts else None
    if content is None or content.endswith(_LINE_ENDS):
        return ()
    source = run.feed.storage_sink
    for first in firsts:
        contents: list[bytes] = []
        for each in later[first : first + _FILES]:
            redelivered = _content(run, each) if each.dispatcher == later[first].dispatcher else None
            bad = list(_bad_lines(run, each))
            if redelivered is None or not all(_is_cut_off_there(row, redelivered) for row in bad):
                break
            contents.append(redelivered)
            if FORMATS[source.protocol].redelivers(content, contents, source.csv):
                return later[first : first + len(contents)]
            if bad or _first_ts(each) > (cut.max_commit_ts or 0) or sum(map(len, contents)) > SEGMENT_LIMIT:
                break
    return ()


def _later(run: FeedContext, cut: Segment) -> list[Segment]:
    """Return the later segments of the table, those of each dispatcher in the order in which it wrote them."""
    same_table = (pc.field("database") == cut.database) & (pc.field("table") == cut.table)
    decoded = (pc.field("kind") == FILE) & (pc.field("state") == DECODED) & (pc.field("events") > 0)
    found = [
        segment
        for segment in run.segments.select(decoded & same_table)
        if segment.physical_partition == cut.physical_partition and _is_later(segment, cut)
    ]
    return sorted(found, key=lambda segment: (segment.dispatcher or "", _place(segment)))


def _first_ts(segment: Segment) -> int:
    return segment.min_commit_ts or 0


def _is_later(segment: Segment, cut: Segment) -> bool:
    if _place(segment)[:2] == _place(cut)[:2] and segment.dispatcher != cut.dispatcher:
        # Each dispatcher numbers its own files.
        before, after = cut.modified_at, segment.modified_at
        return before is not None and after is not None and after > before
    return _place(segment) > _place(cut)


def _place(segment: Segment) -> tuple[int, str, int]:
    return segment.table_version or 0, segment.feed_date or "", segment.file_index or 0


def _bad_lines(run: FeedContext, segment: Segment) -> Iterator[Quarantined]:
    if segment.quarantined:
        yield from (row for row in run.quarantine.rows if row.segment == segment.segment and row.state != "replayed")


def _is_cut_off_there(row: Quarantined, content: bytes) -> bool:
    """Whether a bad line is the end of a file that was itself cut off: all lines before it are valid."""
    raw = row.raw
    return raw is not None and 0 < len(raw) < RAW_LIMIT and content.endswith(raw) and not raw.endswith(_LINE_ENDS)


def _content(run: FeedContext, segment: Segment) -> bytes | None:
    """Read a segment; return None when it cannot be read or has changed."""
    try:
        return run.raw.store.read(run.raw.place(segment), limit=SEGMENT_LIMIT, etag=run.raw.etag(segment))
    except SourceError as error:
        if error.segment is None:
            raise  # The whole store cannot be read.
        return None
