"""Step 4, current: every table's rows as of the checkpoint-ts.

Tables are chosen by what is new for them, the winners among their events are found once for all, then each table is
staged on its own branch, side by side, and all that went well are published one after the other within moments."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Final

from pyspark import inheritable_thread_target

from cdc_lakehouse.changelog.history import Incarnation
from cdc_lakehouse.changelog.positions import BEGINNING
from cdc_lakehouse.decoders.problems import BAD_VALUE, Rejected
from cdc_lakehouse.errors import CdcError
from cdc_lakehouse.lake.current.latest_changes import Winners
from cdc_lakehouse.lake.current.staging import Staging
from cdc_lakehouse.lake.current.tables import CurrentTables, TableState
from cdc_lakehouse.lake.iceberg_java import TableApi
from cdc_lakehouse.lake.names import Identifier
from cdc_lakehouse.lake.properties import CHECKPOINT_TS, DROPPED_TS, of_batch
from cdc_lakehouse.lake.tables.quarantine import Quarantined
from cdc_lakehouse.pipeline.approval import hold_unapproved
from cdc_lakehouse.pipeline.changed_keys import find_touched
from cdc_lakehouse.pipeline.holds import find_holds
from cdc_lakehouse.pipeline.moved_rows import restate
from cdc_lakehouse.pipeline.run import FeedRun
from cdc_lakehouse.pipeline.table_changes import Work, find_work
from cdc_lakehouse.pipeline.table_renames import Placed, settle_names
from cdc_lakehouse.pipeline.table_update import Prepared, prepare, publish, stage

_TABLES_AT_ONCE: Final = 8


@dataclass(frozen=True)
class AppliedTable:
    """One table's part of a run: rows written, keys deleted, zero dates that became NULL, and whether the table was
    worked out anew from all events."""

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
    lives = {
        id: life
        for id, whole in run.history.history.incarnations().items()
        if (life := whole.upto(upto)) is not None and _taken(run, life)
    }
    held = find_holds(run, lives, upto)
    if upto == BEGINNING:
        return Applied(upto, lives, (), held)
    hold_unapproved(run, lives, held)
    restate(run, lives, held)
    tables = CurrentTables(run.lake, run.feed)
    work = [replace(each, number=n) for n, each in enumerate(find_work(run, tables, lives, held, upto))]
    _close_dropped(run, tables, lives, held)
    done: list[AppliedTable] = []
    if work:
        done = _carry_out(run, tables, lives, work, held)
    return Applied(upto, lives, tuple(done), held)


def _taken(run: FeedRun, life: Incarnation) -> bool:
    return run.feed.tables.takes(life.last.name.database, life.last.name.table)


def _carry_out(
    run: FeedRun,
    tables: CurrentTables,
    lives: Mapping[str, Incarnation],
    work: Sequence[Work],
    held: dict[str, str],
) -> list[AppliedTable]:
    upto = work[0].upto
    staging = Staging(run.spark, {CHECKPOINT_TS: str(upto), **of_batch(run.segments.batch)})
    work, winners = find_touched(run, work)
    try:
        with staging:
            prepared = _stage_all(run, tables, staging, work, winners, held)
    finally:
        for each in {id(found): found for found in winners.values()}.values():
            each.frame.unpersist()
    for each in prepared:
        publish(run, staging, each)
    _close_dropped(run, tables, lives, held)
    placed = [Placed(each.work.life, each.identifier, each.wanted) for each in prepared]
    blocked = settle_names(tables, placed, lives, functools.partial(_rename, run))
    held |= blocked
    done: list[AppliedTable] = []
    for each in prepared:
        state = tables.find(each.work.life)
        assert state is not None, each.identifier
        if each.work.life.id not in blocked:
            done.append(_applied(each, state))
    return done


def _rename(run: FeedRun, now: Identifier, wanted: Identifier) -> None:
    # A table may be the first to move into its database.
    run.lake.ensure_namespace(wanted.namespace)
    TableApi(run.spark).rename(now, wanted)


def _close_dropped(run: FeedRun, tables: CurrentTables, lives: Mapping[str, Incarnation], held: dict[str, str]) -> None:
    """Tables that cannot go on and were dropped meanwhile stay as they are: nothing waits for them any more."""
    for id in [id for id in held if id in lives and lives[id].dropped_ts is not None]:
        state = tables.find(lives[id])
        if state is not None and state.dropped_ts is None:
            run.log.warning("table %s was dropped while it was held: %s", state.name, held[id])
            TableApi(run.spark).evolve(state.identifier, (), {DROPPED_TS: str(lives[id].dropped_ts)})
        del held[id]


def _applied(prepared: Prepared, state: TableState) -> AppliedTable:
    return AppliedTable(
        life=prepared.work.life,
        state=state,
        key=tuple(column.name for column in prepared.work.key),
        upserts=prepared.staged.appended,
        deletes=prepared.deletes,
        zero_dates=prepared.staged.zero_dates,
        rebuilt=prepared.work.rebuild,
    )


def _stage_all(
    run: FeedRun,
    tables: CurrentTables,
    staging: Staging,
    work: Sequence[Work],
    winners: Mapping[int, Winners],
    held: dict[str, str],
) -> list[Prepared]:
    """Stage all tables side by side; those that fail are held and leave nothing behind."""

    def one(each: Work) -> Prepared | str:
        run.spark.sparkContext.setLocalProperty("spark.scheduler.pool", str(each.target.name))
        try:
            prepared = prepare(run, tables, each, winners[each.number])
            return stage(run, staging, prepared, winners[each.number])
        except CdcError as error:
            return str(error)
        except Exception as error:  # One bad table never stops the others, whatever is wrong with it.
            run.log.exception("table %s could not be staged", each.target.name)
            return f"the table could not be written: {type(error).__name__} {str(error).partition(chr(10))[0]}"

    with ThreadPoolExecutor(_TABLES_AT_ONCE) as pool:
        results = list(pool.map(inheritable_thread_target(run.spark)(one), work))
    prepared: list[Prepared] = []
    rejected: list[Rejected] = []
    for each, result in zip(work, results, strict=True):
        if isinstance(result, str):
            held[each.life.id] = result
            continue
        if result.staged.faults:
            faults = result.staged.faults
            rejected += faults
            count, first = sum(fault.count for fault in faults), faults[0]
            reason = f"{count} rows do not fit the table's columns, the first at {first.segment} line {first.line}"
            if not result.batch.skips_faults:
                held[each.life.id] = reason
                staging.abandon(result.identifier, result.plan.staged)
                continue
            run.log.warning("table %s goes on without rows: %s", each.target.name, reason)
        prepared.append(result)
    _quarantine_rows(run, prepared, rejected)
    return prepared


def _quarantine_rows(run: FeedRun, prepared: Sequence[Prepared], rejected: Sequence[Rejected]) -> None:
    """Rows that their tables cannot take; earlier ones that are taken now, or are no more, are resolved.

    To be called before anything is published: a row that its table passes by must not be lost where a run ends."""
    of_table = {(each.work.target.name.database, each.work.target.name.table): each for each in prepared}
    redecoded = {name: {segment.segment for segment in each.work.again} for name, each in of_table.items()}

    def tried_again(row: Quarantined) -> bool:
        name = (row.database or "", row.table or "")
        each = of_table.get(name)
        if row.error_class != BAD_VALUE or each is None:
            return False
        # A table that goes on without its bad rows has passed them by.
        return row.segment in redecoded[name] or each.work.rebuild or not each.batch.skips_faults

    run.quarantine.replace(tried_again, rejected, run.clock())
