"""A batch of one table: staged on a branch, audited, and published as one commit.

Apply is delete + append: the touched keys are deleted by a broadcast MERGE, which reads key columns only, and the
rows that survive are appended. A full MERGE would shuffle the table, a copy-on-write one rewrite it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Self

from pyspark.sql import Column, DataFrame, Observation, SparkSession
from pyspark.sql import functions as F

from cdc_lakehouse.changelog import schema
from cdc_lakehouse.changelog.ddl.definitions import Partitioning
from cdc_lakehouse.changelog.schema import TableVersion
from cdc_lakehouse.decoders.problems import BAD_VALUE, Rejected
from cdc_lakehouse.lake.current import value_parsing
from cdc_lakehouse.lake.current.conversions import convert_through
from cdc_lakehouse.lake.current.latest_changes import KeyedSpan, Winners, keyed_events
from cdc_lakehouse.lake.current.partial_rows import BaseRows, PartialKeys, merged_rows
from cdc_lakehouse.lake.current.partition_filter import partition_condition
from cdc_lakehouse.lake.current.schema_plan import Drop, LakeColumn, Plan
from cdc_lakehouse.lake.current.tables import column_names, staged_names
from cdc_lakehouse.lake.current.typed_rows import (
    COMMIT_TS,
    Target,
    faulty_rows,
    initial_value,
    lake_columns,
    typed_rows,
    types_since,
)
from cdc_lakehouse.lake.current.value_parsing import Reading
from cdc_lakehouse.lake.iceberg_java import TableApi
from cdc_lakehouse.lake.names import Identifier, quote
from cdc_lakehouse.lake.properties import COLUMNS, STAGED

BRANCH: Final = "cdc"
_SNAPSHOT_PROPERTY: Final = "spark.sql.iceberg.snapshot-property"
FAULTS_LISTED: Final = 1000
"""Rows of a batch that cannot be used and are told one by one; those beyond are told by segment."""
_BROADCAST_LIMIT: Final = 2_000_000
"""Ids of winning events that are sent to every task; above it the join shuffles, which spills and needs no memory."""
_KEYS_BROADCAST: Final = 500_000
"""The same for touched keys, which may be wide texts."""


@dataclass(frozen=True)
class EmptiedPartition:
    """Rows of a partition that a DDL took away at `commit_ts`."""

    commit_ts: int
    scheme: Partitioning
    name: str
    version: TableVersion


@dataclass(frozen=True)
class Batch:
    """What is to be done to one table.

    `table_no` is its number among the winners. `cleared` says that nothing of what is there stays (a TRUNCATE, or a
    table that is worked out anew). `applied` is the version that the rows that are there were written under. Events
    of the batch have a commit-ts in (`above`, `upto`]. `emptied` are partitions for the winners, `emptied_now` those
    for the rows that are there. With `skips_faults` rows that cannot be used are left out; else they stop it."""

    table_no: int
    identifier: Identifier
    plan: Plan
    target: Target
    applied: TableVersion
    above: int
    upto: int
    spans: tuple[KeyedSpan, ...]
    key: tuple[schema.Column, ...]
    row_count: int
    cleared: bool
    emptied: tuple[EmptiedPartition, ...]
    emptied_now: tuple[EmptiedPartition, ...]
    skips_faults: bool


@dataclass(frozen=True)
class Staged:
    """What was staged: whether there is a branch to publish, the rows appended, what is wrong with the batch, and
    whether events leave columns out."""

    branch: bool
    appended: int
    zero_dates: int
    faults: tuple[Rejected, ...] = ()
    partial: bool = False


_DOES_NOT_FIT: Final = (
    "the row does not fit the table's columns: a value that is not of its type, a column that is not known, or one "
    "that is missing (virtual generated columns can be named in virtual_columns)"
)
NOTHING_STAGED: Final = Staged(branch=False, appended=0, zero_dates=0)


class Staging:
    """Writes the batches of one run; used in a `with`, for as long as it writes."""

    def __init__(self, spark: SparkSession, summary: Mapping[str, str]) -> None:
        """`summary` goes into the summary of every snapshot that is written."""
        self._spark = spark
        self._api = TableApi(spark)
        self._summary = dict(summary)

    def __enter__(self) -> Self:
        # MERGE takes snapshot properties from the session alone; all tables of a run have the same.
        for key, value in self._summary.items():
            self._spark.conf.set(f"{_SNAPSHOT_PROPERTY}.{key}", value)
        return self

    def __exit__(self, *_: object) -> None:
        for key in self._summary:
            self._spark.conf.unset(f"{_SNAPSHOT_PROPERTY}.{key}")

    def stage(self, batch: Batch, winners: Winners, events: DataFrame, reading: Reading) -> Staged:
        """Write the batch on the branch. With faults, nothing may be published (see `abandon`)."""
        self._evolve(batch)
        touched = winners.touched(batch.table_no)
        rewritten = batch.plan.rewritten and batch.row_count
        if not (touched or rewritten or batch.emptied_now or (batch.cleared and batch.row_count)):
            return NOTHING_STAGED
        self._api.open_branch(batch.identifier, BRANCH)
        self._prepare(batch, winners, reading)
        if not winners.upserts.get(batch.table_no):
            return Staged(branch=True, appended=0, zero_dates=0)
        rows = self._rows(batch, winners, events, reading)
        staged = self._append(batch, rows)
        if not (staged.partial or (staged.faults and batch.skips_faults)):
            return staged
        # Rare, and not to be known before the rows are read: once more, with partial rows made whole, and without those
        # that cannot be used.
        faults = staged.faults
        if staged.partial:
            rows = self._completed(batch, winners, events, rows, reading)
            faults = _faults(rows, batch) if batch.skips_faults else ()
        if batch.skips_faults:
            rows = rows.where("not `cdc:fault`")
        self._api.open_branch(batch.identifier, BRANCH)
        self._prepare(batch, winners, reading)
        again = self._append(batch, rows)
        return replace(again, faults=faults or again.faults)

    def publish(self, batch: Batch, staged: Staged, properties: Mapping[str, str]) -> None:
        # What was staged has the columns that were added before, and no other change of the schema.
        beyond = bool(batch.plan.publish) or (not staged.branch and bool(batch.plan.before))
        self._api.publish(
            batch.identifier,
            BRANCH if staged.branch else None,
            batch.plan.publish,
            {COLUMNS: column_names({c.id: c.name for c in batch.target.columns}), STAGED: "[]", **properties},
            self._summary if beyond else None,
        )

    def abandon(self, identifier: Identifier, staged_columns: Sequence[str]) -> None:
        """Take back what staging has left on a table."""
        self._api.drop_branch(identifier, BRANCH)
        if staged_columns:
            self._api.evolve(identifier, [Drop(name) for name in staged_columns], {STAGED: "[]"})

    def _prepare(self, batch: Batch, winners: Winners, reading: Reading) -> None:
        """Everything but the new rows: what is there converted, and deleted where the batch touches it."""
        if batch.row_count:
            # First, for keys are compared as what their columns are now.
            if batch.plan.rewritten and not batch.cleared:
                self._rewrite(batch, reading)
            self._delete(batch, winners, reading)

    def _evolve(self, batch: Batch) -> None:
        if batch.plan.before:
            self._api.evolve(batch.identifier, batch.plan.before, {STAGED: staged_names(batch.plan.staged)})

    def _delete(self, batch: Batch, winners: Winners, reading: Reading) -> None:
        if batch.cleared:
            self._api.clear(batch.identifier, BRANCH, self._summary)
            return
        target = batch.identifier.branch(BRANCH)
        for emptied in batch.emptied_now:
            condition = _in_partition(emptied, lambda id: F.col(quote(batch.target.names[id])))
            # MERGE takes a condition as a column; DELETE takes only text.
            self._merge_delete(target, F.broadcast(self._spark.range(1).toDF("cdc:once")), condition)
        if winners.touched(batch.table_no):
            names = [f"cdc:key_{position}" for position in range(len(batch.key))]
            keys = winners.of(batch.table_no).select(
                *(
                    value_parsing.value(F.col("key")[position], column.type, reading).alias(names[position])
                    for position, column in enumerate(batch.key)
                )
            )
            condition = F.lit(True)
            for name, column in zip(names, batch.key, strict=True):
                own = F.col(quote(batch.target.names[column.id]))
                blurred = value_parsing.blurs(column.type, reading)
                condition = condition & (own.eqNullSafe(F.col(quote(name))) if blurred else own == F.col(quote(name)))
            if winners.touched(batch.table_no) <= _KEYS_BROADCAST:
                keys = F.broadcast(keys)
            self._merge_delete(target, keys, condition)

    def _merge_delete(self, target: str, source: DataFrame, condition: Column) -> None:
        source.mergeInto(target, condition).whenMatched().delete().merge()

    def _rewrite(self, batch: Batch, reading: Reading) -> None:
        """Old values of columns whose type changed, converted into the new columns; all rows are written again."""
        target = batch.identifier.branch(BRANCH)
        table = self._spark.table(target)
        converted: dict[str, Column] = {}
        for _, value, old_name, new_name in self._conversions(batch, reading):
            converted[new_name] = value
            converted[old_name] = F.lit(None).cast(table.schema[old_name].dataType)
        frame = table.select(*(converted.get(name, F.col(quote(name))).alias(name) for name in table.columns))
        frame.writeTo(target).overwrite(F.lit(True))

    def _append(self, batch: Batch, rows: DataFrame) -> Staged:
        seen = Observation()
        observed = rows.observe(
            seen,
            F.count(F.lit(1)).alias("rows"),
            F.count_if("`cdc:fault`").alias("faults"),
            F.count_if("`cdc:partial`").alias("partial"),
            F.sum("`cdc:zero_dates`").alias("zero_dates"),
        )
        self._complete(batch, lake_columns(observed)).writeTo(batch.identifier.branch(BRANCH)).append()
        found = seen.get
        faults = _faults(rows, batch) if found["faults"] else ()
        partial, zero_dates = bool(found["partial"]), int(found["zero_dates"] or 0)
        return Staged(True, int(found["rows"]), zero_dates, faults, partial)

    def _completed(
        self, batch: Batch, winners: Winners, events: DataFrame, rows: DataFrame, reading: Reading
    ) -> DataFrame:
        """The rows, with those of events that leave columns out made whole."""
        partial = rows.where("`cdc:partial`").select(F.col("`cdc:event`").alias("event"))
        keys = winners.of(batch.table_no).join(F.broadcast(partial), ["event"], "left_semi").select("table_no", "key")
        parts = PartialKeys(keyed_events(self._spark, events, batch.spans), keys, events)
        merged = merged_rows(parts, self._base(batch, reading), batch.target, reading)
        return rows.where("not `cdc:partial`").unionByName(_without_emptied(merged, batch))

    def _base(self, batch: Batch, reading: Reading) -> BaseRows | None:
        """The table as readers see it; None where nothing of it counts."""
        if batch.cleared or not batch.row_count:
            return None
        values = {column.id: F.col(quote(batch.target.names[column.id])) for column in batch.target.columns}
        values |= {id: value for id, value, _, _ in self._conversions(batch, reading)}
        key = tuple((column, values[column.id]) for column in batch.key)
        return BaseRows(self._spark.table(batch.identifier.sql), key, values)

    def _conversions(self, batch: Batch, reading: Reading) -> Iterator[tuple[int, Column, str, str]]:
        """For each column whose type changed: its id, its old values converted, the old name and the new one."""
        for id, old_name, new_name in batch.plan.rewritten:
            types = types_since(id, batch.target, batch.applied)
            yield id, convert_through(F.col(quote(old_name)), types, reading), old_name, new_name

    def _rows(self, batch: Batch, winners: Winners, events: DataFrame, reading: Reading) -> DataFrame:
        chosen = winners.of(batch.table_no).where("upsert").select("event", "version_no")
        if winners.upserts[batch.table_no] <= _BROADCAST_LIMIT:
            chosen = F.broadcast(chosen)
        names = {version.name for version in batch.target.versions.values()}
        own = events.where(
            F.col("schema_name").isin(*{name.database for name in names})
            & F.col("table_name").isin(*{name.table for name in names})
            & (F.col("commit_ts") >= batch.above)
            & (F.col("commit_ts") <= batch.upto)
        )
        fetched = own.join(chosen, F.col("_row_id") == F.col("event")).select(
            "version_no", "commit_ts", "after", "segment", "line", "event"
        )
        return _without_emptied(typed_rows(fetched, winners.versions[batch.table_no], batch.target, reading), batch)

    def _complete(self, batch: Batch, rows: DataFrame) -> DataFrame:
        """With NULL for the columns that go when the batch is published, and for those that are not the feed's."""
        table = self._spark.table(batch.identifier.branch(BRANCH))
        have = set(rows.columns)
        missing = [field for field in table.schema.fields if field.name not in have]
        return rows.withColumns({field.name: F.lit(None).cast(field.dataType) for field in missing})


def _faults(rows: DataFrame, batch: Batch) -> tuple[Rejected, ...]:
    name = batch.target.versions[batch.target.order[-1]].name

    def rejected(segment: str, line: int, after: str, count: int) -> Rejected:
        # Where others are only counted, the first of them has its line: the next run may leave out others.
        more = f" (and {count - 1} further rows of the segment, not listed one by one)" if count > 1 else ""
        message = f"{_DOES_NOT_FIT}{more}"
        return Rejected(segment, line, BAD_VALUE, message, after.encode(), name.database, name.table, count)

    return tuple(rejected(*row) for row in faulty_rows(rows, FAULTS_LISTED))


def _without_emptied(rows: DataFrame, batch: Batch) -> DataFrame:
    """Rows that were written before their partition was emptied are gone."""
    for emptied in batch.emptied:
        gone = _in_partition(emptied, lambda id: F.col(quote(batch.target.names[id])))
        rows = rows.where(~((F.col(COMMIT_TS) <= emptied.commit_ts) & F.coalesce(gone, F.lit(False))))
    return rows


def _in_partition(emptied: EmptiedPartition, column: Callable[[int], Column]) -> Column:
    def named(name: str) -> Column:
        found = emptied.version.named(name)
        assert found is not None, f"no column {name}"
        return column(found.id)

    return partition_condition(emptied.scheme, emptied.name, named)


def target_columns(columns: Sequence[schema.Column], reading: Reading) -> list[LakeColumn]:
    """The source's columns as the lake's."""
    return [
        LakeColumn(column.id, column.name, reading.type_of(column.type), initial_value(column, reading))
        for column in columns
    ]
