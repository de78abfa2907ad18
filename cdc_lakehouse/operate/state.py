"""The state of a feed and of its tables: one reading for status, report, alerts, metrics and checks, without a JVM."""

from __future__ import annotations

import datetime
import functools
import json
import math
import operator
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import pyarrow as pa
import pyarrow.dataset as ds
from pyiceberg.expressions import AlwaysTrue, And, GreaterThanOrEqual, LessThanOrEqual
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot, ancestors_of

from cdc_lakehouse.changelog.history import Incarnation
from cdc_lakehouse.changelog.positions import BEGINNING, lag_seconds, utc_now
from cdc_lakehouse.changelog.schema import TableName
from cdc_lakehouse.decoders.arrow import pc
from cdc_lakehouse.decoders.problems import BAD_VALUE
from cdc_lakehouse.lake.catalog import system_table
from cdc_lakehouse.lake.current.tables import CurrentTables, row_count
from cdc_lakehouse.lake.faults import engine_fault
from cdc_lakehouse.lake.files import live_files, read_rows
from cdc_lakehouse.lake.names import (
    BATCH,
    CHECKPOINT_TS,
    COMPACTED_AT,
    KEY,
    KEYS_TOUCHED,
    ROWS_REMOVED,
    ROWS_WRITTEN,
    summary_of,
)
from cdc_lakehouse.lake.tables.checkpoints import CutRow, removal_of
from cdc_lakehouse.lake.tables.segments import DECODED, FILE, LANDED, OFFSETS, SUMMARY, totals
from cdc_lakehouse.pipeline.feed_tables import unmatched_patterns
from cdc_lakehouse.pipeline.run import FeedRun
from cdc_lakehouse.pipeline.source import SourceStatus, last_look

# --- Numbers about a feed's tables, most of which the checks use ---

_LARGE_BATCH: Final = 0.1
"""The share of a table's rows from which looking up a batch's keys takes longer than grouping all rows."""

# Type checkers do not know the parameters of these.
_at_least: Any = GreaterThanOrEqual
_at_most: Any = LessThanOrEqual


def duplicate_keys(table: Table, *, of_batch: bool = False) -> tuple[int, int, tuple[str, ...]]:
    """Find duplicate keys among the rows of a table; reads the key columns only. Return the number of rows that were
    read, of the keys that occur more than once among them, and a few of these.

    With `of_batch` they are searched for among the keys that the last batch wrote, the only ones that it can have
    duplicated: only rows with these keys are held in memory, and files that cannot have them are not read."""
    key: tuple[str, ...] = tuple(json.loads(table.properties.get(KEY, "[]")))
    batch = conservation(table)
    if not key or table.current_snapshot() is None or (of_batch and not batch.written):
        return 0, 0, ()
    parts: list[pa.Table] = []
    if of_batch and batch.written <= batch.after * _LARGE_BATCH:
        made, _ = _last_batch(table)
        added = {each.snapshot_id for each in made if not _total(each, "deleted-records")}
        parts = [
            rows.select([*range(len(key))])
            for file in live_files(table, (), added_by=added)
            for rows in read_rows(table.io, file, table.schema(), key)
        ]
    if any(map(len, parts)):
        written, near = pa.concat_tables(parts), AlwaysTrue()
        if pa.types.is_integer(written.column(0).type) and not written.column(0).null_count:
            ends = pc.min_max(written.column(0)).as_py()
            near = And(_at_least(key[0], ends["min"]), _at_most(key[0], ends["max"]))
        rows = table.scan(near, selected_fields=key).to_arrow_batch_reader()
        # Rows whose key columns each have a written value: those with written keys, and some with others. A scanner
        # builds one lookup table for all batches.
        found = [pc.field(name).isin(written.column(name).combine_chunks()) for name in key]
        wanted: Any = ds.Scanner.from_batches(rows, filter=functools.reduce(operator.and_, found))
        keys = wanted.to_table().select(list(key))
    else:  # Also of a batch that wrote all of its rows again.
        keys = table.scan(selected_fields=key).to_arrow().select(list(key))
    # Columns are named by position: the group-by could misread a source column's name.
    plain = pa.table({f"k{n}": column for n, column in enumerate(keys.columns)})
    counts = plain.group_by(plain.column_names).aggregate([([], "count_all")])
    double = counts.filter(pc.field("count_all") > 1)
    examples = tuple(str(tuple(row.values())[: keys.num_columns]) for row in double.slice(0, 5).to_pylist())
    return keys.num_rows, double.num_rows, examples


@dataclass(frozen=True, slots=True)
class Conservation:
    """The rows of a table before and after its last batch, and the rows that the batch wrote, without those that it
    only copied from replaced files.

    `changed_keys` is the number of keys whose rows the batch may delete, None when it may delete any row. `expected` is
    the number of rows that the batch's events write, and of those that they replace or delete, as its tasks counted
    them; None when all rows were rewritten or an earlier release wrote the batch.

    This does not detect events that are missing from `events` or were not read, because the tasks do not count them
    either, nor whether a key whose row was removed should still have one."""

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
        """Whether no row was lost (only rows of changed keys were removed) and none is duplicated or missing: the rows
        are the earlier ones, without those that the events removed, and with those that the events wrote."""
        bounded = self.deleted >= 0 and (self.changed_keys is None or self.deleted <= self.changed_keys)
        return bounded and self.expected in (None, (self.written, self.deleted))


def conservation(table: Table) -> Conservation:
    """Compute a table's conservation from the summaries of the snapshots that the last batch made."""
    changed_keys = table.properties.get(KEYS_TOUCHED, "")
    made, before = _last_batch(table)
    after = row_count(table, table.current_snapshot())
    if before is None and made and made[-1].parent_snapshot_id is not None:
        # Maintenance has expired the snapshot before the batch: there is nothing to compare with.
        return Conservation(after, 0, after, None)
    written, expected = 0, None
    for each in made:
        # Live rows in files that it removed are only copied. Rows that were deleted already went with their vectors.
        gone = _total(each, "deleted-records")
        copied = gone - _total(each, "removed-position-deletes") if gone else 0
        written += max(0, _total(each, "added-records") - copied)
    if made and all(ROWS_WRITTEN in summary_of(each) for each in made):
        expected = sum(_total(each, ROWS_WRITTEN) for each in made), sum(_total(each, ROWS_REMOVED) for each in made)
    keys = int(changed_keys) if changed_keys else None
    return Conservation(row_count(table, before), written, after, keys, expected)


def _total(snapshot: Snapshot, name: str) -> int:
    return int(summary_of(snapshot).get(name, "0"))


def _last_batch(table: Table) -> tuple[list[Snapshot], Snapshot | None]:
    """Return the snapshots that the last batch made, newest first, and the snapshot before them."""
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


def uncounted_lines(run: FeedRun) -> list[str]:
    """Describe the decoded segments with lines or records that are not accounted for, sorted by path: each must be an
    event, be in the quarantine, or be one without a row for the feed (`others`). Segments that were not counted are
    left out. Reads `segments` and `quarantine` only.

    It detects records that were not read or were read twice, and events that were not committed or were committed
    twice, but no record that is wrongly taken for one without a row, or that a topic never delivered."""
    columns = ["segment", "lines", "events", "others", "quarantined"]
    # Segments that were not counted can have summaries too.
    counted = (pc.field("state") == DECODED) & (pc.field("kind") != SUMMARY) & pc.field("lines").is_valid()
    rows = run.segments.rows.filter(counted).select(columns)
    rows = rows.set_column(columns.index("others"), "others", pc.fill_null(rows.column("others"), 0))
    kept: Counter[str] = Counter()
    for row in run.quarantine.rows:
        # Rows that a table could not take count as events.
        if row.state != "replayed" and row.error_class != BAD_VALUE:
            kept[row.segment] += row.count
    given = pc.field("events") + pc.field("others") + pc.field("quarantined")
    wrong = (pc.field("lines") != given) | (pc.field("quarantined") != 0)
    suspects = rows.filter(wrong | pc.field("segment").isin(pa.array(kept, pa.string())))
    return [
        f"{segment}: lines {lines}, events {events}, rejected {rejected}, quarantined {kept[segment]}, others {others}"
        for segment, lines, events, others, rejected in sorted(tuple(row.values()) for row in suspects.to_pylist())
        if lines != events + others + rejected or rejected != kept[segment]
    ]


def cut_tables(state: FeedState) -> list[tuple[CutRow, int | None]]:
    """Return the tables of the last cut, each with the rows of the snapshot that it names, None where that does not
    exist or cannot be read. The counts are metadata: of a snapshot that was written for this cut, the rows of its
    files; of other snapshots, what the snapshot itself states."""
    tables, found = CurrentTables(state.lake, state.feed), list[tuple[CutRow, int | None]]()
    for row in state.last_cut_rows:
        rows = 0 if row.snapshot_id is None else None
        try:
            table = tables.load(tables.identifier(TableName(row.database, row.table))) if rows is None else None
            snapshot = table and row.snapshot_id and table.snapshot_by_id(row.snapshot_id)
            if table and snapshot:
                of_cut = _batch(snapshot)[1] == str(state.checkpoint_ts)
                files = live_files(table, (), snapshot=snapshot) if of_cut else ()
                rows = sum(file.live_rows for file in files) if of_cut else row_count(table, snapshot)
        except Exception as error:
            if engine_fault(error) is not None:
                raise
        found.append((row, rows))
    return found


def event_counts(state: FeedState) -> tuple[int, int, int]:
    """Return how many events the segments gave, are in `events`, and were removed as superseded."""
    of_segments = totals(state.segments.rows.filter(pc.field("state") == DECODED)).events
    return of_segments, state.event_count, removal_of(state.lake, state.feed.name).removed


@dataclass(frozen=True, slots=True)
class TableHealth:
    """How well a table can be read, from its metadata only. bytes: of data files and deletes. rows: in data files, with
    deleted ones. compacted_at: in UTC, None when files were never rewritten. sizes: `bytes` by snapshot."""

    files: int = 0
    bytes: int = 0
    rows: int = 0
    deleted_rows: int = 0
    snapshots: int = 0
    compacted_at: datetime.datetime | None = None
    sizes: tuple[tuple[int, int], ...] = ()

    @property
    def average_bytes(self) -> int:
        return self.bytes // self.files if self.files else 0

    @property
    def delete_ratio(self) -> float:
        return self.deleted_rows / self.rows if self.rows else 0.0


def health_document(health: TableHealth) -> dict[str, Any]:
    shown = {name: getattr(health, name) for name in ("files", "bytes", "average_bytes", "delete_ratio", "snapshots")}
    at = None if health.compacted_at is None else health.compacted_at.isoformat()
    return {**shown, "delete_ratio": round(health.delete_ratio, 4), "compacted_at": at}


def table_health(table: Table) -> TableHealth:
    totals = summary_of(table.current_snapshot())
    names = ("total-data-files", "total-files-size", "total-records", "total-position-deletes")
    at = table.properties.get(COMPACTED_AT)
    return TableHealth(
        *(int(totals.get(name, "0")) for name in names),
        snapshots=len(table.snapshots()),
        compacted_at=None if at is None else datetime.datetime.fromisoformat(at),
        sizes=tuple((each.snapshot_id, _total(each, "total-files-size")) for each in table.snapshots()),
    )


KnownHealth = dict[tuple[str, TableName], tuple[int | None, TableHealth | None]]
"""A snapshot and the health of the table at it, by feed and table."""


@dataclass(eq=False)
class FeedState(FeedRun):
    """The state of a feed at a moment, which the status, the report, metrics, alerts and checks show, as a run that
    only reads finds it. Each part is read when it is asked for, and once. Each can raise `CatalogUnreachableError`.
    watched_seconds: how long somebody has looked at the feed: one that has published nothing is as old. known_health:
    what was read before of tables, at the snapshots that a cut has shown."""

    now: datetime.datetime = field(default_factory=utc_now)
    watched_seconds: float = math.inf
    known_health: KnownHealth = field(default_factory=KnownHealth)

    # --- The published cut ---

    @property
    def checkpoint_ts(self) -> int | None:
        """The commit-ts (a TSO) that the published cut shows; None when nothing is published."""
        return None if self.last_cut.checkpoint_ts == BEGINNING else self.last_cut.checkpoint_ts

    @functools.cached_property
    def lag_seconds(self) -> float | None:
        """The seconds by which the cut is behind the source. Of a source that shows no time of its own they count from
        the last look that found nothing new, when all that has landed is in the cut: a quiet source is not late."""
        if self.checkpoint_ts is None:
            return None
        lag = lag_seconds(self.checkpoint_ts, self.now)
        if self.source.shows_time:
            return lag
        rows = self.segments.rows
        waits = pc.any(pc.equal(rows["state"], LANDED)).as_py()
        if waits or (totals(rows).max_commit_ts or 0) > self.checkpoint_ts:
            return lag  # Something has landed that the cut does not show.
        looked = last_look(self.lake, self.feed.name)
        return lag if looked is None or looked > self.now else min(lag, (self.now - looked).total_seconds())

    # --- Tables ---

    @functools.cached_property
    def held(self) -> dict[TableName, str]:
        """The reasons of the held tables of the cut. The schema history is only read when a table is held."""
        held = self.last_cut.held
        return held_by_name(held, self.history.history.incarnations() if held else {})

    @functools.cached_property
    def tables(self) -> dict[TableName, CutRow | None]:
        """The tables of the cut and the held ones, each held one with the last row that shows it, None without one."""
        found: dict[TableName, CutRow | None] = {TableName(row.database, row.table): row for row in self.last_cut_rows}
        for name in self.held.keys() - found.keys():
            found[name] = next(reversed(self.checkpoints.rows_of(name)), None)
        return {name: found[name] for name in sorted(found, key=lambda name: (name.database, name.table))}

    def lag_of(self, table: TableName) -> float | None:
        """Return the seconds by which the readers' view of a table lags; None when they have not seen it."""
        if (row := self.tables.get(table)) is None or row.checkpoint_ts == self.checkpoint_ts:
            return None if row is None else self.lag_seconds
        return lag_seconds(row.checkpoint_ts, self.now)

    def is_late(self, table: TableName) -> bool:
        """Whether a table lags more than its `freshness_minutes` allow, or its feed's where it has none."""
        own, lag = self.feed.settings_of(table.database, table.table).freshness_minutes, self.lag_of(table)
        return lag is not None and lag > (own or self.feed.freshness_minutes) * 60

    @functools.cached_property
    def health(self) -> dict[TableName, TableHealth | None]:
        """The health of the tables now; None for one that does not exist, or cannot be read."""
        snapshots = {TableName(row.database, row.table): row.snapshot_id for row in self.last_cut_rows}
        current, known = CurrentTables(self.lake, self.feed), self.known_health
        for name in self.tables:
            snapshot, health = snapshots.get(name), None
            if snapshot is None or known.get((self.feed.name, name), (None, None))[0] != snapshot:
                try:
                    table = current.load(current.identifier(name))
                    health = None if table is None else table_health(table)
                except Exception as error:
                    if engine_fault(error) is not None:
                        raise
                known[self.feed.name, name] = snapshot, health
        return {name: known[self.feed.name, name][1] for name in self.tables}

    # --- The log ---

    @functools.cached_property
    def event_count(self) -> int:
        table = self.lake.load(system_table(self.feed.name, "events"))
        return 0 if table is None else row_count(table, table.current_snapshot())

    @functools.cached_property
    def quarantined(self) -> dict[TableName | None, int]:
        """Open rows of the quarantine by table, None for those without a table."""
        found = Counter[TableName | None]()
        for row in self.quarantine.open():
            name = None if row.database is None or row.table is None else TableName(row.database, row.table)
            found[name] += row.count
        return found

    # --- The source ---

    @functools.cached_property
    def source_status(self) -> SourceStatus:
        """What the source shows now; that it cannot be reached is a part of it."""
        return self.source.status()

    @property
    def contradictions(self) -> list[str]:
        """Messages that contradict an option of their format."""
        return [
            f"{each.topic}/{each.partition} from offset {each.offset} on: {each.reason}"
            for each in (self.signals.option_conflicts() if self.source.has_options else ())
        ]

    @property
    def warnings(self) -> list[str]:
        """Possible mistakes in the configuration."""
        return unmatched_patterns(self.feed.tables, self.history.history)


def held_by_name(held: Iterable[tuple[str, str]], lives: Mapping[str, Incarnation]) -> dict[TableName, str]:
    """Return the reasons by the last names of tables. `held` are pairs of an incarnation (or the identity of the name
    of a table without a history) and its reason."""
    found: dict[TableName, list[str]] = defaultdict(list)
    for id, reason in held:
        found[lives[id].last.name if id in lives else TableName.of_identity(id)].append(reason)
    return {name: "; ".join(reasons) for name, reasons in found.items()}


def changes_by_table(state: FeedState, since: str | None) -> Mapping[TableName, tuple[int, int, int]]:
    """Count the inserts, updates and deletes of tables, for feed dates from `since` on, or all when it is None: by the
    counts of files, each of which belongs to one table, otherwise by three columns of `events`."""
    rows, found = state.segments.rows, dict[TableName, Counter[str]]()
    if OFFSETS not in rows["kind"].unique().to_pylist():
        rows = rows.filter((pc.field("kind") == FILE) & (pc.field("state") == DECODED))
        if since is not None:
            rows = rows.filter(pc.field("feed_date") >= since)
        none_is_0 = pc.ScalarAggregateOptions(min_count=0)
        sums = [(column, "sum", none_is_0) for column in ("inserts", "updates", "deletes")]
        columns = rows.group_by(["database", "table"]).aggregate(sums).to_pydict().values()
        return {TableName(database, table): tuple(counts) for database, table, *counts in zip(*columns, strict=True)}
    if (table := state.lake.load(system_table(state.feed.name, "events"))) is not None:
        dated = AlwaysTrue() if since is None else _at_least("feed_date", since)
        fields = ("schema_name", "table_name", "op")
        for batch in table.scan(dated, selected_fields=fields).to_arrow_batch_reader():
            groups = pa.Table.from_batches([batch]).group_by(list(fields)).aggregate([([], "count_all")])
            for row in groups.to_pylist():
                name = TableName(row["schema_name"], row["table_name"])
                found.setdefault(name, Counter())[row["op"]] += row["count_all"]
    return {name: (ops["I"], ops["U"], ops["D"]) for name, ops in found.items()}
