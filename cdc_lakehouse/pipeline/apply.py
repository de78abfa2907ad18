"""Step 4, current: bring every table to the checkpoint-ts.

The tables with changes are found, one job computes the updates of all of them, and each successful one is committed
separately; the commits follow each other within moments."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, TypeVar

from cdc_lakehouse.changelog.history import Incarnation
from cdc_lakehouse.changelog.positions import BEGINNING
from cdc_lakehouse.changelog.schema import TableName
from cdc_lakehouse.decoders.problems import BAD_VALUE, Rejected
from cdc_lakehouse.errors import CdcError, UnreadableTableError
from cdc_lakehouse.lake.current.keyed_events import commit_ts_range
from cdc_lakehouse.lake.current.tables import CurrentTables, TableState
from cdc_lakehouse.lake.current.typed_rows import lake_name
from cdc_lakehouse.lake.current.update_job import UpdatedTable, UpdateJob
from cdc_lakehouse.lake.engine_faults import engine_fault
from cdc_lakehouse.lake.names import Identifier
from cdc_lakehouse.lake.properties import DROPPED_TS
from cdc_lakehouse.lake.tables.event_files import EventReader
from cdc_lakehouse.lake.tables.quarantine import Quarantined, discards
from cdc_lakehouse.pipeline.holds import Holds, find_holds, find_unapproved, hold_reason
from cdc_lakehouse.pipeline.moved_rows import write_moved_rows
from cdc_lakehouse.pipeline.progress import Progress
from cdc_lakehouse.pipeline.repairs import write_repairs
from cdc_lakehouse.pipeline.run import FeedRun
from cdc_lakehouse.pipeline.table_changes import EventEstimates, TableChanges, find_changed_tables
from cdc_lakehouse.pipeline.table_renames import rename_to_source_names
from cdc_lakehouse.pipeline.table_update import PlannedUpdate, commit, location_of, plan_update
from cdc_lakehouse.pipeline.taken_tables import is_taken, left_ts

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
