"""TiCDC's csv in files: `op,table,schema,commit-ts[,is-update][,handle key],columns…`, one row a record.

Spark's own reader of csv takes the quoted text "\\N" for NULL, and a line end in quotes for the end of a row; so whole
files are parsed in Python, over Arrow (see `csv_rows`). Format: TiCDC storage sink, CSV protocol documentation."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql import SparkSession

from cdc_lakehouse.decoders.event_schema import DECODED, spark_columns
from cdc_lakehouse.decoders.files.csv_rows import read_rows
from cdc_lakehouse.decoders.files.segment_files import Decoded, SegmentFiles
from cdc_lakehouse.decoders.files.tasks import segments_in_tasks


def decode(spark: SparkSession, files: SegmentFiles) -> Decoded:
    """The columns of `DECODED`; `file` is the segment itself."""
    layouts, options = files.layouts, files.source.csv
    assert options is not None, "the configuration asks for them"

    def rows(path: str, content: bytes) -> Iterator[pa.RecordBatch]:
        for batch in read_rows(content, options, layouts[path]):
            file = pa.repeat(pa.scalar(path), batch.num_rows)
            yield pa.RecordBatch.from_arrays([file, *batch.columns], schema=DECODED)

    events = segments_in_tasks(spark, files.uri, files.storage, files.segments, rows, spark_columns(DECODED))
    return Decoded(events, {segment.path: segment.path for segment in files.segments})
