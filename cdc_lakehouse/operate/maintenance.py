"""Maintain a feed's tables: measure what each needs, and do it between runs.

Every change of a table is made with the feed's lease, one table at a time and a bounded part of a large one, so no run
is active then. If the lease is lost, the commits are still validated: those of maintenance by Iceberg, those of a run
against the snapshot that it planned on.
"""

from __future__ import annotations

import datetime
import uuid
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from pyiceberg.table import Table

from cdc_lakehouse.changelog.positions import BEGINNING, utc_now
from cdc_lakehouse.changelog.schema import TableName
from cdc_lakehouse.errors import ConcurrentRunError, ConfigurationError, UnreadableTableError
from cdc_lakehouse.lake.catalog import system_table
from cdc_lakehouse.lake.current.tables import CurrentTables, TableState, plan_tags, same_rows, tags_of
from cdc_lakehouse.lake.faults import described, engine_errors
from cdc_lakehouse.lake.files import StoredFile, live_files
from cdc_lakehouse.lake.names import CATALOG, COMPACTED_AT, Identifier
from cdc_lakehouse.lake.tables.checkpoints import Checkpoints
from cdc_lakehouse.lake.tables.lease import MAINTENANCE, take_when_free
from cdc_lakehouse.lake.tables.schema_history import SchemaHistory
from cdc_lakehouse.lake.tables.segments import Segments
from cdc_lakehouse.operate.retention import Retention, nothing_removed, remove_superseded
from cdc_lakehouse.operate.state import TableHealth, table_health
from cdc_lakehouse.pipeline.progress import Progress
from cdc_lakehouse.pipeline.run import FeedRun

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
    """The maintenance of a feed. `removed` is what is not kept any longer, by the names of `retention.REMOVED`."""

    tables: tuple[MaintainedTable, ...]
    removed: Mapping[str, int] = field(default_factory=nothing_removed)


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
        removed, self._forgets_cuts = nothing_removed(), dry_run and wanted is None
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
        if target.name != _EVENTS:
            return 0
        return remove_superseded(self._look(FeedRun), None if dry_run else self._lease)

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
            needed |= Segments(self.lake, self.feed.name).earlier_contents(applied)
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
