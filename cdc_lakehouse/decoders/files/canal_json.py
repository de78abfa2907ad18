"""TiCDC's Canal-JSON in files: one message a line, one row a message.

    {"id":0,"database":"d","table":"t","pkNames":["id"],"isDdl":false,"type":"UPDATE","es":…,"ts":…,"sql":"",
     "sqlType":{…},"mysqlType":{…},"old":[{"v":"1"}],"data":[{"id":"1","v":"2"}],"_tidb":{"commitTs":…}}

All values are strings or null. An INSERT's and an UPDATE's new row is in `data`, an UPDATE's old values (all, or only
the changed ones) in `old`, a DELETE's row (all columns, or only the handle key's) in `data`. The commit-ts is in
`_tidb`, which the sink writes only with enable-tidb-extension. Format: TiCDC Canal-JSON protocol documentation."""

from __future__ import annotations

from typing import Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from cdc_lakehouse.decoders import problems
from cdc_lakehouse.decoders.files.lines import evaluated_once, read_lines, segments_of
from cdc_lakehouse.decoders.files.segment_files import Decoded, SegmentFiles

_MESSAGE: Final = (
    "database string, `table` string, isDdl boolean, type string, "
    "old array<map<string,string>>, data array<map<string,string>>, _tidb struct<commitTs:bigint>"
)


def decode(spark: SparkSession, files: SegmentFiles) -> Decoded:
    """The columns of `DECODED`."""
    lines = read_lines(spark, files.uri, files.storage, files.segments)
    return Decoded(_events(lines), segments_of(lines, files.uri, files.segments))


def _events(records: DataFrame) -> DataFrame:
    # As an array of one: Spark's parser stops after the first value of a text and would drop a second message that a
    # lost line end has put on the same line.
    parsed = records.select(
        "file",
        evaluated_once("line").alias("line"),
        "value",
        F.is_valid_utf8("value").alias("valid"),
        (F.col("value") == "").alias("blank"),
        F.from_json(F.concat(F.lit("["), "value", F.lit("]")), f"array<struct<{_MESSAGE}>>").alias("messages"),
    )
    message = F.col("messages")[0]
    kind, data, old = message["type"], message["data"], message["old"]
    row, old_row = F.get(data, F.lit(0)), F.get(old, F.lit(0))
    is_change = kind.isin("INSERT", "UPDATE", "DELETE") & ~F.coalesce(message["isDdl"], F.lit(False))
    has_one_row = (
        (F.size(data) == 1) & row.isNotNull() & ((kind != "UPDATE") | (F.coalesce(F.size(old), F.lit(1)) <= 1))
    )
    problem = (
        F.when(~F.col("valid"), problems.NOT_UTF8)
        .when(F.coalesce(F.size("messages") != 1, F.lit(True)) | message.isNull(), problems.NOT_JSON)
        .when(~F.coalesce(is_change, F.lit(False)), problems.NOT_A_ROW_CHANGE)
        .when(~F.coalesce(has_one_row, F.lit(False)), problems.NO_ROW)
        .when(F.coalesce(message["_tidb"]["commitTs"], F.lit(0)) <= 0, problems.NO_COMMIT_TS)
    )
    is_delete = kind == "DELETE"
    return parsed.where("not blank").select(
        "file",
        "line",
        message["database"].alias("schema_name"),
        message["table"].alias("table_name"),
        F.substring(kind, 1, 1).alias("op"),
        message["_tidb"]["commitTs"].alias("commit_ts"),
        F.when(is_delete, row).when(kind == "UPDATE", old_row).alias("before"),
        F.when(~is_delete, row).alias("after"),
        problem.alias("problem"),
        F.col("value").cast("binary").alias("value"),
    )
