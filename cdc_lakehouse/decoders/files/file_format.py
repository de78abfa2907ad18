"""What a decoder of files is given, and what it gives."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from cdc_lakehouse.config import CsvOptions
from cdc_lakehouse.decoders.files.csv_layout import Layout


@dataclass(frozen=True)
class FileContext:
    """What a decoder needs to know of one file: whose it is, as its path says, and with csv what stands in it."""

    database: str
    table: str
    csv: CsvOptions | None = None
    layout: Layout | None = None


Decode = Callable[[Any, bytes, FileContext], Iterator[pa.RecordBatch]]
"""Makes batches of `event_schema.DECODED` of a file's content, in the order of its lines, with a DuckDB connection of
`duckdb_sql.database`."""
