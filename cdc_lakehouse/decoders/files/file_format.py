"""What a decoder of files is given, and what it gives."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

from cdc_lakehouse.changelog.positions import END_TS, is_commit_ts
from cdc_lakehouse.config import CsvOptions
from cdc_lakehouse.decoders.files.csv_format import Layout


@dataclass(frozen=True)
class FileContext:
    """What a decoder needs to know of one file: whose it is, as its path says, and with csv what stands in it."""

    database: str
    table: str
    csv: CsvOptions | None = None
    layout: Layout | None = None
    end_ts: int = END_TS
    """Of `positions.end_ts_at` when the file landed: so a file is decoded as before whenever that is done again."""


def commit_ts_of(text: str, end_ts: int) -> int | None:
    """A commit-ts by its digits; None when it cannot be one."""
    digits = text.lstrip("0")
    return int(digits) if _DIGITS.fullmatch(digits) and is_commit_ts(int(digits), end_ts) else None


_DIGITS: Final = re.compile("[0-9]{1,19}")


@dataclass(frozen=True)
class FileFormat:
    """`decode` makes batches of `event_schema.DECODED` of a file's content, in the order of its lines, with a DuckDB
    connection of `duckdb_sql.database`. The content is bytes, or with `in_parts` an iterator of its parts, cut
    anywhere."""

    decode: Callable[[Any, Any, FileContext], Iterator[pa.RecordBatch]]
    in_parts: bool = False
