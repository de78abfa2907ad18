"""Maintain a feed's tables: measure what each needs, and do it between runs.

Every change of a table is made with the feed's lease, one table at a time and a bounded part of a large one, so no run
is active then. If the lease is lost, the commits are still validated: those of maintenance by Iceberg, those of a run
against the snapshot that it planned on.
"""

from __future__ import annotations

import datetime
import functools
import logging
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

from pyiceberg.table import Table
from pyspark.sql import SparkSession

from cdc_lakehouse.changelog.positions import BEGINNING, utc_now
from cdc_lakehouse.changelog.schema import TableName
from cdc_lakehouse.config import FeedConfig
from cdc_lakehouse.errors import ConcurrentRunError, ConfigurationError, UnreadableTableError
from cdc_lakehouse.lake.catalog import Lake, system_table
from cdc_lakehouse.lake.current.tables import CurrentTables, TableState, plan_tags, same_rows, tags_of
from cdc_lakehouse.lake.faults import described, engine_errors
from cdc_lakehouse.lake.files import dangling_deletes
from cdc_lakehouse.lake.iceberg_java import IcebergJavaApi
from cdc_lakehouse.lake.names import CATALOG, COMPACTED_AT, Identifier
from cdc_lakehouse.lake.tables.checkpoints import Checkpoints
from cdc_lakehouse.lake.tables.lease import MAINTENANCE, Lease, take_when_free
from cdc_lakehouse.lake.tables.quarantine import Quarantine
from cdc_lakehouse.lake.tables.schema_history import SchemaHistory
from cdc_lakehouse.lake.tables.segments import Segments
from cdc_lakehouse.operate.retention import Removed, Retention, SupersededEvents
from cdc_lakehouse.operate.state import SMALL_SHARE, TableHealth, manifest_count, rewrite_candidates, table_health
from cdc_lakehouse.pipeline.context import FeedContext
from cdc_lakehouse.pipeline.progress import Progress

# Call Iceberg's own maintenance procedures through Spark. Nothing here decides what a table needs.


class Procedures:
    """Iceberg's maintenance procedures. Each raises `TransientError` when Spark, the storage or another writer's commit
    prevents it: the table is then unchanged."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark

    def rewrite_data_files(self, table: Identifier, options: Mapping[str, int | float]) -> int:
        """Merge small files, and rewrite files with many deleted rows without these; return the number of rewritten
        files. `options` are those of the procedure."""
        listed = ", ".join(f"'{name}', '{value}'" for name, value in options.items())
        (row,) = self._call("rewrite_data_files", table, f"options => map({listed})")
        return int(row["rewritten_data_files_count"])

    def rewrite_manifests(self, table: Identifier) -> int:
        """Rewrite the table's manifests; return how many were rewritten."""
        (row,) = self._call("rewrite_manifests", table)
        return int(row["rewritten_manifests_count"])

    def remove_orphan_files(self, table: Identifier, older_than: datetime.datetime, *, dry_run: bool) -> int:
        """Remove files below the table's location that no snapshot references and that are older than `older_than`;
        return their number. `dry_run` only counts them."""
        arguments = f"older_than => :older_than, dry_run => {str(dry_run).lower()}, prefix_listing => true"
        return len(self._call("remove_orphan_files", table, arguments, older_than=older_than))

    def _call(self, procedure: str, table: Identifier, arguments: str = "", **values: Any) -> list[Any]:
        more = f", {arguments}" if arguments else ""
        statement = f"CALL {CATALOG}.system.{procedure}(table => :table{more})"
        with engine_errors():
            return self._spark.sql(statement, args={"table": table.sql, **values}).collect()


_LOG: Final = logging.getLogger("cdc_lakehouse")
_EVENTS: Final = "events"
_GROWING: Final = (_EVENTS, "records")
"""The feed's own tables that do not keep themselves small."""
_MANY_MANIFESTS: Final = 30
_PATIENCE: Final = datetime.timedelta(minutes=10)
"""How long maintenance waits for a run that holds the feed."""
_MB: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class Actions:
    """What was done to a table, or would be done in a dry run: rewritten data files and manifests, expired snapshots,
    removed files that no snapshot referenced, and removed events that later events of their rows superseded. `deferred`
    says why something was not done."""

    superseded_events: int = 0
    compacted_files: int = 0
    rewritten_manifests: int = 0
    expired_snapshots: int = 0
    orphan_files: int = 0
    deferred: str | None = None

    def __add__(self, more: Actions) -> Actions:
        """Add what was done later."""
        return Actions(
            self.superseded_events + more.superseded_events,
            self.compacted_files + more.compacted_files,
            self.rewritten_manifests + more.rewritten_manifests,
            self.expired_snapshots + more.expired_snapshots,
            self.orphan_files + more.orphan_files,
            self.deferred or more.deferred,
        )


@dataclass(frozen=True, slots=True)
class MaintainedTable:
    """The maintenance of one table. `table` is the identifier in the lake, `source` the name in the source, None for
    `events` and `records`. `after` is None in a dry run, and when something could not be done."""

    table: str
    source: TableName | None
    before: TableHealth
    after: TableHealth | None
    actions: Actions


@dataclass(frozen=True, slots=True)
class Maintained:
    """The maintenance of a feed. `forgotten_cut_rows` are rows of `checkpoints` of expired cuts,
    `forgotten_quarantine_rows` rows that could be used after all. `removed` is what was kept for decoding again."""

    tables: tuple[MaintainedTable, ...]
    forgotten_cut_rows: int = 0
    forgotten_quarantine_rows: int = 0
    removed: Removed = field(default_factory=Removed)


@dataclass(frozen=True, slots=True)
class _Target:
    """A table to maintain. `unreadable` says why it cannot be read."""

    identifier: Identifier
    source: TableName | None = None
    state: TableState | None = None
    unreadable: str | None = None

    @property
    def name(self) -> str:
        """The name that people give: the name in the source, or that of a feed's own table."""
        return self.identifier.name if self.source is None else str(self.source)

    @property
    def is_events(self) -> bool:
        return self.name == _EVENTS


class Maintenance:
    """The maintenance of one feed. `clock` determines the age of snapshots and files."""

    def __init__(
        self,
        feed: FeedConfig,
        lake: Lake,
        spark_session: Callable[[], SparkSession],
        *,
        log: logging.Logger = _LOG,
        clock: Callable[[], datetime.datetime] = utc_now,
    ) -> None:
        self._feed = feed
        self._settings = feed.maintenance
        self._lake = lake
        self._spark_session = spark_session
        self._log = log
        self._clock = clock
        self._run = f"{MAINTENANCE}{uuid.uuid4()}"
        self._forgotten_before: datetime.datetime | None = None
        """In a dry run: cuts from before this moment would be forgotten."""

    def maintain(self, wanted: str | None = None, *, dry_run: bool = False) -> Maintained:
        """Maintain all tables, or one: `database.table` of the source, `events` or `records`.

        A failure at one table is recorded in its actions, and the others continue. Raises `ConcurrentRunError` when a
        run holds the feed for longer than maintenance waits, and `ConfigurationError` when there is no such table."""
        targets = self._targets()
        chosen = self._chosen(targets, wanted)
        # For one table no cuts are forgotten: what their rows name stays.
        rows = (0, 0) if wanted is not None else self._forget(dry_run=dry_run)
        removed = Removed() if wanted is not None else self._remove(dry_run=dry_run)
        self._forgotten_before = self._cutoff if dry_run and wanted is None else None
        maintain = functools.partial(self._planned if dry_run else self._done, targets)
        return Maintained(self._each(chosen, maintain, dry_run=dry_run), *rows, removed)

    def compact(self, wanted: str | None = None, *, dry_run: bool = False) -> Maintained:
        """Rewrite the worn files of all current-state tables, or of one table, and do nothing else, so that it can be
        done often. Raises as `maintain` does."""
        chosen = [
            each for each in self._chosen(self._targets(), wanted) if wanted is not None or each.source is not None
        ]
        return Maintained(self._each(chosen, self._to_compact if dry_run else self._compacted, dry_run=dry_run))

    def _chosen(self, targets: Sequence[_Target], wanted: str | None) -> list[_Target]:
        chosen = [each for each in targets if wanted in (None, each.name)]
        if wanted is not None and not chosen:
            raise ConfigurationError(
                f"the feed {self._feed.name} has no table {wanted}",
                advice="give database.table of the source, or events, or records",
            )
        return chosen

    def _each(
        self, targets: Sequence[_Target], maintain: Callable[[_Target], Iterable[Actions]], *, dry_run: bool
    ) -> tuple[MaintainedTable, ...]:
        progress = Progress(self._log, "tables are maintained", len(targets))
        done: list[MaintainedTable] = []
        for each in targets:
            done.append(self._maintain(each, maintain, dry_run=dry_run))
            progress.add()
        return tuple(done)

    def _targets(self) -> list[_Target]:
        """Return the current-state tables, including dropped ones, and the feed's own tables that do not keep
        themselves small."""
        tables = CurrentTables(self._lake, self._feed)
        lives = SchemaHistory(self._lake, self._feed.name).history.incarnations().values()
        found: dict[Identifier, _Target] = {}
        for life in lives:
            try:
                state = tables.find(life)
            except UnreadableTableError as error:
                where = tables.identifier(life.last.name)
                found.setdefault(where, _Target(where, life.last.name, unreadable=str(error)))
                continue
            if state is not None:
                found[state.identifier] = _Target(state.identifier, state.name, state)
        machinery = [system_table(self._feed.name, name) for name in _GROWING]
        return [
            *(target for _, target in sorted(found.items())),
            *(_Target(identifier) for identifier in machinery if self._lake.load(identifier) is not None),
        ]

    # --- One table ---

    def _maintain(
        self, target: _Target, maintain: Callable[[_Target], Iterable[Actions]], *, dry_run: bool
    ) -> MaintainedTable:
        before, after, actions = TableHealth(), None, Actions(deferred=target.unreadable)
        try:
            if target.unreadable is None:
                before = table_health(self._load(target))
                for done in maintain(target):
                    actions += done
                after = None if dry_run else table_health(self._load(target))
        except ConcurrentRunError:
            raise
        except Exception as error:  # noqa: BLE001 - One bad table never stops the others, whatever is wrong with it.
            # What was done before the error stays done.
            actions += Actions(deferred=described(error))
        if actions.deferred is not None:
            self._log.warning("maintenance of %s: %s", target.identifier, actions.deferred)
        return MaintainedTable(str(target.identifier), target.source, before, after, actions)

    def _planned(self, targets: Sequence[_Target], target: _Target) -> Iterator[Actions]:
        table = self._load(target)
        manifests = manifest_count(table)
        yield Actions(
            compacted_files=self._rewrite_candidates(table).files,
            superseded_events=self._remove_superseded(target, dry_run=True),
            rewritten_manifests=manifests if manifests > _MANY_MANIFESTS else 0,
            expired_snapshots=len(self._outdated_snapshots(target, table, targets)),
            orphan_files=self._remove_orphans(target, dry_run=True),
        )

    def _to_compact(self, target: _Target) -> Iterator[Actions]:
        yield Actions(compacted_files=self._rewrite_candidates(self._load(target)).files)

    def _done(self, targets: Sequence[_Target], target: _Target) -> Iterator[Actions]:
        yield Actions(superseded_events=self._remove_superseded(target))
        yield from self._compacted(target)
        yield Actions(rewritten_manifests=self._rewrite_manifests(target))
        yield Actions(expired_snapshots=self._expire(target, targets))
        yield Actions(orphan_files=self._remove_orphans(target, dry_run=False))

    def _compacted(self, target: _Target) -> Iterator[Actions]:
        yield from self._compact(target)
        self._remove_dangling_deletes(target)
        self._show_newest(target)

    def _remove_superseded(self, target: _Target, *, dry_run: bool = False) -> int:
        """Remove superseded events that are no longer kept. Runs may be active during the search: what they add is
        later."""
        if not target.is_events:
            return 0
        events = SupersededEvents(self._context())
        found = events.find()
        if dry_run or found is None:
            return sum(map(len, (found or {}).values()))
        with self._lease():
            count = events.remove(found)
        self._log.info("removed %d events that later ones have superseded", count)
        return count

    def _compact(self, target: _Target) -> Iterator[Actions]:
        """Rewrite a part of a large table at a time, so that runs can be active in between."""
        while self._rewrite_candidates(self._load(target)).files:
            with self._lease():
                table = self._load(target)
                candidates = self._rewrite_candidates(table)
                done = self._procedures.rewrite_data_files(
                    target.identifier, self._options(candidates.files, candidates.bytes)
                )
                if done:
                    self._log.info("rewrote %d data files of %s", done, target.identifier)
                    now = self._clock().isoformat(timespec="seconds")
                    snapshot = self._load(target).metadata.current_snapshot_id
                    self._iceberg.transaction(target.identifier, snapshot).commit(properties={COMPACTED_AT: now})
                    self._show(target)
            if not done:
                break
            yield Actions(compacted_files=done)

    def _remove_dangling_deletes(self, target: _Target) -> None:
        """Remove position deletes of data files that were rewritten: unlike vectors, a compaction leaves them."""
        if target.state is None:
            return
        table = self._load(target)
        if table_health(table).deleted_rows and dangling_deletes(table):
            with self._lease():
                table = self._load(target)
                files = dangling_deletes(table)
                if files:
                    self._iceberg.remove_deletes(target.identifier, table.metadata.current_snapshot_id, files)

    def _rewrite_candidates(self, table: Table) -> Any:
        settings = self._settings
        target = settings.target_file_mb * _MB
        return rewrite_candidates(table, target, settings.min_small_files, settings.max_delete_ratio)

    def _options(self, files: int, size: int) -> dict[str, int | float]:
        target = self._settings.target_file_mb * _MB
        options: dict[str, int | float] = {
            "target-file-size-bytes": target,
            "min-file-size-bytes": target // SMALL_SHARE,
            "min-input-files": self._settings.min_small_files,
            "delete-ratio-threshold": self._settings.max_delete_ratio,
        }
        unit = self._settings.unit_mb * _MB
        if size > unit:
            options["max-files-to-rewrite"] = max(self._settings.min_small_files, files * unit // size)
        return options

    def _show_newest(self, target: _Target) -> None:
        """Make the newest cut name the rewritten files of a table, also when maintenance ended right after writing
        them, or another writer has rewritten them."""
        if target.state is not None and len(self._same_rows(target)) > 1:
            with self._lease():
                self._show(target)

    def _same_rows(self, target: _Target) -> Sequence[int]:
        table = self._load(target)
        return same_rows(table, table.current_snapshot())

    def _show(self, target: _Target) -> None:
        if target.state is None:
            return
        newest, *earlier = self._same_rows(target)
        name = target.state.name
        checkpoints = Checkpoints(self._lake, self._feed.name)
        checkpoints.show_instead(name.database, name.table, dict.fromkeys(earlier, newest))

    def _rewrite_manifests(self, target: _Target) -> int:
        if manifest_count(self._load(target)) <= _MANY_MANIFESTS:
            return 0
        with self._lease():
            return self._procedures.rewrite_manifests(target.identifier)

    def _expire(self, target: _Target, targets: Sequence[_Target]) -> int:
        if self._tags_over(target, self._load(target)):
            # A run's commit does it too, but not for a table that has not changed since.
            with self._lease():
                self._iceberg.remove_tags(target.identifier, self._tags_over(target, self._load(target)))
        if not self._outdated_snapshots(target, self._load(target), targets):
            return 0
        with self._lease():
            outdated = self._outdated_snapshots(target, self._load(target), targets)
            if outdated:
                self._iceberg.expire_snapshots(target.identifier, outdated)
        return len(outdated)

    def _tags_over(self, target: _Target, table: Table) -> tuple[str, ...]:
        """Return the expired tags of cuts, by the newest cut's time as in runs."""
        newest = Checkpoints(self._lake, self._feed.name).last().checkpoint_ts
        if target.state is None or newest == BEGINNING:
            return ()
        return plan_tags(tags_of(table), None, newest, self._lake.config.cuts).removed

    def _outdated_snapshots(self, target: _Target, table: Table, targets: Sequence[_Target]) -> list[int]:
        """Return the snapshots that are older than cuts are kept and that nothing needs: no kept cut, no branch or tag,
        and for `events` no held table."""
        over = self._tags_over(target, table)
        named = {ref.snapshot_id for name, ref in table.refs().items() if name not in over}
        needed = named | {table.metadata.current_snapshot_id}
        if target.state is not None:
            needed |= Checkpoints(self._lake, self._feed.name).named_snapshots(self._forgotten_before)
        elif target.is_events:
            needed |= self._needed_of_events(targets)
        oldest = self._cutoff.timestamp() * 1000
        return [
            each.snapshot_id
            for each in table.snapshots()
            if each.timestamp_ms < oldest and each.snapshot_id not in needed
        ]

    def _needed_of_events(self, targets: Sequence[_Target]) -> set[int]:
        """Return the snapshots with the content of segments before they were decoded again: a table that has not
        applied that yet finds the keys to recompute there. The last cut has applied it, but for held tables."""
        cut = Checkpoints(self._lake, self._feed.name).last()
        states = (each.state for each in targets if each.state is not None)
        held = (each.applied_batch for each in states if each.incarnation in cut.held_incarnations)
        applied = 0 if any(each.unreadable is not None for each in targets) else min([cut.batch, *held])
        return Segments(self._lake, self._feed.name).earlier_contents(applied)

    def _remove_orphans(self, target: _Target, *, dry_run: bool) -> int:
        older_than = self._clock() - datetime.timedelta(hours=self._settings.orphan_hours)
        return self._procedures.remove_orphan_files(target.identifier, older_than, dry_run=dry_run)

    # --- The feed ---

    def _forget(self, *, dry_run: bool) -> tuple[int, int]:
        """Remove expired rows of cuts and of the quarantine; return their numbers."""
        days = self._settings.keep_replayed_days

        def count() -> tuple[int, int]:
            cuts = Checkpoints(self._lake, self._feed.name).outdated(self._cutoff)
            return cuts, 0 if days is None else self._quarantine.replayed_before(self._days_ago(days))

        found = count()
        if dry_run or not any(found):
            return found
        with self._lease():
            cuts = Checkpoints(self._lake, self._feed.name).forget(self._cutoff)
            return cuts, 0 if days is None else self._quarantine.forget_replayed(self._days_ago(days))

    def _remove(self, *, dry_run: bool) -> Removed:
        """Remove expired messages, copies and segments."""

        found = Retention(self._context()).outdated()
        if dry_run or found == Removed():
            return found
        with self._lease():
            return Retention(self._context()).remove()

    def _context(self) -> FeedContext:
        return FeedContext(self._feed, self._lake, self._spark_session, log=self._log, clock=self._clock)

    @property
    def _quarantine(self) -> Quarantine:
        return Quarantine(self._lake, self._feed.name)

    @property
    def _cutoff(self) -> datetime.datetime:
        return self._clock() - datetime.timedelta(hours=self._settings.keep_cut_hours)

    def _days_ago(self, days: int) -> datetime.datetime:
        return self._clock() - datetime.timedelta(days=days)

    @contextmanager
    def _lease(self) -> Iterator[Lease]:
        lease = take_when_free(self._lake, self._feed.name, self._run, utc_now, _PATIENCE)
        try:
            yield lease
        finally:
            lease.release()

    @functools.cached_property
    def _spark(self) -> SparkSession:
        return self._spark_session()

    @functools.cached_property
    def _procedures(self) -> Procedures:
        return Procedures(self._spark)

    @functools.cached_property
    def _iceberg(self) -> IcebergJavaApi:
        return IcebergJavaApi(self._spark)

    def _load(self, target: _Target) -> Table:
        return self._lake.existing(target.identifier)
