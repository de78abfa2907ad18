"""TiCDC's csv in files: `op,table,schema,commit-ts[,is-update][,handle key],columns…`, one row a record.

Readers of csv take the quoted text "\\N" for NULL, or a line end in quotes for the end of a row; so files are parsed
here, over Arrow (see `csv_rows`). Format: TiCDC storage sink, CSV protocol documentation."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from cdc_lakehouse.decoders.files.csv_rows import read_rows
from cdc_lakehouse.decoders.files.file_format import FileContext


def decode(connection: Any, content: bytes, context: FileContext) -> Iterator[pa.RecordBatch]:
    """The columns of `DECODED`."""
    return read_rows(connection, content, context)
