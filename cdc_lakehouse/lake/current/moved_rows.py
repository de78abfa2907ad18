"""Rows that a DDL moves, as synthetic events of its commit-ts under the version that it made.

The source sends no row changes for them: an EXCHANGE PARTITION moves rows between tables, a change of the primary key
makes other columns tell one row from another. As events they are folded, decoded again and rebuilt like all others.
Values are copied as text where the column's type stayed; where it did not, they are converted and written as the source
would have."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from cdc_lakehouse import duckdb_sql as sql
from cdc_lakehouse.changelog.mysql_types import converts
from cdc_lakehouse.changelog.schema import Column, TableVersion
from cdc_lakehouse.decoders.event_schema import NEW_EVENTS, SYNTHETIC
from cdc_lakehouse.decoders.files.tasks import TaskError
from cdc_lakehouse.errors import CdcError
from cdc_lakehouse.lake.current import value_parsing
from cdc_lakehouse.lake.current.latest_changes import latest_changes
from cdc_lakehouse.lake.current.typed_rows import Target, any_of, default_value, row_images, value_now
from cdc_lakehouse.lake.current.update_tasks import EmptiedPartition
from cdc_lakehouse.lake.current.value_parsing import ValueFormat

_compute: Any = pc  # What its functions take is hidden from type checkers.
_LIVE_ROWS: Final = "commit_ts bigint, before string, after string, partial boolean, exchanged boolean"


def rows_at(keyed: DataFrame, reader: LiveRows) -> DataFrame:
    """The rows that are live after the keyed events of one table, without those of emptied partitions.

    Columns: commit_ts bigint; before string, the row's image where it goes to another table, and after string, its
    image where it goes to; partial boolean, whether the event leaves columns out; exchanged boolean, whether the row is
    in the partition that is exchanged. Tasks raise `TableHeldError` for events without their key.
    """
    return keyed.repartition("key").mapInArrow(reader, _LIVE_ROWS)


@dataclass(frozen=True)
class LiveRows:
    """Reads all keyed events of its keys as the rows that they leave, in tasks: see `rows_at`. `width` is the number of
    the key's parts. `other` is the table that the rows go to, None where they stay: tables that exchange rows have the
    same columns, by their places."""

    width: int
    target: Target
    other: TableVersion | None
    emptied: tuple[EmptiedPartition, ...]
    exchanged: EmptiedPartition | None
    value_format: ValueFormat

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with sql.database() as connection:
            read = list(batches)
            if not read:
                return
            events = pa.Table.from_batches(read)
            try:
                latest = events.take(pa.array(latest_changes(connection, events, self.width)))
            except CdcError as error:
                raise TaskError(error) from None
            live = latest.filter(latest.column("upsert"))
            for number in _compute.unique(live.column("version_no")).to_pylist():
                yield from self._rows(connection, number, live.filter(pc.field("version_no") == number)).to_batches()

    def _rows(self, connection: Any, number: int, events: pa.Table) -> pa.Table:
        version = self.target.versions[number]
        images = row_images(connection, events, version, {column.id for column in version.columns})
        texts = {**images.texts, "commit_ts": events.column("commit_ts"), "partial": images.absent}
        return sql.query(connection, self._query(version), texts=pa.table(texts))

    def _query(self, version: TableVersion) -> str:
        """`x<id>`, the text of each column, and what is asked of a row, over `t<id>`: see `typed_rows`."""
        values: list[str] = []
        typed: list[str] = []
        texts: list[str] = []
        for column in self.target.columns:
            id, own = column.id, version.column(column.id)
            types = self.target.types_since(id, version)
            if own is not None and own.carried and not converts(types):
                texts.append(f"t{id} AS x{id}")
                continue
            if own is None or not own.carried:
                typed.append(f"{default_value(column, self.target, self.value_format)} AS u{id}")
            else:
                values.append(f"{value_parsing.value(f't{id}', own.type, self.value_format)} AS v{id}")
                typed.append(f"{value_now(column, version, types, self.target, self.value_format)} AS u{id}")
            texts.append(f"{value_parsing.text(f'u{id}', column.type, self.value_format)} AS x{id}")
        query = "texts"
        for expressions in (values, typed, texts):
            query = f"(SELECT {', '.join(['*', *expressions])} FROM {query})"
        gone = any_of(each.took(_typed_column) for each in self.emptied)
        exchanged = "false" if self.exchanged is None else self.exchanged.condition(_typed_column)
        parts = [
            f"{value_parsing.value(f'x{c.id}', c.type, self.value_format)} AS p{c.id}" for c in self._tested_columns()
        ]
        own = self._image(self.target.columns)
        leaves, comes = (sql.NULL, own) if self.other is None else (own, self._image(self.other.carried))
        return (
            f"SELECT commit_ts, CAST({leaves} AS VARCHAR) AS before, CAST({comes} AS VARCHAR) AS after, partial, "
            f"{exchanged} AS exchanged FROM (SELECT {', '.join(['*', *parts])} FROM {query}) WHERE NOT {gone}"
        )

    def _image(self, columns: Sequence[Column]) -> str:
        """The row's image under the names of these columns."""
        texts = zip(columns, self.target.columns, strict=True)
        members = [f"{sql.text_literal(named.name)}, x{column.id}" for named, column in texts]
        return f"json_object({', '.join(members)})"

    def _tested_columns(self) -> Sequence[Column]:
        return self.target.columns if self.emptied or self.exchanged is not None else ()


def _typed_column(column_id: int) -> str:
    return f"p{column_id}"


def synthetic_events(rows: DataFrame, op: Literal["I", "D"], version: TableVersion, segment: str) -> DataFrame:
    """Live rows as events at a version's DDL, with the columns of `NEW_EVENTS`: INSERTs into the table that they go to,
    DELETEs from the one that they leave."""
    nothing = F.lit(None).cast("string")
    values = {
        "feed_date": nothing,
        "schema_name": F.lit(version.name.database),
        "table_name": F.lit(version.name.table),
        "table_version": F.lit(version.commit_ts).cast("bigint"),
        "physical_partition": F.lit(None).cast("bigint"),
        "op": F.lit(op),
        "commit_ts": F.lit(version.commit_ts).cast("bigint"),
        "before": F.col("before") if op == "D" else nothing,
        "after": F.col("after") if op == "I" else nothing,
        "segment": F.lit(segment),
        "line": F.monotonically_increasing_id() + 1,
    }
    return rows.select(*(values[name].alias(name) for name in NEW_EVENTS.names), F.lit(True).alias(SYNTHETIC))
