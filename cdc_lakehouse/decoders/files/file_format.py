"""The interface of file decoders: their input and output."""

from __future__ import annotations

import datetime
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal

import pyarrow as pa

from cdc_lakehouse.changelog.positions import END_TS, is_commit_ts
from cdc_lakehouse.config import CsvOptions
from cdc_lakehouse.decoders.files.csv_format import Layout


@dataclass(frozen=True)
class FileContext:
    """The facts that a decoder needs of one file: its table, from its path, and with csv its options and layout."""

    database: str
    table: str
    csv: CsvOptions | None = None
    layout: Layout | None = None
    end_ts: int = END_TS
    """The value of `positions.end_ts_at` when the file landed: so a file that is decoded again gives the same result.
    """


def commit_ts_of(text: str, end_ts: int) -> int | None:
    """Return a commit-ts from its digits; None when it cannot be one."""
    digits = text.lstrip("0")
    return int(digits) if _DIGITS.fullmatch(digits) and is_commit_ts(int(digits), end_ts) else None


_DIGITS: Final = re.compile("[0-9]{1,19}")


@dataclass(frozen=True)
class Sample:
    """The beginning of a data file. `database` and `table` are None where its path does not give them."""

    path: str
    database: str | None
    table: str | None
    head: bytes


@dataclass(frozen=True)
class DetectedFiles:
    """The findings about data files from their content. `source` holds keys of the configuration's `source`. `offset`
    is the offset from UTC in which TIMESTAMP text was written; None where it does not show. `unsure` holds sentences
    about settings that do not show."""

    source: Mapping[str, Any] = field(default_factory=dict[str, Any])
    offset: datetime.timedelta | None = None
    unsure: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class FileFormat:
    """A protocol of files, with every fact that the rest of the product needs. The options of a protocol are those of
    the sink's section `csv`, None where it has none."""

    extension: str
    """The extension of data files, without the dot."""
    decode: Callable[[Any, Any, FileContext], Iterator[pa.RecordBatch]]
    """Decodes a file's content into batches of `event_schema.DECODED`, in the order of its lines, with a DuckDB
    connection of `duckdb_sql.database`. The content is bytes, or with `in_parts` an iterator of its parts, cut
    anywhere."""
    in_parts: bool = False
    redelivers: Callable[[bytes, Sequence[bytes], CsvOptions | None], bool]
    """Whether later files contain everything of a file that was cut off: see `redelivered`. Called with the contents,
    those of the later files in their order."""
    detect: Callable[[Sequence[Sample]], DetectedFiles]
    """Detects the options that files were written with. Raises `SourceError` for those that can never be used."""
    lacks_commit_ts: Callable[[bytes], bool] | None = None
    """Whether the beginning of a file shows that the sink is configured to write no commit-ts; None where an option
    says so."""
    needs_layout: bool = False
    """Whether rows are values without names, so that a decoder needs the `layout` of a file."""
    has_labels: bool = False
    """Whether values of ENUM and SET are labels, not the source's numbers."""
    binary: Callable[[CsvOptions | None], Literal["characters", "base64", "hex"]] = lambda options: "characters"
    """Returns the notation of binary values, as in `ValueFormat`."""
