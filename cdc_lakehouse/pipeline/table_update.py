"""The update of one table: planned, staged, published."""

from __future__ import annotations

import json
import threading
from dataclasses import replace
from typing import Final

from cdc_lakehouse.changelog.history import Incarnation
from cdc_lakehouse.changelog.mysql_types import converts
from cdc_lakehouse.changelog.schema import TableVersion
from cdc_lakehouse.errors import TableHeldError
from cdc_lakehouse.lake.current.latest_changes import LatestChanges
from cdc_lakehouse.lake.current.schema_plan import Drop, Plan, plan_evolution
from cdc_lakehouse.lake.current.staging import StagedUpdate, Staging, TableUpdate, target_columns
from cdc_lakehouse.lake.current.tables import CurrentTables, TableState, column_names, schema_fingerprint
from cdc_lakehouse.lake.current.typed_rows import COMMIT_TS, Target, types_since
from cdc_lakehouse.lake.current.value_parsing import ValueFormat
from cdc_lakehouse.lake.iceberg_java import IcebergJavaApi
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
from cdc_lakehouse.pipeline.table_changes import TableChanges
from cdc_lakehouse.pipeline.table_renames import TableLocation

_CREATING: Final = threading.Lock()


def stage_table(
    run: FeedRun, tables: CurrentTables, staging: Staging, changes: TableChanges, latest: LatestChanges
) -> StagedUpdate:
    """Plan the update of one table and stage it; makes the table when it is not there yet.

    Raises `TableHeldError` when the table cannot go on, and what writing it raises.
    """
    value_format = run.value_format(changes.target)
    update = _plan(run, tables, changes, latest, value_format)
    return staging.stage(update, latest, run.events.frame(), value_format)


def _plan(
    run: FeedRun, tables: CurrentTables, changes: TableChanges, latest: LatestChanges, value_format: ValueFormat
) -> TableUpdate:
    if changes.number in latest.without_key:
        raise TableHeldError("events lack a column of the table's key")
    if any(column.name == COMMIT_TS for column in changes.target.columns):
        raise TableHeldError(f"the source has a column {COMMIT_TS}, the name of the lake's own column")
    state = changes.state or _create(run, tables, changes, value_format)
    if state.staged:
        # An earlier run ended between staging and publishing.
        IcebergJavaApi(run.spark).evolve(state.identifier, [Drop(name) for name in state.staged], {STAGED: "[]"})
        found = tables.find(changes.life)
        assert found is not None
        state = found
    target = target_of(changes.life)
    columns = target_columns(changes.target.carried, value_format)
    current = () if changes.rebuild else state.columns
    if changes.rebuild:
        # What the columns were is not what they were thought to be: none of them is kept.
        columns = [replace(column, initial=None) for column in columns]
    converted = frozenset() if changes.replaces_all_rows else converted_columns(target, changes.applied_version)
    plan = plan_evolution(current, columns, state.order, converted)
    if changes.rebuild:
        plan = _replacing_all(plan, state)
    return TableUpdate(
        table_no=changes.number,
        identifier=state.identifier,
        plan=plan,
        target=replace(target, names=dict(plan.names)),
        applied_version=changes.applied_version,
        read_after_ts=changes.read_after_ts,
        checkpoint_ts=changes.checkpoint_ts,
        spans=tuple(changes.spans()),
        key=changes.key,
        row_count=state.row_count,
        replaces_all_rows=changes.replaces_all_rows,
        emptied=changes.emptied(changes.read_after_ts),
        emptied_now=() if changes.replaces_all_rows else changes.emptied(changes.applied_ts),
        skips_rejected=run.feed.policy.quarantine == "skip",
    )


def publish(
    run: FeedRun, staging: Staging, changes: TableChanges, staged: StagedUpdate, changed_key_count: int
) -> None:
    """Make the update what readers see; nothing is committed for a table that does not change."""
    update = staged.update
    fingerprint = schema_fingerprint(changes.life, run.value_format(changes.target))
    same = changes.state is not None and fingerprint == changes.state.schema_fingerprint
    if same and not staged.branch and not update.plan.changes_schema:
        return
    name = changes.target.name
    properties = {
        DATABASE: name.database,
        TABLE: name.table,
        APPLIED_TS: str(changes.checkpoint_ts),
        APPLIED_BATCH: str(run.segments.batch),
        LINEAGE: fingerprint,
        KEY: json.dumps([column.name for column in changes.key], ensure_ascii=False),
        KEYS_TOUCHED: "" if changes.replaces_all_rows or update.emptied_now else str(changed_key_count),
    }
    if changes.life.dropped_ts is not None:
        properties[DROPPED_TS] = str(changes.life.dropped_ts)
    staging.publish(staged, properties)


def _create(run: FeedRun, tables: CurrentTables, changes: TableChanges, value_format: ValueFormat) -> TableState:
    """An empty table with the columns of the target, parked where its name is another table's for the moment."""
    name = changes.target.name
    wanted = tables.identifier(name)
    run.lake.ensure_namespace(wanted.namespace)
    columns = target_columns(changes.target.carried, value_format)
    with _CREATING:  # Two tables of one run can have had the same name.
        identifier = wanted if tables.is_free(wanted) else tables.parking_identifier(changes.life, name)
        IcebergJavaApi(run.spark).create(
            identifier,
            [*((column.name, column.type) for column in columns), (COMMIT_TS, "long")],
            tables.location(changes.life, name),
            {
                **tables.first_properties(changes.life),
                COLUMNS: column_names({column.id: column.name for column in columns}),
            },
        )
    state = tables.find(changes.life)
    assert state is not None, identifier
    return state


def location_of(tables: CurrentTables, changes: TableChanges, now: Identifier) -> TableLocation:
    """Where the table is, and where it should be. A dropped one stays where it is until its name is needed."""
    home = tables.identifier(changes.target.name)
    stays = changes.life.dropped_ts is not None and (now == home or not tables.is_free(home))
    return TableLocation(changes.life, now, now if stays else home)


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
