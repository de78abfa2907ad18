"""Segments that landed and cannot be decoded now: they wait, with a reason, and every run tries them again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Final

from cdc_lakehouse.errors import SourceError
from cdc_lakehouse.lake.properties import of_batch
from cdc_lakehouse.lake.tables.quarantine import Quarantined
from cdc_lakehouse.lake.tables.segments import Segment
from cdc_lakehouse.pipeline.run import FeedRun

UNREADABLE_SEGMENT: Final = "UnreadableSegment"
UNKNOWN_COLUMNS: Final = "UnknownColumns"
SET_ASIDE: Final = frozenset({UNREADABLE_SEGMENT, UNKNOWN_COLUMNS})

_LOOKS_AT_ONCE: Final = 16


def unreadable(run: FeedRun, segments: Sequence[Segment]) -> dict[str, str]:
    """The segments that cannot be read, or are others by now, with the reason: the next listing has those as such."""

    def look(segment: Segment) -> tuple[str, str | None]:
        try:
            run.raw.head(segment, 1)
        except SourceError as error:
            if error.segment is None:
                raise  # It is of the whole store.
            return segment.segment, error.message
        return segment.segment, None

    with ThreadPoolExecutor(_LOOKS_AT_ONCE) as pool:
        return {path: reason for path, reason in pool.map(look, segments) if reason is not None}


def set_aside(run: FeedRun, segments: Sequence[Segment], faults: Mapping[str, Mapping[str, str]]) -> Sequence[Segment]:
    """The segments that can be decoded. Those with a fault (reasons by segment, by class) keep the batch, where each
    run tries them again; the others get the next one, for a batch is decoded as a whole."""
    now = run.clock()
    looked_at = {segment.segment for segment in segments}
    run.quarantine.resolve(
        lambda row: (
            row.error_class in SET_ASIDE
            and row.segment in looked_at
            and row.segment not in faults.get(row.error_class, {})
        ),
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
        run.segments.land(rest, of_batch(batch))
    return rest
