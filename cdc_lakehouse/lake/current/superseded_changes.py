"""Find events that a later event of the same row supersedes, which the `events` table no longer needs.

An event is superseded when a later one of the same table version and key holds the complete row, or deletes it. The
tables are the same without it, whatever arrives late, because the later event hides it. States of a row at moments
between the two are lost."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
from pyroaring import BitMap64
from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F

from cdc_lakehouse import duckdb_sql as sql
from cdc_lakehouse.decoders.arrow import pc
from cdc_lakehouse.decoders.event_schema import CHANGE_COLUMNS, EVENTS, SYNTHETIC, spark_columns
from cdc_lakehouse.lake.catalog import system_table
from cdc_lakehouse.lake.current.keyed_events import KEYED_EVENTS, KeyedSpan, KeyedSpans, commit_ts_range

_IN_KEY: Final = ("table_no", "version_no", "key")
_ORDER: Final = ("stage", "upsert", "segment", "line")
_CHANGES: Final = pa.schema([
    *(KEYED_EVENTS.field(name) for name in (*_IN_KEY, *_ORDER)),
    ("whole", pa.bool_()),
    ("file", pa.string()),
    ("position", pa.int64()),
    ("keys", pa.int32()),
])  # fmt: skip
"""One row for each key that an event concerns (see `keyed_events`); the event has `keys` of them. `file` and `position`
locate the event; `whole` says that no values of an earlier row are kept."""
_DELETED: Final = pa.schema([("file", pa.string()), ("positions", pa.binary())])
"""The positions of rows of a data file, as `BitMap64` serializes them."""
_VERSION_BITS: Final = 32
_BATCHES_AT_ONCE: Final = 8
"""Spark's batches are small: a query for each would double the cost."""
_FILE, _POSITION = "_file", "_pos"


@dataclass(frozen=True)
class VersionSpan:
    """The events of one version of a table, and the columns of a complete row of it."""

    span: KeyedSpan
    columns: tuple[str, ...]


def find_superseded(
    spark: SparkSession, feed: str, versions: Sequence[VersionSpan], excluded_segments: frozenset[str]
) -> dict[str, BitMap64]:
    """Find the events of some versions that others of these supersede; return their positions by data file. Synthetic
    events and events of the excluded segments are never superseded, and supersede none."""
    lowest, highest = commit_ts_range([version.span for version in versions])
    events = spark.read.format("iceberg").load(system_table(feed, "events").sql)
    within = events.where((F.col("commit_ts") >= lowest) & (F.col("commit_ts") <= highest))
    keyed = _Changes(versions, excluded_segments)
    changes = within.select(*CHANGE_COLUMNS, _FILE, _POSITION).mapInArrow(keyed, spark_columns(_CHANGES))
    files = _superseded(changes).repartition("file").mapInArrow(_by_file, spark_columns(_DELETED))
    # All positions of a file are in one task.
    return {row["file"]: BitMap64.deserialize(bytes(row["positions"])) for row in files.collect()}


def _superseded(changes: DataFrame) -> DataFrame:
    """Return `file` and `position` of the events whose keys all have a later change that is whole."""
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
        for file in pc.unique(batch.column("file")).to_pylist():
            positions = batch.filter(pc.equal(batch.column("file"), file)).column("position")
            found.setdefault(file, BitMap64()).update(positions.to_pylist())
    for file, positions in found.items():
        yield pa.RecordBatch.from_pydict({"file": [file], "positions": [positions.serialize()]}, schema=_DELETED)


def _tables_of(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    """Yield several of Spark's batches at once as a table."""
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
                out = pc.or_(events.column(SYNTHETIC), pc.is_in(events.column("segment"), excluded))
                yield from self._changes(connection, keyed, events.filter(pc.invert(out))).to_batches()

    def _changes(self, connection: Any, keyed: KeyedSpans, events: pa.Table) -> pa.Table:
        # Keyed events keep the line of their event: here it is replaced by the event's index in the batch.
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
        """Return whether each change holds the complete row, or deletes it. False for one that lacks its key."""
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
