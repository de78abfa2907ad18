"""The `segments` table: every segment that landed, once.

The kinds of segments are: a `file` of a sink; a range of `offsets` of `records` (of a topic's partition, or of a Canal
destination); a file of a `dump`; `moved_rows`, which a DDL moved and the project wrote as synthetic events; and a
`repair`, which corrects rows that `verify` found to differ from the source's. A `summary` stands for the segments of a
table (or of topics) that no longer have rows: it holds their counts, and their last feed date.

A segment is `landed` when it is listed and `decoded` when its events are in `events`; both are one commit for a whole
batch. Batches are numbered upwards; a current-state table records the number of the last batch that it has read. A
segment whose content changed, or whose date is decoded again, moves to a new batch, and `replaces` names the snapshots
of `events` that still hold its earlier events.

The rows are read as an Arrow table and queried; a `Segment` is only made for the few rows that a run works on.
"""

from __future__ import annotations

import datetime
import functools
import hashlib
import itertools
import json
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal, TypeVar
from urllib.parse import quote

import pyarrow as pa
from pyiceberg.table import Table

from cdc_lakehouse.changelog.schema import TableName
from cdc_lakehouse.decoders.arrow import pc
from cdc_lakehouse.errors import SourceError
from cdc_lakehouse.lake.catalog import Lake, system_table
from cdc_lakehouse.lake.names import BATCH, UNMARKED
from cdc_lakehouse.lake.tables.small_table import ALL, SmallTable, Where, schema_of
from cdc_lakehouse.sources.object_store import (
    SEGMENT_LIMIT,
    ObjectStore,
    SegmentRef,
    StoredObject,
    UnreadableDirectory,
    open_store,
)

Kind = Literal["file", "offsets", "dump", "moved_rows", "repair", "summary"]

FILE: Final = "file"
OFFSETS: Final = "offsets"
DUMP: Final = "dump"
MOVED_ROWS: Final = "moved_rows"
REPAIR: Final = "repair"
SUMMARY: Final = "summary"

LANDED: Final = "landed"
DECODED: Final = "decoded"
MOVED_ROWS_PREFIX: Final = "//ddl/"
"""The prefix of the names of moved-rows segments, which no path in a source has."""
_SUMMARY_PREFIX: Final = "//summary/"
_TOTALS: Final = ("size", "events", "inserts", "updates", "deletes", "quarantined", "tombstones", "strict")
_SUMS: Final = (*_TOTALS, "lines", "others")
_GREATEST: Final = ("feed_date", "modified_at", "batch", "landed_at", "decoded_at")
"""A summary holds the sums of the former columns and the maxima of the latter."""
_GAPS_LISTED: Final = 1000
NO_CONTENTS: Final = "[]"
_NOT_KEPT: Final = 0
_CONTENTS_KEPT: Final = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """One row of the table. Times are UTC, `size` is in bytes, counts are None until it is decoded.

    A file has a table, a version, an index, an etag and a modification time. Offsets hold rows of many tables, and
    belong to `record_batch` of `records`; their index is the offset before which they are late (as `late_before` of
    `PartitionSummary`), None where none is. A dump's file has its table, an etag, and as version the commit-ts of its
    rows; a table without rows has one without content. Moved rows have a table, the version that the DDL made, and the
    `fingerprint` of their input, None once no DDL of the history moves them: then they have no events. A repair has a
    table, as version the commit-ts of the cut that differed, and the person who requested it (`requested_by`).

    `lines` is what a file's decoder read (events and rejected lines), or the number of records of offsets that landed;
    None when it was not counted. `others` is the number of records that are neither events nor in the quarantine, minus
    the rows that records have beyond their first, and minus the events that a file had and its content has no more.
    `tombstones`, among them, are those with a key and no value. `strict` is how many lines, or records with events,
    were read one by one, which takes twenty times as long.
    `replaces` says in which batches earlier contents of the segment were decoded, which snapshot of `events` has each
    (0 for one that is not kept), and its etag, as JSON `[[batch, snapshot, etag], …]`. `decoded_at` is that of the last
    of them while the segment waits; None when a run that was killed had only appended it.
    """

    segment: str
    kind: Kind
    database: str | None = None
    table: str | None = None
    table_version: int | None = None
    physical_partition: int | None = None
    feed_date: str | None = None
    dispatcher: str | None = None
    file_index: int | None = None
    size: int
    etag: str | None = None
    modified_at: datetime.datetime | None = None
    record_batch: int | None = None
    fingerprint: str | None = None
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
    replaces: str | None = None
    lines: int | None = None
    requested_by: str | None = None
    others: int | None = None
    tombstones: int | None = None
    strict: int | None = None


SCHEMA: Final = schema_of(Segment)

COUNTS: Final = (
    "events", "inserts", "updates", "deletes", "quarantined", "min_commit_ts", "max_commit_ts", "lines", "others",
    "tombstones", "strict",
)  # fmt: skip
"""The columns that a segment lacks until it is decoded; `lines` of offsets is set before."""


@dataclass(frozen=True, slots=True)
class Appended:
    """Which batches are in `events`: the newest one (0 before the first), and those that `segments` may not show as
    decoded. `snapshot_id` is the current one of the `snapshots` that exist."""

    newest: int = 0
    unmarked: frozenset[int] = frozenset()
    snapshot_id: int | None = field(default=None, compare=False)
    snapshots: frozenset[int] = field(default=frozenset(), compare=False)

    @classmethod
    def of(cls, events: Table | None) -> Appended:
        if events is None:
            return cls()
        unmarked = map(int, json.loads(events.properties.get(UNMARKED, "[]")))
        newest, current = int(events.properties.get(BATCH, "0")), events.metadata.current_snapshot_id
        snapshots = frozenset(each.snapshot_id for each in events.snapshots())
        return cls(newest, frozenset(unmarked), current, snapshots)

    def as_properties(self) -> dict[str, str]:
        return {BATCH: str(self.newest), UNMARKED: json.dumps(sorted(self.unmarked))}

    def has(self, segment: Segment) -> bool:
        """Whether the events of a segment that waits are in without being marked: the run that appended them was
        killed, and so was perhaps another one, which had moved the segment to a new batch to decode it again."""
        last = json.loads(segment.replaces or NO_CONTENTS)[-1:]
        was_moved = segment.decoded_at is None and [etag for *_, etag in last] == [segment.etag]
        return segment.batch in self.unmarked or was_moved


def earlier_state(segment: Segment, appended: Appended) -> dict[str, Any]:
    """Return `replaces` and `decoded_at` for a segment that lands again. Each table finds the content that it has
    applied by its batch: another one may have applied an earlier one. Of many the oldest are not kept: what has applied
    them is rebuilt. Without any (`[]`) there may be events all the same, by a run that was to decode it before."""
    contents, is_marked = json.loads(segment.replaces or NO_CONTENTS), segment.state == DECODED
    is_in = is_marked or segment.batch in appended.unmarked
    if is_in:
        contents.append([segment.batch, appended.snapshot_id or _NOT_KEPT, segment.etag])
    if len(contents) > _CONTENTS_KEPT:
        (batch, _, etag), (*_, after), *_ = contents
        contents[:2] = [[batch, _NOT_KEPT, etag if etag == after else None]]
    return {"replaces": json.dumps(contents), "decoded_at": segment.decoded_at if is_marked or not is_in else None}


def contents_of(replaces: str | None) -> list[tuple[int, int]]:
    """Return the pairs of batch and snapshot in `Segment.replaces`, oldest first."""
    return [(batch, snapshot) for batch, snapshot, _ in json.loads(replaces or NO_CONTENTS)]


def has_other_content(segment: Segment) -> bool:
    """Whether an earlier content of a file was another one. Its transactions that the new content lacks stay: a
    changefeed that loses the numbers of its files writes over them."""
    contents = json.loads(segment.replaces or NO_CONTENTS)
    return segment.kind == FILE and any(etag != segment.etag for *_, etag in contents)


def applied_content(segment: Segment, batch: int) -> int | None:
    """Return the snapshot of `events` with the content of a segment that a table has applied, which has read batches up
    to `batch`; None when it has applied none of the earlier ones."""
    return next((snapshot for of, snapshot in reversed(contents_of(segment.replaces)) if of <= batch), None)


def replayed_segment(segment: Segment, batch: int, appended: Appended, now: datetime.datetime) -> Segment:
    """A segment that is to be decoded again, in a batch of its own."""
    changed: dict[str, Any] = dict.fromkeys(COUNTS) | earlier_state(segment, appended)
    if segment.kind == OFFSETS:
        del changed["lines"]
    return replace(segment, batch=batch, state=LANDED, landed_at=now, **changed)


class Segments:
    """The segments of one feed, read once and updated with what this object writes."""

    def __init__(self, lake: Lake, feed: str) -> None:
        self._table = SmallTable(lake, feed, "segments", SCHEMA)

    @functools.cached_property
    def rows(self) -> pa.Table:
        """All rows, with the columns of `SCHEMA`."""
        return self._table.scan().combine_chunks()

    @property
    def batch(self) -> int:
        """The highest batch so far; 0 before the first."""
        return pc.max(self.rows["batch"]).as_py() or 0

    def earlier_contents(self, batch: int) -> set[int]:
        """Return the snapshots of `events` with earlier contents of the segments of later batches."""
        rows = self.rows.filter((pc.field("batch") > batch) & pc.field("replaces").is_valid())["replaces"]
        return {snapshot for contents in rows.to_pylist() for _, snapshot in contents_of(contents)}

    def select(self, condition: Any) -> list[Segment]:
        """Return the segments for which a condition (a `pyarrow.compute` expression over `SCHEMA`) is true."""
        return [Segment(**row) for row in self.rows.filter(condition).to_pylist()]

    def waiting(self) -> int:
        """Count the segments that have landed and are not decoded. Data files without any are not read."""
        return len(self._table.scan(["state"], {"state": [LANDED]}))

    def _column(self, name: str) -> pa.ChunkedArray:
        """Return one column; no other is read for it."""
        return (self.rows if "rows" in vars(self) else self._table.scan([name]))[name]

    def dates(self) -> list[str]:
        """Return the feed dates that have segments."""
        return pc.unique(pc.drop_null(self._column("feed_date"))).to_pylist()

    def read_one_by_one(self) -> int:
        """Return the number of records that were read one by one."""
        return pc.sum(self._column("strict")).as_py() or 0

    def undecoded(self, kind: Kind) -> dict[int, list[Segment]]:
        """Return the segments of a kind that landed and are not decoded, or not yet, by batch in order."""
        rows = self.select((pc.field("state") == LANDED) & (pc.field("kind") == kind))
        by_batch = itertools.groupby(sorted(rows, key=lambda row: row.batch), key=lambda row: row.batch)
        return {batch: list(segments) for batch, segments in by_batch}

    def decoded_beside(self, kind: Kind) -> set[TableName] | None:
        """Return the tables with decoded segments of other kinds; None for any: some segments have no table."""
        rows = self.rows.filter((pc.field("state") == DECODED) & (pc.field("kind") != kind))
        names = rows.group_by(["database", "table"]).aggregate([]).to_pylist()
        return None if any(row["table"] is None for row in names) else {TableName(*row.values()) for row in names}

    def find(self, segments: Iterable[str]) -> dict[str, Segment]:
        """Return the known ones of the segments, by name."""
        return {row.segment: row for row in self.select(self._are(segments))}

    def known(self, segments: Iterable[str]) -> set[str]:
        """Return the known ones of the names."""
        return set(self.rows["segment"].filter(self._are(segments)).to_pylist())

    def etags(self, segments: Iterable[str]) -> list[str | None]:
        """Return the known etag of each segment, in the order of the names; None for unknown segments."""
        positions = pc.index_in(pa.array(segments, pa.string()), value_set=self.rows["segment"])
        return self.rows["etag"].take(positions).to_pylist()

    def land(self, new: Sequence[Segment]) -> None:
        """Add batches in one commit, in place of earlier rows of the same segments."""
        replaced = self.known(row.segment for row in new)
        self._write(new, {"segment": replaced} if replaced else None)

    def mark_decoded(self, decoded: Sequence[Segment]) -> None:
        """Replace the rows of a batch by their decoded form, in one commit. No other batch shares its data files."""
        self._write(decoded, {"batch": [decoded[0].batch]})

    def summarize(self, segments: pa.Table) -> None:
        """Replace segments (columns of `SCHEMA`) by one summary row for each table, in one commit."""
        rows = pa.concat_tables([segments, self.rows.filter(pc.field("kind") == SUMMARY)])
        sums = [(name, "sum") for name in _SUMS]
        greatest = [(name, "max") for name in _GREATEST]
        summaries: list[Segment] = []
        for group in rows.group_by(["database", "table"]).aggregate([*sums, *greatest]).to_pylist():
            database, table = group["database"], group["table"]
            name = "" if table is None else f"{quote(database, safe='')}/{quote(table, safe='')}"
            # Without commit-ts: segments that are selected by commit-ts keep rows of their own.
            counts: dict[str, Any] = {each: group[f"{each}_sum"] or 0 for each in _SUMS}
            counts |= {each: group[f"{each}_max"] for each in _GREATEST}
            counts |= {"segment": f"{_SUMMARY_PREFIX}{name}", "kind": SUMMARY, "state": DECODED}
            summaries.append(Segment(database=database, table=table, **counts))
        others = self.rows.filter(pc.invert(self._are(rows["segment"].to_pylist())))
        self.rows = pa.concat_tables([others, as_rows(summaries)])
        self._table.write(self.rows, replacing=ALL)

    def summarized(self) -> dict[TableName, Segment]:
        """Return the summaries of files, by the table that the source's paths name."""
        found = self.select((pc.field("kind") == SUMMARY) & pc.field("table").is_valid())
        return {TableName(each.database or "", each.table or ""): each for each in found}

    def _write(self, written: Sequence[Segment], replacing: Where | None) -> None:
        self._table.write(as_rows(written), replacing=replacing)
        others = self.rows.filter(pc.invert(self._are(row.segment for row in written)))
        self.rows = pa.concat_tables([others, as_rows(written)])

    def _are(self, segments: Iterable[str]) -> Any:
        return pc.is_in(self.rows["segment"], value_set=pa.array(segments, pa.string()))


def as_rows(segments: Sequence[Segment]) -> pa.Table:
    """Convert segments to rows with the columns of `SCHEMA`."""
    columns = {name: [getattr(segment, name) for segment in segments] for name in SCHEMA.names}
    return pa.Table.from_pydict(columns, schema=SCHEMA)


IS_REPLACED: Final = pc.field("replaces").is_valid() & (pc.field("replaces") != NO_CONTENTS)
"""The condition that a segment was decoded before."""


def may_hold(tables: Iterable[TableName]) -> Any:
    """Return the condition that a segment can hold events of one of some tables; offsets can hold any table's."""
    condition = pc.field("kind") == OFFSETS
    for name in tables:
        condition = condition | ((pc.field("database") == name.database) & (pc.field("table") == name.table))
    return condition


def directories(rows: pa.Table) -> pa.Table:
    """Return the rows of files, with the additional column `directory` of each file."""
    files = rows.filter(pc.field("kind") == FILE)
    parts = pc.split_pattern(files["segment"], "/", max_splits=1, reverse=True)
    return files.append_column("directory", pc.list_element(parts, 0))


def table_versions(rows: pa.Table) -> list[tuple[str, TableName, int]]:
    """Return each table version that has files, with the first directory that holds them."""
    groups = directories(rows).group_by(["database", "table", "table_version"]).aggregate([("directory", "min")])
    columns = (groups[name].to_pylist() for name in ("database", "table", "directory_min", "table_version"))
    return sorted((directory, TableName(*of), version) for *of, directory, version in zip(*columns, strict=True))


@dataclass(frozen=True, slots=True)
class IndexGap:
    """The first missing file numbers of a directory's table (of a dispatcher, where there are several)."""

    directory: str
    dispatcher: str | None
    database: str
    table: str
    table_version: int
    missing: tuple[int, ...]

    def __str__(self) -> str:
        return self.directory if self.dispatcher is None else f"{self.directory} (dispatcher {self.dispatcher})"


def index_gaps(rows: pa.Table) -> list[IndexGap]:
    """Return the missing file numbers between 1 and the highest that landed, sorted by directory.

    Each directory (and each dispatcher in it) numbers its files from 1 without gaps.
    """
    of_table = [(name, "min") for name in ("database", "table", "table_version")]
    numbers = [("file_index", "max"), ("file_index", "distinct")]
    groups = directories(rows).group_by(["directory", "dispatcher"]).aggregate([*of_table, *numbers])
    counts = pc.list_value_length(groups["file_index_distinct"])
    gaps: list[IndexGap] = []
    for row in groups.filter(pc.less(counts, groups["file_index_max"])).to_pylist():
        pairs = itertools.pairwise([0, *sorted(row["file_index_distinct"])])
        gone = (number for lower, upper in pairs for number in range(lower + 1, upper))
        table = row["database_min"], row["table_min"], row["table_version_min"]
        gaps.append(IndexGap(row["directory"], row["dispatcher"], *table, tuple(itertools.islice(gone, _GAPS_LISTED))))
    return sorted(gaps, key=lambda gap: (gap.directory, gap.dispatcher or ""))


@dataclass(frozen=True, slots=True)
class Totals:
    """Sums over segments by the columns of `Segment`, unknown counts as 0; the commit-ts, None without events."""

    size: int
    events: int
    inserts: int
    updates: int
    deletes: int
    quarantined: int
    tombstones: int
    strict: int
    segments: int
    min_commit_ts: int | None
    max_commit_ts: int | None


def totals(rows: pa.Table) -> Totals:
    sums = {name: pc.sum(rows[name]).as_py() or 0 for name in _TOTALS}
    lowest, highest = pc.min(rows["min_commit_ts"]).as_py(), pc.max(rows["max_commit_ts"]).as_py()
    return Totals(**sums, segments=len(rows), min_commit_ts=lowest, max_commit_ts=highest)


# Read the content of segments, from the source or from an archive that keeps copies in the warehouse.

_COPIES_AT_ONCE: Final = 4
_READ_AT_ONCE: Final = 16
_NOT_LISTED: Final = (
    "let this user list and read that directory of the warehouse; until then old copies (keep_archive_days) and "
    "segments (keep_segments_days) are not removed"
)

_Result = TypeVar("_Result")


def attempt(read: Callable[[], _Result]) -> _Result | SourceError:
    """Read a file, or return why it cannot be read. Raises an error of the whole store."""
    try:
        return read()
    except SourceError as error:
        if error.segment is None:
            raise
        return error


def _faults(read: Callable[[Segment], object], segments: Sequence[Segment], at_once: int) -> dict[str, str]:
    with ThreadPoolExecutor(at_once) as pool:
        results = pool.map(lambda segment: attempt(lambda: read(segment)), segments)
        found = zip(segments, results, strict=True)
        return {segment.segment: result.advised for segment, result in found if isinstance(result, SourceError)}


class SourceFiles:
    """Reads segments from the source itself. What the source expires is lost."""

    def __init__(self, store: ObjectStore) -> None:
        self.store = store

    def ref(self, segment: Segment) -> SegmentRef:
        """Return where a segment's content is. Copies have no ETag, as they never change."""
        return SegmentRef(segment.segment, segment.size, segment.etag)

    def head(self, segment: Segment, size: int) -> bytes:
        """Return the first bytes of a segment's content. Raises `SourceError` when it cannot be read or has changed."""
        ref = self.ref(segment)
        return self.store.head(ref.path, size, etag=ref.etag)

    def unreadable(self, segments: Sequence[Segment]) -> dict[str, str]:
        """Return why segments cannot be read or have changed; the next listing reports changed ones."""
        return _faults(lambda segment: self.head(segment, 1), segments, _READ_AT_ONCE)

    def keep(self, segments: Sequence[Segment]) -> dict[str, str]:
        """Make sure that the contents stay readable; return the reasons of failures by segment."""
        return {}


class Archive(SourceFiles):
    """Keeps copies of segments in the warehouse, below `cdc_{feed}/archive`: a file for each version of a content."""

    def __init__(self, lake: Lake, feed: str, source: ObjectStore) -> None:
        super().__init__(open_store(lake.location(), lake.storage))
        self._directory = f"{system_table(feed, '').namespace}/archive/"
        self._lake = lake
        self._source = source

    def ref(self, segment: Segment) -> SegmentRef:
        assert segment.etag is not None, segment.segment
        content = hashlib.sha256(segment.etag.encode()).hexdigest()[:16]
        # Every store and every reader takes such a path unchanged.
        escaped = quote(segment.segment).replace("~", "~7E").replace("%", "~")
        return SegmentRef(f"{self._directory}{escaped}.{content}", segment.size, None)

    def has(self, segment: Segment) -> bool:
        """Whether the archive has a complete copy of the segment."""
        try:
            return len(self.head(segment, segment.size + 1)) == segment.size
        except SourceError:
            return False

    def copies(self) -> list[StoredObject]:
        """Return all copies that are in the archive. Raises `SourceError` when it cannot be listed."""
        copies = list[StoredObject]()
        for each in self.store.list(self._directory):
            if isinstance(each, UnreadableDirectory):
                raise SourceError(f"cannot list the archive: {each.reason}", segment=each.path, advice=_NOT_LISTED)
            copies.append(each)
        return copies

    def keep(self, segments: Sequence[Segment]) -> dict[str, str]:
        """Copy the contents that are not in the archive yet, in the version that was listed."""

        def copy(segment: Segment) -> None:
            if not self.has(segment):
                content = self._source.read(segment.segment, limit=SEGMENT_LIMIT, etag=segment.etag)
                self._lake.write(f"{self.store.uri}/{self.ref(segment).path}", content)

        return _faults(copy, segments, _COPIES_AT_ONCE)
