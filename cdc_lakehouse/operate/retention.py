"""Find and remove what is no longer needed of a feed's growing tables and files.

Nothing that a table depends on is removed. What is lost is the ability to decode again: a date or a line whose raw
content or segments are gone is then refused. Rows of cuts that are not kept, and of the quarantine that could be used
after all, are removed too.

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
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict
from typing import Final

import numpy as np
import pyarrow as pa
from pyiceberg.table import Table
from pyroaring import BitMap64
from pyspark.sql import Window
from pyspark.sql import functions as F

from cdc_lakehouse import duckdb_sql as sql
from cdc_lakehouse.changelog.positions import BEGINNING, row_stage, tso
from cdc_lakehouse.changelog.schema import TableName, TableVersion
from cdc_lakehouse.decoders.arrow import pc
from cdc_lakehouse.decoders.event_schema import CHANGE_COLUMNS, EVENTS, SYNTHETIC, spark_columns
from cdc_lakehouse.decoders.tasks import errors_of_tasks
from cdc_lakehouse.errors import UnreadableTableError
from cdc_lakehouse.lake.catalog import system_table
from cdc_lakehouse.lake.current.keyed_events import KEYED_EVENTS, KeyedSpan, KeyedSpans, KeyPart, commit_ts_range
from cdc_lakehouse.lake.current.tables import CurrentTables
from cdc_lakehouse.lake.faults import engine_errors
from cdc_lakehouse.lake.files import StoredFile, delete_rows, live_files
from cdc_lakehouse.lake.names import SUPERSEDED
from cdc_lakehouse.lake.tables.checkpoints import Removal, removal_of
from cdc_lakehouse.lake.tables.records import files_before, landed_state, remove_before, state_of
from cdc_lakehouse.lake.tables.segments import (
    DECODED,
    FILE,
    LANDED,
    OFFSETS,
    SCHEMA,
    SUMMARY,
    Archive,
    directories,
    index_gaps,
    totals,
)
from cdc_lakehouse.pipeline.feed_tables import key_columns
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


def nothing_removed() -> dict[str, int]:
    return {count: 0 for name, (_, size) in REMOVED.items() for count in (name, size) if count is not None}


class Retention(FeedRun):
    """The retention of one feed in its current state, with the current configuration."""

    @property
    def cuts_before(self) -> datetime.datetime:
        """Cuts that were published before this moment are not kept."""
        return self.clock() - datetime.timedelta(hours=self.feed.maintenance.keep_cut_hours)

    def outdated(self) -> dict[str, int]:
        """Return the counts of what `remove` would remove, by the names of `REMOVED`."""
        files, copies = self._files, self._copies
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
        removed = self.outdated() | rows
        if self._files and self._records is not None:
            remove_before(self._records, self._batch, self._files)
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
    def _records(self) -> Table | None:
        if self.feed.maintenance.keep_records_days is None or not self.feed.source.may_forget_messages:
            return None
        return self.lake.load(system_table(self.feed.name, "records"))

    @functools.cached_property
    def _batch(self) -> int:
        """The first batch whose records are kept."""
        days, table = self.feed.maintenance.keep_records_days, self._records
        if days is None or table is None:
            return _NEVER
        ranges = self.segments.rows.filter(pc.field("kind") == OFFSETS)
        before = pa.scalar(self._before(days), pa.timestamp("us", tz="UTC"))
        done = (pc.field("state") == DECODED) & (pc.field("decoded_at") < before)
        kept = ranges.filter(~(done & ~pc.field("segment").isin(self._open)))
        least, state = pc.min(kept["record_batch"]).as_py(), state_of(table)
        return min([state.batch, _ALWAYS if least is None else least, *batches_before(self, state)])

    @functools.cached_property
    def _files(self) -> list[StoredFile]:
        return [] if self._records is None else files_before(self._records, self._batch)

    # --- Files ---

    @functools.cached_property
    def _archive(self) -> Archive:
        return Archive(self.lake, self.feed.name, self.store)

    @functools.cached_property
    def _copies(self) -> list[StoredObject]:
        days = self.feed.maintenance.keep_archive_days
        if days is None or not self.feed.source.archive or not self.segments.rows.num_rows:
            return []
        needed = (pc.field("state") == LANDED) | pc.field("segment").isin(self._open)
        places = {self._archive.ref(s).path for s in self.segments.select((pc.field("kind") == FILE) & needed)}
        before = self._before(days)
        return [copy for copy in self._archive.copies() if copy.modified < before and copy.path not in places]

    # --- Segments ---

    @functools.cached_property
    def passed(self) -> pa.Table:
        """The segments to remove, with the columns of `SCHEMA`."""
        rows, days = self.segments.rows, self.feed.maintenance.keep_segments_days
        if days is None:
            return rows.slice(0, 0)
        before = pa.scalar(self._before(days), pa.timestamp("us", tz="UTC"))
        over = (
            (pc.field("state") == DECODED)
            & (pc.field("batch") < self.segments.batch)
            & (pc.field("landed_at") < before)
            & (pc.field("max_commit_ts").is_null() | (pc.field("max_commit_ts") <= self.last_cut.checkpoint_ts))
            & ~pc.field("segment").isin(self._open)
        )
        least = min((batch for _, batch in self._batches), default=_NEVER)
        ranges = over & (pc.field("record_batch") < self._first_batch)
        ranges = ranges & (pc.field("kind") == OFFSETS) & (pc.field("batch") <= least)
        gaps = pa.array({gap.directory for gap in index_gaps(rows)}, pa.string())
        files = directories(rows.filter(pc.field("feed_date").is_valid()))
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
            {
                **asdict(name),
                "first": min([max(date for date, _ in found), *(date for date, is_kept in found if is_kept)]),
            }
            for name, found in dates.items()
        ]
        form = pa.schema([(name, pa.string()) for name in (*names, "first")])
        limited = files.join(pa.Table.from_pylist(limits, form), names, join_type="inner")
        passed_files = limited.filter(pc.field("feed_date") < pc.field("first")).select(SCHEMA.names).cast(SCHEMA)
        return pa.concat_tables([rows.filter(ranges), passed_files])

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


_IN_KEY: Final = ("table_no", "version_no", "key")
_ORDER: Final = ("stage", "upsert", "segment", "line")
_CHANGES: Final = pa.schema([
    *(KEYED_EVENTS.field(name) for name in (*_IN_KEY, *_ORDER)),
    ("whole", pa.bool_()),
    ("file", pa.string()),
    ("position", pa.int64()),
    ("keys", pa.int32()),
])  # fmt: skip
"""One row for each key that an event concerns (see `keyed_events`); the event has `keys` of them. `file` and `position`
locate the event; `whole` says that no values of an earlier row are kept."""
_DELETED: Final = pa.schema([("file", pa.string()), ("positions", pa.binary())])
"""The positions of rows of a data file, as `BitMap64` serializes them."""
_BATCHES_AT_ONCE: Final = 8  # Spark's batches are small: a query for each would double the cost.
_FILE, _POSITION = "_file", "_pos"
_CHANGED: Final = f"""
SELECT table_no, version_no, key, stage, upsert, changes.segment, events.line,
  (NOT upsert OR is_insert OR list_has_all(json_keys(image), names)) AND list_count(key) = len(key) AS whole,
  {_FILE} AS file, {_POSITION} AS position, keys
FROM changes JOIN events ON changes.line = number JOIN versions USING (table_no, version_no)
"""
"""A row is not complete that lacks its key."""


VersionSpan = tuple[KeyedSpan, tuple[str, ...]]
"""The events of one version of a table, and the columns of a complete row of it."""


def _changes(
    versions: Sequence[VersionSpan], excluded: pa.Array, batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Make changes of keys (columns of `_CHANGES`) of events (`CHANGE_COLUMNS`, and where they are), in tasks."""
    keyed, rest = KeyedSpans([span for span, _ in versions]), iter(batches)
    named = [{"table_no": of.table_no, "version_no": of.version_no, "names": [*names]} for of, names in versions]
    relation = pa.Table.from_pylist(named)
    while some := list(itertools.islice(rest, _BATCHES_AT_ONCE)):
        events = pa.Table.from_batches(some)
        out = pc.or_(events.column(SYNTHETIC), pc.is_in(events.column("segment"), excluded))
        events = events.filter(pc.invert(out))
        # Keyed events keep the line of their event: here it is replaced by the event's index in the batch.
        number, index = pa.array(np.arange(events.num_rows)), events.column_names.index("line")
        numbered = events.set_column(index, EVENTS.field("line"), number)
        changes = keyed.keyed(numbered.select(list(CHANGE_COLUMNS)))
        lines = changes.column("line").to_numpy()
        changes = changes.append_column("keys", pa.array(np.bincount(lines, minlength=1)[lines]))
        places = events.select(["line", _FILE, _POSITION]).append_column("number", number)
        for part in sql.slices(changes):
            found = sql.query(_CHANGED, changes=part, events=places, versions=relation)
            yield from found.cast(_CHANGES).to_batches()


_WORTH: Final = 0.1  # The growth, as a share of the events, after which removal is done again: it reads all candidates.


def remove_superseded(run: FeedRun, lease: Callable[[], AbstractContextManager[None]] | None) -> int:
    """Remove the superseded events that are no longer kept, in one commit with the `lease`, or only count them without
    one; return their number. No job runs when little can be found. Synthetic events and events of segments that still
    have rows are never superseded, and supersede none. `run` has the current configuration; other runs can be active
    during the search: what they add is later. Raises `TransientError` when one has changed the table after it."""
    identifier, before = system_table(run.feed.name, "events"), removal_of(run.lake, run.feed.name)
    looked_at = totals(run.segments.rows.filter(pc.field("kind") == SUMMARY)).events
    days, cut = run.feed.maintenance.keep_superseded_days, run.last_cut.checkpoint_ts
    # Superseded events can be removed up to this commit-ts.
    upto_ts = BEGINNING if days is None else min(tso(run.clock() - datetime.timedelta(days=days)), cut)
    if upto_ts == BEGINNING or looked_at - before.looked_at <= _WORTH * (looked_at - before.removed):
        return 0
    versions: list[VersionSpan] = []

    def key_of(version: TableVersion) -> list[KeyPart]:
        # Each text is treated as one: a key with several texts only leaves more events than necessary.
        return [*map(KeyPart, key_columns(run.feed, version))]

    for number, life in enumerate(run.history.history.incarnations().values()):
        # Tables that the last cut does not show may still have to apply these events.
        is_shown = run.shows(life) and all(version.hold is None for version in life.versions)
        spans = KeyedSpan.of(life, key_of, number, BEGINNING, row_stage(upto_ts)) if is_shown else ()
        with_key = (span for span in spans if span.key)
        versions += [(span, tuple(each.name for each in life.versions[span.version_no].carried)) for span in with_key]
    if not versions:
        return 0
    rows = run.segments.rows
    excluded = rows.filter((pc.field("kind") != SUMMARY) & (pc.field("min_commit_ts") <= upto_ts))["segment"]
    lowest, highest = commit_ts_range([span for span, _ in versions])

    def by_file(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Collect the positions of files, all of each of which are in one task."""
        found: dict[str, BitMap64] = {}
        for batch in batches:
            for file in pc.unique(batch.column("file")).to_pylist():
                positions = batch.filter(pc.equal(batch.column("file"), file)).column("position")
                found.setdefault(file, BitMap64()).update(positions.to_pylist())
        for file, positions in found.items():
            yield pa.RecordBatch.from_pydict({"file": [file], "positions": [positions.serialize()]}, _DELETED)

    with engine_errors(), errors_of_tasks():
        events = run.spark.read.format("iceberg").load(identifier.sql)
        within = events.where((F.col("commit_ts") >= lowest) & (F.col("commit_ts") <= highest))
        changes_of = functools.partial(_changes, versions, excluded.combine_chunks())
        changes = within.select(*CHANGE_COLUMNS, _FILE, _POSITION).mapInArrow(changes_of, spark_columns(_CHANGES))
        of_key = Window.partitionBy(*_IN_KEY)
        latest_first = of_key.orderBy(*(F.desc(name) for name in _ORDER))
        numbered = changes.withColumn("number", F.row_number().over(latest_first))
        hiding = numbered.withColumn("hiding", F.min(F.when(F.col("whole"), F.col("number"))).over(of_key))
        hidden = hiding.where(F.col("number") > F.col("hiding")).groupBy("file", "position", "keys").count()
        # The events whose keys all have a later change that is whole.
        superseded = hidden.where(F.col("count") == F.col("keys")).select("file", "position")
        files = superseded.repartition("file").mapInArrow(by_file, spark_columns(_DELETED))
        found = {row["file"]: BitMap64.deserialize(bytes(row["positions"])) for row in files.collect()}
    if lease is None:
        return sum(map(len, found.values()))
    with lease():
        # Files that no longer exist are skipped.
        table, before = run.lake.existing(identifier), removal_of(run.lake, run.feed.name)
        existing = [file for file in live_files(table, ()) if file.path in found]
        where = table.io, table.location(), table.properties, table.format_version
        deletes, replaced = delete_rows(*where, existing, found)
        count = sum(len(found[file.path]) for file in existing)
        after = Removal(before.removed + count, looked_at, upto_ts if count else before.known_from_ts)
        run.iceberg.transaction(identifier, table.metadata.current_snapshot_id).commit(
            delete_files=deletes, replaced_deletes=replaced, properties={SUPERSEDED: json.dumps(asdict(after))}
        )
    run.log.info("removed %d events that later ones have superseded", count)
    return count
