"""Find and remove what is no longer needed of a feed's growing tables and files.

Nothing that a table depends on is removed. What is lost is the ability to decode again: a date or a line whose raw
content or segments are gone is then refused.

- Messages are removed from `records`, batch by batch from the first, once a batch is completely decoded. Messages with
  which a message of the next batch is compared stay, and those of quarantined rows.
- Copies are removed from the archive once their segments are decoded, except for quarantined rows.
- Segments of whole dates become one row for each table, once every table that can have rows of them has applied them.
  The newest date of a table stays, so that nothing is wrongly taken as known of a table that is left out for a while.
"""

from __future__ import annotations

import datetime
import functools
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
from pyiceberg.manifest import DataFile
from pyiceberg.table import Table

from cdc_lakehouse.changelog.schema import TableName
from cdc_lakehouse.decoders.arrow import pc
from cdc_lakehouse.errors import UnreadableTableError
from cdc_lakehouse.lake.archive import Archive
from cdc_lakehouse.lake.current.tables import CurrentTables
from cdc_lakehouse.lake.tables.landed_offsets import records_table, state_of
from cdc_lakehouse.lake.tables.records import files_before, first_batch, remove_before
from cdc_lakehouse.lake.tables.segments import DECODED, FILE, LANDED, OFFSETS, SCHEMA, directories, index_gaps
from cdc_lakehouse.pipeline.context import FeedContext
from cdc_lakehouse.pipeline.table_changes import is_shown
from cdc_lakehouse.pipeline.topic_source import batches_before
from cdc_lakehouse.sources.object_store import StoredObject

_NEVER: Final = 0
_ALWAYS: Final = 1 << 62


@dataclass(frozen=True, slots=True)
class Removed:
    """What was removed, or would be in a dry run: messages of `records` and their stored bytes, copies in the archive
    and their bytes, rows of `segments` that were merged into one for each table, and positions in `signals` that were
    merged into one for each partition."""

    records: int = 0
    record_bytes: int = 0
    archived_files: int = 0
    archived_bytes: int = 0
    segments: int = 0
    positions: int = 0


class Retention:
    """The retention of one feed in its current state. `run` only reads, and has the current configuration."""

    def __init__(self, run: FeedContext) -> None:
        self._run = run
        self._settings = run.feed.maintenance

    def outdated(self) -> Removed:
        """Return what `remove` would remove."""
        files, copies = self._files, self._copies
        return Removed(
            sum(file.record_count for file in files),
            sum(file.file_size_in_bytes for file in files),
            len(copies),
            sum(copy.size for copy in copies),
            self.passed.num_rows,
            self._run.signals.outdated(self._first_batch),
        )

    def remove(self) -> Removed:
        """Remove what is outdated; return what that was. Each part is one commit, or one removal of a file: when this
        ends early, the next call removes the rest."""
        removed = self.outdated()
        if self._files and self._records is not None:
            remove_before(self._records, self._batch, self._files)
        self._run.signals.summarize(self._first_batch)
        if self.passed.num_rows:
            self._run.segments.summarize(self.passed)
        for copy in self._copies:
            self._run.lake.delete(f"{self._archive.store.uri}/{copy.path}")
        return removed

    def _before(self, days: int) -> datetime.datetime:
        return self._run.clock() - datetime.timedelta(days=days)

    @functools.cached_property
    def _first_batch(self) -> int:
        """The first batch of messages that can be decoded again; 0 when all can, or there are none."""
        return first_batch(self._run.lake, self._run.feed.name)

    @functools.cached_property
    def _open(self) -> frozenset[str]:
        """Segments with unresolved quarantine rows, which a person may still replay."""
        return frozenset(row.segment for row in self._run.quarantine.unresolved())

    @property
    def _open_names(self) -> pa.Array:
        return pa.array(sorted(self._open), pa.string())

    # --- Messages ---

    @functools.cached_property
    def _records(self) -> Table | None:
        if self._settings.keep_records_days is None or not self._run.feed.source.may_forget_messages:
            return None
        return self._run.lake.load(records_table(self._run.feed.name))

    @functools.cached_property
    def _batch(self) -> int:
        """The first batch whose records are kept."""
        days, table = self._settings.keep_records_days, self._records
        if days is None or table is None:
            return _NEVER
        ranges = self._run.segments.rows.filter(pc.field("kind") == OFFSETS)
        before = pa.scalar(self._before(days), pa.timestamp("us", tz="UTC"))
        done = (pc.field("state") == DECODED) & (pc.field("decoded_at") < before)
        kept = ranges.filter(~(done & ~pc.field("segment").isin(self._open_names)))
        least = pc.min(kept["record_batch"]).as_py()
        state = state_of(table)
        return min([state.last.number, _ALWAYS if least is None else least, *batches_before(self._run, state)])

    @functools.cached_property
    def _files(self) -> list[DataFile]:
        return [] if self._records is None else files_before(self._records, self._batch)

    # --- Files ---

    @functools.cached_property
    def _archive(self) -> Archive:
        return Archive(self._run.lake, self._run.feed.name, self._run.store)

    @functools.cached_property
    def _copies(self) -> list[StoredObject]:
        days = self._settings.keep_archive_days
        if days is None or not self._run.feed.source.archive:
            return []
        files = self._run.segments.select(pc.field("kind") == FILE)
        needed = {self._archive.place(each) for each in files if each.state == LANDED or each.segment in self._open}
        before = self._before(days)
        return [copy for copy in self._archive.copies() if copy.modified < before and copy.path not in needed]

    # --- Segments ---

    @functools.cached_property
    def passed(self) -> pa.Table:
        """The segments to remove, with the columns of `SCHEMA`."""
        rows, days = self._run.segments.rows, self._settings.keep_segments_days
        if days is None:
            return rows.slice(0, 0)
        before = pa.scalar(self._before(days), pa.timestamp("us", tz="UTC"))
        over = (
            (pc.field("state") == DECODED)
            & (pc.field("batch") < self._run.segments.batch)
            & (pc.field("landed_at") < before)
            & (pc.field("max_commit_ts").is_null() | (pc.field("max_commit_ts") <= self._run.last_cut.checkpoint_ts))
            & ~pc.field("segment").isin(self._open_names)
        )
        least = min((batch for _, batch in self._batches), default=_NEVER)
        ranges = over & (pc.field("record_batch") < self._first_batch)
        ranges = ranges & (pc.field("kind") == OFFSETS) & (pc.field("batch") <= least)
        return pa.concat_tables([rows.filter(ranges), self._passed_files(rows, over)])

    def _passed_files(self, rows: pa.Table, over: Any) -> pa.Table:
        gaps = sorted({gap.directory for gap in index_gaps(rows)})
        files = directories(rows.filter(pc.field("feed_date").is_valid()))
        kept = files.filter(~over | pc.field("directory").isin(pa.array(gaps, pa.string())))
        names = ["database", "table"]
        groups = files.group_by([*names, "feed_date"]).aggregate([("batch", "max")])
        waiting = {tuple(each.values()) for each in kept.select([*names, "feed_date"]).to_pylist()}
        dates: dict[TableName, list[tuple[str, bool]]] = {}
        for group in groups.to_pylist():
            name = TableName(group["database"], group["table"])
            is_kept = (
                group["batch_max"] > self._batch_of(name) or (name.database, name.table, group["feed_date"]) in waiting
            )
            dates.setdefault(name, []).append((group["feed_date"], is_kept))
        upto = [(name, last) for name, found in dates.items() if (last := _last_passed(found)) is not None]
        limits = pa.table(
            {
                "database": pa.array([name.database for name, _ in upto], pa.string()),
                "table": pa.array([name.table for name, _ in upto], pa.string()),
                "upto": pa.array([last for _, last in upto], pa.string()),
            }
        )
        limited = files.join(limits, names, join_type="inner")
        return limited.filter(pc.field("feed_date") <= pc.field("upto")).select(SCHEMA.names).cast(SCHEMA)

    @functools.cached_property
    def _batches(self) -> list[tuple[frozenset[TableName], int]]:
        """The names of each table, and the batch up to which it has applied everything; a dropped table waits for
        none."""
        run, tables = self._run, CurrentTables(self._run.lake, self._run.feed)
        found: list[tuple[frozenset[TableName], int]] = []
        for life in run.history.history.incarnations().values():
            if life.dropped_ts is not None and life.dropped_ts <= run.last_cut.checkpoint_ts:
                found.append((frozenset(life.names), _ALWAYS))
                continue
            try:
                state = tables.find(life)
            except UnreadableTableError:
                # Everything needed to recreate it stays.
                found.append((frozenset(life.names), _NEVER))
                continue
            applied = _NEVER if state is None else state.applied_batch
            found.append((frozenset(life.names), max(applied, run.last_cut.batch if is_shown(run, life) else _NEVER)))
        return found

    def _batch_of(self, name: TableName) -> int:
        return min((batch for names, batch in self._batches if name in names), default=_NEVER)


def _last_passed(dates: list[tuple[str, bool]]) -> str | None:
    """Return the last of the initial dates that need not be kept, never the newest one. Dates after a kept one stay
    too, so that one date describes what is known of a table."""
    last = None
    for date, is_kept in sorted(dates)[:-1]:
        if is_kept:
            break
        last = date
    return last
