"""Rows that a DDL moves, as synthetic events of its commit-ts under the version that it made.

The source sends no row changes for them: an EXCHANGE PARTITION moves rows between tables, a change of the primary key
makes other columns tell one row from another. As events they are folded, decoded again and rebuilt like all others.
Values are copied as text where the column's type stayed; where it did not, they are converted and written as the source
would have."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Final, Literal

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from cdc_lakehouse.changelog import schema
from cdc_lakehouse.changelog.mysql_types import converts
from cdc_lakehouse.changelog.schema import TableVersion
from cdc_lakehouse.decoders.event_schema import NEW_EVENTS, SYNTHETIC
from cdc_lakehouse.lake.current import value_parsing
from cdc_lakehouse.lake.current.conversions import convert_through
from cdc_lakehouse.lake.current.latest_changes import LatestChanges
from cdc_lakehouse.lake.current.partition_filter import partition_condition
from cdc_lakehouse.lake.current.staging import EmptiedPartition
from cdc_lakehouse.lake.current.typed_rows import Target, default_value, types_since
from cdc_lakehouse.lake.current.value_parsing import ValueFormat, spark_type

_NOTHING: Final = "map<string,string>"


def rows_at(
    events: DataFrame,
    latest: LatestChanges,
    table_no: int,
    target: Target,
    emptied: Sequence[EmptiedPartition],
    value_format: ValueFormat,
) -> DataFrame:
    """The rows that are live after the latest changes, without those of emptied partitions.

    Columns: commit_ts bigint; row map<string,string>, the last version's columns to their text; partial boolean,
    whether the event leaves columns out.
    """
    chosen = latest.of(table_no).where("upsert").select("event", "version_no")
    names = {version.name for version in target.versions.values()}
    own = events.where(
        F.col("schema_name").isin(*{name.database for name in names})
        & F.col("table_name").isin(*{name.table for name in names})
    )
    fetched = own.join(chosen, F.col("_row_id") == F.col("event")).select("version_no", "commit_ts", "after")
    numbers = latest.versions.get(table_no, [])
    frames = [_of_version(fetched.where(F.col("version_no") == n), n, target, value_format) for n in numbers]
    if not frames:
        return fetched.select("commit_ts", F.col("after").alias("row"), F.lit(False).alias("partial")).limit(0)
    rows = functools.reduce(DataFrame.unionByName, frames)
    for each in emptied:
        gone = _in_partition(each, target, value_format)
        rows = rows.where(~((F.col("commit_ts") <= each.commit_ts) & F.coalesce(gone, F.lit(False))))
    return rows


def in_partition(version: TableVersion, partition: str, value_format: ValueFormat) -> Column:
    """Whether a live row is in a partition of its version."""
    assert version.partitioning is not None, version.name

    def column(name: str) -> Column:
        found = version.named(name)
        assert found is not None, f"no column {name}"
        return _typed(found, value_format)

    return F.coalesce(partition_condition(version.partitioning, partition, column), F.lit(False))


def synthetic_events(rows: DataFrame, op: Literal["I", "D"], version: TableVersion, segment: str) -> DataFrame:
    """Live rows as events at a version's DDL, with the columns of `NEW_EVENTS`. The columns of `version` take the
    values by their places: tables that exchange rows have the same."""
    names = F.array(*(F.lit(column.name) for column in version.carried))
    image, nothing = F.map_from_arrays(names, F.map_values("row")), F.lit(None).cast(_NOTHING)
    values = {
        "feed_date": F.lit(None).cast("string"),
        "schema_name": F.lit(version.name.database),
        "table_name": F.lit(version.name.table),
        "table_version": F.lit(version.commit_ts).cast("bigint"),
        "physical_partition": F.lit(None).cast("bigint"),
        "op": F.lit(op),
        "commit_ts": F.lit(version.commit_ts).cast("bigint"),
        "before": image if op == "D" else nothing,
        "after": image if op == "I" else nothing,
        "segment": F.lit(segment),
        "line": F.monotonically_increasing_id() + 1,
    }
    return rows.select(*(values[name].alias(name) for name in NEW_EVENTS.names), F.lit(True).alias(SYNTHETIC))


def _of_version(rows: DataFrame, number: int, target: Target, value_format: ValueFormat) -> DataFrame:
    carried = [column.name for column in target.versions[number].carried]
    absent = F.size(F.array_except(F.array(*(F.lit(name) for name in carried)), F.map_keys("after"))) > 0
    names = F.array(*(F.lit(column.name) for column in target.columns))
    texts = F.array(*(_text(column, target.versions[number], target, value_format) for column in target.columns))
    return rows.select("commit_ts", F.map_from_arrays(names, texts).alias("row"), absent.alias("partial"))


def _text(column: schema.Column, version: TableVersion, target: Target, value_format: ValueFormat) -> Column:
    own = version.column(column.id)
    if own is None or not own.carried:
        value = default_value(column, target, value_format)
    else:
        raw = F.col("after")[own.name]
        types = types_since(column.id, target, version)
        if not converts(types):
            return raw
        value = convert_through(value_parsing.value(raw, own.type, value_format), types, value_format)
    return value_parsing.text(value.cast(spark_type(value_format.type_of(column.type))), column.type, value_format)


def _in_partition(emptied: EmptiedPartition, target: Target, value_format: ValueFormat) -> Column:
    now = {column.id: column for column in target.columns}

    def column(name: str) -> Column:
        found = emptied.version.named(name)
        assert found is not None, f"no column {name}"
        return _typed(now[found.id], value_format)

    return partition_condition(emptied.scheme, emptied.name, column)


def _typed(column: schema.Column, value_format: ValueFormat) -> Column:
    return value_parsing.value(F.col("row")[column.name], column.type, value_format)
