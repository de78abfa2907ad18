"""The latest change of each key: computed once for all tables of a run, on keys and positions only.

Rows are wide and never shuffled here: what comes out of the grouping is the `_row_id` of the latest event (Iceberg's
row lineage), by which the rows are fetched afterwards."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

_SPANS: Final = T.StructType([
    T.StructField("table_no", T.IntegerType()),
    T.StructField("version_no", T.IntegerType()),
    T.StructField("span_database", T.StringType()),
    T.StructField("span_table", T.StringType()),
    T.StructField("above", T.LongType()),
    T.StructField("upto", T.LongType()),
    T.StructField("key_columns", T.ArrayType(T.StringType())),
])  # fmt: skip
LATEST: Final = T.StructType([
    T.StructField("table_no", T.IntegerType()),
    T.StructField("key", T.ArrayType(T.StringType())),
    T.StructField("stage", T.LongType()),
    T.StructField("upsert", T.BooleanType()),
    T.StructField("segment", T.StringType()),
    T.StructField("line", T.LongType()),
    T.StructField("event", T.LongType()),
    T.StructField("version_no", T.IntegerType()),
    T.StructField("commit_ts", T.LongType()),
    T.StructField("lacks_key", T.BooleanType()),
])  # fmt: skip
"""Columns of the latest changes: one row is a key of a table. `event` is the `_row_id` of the event; what tells of the
event is NULL for a key that has none left."""
_NAMES_PUSHED_DOWN: Final = 50


@dataclass(frozen=True, slots=True)
class KeyedSpan:
    """Events of a name at stages in (above, upto] (see `changelog.positions`): which table and version they are of, and
    its key's columns."""

    table_no: int
    version_no: int
    database: str
    table: str
    above: int
    upto: int
    key_columns: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class LatestChanges:
    """`frame` is cached: table_no, version_no, key array<string>, upsert boolean, commit_ts, stage, event (its
    _row_id), segment, line. `upserts` and `deletes` count keys by table, `versions` are the numbers of the versions
    that upserts are of; `without_key` are tables with events that lack a key column."""

    frame: DataFrame
    upserts: dict[int, int]
    deletes: dict[int, int]
    versions: dict[int, list[int]]
    without_key: frozenset[int]

    def of(self, table_no: int) -> DataFrame:
        return self.frame.where(F.col("table_no") == table_no)

    def changed_key_count(self, table_no: int) -> int:
        """Keys of the table that are written or deleted."""
        return self.upserts.get(table_no, 0) + self.deletes.get(table_no, 0)


def keyed_events(spark: SparkSession, events: DataFrame, spans: Sequence[KeyedSpan]) -> DataFrame:
    """Events as one row for each key and position. An UPDATE that changes the key gives two: a delete of the old key,
    and an upsert of the new one.

    events: columns of the `events` table and `_row_id`. spans: ranges (above, upto] of stages (see
    `changelog.positions`), not of commit-ts.
    Columns: table_no int, version_no int, key array<string>, position struct<stage, upsert, segment, line, event,
    version_no, commit_ts>. The order of the struct's fields is the order of the feed.
    """
    lower, upper = min(span.above for span in spans), max(span.upto for span in spans)
    within = events.where((F.col("commit_ts") >= lower // 2) & (F.col("commit_ts") <= upper // 2))
    names = {(span.database, span.table) for span in spans}
    if len(names) <= _NAMES_PUSHED_DOWN:
        within = within.where(F.col("schema_name").isin(*{database for database, _ in names}))
        within = within.where(F.col("table_name").isin(*{table for _, table in names}))
    within = within.withColumn("stage", F.col("commit_ts") * 2 + F.col("synthetic").cast("bigint"))
    table = F.broadcast(spark.createDataFrame([_row(span) for span in spans], _SPANS))
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
    now = F.struct(key.alias("key"), (F.col("op") != "D").alias("upsert"))
    gone = F.struct(old_key.alias("key"), F.lit(False).alias("upsert"))
    halves = F.when(F.coalesce(moved, F.lit(False)), F.array(gone, now)).otherwise(F.array(now))
    parts = matched.select(
        "table_no",
        "version_no",
        "commit_ts",
        "stage",
        "segment",
        "line",
        F.col("_row_id").alias("event"),
        F.explode(halves).alias("half"),
    )
    return parts.select(
        "table_no",
        "version_no",
        F.col("half.key").alias("key"),
        F.struct(
            "stage", F.col("half.upsert").alias("upsert"), "segment", "line", "event", "version_no", "commit_ts"
        ).alias("position"),
    )


def latest(keyed: DataFrame) -> DataFrame:
    """The greatest position of each key: (stage, delete first then upsert, segment, line)."""
    grouped = keyed.groupBy("table_no", "key").agg(F.max("position").alias("position"))
    return grouped.select("table_no", "key", "position.*")


def no_changes(spark: SparkSession) -> LatestChanges:
    """Of tables without events: only DDL is applied."""
    return LatestChanges(spark.createDataFrame([], LATEST), {}, {}, {}, frozenset())


def find_latest(keyed: DataFrame, only: DataFrame | None = None) -> LatestChanges:
    """The latest change of each key among keyed events (see `keyed_events`).

    With `only` (columns table_no, key) there is one for each of these keys and for no other: a key without an event is
    deleted. The frame is cached until it is unpersisted.
    """
    frame = latest(keyed)
    if only is not None:
        frame = only.join(frame, ["table_no", "key"], "left").withColumn("upsert", F.coalesce("upsert", F.lit(False)))
    frame = frame.withColumn("lacks_key", F.exists("key", lambda part: part.isNull())).persist()
    assert frame.columns == LATEST.names, frame.columns
    upserts: dict[int, int] = {}
    deletes: dict[int, int] = {}
    versions: dict[int, list[int]] = {}
    without_key: set[int] = set()
    groups = frame.groupBy("table_no", "upsert", "version_no", "lacks_key").count()
    for row in groups.orderBy("version_no").collect():
        number = row["table_no"]
        if row["lacks_key"]:
            without_key.add(number)
        counts = upserts if row["upsert"] else deletes
        counts[number] = counts.get(number, 0) + row["count"]
        if row["upsert"] and row["version_no"] not in versions.setdefault(number, []):
            versions[number].append(row["version_no"])
    return LatestChanges(frame, upserts, deletes, versions, frozenset(without_key))


def _row(span: KeyedSpan) -> tuple[object, ...]:
    return (
        span.table_no,
        span.version_no,
        span.database,
        span.table,
        span.above,
        span.upto,
        list(span.key_columns),
    )
