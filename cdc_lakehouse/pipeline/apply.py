"""Step 4, current: every table's rows as of the checkpoint-ts.

The tables with changes are found, the latest change of each key is found once for all of them, then each table is
staged on its own branch, side by side, and all that went well are published one after the other within moments."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final

from pyspark import inheritable_thread_target

from cdc_lakehouse.changelog.history import Incarnation
from cdc_lakehouse.changelog.positions import BEGINNING
from cdc_lakehouse.decoders.problems import BAD_VALUE, Rejected
from cdc_lakehouse.errors import CdcError
from cdc_lakehouse.lake.current.latest_changes import LatestChanges
from cdc_lakehouse.lake.current.staging import StagedUpdate, Staging
from cdc_lakehouse.lake.current.tables import CurrentTables, TableState
from cdc_lakehouse.lake.iceberg_java import IcebergJavaApi
from cdc_lakehouse.lake.names import Identifier
from cdc_lakehouse.lake.properties import CHECKPOINT_TS, DROPPED_TS, of_batch
from cdc_lakehouse.lake.tables.quarantine import Quarantined
from cdc_lakehouse.pipeline.changed_keys import find_latest_changes
from cdc_lakehouse.pipeline.holds import Holds, find_holds, find_unapproved, is_taken
from cdc_lakehouse.pipeline.moved_rows import write_moved_rows
from cdc_lakehouse.pipeline.run import FeedRun
from cdc_lakehouse.pipeline.table_changes import TableChanges, find_changed_tables
from cdc_lakehouse.pipeline.table_renames import rename_to_source_names
from cdc_lakehouse.pipeline.table_update import location_of, publish, stage_table

_TABLES_AT_ONCE: Final = 8
_Staged = tuple[TableChanges, StagedUpdate]


@dataclass(frozen=True)
class AppliedTable:
    """One table's part of a run: rows written, keys deleted, zero dates that became NULL, and whether the whole table
    was recomputed from all events."""

    life: Incarnation
    state: TableState
    key: tuple[str, ...]
    upserts: int
    deletes: int
    zero_dates: int
    rebuilt: bool


@dataclass(frozen=True)
class Applied:
    """`lives` are the tables of the feed as of the checkpoint, `tables` those that this run published, `held` the
    reason by incarnation (or by name, without one) for those that could not go on."""

    checkpoint_ts: int
    lives: Mapping[str, Incarnation]
    tables: tuple[AppliedTable, ...]
    held: Mapping[str, str]


def apply(run: FeedRun, upto: int) -> Applied:
    """Bring every table that has something new, and is not held, to the checkpoint."""
    incarnations = run.history.history.incarnations()
    known = {id: life for id, whole in incarnations.items() if (life := whole.upto(upto)) is not None}
    lives = {id: life for id, life in known.items() if is_taken(run.feed.tables, life)}
    holds = find_holds(run, known, upto)
    if upto == BEGINNING:
        return Applied(upto, lives, (), holds.reasons)
    holds |= find_unapproved(run, {id: life for id, life in lives.items() if id not in holds})
    holds |= write_moved_rows(run, lives, holds)
    tables = CurrentTables(run.lake, run.feed)
    changed, refused = find_changed_tables(run, tables, lives, holds, upto)
    holds = _close_dropped(run, tables, lives, holds | refused)
    done: list[AppliedTable] = []
    if changed:
        done, holds = _update_tables(run, tables, lives, changed, holds)
    return Applied(upto, lives, tuple(done), holds.reasons)


def _update_tables(
    run: FeedRun,
    tables: CurrentTables,
    lives: Mapping[str, Incarnation],
    changed: Sequence[TableChanges],
    holds: Holds,
) -> tuple[list[AppliedTable], Holds]:
    """What was applied, and all holds with those of tables that could not be updated."""
    summary = {CHECKPOINT_TS: str(changed[0].checkpoint_ts), **of_batch(run.segments.batch)}
    staging = Staging(run.spark, summary)
    changed, latest = find_latest_changes(run, changed)
    try:
        with staging:
            staged, failed = _stage_all(run, tables, staging, changed, latest)
    finally:
        for frame in {id(found): found.frame for found in latest.values()}.values():
            frame.unpersist()
    for changes, update in staged:
        publish(run, staging, changes, update, latest[changes.number].changed_key_count(changes.number))
    holds = _close_dropped(run, tables, lives, holds | failed)
    locations = [location_of(tables, changes, each.update.identifier) for changes, each in staged]
    blocked = rename_to_source_names(tables, locations, lives, functools.partial(_rename, run))
    done: list[AppliedTable] = []
    for changes, each in staged:
        state = tables.find(changes.life)
        assert state is not None, each.update.identifier
        if changes.life.id not in blocked:
            deletes = latest[changes.number].deletes.get(changes.number, 0)
            key = tuple(column.name for column in changes.key)
            done.append(
                AppliedTable(changes.life, state, key, each.appended, deletes, each.zero_dates, changes.rebuild)
            )
    return done, holds | blocked


def _rename(run: FeedRun, now: Identifier, wanted: Identifier) -> None:
    # A table may be the first to move into its database.
    run.lake.ensure_namespace(wanted.namespace)
    IcebergJavaApi(run.spark).rename(now, wanted)


def _close_dropped(run: FeedRun, tables: CurrentTables, lives: Mapping[str, Incarnation], holds: Holds) -> Holds:
    """Tables that are held and were dropped meanwhile stay as they are: nothing waits for them any more."""
    dropped = [id for id in holds.reasons if id in lives and lives[id].dropped_ts is not None]
    for id in dropped:
        state = tables.find(lives[id])
        if state is not None and state.dropped_ts is None:
            run.log.warning("table %s was dropped while it was held: %s", state.name, holds.reasons[id])
            IcebergJavaApi(run.spark).evolve(state.identifier, (), {DROPPED_TS: str(lives[id].dropped_ts)})
    return holds.without(dropped)


def _stage_all(
    run: FeedRun,
    tables: CurrentTables,
    staging: Staging,
    changed: Sequence[TableChanges],
    latest: Mapping[int, LatestChanges],
) -> tuple[list[_Staged], Holds]:
    """Stage all tables side by side; those that fail are held and leave nothing behind."""

    def one(changes: TableChanges) -> StagedUpdate | str:
        name = changes.target.name
        run.spark.sparkContext.setLocalProperty("spark.scheduler.pool", str(name))
        try:
            return stage_table(run, tables, staging, changes, latest[changes.number])
        except CdcError as error:
            return str(error)
        except Exception as error:  # One bad table never stops the others, whatever is wrong with it.
            run.log.exception("table %s could not be staged", name)
            return f"the table could not be written: {type(error).__name__} {str(error).partition(chr(10))[0]}"

    with ThreadPoolExecutor(_TABLES_AT_ONCE) as pool:
        results = list(pool.map(inheritable_thread_target(run.spark)(one), changed))
    staged: list[_Staged] = []
    rejected: list[Rejected] = []
    reasons: dict[str, str] = {}
    for changes, result in zip(changed, results, strict=True):
        if isinstance(result, str):
            reasons[changes.life.id] = result
            continue
        if result.rejected:
            rejected += result.rejected
            count, first = sum(row.count for row in result.rejected), result.rejected[0]
            reason = f"{count} rows do not fit the table's columns, the first at {first.segment} line {first.line}"
            if not result.update.skips_rejected:
                reasons[changes.life.id] = reason
                staging.discard(result.update)
                continue
            run.log.warning("table %s goes on without rows: %s", changes.target.name, reason)
        staged.append((changes, result))
    _quarantine_rows(run, staged, rejected)
    return staged, Holds(reasons)


def _quarantine_rows(run: FeedRun, staged: Sequence[_Staged], rejected: Sequence[Rejected]) -> None:
    """Rows that their tables cannot take; earlier ones that are taken now, or are no more, are resolved.

    To be called before anything is published: a row that its table passes by must not be lost where a run ends."""
    of_table = {(changes.target.name.database, changes.target.name.table): (changes, each) for changes, each in staged}

    def tried_again(row: Quarantined) -> bool:
        found = of_table.get((row.database or "", row.table or ""))
        if row.error_class != BAD_VALUE or found is None:
            return False
        changes, each = found
        # A table that goes on without its bad rows has passed them by.
        redecoded = row.segment in {segment.segment for segment in changes.redecoded}
        return redecoded or changes.rebuild or not each.update.skips_rejected

    run.quarantine.replace(tried_again, rejected, run.clock())
