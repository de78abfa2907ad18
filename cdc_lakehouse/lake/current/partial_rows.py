"""Rows from events that do not carry all columns: what an event leaves out keeps its value, it does not become NULL.

For the keys of such events the last event alone is not enough. All of the batch's events of the key are folded column
by column, over the row as readers see it now. A column whose value is nowhere to be found is a fault of the row: it
is never guessed.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from cdc_lakehouse.changelog import schema
from cdc_lakehouse.lake.current import value_parsing
from cdc_lakehouse.lake.current.conversions import convert_through
from cdc_lakehouse.lake.current.typed_rows import Target, as_typed, default_value, types_since
from cdc_lakehouse.lake.current.value_parsing import ValueFormat, spark_type
from cdc_lakehouse.lake.names import quote

_EMPTY = "map<int,struct<version_no:int,text:string>>"


@dataclass(frozen=True)
class PartialKeys:
    """What the rows are made of. `keyed` are the keyed events of the table, `keys` (table_no, key) those with an event
    that leaves columns out, `events` all events with `_row_id`."""

    keyed: DataFrame
    keys: DataFrame
    events: DataFrame


@dataclass(frozen=True)
class BaseRows:
    """The table as readers see it: its key columns and, by column id, the value that each column has now."""

    table: DataFrame
    key: tuple[tuple[schema.Column, Column], ...]
    values: dict[int, Column]


@dataclass(frozen=True)
class _MergedColumn:
    """A column's value; whether there is none (a text that cannot be read, or nothing that ever said it); conditions of
    which one holds where it is a zero date that became NULL."""

    value: Column
    lost: Column
    zero_dates: tuple[Column, ...]


def merged_rows(parts: PartialKeys, base: BaseRows | None, target: Target, value_format: ValueFormat) -> DataFrame:
    """One whole row for each of the keys that is not deleted in the end, as `typed_rows` has them."""
    folded = _folded(parts, target).where("last.upsert")
    rows = folded.withColumn("based", F.lit(False)) if base is None else _over_base(folded, base, value_format)
    columns = [_column(column, base, target, value_format) for column in target.columns]
    return as_typed(
        rows,
        target,
        [column.value for column in columns],
        commit_ts=F.col("last.commit_ts"),
        segment=F.col("last.segment"),
        line=F.col("last.line"),
        after=F.col("last_after"),
        faults=[column.lost for column in columns],
        partial=F.lit(False),
        event=F.lit(None).cast("bigint"),
        zero_dates=[condition for column in columns for condition in column.zero_dates],
    )


def _folded(parts: PartialKeys, target: Target) -> DataFrame:
    """By key: the `last` position and its row image; in `fold` the `merged` text by column id, whether an INSERT or
    DELETE is among the events, so that nothing of the row before counts (`whole`), and the version of that INSERT
    (`born`)."""
    wanted = parts.keyed.join(parts.keys, ["table_no", "key"], "left_semi").select("key", "position")
    events = parts.events.select(F.col("_row_id").alias("event"), "op", "after")
    joined = wanted.join(events, F.col("position.event") == F.col("event")).select(
        "key", "position", "after", (F.col("op") == "I").alias("is_insert")
    )
    texts = [_texts_of_version(joined, number, target) for number in target.order]
    union = functools.reduce(DataFrame.unionByName, texts)
    history = union.groupBy("key").agg(
        F.array_sort(F.collect_list(F.struct("position", "starts", "texts", "after")), _by_position).alias("history")
    )
    nothing = F.struct(
        F.lit(False).alias("whole"), F.lit(None).cast("int").alias("born"), F.create_map().cast(_EMPTY).alias("merged")
    )
    folded = F.aggregate("history", nothing, _next)
    last = F.element_at("history", -1)
    return history.select(
        "key", last["position"].alias("last"), last["after"].alias("last_after"), folded.alias("fold")
    )


def _texts_of_version(joined: DataFrame, number: int, target: Target) -> DataFrame:
    """Events of one version, with the text of each column that they carry, by the column's id."""
    carried = target.versions[number].carried
    names = F.array(*(F.lit(column.name) for column in carried)).cast("array<string>")
    ids = F.array(*(F.lit(column.id) for column in carried)).cast("array<int>")
    after = F.coalesce("after", F.create_map().cast("map<string,string>"))
    pairs = F.arrays_zip(names.alias("name"), ids.alias("id"))
    present = F.filter(pairs, lambda pair: F.map_contains_key(after, pair["name"]))
    entries = F.transform(
        present,
        lambda pair: F.struct(
            pair["id"].alias("key"),
            F.struct(F.lit(number).alias("version_no"), after[pair["name"]].alias("text")).alias("value"),
        ),
    )
    deleted = ~F.col("position.upsert")
    texts = F.when(deleted, F.create_map().cast(_EMPTY)).otherwise(F.map_from_entries(entries).cast(_EMPTY))
    starts = deleted | F.col("is_insert")
    of_version = joined.where(F.col("position.version_no") == number)
    return of_version.select("key", "position", starts.alias("starts"), texts.alias("texts"), "after")


def _by_position(left: Column, right: Column) -> Column:
    # Not the whole struct: maps have no order.
    before = left["position"] < right["position"]
    return F.when(before, -1).when(left["position"] > right["position"], 1).otherwise(0)


def _next(fold: Column, event: Column) -> Column:
    """The fold after one more event: an INSERT or DELETE starts afresh, an UPDATE goes over what is there."""
    kept = F.map_filter(fold["merged"], lambda id, _: ~F.map_contains_key(event["texts"], id))
    began = F.when(event["position"]["upsert"], event["position"]["version_no"])
    born = F.when(event["starts"], began).otherwise(fold["born"])
    return F.struct(
        (fold["whole"] | event["starts"]).alias("whole"),
        born.alias("born"),
        F.when(event["starts"], event["texts"]).otherwise(F.map_concat(kept, event["texts"])).alias("merged"),
    )


def _over_base(folded: DataFrame, base: BaseRows, value_format: ValueFormat) -> DataFrame:
    present = base.table.select(
        *(own.alias(f"cdc:key_{position}") for position, (_, own) in enumerate(base.key)),
        *(value.alias(f"cdc:base_{id}") for id, value in base.values.items()),
        F.lit(True).alias("cdc:present"),
    )
    condition = ~F.col("fold.whole")
    for position, (column, _) in enumerate(base.key):
        value = value_parsing.value(F.col("key")[position], column.type, value_format)
        condition = condition & F.col(quote(f"cdc:key_{position}")).eqNullSafe(value)
    return (
        F.broadcast(folded)
        .join(present, condition, "left")
        .withColumn("based", F.coalesce(F.col("`cdc:present`"), F.lit(False)))
    )


def _column(column: schema.Column, base: BaseRows | None, target: Target, value_format: ValueFormat) -> _MergedColumn:
    kind = spark_type(value_format.type_of(column.type))
    entry = F.element_at("fold.merged", F.lit(column.id))
    typed, lost = F.lit(None).cast(kind), F.lit(False)
    zero_dates: list[Column] = []
    for number in target.order:
        own = target.versions[number].column(column.id)
        if own is None:
            continue
        read = value_parsing.value(entry["text"], own.type, value_format)
        chosen = entry["version_no"] == number
        brought = convert_through(read, types_since(column.id, target, target.versions[number]), value_format)
        typed = F.when(chosen, brought.cast(kind)).otherwise(typed)
        lost = lost | (chosen & value_parsing.parse_failed(entry["text"], read, own.type, value_format))
        if (zero := value_parsing.zero_date(entry["text"], read, own.type, value_format)) is not None:
            zero_dates.append(chosen & zero)
    unborn = _unborn(column, target)
    older = F.when(unborn, default_value(column, target, value_format))
    if base is not None:
        older = F.when(F.col("based"), F.col(quote(f"cdc:base_{column.id}"))).otherwise(older)
    said = F.map_contains_key("fold.merged", F.lit(column.id))
    unknown = ~said & ~F.col("based") & ~unborn
    value = F.when(said, typed).otherwise(older).cast(kind)
    return _MergedColumn(value, F.coalesce(lost, F.lit(False)) | unknown, tuple(zero_dates))


def _unborn(column: schema.Column, target: Target) -> Column:
    """Whether the row began before the column did."""
    without = [number for number in target.order if target.versions[number].column(column.id) is None]
    return F.coalesce(F.col("fold.born").isin(*without), F.lit(False)) if without else F.lit(False)
