"""Csv read by Arrow, a piece of whole records at a time: for sound files, which is nearly all there are.

Arrow's reader takes text beside quotes for part of the value and delimiters of one ASCII byte only, and does not know
TiCDC's escapes. So quoting is checked first, another delimiter is replaced by a byte that is nowhere in the piece, and
escapes by bytes that no UTF-8 text has; what was put in a value's place is taken back out of the columns. A piece in
which anything is not as TiCDC writes it is left to `csv_records`: what is read here is what would be read there."""

from __future__ import annotations

import codecs
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute
from pyarrow import csv

from cdc_lakehouse.changelog.positions import BEGINNING, END_TS
from cdc_lakehouse.decoders.files.csv_dialect import BACKSLASH, LINE_ENDS, Dialect
from cdc_lakehouse.decoders.files.csv_layout import COMMIT_TS, DATABASE, IS_UPDATE, OP, TABLE, Fields

# Arrow makes its functions when it is imported: no type checker knows them.
compute: Any = pyarrow.compute

Positions = np.ndarray[Any, np.dtype[np.int64]]
Bytes = np.ndarray[Any, np.dtype[np.uint8]]
Mask = np.ndarray[Any, np.dtype[np.bool_]]

_TAIL: Final = 64 * 1024
"""Bytes at the end of a piece, in which the end of its last record is looked for first."""
_OPERATIONS: Final = pa.array(["I", "U", "D"])
_TRUTHS: Final = pa.array(["true", "false"])

_MARKS: Final = [bytes([byte]) for byte in range(0xF8, 0x100)]
"""Bytes that are in no UTF-8 text."""
_STAND_INS: Final = [bytes([byte]) for byte in (0x1F, 0x1E, 0x1D, 0x1C, *range(0x20, 0x7F), *range(0x01, 0x09))]
"""For a delimiter that Arrow does not take."""


class Text(NamedTuple):
    """A piece in a form that Arrow reads."""

    text: pa.Buffer
    delimiter: bytes
    null: bytes
    marks: dict[bytes, bytes]
    """What stands in it for what; its columns have it yet."""
    records: int | None
    """How many records begin with a quote, as with a quote all must."""


class PieceReader:
    def __init__(self, content: bytes, dialect: Dialect, fields: Fields) -> None:
        self._content = content
        self._bytes: Bytes = np.frombuffer(content, np.uint8)
        self._buffer = pa.py_buffer(content)
        self._dialect = dialect
        self._fields = fields
        self._text = self._quoted if _plain(dialect.delimiter) else self._replaced
        if not dialect.quote:
            self._text = self._escaped

    def read(self, start: int, size: int) -> tuple[pa.RecordBatch, int] | None:
        """The rows (see `Fields.rows`) of the piece from the record at `start`, of at most `size` bytes; and its end.

        None when it is not sound, or holds no whole record."""
        quote = self._dialect.quote
        if quote and not _plain(quote):
            return None
        window = self._bytes[start : start + size]
        quotes = self._quotes(window)
        length = self._length(window, quotes) if start + size < len(self._content) else len(window)
        text = self._text(start, start + length, quotes[: np.searchsorted(quotes, length)]) if length else None
        if text is None:
            return None
        try:
            rows = self._checked(self._parsed(text), text.records)
        except pa.ArrowInvalid:  # Another number of fields, not UTF-8, or a commit-ts beyond 64 bits.
            return None
        return None if rows is None else (rows, start + length)

    def _quotes(self, text: Bytes) -> Positions:
        quote = self._dialect.quote
        return np.flatnonzero(text == quote[0]) if quote else np.zeros(0, np.int64)

    def _length(self, window: Bytes, quotes: Positions) -> int:
        """Up to the last line end outside quotes; 0 when there is none."""
        for tail in (_TAIL, len(window)):
            first = max(len(window) - tail, 0)
            last = window[first:]
            ends = np.flatnonzero((last == ord("\n")) | (last == ord("\r"))) + (first + 1)
            outside = ends[np.searchsorted(quotes, ends) % 2 == 0]
            if len(outside):
                # Between a CR and its LF is as good as behind both: the LF is then an empty line.
                return int(outside[-1])
        return 0

    def _quoted(self, start: int, end: int, quotes: Positions) -> Text | None:
        dialect = self._dialect
        records = _quoted_records(self._bytes[start:end], quotes, dialect.quote + dialect.delimiter)
        if records is None:
            return None
        return Text(self._buffer.slice(start, end - start), dialect.delimiter, dialect.null, {}, records)

    def _replaced(self, start: int, end: int, quotes: Positions) -> Text | None:
        text, dialect = self._content[start:end], self._dialect
        stand_in = next((byte for byte in _STAND_INS if byte != dialect.quote and byte not in text), None)
        if stand_in is None:
            return None
        text = text.replace(dialect.delimiter, stand_in)
        array: Bytes = np.frombuffer(text, np.uint8)
        records = _quoted_records(array, self._quotes(array), dialect.quote + stand_in)
        if records is None:
            return None
        return Text(pa.py_buffer(text), stand_in, dialect.null, {stand_in: dialect.delimiter}, records)

    def _escaped(self, start: int, end: int, quotes: Positions) -> Text | None:
        text, null, delimiter = self._content[start:end], self._dialect.null, self._dialect.delimiter
        # Arrow drops a byte order mark.
        if self._bytes[start:end].max() >= _MARKS[0][0] or text.startswith(codecs.BOM_UTF8):
            return None
        stand_in = delimiter if _plain(delimiter) else next(byte for byte in _STAND_INS if byte not in delimiter)
        replacements = self._dialect.escapes | ({stand_in: stand_in} if stand_in != delimiter else {})
        marks: dict[bytes, bytes] = {}
        for mark, (escape, character) in zip(_MARKS, replacements.items(), strict=False):
            null = null.replace(escape, mark)
            if escape in text:
                text = text.replace(escape, mark)
                marks[mark] = character
        text = text.replace(delimiter, stand_in)
        return Text(pa.py_buffer(text), stand_in, null, marks, None)

    def _parsed(self, text: Text) -> pa.RecordBatch:
        quote, fields = self._dialect.quote, self._fields
        names = [str(number) for number in range(fields.width)]
        # Marks are not UTF-8: where they can be, that is checked when they are gone.
        kind = pa.string() if quote else pa.binary()
        table = csv.read_csv(
            pa.BufferReader(text.text),
            csv.ReadOptions(column_names=names, block_size=len(text.text) + 1, use_threads=False),
            csv.ParseOptions(
                delimiter=text.delimiter.decode(), quote_char=quote.decode() or False, newlines_in_values=bool(quote)
            ),
            csv.ConvertOptions(
                column_types=dict.fromkeys(names, kind),
                null_values=[text.null],
                strings_can_be_null=True,
                quoted_strings_can_be_null=False,
            ),
        )
        columns = [column.combine_chunks() for column in table.columns]
        if not quote:
            _require_no_stray_backslash(text, columns)
        columns = [_unmarked(column, text.marks).cast(pa.string()) for column in columns]
        return pa.RecordBatch.from_arrays(columns, names=names)

    def _checked(self, read: pa.RecordBatch, records: int | None) -> pa.RecordBatch | None:
        """The rows, when all of them are good ones."""
        if records not in (None, read.num_rows):
            return None
        fields, columns = self._fields, read.columns
        # A table whose name is what NULL is written as: no leading field is ever NULL.
        leading = [column.fill_null(self._dialect.null.decode()) for column in columns[: fields.leading]]
        commit_ts = leading[COMMIT_TS].cast(pa.int64())
        checks = [
            compute.all(compute.is_in(leading[OP], _OPERATIONS)),
            compute.all(compute.ascii_is_decimal(leading[COMMIT_TS])),
            compute.all(compute.greater(commit_ts, BEGINNING)),
            compute.all(compute.less(commit_ts, END_TS)),
        ]
        rows = [leading[OP], leading[TABLE], leading[DATABASE], commit_ts]
        if fields.old_value:
            checks.append(compute.all(compute.is_in(leading[IS_UPDATE], _TRUTHS)))
            rows.append(compute.equal(leading[IS_UPDATE], "true"))
        if not all(check.as_py() for check in checks):
            return None
        nothing = [pa.nulls(read.num_rows, pa.string()), pa.nulls(read.num_rows, pa.binary())]
        return pa.RecordBatch.from_arrays(
            [*rows, *columns[fields.width - fields.columns :], *nothing], schema=fields.rows
        )


def _plain(text: bytes) -> bool:
    """Arrow takes it for a delimiter or a quote."""
    return len(text) == 1 and 0 < text[0] < 0x80


def _quoted_records(text: Bytes, quotes: Positions, beside: bytes) -> int | None:
    """How many records begin with a quote. None when quotes are not as they must be: in pairs, each opening one behind,
    each closing one before a line end or one of `beside`.

    A doubled quote in a value is then a closing and an opening one, side by side."""
    if len(quotes) % 2:
        return None
    # What is beside the first and the last byte is as good as a line end.
    closing, opening = quotes[1::2], quotes[0::2]
    behind = text[np.minimum(closing + 1, len(text) - 1)]
    before = text[np.maximum(opening - 1, 0)]
    if len(closing) and closing[-1] == len(text) - 1:
        behind[-1] = ord("\n")
    if len(opening) and opening[0] == 0:
        before[0] = ord("\n")
    if not (_among(LINE_ENDS + beside)[behind].all() and _among(LINE_ENDS + beside)[before].all()):
        return None
    return int(np.count_nonzero(_among(LINE_ENDS)[before]))


def _among(characters: bytes) -> Mask:
    """For each byte, whether it is one of them."""
    table = np.zeros(256, bool)
    table[list(characters)] = True
    return table


def _require_no_stray_backslash(text: Text, columns: list[pa.Array]) -> None:
    """Raises ArrowInvalid when a backslash is left that is not NULL's."""
    found = text.text.to_pybytes().count(BACKSLASH)
    if found != text.null.count(BACKSLASH) * sum(column.null_count for column in columns):
        raise pa.ArrowInvalid("a backslash that begins no escape")


def _unmarked(column: pa.Array, marks: dict[bytes, bytes]) -> pa.Array:
    text = (column.buffers()[2] or pa.py_buffer(b"")).to_pybytes() if marks else b""
    for mark, character in marks.items():
        if mark in text:
            column = compute.replace_substring(column, pattern=mark, replacement=character)
    return column
