"""Text files as lines that know their segment and their number."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

# The session reads each file as one task (see lake.session), so the row's number in its task is the line's in its file.
_ROW_IN_TASK: Final = (1 << 33) - 1


def read_lines(spark: SparkSession, root: str, segments: Sequence[str]) -> DataFrame:
    """Lines of the files `segments`, paths below the URI `root`: columns `segment` and `value`.

    CR LF, LF and CR end a line. Names are taken as they are: no globbing, no partition columns from `a=b` directories.
    """
    uris = [f"{root}/{segment}" for segment in segments]
    text = spark.read.option("__globPaths__", "false").option("recursiveFileLookup", "true").text(uris)
    path = F.url_decode(F.replace(F.col("_metadata.file_path"), F.lit("+"), F.lit("%2B")))
    below = root.partition("://")[2]
    start = F.instr(path, below) + len(below) + 1
    return text.select(F.substr(path, start).alias("segment"), "value")


def line_number() -> Column:
    """Number of a row of `read_lines`, from 1; only right in the first projection over it."""
    return F.monotonically_increasing_id().bitwiseAND(_ROW_IN_TASK) + 1
