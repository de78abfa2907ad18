"""Events that a later one of the same row has superseded: what of the table `events` is not needed any more.

An event is superseded where a later one of the same version of the table, and of the same key, says the whole row, or
that there is none. Tables are the same without it, whatever comes late, for the later one hides it. Rows as of a moment
between the two are not known any more."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyroaring import BitMap64
from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F

from cdc_lakehouse import duckdb_sql as sql
from cdc_lakehouse.decoders.event_schema import CHANGE_COLUMNS, EVENTS, SYNTHETIC, spark_columns
from cdc_lakehouse.lake.catalog import system_table
from cdc_lakehouse.lake.current.keyed_events import KEYED_EVENTS, KeyedSpan, KeyedSpans, commit_ts_range

_compute: Any = pc  # What its functions take is hidden from type checkers.

_IN_KEY: Final = ("table_no", "version_no", "key")
_ORDER: Final = ("stage", "upsert", "segment", "line")
_CHANGES: Final = pa.schema([
    *(KEYED_EVENTS.field(name) for name in (*_IN_KEY, *_ORDER)),
    ("whole", pa.bool_()),
    ("file", pa.string()),
    ("position", pa.int64()),
    ("keys", pa.int32()),
])  # fmt: skip
"""One row for each key that an event concerns (see `keyed_events`), which of the event's are `keys`: where the event
is, and whether nothing of the row before it counts."""
_DELETED: Final = pa.schema([("file", pa.string()), ("positions", pa.binary())])
"""Of a data file the positions of rows, as `BitMap64` serializes them."""
_VERSION_BITS: Final = 32
_BATCHES_AT_ONCE: Final = 8
"""Spark's batches are small: a query for each would cost as much again."""
_FILE, _POSITION = "_file", "_pos"


@dataclass(frozen=True)
class VersionSpan:
    """The events of one version of a table, and the columns that a whole row of it has."""

    span: KeyedSpan
    columns: tuple[str, ...]


def find_superseded(
    spark: SparkSession, feed: str, versions: Sequence[VersionSpan], excluded_segments: frozenset[str]
) -> dict[str, BitMap64]:
    """Which events of some versions are superseded by others of them: the positions in each data file. Synthetic events
    and those of the segments that are excluded are none of them, and supersede none."""
    lowest, highest = commit_ts_range([version.span for version in versions])
    events = spark.read.format("iceberg").load(system_table(feed, "events").sql)
    within = events.where((F.col("commit_ts") >= lowest) & (F.col("commit_ts") <= highest))
    keyed = _Changes(versions, excluded_segments)
    changes = within.select(*CHANGE_COLUMNS, _FILE, _POSITION).mapInArrow(keyed, spark_columns(_CHANGES))
    files = _superseded(changes).repartition("file").mapInArrow(_by_file, spark_columns(_DELETED))
    # All positions of a file are in one task.
    return {row["file"]: BitMap64.deserialize(bytes(row["positions"])) for row in files.collect()}


def _superseded(changes: DataFrame) -> DataFrame:
    """`file` and `position` of the events all of whose keys have a later change that is whole."""
    of_key = Window.partitionBy(*_IN_KEY)
    latest_first = of_key.orderBy(*(F.desc(name) for name in _ORDER))
    numbered = changes.withColumn("number", F.row_number().over(latest_first))
    hiding = numbered.withColumn("hiding", F.min(F.when(F.col("whole"), F.col("number"))).over(of_key))
    hidden = hiding.where(F.col("number") > F.col("hiding"))
    events = hidden.groupBy("file", "position", "keys").count()
    return events.where(F.col("count") == F.col("keys")).select("file", "position")


def _by_file(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    found: dict[str, BitMap64] = {}
    for batch in batches:
        for file in _compute.unique(batch.column("file")).to_pylist():
            positions = batch.filter(_compute.equal(batch.column("file"), file)).column("position")
            found.setdefault(file, BitMap64()).update(positions.to_pylist())
    for file, positions in found.items():
        yield pa.RecordBatch.from_pydict({"file": [file], "positions": [positions.serialize()]}, schema=_DELETED)


def _tables_of(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    """Spark's batches, some at once."""
    rest = iter(batches)
    while some := list(itertools.islice(rest, _BATCHES_AT_ONCE)):
        yield pa.Table.from_batches(some)


class _Changes:
    """Makes changes of keys (columns of `_CHANGES`) of events (`CHANGE_COLUMNS`, and where they are), in tasks."""

    def __init__(self, versions: Sequence[VersionSpan], excluded_segments: frozenset[str]) -> None:
        self._spans = [version.span for version in versions]
        self._columns = {(v.span.table_no, v.span.version_no): v.columns for v in versions}
        self._excluded = excluded_segments

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        keyed, excluded = KeyedSpans(self._spans), pa.array(sorted(self._excluded), pa.string())
        with sql.database() as connection:
            for events in _tables_of(batches):
                out = _compute.or_(events.column(SYNTHETIC), _compute.is_in(events.column("segment"), excluded))
                yield from self._changes(connection, keyed, events.filter(_compute.invert(out))).to_batches()

    def _changes(self, connection: Any, keyed: KeyedSpans, events: pa.Table) -> pa.Table:
        # Keyed events have the line of theirs: here it says which event of the batch it is.
        number = events.column_names.index("line")
        numbered = events.set_column(number, EVENTS.field("line"), pa.array(np.arange(events.num_rows)))
        changes = keyed.keyed(connection, numbered.select(list(CHANGE_COLUMNS)))
        places = changes.column("line").to_numpy()
        columns = {
            **{name: changes.column(name) for name in (*_IN_KEY, *_ORDER)},
            "line": events.column("line").take(pa.array(places)),
            "whole": self._whole(connection, changes),
            "file": events.column(_FILE).take(pa.array(places)),
            "position": events.column(_POSITION).take(pa.array(places)),
            "keys": np.bincount(places, minlength=events.num_rows)[places],
        }
        return pa.table({name: columns[name] for name in _CHANGES.names}, _CHANGES)

    def _whole(self, connection: Any, changes: pa.Table) -> pa.Array:
        """Whether a change says the whole row, or that there is none. One without its key says nothing."""
        tables, versions = (changes.column(name).to_numpy().astype(np.int64) for name in _IN_KEY[:2])
        found, place = np.unique((tables << _VERSION_BITS) + versions, return_inverse=True)
        numbers = (divmod(each, 1 << _VERSION_BITS) for each in found.tolist())
        names = pa.array([self._columns[number] for number in numbers], pa.list_(pa.string()))
        rows = {
            "upsert": changes.column("upsert"),
            "is_insert": changes.column("is_insert"),
            "image": changes.column("image"),
            "key": changes.column("key"),
            "names": names.take(pa.array(place)),
        }
        query = (
            "SELECT (NOT upsert OR is_insert OR list_has_all(json_keys(image), names)) "
            "AND list_count(key) = len(key) AS whole FROM changes"
        )
        found = [sql.query(connection, query, changes=part) for part in sql.slices(pa.table(rows))]
        return pa.concat_tables(found).column("whole")
