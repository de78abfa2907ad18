"""The update of one table: staged on a branch, audited, and published as one commit.

Apply is delete + append: rows of changed keys are deleted by a broadcast MERGE, which reads key columns only, and the
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
from cdc_lakehouse.lake.current.latest_changes import KeyedSpan, LatestChanges, keyed_events
from cdc_lakehouse.lake.current.partial_rows import BaseRows, PartialKeys, merged_rows
from cdc_lakehouse.lake.current.partition_filter import partition_condition
from cdc_lakehouse.lake.current.schema_plan import Drop, LakeColumn, Plan
from cdc_lakehouse.lake.current.tables import column_names, staged_names
from cdc_lakehouse.lake.current.typed_rows import (
    COMMIT_TS,
    EVENT,
    FAULT,
    PARTIAL,
    ZERO_DATES,
    Target,
    faulty_rows,
    initial_value,
    lake_columns,
    typed_rows,
    types_since,
)
from cdc_lakehouse.lake.current.value_parsing import ValueFormat
from cdc_lakehouse.lake.iceberg_java import IcebergJavaApi
from cdc_lakehouse.lake.names import Identifier, quote
from cdc_lakehouse.lake.properties import COLUMNS, STAGED

BRANCH: Final = "cdc"
_SNAPSHOT_PROPERTY: Final = "spark.sql.iceberg.snapshot-property"
REJECTED_LISTED: Final = 1000
"""Rows of an update that cannot be used and are listed one by one; those beyond are counted by segment."""
_BROADCAST_LIMIT: Final = 2_000_000
"""Row ids of latest events that are sent to every task; above it the join shuffles, which spills, needing no memory."""
_KEYS_BROADCAST: Final = 500_000
"""The same for changed keys, which may be wide texts."""


@dataclass(frozen=True)
class EmptiedPartition:
    """Rows of a partition that a DDL took away at `commit_ts`."""

    commit_ts: int
    scheme: Partitioning
    name: str
    version: TableVersion


@dataclass(frozen=True)
class TableUpdate:
    """What is to be done to one table. Timestamps are commit-ts (TSO).

    table_no: the table's number among the latest changes. replaces_all_rows: nothing of what is there stays (a
        TRUNCATE, or a table that is recomputed). applied_version: what the rows that are there were written under.
    read_after_ts, checkpoint_ts: the events have a commit-ts in (read_after_ts, checkpoint_ts].
    emptied, emptied_now: partitions that new rows, and the rows that are there, were deleted with.
    skips_rejected: rows that cannot be used are left out; else they stop the update.
    """

    table_no: int
    identifier: Identifier
    plan: Plan
    target: Target
    applied_version: TableVersion
    read_after_ts: int
    checkpoint_ts: int
    spans: tuple[KeyedSpan, ...]
    key: tuple[schema.Column, ...]
    row_count: int
    replaces_all_rows: bool
    emptied: tuple[EmptiedPartition, ...]
    emptied_now: tuple[EmptiedPartition, ...]
    skips_rejected: bool


@dataclass(frozen=True)
class StagedUpdate:
    """An update that was staged: whether there is a branch to publish, the rows appended, zero dates that became NULL,
    the rows that cannot be used, and whether events leave columns out."""

    update: TableUpdate
    branch: bool = False
    appended: int = 0
    zero_dates: int = 0
    rejected: tuple[Rejected, ...] = ()
    partial: bool = False


_DOES_NOT_FIT: Final = (
    "the row does not fit the table's columns: a value that is not of its type, a column that is not known, or one "
    "that is missing (virtual generated columns can be named in virtual_columns)"
)


class Staging:
    """Writes the updates of one run; used in a `with`, for as long as it writes."""

    def __init__(self, spark: SparkSession, summary: Mapping[str, str]) -> None:
        """`summary` goes into the summary of every snapshot that is written."""
        self._spark = spark
        self._api = IcebergJavaApi(spark)
        self._summary = dict(summary)

    def __enter__(self) -> Self:
        # MERGE takes snapshot properties from the session alone; all tables of a run have the same.
        for key, value in self._summary.items():
            self._spark.conf.set(f"{_SNAPSHOT_PROPERTY}.{key}", value)
        return self

    def __exit__(self, *_: object) -> None:
        for key in self._summary:
            self._spark.conf.unset(f"{_SNAPSHOT_PROPERTY}.{key}")

    def stage(
        self, update: TableUpdate, latest: LatestChanges, events: DataFrame, value_format: ValueFormat
    ) -> StagedUpdate:
        """Write the update on the branch. With rejected rows, nothing may be published (see `discard`)."""
        self._evolve(update)
        changed = latest.changed_key_count(update.table_no)
        rewritten = update.plan.rewritten and update.row_count
        if not (changed or rewritten or update.emptied_now or (update.replaces_all_rows and update.row_count)):
            return StagedUpdate(update)
        self._api.open_branch(update.identifier, BRANCH)
        self._prepare(update, latest, value_format)
        if not latest.upserts.get(update.table_no):
            return StagedUpdate(update, branch=True)
        rows = self._rows(update, latest, events, value_format)
        staged = self._append(update, rows)
        if not (staged.partial or (staged.rejected and update.skips_rejected)):
            return staged
        # Rare, and not to be known before the rows are read: once more, with partial rows made whole, and without those
        # that cannot be used.
        rejected = staged.rejected
        if staged.partial:
            rows = self._fill_partial_rows(update, latest, events, rows, value_format)
            rejected = _rejected(rows, update) if update.skips_rejected else ()
        if update.skips_rejected:
            rows = rows.where(~F.col(quote(FAULT)))
        self._api.open_branch(update.identifier, BRANCH)
        self._prepare(update, latest, value_format)
        again = self._append(update, rows)
        return replace(again, rejected=rejected or again.rejected)

    def publish(self, staged: StagedUpdate, properties: Mapping[str, str]) -> None:
        update = staged.update
        # What was staged has the columns that were added before, and no other change of the schema.
        beyond = bool(update.plan.publish) or (not staged.branch and bool(update.plan.before))
        self._api.publish(
            update.identifier,
            BRANCH if staged.branch else None,
            update.plan.publish,
            {COLUMNS: column_names({c.id: c.name for c in update.target.columns}), STAGED: "[]", **properties},
            self._summary if beyond else None,
        )

    def discard(self, update: TableUpdate) -> None:
        """Take back what staging has left on the table."""
        self._api.drop_branch(update.identifier, BRANCH)
        if update.plan.staged:
            self._api.evolve(update.identifier, [Drop(name) for name in update.plan.staged], {STAGED: "[]"})

    def _prepare(self, update: TableUpdate, latest: LatestChanges, value_format: ValueFormat) -> None:
        """Everything but the new rows: what is there converted, and deleted where the update changes it."""
        if update.row_count:
            # First, for keys are compared as what their columns are now.
            if update.plan.rewritten and not update.replaces_all_rows:
                self._rewrite(update, value_format)
            self._delete(update, latest, value_format)

    def _evolve(self, update: TableUpdate) -> None:
        if update.plan.before:
            self._api.evolve(update.identifier, update.plan.before, {STAGED: staged_names(update.plan.staged)})

    def _delete(self, update: TableUpdate, latest: LatestChanges, value_format: ValueFormat) -> None:
        if update.replaces_all_rows:
            self._api.clear(update.identifier, BRANCH, self._summary)
            return
        target = update.identifier.branch(BRANCH)
        for emptied in update.emptied_now:
            condition = _in_partition(emptied, lambda id: F.col(quote(update.target.names[id])))
            # MERGE takes a condition as a column; DELETE takes only text.
            self._merge_delete(target, F.broadcast(self._spark.range(1).toDF("cdc:once")), condition)
        if latest.changed_key_count(update.table_no):
            names = [f"cdc:key_{position}" for position in range(len(update.key))]
            keys = latest.of(update.table_no).select(
                *(
                    value_parsing.value(F.col("key")[position], column.type, value_format).alias(names[position])
                    for position, column in enumerate(update.key)
                )
            )
            condition = F.lit(True)
            for name, column in zip(names, update.key, strict=True):
                own = F.col(quote(update.target.names[column.id]))
                collides = value_parsing.may_collide(column.type, value_format)
                condition = condition & (own.eqNullSafe(F.col(quote(name))) if collides else own == F.col(quote(name)))
            if latest.changed_key_count(update.table_no) <= _KEYS_BROADCAST:
                keys = F.broadcast(keys)
            self._merge_delete(target, keys, condition)

    def _merge_delete(self, target: str, source: DataFrame, condition: Column) -> None:
        source.mergeInto(target, condition).whenMatched().delete().merge()

    def _rewrite(self, update: TableUpdate, value_format: ValueFormat) -> None:
        """Old values of columns whose type changed, converted into the new columns; all rows are written again."""
        target = update.identifier.branch(BRANCH)
        table = self._spark.table(target)
        converted: dict[str, Column] = {}
        for _, value, old_name, new_name in self._conversions(update, value_format):
            converted[new_name] = value
            converted[old_name] = F.lit(None).cast(table.schema[old_name].dataType)
        frame = table.select(*(converted.get(name, F.col(quote(name))).alias(name) for name in table.columns))
        frame.writeTo(target).overwrite(F.lit(True))

    def _append(self, update: TableUpdate, rows: DataFrame) -> StagedUpdate:
        seen = Observation()
        observed = rows.observe(
            seen,
            F.count(F.lit(1)).alias("rows"),
            F.count_if(quote(FAULT)).alias("faults"),
            F.count_if(quote(PARTIAL)).alias("partial"),
            F.sum(quote(ZERO_DATES)).alias("zero_dates"),
        )
        self._complete(update, lake_columns(observed)).writeTo(update.identifier.branch(BRANCH)).append()
        found = seen.get
        rejected = _rejected(rows, update) if found["faults"] else ()
        partial, zero_dates = bool(found["partial"]), int(found["zero_dates"] or 0)
        return StagedUpdate(update, True, int(found["rows"]), zero_dates, rejected, partial)

    def _fill_partial_rows(
        self, update: TableUpdate, latest: LatestChanges, events: DataFrame, rows: DataFrame, value_format: ValueFormat
    ) -> DataFrame:
        """The rows, with those of events that leave columns out made whole."""
        partial = rows.where(quote(PARTIAL)).select(F.col(quote(EVENT)).alias("event"))
        keys = latest.of(update.table_no).join(F.broadcast(partial), ["event"], "left_semi").select("table_no", "key")
        parts = PartialKeys(keyed_events(self._spark, events, update.spans), keys, events)
        merged = merged_rows(parts, self._base(update, value_format), update.target, value_format)
        return rows.where(~F.col(quote(PARTIAL))).unionByName(_without_emptied(merged, update))

    def _base(self, update: TableUpdate, value_format: ValueFormat) -> BaseRows | None:
        """The table as readers see it; None where nothing of it counts."""
        if update.replaces_all_rows or not update.row_count:
            return None
        values = {column.id: F.col(quote(update.target.names[column.id])) for column in update.target.columns}
        values |= {id: value for id, value, _, _ in self._conversions(update, value_format)}
        key = tuple((column, values[column.id]) for column in update.key)
        return BaseRows(self._spark.table(update.identifier.sql), key, values)

    def _conversions(self, update: TableUpdate, value_format: ValueFormat) -> Iterator[tuple[int, Column, str, str]]:
        """For each column whose type changed: its id, its old values converted, the old name and the new one."""
        for id, old_name, new_name in update.plan.rewritten:
            types = types_since(id, update.target, update.applied_version)
            yield id, convert_through(F.col(quote(old_name)), types, value_format), old_name, new_name

    def _rows(
        self, update: TableUpdate, latest: LatestChanges, events: DataFrame, value_format: ValueFormat
    ) -> DataFrame:
        chosen = latest.of(update.table_no).where("upsert").select("event", "version_no")
        if latest.upserts[update.table_no] <= _BROADCAST_LIMIT:
            chosen = F.broadcast(chosen)
        names = {version.name for version in update.target.versions.values()}
        own = events.where(
            F.col("schema_name").isin(*{name.database for name in names})
            & F.col("table_name").isin(*{name.table for name in names})
            & (F.col("commit_ts") >= update.read_after_ts)
            & (F.col("commit_ts") <= update.checkpoint_ts)
        )
        fetched = own.join(chosen, F.col("_row_id") == F.col("event")).select(
            "version_no", "commit_ts", "after", "segment", "line", "event"
        )
        return _without_emptied(
            typed_rows(fetched, latest.versions[update.table_no], update.target, value_format), update
        )

    def _complete(self, update: TableUpdate, rows: DataFrame) -> DataFrame:
        """With NULL for the columns that go when the update is published, and for those that are not the feed's."""
        table = self._spark.table(update.identifier.branch(BRANCH))
        have = set(rows.columns)
        missing = [field for field in table.schema.fields if field.name not in have]
        return rows.withColumns({field.name: F.lit(None).cast(field.dataType) for field in missing})


def _rejected(rows: DataFrame, update: TableUpdate) -> tuple[Rejected, ...]:
    name = update.target.versions[update.target.order[-1]].name

    def rejected(segment: str, line: int, after: str, count: int) -> Rejected:
        # Where others are only counted, the first of them has its line: the next run may leave out others.
        more = f" (and {count - 1} further rows of the segment, not listed one by one)" if count > 1 else ""
        message = f"{_DOES_NOT_FIT}{more}"
        return Rejected(segment, line, BAD_VALUE, message, after.encode(), name.database, name.table, count)

    return tuple(rejected(*row) for row in faulty_rows(rows, REJECTED_LISTED))


def _without_emptied(rows: DataFrame, update: TableUpdate) -> DataFrame:
    """Rows that were written before their partition was emptied are gone."""
    for emptied in update.emptied:
        gone = _in_partition(emptied, lambda id: F.col(quote(update.target.names[id])))
        rows = rows.where(~((F.col(COMMIT_TS) <= emptied.commit_ts) & F.coalesce(gone, F.lit(False))))
    return rows


def _in_partition(emptied: EmptiedPartition, column: Callable[[int], Column]) -> Column:
    def named(name: str) -> Column:
        found = emptied.version.named(name)
        assert found is not None, f"no column {name}"
        return column(found.id)

    return partition_condition(emptied.scheme, emptied.name, named)


def target_columns(columns: Sequence[schema.Column], value_format: ValueFormat) -> list[LakeColumn]:
    """The source's columns as the lake's."""
    return [
        LakeColumn(column.id, column.name, value_format.type_of(column.type), initial_value(column, value_format))
        for column in columns
    ]
