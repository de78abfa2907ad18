"""Step 4, current: bring every table to the checkpoint-ts.

The tables with changes are found, one job computes the updates of all of them, and each successful one is committed
separately; the commits follow each other within moments.

Rename current-state tables to the names that the source uses.

A rename chain or swap may be incomplete when a run ends: tables are found by their incarnation, so each run simply
continues from the current names to the wanted ones.
"""

from __future__ import annotations

import contextlib
import functools
import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, TypeVar

from pyiceberg.io import load_file_io
from pyiceberg.schema import Schema
from pyiceberg.table import Table

from cdc_lakehouse.changelog.history import Incarnation
from cdc_lakehouse.changelog.mysql_types import converts
from cdc_lakehouse.changelog.positions import BEGINNING
from cdc_lakehouse.changelog.schema import TableName, TableVersion
from cdc_lakehouse.decoders.problems import BAD_VALUE, Rejected
from cdc_lakehouse.errors import CdcError, ConcurrentRunError, TransientError, UnreadableTableError
from cdc_lakehouse.lake.current.keyed_events import commit_ts_range
from cdc_lakehouse.lake.current.schema_plan import Plan, plan_evolution
from cdc_lakehouse.lake.current.tables import (
    CurrentTables,
    TableState,
    column_names,
    plan_tags,
    schema_fingerprint,
    shown_state,
    tags_of,
)
from cdc_lakehouse.lake.current.typed_rows import COMMIT_TS, Target, lake_columns, lake_name
from cdc_lakehouse.lake.current.update_job import PlannedTable, UpdatedTable, UpdateJob
from cdc_lakehouse.lake.current.update_tasks import StoredTable, TableUpdate
from cdc_lakehouse.lake.current.value_parsing import ValueFormat
from cdc_lakehouse.lake.faults import engine_fault
from cdc_lakehouse.lake.files import FIRST_WITH_VECTORS, delete_rows, live_files
from cdc_lakehouse.lake.iceberg_java import TableTransaction
from cdc_lakehouse.lake.names import (
    APPLIED_BATCH,
    APPLIED_TS,
    CHECKPOINT_TS,
    COLUMNS,
    DATABASE,
    DROPPED_TS,
    KEY,
    KEYS_TOUCHED,
    LINEAGE,
    ROW_COUNT,
    ROWS_REMOVED,
    ROWS_WRITTEN,
    TABLE,
    Identifier,
    of_batch,
)
from cdc_lakehouse.lake.table_operations import NO_TAG_CHANGES, TagChanges
from cdc_lakehouse.lake.tables.events import EventReader
from cdc_lakehouse.lake.tables.quarantine import Quarantined, discards
from cdc_lakehouse.pipeline.changes import EventEstimates, TableChanges, find_changed_tables
from cdc_lakehouse.pipeline.feed_tables import is_taken, left_ts
from cdc_lakehouse.pipeline.holds import Holds, find_holds, find_unapproved, hold_reason
from cdc_lakehouse.pipeline.progress import Progress
from cdc_lakehouse.pipeline.run import FeedRun
from cdc_lakehouse.pipeline.source import value_format
from cdc_lakehouse.pipeline.synthetic import write_moved_rows, write_repairs


@dataclass(frozen=True, slots=True)
class TableLocation:
    """A table with its current and its wanted identifier."""

    life: Incarnation
    now: Identifier
    wanted: Identifier


def rename_to_source_names(
    tables: CurrentTables,
    locations: list[TableLocation],
    lives: Mapping[str, Incarnation],
    rename: Callable[[Identifier, Identifier], None],
) -> Holds:
    """Rename until each table has its wanted name; return holds for those that cannot get it, or whose rename fails.
    `lives` are all tables of the feed. Raises a fault of the engine: the next run continues."""
    moving = [table for table in locations if table.now != table.wanted]
    blocked: dict[str, str] = {}

    def renamed(table: TableLocation, now: Identifier, wanted: Identifier) -> bool:
        try:
            rename(now, wanted)
        except Exception as error:  # noqa: BLE001 - One bad table never stops the others; the next run tries again.
            blocked[table.life.id] = hold_reason(error, f"be renamed from {now} to {wanted}", table.life.last.name)
            moving.remove(table)
            return False
        return True

    while moving:
        free = next((table for table in moving if tables.is_free(table.wanted)), None)
        if free is not None:
            if renamed(free, free.now, free.wanted):
                moving.remove(free)
            continue
        first = moving[0]
        occupant = tables.at(first.wanted)
        own = next((table for table in moving if table.now == first.wanted), None)
        if own is not None:
            # A cycle: one of them is parked.
            parking = tables.parking_identifier(own.life, own.life.last.name)
            if renamed(own, own.now, parking):
                moving[moving.index(own)] = TableLocation(own.life, parking, own.wanted)
        elif occupant is not None and occupant.dropped_ts is not None and occupant.incarnation in lives:
            # It was dropped in the source, or renamed to a name that is not taken, and kept here; its name is needed
            # again.
            life = lives[occupant.incarnation]
            parking = tables.parking_identifier(life, occupant.name)
            if life.dropped_ts != occupant.dropped_ts:
                parking = tables.left_identifier(occupant.name, occupant.dropped_ts)
            renamed(first, first.wanted, parking)
        else:
            whose = "a table that is not the feed's, or cannot be read" if occupant is None else "a table that is held"
            blocked[first.life.id] = f"its name {first.wanted} is that of {whose}"
            moving.remove(first)
    return Holds(blocked)


# The update of one table: planned before the job that computes it, committed after it.


@dataclass(frozen=True)
class PlannedUpdate:
    """The planned update of one table: the work of the tasks, the table's current state, and the schema changes.
    `transaction` is open when the plan changes the schema: tasks write with the field ids that it assigned.
    `format_version` is the one that the table will have."""

    changes: TableChanges
    table: PlannedTable
    state: TableState
    plan: Plan
    transaction: TableTransaction | None
    tags: TagChanges
    format_version: int

    @property
    def is_upgraded(self) -> bool:
        return self.state.format_version < self.format_version

    @property
    def update(self) -> TableUpdate:
        return self.table.update

    @property
    def replaces_all(self) -> bool:
        """Whether no earlier file stays."""
        return self.changes.replaces_all_rows or self.table.rewrites


def plan_update(run: FeedRun, tables: CurrentTables, changes: TableChanges) -> PlannedUpdate:
    """Plan the update of one table; create the table when it does not exist yet. Raises `TableHeldError` when the table
    is blocked."""
    values = value_format(run.feed, changes.target.name)
    state = changes.state or _create(run, tables, changes, values)
    table = run.lake.existing(state.identifier)
    target = target_of(changes.life)
    wanted = run.feed.format_version_of(changes.target.name.database, changes.target.name.table)
    format_version = max(wanted, state.format_version)
    plan = _evolution(changes, state, target, values, format_version)
    transaction, schema = None, table.schema()
    is_upgraded = state.format_version < format_version
    if plan.steps or is_upgraded:
        transaction = run.iceberg.transaction(state.identifier, state.snapshot_id)
        if is_upgraded:
            transaction.upgrade(format_version)
        transaction.change_schema(plan.steps)
        schema = Schema.model_validate_json(transaction.schema_json())
    stays = bool(state.row_count) and not changes.replaces_all_rows
    key = changes.table_key(values)
    update = TableUpdate(
        table_no=changes.number,
        name=str(changes.target.name),
        target=target,
        key=key.read_as,
        value_format=values,
        schema=schema,
        location=table.location(),
        properties={name: value for name, value in table.properties.items() if name.startswith("write.")},
        stored=_stored(table, state, changes) if stays else None,
        emptied=changes.emptied(changes.read_after_ts),
        emptied_now=() if changes.replaces_all_rows else changes.emptied(changes.applied_ts),
        # When a person discarded rows, tasks write what they can: whether the table continues without the rows is
        # decided once all of them are known.
        skips_rejected=run.feed.policy.quarantine == "skip" or run.quarantine.has_discarded(changes.life.names),
        recomputed=changes.recomputed,
        tells_collisions=changes.state is not None and not changes.reads_all_events,
    )
    planned = PlannedTable(update, tuple(changes.spans(key)), changes.events, rewrites=bool(plan.rewritten) and stays)
    return PlannedUpdate(changes, planned, state, plan, transaction, _tags(run, table, changes), format_version)


def _tags(run: FeedRun, table: Table, changes: TableChanges) -> TagChanges:
    if table.current_snapshot() is None:
        return NO_TAG_CHANGES
    published = {row.snapshot_id for row in run.last_cut_rows if row.snapshot_id is not None}
    state = shown_state(table, published)
    if state is None:
        # A table that was held is in an earlier cut.
        rows = [row for name in changes.life.names for row in run.checkpoints.rows_of(name)]
        state = shown_state(table, {row.snapshot_id for row in rows if row.snapshot_id is not None})
    return plan_tags(tags_of(table), state, changes.checkpoint_ts, run.lake.config.cuts)


def _evolution(
    changes: TableChanges, state: TableState, target: Target, values: ValueFormat, format_version: int
) -> Plan:
    columns = lake_columns(target.columns, values)
    if not changes.rebuild:
        converted = frozenset() if changes.replaces_all_rows else converted_columns(target, changes.applied_version)
        defaults = format_version >= FIRST_WITH_VECTORS
        return plan_evolution(state.columns, columns, state.order, converted, defaults=defaults)
    # The columns were not what they were assumed to be: none of them is kept.
    columns = [replace(column, initial=None) for column in columns]
    return plan_evolution((), columns, state.order, leftover=[column.name for column in state.columns])


def _stored(table: Table, state: TableState, changes: TableChanges) -> StoredTable:
    schema = table.schema()
    fields = {column.id: schema.find_field(column.name).field_id for column in state.columns}
    bounds_of = [fields[column.id] for column in changes.key if column.id in fields]
    files = tuple(live_files(table, bounds_of))
    return StoredTable(files, schema, fields, changes.applied_version)


def commit(run: FeedRun, planned: PlannedUpdate, updated: UpdatedTable) -> None:
    """Commit schema, rows and the applied position together; commit nothing for a table that does not change."""
    changes, state = planned.changes, planned.state
    fingerprint = schema_fingerprint(changes.life, value_format(run.feed, changes.target.name))
    stays = not planned.replaces_all
    deletes = bool(updated.deleted) if stays else bool(state.row_count)
    same = changes.state is not None and fingerprint == changes.state.schema_fingerprint
    same = same and (state.dropped_ts is None) == (changes.life.dropped_ts is None)
    changes_rows = bool(updated.files or deletes or planned.plan.steps)
    if same and not (changes_rows or planned.is_upgraded):
        return
    _audit_updated(planned, updated)
    name = changes.target.name
    properties = {
        DATABASE: name.database,
        TABLE: name.table,
        APPLIED_TS: str(changes.checkpoint_ts),
        APPLIED_BATCH: str(run.segments.batch),
        LINEAGE: fingerprint,
        KEY: json.dumps([lake_name(column) for column in changes.key], ensure_ascii=False),
        COLUMNS: column_names({column.id: lake_name(column) for column in planned.update.target.columns}),
    }
    if changes_rows:
        # It belongs to the newest snapshot: an upgrade alone makes none.
        any_row = changes.replaces_all_rows or planned.update.emptied_now
        properties[KEYS_TOUCHED] = "" if any_row else str(updated.counts.keys)
    if changes.life.dropped_ts is not None:
        properties[DROPPED_TS] = str(changes.life.dropped_ts)
    transaction = planned.transaction or run.iceberg.transaction(state.identifier, state.snapshot_id)
    delete_files, replaced = _delete_files(run, planned, updated) if stays else ((), ())
    transaction.commit(
        data_files=[*updated.files, *updated.rewritten],
        delete_files=delete_files,
        replaced_deletes=replaced,
        replace_all=not stays and bool(state.row_count),
        # A snapshot is read with the schema that it was made under.
        mark=bool(planned.plan.steps) and state.snapshot_id is not None,
        properties=properties,
        removed_properties=_outlived(changes.life, state),
        summary={
            CHECKPOINT_TS: str(changes.checkpoint_ts),
            **of_batch(run.segments.batch),
            **_row_count(planned, updated),
            **(_changed_rows(updated) if stays and changes_rows and not updated.rewritten else {}),
        },
        tags=planned.tags,
    )


def _outlived(life: Incarnation, state: TableState) -> Sequence[str]:
    """Return the properties that are no longer true of the table. A table that was renamed to a name that is not taken
    can return."""
    back = state.dropped_ts is not None and life.dropped_ts is None
    return (DROPPED_TS,) if back else ()


def _audit_updated(planned: PlannedUpdate, updated: UpdatedTable) -> None:
    """Check that the files hold the right number of rows. Raises `TransientError` otherwise: the written files are
    unused, and the next run tries again."""
    counts = updated.counts
    written = _rows_of(updated.files)
    lost = written != counts.rows or counts.rows > counts.keys - counts.deletes
    if planned.table.rewrites:
        deleted = sum(len(positions) for positions in updated.deleted.values())
        lost = lost or _rows_of(updated.rewritten) != planned.state.row_count - deleted
    if lost:
        raise TransientError("the files that were written do not hold the rows that they should", advice="run again")


def _changed_rows(updated: UpdatedTable) -> Mapping[str, str]:
    """Return the changes of rows by the events, to be compared with what Iceberg says that the commit did."""
    removed = sum(len(positions) for positions in updated.deleted.values())
    return {ROWS_WRITTEN: str(updated.counts.rows), ROWS_REMOVED: str(removed)}


def _row_count(planned: PlannedUpdate, updated: UpdatedTable) -> Mapping[str, str]:
    """Return the number of live rows after the commit, when the table needs it recorded."""
    if planned.format_version >= FIRST_WITH_VECTORS and not planned.state.counts_rows:
        return {}
    rows = _rows_of(updated.files) + _rows_of(updated.rewritten)
    if planned.update.stored is not None and not planned.replaces_all:
        rows += sum(file.live_rows for file in planned.update.stored.files)
        rows -= sum(len(positions) for positions in updated.deleted.values())
    return {ROW_COUNT: str(rows)}


def _rows_of(data_files: Sequence[str]) -> int:
    return sum(json.loads(file)["record-count"] for file in data_files)


def _delete_files(run: FeedRun, planned: PlannedUpdate, updated: UpdatedTable) -> tuple[Sequence[str], Sequence[str]]:
    """Write the deletes of removed rows; return them, and the deletes that they replace."""
    if not updated.deleted or planned.update.stored is None:
        return (), ()
    io = load_file_io(dict(run.lake.catalog.properties), planned.update.location)
    update = planned.update
    files, version = planned.update.stored.files, planned.format_version
    return delete_rows(io, update.location, update.properties, version, files, updated.deleted)


def _create(run: FeedRun, tables: CurrentTables, changes: TableChanges, values: ValueFormat) -> TableState:
    """Create an empty table with the columns of the target, under a parking name while another table has its name.
    Raises `ConcurrentRunError` when another run has created it meanwhile: both would share a directory of files."""
    name = changes.target.name
    another_run = ConcurrentRunError(f"another run has made the table {name}", advice="run again")
    if tables.find(changes.life) is not None:
        raise another_run
    wanted = tables.identifier(name)
    run.lake.ensure_namespace(wanted.namespace)
    columns = lake_columns(changes.target.carried, values)
    identifier = wanted if tables.is_free(wanted) else tables.parking_identifier(changes.life, name)
    run.iceberg.create(
        identifier,
        [*((column.name, column.type) for column in columns), (COMMIT_TS, "long")],
        tables.location(changes.life, name),
        {**tables.first_properties(changes.life), COLUMNS: column_names({each.id: each.name for each in columns})},
    )
    made = tables.find(changes.life)
    if made is None or made.identifier != identifier:
        # The other run has renamed its own in the meantime: this one would stay beside it.
        run.lake.catalog.drop_table(identifier.parts)
        raise another_run
    return made


def location_of(tables: CurrentTables, changes: TableChanges, now: Identifier) -> TableLocation:
    """Return the table's current and its wanted identifier. A dropped table keeps its identifier until its name is
    needed; once it has made way for another, it does not move back, even if the previous run ended between the two
    steps."""
    home = tables.identifier(changes.target.name)
    parked = tables.parking_identifier(changes.life, changes.target.name)
    stays = changes.life.dropped_ts is not None and (now in (home, parked) or not tables.is_free(home))
    return TableLocation(changes.life, now, now if stays else home)


def target_of(life: Incarnation) -> Target:
    return Target(life.last.carried, dict(enumerate(life.versions)))


def converted_columns(target: Target, applied: TableVersion) -> frozenset[int]:
    """Return the columns whose values in the lake change with the type, from the applied version to the target."""
    return frozenset(column.id for column in target.columns if converts(target.types_since(column.id, applied)))


_Item = TypeVar("_Item", TableChanges, PlannedUpdate)
_TRIES: Final = 3
"""The number of times a table is updated whose files another writer rewrites meanwhile, or at which the engine
fails."""


@dataclass(frozen=True)
class AppliedTable:
    """One table's part of a run: rows written, keys deleted, zero dates that became NULL, keys that keep an
    older state because their latest row is unusable, and whether the whole table was recomputed from all events."""

    life: Incarnation
    state: TableState
    key: tuple[str, ...]
    upserts: int
    deletes: int
    zero_dates: int
    older: int
    rebuilt: bool


@dataclass(frozen=True)
class Applied:
    """The result of the step.

    lives: the taken tables of the feed as of the checkpoint. tables: those that this run published. held: the reason by
    incarnation (or by name, when there is none) for held tables. left: the tables that were renamed to a name that the
    feed does not take. waiting: those with changes that the run was told not to apply."""

    checkpoint_ts: int
    lives: Mapping[str, Incarnation]
    tables: tuple[AppliedTable, ...]
    held: Mapping[str, str]
    left: Mapping[str, Incarnation] = field(default_factory=dict[str, Incarnation])
    waiting: tuple[TableName, ...] = ()


def apply(run: FeedRun, upto: int, only: Collection[TableName] | None = None) -> Applied:
    """Bring every table that has changes and is not held to the checkpoint; with `only`, none but these."""
    incarnations = run.history.history.incarnations()
    known = {id: life for id, whole in incarnations.items() if (life := whole.upto(upto)) is not None}
    lives = {id: life for id, life in known.items() if is_taken(run.feed.tables, life)}
    left = {id: life for id, life in known.items() if left_ts(run.feed.tables, life) is not None}
    holds = find_holds(run, known, upto)
    if upto == BEGINNING:
        return Applied(upto, lives, (), holds.reasons, left)
    tables = CurrentTables(run.lake, run.feed)
    free = {id: life for id, life in lives.items() if id not in holds}
    _give_up_unreadable(run, tables, free)
    holds |= find_unapproved(run, free)
    write_repairs(run)
    holds |= write_moved_rows(run, lives, holds)
    changed, refused = find_changed_tables(run, tables, lives, holds, upto)
    waiting: tuple[TableName, ...] = ()
    if only is not None:
        waiting = tuple(changes.target.name for changes in changed if changes.target.name not in only)
        wanted = [changes for changes in changed if changes.target.name in only]
        changed = [replace(changes, number=number) for number, changes in enumerate(wanted)]
    holds = _close_dropped(run, tables, lives, holds | refused)
    holds |= _close_left(run, tables, left)
    done: list[AppliedTable] = []
    if changed:
        run.log.info("%d tables have changes", len(changed))
        done, holds = _update_tables(run, tables, lives | left, changed, holds)
    return Applied(upto, lives, tuple(done), holds.reasons, left, waiting)


def _update_tables(
    run: FeedRun,
    tables: CurrentTables,
    lives: Mapping[str, Incarnation],
    changed: Sequence[TableChanges],
    holds: Holds,
) -> tuple[list[AppliedTable], Holds]:
    """Update tables; return what was applied, and all holds, including those of tables that could not be updated."""
    run.events.ensure()
    job = UpdateJob(run.spark, run.lake.catalog.properties)
    updated: dict[int, UpdatedTable] = {}
    committed: list[PlannedUpdate] = []
    left, tries = list(changed), _TRIES
    while left:
        counts, tries = EventEstimates(run), tries - 1
        left = [replace(each, events=counts.of(each)) for each in left]
        run.require_lease()
        planned, failed, away = _plan_all(run, tables, left)
        changes = [each.changes for each in planned]
        plans = [each.table for each in planned]
        found = job.run(plans, _reader(run, planned)) if plans else {}
        updated |= found
        collide = [replace(each, keys_may_collide=True) for each in changes if found[each.number].collides]
        audited, unsound = _audit(run, planned, updated)
        run.require_lease()
        done_now, uncommitted, lost = _commit_all(run, audited, updated)
        committed += done_now
        failed |= uncommitted
        replanned = _rewritten(tables, left, failed) if tries else []
        holds |= unsound | failed.without([each.life.id for each in replanned])
        if replanned:
            run.log.info("tables to be updated again, whose files were rewritten meanwhile: %d", len(replanned))
        left = [*replanned, *collide, *_retried(tables, {**away, **lost}, left, tries)]
    holds = _close_dropped(run, tables, lives, holds)
    locations = [location_of(tables, each.changes, each.state.identifier) for each in committed]
    blocked = rename_to_source_names(tables, locations, lives, functools.partial(_rename, run))
    done: list[AppliedTable] = []
    for each in committed:
        changes = each.changes
        try:
            state = tables.find(changes.life)
            if state is None:
                raise UnreadableTableError(f"the table {each.state.identifier} no longer exists", advice="run again")
        except UnreadableTableError as error:
            blocked |= Holds({changes.life.id: str(error)})
            continue
        if changes.life.id not in blocked:
            counts = updated[changes.number].counts
            key = tuple(lake_name(column) for column in changes.key)
            numbers = (counts.rows, counts.deletes, counts.zero_dates, counts.older)
            done.append(AppliedTable(changes.life, state, key, *numbers, changes.is_rebuilt))
    return done, holds | blocked


def _reader(run: FeedRun, planned: Sequence[PlannedUpdate]) -> EventReader:
    """Return a reader of the events of some tables, in their current state and from before segments were decoded
    again."""
    spans = [span for each in planned for span in each.table.spans]
    return run.events.reader(*commit_ts_range(spans), {id for each in planned for id in each.changes.earlier})


def _give_up_unreadable(run: FeedRun, tables: CurrentTables, lives: Mapping[str, Incarnation]) -> None:
    """Drop unreadable tables that a person asked to recompute from the catalog, so that they can be recreated."""
    for life in lives.values():
        if life.last.name in run.rebuild and life.dropped_ts is None:
            identifier = tables.drop_unreadable(life)
            if identifier is not None:
                run.log.warning("table %s cannot be read: it is taken out of the catalog, and made anew", identifier)


def _rewritten(tables: CurrentTables, changed: Sequence[TableChanges], failed: Holds) -> list[TableChanges]:
    """Return the failed tables whose files another writer has replaced by others with the same rows, with their new
    state."""
    found: list[TableChanges] = []
    for each in changed:
        now = None
        if each.life.id in failed:
            with contextlib.suppress(UnreadableTableError):
                now = tables.find(each.life)
        if now is None or each.state is None or now == each.state:
            continue
        if replace(now, snapshot_id=each.state.snapshot_id) == each.state:
            found.append(replace(each, state=now))
    return found


def _retried(
    tables: CurrentTables, away: Mapping[str, CdcError], changed: Sequence[TableChanges], tries: int
) -> list[TableChanges]:
    """Return the tables at which the engine failed, to be updated again. Raises the engine's error when no tries are
    left or the table has changed: the next run continues from what is committed, and no table is held."""
    found: list[TableChanges] = []
    for each in changed:
        fault = away.get(each.life.id)
        if fault is None:
            continue
        now = tables.find(each.life) if tries else None
        is_new = each.state is None and (now is None or not now.schema_fingerprint)
        if not tries or not (is_new or now == each.state):
            raise fault
        found.append(replace(each, state=now))
    return found


def _plan_all(
    run: FeedRun, tables: CurrentTables, changed: Sequence[TableChanges]
) -> tuple[list[PlannedUpdate], Holds, Mapping[str, CdcError]]:
    return _each(run, changed, lambda changes: plan_update(run, tables, changes))


def _commit_all(
    run: FeedRun, planned: Sequence[PlannedUpdate], updated: Mapping[int, UpdatedTable]
) -> tuple[list[PlannedUpdate], Holds, Mapping[str, CdcError]]:
    progress = Progress(run.log, "tables are committed", len(planned))

    def one(each: PlannedUpdate) -> PlannedUpdate:
        commit(run, each, updated[each.changes.number])
        progress.add()
        return each

    return _each(run, planned, one)


def _each(
    run: FeedRun, items: Sequence[_Item], work: Callable[[_Item], PlannedUpdate]
) -> tuple[list[PlannedUpdate], Holds, Mapping[str, CdcError]]:
    """Do the work for each table, one after the other; return the results, holds for tables that failed, and the
    engine's errors by the table at which they occurred. Raises the engine's error when it occurs at two tables in a
    row: others would fail too."""
    done: list[PlannedUpdate] = []
    reasons: dict[str, str] = {}
    away: dict[str, CdcError] = {}
    is_away = False
    for item in items:
        changes = item.changes if isinstance(item, PlannedUpdate) else item
        try:
            done.append(work(item))
            is_away = False
        except Exception as error:  # One bad table never stops the others, whatever is wrong with it.
            fault = engine_fault(error)
            if fault is None:
                life = changes.life
                reasons[life.id] = hold_reason(error, "be written", life.last.name)
                run.log.warning("table %s: %s", changes.target.name, reasons[life.id], exc_info=error)
                continue
            run.log.warning("while table %s was written: %s", changes.target.name, fault)
            if is_away:
                raise fault from error
            away[changes.life.id], is_away = fault, True
    return done, Holds(reasons), away


def _audit(
    run: FeedRun, planned: Sequence[PlannedUpdate], updated: Mapping[int, UpdatedTable]
) -> tuple[list[PlannedUpdate], Holds]:
    """Return the tables that can be committed and holds for the others. A table with unusable rows can be committed
    when the policy skips them, or a person discarded each of them."""
    sound: list[PlannedUpdate] = []
    rejected: list[Rejected] = []
    reasons: dict[str, str] = {}
    is_discarded = discards(run.quarantine.rows)
    for each in planned:
        changes, found = each.changes, updated[each.changes.number]
        if found.collides:
            continue  # It is planned again.
        if found.failure is not None:
            run.log.error("table %s could not be updated: %s", changes.target.name, found.failure)
            reasons[changes.life.id] = found.failure
            continue
        if found.rejected:
            rejected += found.rejected
            count, first = sum(row.count for row in found.rejected), found.rejected[0]
            reason = f"{count} rows do not fit the table's columns, the first at {first.segment} line {first.line}"
            reason += f": {found.misfit}" if found.misfit else ""
            skips = run.feed.policy.quarantine == "skip"
            if not skips and not all(is_discarded(row) for row in found.rejected):
                reasons[changes.life.id] = reason
                continue
            run.log.warning("table %s goes on without rows: %s", changes.target.name, reason)
        sound.append(each)
    _quarantine_rows(run, sound, rejected)
    return sound, Holds(reasons)


def _rename(run: FeedRun, now: Identifier, wanted: Identifier) -> None:
    # A table may be the first to move into its database.
    run.lake.ensure_namespace(wanted.namespace)
    run.iceberg.rename(now, wanted)


def _close_dropped(run: FeedRun, tables: CurrentTables, lives: Mapping[str, Incarnation], holds: Holds) -> Holds:
    """Mark held tables that were dropped meanwhile as dropped; they stay unchanged and are no longer held. A table that
    cannot be marked stays held, so that the next run marks it."""
    dropped = [id for id in holds.reasons if id in lives and lives[id].dropped_ts is not None]
    reasons = {id: _mark_dropped(run, tables, lives[id], lives[id].dropped_ts, holds.reasons[id]) for id in dropped}
    return holds.without(dropped) | Holds({id: reason for id, reason in reasons.items() if reason is not None})


def _close_left(run: FeedRun, tables: CurrentTables, left: Mapping[str, Incarnation]) -> Holds:
    """Mark tables that were renamed since the last cut to a name that is not taken as dropped, which they are to
    readers. Return holds for those that cannot be marked."""
    cut = run.last_cut
    reasons: dict[str, str] = {}
    for life in left.values():
        when = left_ts(run.feed.tables, life)
        is_marked = when is not None and when <= cut.checkpoint_ts and run.settings == cut.settings
        if when is None or (is_marked and life.id not in cut.held_incarnations):
            continue
        why = f"it was renamed to {life.last.name}, which the configuration does not take, and is not kept up any more"
        if (reason := _mark_dropped(run, tables, life, when, why)) is not None:
            reasons[life.id] = reason
    return Holds(reasons)


def _mark_dropped(
    run: FeedRun, tables: CurrentTables, life: Incarnation, commit_ts: int | None, why: str
) -> str | None:
    """Mark a table as dropped at a commit-ts, unless it is marked already; return the reason when that fails."""
    try:
        state = tables.find(life)
        if state is None or state.dropped_ts is not None:
            return None
        run.log.warning("table %s stays in the lake, marked as dropped: %s", state.name, why)
        transaction = run.iceberg.transaction(state.identifier, state.snapshot_id)
        transaction.commit(properties={DROPPED_TS: str(commit_ts)})
    except Exception as error:  # noqa: BLE001 - One bad table never stops the others, whatever is wrong with it.
        return hold_reason(error, "be marked as dropped", life.last.name)
    return None


def _quarantine_rows(run: FeedRun, sound: Sequence[PlannedUpdate], rejected: Sequence[Rejected]) -> None:
    """Quarantine rows that their tables cannot take, and resolve earlier ones that are taken now or no longer exist.

    This must be called before anything is committed: a row that its table skips must not be lost when the run ends."""
    names = ((each, each.changes.target.name) for each in sound)
    of_table = {(name.database, name.table): each for each, name in names}

    def tried_again(row: Quarantined) -> bool:
        found = of_table.get((row.database or "", row.table or ""))
        if row.error_class != BAD_VALUE or found is None:
            return False
        # A table that continues without its bad rows has skipped them.
        redecoded = row.segment in {segment.segment for segment in found.changes.redecoded}
        passed_by = run.feed.policy.quarantine == "skip" or row.state == "discarded"
        return redecoded or found.changes.is_rebuilt or not passed_by

    run.quarantine.replace(tried_again, rejected, run.clock())
