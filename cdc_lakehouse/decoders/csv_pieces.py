"""Csv read by Arrow, a piece of whole records at a time: for sound files, which is nearly all there are.

Arrow's reader takes text beside quotes for part of the value, one-byte delimiters only, and knows no escapes as TiCDC
writes them. So quoting is checked before, longer delimiters are replaced by one byte where they stand outside quotes,
and escapes by bytes that no UTF-8 text has. A piece in which anything is not as TiCDC writes it is left to
`csv_records`, as a whole: what is read here is what would be read there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute
from pyarrow import csv

from cdc_lakehouse.decoders.csv_dialect import BACKSLASH, Dialect
from cdc_lakehouse.decoders.csv_layout import COMMIT_TS, DATABASE, IS_UPDATE, OP, TABLE, Fields

# Arrow makes its functions when it is imported: no type checker knows them.
compute: Any = pyarrow.compute

Positions = np.ndarray[Any, np.dtype[np.int64]]
Bytes = np.ndarray[Any, np.dtype[np.uint8]]

PIECE: Final = 8 * 1024 * 1024
"""Bytes of a file that are read at a time. In shorter pieces more time goes into
calls, longer ones fall out of the processor's cache."""

_TAIL: Final = 64 * 1024
_ARROW_LIMIT: Final = 1 << 30
_OPERATIONS: Final = pa.array(["I", "U", "D"])
_TRUTHS: Final = pa.array(["true", "false"])

_MARKS: Final = [bytes([byte]) for byte in range(0xF8, 0x100)]
"""Bytes that are in no UTF-8 text."""
_STAND_INS: Final = [bytes([byte]) for byte in (0x1F, 0x1E, 0x1D, 0x1C, *range(0x20, 0x7F), *range(0x01, 0x09))]
"""For a delimiter that Arrow does not take."""

_BESIDE_QUOTES: Final = b"\r\n"


class Piece(NamedTuple):
    """Records of a file, if it is sound: from `start` to before `end`, with the quotes in it, counted from `start`."""

    start: int
    end: int
    quotes: Positions


class Text(NamedTuple):
    """A piece in a form that Arrow reads."""

    text: pa.Buffer
    delimiter: bytes
    null: bytes
    marks: dict[bytes, bytes]
    """What was put for what; its columns have it yet."""


class PieceReader:
    def __init__(self, content: bytes, dialect: Dialect, fields: Fields, piece: int = PIECE) -> None:
        self._content = content
        self._bytes: Bytes = np.frombuffer(content, np.uint8)
        self._buffer = pa.py_buffer(content)
        self._dialect = dialect
        self._fields = fields
        self._piece = piece
        self._prepare = self._preparation()

    def cut(self, start: int) -> Piece:
        """The piece that begins with the record at `start`. Only a record that is longer makes it longer than asked."""
        size = self._piece
        while True:
            stop = start + size
            quotes = self._quotes(self._bytes[start:stop])
            if stop >= len(self._content):
                return Piece(start, len(self._content), quotes)
            for reach in (_TAIL, size):
                length = self._last_record_end(start, stop, min(reach, size), quotes)
                if length:
                    return Piece(start, start + length, quotes[: np.searchsorted(quotes, length)])
            size *= 2

    def read(self, piece: Piece) -> pa.RecordBatch | None:
        """The rows of a piece, see `Fields.rows`; None when it is not sound."""
        if not 0 < piece.end - piece.start < _ARROW_LIMIT:
            return None
        text = self._prepare(piece)
        if text is None:
            return None
        try:
            return self._checked(self._parsed(text))
        except pa.ArrowInvalid:  # Another number of fields, not UTF-8, or a commit-ts beyond 64 bits.
            return None

    def _preparation(self) -> Callable[[Piece], Text | None]:
        dialect = self._dialect
        if not dialect.quote:
            return self._escaped
        if not _plain(dialect.quote):
            return lambda piece: None
        return self._quoted if _plain(dialect.delimiter) else self._replaced

    def _quotes(self, text: Bytes) -> Positions:
        quote = self._dialect.quote
        return np.flatnonzero(text == quote[0]) if len(quote) == 1 else np.zeros(0, np.int64)

    def _last_record_end(self, start: int, stop: int, reach: int, quotes: Positions) -> int:
        """Length up to the last line end outside quotes, of those in the last `reach` bytes; 0 when there is none."""
        tail = self._bytes[stop - reach : stop]
        ends = np.flatnonzero((tail == 10) | (tail == 13)) + (stop - reach - start + 1)
        outside = ends[np.searchsorted(quotes, ends) % 2 == 0]
        # Between a CR and its LF is as good as behind both: the LF is then an empty line.
        return int(outside[-1]) if len(outside) else 0

    def _quoted(self, piece: Piece) -> Text | None:
        text, delimiter = self._bytes[piece.start : piece.end], self._dialect.delimiter
        if not _quotes_sound(text, piece.quotes, self._dialect.quote + delimiter):
            return None
        return Text(self._buffer.slice(piece.start, len(text)), delimiter, self._dialect.null, {})

    def _replaced(self, piece: Piece) -> Text | None:
        """With a one-byte delimiter, between the quotes of which there may be anything."""
        if len(piece.quotes) % 2:
            return None
        quote = self._dialect.quote
        parts = self._content[piece.start : piece.end].split(quote)
        outside = quote.join(parts[::2])
        stand_in = next((byte for byte in _STAND_INS if byte not in outside and byte != quote), None)
        if stand_in is None:
            return None
        parts[::2] = outside.replace(self._dialect.delimiter, stand_in).split(quote)
        text = quote.join(parts)
        array: Bytes = np.frombuffer(text, np.uint8)
        if not _quotes_sound(array, self._quotes(array), quote + stand_in):
            return None
        return Text(pa.py_buffer(text), stand_in, self._dialect.null, {})

    def _escaped(self, piece: Piece) -> Text | None:
        text, null, delimiter = self._content[piece.start : piece.end], self._dialect.null, self._dialect.delimiter
        if self._bytes[piece.start : piece.end].max() >= _MARKS[0][0]:
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
        return Text(pa.py_buffer(text), stand_in, null, marks)

    def _parsed(self, text: Text) -> pa.RecordBatch:
        quote, fields = self._dialect.quote, self._fields
        names = [str(number) for number in range(fields.width)]
        kept = names[: fields.leading] + names[fields.leading + fields.handle_key :]
        # Marks are not UTF-8: where they can be, that is checked when they are gone.
        kind = pa.string() if quote else pa.binary()
        table = csv.read_csv(
            pa.BufferReader(text.text),
            csv.ReadOptions(column_names=names, block_size=len(text.text) + 1, use_threads=False),
            csv.ParseOptions(
                delimiter=text.delimiter.decode(), quote_char=quote.decode() or False, newlines_in_values=bool(quote)
            ),
            csv.ConvertOptions(
                column_types=dict.fromkeys(kept, kind),
                include_columns=kept,
                null_values=[text.null],
                strings_can_be_null=True,
                quoted_strings_can_be_null=False,
            ),
        )
        columns = [column.combine_chunks() for column in table.columns]
        if not quote:
            _require_no_stray_backslash(text, columns)
            columns = [_unmarked(column, text.marks).cast(pa.string()) for column in columns]
        return pa.RecordBatch.from_arrays(columns, names=kept)

    def _checked(self, read: pa.RecordBatch) -> pa.RecordBatch | None:
        """The rows, when all of them are good ones."""
        fields, columns = self._fields, read.columns
        # A table whose name is what NULL is written as: no leading field is ever NULL.
        leading = [column.fill_null(self._dialect.null.decode()) for column in columns[: fields.leading]]
        commit_ts = leading[COMMIT_TS].cast(pa.int64())
        checks = [
            compute.all(compute.is_in(leading[OP], _OPERATIONS)),
            compute.all(compute.ascii_is_decimal(leading[COMMIT_TS])),
            compute.all(compute.greater(commit_ts, 0)),
        ]
        rows = [leading[OP], leading[TABLE], leading[DATABASE], commit_ts]
        if fields.old_value:
            checks.append(compute.all(compute.is_in(leading[IS_UPDATE], _TRUTHS)))
            rows.append(compute.equal(leading[IS_UPDATE], "true"))
        if not all(check.as_py() for check in checks):
            return None
        nothing = [pa.nulls(read.num_rows, pa.string()), pa.nulls(read.num_rows, pa.binary())]
        return pa.RecordBatch.from_arrays([*rows, *columns[fields.leading :], *nothing], schema=fields.rows)


def _plain(text: bytes) -> bool:
    """Arrow takes it for a delimiter or a quote."""
    return len(text) == 1 and 0 < text[0] < 0x80


def _quotes_sound(text: Bytes, quotes: Positions, beside: bytes) -> bool:
    """Whether quotes come in pairs, each opening one behind, each closing one before a line end or one of `beside`.

    A doubled quote in a value is then a closing and an opening one, side by side."""
    if len(quotes) % 2:
        return False
    allowed = np.zeros(256, bool)
    allowed[list(_BESIDE_QUOTES + beside)] = True
    opening, closing = quotes[0::2], quotes[1::2]
    if len(closing) and closing[-1] == len(text) - 1:
        closing = closing[:-1]
    if len(opening) and opening[0] == 0:
        opening = opening[1:]
    return bool(allowed[text[closing + 1]].all() and allowed[text[opening - 1]].all())


def _require_no_stray_backslash(text: Text, columns: list[pa.Array]) -> None:
    """Raises ArrowInvalid when a backslash is left that is not NULL's."""
    found = text.text.to_pybytes().count(BACKSLASH)
    if found != text.null.count(BACKSLASH) * sum(column.null_count for column in columns):
        raise pa.ArrowInvalid("a backslash that begins no escape")


def _unmarked(column: pa.Array, marks: dict[bytes, bytes]) -> pa.Array:
    if not marks or np.frombuffer(column.buffers()[2] or b"\0", np.uint8).max(initial=0) < _MARKS[0][0]:
        return column
    for mark, character in marks.items():
        column = compute.replace_substring(column, pattern=mark, replacement=character)
    return column
