"""Delimited text of a dump read by Arrow, a piece of whole records at a time: for sound rows, which nearly all are.

Arrow knows quotes that are doubled, separators of one ASCII byte and no escapes, and takes any line end for one. So
quoting and line ends are checked first, and what it does not know is replaced by bytes that are nowhere in the piece,
and put back into the columns. A piece in which anything is not as usual is left to `dump_text_strict`: what is read
here is what would be read there."""

from __future__ import annotations

import codecs
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute
from pyarrow import csv

from cdc_lakehouse.decoders.files.dump_records import Rows, sound_rows
from cdc_lakehouse.decoders.files.dump_text_strict import ESCAPES
from cdc_lakehouse.decoders.files.dump_values import CellError, Column
from cdc_lakehouse.sources.dump.notation import TextNotation

# Arrow makes its functions when it is imported: no type checker knows them.
compute: Any = pyarrow.compute

Positions = np.ndarray[Any, np.dtype[np.int64]]
Bytes = np.ndarray[Any, np.dtype[np.uint8]]

_TAIL: Final = 64 * 1024
"""Bytes at the end of a piece, in which the end of its last record is looked for first."""
_MARKS: Final = [bytes([byte]) for byte in (*range(0xF8, 0x100), 0xC0, 0xC1, *range(0x01, 0x08), *range(0x0E, 0x1A))]
"""Bytes that stand for others where they are nowhere in a piece: those that UTF-8 does not have first, and none that an
escape stands for."""
_SEPARATORS: Final = [bytes([byte]) for byte in (0x1F, 0x1E, 0x1D, 0x1C, *range(0x20, 0x7F), *range(0x01, 0x08))]
"""For a separator that Arrow does not take."""
_LF: Final = ord("\n")
_BACKSLASH: Final = ord("\\")


class NotUsualError(Exception):
    """The piece has to be read strictly."""


class Marks:
    """Replaces what Arrow does not know by single bytes, and puts it back."""

    def __init__(self, text: bytes) -> None:
        self._unused = (mark for mark in _MARKS if mark not in text)
        self._characters: dict[bytes, bytes] = {}

    def unescaped(self, text: bytes, escapes: Mapping[bytes, bytes]) -> tuple[bytes, int]:
        """With a mark for each escape, by what stands behind the backslash; and how many others are left."""
        array: Bytes = np.frombuffer(text, np.uint8)
        backslashes = np.flatnonzero(array == _BACKSLASH)
        if not len(backslashes):
            return text, 0
        # Of a run of them every other one begins an escape.
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

    def unused(self) -> bytes:
        """A byte that is nowhere in the piece."""
        mark = next(self._unused, None)
        if mark is None:
            raise NotUsualError
        return mark

    def _of(self, character: bytes) -> bytes:
        mark = self.unused()
        self._characters[mark] = character
        return mark

    def separated(self, text: bytes, separator: bytes, other: bytes) -> tuple[bytes, bytes]:
        """With another separator, one byte that is not in `other` either; and that."""
        stand_in = next((byte for byte in _SEPARATORS if byte not in other and byte not in text), None)
        if stand_in is None:
            raise NotUsualError
        # It is put back first: what an escape stands for may be the same byte.
        self._characters = {stand_in: separator} | self._characters
        return text.replace(separator, stand_in), stand_in

    def restored(self, column: pa.Array) -> pa.Array:
        text = (column.buffers()[2] or pa.py_buffer(b"")).to_pybytes() if self._characters else b""
        for mark, character in self._characters.items():
            if mark in text:
                column = compute.replace_substring(column, pattern=mark, replacement=character)
        return column


class TextPieceReader:
    def __init__(self, notation: TextNotation, columns: Sequence[Column]) -> None:
        self._notation = notation
        self._columns = columns
        special = (notation.quote[:1], notation.separator[:1], b"'", b'"', b"\\")
        self._escapes = {character: character for character in special if character} | ESCAPES
        self._known = (
            len(columns) > 0
            and (not notation.quote or _plain(notation.quote))
            and not any(b"\\" + letter in notation.null for letter in self._escapes)
        )

    def read(self, content: bytes, start: int, stop: int, whole: bool) -> Rows | None:
        """See `dump_records.Reader.fast`. `whole`: the last record ends at `stop`."""
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
        """Behind the last terminator that is not in quotes."""
        notation, terminator = self._notation, self._notation.terminator
        if notation.backslash_escapes or not notation.quote:
            # Within quotes none stands raw; if one does, the quotes do not come in pairs.
            found = content.rfind(terminator, start, stop)
            return start if found < 0 else found + len(terminator)
        window: Bytes = np.frombuffer(content, np.uint8, stop - start, start)
        quotes = np.flatnonzero(window == notation.quote[0])
        for tail in (_TAIL, len(window)):
            first = max(len(window) - tail, 0)
            ends = np.flatnonzero(window[first:] == _LF) + (first + 1)
            outside = ends[np.searchsorted(quotes, ends) % 2 == 0]
            if len(outside) and content.startswith(terminator, start + int(outside[-1]) - len(terminator)):
                return start + int(outside[-1])
        return start

    def _texts(self, text: bytes) -> list[pa.Array]:
        """Raises NotUsualError, CellError and ArrowInvalid."""
        notation, marks = self._notation, Marks(text)
        separator = notation.separator
        others = 0
        if notation.backslash_escapes:
            text, others = marks.unescaped(text, self._escapes)
        if not _plain(separator):
            text, separator = marks.separated(text, separator, notation.quote + notation.null)
        self._check(text, separator)
        cells = parsed(text, separator, notation.quote, notation.null, len(self._columns))
        nulls = sum(column.null_count for column in cells)
        ends = text.count(notation.terminator) + (not text.endswith(notation.terminator))
        if notation.backslash_escapes and ends != len(cells[0]):
            raise NotUsualError  # One stands in quotes.
        if notation.backslash_escapes and others != notation.null.count(b"\\") * nulls:
            raise NotUsualError  # A backslash before another byte, or in a quoted text that is written as NULL is.
        return [column.texts(marks.restored(cell)) for column, cell in zip(self._columns, cells, strict=True)]

    def _check(self, text: bytes, separator: bytes) -> None:
        """Raises NotUsualError unless quotes and line ends are as they must be."""
        notation = self._notation
        array: Bytes = np.frombuffer(text, np.uint8)
        quotes = np.flatnonzero(array == notation.quote[0]) if notation.quote else np.zeros(0, np.int64)
        beside = separator if notation.backslash_escapes else separator + notation.quote
        if not _paired(array, quotes, beside):
            raise NotUsualError
        end, width = notation.terminator, len(notation.terminator)
        usual = text.count(b"\r") + text.count(b"\n") == text.count(end) * width
        # Arrow takes an empty line for a row of empty values.
        empty = len(self._columns) > 1 and (text.startswith(end) or end * 2 in text)
        if usual and not empty:
            return
        if notation.backslash_escapes or not notation.quote:
            raise NotUsualError
        # Raw line ends are text in quotes; outside there are whole terminators only.
        returns, feeds = np.flatnonzero(array == ord("\r")), np.flatnonzero(array == _LF)
        returns, feeds = (at[np.searchsorted(quotes, at) % 2 == 0] for at in (returns, feeds))
        if not np.array_equal(returns + 1, feeds if width > 1 else []):
            raise NotUsualError
        if len(feeds) and (feeds[0] < width or (np.diff(feeds) == width).any()):
            raise NotUsualError


def parsed(text: bytes, separator: bytes, quote: bytes, null: bytes, width: int, *, blank: bool = False) -> list[Any]:
    """The columns of a text, arrays of bytes. `blank`: lines may be empty and are nothing then. Raises ArrowInvalid."""
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


def _paired(text: Bytes, quotes: Positions, beside: bytes) -> bool:
    """Whether quotes come in pairs, each opening one behind, each closing one before a line end or one of `beside`.

    A doubled quote in a value is then a closing and an opening one, side by side."""
    if len(quotes) % 2:
        return False
    if not len(quotes):
        return True
    among = np.zeros(256, bool)
    among[list(b"\r\n" + beside)] = True
    opening, closing = quotes[0::2], quotes[1::2]
    # What is beside the first and the last byte is as good as a line end.
    before = opening if opening[0] > 0 else opening[1:]
    behind = closing if closing[-1] < len(text) - 1 else closing[:-1]
    return bool(among[text[before - 1]].all() and among[text[behind + 1]].all())


def _plain(text: bytes) -> bool:
    """Arrow takes it for a separator or a quote."""
    return len(text) == 1 and 0 < text[0] < 0x80 and text not in b"\r\n"
