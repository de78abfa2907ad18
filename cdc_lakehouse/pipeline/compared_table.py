"""How a table is read in the source and in the lake, to compare both as of a cut."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot

from cdc_lakehouse.changelog.history import Incarnation
from cdc_lakehouse.changelog.mysql_types import ColumnType
from cdc_lakehouse.changelog.row_texts import Form, form_of
from cdc_lakehouse.changelog.schema import Column, TableName, TableVersion, quoted
from cdc_lakehouse.errors import PermanentError
from cdc_lakehouse.lake.current.changed_keys import KeyColumn
from cdc_lakehouse.lake.current.row_checksums import LakeRows, LakeValue
from cdc_lakehouse.lake.current.row_texts import value_text as lake_text
from cdc_lakehouse.lake.current.tables import CurrentTables, iceberg_name
from cdc_lakehouse.lake.current.typed_rows import lake_name
from cdc_lakehouse.lake.data_files import column as column_of_field
from cdc_lakehouse.lake.properties import FEED, INCARNATION
from cdc_lakehouse.lake.tables.checkpoints import CutRow
from cdc_lakehouse.pipeline.row_differences import ComparedColumns
from cdc_lakehouse.pipeline.row_keys import key_columns
from cdc_lakehouse.pipeline.run import FeedRun
from cdc_lakehouse.sources.database.client import SourceDatabase
from cdc_lakehouse.sources.database.row_texts import value_text as source_text
from cdc_lakehouse.sources.database.statements import ComparedColumn, ComparedTable

_ROWS_OF_A_BUCKET: Final = 4000
_MOST_BUCKETS: Final = 1 << 20


class NotComparableError(PermanentError):
    """The table cannot be compared in its current state."""

    default_advice = "run the feed, then verify again"


@dataclass(frozen=True)
class Sides:
    """A table on both sides. `key` are the columns of its key, `left_out` the columns that are not compared, with the
    reasons."""

    life: Incarnation
    source: ComparedTable
    lake: LakeRows
    columns: ComparedColumns
    key: tuple[KeyColumn, ...]
    left_out: Mapping[str, str]

    @property
    def buckets(self) -> int:
        return self.source.buckets


def sides_of(run: FeedRun, database: SourceDatabase, name: TableName, buckets: int | None = None) -> Sides:
    """Return both sides of the table: in the last cut, and in the current state of the database. `buckets` is their
    number, None for one that suits the table's size. Raises `NotComparableError`."""
    checkpoint_ts = run.last_cut.checkpoint_ts
    row = _cut_row(run, name, checkpoint_ts)
    life = _life(run, name, checkpoint_ts)
    table, snapshot, schema = _snapshot(run, name, life, row)
    if buckets is None:
        rows = max(row.row_count, database.estimated_rows(name))
        buckets = min(max(1, math.ceil(rows / _ROWS_OF_A_BUCKET)), _MOST_BUCKETS)
    compared, left_out = _compared(database, life.last)
    key = _key(run, life.last, compared)
    ordered = [*key, *(each for each in compared if each not in key)]
    value_format = run.value_format(life.last)
    fields = {field.name: field for field in schema.fields}
    missing = [lake_name(each.own) for each in ordered if lake_name(each.own) not in fields]
    if missing:
        raise NotComparableError(f"the lake's table has no column {', '.join(missing)}")
    texts = [
        ComparedColumn(
            each.own.name,
            source_text(quoted(each.declared), each.type, zero_dates=value_format.zero_dates),
            each.form,
        )
        for each in ordered
    ]
    values: list[LakeValue] = []
    for each in ordered:
        field = fields[lake_name(each.own)]
        value = column_of_field(field.field_id)
        text = lake_text(value, each.type, iceberg_name(field.field_type), value_format)
        values.append(LakeValue(field.field_id, text, each.form))
    return Sides(
        life,
        ComparedTable(name, tuple(texts), len(key), buckets),
        LakeRows(table, snapshot, schema, tuple(values), len(key), buckets),
        ComparedColumns(tuple(each.own.name for each in ordered), tuple(each.type for each in ordered), len(key)),
        tuple(KeyColumn(each.own.name, each.own.type, each.type, each.form) for each in key),
        left_out,
    )


def _cut_row(run: FeedRun, name: TableName, checkpoint_ts: int) -> CutRow:
    for row in run.checkpoints.rows(checkpoint_ts):
        if (row.database, row.table) == (name.database, name.table):
            return row
    raise NotComparableError("it is not in the last cut any more")


def _life(run: FeedRun, name: TableName, checkpoint_ts: int) -> Incarnation:
    lives = run.history.history.incarnations().values()
    found = [life for whole in lives if (life := whole.upto(checkpoint_ts)) and life.last.name == name]
    alive = [life for life in found if life.dropped_ts is None]
    if not alive:
        raise NotComparableError("the schema history does not know it")
    return alive[-1]


def _snapshot(run: FeedRun, name: TableName, life: Incarnation, row: CutRow) -> tuple[Table, Snapshot | None, Schema]:
    """Return the table, its snapshot in the cut (None for no rows), and the schema to read the snapshot with."""
    tables = CurrentTables(run.lake, run.feed)
    identifier = tables.identifier(name)
    table = tables.load(identifier)
    if table is None or (table.properties.get(FEED), table.properties.get(INCARNATION)) != (run.feed.name, life.id):
        raise NotComparableError(f"the lake has no table {identifier} of it")
    if row.snapshot_id is None:
        return table, None, table.schema()
    snapshot = table.snapshot_by_id(row.snapshot_id)
    if snapshot is None:
        raise NotComparableError("the snapshot of the cut has expired")
    # A change of only the schema makes no snapshot: the current snapshot is read with the table's current schema.
    if snapshot.schema_id is None or row.snapshot_id == table.metadata.current_snapshot_id:
        return table, snapshot, table.schema()
    return table, snapshot, table.schemas()[snapshot.schema_id]


@dataclass(frozen=True)
class _Compared:
    """A compared column: the schema history's column, its name and type in the database, and its form in a row's
    text."""

    own: Column
    declared: str
    type: ColumnType
    form: Form


def _compared(database: SourceDatabase, version: TableVersion) -> tuple[list[_Compared], dict[str, str]]:
    """Return the columns that can be compared, and the others with the reasons. Raises `NotComparableError` when the
    columns of both sides differ."""
    declared = {each.name.lower(): each for each in database.columns(version.name)}
    if not declared:
        raise NotComparableError("the source has no such table", advice="or the user may not SELECT from it")
    absent = [column.name for column in version.columns if column.name.lower() not in declared]
    known = {column.name.lower() for column in version.columns}
    new = [each.name for name, each in declared.items() if name not in known]
    if absent or new:
        sides = (("the lake", absent), ("the source", new))
        alone = "; ".join(f"{side} alone has {', '.join(names)}" for side, names in sides if names)
        raise NotComparableError(f"the columns differ: {alone}", advice="DDL may be on its way: verify again later")
    compared: list[_Compared] = []
    left_out: dict[str, str] = {}
    for column in version.columns:
        found = declared[column.name.lower()]
        form = None if found.type is None else form_of(found.type)
        if not column.carried or found.virtual:
            left_out[column.name] = "virtual: rows of the log do not have it"
        elif found.type is None or form is None:
            name = column.type.name if found.type is None else found.type.name
            left_out[column.name] = f"type {name}: no text of it is known that is the same on both sides"
        else:
            compared.append(_Compared(column, found.name, found.type, form))
    return compared, left_out


def _key(run: FeedRun, version: TableVersion, compared: Sequence[_Compared]) -> list[_Compared]:
    by_id = {each.own.id: each for each in compared}
    columns = key_columns(run.feed, version)
    if not columns:
        raise NotComparableError("it has no key", advice="set primary_key in its tables.settings")
    unfit = [column.name for column in columns if column.id not in by_id]
    if unfit:
        raise NotComparableError(f"{', '.join(unfit)} of its key cannot be compared", advice="compare it by hand")
    return [by_id[column.id] for column in columns]
