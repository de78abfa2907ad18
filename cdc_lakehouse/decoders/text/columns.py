"""Conversion of text to a form that Arrow's csv reader supports, and reading with it.

Arrow supports doubled quotes, separators of one ASCII byte and no escapes; it accepts any line end, and treats text
next to quotes as part of the value. So quotes are checked first, and sequences that it does not support are replaced by
bytes that do not occur in the text, and restored in the columns. Text with any irregularity is left to a strict reader.

Files of TiCDC's csv and delimited text of dumps are read in pieces of whole records. A piece with anything that TiCDC,
or the dump's tool, does not write is left to the strict reader (`strict`); the result here is the same as there.
"""

from __future__ import annotations

import codecs
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa
from pyarrow import csv

from cdc_lakehouse.changelog.positions import BEGINNING
from cdc_lakehouse.decoders.arrow import Bytes, Mask, Positions, pc
from cdc_lakehouse.decoders.format import BACKSLASH, COMMIT_TS, DATABASE, IS_UPDATE, OP, TABLE, Dialect, Fields
from cdc_lakehouse.decoders.formats.dump_values import CellError, DumpColumn, Rows, sound_rows
from cdc_lakehouse.decoders.text.strict import ESCAPES
from cdc_lakehouse.sources.dump.contents import TextNotation

TAIL: Final = 64 * 1024
"""The number of bytes at the end of a piece in which the end of its last record is searched first."""
_MARKS: Final = [bytes([byte]) for byte in (*range(0xF8, 0x100), 0xC0, 0xC1, *range(0x01, 0x08), *range(0x0E, 0x1A))]
"""Bytes that can replace others where they do not occur in a piece: first those that never occur in UTF-8, and none
that an escape stands for."""
_SEPARATORS: Final = [bytes([byte]) for byte in (0x1F, 0x1E, 0x1D, 0x1C, *range(0x20, 0x7F), *range(0x01, 0x08))]
"""Replacements for a separator that Arrow does not accept."""
_LINE_ENDS: Final = b"\r\n"
_BACKSLASH: Final = ord("\\")


class NotUsualError(Exception):
    """The piece must be read strictly."""


class Marks:
    """Replaces sequences that Arrow does not support by single bytes, and restores them."""

    def __init__(self, text: bytes) -> None:
        self._unused = (mark for mark in _MARKS if mark not in text)
        self._characters: dict[bytes, bytes] = {}

    def unescaped(self, text: bytes, escapes: Mapping[bytes, bytes]) -> tuple[bytes, int]:
        """Replace each escape by a mark, by the byte after the backslash; return the text and the number of other
        escapes."""
        array: Bytes = np.frombuffer(text, np.uint8)
        backslashes = np.flatnonzero(array == _BACKSLASH)
        if not len(backslashes):
            return text, 0
        # In a run of backslashes every other one begins an escape.
        numbers = np.arange(len(backslashes))
        first = np.concatenate([[True], np.diff(backslashes) > 1])
        begins = backslashes[(numbers - np.maximum.accumulate(np.where(first, numbers, 0))) % 2 == 0]
        if begins[-1] + 1 == len(text):
            raise NotUsualError
        behind = array[begins + 1]
        marks: Bytes = np.zeros(256, np.uint8)
        counts = np.bincount(behind, minlength=256)
        for letter, character in escapes.items():
            if counts[letter[0]]:
                marks[letter[0]] = self._of(character)[0]
        known = marks[behind] > 0
        array = array.copy()
        array[begins[known]] = marks[behind[known]]
        kept = np.ones(len(array), bool)
        kept[begins[known] + 1] = False
        return array[kept].tobytes(), int(np.count_nonzero(~known))

    def replaced(self, text: bytes, escape: bytes, character: bytes, *others: bytes) -> list[bytes]:
        """Replace an escape by a mark, in a text and in others."""
        if escape not in text:
            return [text, *others]
        mark = self._of(character)
        return [each.replace(escape, mark) for each in (text, *others)]

    def unused(self) -> bytes:
        """Return a byte that does not occur in the piece."""
        mark = next(self._unused, None)
        if mark is None:
            raise NotUsualError
        return mark

    def _of(self, character: bytes) -> bytes:
        mark = self.unused()
        self._characters[mark] = character
        return mark

    def separated(self, text: bytes, separator: bytes, other: bytes) -> tuple[bytes, bytes]:
        """Replace the separator by one byte that occurs neither in the text nor in `other`; return the text and that
        byte."""
        stand_in = next((byte for byte in _SEPARATORS if byte not in other and byte not in text), None)
        if stand_in is None:
            raise NotUsualError
        # It is restored first: the character of an escape may be the same byte.
        self._characters = {stand_in: separator} | self._characters
        return text.replace(separator, stand_in), stand_in

    def restored(self, column: pa.Array) -> pa.Array:
        text = (column.buffers()[2] or pa.py_buffer(b"")).to_pybytes() if self._characters else b""
        for mark, character in self._characters.items():
            if mark in text:
                column = pc.replace_substring(column, pattern=mark, replacement=character)
        return column


def parsed(
    text: bytes | Bytes, separator: bytes, quote: bytes, null: bytes, width: int, *, blank: bool = False
) -> list[Any]:
    """Parse a text into columns, arrays of bytes. With `blank`, empty lines are allowed and ignored. Raises
    ArrowInvalid."""
    names = [str(number) for number in range(width)]
    table = csv.read_csv(
        pa.py_buffer(text),
        csv.ReadOptions(column_names=names, block_size=len(text) + 1, use_threads=False),
        csv.ParseOptions(
            delimiter=separator.decode(),
            quote_char=quote.decode() or False,
            newlines_in_values=bool(quote),
            ignore_empty_lines=blank,
        ),
        csv.ConvertOptions(
            column_types=dict.fromkeys(names, pa.binary()),
            null_values=[null],
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,
        ),
    )
    return [column.combine_chunks() for column in table.columns]


def quoted_records(text: Bytes, quotes: Positions, beside: bytes) -> int | None:
    """Count the records that begin with a quote. Return None unless quotes come in pairs, the opening one after, the
    closing one before a line end or one of the bytes in `beside`.

    A doubled quote in a value is then an adjacent closing and opening quote.
    """
    if len(quotes) % 2:
        return None
    # Treat the positions before the first and after the last byte as line ends.
    closing, opening = quotes[1::2], quotes[0::2]
    behind = text[np.minimum(closing + 1, len(text) - 1)]
    before = text[np.maximum(opening - 1, 0)]
    if len(closing) and closing[-1] == len(text) - 1:
        behind[-1] = ord("\n")
    if len(opening) and opening[0] == 0:
        before[0] = ord("\n")
    if not (_among(_LINE_ENDS + beside)[behind].all() and _among(_LINE_ENDS + beside)[before].all()):
        return None
    return int(np.count_nonzero(_among(_LINE_ENDS)[before]))


def _among(characters: bytes) -> Mask:
    """Return a table that says for each byte whether it is one of these."""
    table = np.zeros(256, bool)
    table[list(characters)] = True
    return table


def is_plain(text: bytes) -> bool:
    """Whether Arrow accepts it as a separator or a quote."""
    return len(text) == 1 and 0 < text[0] < 0x80 and text not in _LINE_ENDS


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


_CR: Final = ord("\r")
_LF: Final = ord("\n")


class TextPieceReader:
    def __init__(self, notation: TextNotation, columns: Sequence[DumpColumn]) -> None:
        self._notation = notation
        self._columns = columns
        special = (notation.quote[:1], notation.separator[:1], b"'", b'"', b"\\")
        self._escapes = {character: character for character in special if character} | ESCAPES
        self._known = (
            len(columns) > 0
            and (not notation.quote or is_plain(notation.quote))
            and not any(b"\\" + letter in notation.null for letter in self._escapes)
        )

    def read(self, content: bytes, start: int, stop: int, whole: bool) -> Rows | None:
        """See `dump_values.Reader.fast`. With `whole`, the last record ends at `stop`."""
        if not self._known:
            return None
        end = stop if whole else self._end(content, start, stop)
        # Arrow drops a byte order mark.
        if end == start or content.startswith(codecs.BOM_UTF8, start):
            return None
        try:
            texts = self._texts(content[start:end])
        except (NotUsualError, CellError, pa.ArrowInvalid):
            return None
        return sound_rows(self._columns, texts, end)

    def _end(self, content: bytes, start: int, stop: int) -> int:
        """Return the position after the last terminator that is not in quotes."""
        notation, terminator = self._notation, self._notation.terminator
        if notation.backslash_escapes or not notation.quote:
            # In quotes none is raw; if one is, the quotes do not come in pairs.
            found = content.rfind(terminator, start, stop)
            return start if found < 0 else found + len(terminator)
        window: Bytes = np.frombuffer(content, np.uint8, stop - start, start)
        quotes = np.flatnonzero(window == notation.quote[0])
        for tail in (TAIL, len(window)):
            first = max(len(window) - tail, 0)
            ends = np.flatnonzero(window[first:] == _LF) + (first + 1)
            outside = ends[np.searchsorted(quotes, ends) % 2 == 0]
            if len(outside) and content.startswith(terminator, start + int(outside[-1]) - len(terminator)):
                return start + int(outside[-1])
        return start

    def _texts(self, text: bytes) -> list[pa.Array]:
        """Parse a text into columns of values. Raises NotUsualError, CellError and ArrowInvalid."""
        notation, marks = self._notation, Marks(text)
        separator = notation.separator
        others = 0
        if notation.backslash_escapes:
            text, others = marks.unescaped(text, self._escapes)
        if not is_plain(separator):
            text, separator = marks.separated(text, separator, notation.quote + notation.null)
        ends = self._check(text, separator)
        cells = parsed(text, separator, notation.quote, notation.null, len(self._columns))
        nulls = sum(column.null_count for column in cells)
        if notation.backslash_escapes:
            if ends + (not text.endswith(notation.terminator)) != len(cells[0]):
                raise NotUsualError  # One stands in quotes.
            if others != notation.null.count(b"\\") * nulls:
                raise NotUsualError  # A backslash before another byte, or in a quoted text that is written as NULL is.
        return [column.texts(marks.restored(cell)) for column, cell in zip(self._columns, cells, strict=True)]

    def _check(self, text: bytes, separator: bytes) -> int:
        """Check the positions of quotes and line ends; return the number of line ends, in quotes or not. Raises
        NotUsualError for anything unusual."""
        notation = self._notation
        array: Bytes = np.frombuffer(text, np.uint8)
        quotes = np.flatnonzero(array == notation.quote[0]) if notation.quote else np.zeros(0, np.int64)
        beside = separator if notation.backslash_escapes else separator + notation.quote
        if quoted_records(array, quotes, beside) is None:
            raise NotUsualError
        returns, feeds = np.flatnonzero(array == _CR), np.flatnonzero(array == _LF)
        if self._are_ends(returns, feeds):
            return len(feeds)
        if notation.backslash_escapes or not notation.quote:
            raise NotUsualError
        # Raw line ends in quotes are text.
        if not self._are_ends(*(at[np.searchsorted(quotes, at) % 2 == 0] for at in (returns, feeds))):
            raise NotUsualError
        return len(feeds)

    def _are_ends(self, returns: Positions, feeds: Positions) -> bool:
        """Whether these are complete terminators only, with no empty line in a table of several columns."""
        terminator = self._notation.terminator
        if terminator == b"\r\n":
            are_whole = np.array_equal(returns + 1, feeds)
        else:
            are_whole = terminator == b"\n" and not len(returns)
        # Arrow reads an empty line as a row of empty values.
        width = len(terminator)
        is_empty = len(feeds) > 0 and bool(feeds[0] < width or (np.diff(feeds) == width).any())
        return are_whole and not (is_empty and len(self._columns) > 1)
