"""Maintain a feed's tables: measure what each needs, and do it between runs.

Every change of a table is made with the feed's lease, one table at a time and a bounded part of a large one, so no run
is active then. If the lease is lost, the commits are still validated: those of maintenance by Iceberg, those of a run
against the snapshot that it planned on.

What is no longer needed of the feed's growing tables and files is removed, but nothing that a table depends on. What is
lost is the ability to decode again: a date or a line whose raw content or segments are gone is then refused. Rows of
cuts that are not kept, and of the quarantine that could be used after all, are removed too.

- Messages are removed from `records`, batch by batch from the first, once a batch is completely decoded. Messages with
  which a message of the next batch is compared stay, and those of quarantined rows.
- Copies are removed from the archive once their segments are decoded, except for quarantined rows.
- Segments of whole dates become one row for each table, once every table that can have rows of them has applied them.
  The newest date of a table stays, so that nothing is wrongly taken as known of a table that is left out for a while.
- Events are removed that a later event of the same table version and key supersedes: one that holds the complete row,
  or deletes it. The tables are the same without it, whatever arrives late, because the later event hides it. States of
  a row at moments between the two are lost. Only events that cannot be decoded again are considered, because different
  content of a later one would make the earlier one necessary again: those whose segments no longer have rows.
"""

from __future__ import annotations

import datetime
import functools
import itertools
import json
import math
import uuid
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any, Final, TypeVar

import numpy as np
import pyarrow as pa
from pyiceberg.table import Table
from pyroaring import BitMap64

from cdc_lakehouse import duckdb_sql as sql
from cdc_lakehouse.changelog.positions import BEGINNING, row_stage, tso, utc_now
from cdc_lakehouse.changelog.schema import TableName
from cdc_lakehouse.decoders.arrow import pc
from cdc_lakehouse.decoders.event_schema import CHANGE_COLUMNS, EVENTS, SYNTHETIC
from cdc_lakehouse.decoders.tasks import errors_to_driver, results_of
from cdc_lakehouse.errors import ConcurrentRunError, ConfigurationError, UnreadableTableError
from cdc_lakehouse.lake.catalog import system_table
from cdc_lakehouse.lake.current.keyed_events import LZ4, KeyedSpan, KeyedSpans, KeyPart, commit_ts_range, shares_of
from cdc_lakehouse.lake.current.tables import CurrentTables, TableState, plan_tags, same_rows, tags_of
from cdc_lakehouse.lake.faults import described, engine_errors
from cdc_lakehouse.lake.files import POSITION, StoredFile, delete_rows, live_files, read_rows
from cdc_lakehouse.lake.names import CATALOG, COMPACTED_AT, SUPERSEDED, Identifier
from cdc_lakehouse.lake.tables import segments
from cdc_lakehouse.lake.tables.checkpoints import Checkpoints, Removal, removal_of
from cdc_lakehouse.lake.tables.events import EventReader
from cdc_lakehouse.lake.tables.lease import MAINTENANCE, take_when_free
from cdc_lakehouse.lake.tables.records import files_before, landed_state, remove_before, state_of
from cdc_lakehouse.lake.tables.schema_history import SchemaHistory
from cdc_lakehouse.operate.state import TableHealth, table_health
from cdc_lakehouse.pipeline.feed_tables import key_columns
from cdc_lakehouse.pipeline.progress import Progress
from cdc_lakehouse.pipeline.run import FeedRun
from cdc_lakehouse.pipeline.topics import batches_before
from cdc_lakehouse.sources.object_store import StoredObject

_NEVER: Final = 0
_ALWAYS: Final = 1 << 62


REMOVED: Final = {
    "cut_rows": ("rows of old cuts", None),
    "quarantine_rows": ("rows of the quarantine that were replayed", None),
    "records": ("messages of `records`", "record_bytes"),
    "archived_files": ("files of the archive", "archived_bytes"),
    "segments": ("segments, which are one row a table", None),
    "positions": ("positions in `signals`, which are one row a partition", None),
}
"""What is removed, by the names of counts, for people, and the name of the count of its stored bytes."""


_NO_COUNTS: Final = {count: 0 for name, (_, size) in REMOVED.items() for count in (name, size) if count is not None}


class Retention(FeedRun):
    """The retention of one feed in its current state, with the current configuration."""

    @property
    def cuts_before(self) -> datetime.datetime:
        """Cuts that were published before this moment are not kept."""
        return self.clock() - datetime.timedelta(hours=self.feed.maintenance.keep_cut_hours)

    def outdated(self) -> dict[str, int]:
        """Return the counts of what `remove` would remove, by the names of `REMOVED`."""
        (_, _, files), copies = self._messages, self._copies
        return {
            **self.forget_rows(dry_run=True),
            "records": sum(file.record_count for file in files),
            "record_bytes": sum(file.size for file in files),
            "archived_files": len(copies),
            "archived_bytes": sum(copy.size for copy in copies),
            "segments": self.passed.num_rows,
            "positions": self.signals.outdated(self._first_batch),
        }

    def forget_rows(self, *, dry_run: bool) -> dict[str, int]:
        """Remove what goes first, or only count it: it is found also where the archive cannot be listed."""
        days = self.feed.maintenance.keep_replayed_days
        replayed = 0 if days is None else self.quarantine.forget_replayed(self._before(days), dry_run=dry_run)
        return {"cut_rows": self.checkpoints.forget(self.cuts_before, dry_run=dry_run), "quarantine_rows": replayed}

    def remove(self) -> dict[str, int]:
        """Remove what is outdated; return its counts. Each part is one commit, or one removal of a file: when this ends
        early, the next call removes the rest."""
        rows = self.forget_rows(dry_run=False)
        removed, (records, batch, files) = self.outdated() | rows, self._messages
        if files and records is not None:
            remove_before(records, batch, files)
        self.signals.summarize(self._first_batch)
        if self.passed.num_rows:
            self.segments.summarize(self.passed)
        for copy in self._copies:
            self.lake.delete(f"{self._archive.store.uri}/{copy.path}")
        return removed

    def _before(self, days: int) -> datetime.datetime:
        return self.clock() - datetime.timedelta(days=days)

    @functools.cached_property
    def _first_batch(self) -> int:
        """The first batch of messages that can be decoded again; 0 when all can, or there are none."""
        return landed_state(self.lake, self.feed.name).first_batch

    @functools.cached_property
    def _open(self) -> pa.Array:
        """The names of segments with unresolved quarantine rows, which a person may still replay."""
        return pa.array({row.segment for row in self.quarantine.unresolved()}, pa.string())

    # --- Messages ---

    @functools.cached_property
    def _messages(self) -> tuple[Table | None, int, list[StoredFile]]:
        """The table `records`, the first batch of it that is kept, and the files of those before."""
        days, table = self.feed.maintenance.keep_records_days, None
        if days is not None and self.feed.source.may_forget_messages:
            table = self.lake.load(system_table(self.feed.name, "records"))
        if days is None or table is None:
            return None, _NEVER, []
        ranges = self.segments.rows.filter(pc.field("kind") == segments.OFFSETS)
        before = pa.scalar(self._before(days), pa.timestamp("us", tz="UTC"))
        done = (pc.field("state") == segments.DECODED) & (pc.field("decoded_at") < before)
        kept = ranges.filter(~(done & ~pc.field("segment").isin(self._open)))
        least, state = pc.min(kept["record_batch"]).as_py(), state_of(table)
        batch = min([state.batch, _ALWAYS if least is None else least, *batches_before(self, state)])
        return table, batch, files_before(table, batch)

    # --- Files ---

    @functools.cached_property
    def _archive(self) -> segments.Archive:
        return segments.Archive(self.lake, self.feed.name, self.store)

    @functools.cached_property
    def _copies(self) -> list[StoredObject]:
        days = self.feed.maintenance.keep_archive_days
        if days is None or not self.feed.source.archive or not self.segments.rows.num_rows:
            return []
        needed = (pc.field("state") == segments.LANDED) | pc.field("segment").isin(self._open)
        places = {self._archive.ref(s).path for s in self.segments.select((pc.field("kind") == segments.FILE) & needed)}
        before = self._before(days)
        return [copy for copy in self._archive.copies() if copy.modified < before and copy.path not in places]

    # --- Segments ---

    @functools.cached_property
    def passed(self) -> pa.Table:
        """The segments to remove, with all of their columns."""
        rows, days = self.segments.rows, self.feed.maintenance.keep_segments_days
        if days is None:
            return rows.slice(0, 0)
        before = pa.scalar(self._before(days), pa.timestamp("us", tz="UTC"))
        over = (
            (pc.field("state") == segments.DECODED)
            & (pc.field("batch") < self.segments.batch)
            & (pc.field("landed_at") < before)
            & (pc.field("max_commit_ts").is_null() | (pc.field("max_commit_ts") <= self.last_cut.checkpoint_ts))
            & ~pc.field("segment").isin(self._open)
        )
        least = min((batch for _, batch in self._batches), default=_NEVER)
        ranges = over & (pc.field("record_batch") < self._first_batch)
        ranges = ranges & (pc.field("kind") == segments.OFFSETS) & (pc.field("batch") <= least)
        gaps = pa.array({gap.directory for gap in segments.index_gaps(rows)}, pa.string())
        files = segments.directories(rows.filter(pc.field("feed_date").is_valid()))
        kept = files.filter(~over | pc.field("directory").isin(gaps))
        names = ["database", "table"]
        groups = files.group_by([*names, "feed_date"]).aggregate([("batch", "max")])
        waiting = {tuple(each.values()) for each in kept.select([*names, "feed_date"]).to_pylist()}
        dates: dict[TableName, list[tuple[str, bool]]] = {}
        for group in groups.to_pylist():
            name = TableName(group["database"], group["table"])
            applied = min((batch for names, batch in self._batches if name in names), default=_NEVER)
            is_kept = group["batch_max"] > applied or (name.database, name.table, group["feed_date"]) in waiting
            dates.setdefault(name, []).append((group["feed_date"], is_kept))
        # Never the newest date. Dates after a kept one stay too, so that one date describes what is known of it.
        limits = [
            asdict(name) | {"first": min([max(found)[0], *(date for date, is_kept in found if is_kept)])}
            for name, found in dates.items()
        ]
        form = pa.schema([(name, pa.string()) for name in (*names, "first")])
        limited = files.join(pa.Table.from_pylist(limits, form), names, join_type="inner")
        passed = limited.filter(pc.field("feed_date") < pc.field("first")).select(rows.column_names).cast(rows.schema)
        return pa.concat_tables([rows.filter(ranges), passed])

    @functools.cached_property
    def _batches(self) -> list[tuple[frozenset[TableName], int]]:
        """The names of each table, and the batch up to which it has applied all; a dropped table waits for none."""
        tables = CurrentTables(self.lake, self.feed)
        found: list[tuple[frozenset[TableName], int]] = []
        for life in self.history.history.incarnations().values():
            batch = _ALWAYS
            if life.dropped_ts is None or life.dropped_ts > self.last_cut.checkpoint_ts:
                try:
                    state = tables.find(life)
                    applied = _NEVER if state is None else state.applied_batch
                    batch = max(applied, self.last_cut.batch if self.shows(life) else _NEVER)
                except UnreadableTableError:
                    batch = _NEVER  # Everything needed to recreate it stays.
            found.append((frozenset(life.names), batch))
        return found


_CHANGED: Final = """
SELECT * EXCLUDE of_key, md5_number_upper(of_key) AS high, md5_number_lower(of_key) AS low, {file} AS file,
  low % CAST({tasks} AS UBIGINT) AS task
FROM (
  SELECT stage, upsert, changes.segment, events.line, position, keys,
    (NOT upsert OR is_insert OR list_has_all(json_keys(image), names)) AND list_count(key) = len(key) AS whole,
    concat(table_no, ' ', version_no, ' ', to_json(key)) AS of_key
  FROM changes JOIN events ON changes.line = number JOIN versions USING (table_no, version_no)
) ORDER BY task
"""
"""One row for each key that an event concerns (see `keyed_events`), which has `keys` of them; `high` and `low` are the
key's digest. `whole` says that no values of an earlier row are kept: a row is not complete that lacks its key."""
_SUPERSEDED: Final = """
SELECT file, position, count(*) = any_value(keys) AS is_whole FROM (
  SELECT *, min(number) FILTER (whole) OVER (PARTITION BY high, low) AS hiding FROM (
    SELECT *, row_number() OVER (PARTITION BY high, low ORDER BY stage DESC, upsert DESC, segment DESC, line DESC)
      AS number FROM changes
  )
) WHERE number > hiding GROUP BY file, position
"""
"""The events with a key that has a later change that is whole, and whether all of their keys have such."""


VersionSpan = tuple[KeyedSpan, tuple[str, ...]]
"""The events of one version of a table, and the columns of a complete row of it."""


def _changes(
    versions: Sequence[VersionSpan], excluded: pa.Array, shares: Sequence[EventReader], tasks: int, share: int, _: Any
) -> Iterator[tuple[int, bytes]]:
    """Yield the changes of keys in a share of the files (`_CHANGED`, the `file` by its number), a batch at a time, as
    Arrow streams with the number of the task, among `tasks`, that gets all of their keys."""
    with errors_to_driver(), engine_errors():
        spans, reader = [span for span, _ in versions], shares[share]
        named = [{"table_no": of.table_no, "version_no": of.version_no, "names": [*names]} for of, names in versions]
        relation, within = pa.Table.from_pylist(named), {"commit_ts": commit_ts_range(spans)}
        keyed, io = KeyedSpans(spans), reader.table.open()
        for file_no, file in enumerate(reader.files, start=sum(len(before.files) for before in shares[:share])):
            statement = _CHANGED.format(file=file_no, tasks=tasks)
            for events in read_rows(io, file, reader.table.schema, CHANGE_COLUMNS, within):
                out = pc.or_(events.column(SYNTHETIC), pc.is_in(events.column("segment"), excluded))
                events = events.filter(pc.invert(out))
                # Keyed events keep the line of their event: here it is replaced by the event's index.
                number, index = pa.array(np.arange(events.num_rows)), events.column_names.index("line")
                numbered = events.set_column(index, EVENTS.field("line"), number)
                changes = keyed.keyed(numbered.select(list(CHANGE_COLUMNS)))
                lines = changes.column("line").to_numpy()
                changes = changes.append_column("keys", pa.array(np.bincount(lines, minlength=1)[lines]))
                places = events.select(["line", POSITION]).append_column("number", number)
                for part in sql.slices(changes):
                    found = sql.query(statement, changes=part, events=places, versions=relation)
                    targets = np.unique(found.column("task"), return_index=True, return_counts=True)
                    for task, start, size in zip(*(each.tolist() for each in targets), strict=True):
                        stream = pa.BufferOutputStream()
                        with pa.ipc.new_stream(stream, found.schema, options=LZ4) as writer:
                            writer.write_table(found.slice(start, size))
                        yield task, stream.getvalue().to_pybytes()


def _superseded(_: int, streams: Iterable[tuple[int, bytes]]) -> Iterator[tuple[int, bool, bytes]]:
    """Yield the positions in each file, as `BitMap64` serializes them, of events superseded in all keys or in one."""
    with engine_errors():
        batches = (batch for _, stream in streams for batch in pa.ipc.open_stream(stream))
        if (first := next(batches, None)) is not None:
            changes = pa.RecordBatchReader.from_batches(first.schema, itertools.chain([first], batches))
            found = sql.query(_SUPERSEDED, changes=changes).group_by(["file", "is_whole"])
            for row in found.aggregate([("position", "list")]).to_pylist():
                yield row["file"], row["is_whole"], BitMap64(row["position_list"]).serialize()


_TASK_EVENTS: Final = 1 << 19  # The events, of about 100 bytes each, among which a task looks for superseded ones.
_WORTH: Final = 0.1  # The growth, as a share of the events, after which removal is done again: it reads all candidates.
_EVENTS: Final = "events"
_GROWING: Final = (_EVENTS, "records")  # The feed's own tables that do not keep themselves small.
_MANY_MANIFESTS: Final = 30
_SMALL_SHARE: Final = 4  # A file is small when it is smaller than the target size divided by this.
_PATIENCE: Final = datetime.timedelta(minutes=10)  # How long maintenance waits for a run that holds the feed.
_MB: Final = 1 << 20

_Run = TypeVar("_Run", bound=FeedRun)


@dataclass(slots=True)
class MaintainedTable:
    """A table and its maintenance. `source` is the name in the source, None for `events` and `records`. `after` is None
    in a dry run, and when something could not be done, which `deferred` tells. `counts` say what was done, or would be
    in a dry run, by the names of `RULES`."""

    identifier: Identifier
    source: TableName | None = None
    state: TableState | None = None
    deferred: str | None = None
    before: TableHealth = field(default_factory=TableHealth)
    after: TableHealth | None = None
    counts: Counter[str] = field(default_factory=Counter[str])

    @property
    def name(self) -> str:
        """The name that people give: the name in the source, or that of a feed's own table."""
        return self.identifier.name if self.source is None else str(self.source)


@dataclass(frozen=True, slots=True)
class Maintained:
    """The maintenance of a feed. `removed` is what is not kept any longer, by the names of `REMOVED`."""

    tables: tuple[MaintainedTable, ...]
    removed: Mapping[str, int] = field(default_factory=_NO_COUNTS.copy)


@dataclass(eq=False)
class Maintenance(FeedRun):
    """The maintenance of one feed. `clock` determines the age of snapshots and files."""

    _run: str = field(default_factory=lambda: f"{MAINTENANCE}{uuid.uuid4()}", init=False)
    _targets: Sequence[MaintainedTable] = field(default=(), init=False)
    _forgets_cuts: bool = field(default=False, init=False)  # Whether outdated cuts count as forgotten, as in a dry run.

    def maintain(self, wanted: str | None = None, *, dry_run: bool = False) -> Maintained:
        """Maintain all tables, or one: `database.table` of the source, `events` or `records`.

        A failure at one table is recorded with it, and the others continue. Raises `ConcurrentRunError` when a run
        holds the feed for longer than maintenance waits, and `ConfigurationError` when there is no such table."""
        chosen = self._chosen(wanted)
        # For one table no cuts are forgotten: what their rows name stays.
        removed, self._forgets_cuts = _NO_COUNTS, dry_run and wanted is None
        if wanted is None:
            found = self._look(Retention)
            if dry_run or not (any(found.forget_rows(dry_run=True).values()) or any(found.outdated().values())):
                removed = found.outdated()
            else:
                with self._lease():
                    removed = self._look(Retention).remove()
        return Maintained(self._each(chosen, RULES, dry_run=dry_run), removed)

    def compact(self, wanted: str | None = None, *, dry_run: bool = False) -> Maintained:
        """Only rewrite the worn files of all current-state tables, or of one: often. Raises as `maintain` does."""
        chosen = [each for each in self._chosen(wanted) if wanted is not None or each.source is not None]
        return Maintained(self._each(chosen, [rule for rule in RULES if rule.compacts], dry_run=dry_run))

    def _chosen(self, wanted: str | None) -> list[MaintainedTable]:
        """Find the current-state tables, including dropped ones, and the feed's own tables that do not keep themselves
        small; return the wanted ones."""
        tables = CurrentTables(self.lake, self.feed)
        found: dict[Identifier, MaintainedTable] = {}
        for life in SchemaHistory(self.lake, self.feed.name).history.incarnations().values():
            try:
                state = tables.find(life)
            except UnreadableTableError as error:
                where = tables.identifier(life.last.name)
                found.setdefault(where, MaintainedTable(where, life.last.name, deferred=str(error)))
                continue
            if state is not None:
                found[state.identifier] = MaintainedTable(state.identifier, state.name, state)
        own = [system_table(self.feed.name, name) for name in _GROWING]
        self._targets = [
            *(target for _, target in sorted(found.items())),
            *(MaintainedTable(identifier) for identifier in own if self.lake.load(identifier) is not None),
        ]
        chosen = [each for each in self._targets if wanted in (None, each.name)]
        if wanted is not None and not chosen:
            raise ConfigurationError(
                f"the feed {self.feed.name} has no table {wanted}",
                advice="give database.table of the source, or events, or records",
            )
        return chosen

    def _each(
        self, targets: Sequence[MaintainedTable], rules: Sequence[Rule], *, dry_run: bool
    ) -> tuple[MaintainedTable, ...]:
        progress = Progress(self.log, "tables are maintained", len(targets))
        for target in targets:
            try:
                if target.deferred is None:
                    target.before = table_health(self._load(target))
                    for rule in rules:
                        self._carry_out(rule, target, dry_run=dry_run)
                    target.after = None if dry_run else table_health(self._load(target))
            except ConcurrentRunError:
                raise
            except Exception as error:  # noqa: BLE001 - One bad table never stops the others, whatever is wrong.
                # What was done before the error stays done.
                target.deferred = described(error)
            if target.deferred is not None:
                self.log.warning("maintenance of %s: %s", target.identifier, target.deferred)
            progress.add()
        return tuple(targets)

    def _carry_out(self, rule: Rule, target: MaintainedTable, *, dry_run: bool) -> None:
        if dry_run and not rule.name:
            return  # Nobody is told how much of it there is.
        if dry_run or not rule.is_leased:
            target.counts[rule.name] += rule.work(self, target, dry_run=dry_run)
            return
        while rule.work(self, target, dry_run=True):
            with self._lease():
                count = rule.work(self, target, dry_run=False)
            target.counts[rule.name] += count
            if not rule.in_parts or not count:
                return

    # --- What the rules do to a table, by what is there then; how much it is, or would be in a dry run ---

    def superseded(self, target: MaintainedTable, *, dry_run: bool) -> int:
        """Remove superseded events in one commit. No job runs when little can be found. Synthetic events and events of
        segments that still have rows are never superseded, and supersede none. Other runs can be active during the
        search: what they add is later. Raises `TransientError` when one has changed the table after it."""
        if target.name != _EVENTS:
            return 0
        run, identifier = self._look(FeedRun), target.identifier
        before = removal_of(self.lake, self.feed.name)
        looked_at = segments.totals(run.segments.rows.filter(pc.field("kind") == segments.SUMMARY)).events
        days, cut = self.feed.maintenance.keep_superseded_days, run.last_cut.checkpoint_ts
        # Superseded events can be removed up to this commit-ts.
        upto_ts = BEGINNING if days is None else min(tso(self.clock() - datetime.timedelta(days=days)), cut)
        if upto_ts == BEGINNING or looked_at - before.looked_at <= _WORTH * (looked_at - before.removed):
            return 0
        versions: list[VersionSpan] = []
        for number, life in enumerate(run.history.history.incarnations().values()):
            # Tables that the last cut does not show may still have to apply these events.
            is_shown = run.shows(life) and all(version.hold is None for version in life.versions)
            # Each text is treated as one: a key with several texts only leaves more events than necessary.
            of_life = life, lambda version: map(KeyPart, key_columns(self.feed, version)), number
            spans = KeyedSpan.of(*of_life, BEGINNING, row_stage(upto_ts)) if is_shown else ()
            carried = [tuple(column.name for column in version.carried) for version in life.versions]
            versions += [(span, carried[span.version_no]) for span in spans if span.key]
        if not versions:
            return 0
        early = (pc.field("kind") != segments.SUMMARY) & (pc.field("min_commit_ts") <= upto_ts)
        excluded = run.segments.rows.filter(early)["segment"]
        found, partly = defaultdict[str, BitMap64](BitMap64), defaultdict[str, BitMap64](BitMap64)
        with engine_errors():
            shares = shares_of(run.spark, run.events.reader(*commit_ts_range([span for span, _ in versions])))
            files, count = [file for share in shares for file in share.files], len(shares)
            tasks = max(count, math.ceil(sum(file.record_count for file in files) / _TASK_EVENTS))
            read = functools.partial(_changes, versions, excluded.combine_chunks(), shares, tasks)
            blocks = run.spark.sparkContext.range(0, count, 1, count).mapPartitionsWithIndex(read)
            for file_no, is_whole, serialized in results_of(blocks.partitionBy(tasks, int), _superseded):
                path, positions = files[file_no].path, BitMap64.deserialize(serialized)
                # An UPDATE of the key has two, perhaps in two tasks.
                found[path] |= positions if is_whole else positions & partly[path]
                partly[path] |= positions
        if dry_run:
            return sum(map(len, found.values()))
        with self._lease():
            # Files that no longer exist are skipped.
            table, before = self.lake.existing(identifier), removal_of(self.lake, self.feed.name)
            existing = [file for file in live_files(table, ()) if found.get(file.path)]
            where = table.io, table.location(), table.properties, table.format_version
            deletes, replaced = delete_rows(*where, existing, found)
            count = sum(len(found[file.path]) for file in existing)
            after = Removal(before.removed + count, looked_at, upto_ts if count else before.known_from_ts)
            self.iceberg.transaction(identifier, table.metadata.current_snapshot_id).commit(
                delete_files=deletes, replaced_deletes=replaced, properties={SUPERSEDED: json.dumps(asdict(after))}
            )
        self.log.info("removed %d events that later ones have superseded", count)
        return count

    def compact_files(self, target: MaintainedTable, *, dry_run: bool) -> int:
        """Rewrite the files with too many deleted rows, and the small files of partitions with too many of them."""
        settings, table = self.feed.maintenance, self._load(target)
        few, small_bytes = settings.min_small_files, settings.target_file_mb * _MB // _SMALL_SHARE
        health = table_health(table)
        if health.files < few and not health.deleted_rows:
            return 0
        # As Iceberg's `rewrite_data_files` finds them with the options below.
        partitions: dict[tuple[str | None, ...], list[StoredFile]] = defaultdict(list)
        files: list[StoredFile] = []
        for file in live_files(table, ()):
            if file.deletes and file.deleted_rows / file.record_count >= settings.max_delete_ratio:
                files.append(file)
            elif file.size < small_bytes:
                partitions[file.partition].append(file)
        files += (file for small in partitions.values() if len(small) >= few for file in small)
        if dry_run or not files:
            return len(files)
        options: dict[str, int | float] = {
            "target-file-size-bytes": settings.target_file_mb * _MB, "min-file-size-bytes": small_bytes,
            "min-input-files": few, "delete-ratio-threshold": settings.max_delete_ratio,
        }  # fmt: skip
        unit, size = settings.unit_mb * _MB, sum(file.size for file in files)
        if size > unit:
            options["max-files-to-rewrite"] = max(few, len(files) * unit // size)
        listed = ", ".join(f"'{name}', '{value}'" for name, value in options.items())
        (row,) = self._call("rewrite_data_files", target, f", options => map({listed})")
        if done := int(row["rewritten_data_files_count"]):
            self.log.info("rewrote %d data files of %s", done, target.identifier)
            now = self.clock().isoformat(timespec="seconds")
            snapshot = self._load(target).metadata.current_snapshot_id
            self.iceberg.transaction(target.identifier, snapshot).commit(properties={COMPACTED_AT: now})
            self.show(target, dry_run=False)
        return done

    def dangling(self, target: MaintainedTable, *, dry_run: bool) -> int:
        """Remove position deletes of data files that were rewritten: unlike vectors, a compaction leaves them."""
        table, files = self._load(target), list[str]()
        if target.state is not None and table_health(table).deleted_rows:
            live_files(table, (), dangling=files)
        if files and not dry_run:
            self.iceberg.remove_deletes(target.identifier, table.metadata.current_snapshot_id, files)
        return len(files)

    def show(self, target: MaintainedTable, *, dry_run: bool) -> int:
        """Make the newest cut name the current snapshot where it names one with the same rows, also when maintenance
        ended right after writing it, or when another writer has rewritten files."""
        if target.state is None:
            return 0
        table, name = self._load(target), target.state.name
        newest, *earlier = same_rows(table, table.current_snapshot()) or [0]
        if not dry_run:
            checkpoints = Checkpoints(self.lake, self.feed.name)
            checkpoints.show_instead(name.database, name.table, dict.fromkeys(earlier, newest))
        return len(earlier)

    def rewrite_manifests(self, target: MaintainedTable, *, dry_run: bool) -> int:
        table = self._load(target)
        snapshot = table.current_snapshot()
        count = 0 if snapshot is None else len(snapshot.manifests(table.io))
        if dry_run or count <= _MANY_MANIFESTS:
            return count if count > _MANY_MANIFESTS else 0
        (row,) = self._call("rewrite_manifests", target)
        return int(row["rewritten_manifests_count"])

    def remove_tags(self, target: MaintainedTable, *, dry_run: bool) -> int:
        if (names := self._expired_tags(target)) and not dry_run:
            self.iceberg.remove_tags(target.identifier, names)
        return len(names)

    def _expired_tags(self, target: MaintainedTable) -> tuple[str, ...]:
        """Return the expired tags of cuts, by the newest cut's time as in runs. A run's commit removes them too, but
        not of a table that has not changed since."""
        newest = Checkpoints(self.lake, self.feed.name).last().checkpoint_ts
        if target.state is None or newest == BEGINNING:
            return ()
        return tuple(plan_tags(tags_of(self._load(target)), None, newest, self.lake.config.cuts))  # It adds none.

    def expire(self, target: MaintainedTable, *, dry_run: bool) -> int:
        """Expire the snapshots that are older than cuts are kept and that nothing needs: no kept cut, no branch or tag,
        and for `events` no held table."""
        table, over = self._load(target), self._expired_tags(target)
        needed = {ref.snapshot_id for name, ref in table.refs().items() if name not in over}
        needed |= {table.metadata.current_snapshot_id}
        cuts_before = self._look(Retention).cuts_before
        if target.state is not None:
            forgotten = cuts_before if self._forgets_cuts else None
            needed |= Checkpoints(self.lake, self.feed.name).named_snapshots(forgotten)
        elif target.name == _EVENTS:
            # The content of segments before they were decoded again: a table that has not applied that yet finds the
            # keys to recompute there. The last cut has applied it, but for held tables.
            cut = Checkpoints(self.lake, self.feed.name).last()
            states = (each.state for each in self._targets if each.state is not None)
            held = (each.applied_batch for each in states if each.incarnation in cut.held_incarnations)
            unread = any(each.source is not None and each.state is None for each in self._targets)
            applied = 0 if unread else min([cut.batch, *held])
            needed |= segments.Segments(self.lake, self.feed.name).earlier_contents(applied)
        oldest = cuts_before.timestamp() * 1000
        old = [each.snapshot_id for each in table.snapshots() if each.timestamp_ms < oldest]
        if (outdated := [each for each in old if each not in needed]) and not dry_run:
            self.iceberg.expire_snapshots(target.identifier, outdated)
        return len(outdated)

    def orphans(self, target: MaintainedTable, *, dry_run: bool) -> int:
        """Remove old files below the table's location that no snapshot references."""
        older_than = self.clock() - datetime.timedelta(hours=self.feed.maintenance.orphan_hours)
        arguments = f", older_than => :older_than, dry_run => {str(dry_run).lower()}, prefix_listing => true"
        return len(self._call("remove_orphan_files", target, arguments, older_than=older_than))

    def _call(self, procedure: str, target: MaintainedTable, arguments: str = "", **values: Any) -> list[Any]:
        """Call one of Iceberg's maintenance procedures. Raises `TransientError` when Spark, the storage or another
        writer's commit prevents it: the table is then unchanged."""
        statement = f"CALL {CATALOG}.system.{procedure}(table => :table{arguments})"
        with engine_errors():
            return self.spark.sql(statement, args={"table": target.identifier.sql, **values}).collect()

    # --- The feed ---

    def _look(self, kind: type[_Run]) -> _Run:
        """Look at the feed anew."""
        return kind(self.feed, self.lake, self.spark_session, log=self.log, clock=self.clock)

    @contextmanager
    def _lease(self) -> Iterator[None]:
        lease = take_when_free(self.lake, self.feed.name, self._run, utc_now, _PATIENCE)
        try:
            yield
        finally:
            lease.release()

    def _load(self, target: MaintainedTable) -> Table:
        return self.lake.existing(target.identifier)


@dataclass(frozen=True, slots=True)
class Rule:
    """Something that maintenance does to a table.

    name: of its count, "" when it is not counted. column: the heading of its count. work: does it, or only counts it.
    compacts: compaction alone does it too. in_parts: it does a bounded part of a large table at a time, so that runs
    can be active in between. is_leased: it is done with the feed's lease, where there is something to do."""

    name: str
    column: str | None
    work: Callable[..., int]
    compacts: bool = False
    in_parts: bool = False
    is_leased: bool = True


RULES: Final = (
    Rule("superseded_events", None, Maintenance.superseded, is_leased=False),
    Rule("compacted_files", "rewritten", Maintenance.compact_files, compacts=True, in_parts=True),
    Rule("", None, Maintenance.dangling, compacts=True),
    Rule("", None, Maintenance.show, compacts=True),
    Rule("rewritten_manifests", "manifests", Maintenance.rewrite_manifests),
    Rule("", None, Maintenance.remove_tags),
    Rule("expired_snapshots", "expired", Maintenance.expire),
    Rule("orphan_files", "orphans", Maintenance.orphans, is_leased=False),
)
"""In the order in which they are carried out."""
