"""Decode quarantined rows again: their segments land again, and the next run decodes them.

Segments and lines keep their identity, so rows that can be used now take their original position in the order of
events."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from cdc_lakehouse.errors import ConfigurationError
from cdc_lakehouse.lake.tables.quarantine import Quarantined
from cdc_lakehouse.lake.tables.segments import DECODED, DUMP, MOVED_ROWS, REPAIR, Kind, Segment
from cdc_lakehouse.pipeline.dump_source import DumpSource
from cdc_lakehouse.pipeline.run import FeedRun
from cdc_lakehouse.pipeline.source import Source


@dataclass(frozen=True)
class Replay:
    """The result of a replay. landed: the segments that the next run decodes again, including others that must be
    decoded with them. others: rows that each run retries by itself, such as a file that cannot be read."""

    landed: tuple[Segment, ...]
    others: tuple[Quarantined, ...]


def replay(run: FeedRun, rows: Sequence[Quarantined]) -> Replay:
    """Land the segments of the rows again; rows that a person had discarded are opened again. Needs no JVM.

    Raises `SourceError` when a source no longer has a segment, and `ConcurrentRunError` when another run has written
    meanwhile."""
    known = run.segments.find(row.segment for row in rows).values()
    wanted: dict[Kind, list[Segment]] = defaultdict(list)
    for segment in known:
        if segment.state == DECODED and segment.kind not in (MOVED_ROWS, REPAIR):
            wanted[segment.kind].append(segment)
    landed: list[Segment] = []
    for kind, segments in wanted.items():
        landed += _source(run, kind).replay(segments)
    # Last: where this ends before, the command can be repeated.
    run.quarantine.reopen({row.id for row in rows})
    names = {segment.segment for segment in landed}
    return Replay(tuple(landed), tuple(row for row in rows if row.segment not in names))


def _source(run: FeedRun, kind: Kind) -> Source:
    if kind == run.source.kind:
        return run.source
    if kind == DUMP and run.feed.initial is not None:
        return DumpSource(run, run.feed.initial)
    raise ConfigurationError(
        f"the feed has no source of segments of kind {kind} any more",
        feed=run.feed.name,
        advice="set it again as it was when they landed",
    )
