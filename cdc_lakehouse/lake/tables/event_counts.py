"""How many events there are of what: of a segment, of a table."""

from __future__ import annotations

import datetime
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace

from cdc_lakehouse.decoders.problems import Rejected
from cdc_lakehouse.lake.tables.segments import DECODED, Segment


@dataclass(frozen=True, slots=True)
class SegmentCounts:
    """What a segment gave: events by operation, and the range of their commit-ts."""

    events: int = 0
    inserts: int = 0
    updates: int = 0
    deletes: int = 0
    min_commit_ts: int | None = None
    max_commit_ts: int | None = None

    def __add__(self, other: SegmentCounts) -> SegmentCounts:
        lowest = [each for each in (self.min_commit_ts, other.min_commit_ts) if each is not None]
        highest = [each for each in (self.max_commit_ts, other.max_commit_ts) if each is not None]
        return SegmentCounts(
            self.events + other.events,
            self.inserts + other.inserts,
            self.updates + other.updates,
            self.deletes + other.deletes,
            min(lowest, default=None),
            max(highest, default=None),
        )


@dataclass(frozen=True)
class BatchCounts:
    """Of one batch or several, by segment, database and table: a range of a topic holds rows of many tables."""

    rows: Mapping[tuple[str, str, str], SegmentCounts]

    @property
    def by_segment(self) -> dict[str, SegmentCounts]:
        found: dict[str, SegmentCounts] = {}
        for (segment, _, _), counts in self.rows.items():
            found[segment] = found.get(segment, SegmentCounts()) + counts
        return found

    @property
    def by_table(self) -> dict[tuple[str, str], SegmentCounts]:
        """By database and table."""
        found: dict[tuple[str, str], SegmentCounts] = {}
        for (_, *name), counts in self.rows.items():
            found[name[0], name[1]] = found.get((name[0], name[1]), SegmentCounts()) + counts
        return found


def with_counts(
    segments: Iterable[Segment], counts: BatchCounts, rejected: Iterable[Rejected], decoded_at: datetime.datetime
) -> list[Segment]:
    """Segments as they are once they are decoded."""
    by_segment = counts.by_segment
    quarantined: Counter[str] = Counter()
    for each in rejected:
        quarantined[each.segment] += each.count
    return [
        replace(
            segment,
            state=DECODED,
            decoded_at=decoded_at,
            quarantined=quarantined[segment.segment],
            **asdict(by_segment.get(segment.segment, SegmentCounts())),
        )
        for segment in segments
    ]
