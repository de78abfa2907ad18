"""Reading of csv with Arrow, in pieces of whole records: for valid files, which nearly all are.

A piece with anything that TiCDC does not write (see `arrow_csv`) is left to `csv_strict`; the result here is the same
as there.
"""

from __future__ import annotations

import codecs
from typing import Final

import numpy as np
import pyarrow as pa

from cdc_lakehouse.changelog.positions import BEGINNING
from cdc_lakehouse.decoders.arrow import Bytes, Positions, pc
from cdc_lakehouse.decoders.files.arrow_csv import TAIL, Marks, NotUsualError, is_plain, parsed, quoted_records
from cdc_lakehouse.decoders.files.csv_format import (
    BACKSLASH,
    COMMIT_TS,
    DATABASE,
    IS_UPDATE,
    OP,
    TABLE,
    Dialect,
    Fields,
)

_OPERATIONS: Final = pa.array(["I", "U", "D"])
_TRUTHS: Final = pa.array(["true", "false"])


class PieceReader:
    def __init__(self, content: bytes, dialect: Dialect, fields: Fields, end_ts: int) -> None:
        self._content = content
        self._bytes: Bytes = np.frombuffer(content, np.uint8)
        self._dialect = dialect
        self._fields = fields
        self._end_ts = end_ts

    def read(self, start: int, size: int) -> tuple[pa.RecordBatch, int] | None:
        """Read the piece from the record at `start`, of at most `size` bytes; return its rows (see `Fields.rows`) and
        its end. None when it is not valid, or holds no whole record."""
        quote = self._dialect.quote
        if quote and not is_plain(quote):
            return None
        window = self._bytes[start : start + size]
        quotes = self._quotes(window)
        length = self._length(window, quotes) if start + size < len(self._content) else len(window)
        # Arrow drops a byte order mark.
        if not length or self._content.startswith(codecs.BOM_UTF8, start):
            return None
        text, quotes = self._content[start : start + length], quotes[: np.searchsorted(quotes, length)]
        try:
            columns = self._quoted(text, quotes) if quote else self._escaped(text)
            return self._rows(columns), start + length
        except (NotUsualError, pa.ArrowInvalid):  # Another number of fields, not UTF-8, a commit-ts beyond 64 bits.
            return None

    def _quotes(self, text: Bytes) -> Positions:
        quote = self._dialect.quote
        return np.flatnonzero(text == quote[0]) if quote else np.zeros(0, np.int64)

    def _length(self, window: Bytes, quotes: Positions) -> int:
        """Return the length up to the last line end outside quotes; 0 when there is none."""
        for tail in (TAIL, len(window)):
            first = max(len(window) - tail, 0)
            last = window[first:]
            ends = np.flatnonzero((last == ord("\n")) | (last == ord("\r"))) + (first + 1)
            outside = ends[np.searchsorted(quotes, ends) % 2 == 0]
            if len(outside):
                # A cut between a CR and its LF does no harm: the LF is then an empty line.
                return int(outside[-1])
        return 0

    def _quoted(self, text: bytes, quotes: Positions) -> list[pa.Array]:
        """Parse a text with quotes into columns. Raises NotUsualError and ArrowInvalid."""
        dialect, marks = self._dialect, Marks(text)
        delimiter = dialect.delimiter
        if not is_plain(delimiter):
            text, delimiter = marks.separated(text, delimiter, dialect.quote + dialect.null)
            quotes = self._quotes(np.frombuffer(text, np.uint8))
        records = quoted_records(np.frombuffer(text, np.uint8), quotes, dialect.quote + delimiter)
        if records is None:
            raise NotUsualError
        columns = parsed(text, delimiter, dialect.quote, dialect.null, self._fields.width, blank=True)
        if records != len(columns[0]):
            raise NotUsualError  # All records begin with a quote.
        return [marks.restored(column).cast(pa.string()) for column in columns]

    def _escaped(self, text: bytes) -> list[pa.Array]:
        """Parse a text without quotes into columns. Raises NotUsualError and ArrowInvalid."""
        delimiter, null, marks = self._dialect.delimiter, self._dialect.null, Marks(text)
        for escape, character in self._dialect.escapes.items():
            text, null = marks.replaced(text, escape, character, null)
        if not is_plain(delimiter):
            text, delimiter = marks.separated(text, delimiter, null)
        columns = parsed(text, delimiter, b"", null, self._fields.width, blank=True)
        if text.count(BACKSLASH) != null.count(BACKSLASH) * sum(column.null_count for column in columns):
            raise NotUsualError  # A backslash begins no escape, and is not NULL's.
        return [marks.restored(column).cast(pa.string()) for column in columns]

    def _rows(self, columns: list[pa.Array]) -> pa.RecordBatch:
        """Build the rows, if all of them are valid. Raises NotUsualError and ArrowInvalid."""
        fields, count = self._fields, len(columns[0])
        # A table may have the name that NULL is written as: no leading field is ever NULL.
        leading = [column.fill_null(self._dialect.null.decode()) for column in columns[: fields.leading]]
        commit_ts = leading[COMMIT_TS].cast(pa.int64())
        checks = [
            pc.all(pc.is_in(leading[OP], _OPERATIONS)),
            pc.all(pc.ascii_is_decimal(leading[COMMIT_TS])),
            pc.all(pc.greater(commit_ts, BEGINNING)),
            pc.all(pc.less(commit_ts, self._end_ts)),
        ]
        rows = [leading[OP], leading[TABLE], leading[DATABASE], commit_ts]
        if fields.old_value:
            checks.append(pc.all(pc.is_in(leading[IS_UPDATE], _TRUTHS)))
            rows.append(pc.equal(leading[IS_UPDATE], "true"))
        if not all(check.as_py() for check in checks):
            raise NotUsualError
        nothing = [pa.nulls(count, pa.string()), pa.nulls(count, pa.binary())]
        return pa.RecordBatch.from_arrays(
            [*rows, *columns[fields.width - fields.columns :], *nothing], schema=fields.rows
        )
