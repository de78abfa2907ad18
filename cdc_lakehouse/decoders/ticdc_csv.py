"""TiCDC's csv in files: `op,table,schema,commit-ts[,is-update][,handle key],columns…`, one row a record.

Spark's own reader of csv takes the quoted text "\\N" for NULL, and a line end in quotes for the end of a row; so whole
files are parsed in Python, over Arrow (see `csv_rows`). Format: TiCDC storage sink, CSV protocol documentation."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

import pyarrow as pa
from cdc_lakehouse.decoders.csv_rows import read_rows
from pyspark.sql import SparkSession

from cdc_lakehouse.decoders.segment_files import Decoded, SegmentFiles, in_tasks
from cdc_lakehouse.sources.object_store import open_store

_COLUMNS: Final = (
    "file string, line bigint, value binary, database string, `table` string, op string, commit_ts bigint, "
    "before map<string,string>, after map<string,string>, problem string"
)
_LARGEST: Final = 2**31 - 1
"""Bytes of a file; TiCDC's own limit is 512 MiB."""


def decode(spark: SparkSession, files: SegmentFiles) -> Decoded:
    """See the package's docstring for the shape; `file` is the segment itself."""
    tasks = in_tasks(files.files, spark.sparkContext.defaultParallelism)
    uri, storage, layouts, options = files.uri, files.storage, files.layouts, files.source.csv
    assert options is not None, "the configuration asks for them"

    def read(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        store = open_store(uri, storage)
        for batch in batches:
            for task in batch.column(0).to_pylist():
                for file in tasks[task]:
                    content = store.read(file.path, limit=_LARGEST)
                    for rows in read_rows(content, options, layouts[file.path]):
                        yield _with_file(rows, file.path)

    events = spark.range(0, len(tasks), 1, len(tasks)).mapInArrow(read, _COLUMNS)
    return Decoded(events, {file.path: file.path for file in files.files})


_NAMES: Final = ("line", "value", "database", "table", "op", "commit_ts", "before", "after", "problem")


def _with_file(rows: pa.RecordBatch, path: str) -> pa.RecordBatch:
    file = pa.array([path], pa.string()).take(pa.repeat(pa.scalar(0, pa.int32()), rows.num_rows))
    return pa.RecordBatch.from_arrays([file, *(rows.column(name) for name in _NAMES)], names=["file", *_NAMES])
