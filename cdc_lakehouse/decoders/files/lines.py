"""Text files as lines that know their file and their number."""

from __future__ import annotations

import codecs
import urllib.parse
from collections.abc import Iterator, Sequence
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from cdc_lakehouse.config import StorageConfig
from cdc_lakehouse.decoders.files.tasks import SegmentRef, segments_in_tasks
from cdc_lakehouse.sources.object_store import Location

# The session reads each file as one task (see lake.session), so the row's number in its task is the line's in its file.
_ROW_IN_TASK: Final = (1 << 33) - 1
_LINES_A_BATCH: Final = 10_000
_SCHEMA: Final = "file string, line bigint, value string"


def read_lines(spark: SparkSession, root: str, storage: StorageConfig, segments: Sequence[SegmentRef]) -> DataFrame:
    """Lines of the files `segments`, below the URI `root`: columns `file` (see `segments_of`), `line`, which counts
    from 1, and `value`.

    CR LF, LF and CR end a line. Names are taken as they are: no globbing, no partition columns from `a=b` directories.
    """
    if Location.of(root).service != "file":
        return segments_in_tasks(spark, root, storage, segments, lines_of, _SCHEMA)
    # Spark's own reader, without Python: a quarter faster.
    uris = [f"{root}/{segment.path}" for segment in segments]
    text = spark.read.option("__globPaths__", "false").option("recursiveFileLookup", "true").text(uris)
    line = F.monotonically_increasing_id().bitwiseAND(_ROW_IN_TASK) + 1
    return text.select(F.col("_metadata.file_path").alias("file"), line.alias("line"), "value")


def segments_of(lines: DataFrame, root: str, segments: Sequence[SegmentRef]) -> dict[str, str]:
    """The segment of each of the files, by what `file` calls it: worked out once for each, not for every line."""
    if Location.of(root).service != "file":
        return {segment.path: segment.path for segment in segments}
    below = root.partition("://")[2]
    found: dict[str, str] = {}
    for file in lines.inputFiles():
        path = urllib.parse.unquote(file)
        # A local file is `file:///…` to Spark's listing, and `file:/…` to its rows.
        name = "file:/" + file.removeprefix("file:///") if file.startswith("file:///") else file
        found[name] = path[path.index(below) + len(below) + 1 :]
    return found


def evaluated_once(column: str) -> Column:
    """The column, in a form below which no filter is pushed.

    What is selected beside it is worked out once for each row. Pushed below, a filter would parse every line again for
    each of its terms: Spark copies an expression wherever its alias is used.
    """
    return F.col(column) + F.monotonically_increasing_id().bitwiseAND(F.lit(0))


def lines_of(path: str, content: bytes) -> Iterator[pa.RecordBatch]:
    """The lines of a file as Spark's reader gives them, with their numbers."""
    content = content.removeprefix(codecs.BOM_UTF8)
    if b"\r" in content:
        content = content.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    if not content:
        return
    content = content.removesuffix(b"\n")
    lines = pc.split_pattern(pa.array([content], pa.binary()), b"\n").flatten()  # pyright: ignore
    for first in range(0, len(lines), _LINES_A_BATCH):
        batch = lines.slice(first, _LINES_A_BATCH)
        numbers = pa.array(range(first + 1, first + len(batch) + 1), pa.int64())
        # Not a cast, which would refuse what is not UTF-8: that is for the decoder to judge.
        columns = [pa.repeat(pa.scalar(path), len(batch)), numbers, batch.view(pa.string())]
        yield pa.RecordBatch.from_arrays(columns, names=["file", "line", "value"])
