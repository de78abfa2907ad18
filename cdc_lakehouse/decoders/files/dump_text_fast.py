"""Reading of a dump's delimited text with Arrow, in pieces of whole records: for valid rows, as nearly all are.

A piece with anything unusual (see `arrow_csv`) is left to `dump_text_strict`; the result here is the same as there.
"""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from typing import Final

import numpy as np
import pyarrow as pa

from cdc_lakehouse.decoders.arrow import Bytes, Positions
from cdc_lakehouse.decoders.files.arrow_csv import TAIL, Marks, NotUsualError, is_plain, parsed, quoted_records
from cdc_lakehouse.decoders.files.dump_records import Rows, sound_rows
from cdc_lakehouse.decoders.files.dump_text_strict import ESCAPES
from cdc_lakehouse.decoders.files.dump_values import CellError, DumpColumn
from cdc_lakehouse.sources.dump.notation import TextNotation

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
        """See `dump_records.Reader.fast`. With `whole`, the last record ends at `stop`."""
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
