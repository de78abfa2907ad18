"""The latest events as typed rows of a current-state table.

An event's values go through the columns of its own version: name → id → what that column is now. Between the two lie
the type changes that came after the event, or, for a column that was added after it, the default that ALTER TABLE
gave to older rows."""

from __future__ import annotations

import datetime
import decimal
import functools
import operator
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from cdc_lakehouse.changelog import schema
from cdc_lakehouse.changelog.mysql_types import BLOBS, ColumnType
from cdc_lakehouse.changelog.schema import TableVersion
from cdc_lakehouse.lake.current import value_parsing
from cdc_lakehouse.lake.current.conversions import convert_through
from cdc_lakehouse.lake.current.value_parsing import ValueFormat, spark_type
from cdc_lakehouse.lake.names import quote

COMMIT_TS: Final = "_commit_ts"

# Columns beside those of the table, under names that no MySQL column has.
_BESIDE: Final = "cdc:"
SEGMENT: Final = "cdc:segment"
LINE: Final = "cdc:line"
AFTER: Final = "cdc:after"
FAULT: Final = "cdc:fault"
PARTIAL: Final = "cdc:partial"
EVENT: Final = "cdc:event"
ZERO_DATES: Final = "cdc:zero_dates"

_EXACT: Final = decimal.Context(prec=76)


@dataclass(frozen=True, slots=True)
class Target:
    """The table to be written: its columns as the source has them now, the name each is written under, and the versions
    of its life by number."""

    columns: tuple[schema.Column, ...]
    names: Mapping[int, str]
    versions: Mapping[int, TableVersion]
    order: tuple[int, ...]
    """Version numbers, oldest first."""


def typed_rows(events: DataFrame, numbers: Sequence[int], target: Target, value_format: ValueFormat) -> DataFrame:
    """Typed rows (see `as_typed`) of events (columns version_no, commit_ts, after, segment, line, event); the versions
    among them are `numbers`."""
    frames = [
        _rows_of_version(events.where(F.col("version_no") == number), number, target, value_format)
        for number in numbers
    ]
    return functools.reduce(DataFrame.unionByName, frames)


def _rows_of_version(events: DataFrame, number: int, target: Target, value_format: ValueFormat) -> DataFrame:
    version = target.versions[number]
    carried = version.carried
    names = F.array(*(F.lit(column.name) for column in carried))
    keys = F.map_keys("after")
    regular = keys == names
    # In the usual case the values stand in the order of the columns: no look-up by name for each of them.
    texts = F.when(regular, F.map_values("after")).otherwise(F.transform(names, lambda name: F.col("after")[name]))
    # MySQL's own log has values of virtual generated columns, which others leave out.
    all_names = F.array(*(F.lit(column.name) for column in version.columns))
    strange = ~regular & (F.size(F.array_except(keys, all_names)) > 0)
    absent = ~regular & (F.size(F.array_except(names, keys)) > 0)
    base = events.select(
        *("commit_ts", "segment", "line", "after", "event"),
        texts.alias("texts"),
        strange.alias("strange"),
        absent.alias("absent"),
    )
    place = {column.id: position for position, column in enumerate(carried)}
    read = {
        column.id: value_parsing.value(F.get("texts", F.lit(place[column.id])), column.type, value_format)
        for column in target_sources(version, target)
        if column.id in place
    }
    typed = base.select("*", *(value.alias(f"value_{id}") for id, value in read.items()))
    faults: list[Column] = [F.col("strange")]
    zero_dates: list[Column] = []
    for column in version.columns:
        if column.id in read:
            text, value = F.get("texts", F.lit(place[column.id])), F.col(f"value_{column.id}")
            faults.append(value_parsing.parse_failed(text, value, column.type, value_format))
            if (zero := value_parsing.zero_date(text, value, column.type, value_format)) is not None:
                zero_dates.append(zero)
    return as_typed(
        typed,
        target,
        [_column(column, version, target, value_format) for column in target.columns],
        commit_ts=F.col("commit_ts"),
        segment=F.col("segment"),
        line=F.col("line"),
        after=F.col("after"),
        faults=faults,
        partial=F.coalesce("absent", F.lit(False)),
        event=F.col("event"),
        zero_dates=zero_dates,
    )


def as_typed(
    rows: DataFrame,
    target: Target,
    values: Sequence[Column],
    *,
    commit_ts: Column,
    segment: Column,
    line: Column,
    after: Column,
    faults: Sequence[Column],
    partial: Column,
    event: Column,
    zero_dates: Sequence[Column],
) -> DataFrame:
    """Typed rows: one column for each of the table (the `values`, in their order), and `_commit_ts`. Beside them, where
    the row comes from (`cdc:segment`, `cdc:line`, `cdc:after`, a map), whether it cannot be used (`cdc:fault`), whether
    its event leaves columns out (`cdc:partial`, `cdc:event`, the event's `_row_id`: see `partial_rows`), and how many
    zero dates became NULL (`cdc:zero_dates`, of the conditions that are true)."""
    return rows.select(
        *(value.alias(target.names[column.id]) for column, value in zip(target.columns, values, strict=True)),
        commit_ts.alias(COMMIT_TS),
        segment.alias(SEGMENT),
        line.alias(LINE),
        after.alias(AFTER),
        F.coalesce(any_of(faults), F.lit(False)).alias(FAULT),
        partial.alias(PARTIAL),
        event.alias(EVENT),
        _count_true(zero_dates).alias(ZERO_DATES),
    )


def target_sources(version: TableVersion, target: Target) -> list[schema.Column]:
    """The version's columns that are still there."""
    wanted = {column.id for column in target.columns}
    return [column for column in version.columns if column.id in wanted]


def _column(column: schema.Column, version: TableVersion, target: Target, value_format: ValueFormat) -> Column:
    own = version.column(column.id)
    if own is None:
        value = default_value(column, target, value_format)
    else:
        value = convert_through(F.col(f"value_{column.id}"), types_since(column.id, target, version), value_format)
    return value.cast(spark_type(value_format.type_of(column.type)))


def default_value(column: schema.Column, target: Target, value_format: ValueFormat) -> Column:
    """What rows hold in a column that was added after them: the default, as the column was when it was added, and what
    became of its type since."""
    first = next(own for number in target.order if (own := target.versions[number].column(column.id)))
    return convert_through(_literal(first, value_format), types_since(column.id, target, None), value_format)


def types_since(column_id: int, target: Target, since: TableVersion | None) -> list[ColumnType]:
    """The types a column had, from a version (or from when it was added) to now."""
    types: list[ColumnType] = []
    begun = since is None
    for number in target.order:
        version = target.versions[number]
        begun = begun or version == since
        column = version.column(column_id)
        if begun and column is not None and (not types or types[-1] != column.type):
            types.append(column.type)
    return types


def _literal(column: schema.Column, value_format: ValueFormat) -> Column:
    """A column's initial default as a literal of its type when it was added."""
    value = initial_value(column, value_format)
    kind = spark_type(value_format.type_of(column.type))
    if isinstance(value, bytes):
        return F.lit(bytearray(value)).cast(kind)
    return F.lit(value).cast(kind)


def initial_value(column: schema.Column, value_format: ValueFormat) -> Any:
    """A column's initial default as a Python value of its Iceberg type; None for NULL, and for what has no value there
    (a zero date, by policy)."""
    text, target = column.initial.text, value_format.type_of(column.type)
    if text is None or target == "list<float>":
        return None
    if column.type.name in BLOBS:
        return text.encode("latin-1")
    try:
        return _parsed(text, target, value_format)
    except (ValueError, decimal.InvalidOperation):
        return None


def _parsed(text: str, target: str, value_format: ValueFormat) -> Any:
    match target.partition("(")[0]:
        case "int" | "long":
            return int(decimal.Decimal(text))
        case "decimal":
            scale = int(target.partition(",")[2].removesuffix(")"))
            return decimal.Decimal(text).quantize(decimal.Decimal(1).scaleb(-scale), decimal.ROUND_HALF_UP, _EXACT)
        case "float" | "double":
            return float(text)
        case "date":
            return datetime.date.fromisoformat(text[:10])
        case "timestamp":
            return datetime.datetime.fromisoformat(text)
        case "timestamptz":
            return datetime.datetime.fromisoformat(text).replace(tzinfo=value_format.zone_info)
        case _:
            return text


def faulty_rows(rows: DataFrame, limit: int) -> Sequence[Any]:
    """The rows with a fault, where they came from and what they hold: `limit` of them one by one, and of those beyond
    the first of each segment, with the `count` that it stands for."""
    bad = rows.where(F.col(quote(FAULT))).select(
        F.col(quote(SEGMENT)).alias("segment"),
        F.col(quote(LINE)).alias("line"),
        F.to_json(quote(AFTER)).alias("after"),
    )
    listed = bad.orderBy("segment", "line").limit(limit).withColumn("count", F.lit(1)).collect()
    if len(listed) < limit:
        return listed
    last = listed[-1]
    later = (F.col("segment") == last["segment"]) & (F.col("line") > last["line"])
    beyond = bad.where((F.col("segment") > last["segment"]) | later).groupBy("segment")
    firsts = beyond.agg(F.min(F.struct("line", "after")).alias("first"), F.count("*").alias("count"))
    return listed + firsts.select("segment", "first.*", "count").orderBy("segment").collect()


def lake_columns(rows: DataFrame) -> DataFrame:
    """Only what goes into the table."""
    return rows.select(*(F.col(quote(name)) for name in rows.columns if not name.startswith(_BESIDE)))


def any_of(conditions: Iterable[Column]) -> Column:
    """Whether one of the conditions holds; false when there are none. Of NULLs, what SQL's OR makes of them."""
    return functools.reduce(operator.or_, conditions, F.lit(False))


def _count_true(conditions: Sequence[Column]) -> Column:
    numbers = (F.coalesce(condition.cast("int"), F.lit(0)) for condition in conditions)
    return functools.reduce(operator.add, numbers, F.lit(0))
