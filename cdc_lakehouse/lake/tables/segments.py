"""The `segments` table: every segment that landed, once.

A segment is `landed` when it is listed and `decoded` when its events are in `events`; both are one commit for a whole
batch. Batches are numbered upwards; the number is how a current-state table knows what it has seen. A segment whose
content changed, or whose date is decoded again, moves to a new batch with `replaces_snapshot` naming the snapshot of
`events` that still holds its earlier events.
"""

from __future__ import annotations

import datetime
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from cdc_lakehouse.lake.catalog import Lake
from cdc_lakehouse.lake.tables.small_table import SmallTable, among, equal

LANDED: Final = "landed"
DECODED: Final = "decoded"
_GAPS_LISTED: Final = 1000

SCHEMA: Final = pa.schema([
    pa.field("segment", pa.string(), nullable=False),
    pa.field("database", pa.string(), nullable=False),
    pa.field("table", pa.string(), nullable=False),
    pa.field("table_version", pa.int64(), nullable=False),
    pa.field("physical_partition", pa.int64()),
    pa.field("feed_date", pa.string()),
    pa.field("dispatcher", pa.string()),
    pa.field("file_index", pa.int64()),
    pa.field("size", pa.int64(), nullable=False),
    pa.field("etag", pa.string(), nullable=False),
    pa.field("modified_at", pa.timestamp("us", tz="UTC")),
    pa.field("batch", pa.int64(), nullable=False),
    pa.field("state", pa.string(), nullable=False),
    pa.field("landed_at", pa.timestamp("us", tz="UTC"), nullable=False),
    pa.field("decoded_at", pa.timestamp("us", tz="UTC")),
    pa.field("events", pa.int64()),
    pa.field("inserts", pa.int64()),
    pa.field("updates", pa.int64()),
    pa.field("deletes", pa.int64()),
    pa.field("quarantined", pa.int64()),
    pa.field("min_commit_ts", pa.int64()),
    pa.field("max_commit_ts", pa.int64()),
    pa.field("replaces_snapshot", pa.int64()),
])  # fmt: skip


@dataclass(frozen=True, slots=True)
class Segment:
    """One row of the table; times are UTC, counts are None until it is decoded."""

    segment: str
    database: str
    table: str
    table_version: int
    physical_partition: int | None
    feed_date: str | None
    dispatcher: str | None
    file_index: int | None
    size: int
    etag: str
    modified_at: datetime.datetime | None
    batch: int
    state: str
    landed_at: datetime.datetime
    decoded_at: datetime.datetime | None = None
    events: int | None = None
    inserts: int | None = None
    updates: int | None = None
    deletes: int | None = None
    quarantined: int | None = None
    min_commit_ts: int | None = None
    max_commit_ts: int | None = None
    replaces_snapshot: int | None = None


COUNTS: Final = (
    "decoded_at", "events", "inserts", "updates", "deletes", "quarantined", "min_commit_ts", "max_commit_ts",
)  # fmt: skip
"""What is known of a segment once it is decoded."""


class Segments:
    """The segments of one feed, read once and kept up with what this object itself writes."""

    def __init__(self, lake: Lake, feed: str) -> None:
        self._table = SmallTable(lake, feed, "segments", SCHEMA)
        self._rows: dict[str, Segment] | None = None

    @property
    def rows(self) -> Mapping[str, Segment]:
        """By segment."""
        if self._rows is None:
            self._rows = {row["segment"]: Segment(**row) for row in self._table.read()}
        return self._rows

    @property
    def batch(self) -> int:
        """The highest batch so far, 0 before the first."""
        return max((row.batch for row in self.rows.values()), default=0)

    def undecoded(self) -> dict[int, list[Segment]]:
        """Batches that landed and were not decoded (by a run that ended early, or not yet), in order."""
        batches: dict[int, list[Segment]] = {}
        for row in self.rows.values():
            if row.state == LANDED:
                batches.setdefault(row.batch, []).append(row)
        return dict(sorted(batches.items()))

    def land(self, new: Sequence[Segment], properties: Mapping[str, str]) -> None:
        """Add a batch in one commit; rows of the same segments that were there before go."""
        again = [row.segment for row in new if row.segment in self.rows]
        self._table.write(new, replacing=among("segment", again) if again else None, properties=properties)
        self._rows = {**self.rows, **{row.segment: row for row in new}}

    def mark_decoded(self, batch: int, decoded: Sequence[Segment], properties: Mapping[str, str]) -> None:
        """Replace the rows of a batch by their decoded form, in one commit (files of a batch hold it alone)."""
        self._table.write(decoded, replacing=equal("batch", batch), properties=properties)
        self._rows = {**self.rows, **{row.segment: row for row in decoded}}


def index_gaps(rows: Iterable[Segment]) -> dict[str, list[int]]:
    """Missing file numbers by directory, between 1 and the highest that landed; of very many the first ones.

    Each directory (and each dispatcher in it) numbers its files from 1 without holes.
    """
    found: dict[tuple[str, str | None], set[int]] = {}
    for row in rows:
        if row.file_index is not None:
            directory = row.segment.rpartition("/")[0]
            found.setdefault((directory, row.dispatcher), set()).add(row.file_index)
    gaps: dict[str, list[int]] = {}
    for (directory, dispatcher), indexes in sorted(found.items(), key=lambda item: (item[0][0], item[0][1] or "")):
        if missing := list(itertools.islice(_between(sorted(indexes)), _GAPS_LISTED)):
            gaps[directory if dispatcher is None else f"{directory} (dispatcher {dispatcher})"] = missing
    return gaps


def _between(numbers: Sequence[int]) -> Iterator[int]:
    """The numbers from 1 on that are not there."""
    for lower, upper in itertools.pairwise([0, *numbers]):
        yield from range(lower + 1, upper)


def totals(rows: Iterable[Segment]) -> dict[str, int]:
    """What people ask of a set of segments: bytes, events by operation, quarantined lines."""
    names = ("size", "events", "inserts", "updates", "deletes", "quarantined")
    sums: dict[str, int] = dict.fromkeys(names, 0)
    for row in rows:
        for name in names:
            sums[name] += getattr(row, name) or 0
    return sums
