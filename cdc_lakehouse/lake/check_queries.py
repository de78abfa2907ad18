"""Numbers about a feed's tables, most of which tell whether they are right. PyIceberg only: no JVM is started."""

from __future__ import annotations

import functools
import json
import operator
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from pyiceberg.expressions import AlwaysTrue, And, BooleanExpression, GreaterThanOrEqual, LessThanOrEqual
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot, ancestors_of

from cdc_lakehouse.changelog.schema import TableName
from cdc_lakehouse.config import FeedConfig
from cdc_lakehouse.decoders.problems import BAD_VALUE
from cdc_lakehouse.lake.catalog import Lake, system_table
from cdc_lakehouse.lake.current.tables import CurrentTables, row_count
from cdc_lakehouse.lake.data_files import column, live_files, read_rows
from cdc_lakehouse.lake.engine_faults import engine_fault
from cdc_lakehouse.lake.properties import (
    BATCH,
    CHECKPOINT_TS,
    KEY,
    KEYS_TOUCHED,
    ROWS_REMOVED,
    ROWS_WRITTEN,
    summary_of,
)
from cdc_lakehouse.lake.tables.checkpoints import Checkpoints
from cdc_lakehouse.lake.tables.quarantine import Quarantine
from cdc_lakehouse.lake.tables.segments import DECODED, SUMMARY, Segments, totals
from cdc_lakehouse.lake.tables.superseded_events import removal_of

_LARGE_BATCH: Final = 0.1
"""Of a table's rows: looking for so many keys would take longer than grouping them all."""

# What these take is hidden from type checkers.
_compute: Any = pc
_at_least: Any = GreaterThanOrEqual
_at_most: Any = LessThanOrEqual


@dataclass(frozen=True, slots=True)
class Duplicates:
    """Keys that stand more than once in a table, with a few of them; `rows` were looked at."""

    rows: int
    keys: int
    examples: tuple[str, ...]


def duplicate_keys(table: Table) -> Duplicates:
    """Of all rows; reads the key's columns alone."""
    key = _key(table)
    if not key or table.current_snapshot() is None:
        return Duplicates(0, 0, ())
    return _duplicates(table.scan(selected_fields=key).to_arrow().select(list(key)))


def duplicate_keys_written(table: Table) -> Duplicates:
    """Of the rows that can have a key which the last batch wrote: what a batch can have made double. Only they are held
    in memory, and files that have none of them by their minimum and maximum are not read."""
    key, batch = _key(table), conservation(table)
    if not key or not batch.written:
        return Duplicates(0, 0, ())
    if batch.written > batch.after * _LARGE_BATCH:
        return duplicate_keys(table)
    written = _written_keys(table, key)
    if not written.num_rows:
        return duplicate_keys(table)  # The batch wrote all of its rows again.
    rows = table.scan(_near(key[0], written.column(0)), selected_fields=key).to_arrow_batch_reader()
    return _duplicates(_among(rows, written))


def _written_keys(table: Table, key: Sequence[str]) -> pa.Table:
    """The keys in the files that the last batch added, where it took none away."""
    made, _ = _last_batch(table)
    added = {each.snapshot_id for each in made if not _total(each, "deleted-records")}
    fields = [table.schema().find_field(name).field_id for name in key]
    parts = [
        rows.select([column(id) for id in fields]).rename_columns(list(key))
        for file in live_files(table, (), added_by=added)
        for rows in read_rows(table.io, file, table.schema(), fields)
    ]
    return pa.concat_tables(parts) if parts else pa.table({name: [] for name in key})


def _near(name: str, values: pa.ChunkedArray) -> BooleanExpression:
    """Between the least and the greatest of some whole numbers; of other values it is not tried."""
    if not pa.types.is_integer(values.type) or values.null_count:
        return AlwaysTrue()
    ends = _compute.min_max(values).as_py()
    return And(_at_least(name, ends["min"]), _at_most(name, ends["max"]))


def _among(rows: pa.RecordBatchReader, written: pa.Table) -> pa.Table:
    """Rows with keys that were written, and with others that are made of the same parts."""
    found = [pc.field(name).isin(written.column(name).combine_chunks()) for name in written.column_names]
    # By a scanner, which makes one look-up table for all batches.
    wanted: Any = ds.Scanner.from_batches(rows, filter=functools.reduce(operator.and_, found))
    return wanted.to_table().select(written.column_names)


def _key(table: Table) -> tuple[str, ...]:
    return tuple(json.loads(table.properties.get(KEY, "[]")))


def _duplicates(keys: pa.Table) -> Duplicates:
    # By position: a column's name can hold what the group-by would take for something else.
    plain = pa.table({f"k{n}": column for n, column in enumerate(keys.columns)})
    counts = plain.group_by(plain.column_names).aggregate([([], "count_all")])
    double = counts.filter(pc.field("count_all") > 1)
    examples = tuple(str(tuple(row.values())[: keys.num_columns]) for row in double.slice(0, 5).to_pylist())
    return Duplicates(keys.num_rows, double.num_rows, examples)


@dataclass(frozen=True, slots=True)
class Conservation:
    """Rows of a table before and after its last batch, and what the batch wrote, beyond those that it wrote again.
    `changed_keys` counts the keys of which it could delete rows, None where that is any row. `expected` are the rows
    that the batch's events write, and those that they take the place of or delete, as its tasks counted them; None
    where all rows were written again or an earlier release made the batch.

    What is not seen: an event that is missing from `events` or was not read, for the tasks do not count it either; and
    whether a key whose row went had to have one."""

    before: int
    written: int
    after: int
    changed_keys: int | None
    expected: tuple[int, int] | None = None

    @property
    def deleted(self) -> int:
        return self.before + self.written - self.after

    @property
    def holds(self) -> bool:
        """No row is lost: only those of changed keys went. No row is there twice: none that was written is missing.
        And the rows are those before, less those that the events took, with those that the events wrote."""
        bounded = self.deleted >= 0 and (self.changed_keys is None or self.deleted <= self.changed_keys)
        return bounded and self.expected in (None, (self.written, self.deleted))


def conservation(table: Table) -> Conservation:
    """From the summaries of the snapshots that the last batch made."""
    changed_keys = table.properties.get(KEYS_TOUCHED, "")
    made, before = _last_batch(table)
    if before is None and made and made[-1].parent_snapshot_id is not None:
        # Maintenance let it expire: there is nothing to compare with.
        rows = row_count(table, table.current_snapshot())
        return Conservation(rows, 0, rows, None)
    written = sum(max(0, _total(each, "added-records") - _live_rows_replaced(each)) for each in made)
    after = row_count(table, table.current_snapshot())
    return Conservation(
        row_count(table, before), written, after, int(changed_keys) if changed_keys else None, _expected(made)
    )


def _expected(made: Sequence[Snapshot]) -> tuple[int, int] | None:
    summaries = [summary_of(each) for each in made]
    if not made or any(ROWS_WRITTEN not in each for each in summaries):
        return None
    return sum(int(each[ROWS_WRITTEN]) for each in summaries), sum(int(each[ROWS_REMOVED]) for each in summaries)


def _live_rows_replaced(snapshot: Snapshot) -> int:
    """Rows of the files that the snapshot took away: those that were deleted already went with their vectors."""
    gone = _total(snapshot, "deleted-records")
    return gone - _total(snapshot, "removed-position-deletes") if gone else 0


def _total(snapshot: Snapshot, name: str) -> int:
    return int(summary_of(snapshot).get(name, "0"))


def _last_batch(table: Table) -> tuple[list[Snapshot], Snapshot | None]:
    """The snapshots that the last batch made, and the one before them."""
    head = table.current_snapshot()
    made: list[Snapshot] = []
    for snapshot in ancestors_of(head, table.metadata):
        if _batch(snapshot) != _batch(head):
            return made, snapshot
        made.append(snapshot)
    return made, None


def _batch(snapshot: Snapshot | None) -> tuple[str | None, str | None]:
    summary = summary_of(snapshot)
    return summary.get(BATCH), summary.get(CHECKPOINT_TS)


@dataclass(frozen=True, slots=True)
class EventCounts:
    """Events that the segments gave, those that are there, and those that went because later ones say it all."""

    of_segments: int
    in_table: int
    superseded: int


@dataclass(frozen=True, slots=True)
class UncountedLines:
    """A segment of which not each line or record is an event, has its place in the quarantine or is explained: what its
    decoder read (of records: what landed), the events that it gave, what could not be used by its own count, and what
    the quarantine has of that; and `others`, as `Segment` has them."""

    segment: str
    lines: int
    events: int
    others: int
    rejected: int
    in_quarantine: int

    @property
    def is_accounted(self) -> bool:
        return self.lines == self.events + self.others + self.rejected and self.rejected == self.in_quarantine


def uncounted_lines(lake: Lake, feed: str) -> list[UncountedLines]:
    """Of decoded segments whose lines or records were counted, in their order; reads `segments` and `quarantine` alone.

    Records that landed and were not read, or twice, are seen, and events that were not committed, or twice. What is not
    seen: a record whose decoder takes it for one without a row, and one that the topic never gave."""
    columns = ["segment", "lines", "events", "others", "quarantined"]
    # Summaries are also of segments that were not counted.
    counted = (pc.field("state") == DECODED) & (pc.field("kind") != SUMMARY) & pc.field("lines").is_valid()
    rows = Segments(lake, feed).rows.filter(counted).select(columns)
    rows = rows.set_column(columns.index("others"), "others", _compute.fill_null(rows.column("others"), 0))
    kept: Counter[str] = Counter()
    for row in Quarantine(lake, feed).rows:
        # Rows that a table could not take are events.
        if row.state != "replayed" and row.error_class != BAD_VALUE:
            kept[row.segment] += row.count
    given = pc.field("events") + pc.field("others") + pc.field("quarantined")
    wrong = (pc.field("lines") != given) | (pc.field("quarantined") != 0)
    suspects = rows.filter(wrong | pc.field("segment").isin(pa.array(kept, pa.string())))
    cells = (suspects.column(name).to_pylist() for name in columns)
    found = [
        UncountedLines(segment, lines, events, others, rejected, kept[segment])
        for segment, lines, events, others, rejected in zip(*cells, strict=True)
    ]
    return sorted((each for each in found if not each.is_accounted), key=lambda each: each.segment)


@dataclass(frozen=True, slots=True)
class CutTable:
    """A table of a cut: the rows that the cut says, and those of the snapshot that it names; None where there is none
    such, or it cannot be read."""

    name: TableName
    rows: int
    in_snapshot: int | None


def cut_tables(lake: Lake, feed: FeedConfig) -> list[CutTable]:
    """The tables of the last cut. From metadata: what the snapshots that were written for this cut hold is counted by
    their files, of others it is what they say."""
    checkpoints, tables = Checkpoints(lake, feed.name), CurrentTables(lake, feed)
    cut = checkpoints.last().checkpoint_ts
    found: list[CutTable] = []
    for row in checkpoints.rows(cut):
        name = TableName(row.database, row.table)
        try:
            table = None if row.snapshot_id is None else tables.load(tables.identifier(name))
            count = 0 if row.snapshot_id is None else _rows_of(table, row.snapshot_id, cut)
        except Exception as error:
            if engine_fault(error) is not None:
                raise
            count = None
        found.append(CutTable(name, row.row_count, count))
    return found


def _rows_of(table: Table | None, snapshot_id: int, cut: int) -> int | None:
    snapshot = None if table is None else table.snapshot_by_id(snapshot_id)
    if table is None or snapshot is None:
        return None
    if _batch(snapshot)[1] != str(cut):
        return row_count(table, snapshot)
    return sum(file.live_rows for file in live_files(table, (), snapshot=snapshot))


def changes_by_table(lake: Lake, feed: str, since: str | None) -> dict[TableName, Counter[str]]:
    """Events by table and operation, of feed dates from `since` on, None for all. Reads three columns of `events`."""
    table = lake.load(system_table(feed, "events"))
    found: dict[TableName, Counter[str]] = {}
    if table is None:
        return found
    dated = AlwaysTrue() if since is None else _at_least("feed_date", since)
    fields = ("schema_name", "table_name", "op")
    for batch in table.scan(dated, selected_fields=fields).to_arrow_batch_reader():
        groups = pa.Table.from_batches([batch]).group_by(list(fields)).aggregate([([], "count_all")])
        for row in groups.to_pylist():
            name = TableName(row["schema_name"], row["table_name"])
            found.setdefault(name, Counter())[row["op"]] += row["count_all"]
    return found


def event_counts(lake: Lake, feed: str) -> EventCounts:
    table = lake.load(system_table(feed, "events"))
    rows = 0 if table is None else row_count(table, table.current_snapshot())
    of_segments = totals(Segments(lake, feed).rows.filter(pc.field("state") == DECODED)).events
    return EventCounts(of_segments, rows, removal_of(lake, feed).removed)
