"""Strict reading of a dump's delimited text, record by record: slower than `dump_text_fast`, and correct for any bytes.

A value is quoted as a whole or not at all. With backslash escapes, a backslash changes the next byte as in MySQL's LOAD
DATA, and a line end that is text is escaped; else a quote is doubled in quotes, and line ends are raw there. A
terminator without a line end is raw in quotes in both cases.

NULL is the notation's text for it, without quotes. An invalid record ends at the first terminator after its beginning.
Where terminators can be text, the following may be the rest of a text: lines that are no rows, up to the start of the
next row. Format: MySQL manual, "LOAD DATA Statement", "Field and Line Handling"; TiDB's `pkg/dumpformat/csvfile`.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from cdc_lakehouse.decoders.files import dump_records
from cdc_lakehouse.decoders.files.dump_records import Cells, MoreNeededError, end_of, repeated
from cdc_lakehouse.sources.dump.notation import TextNotation

_ESCAPE: Final = re.compile(rb"\\(.)", re.DOTALL)
ESCAPES: Final = {b"0": b"\0", b"b": b"\b", b"n": b"\n", b"r": b"\r", b"t": b"\t", b"Z": b"\x1a"}
"""Escapes by the byte after the backslash; any other byte stands for itself."""


class TextRecord(NamedTuple):
    end: int
    """The position after its last byte."""
    following: int
    """The position after its terminator; equal to `end` when it has none."""
    cells: Cells | None
    """The values; None when it is not a record of the notation."""


class TextRecordReader:
    def __init__(self, notation: TextNotation) -> None:
        self._notation = notation
        self._beyond = max(len(notation.separator), len(notation.terminator))
        stops = [notation.separator, notation.terminator]
        escape, special = (rb"|\\.", rb"\\") if notation.backslash_escapes else (b"", b"")
        quote, head = re.escape(notation.quote), re.escape(notation.quote[:1])
        first = b"".join(re.escape(stop[:1]) for stop in stops) + head
        apart = b"|".join(filter(None, [*map(re.escape, stops), quote]))
        self._bare = repeated(b"[^" + first + special + b"]*+", b"(?!" + apart + b")[" + first + b"]" + escape)
        first, apart, inside = head, quote, b"|" + quote * 2
        if notation.backslash_escapes:
            inside = escape
            if b"\r" in notation.terminator or b"\n" in notation.terminator:
                first += re.escape(notation.terminator[:1])
                apart += b"|" + re.escape(notation.terminator)
        inside = b"(?!" + apart + b")[" + first + b"]" + inside
        self._quoted = repeated(b"[^" + first + special + b"]*+", inside) if quote else self._bare

    def record(self, content: bytes, start: int, final: bool) -> TextRecord:
        """Read the record at `start`, which is before the end of the content. Raises MoreNeededError."""
        found = self._sound(content, start, final)
        if found is not None and found.end - start <= dump_records.RECORD_LIMIT:
            return found
        end = content.find(self._notation.terminator, start)
        if end >= 0:
            return TextRecord(end, end + len(self._notation.terminator), None)
        if not final:
            raise MoreNeededError
        return TextRecord(len(content), len(content), None)

    def _sound(self, content: bytes, start: int, final: bool) -> TextRecord | None:
        notation, cells, at = self._notation, Cells(), start
        while True:
            cell, at = self._cell(content, at, final)
            if at < 0:
                return None
            cells.append(cell)
            # The following bytes must be complete. `record` handles a record that is too long.
            if at + self._beyond > len(content) and not final:
                raise MoreNeededError
            if content.startswith(notation.terminator, at):
                return TextRecord(at, at + len(notation.terminator), cells)
            if content.startswith(notation.separator, at):
                at += len(notation.separator)
            elif at == len(content):
                return TextRecord(at, at, cells)
            else:  # Text behind a closing quote, or a quote in a bare value, or a backslash at the end of the file.
                return None

    def _cell(self, content: bytes, at: int, final: bool) -> tuple[bytes | None, int]:
        """Return the value at `at` and its end, -1 when its quote is never closed."""
        notation, quote = self._notation, self._notation.quote
        if quote and at + len(quote) > len(content) and not final:
            raise MoreNeededError
        if not quote or not content.startswith(quote, at):
            end = end_of(self._bare, content, at)
            bare = content[at:end]
            return None if bare == notation.null else self._unescaped(bare), end
        first = at + len(quote)
        end = end_of(self._quoted, content, first)
        if end + 2 * len(quote) + self._beyond > len(content) and not final:
            raise MoreNeededError
        if not content.startswith(quote, end):
            return None, -1
        text = content[first:end]
        if not notation.backslash_escapes:
            return text.replace(quote * 2, quote), end + len(quote)
        return self._unescaped(text), end + len(quote)

    def _unescaped(self, text: bytes) -> bytes:
        if not self._notation.backslash_escapes or b"\\" not in text:
            return text
        return _ESCAPE.sub(lambda found: ESCAPES.get(found[1], found[1]), text)
