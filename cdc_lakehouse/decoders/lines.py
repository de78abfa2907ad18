"""Text files as lines that know their file and their number."""

from __future__ import annotations

import urllib.parse
from collections.abc import Sequence
from typing import Final

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

# The session reads each file as one task (see lake.session), so the row's number in its task is the line's in its file.
_ROW_IN_TASK: Final = (1 << 33) - 1


def read_lines(spark: SparkSession, root: str, segments: Sequence[str]) -> DataFrame:
    """Lines of the files `segments`, paths below the URI `root`: columns `file` (see `segments_of`) and `value`.

    CR LF, LF and CR end a line. Names are taken as they are: no globbing, no partition columns from `a=b` directories.
    """
    uris = [f"{root}/{segment}" for segment in segments]
    text = spark.read.option("__globPaths__", "false").option("recursiveFileLookup", "true").text(uris)
    return text.select(F.col("_metadata.file_path").alias("file"), "value")


def segments_of(lines: DataFrame, root: str) -> dict[str, str]:
    """The segment of each of the files, by what `file` calls it: worked out once for each, not for every line."""
    below = root.partition("://")[2]
    found: dict[str, str] = {}
    for file in lines.inputFiles():
        path = urllib.parse.unquote(file)
        # A local file is `file:///…` to Spark's listing, and `file:/…` to its rows.
        name = "file:/" + file.removeprefix("file:///") if file.startswith("file:///") else file
        found[name] = path[path.index(below) + len(below) + 1 :]
    return found


def line_number() -> Column:
    """Number of a row of `read_lines`, from 1; only right in the first projection over it."""
    return F.monotonically_increasing_id().bitwiseAND(_ROW_IN_TASK) + 1
