"""Read the events of a job, each file once, and send them to the tasks that apply them.

The events that a reader has for a task are a block: keyed events (`keyed_events.KEYED_EVENTS`) as an Arrow stream,
which Spark moves unchanged. Spark would convert rows to its own form and back to columns, which takes longer than
applying them."""

from __future__ import annotations

import contextlib
import math
import os
import tempfile
import uuid
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import duckdb
import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from cdc_lakehouse import duckdb_sql as sql
from cdc_lakehouse.decoders.event_schema import spark_columns
from cdc_lakehouse.decoders.task_errors import TaskError
from cdc_lakehouse.errors import TransientError
from cdc_lakehouse.lake.current.keyed_events import KEYED_EVENTS, KeyedSpan, KeyedSpans, commit_ts_range
from cdc_lakehouse.lake.tables.event_files import EventReader

BLOCKS: Final = pa.schema(
    [("task", pa.int32()), ("events", pa.binary()), ("file", pa.string()), ("start", pa.int64()), ("size", pa.int64())]
)
"""A block for a task: the task's number, and either the block itself (`events`), or its file, offset and size in
bytes."""

_IN_FILE: Final = ("file", "start", "size")
_SHARE_BYTES: Final = 64 * 1024 * 1024
"""The size of the event files that one reading task gets."""
_BLOCK_BYTES: Final = 128 * 1024 * 1024
"""The size of keyed events before they are split among tasks: with many tasks, each gets a small part of it."""
_COMPRESSED: Final = pa.ipc.IpcWriteOptions(compression="lz4", use_threads=False)
_PLAIN: Final = pa.ipc.IpcWriteOptions(use_threads=False)


def read_keyed_events(
    reader: EventReader, connection: Any, spans: Sequence[KeyedSpan], decoded_again: Collection[str] = ()
) -> Iterator[pa.Table]:
    """The events of some spans, with the columns of `KEYED_EVENTS`, and as `key_deletes` the keys that events of the
    segments `decoded_again` had earlier. Raises `TaskError`, and errors of lack of memory unchanged: the values of one
    table can be the cause (see `isolation`)."""
    if not spans:
        return
    names, between = {(span.database, span.table) for span in spans}, commit_ts_range(spans)
    earlier_of = frozenset(decoded_again)
    try:
        for each, only in ((reader, None), *((earlier, earlier_of) for earlier in reader.earlier)):
            keyed_spans = KeyedSpans(spans, only)
            for events in each.read(names, *between):
                yield keyed_spans.keyed(connection, events)
    except (OSError, duckdb.IOException) as error:
        raise TaskError(TransientError(f"files of events cannot be read: {error}", advice="run again")) from error


def all_keyed_events(
    reader: EventReader, connection: Any, spans: Sequence[KeyedSpan], decoded_again: Collection[str] = ()
) -> pa.Table:
    """Read as `read_keyed_events` does, into one table."""
    return pa.concat_tables([KEYED_EVENTS.empty_table(), *read_keyed_events(reader, connection, spans, decoded_again)])


@dataclass(frozen=True)
class EventShuffle:
    """Sends the keyed events of some spans to tasks. `places` maps a table's number to its first task and its number of
    tasks. Events of one key go to one task. Blocks go through files in `directory` when all tasks share one disk;
    otherwise through Spark, which takes five times as long."""

    spans: tuple[KeyedSpan, ...]
    decoded_again: frozenset[str]
    places: Mapping[int, tuple[int, int]]
    directory: str | None

    def blocks(self, spark: SparkSession, reader: EventReader) -> DataFrame:
        """Return all events of the reader as blocks, with the columns of `BLOCKS`."""
        files = [*reader.files, *(file for earlier in reader.earlier for file in earlier.files)]
        most = max(spark.sparkContext.defaultParallelism, math.ceil(sum(file.size for file in files) / _SHARE_BYTES))
        shares = reader.shares(max(1, min(most, len(files))))

        def read(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            with sql.database() as connection:
                for batch in batches:
                    for number in batch.column(0).to_pylist():
                        found = read_keyed_events(shares[number], connection, self.spans, self.decoded_again)
                        for keyed in _together(found):
                            yield self.divided(connection, keyed)

        return spark.range(0, len(shares), 1, len(shares)).mapInArrow(read, spark_columns(BLOCKS))

    def divided(self, connection: Any, keyed: pa.Table) -> pa.RecordBatch:
        """Split keyed events into blocks, with the columns of `BLOCKS`. Raises `TaskError`."""
        tasks = self._tasks(connection, keyed)
        found, counts = np.unique(tasks, return_counts=True)
        if len(found) > 1:
            keyed = keyed.take(pa.array(np.argsort(tasks, kind="stable")))
        parts = [keyed.slice(stop - count, count) for stop, count in zip(np.cumsum(counts), counts, strict=True)]
        if self.directory is None:
            blocks = [{"events": _written(part)} for part in parts]
        else:
            blocks = _written_to(str(Path(self.directory, uuid.uuid4().hex)), parts)
        return pa.RecordBatch.from_pylist(
            [{"task": task, **block} for task, block in zip(found.tolist(), blocks, strict=True)], BLOCKS
        )

    def _tasks(self, connection: Any, keyed: pa.Table) -> np.ndarray[Any, Any]:
        numbers, place_of = np.unique(keyed.column("table_no").to_numpy(), return_inverse=True)
        first, buckets = np.array([self.places[number] for number in numbers], np.int64).reshape(-1, 2)[place_of].T
        if (buckets == 1).all():
            return first
        hashes = sql.query(connection, "SELECT hash(key) AS h FROM keyed", keyed=keyed.select(["key"])).column("h")
        return first + (hashes.to_numpy() % buckets.astype(np.uint64)).astype(np.int64)


@contextlib.contextmanager
def block_directory(spark: SparkSession) -> Iterator[str | None]:
    """Yield a directory for blocks on the disk that all tasks share, and remove it at the end; None when they run on
    several machines."""
    if not (spark.sparkContext.master or "").startswith("local"):
        yield None
        return
    wanted = os.environ.get("SPARK_LOCAL_DIRS") or spark.conf.get("spark.local.dir", None)
    place = wanted.split(",")[0] if wanted else None
    with tempfile.TemporaryDirectory(prefix="cdc-lakehouse-events-", dir=place) as directory:
        yield directory


def _together(tables: Iterable[pa.Table]) -> Iterator[pa.Table]:
    """Concatenate tables up to a size."""
    waiting: list[pa.Table] = []
    size = 0
    for each in tables:
        waiting.append(each)
        size += each.nbytes
        if size >= _BLOCK_BYTES:
            yield pa.concat_tables(waiting)
            waiting, size = [], 0
    if waiting:
        yield pa.concat_tables(waiting)


def _written(keyed: pa.Table) -> bytes:
    with pa.BufferOutputStream() as sink:
        _write(sink, keyed, _COMPRESSED)
        return sink.getvalue().to_pybytes()


def _written_to(file: str, parts: Iterable[pa.Table]) -> list[dict[str, Any]]:
    """Write blocks to one file, one after the other."""
    blocks: list[dict[str, Any]] = []
    with _local_disk(), pa.OSFile(file, "wb") as sink:
        for keyed in parts:
            start = sink.tell()
            _write(sink, keyed, _PLAIN)
            blocks.append({"file": file, "start": start, "size": sink.tell() - start})
    return blocks


@contextlib.contextmanager
def _local_disk() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        advice = "make room there, or set spark.local.dir in lake.spark.conf to a larger disk"
        raise TaskError(TransientError(f"Spark's local directory: {error}", advice=advice)) from error


def _write(sink: pa.NativeFile, keyed: pa.Table, options: pa.ipc.IpcWriteOptions) -> None:
    with pa.ipc.new_stream(sink, KEYED_EVENTS, options=options) as stream:
        stream.write_table(keyed)


def events_of_blocks(rows: pa.Table) -> pa.Table:
    """Return the keyed events of blocks, which are rows with the columns of `BLOCKS`; rows without `events` and `file`
    are skipped. Raises `TaskError`."""
    sources = [events.as_buffer() for events in rows.column("events").drop_null()]
    files = rows.filter(rows.column("file").is_valid())
    with _local_disk():
        for file, start, size in zip(*(files.column(name).to_pylist() for name in _IN_FILE), strict=True):
            with pa.OSFile(file) as source:
                source.seek(start)
                sources.append(source.read_buffer(size))
    return pa.concat_tables([KEYED_EVENTS.empty_table(), *(pa.ipc.open_stream(each).read_all() for each in sources)])
