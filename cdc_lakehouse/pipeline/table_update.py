"""The update of one table: planned before the job that computes it, committed after it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from pyiceberg.io import load_file_io
from pyiceberg.schema import Schema
from pyiceberg.table import Table

from cdc_lakehouse.changelog.history import Incarnation
from cdc_lakehouse.changelog.mysql_types import converts
from cdc_lakehouse.changelog.schema import TableVersion
from cdc_lakehouse.errors import ConcurrentRunError, TransientError
from cdc_lakehouse.lake.current.cut_tags import plan_tags, shown_state, tags_of
from cdc_lakehouse.lake.current.schema_plan import Plan, plan_evolution
from cdc_lakehouse.lake.current.tables import CurrentTables, TableState, column_names, schema_fingerprint, state_of
from cdc_lakehouse.lake.current.typed_rows import COMMIT_TS, Target, lake_columns, lake_name
from cdc_lakehouse.lake.current.update_job import PlannedTable, UpdatedTable
from cdc_lakehouse.lake.current.update_tasks import StoredTable, TableUpdate
from cdc_lakehouse.lake.current.value_parsing import ValueFormat
from cdc_lakehouse.lake.data_files import live_files
from cdc_lakehouse.lake.iceberg_java import TableTransaction
from cdc_lakehouse.lake.names import Identifier
from cdc_lakehouse.lake.properties import (
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
    of_batch,
)
from cdc_lakehouse.lake.row_deletes import FIRST_WITH_VECTORS, delete_rows
from cdc_lakehouse.lake.table_operations import NO_TAG_CHANGES, TagChanges
from cdc_lakehouse.pipeline.run import FeedRun
from cdc_lakehouse.pipeline.table_changes import TableChanges
from cdc_lakehouse.pipeline.table_renames import TableLocation


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
    value_format = run.value_format(changes.target)
    state = changes.state or _create(run, tables, changes, value_format)
    table = run.lake.existing(state.identifier)
    target = target_of(changes.life)
    wanted = run.feed.format_version_of(changes.target.name.database, changes.target.name.table)
    format_version = max(wanted, state.format_version)
    plan = _evolution(changes, state, target, value_format, format_version)
    transaction, schema = None, table.schema()
    is_upgraded = state.format_version < format_version
    if plan.steps or is_upgraded:
        transaction = run.iceberg.transaction(state.identifier, state.snapshot_id)
        if is_upgraded:
            transaction.upgrade(format_version)
        transaction.change_schema(plan.steps)
        schema = Schema.model_validate_json(transaction.schema_json())
    stays = bool(state.row_count) and not changes.replaces_all_rows
    key = changes.table_key(value_format)
    update = TableUpdate(
        table_no=changes.number,
        name=str(changes.target.name),
        target=target,
        key=key.read_as,
        value_format=value_format,
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
    changes: TableChanges, state: TableState, target: Target, value_format: ValueFormat, format_version: int
) -> Plan:
    columns = lake_columns(target.columns, value_format)
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
    fingerprint = schema_fingerprint(changes.life, run.value_format(changes.target))
    stays = not planned.replaces_all
    deletes = bool(updated.deleted) if stays else bool(state.row_count)
    same = changes.state is not None and fingerprint == changes.state.schema_fingerprint
    same = same and (state.dropped_ts is None) == (changes.life.dropped_ts is None)
    changes_rows = bool(updated.files or deletes or planned.plan.steps)
    if same and not (changes_rows or planned.is_upgraded):
        return
    _audit(planned, updated)
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


def _audit(planned: PlannedUpdate, updated: UpdatedTable) -> None:
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


def _create(run: FeedRun, tables: CurrentTables, changes: TableChanges, value_format: ValueFormat) -> TableState:
    """Create an empty table with the columns of the target, under a parking name while another table has its name.
    Raises `ConcurrentRunError` when another run has created it meanwhile: both would share a directory of files."""
    name = changes.target.name
    if tables.find(changes.life) is not None:
        raise ConcurrentRunError(f"another run has made the table {name}", advice="run again")
    wanted = tables.identifier(name)
    run.lake.ensure_namespace(wanted.namespace)
    columns = lake_columns(changes.target.carried, value_format)
    identifier = wanted if tables.is_free(wanted) else tables.parking_identifier(changes.life, name)
    run.iceberg.create(
        identifier,
        [*((column.name, column.type) for column in columns), (COMMIT_TS, "long")],
        tables.location(changes.life, name),
        {
            **tables.first_properties(changes.life),
            COLUMNS: column_names({column.id: column.name for column in columns}),
        },
    )
    return state_of(identifier, run.lake.existing(identifier))


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
