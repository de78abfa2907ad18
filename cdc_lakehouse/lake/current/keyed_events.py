"""Events by the key of the row that they change: what Spark brings together for a task, from the `events` table.

Nothing is looked up and nothing is grouped here. A task has all events of its keys and finds the latest of each
(`latest_changes`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from cdc_lakehouse import duckdb_sql as sql
from cdc_lakehouse.lake.current.latest_changes import key_texts

_compute: Any = pc  # What its functions take is hidden from type checkers.

KEYED_EVENTS: Final = (
    "table_no int, key array<string>, stage bigint, upsert boolean, is_insert boolean, version_no int, "
    "commit_ts bigint, texts array<string>, after map<string,string>, segment string, line bigint"
)
"""Columns of keyed events: one row for each key that an event concerns. `table_no` and `version_no` number the table
and its version, `key` are the texts of the key's parts, (`stage`, `upsert`, `segment`, `line`) is the event's position:
the order of the feed (see `changelog.positions`). `upsert` tells whether the event leaves a row, and `is_insert`
whether nothing of a row before it counts. The row's image is in `texts`, one for each column that rows of the version
carry; or, where the event has others, in `after`."""

_SPANS: Final = pa.schema([
    ("table_no", pa.int32()),
    ("version_no", pa.int32()),
    ("span_database", pa.string()),
    ("span_table", pa.string()),
    ("above", pa.int64()),
    ("upto", pa.int64()),
    ("key_columns", pa.list_(pa.string())),
    ("carried", pa.list_(pa.string())),
])  # fmt: skip
_NAMES_PUSHED_DOWN: Final = 50
_BEFORE_ALL: Final = -1


@dataclass(frozen=True, slots=True)
class KeyedSpan:
    """Events of a name at stages in (above, upto] (see `changelog.positions`): which table and version they are of, its
    key's columns, and those that rows carry."""

    table_no: int
    version_no: int
    database: str
    table: str
    above: int
    upto: int
    key_columns: tuple[str, ...]
    carried: tuple[str, ...]


def keyed_events(spark: SparkSession, events: DataFrame, spans: Sequence[KeyedSpan]) -> DataFrame:
    """The events (columns of the table `events`) of some spans, with the columns of `KEYED_EVENTS`. An UPDATE that
    changes the key gives two rows: a delete of the old key, and an upsert of the new one."""
    lower, upper = min(span.above for span in spans), max(span.upto for span in spans)
    within = events.where((F.col("commit_ts") >= lower // 2) & (F.col("commit_ts") <= upper // 2))
    names = {(span.database, span.table) for span in spans}
    if len(names) <= _NAMES_PUSHED_DOWN:
        within = within.where(F.col("schema_name").isin(*{database for database, _ in names}))
        within = within.where(F.col("table_name").isin(*{table for _, table in names}))
    within = within.withColumn("stage", F.col("commit_ts") * 2 + F.col("synthetic").cast("bigint"))
    # As columns: of Python's rows Spark makes a job, with workers.
    rows = [dict(zip(_SPANS.names, astuple(span), strict=True)) for span in spans]
    table = F.broadcast(spark.createDataFrame(pa.Table.from_pylist(rows, _SPANS)))
    matched = within.join(
        table,
        (F.col("schema_name") == F.col("span_database"))
        & (F.col("table_name") == F.col("span_table"))
        & (F.col("stage") > F.col("above"))
        & (F.col("stage") <= F.col("upto")),
    )
    image = F.coalesce("after", "before")
    key = F.transform("key_columns", lambda name: image[name])
    before = F.col("before")
    old_key = F.transform(
        "key_columns", lambda name: F.when(F.map_contains_key(before, name), before[name]).otherwise(image[name])
    )
    moved = (F.col("op") == "U") & before.isNotNull() & (old_key != key)
    leaves = F.col("op") != "D"
    # The usual image goes without the names: half of what is moved.
    usual = F.map_keys("after") == F.col("carried")
    now = F.struct(
        key.alias("key"),
        leaves.alias("upsert"),
        F.when(leaves & usual, F.map_values("after")).alias("texts"),
        F.when(leaves & ~usual, F.col("after")).alias("after"),
    )
    gone = F.struct(
        old_key.alias("key"),
        F.lit(False).alias("upsert"),
        F.lit(None).cast("array<string>").alias("texts"),
        F.lit(None).cast("map<string,string>").alias("after"),
    )
    halves = F.when(F.coalesce(moved, F.lit(False)), F.array(gone, now)).otherwise(F.array(now))
    parts = matched.withColumns({"is_insert": F.col("op") == "I", "half": F.explode(halves)})
    return with_columns(parts.drop("key", "after").select("*", "half.*"), KEYED_EVENTS)


def no_row_before(keys: DataFrame) -> DataFrame:
    """For each of some keys (table_no, key) a delete before all events, so that one without an event is deleted."""
    deleted = {"stage": F.lit(_BEFORE_ALL).cast("bigint"), "upsert": F.lit(False), "is_insert": F.lit(False)}
    return with_columns(keys.withColumns(deleted), KEYED_EVENTS)


def with_columns(frame: DataFrame, columns: str) -> DataFrame:
    """The frame with these columns, as Spark declares them (`name type, …`); NULL where it has none."""
    declared = [column.split(" ") for column in columns.split(", ")]
    have = set(frame.columns)
    return frame.select(*(F.col(n) if n in have else F.lit(None).cast(kind).alias(n) for n, kind in declared))


def keys_where(conditions: Mapping[int, str]) -> Column:
    """Whether a row (table_no, key) is of one of the tables and its key meets that table's condition, in DuckDB's SQL
    over the columns of `key_texts`."""

    def meets(numbers: pa.Array, keys: pa.Array) -> pa.Array:
        found = np.zeros(len(keys), dtype=bool)
        with sql.database() as connection:
            for number, condition in conditions.items():
                places = np.flatnonzero(_compute.equal(numbers, number).to_numpy(zero_copy_only=False))
                if not len(places):
                    continue
                own = keys.take(pa.array(places))
                width = _compute.max(_compute.list_value_length(own)).as_py()
                connection.register("keys", pa.table(key_texts(own, width)))
                answer = connection.sql(f"SELECT {condition} AS met FROM keys").to_arrow_table()
                found[places] = answer.column("met").to_numpy()
        return pa.array(found)

    function: Any = F.arrow_udf(meets, "boolean")  # pyright: ignore[reportCallIssue, reportArgumentType]
    return function(F.col("table_no"), F.col("key"))
