"""A machinery table of few rows: read and written whole by PyIceberg, in tens of milliseconds and without a JVM."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyiceberg.exceptions import CommitFailedException, TableAlreadyExistsError
from pyiceberg.expressions import And, BooleanExpression, EqualTo, GreaterThanOrEqual, In, IsNull, LessThanOrEqual
from pyiceberg.table import Table, Transaction

from cdc_lakehouse.errors import ConcurrentRunError
from cdc_lakehouse.lake.catalog import Lake, system_table

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

# Nothing to replace is nothing to tell.
warnings.filterwarnings("ignore", message="Delete operation did not match any records")

_PROPERTIES: Final = {
    "format-version": "2",
    "write.parquet.compression-codec": "zstd",
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "20",
    # A lost race must be seen: only one run of a feed may be active.
    "commit.retry.num-retries": "0",
}


def equal(column: str, value: str | int) -> BooleanExpression:
    """Rows whose column is a value."""
    predicate: Any = EqualTo  # PyIceberg's models hide their arguments from type checkers.
    return predicate(column, value)


def between(column: str, least: str, greatest: str) -> BooleanExpression:
    """Rows whose column is in a range, both ends with it."""
    at_least: Any = GreaterThanOrEqual
    at_most: Any = LessThanOrEqual
    return And(at_least(column, least), at_most(column, greatest))


def missing(column: str) -> BooleanExpression:
    """Rows whose column is NULL."""
    predicate: Any = IsNull
    return predicate(column)


def among(column: str, values: Collection[str]) -> BooleanExpression:
    """Rows whose column is one of the values."""
    predicate: Any = In
    return predicate(column, values)


class SmallTable:
    """Loaded once; what it writes goes on top of what it read, else `ConcurrentRunError`."""

    def __init__(self, lake: Lake, feed: str, name: str, schema: pa.Schema) -> None:
        self._lake = lake
        self._identifier = system_table(feed, name)
        self._schema = schema
        self._table: Table | None = None
        self._looked = False

    @property
    def table(self) -> Table | None:
        # That it was not there is kept as well: what another run makes meanwhile is not ours to write to.
        if not self._looked:
            self._table = self._lake.load(self._identifier)
            self._looked = True
        return self._table

    def scan(self, **scan: Any) -> pa.Table:
        """Rows as columns, all or those of PyIceberg's scan arguments; none when the table is not there yet.

        Columns are those of the schema, in its order; one that an older table lacks is NULL.
        """
        if self.table is None:
            return self._schema.empty_table()
        stored = {field.name for field in self.table.schema().fields}
        names = [name for name in self._schema.names if name in stored]
        arrow = self.table.scan(selected_fields=tuple(names), **scan).to_arrow().select(names)
        for position, field in enumerate(self._schema):
            if field.name not in stored:
                arrow = arrow.add_column(position, field.with_nullable(True), pa.nulls(len(arrow), field.type))
        return arrow

    def read(self, **scan: Any) -> list[dict[str, Any]]:
        """Rows of `scan` by column name."""
        return self.scan(**scan).to_pylist()

    def properties(self) -> Mapping[str, str]:
        """Snapshot properties of the newest snapshot."""
        snapshot = None if self.table is None else self.table.current_snapshot()
        if snapshot is None or snapshot.summary is None:
            return {}
        return snapshot.summary.additional_properties

    def write(
        self,
        rows: Iterable[DataclassInstance] | pa.Table,
        *,
        replacing: BooleanExpression | None = None,
        properties: Mapping[str, str] | None = None,
    ) -> None:
        """Add rows in one commit, in the place of those that match `replacing`.

        A table that older code made gets the columns that it lacks in the same commit.
        """
        if not isinstance(rows, pa.Table):
            rows = pa.Table.from_pylist([asdict(row) for row in rows], schema=self._schema)
        table = self._ensure()
        try:
            with table.transaction() as transaction:
                self._evolve(transaction)
                if replacing is not None:
                    transaction.delete(replacing, snapshot_properties=dict(properties or {}))
                transaction.append(rows, snapshot_properties=dict(properties or {}))
        except CommitFailedException as error:
            raise ConcurrentRunError(
                f"another run has written to {self._identifier}", advice="wait for it to end, then run again"
            ) from error

    def _evolve(self, transaction: Transaction) -> None:
        """Add the columns (and fields of structs) that the table lacks; those that are no longer written stay."""
        stored = {field.name: field for field in transaction.table_metadata.schema().fields}
        # Rows from before have no value for a new column: it is optional, whatever the schema says of new rows.
        schema = pa.schema([f if f.name in stored else f.with_nullable(True) for f in self._schema])
        with transaction.update_schema() as update:
            update.union_by_name(schema)
            for name in stored.keys() - set(schema.names):
                update.make_column_optional(name)

    def _ensure(self) -> Table:
        if self.table is None:
            self._lake.ensure_namespace(self._identifier.namespace)
            try:
                self._table = self._lake.catalog.create_table(
                    self._identifier.parts, self._schema, properties=_PROPERTIES
                )
            except TableAlreadyExistsError as error:
                raise ConcurrentRunError(f"another run has just made {self._identifier}") from error
        assert self._table is not None
        return self._table
