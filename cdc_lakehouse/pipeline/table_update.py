"""One table of a run: made ready, staged, published."""

from __future__ import annotations

import json
import threading
from dataclasses import dataclass, replace
from typing import Final

from cdc_lakehouse.changelog.history import Incarnation
from cdc_lakehouse.changelog.schema import TableVersion
from cdc_lakehouse.changelog.type_changes import converts
from cdc_lakehouse.errors import TableHeldError
from cdc_lakehouse.lake.current.latest_changes import Winners
from cdc_lakehouse.lake.current.schema_plan import Drop, Plan, plan_evolution
from cdc_lakehouse.lake.current.staging import NOTHING_STAGED, Batch, Staged, Staging, target_columns
from cdc_lakehouse.lake.current.tables import CurrentTables, TableState, column_names, lineage
from cdc_lakehouse.lake.current.typed_rows import COMMIT_TS, Target, types_since
from cdc_lakehouse.lake.current.value_parsing import Reading
from cdc_lakehouse.lake.iceberg_java import TableApi
from cdc_lakehouse.lake.names import Identifier
from cdc_lakehouse.lake.properties import (
    APPLIED_BATCH,
    APPLIED_TS,
    COLUMNS,
    DATABASE,
    DROPPED_TS,
    KEY,
    KEYS_TOUCHED,
    LINEAGE,
    STAGED,
    TABLE,
)
from cdc_lakehouse.pipeline.run import FeedRun
from cdc_lakehouse.pipeline.table_changes import Work

_CREATING: Final = threading.Lock()


@dataclass(frozen=True)
class Prepared:
    """A table's work with the plan for it. `wanted` is where the table should be, `identifier` where it is."""

    work: Work
    identifier: Identifier
    wanted: Identifier
    plan: Plan
    batch: Batch
    touched: int
    deletes: int
    staged: Staged = NOTHING_STAGED


def prepare(run: FeedRun, tables: CurrentTables, work: Work, winners: Winners) -> Prepared:
    """Plan the table's schema and rows; makes the table when it is not there yet."""
    if work.number in winners.without_key:
        raise TableHeldError("events lack a column of the table's key")
    if any(column.name == COMMIT_TS for column in work.target.columns):
        raise TableHeldError(f"the source has a column {COMMIT_TS}, the name of the lake's own column")
    reading = run.reading(work.target)
    state = work.state or _create(run, tables, work, reading)
    if state.staged:
        # An earlier run ended between staging and publishing.
        TableApi(run.spark).evolve(state.identifier, [Drop(name) for name in state.staged], {STAGED: "[]"})
        found = tables.find(work.life)
        assert found is not None
        state = found
    target = target_of(work.life)
    columns = target_columns(work.target.carried, reading)
    current = () if work.rebuild else state.columns
    if work.rebuild:
        # What the columns were is not what they were thought to be: none of them is kept.
        columns = [replace(column, initial=None) for column in columns]
    converted = frozenset() if work.cleared else converted_columns(target, work.applied)
    plan = plan_evolution(current, columns, state.order, converted)
    if work.rebuild:
        plan = _replacing_all(plan, state)
    batch = Batch(
        table_no=work.number,
        identifier=state.identifier,
        plan=plan,
        target=replace(target, names=dict(plan.names)),
        applied=work.applied,
        above=0 if work.reads_all else work.above,
        upto=work.upto,
        spans=tuple(work.spans()),
        key=work.key,
        row_count=state.row_count,
        cleared=work.cleared,
        emptied=work.emptied(0 if work.reads_all else work.above),
        emptied_now=() if work.cleared else work.emptied(work.above),
        skips_faults=run.feed.policy.quarantine == "skip",
    )
    return Prepared(
        work=work,
        identifier=state.identifier,
        wanted=_wanted(tables, work, state.identifier),
        plan=plan,
        batch=batch,
        touched=winners.touched(work.number),
        deletes=winners.deletes.get(work.number, 0),
    )


def stage(run: FeedRun, staging: Staging, prepared: Prepared, winners: Winners) -> Prepared:
    reading = run.reading(prepared.work.target)
    return replace(prepared, staged=staging.stage(prepared.batch, winners, run.events.frame(), reading))


def publish(run: FeedRun, staging: Staging, prepared: Prepared) -> None:
    """Make the batch what readers see; nothing is committed for a table that does not change."""
    work = prepared.work
    now = lineage(work.life, run.reading(work.target))
    same = work.state is not None and now == work.state.lineage
    if same and not prepared.staged.branch and not prepared.plan.changes_schema:
        return
    name = work.target.name
    properties = {
        DATABASE: name.database,
        TABLE: name.table,
        APPLIED_TS: str(work.upto),
        APPLIED_BATCH: str(run.segments.batch),
        LINEAGE: now,
        KEY: json.dumps([column.name for column in work.key], ensure_ascii=False),
        KEYS_TOUCHED: "" if work.cleared or prepared.batch.emptied_now else str(prepared.touched),
    }
    if work.life.dropped_ts is not None:
        properties[DROPPED_TS] = str(work.life.dropped_ts)
    staging.publish(prepared.batch, prepared.staged, properties)


def _create(run: FeedRun, tables: CurrentTables, work: Work, reading: Reading) -> TableState:
    """An empty table with the columns of the target, aside where its name is another table's for the moment."""
    name = work.target.name
    wanted = tables.identifier(name)
    run.lake.ensure_namespace(wanted.namespace)
    columns = target_columns(work.target.carried, reading)
    with _CREATING:  # Two tables of one run can have had the same name.
        identifier = wanted if tables.is_free(wanted) else tables.aside(work.life, name)
        TableApi(run.spark).create(
            identifier,
            [*((column.name, column.type) for column in columns), (COMMIT_TS, "long")],
            tables.location(work.life, name),
            {
                **tables.first_properties(work.life),
                COLUMNS: column_names({column.id: column.name for column in columns}),
            },
        )
    state = tables.find(work.life)
    assert state is not None, identifier
    return state


def _wanted(tables: CurrentTables, work: Work, now: Identifier) -> Identifier:
    """Where the table should be. A dropped one stays where it is until its name is needed."""
    if work.life.dropped_ts is not None:
        home = tables.identifier(work.target.name)
        return now if now == home or tables.is_free(home) is False else home
    return tables.identifier(work.target.name)


def target_of(life: Incarnation) -> Target:
    versions = dict(enumerate(life.versions))
    return Target(life.last.carried, {}, versions, tuple(versions))


def converted_columns(target: Target, applied: TableVersion) -> frozenset[int]:
    """Columns whose values in the lake change with the type, from the version that was applied to the target."""
    return frozenset(column.id for column in target.columns if converts(types_since(column.id, target, applied)))


def _replacing_all(plan: Plan, state: TableState) -> Plan:
    """A plan that was made as though no column were there: those that are go when it is published."""
    drops = tuple(Drop(column.name) for column in state.columns)
    first = plan.publish[0] if plan.publish else ()
    return replace(plan, publish=((*drops, *first), *plan.publish[1:]))
