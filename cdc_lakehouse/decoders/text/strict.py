"""Strict reading of csv and of dumps' delimited text, record by record: slower than with Arrow (`columns`), and correct
for any bytes.

TiCDC writes a quote only around a whole field, always around a record's first one, and doubled inside one; without
quotes, a backslash only in an escape or in NULL. Anything else is not csv. Such a record ends where the next line
begins as a record does: with its operation in quotes. No valid field can contain that after a line end, because quotes
are doubled in a field.

In a dump's delimited text, a value is quoted as a whole or not at all. With backslash escapes, a backslash changes the
next byte as in MySQL's LOAD DATA, and a line end that is text is escaped; else a quote is doubled in quotes, and line
ends are raw there. A terminator without a line end is raw in quotes in both cases.

NULL is the notation's text for it, without quotes. An invalid record ends at the first terminator after its beginning.
Where terminators can be text, the following may be the rest of a text: lines that are no rows, up to the start of the
next row. Format: MySQL manual, "LOAD DATA Statement", "Field and Line Handling"; TiDB's `pkg/dumpformat/csvfile`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final, NamedTuple

from cdc_lakehouse.decoders.format import BACKSLASH, LINE_ENDS, Dialect
from cdc_lakehouse.decoders.formats import dump_values
from cdc_lakehouse.decoders.formats.dump_values import Cells, MoreNeededError, end_of, repeated
from cdc_lakehouse.sources.dump.contents import TextNotation

Fields = list[bytes | None]


class CsvRecord(NamedTuple):
    start: int
    end: int
    """The position after its last byte. The line end is not part of it."""
    following: int
    """The position after its line end; equal to `end` when it has none."""
    fields: Fields | None
    """The fields, None for NULL; no list when the record is not csv."""


class CsvRecordReader:
    def __init__(self, content: bytes, dialect: Dialect) -> None:
        self._content = content
        self._dialect = dialect
        quote, delimiter = re.escape(dialect.quote), re.escape(dialect.delimiter)
        self._line_end = re.compile(rb"\r\n|\n|\r")
        self._quotes = re.compile(b"(?:" + quote + b")+")
        self._end_of_bare = re.compile(b"|".join(filter(None, (delimiter, quote, rb"[\r\n]"))))
        self._next_record = re.compile(rb"(?:\r\n|\n|\r)(?=" + quote + b"[IUD]" + quote + b")")
        self._last_record = len(content)
        """No record begins after this position."""
        # First the escapes, then the delimiter: an escaped one is no delimiter. A remaining backslash begins no escape.
        escapes = [*map(re.escape, dialect.escapes), delimiter, re.escape(BACKSLASH)]
        self._tokens = re.compile(b"|".join(escapes))

    def records(self, start: int, stop: int) -> Iterator[CsvRecord]:
        """Yield the records that begin before `stop`, without empty lines. The last one may extend beyond `stop`."""
        at = start
        while True:
            while at < stop and self._content[at] in LINE_ENDS:
                at += 1
            if at >= stop:
                return
            record = self.quoted(at) if self._dialect.quote else self.line(at, escaped=True)
            yield record
            at = record.following

    def line(self, start: int, *, escaped: bool = False) -> CsvRecord:
        """Return the record that is one line, with `fields` only if it is escaped."""
        end = self._line_end.search(self._content, start)
        span = end.span() if end else (len(self._content), len(self._content))
        return CsvRecord(start, *span, self._escaped_fields(self._content[start : span[0]]) if escaped else None)

    def quoted(self, start: int) -> CsvRecord:
        content, delimiter, fields = self._content, self._dialect.delimiter, Fields()
        if not content.startswith(self._dialect.quote, start):
            return self._not_csv(start)
        at = start
        while True:
            at = self._field(at, fields)
            if at < 0:
                return self._not_csv(start, closed=False)
            if content.startswith(delimiter, at):
                at += len(delimiter)
            elif at == len(content):
                return CsvRecord(start, at, at, fields)
            elif end := self._line_end.match(content, at):
                return CsvRecord(start, at, end.end(), fields)
            else:  # Text behind a closing quote, or a quote in a bare field.
                return self._not_csv(start)

    def _field(self, at: int, fields: Fields) -> int:
        """Append the field that begins at `at`; return its end, or -1 when its quote is never closed."""
        content, quote = self._content, self._dialect.quote
        if not content.startswith(quote, at):
            end = self._end_of_bare.search(content, at)
            stop = end.start() if end else len(content)
            bare = content[at:stop]
            fields.append(None if bare == self._dialect.null else bare)
            return stop
        first = at = at + len(quote)
        # In a run of quotes of odd length all but the last are pairs: the last one closes.
        while run := self._quotes.search(content, at):
            at = run.end()
            if (at - run.start()) // len(quote) % 2:
                fields.append(content[first : at - len(quote)].replace(quote * 2, quote))
                return at
        return -1

    def _not_csv(self, start: int, *, closed: bool = True) -> CsvRecord:
        found = self._next_record.search(self._content, start) if start < self._last_record else None
        if found:
            return CsvRecord(start, *found.span(), None)
        self._last_record = min(self._last_record, start)
        # Nothing more is a record. Of a file that ends in one, this is the rest; one that never had any comes by lines.
        return self.line(start) if closed else CsvRecord(start, len(self._content), len(self._content), None)

    def _escaped_fields(self, line: bytes) -> Fields | None:
        dialect = self._dialect
        if BACKSLASH not in line:
            return [None if text == dialect.null else text for text in line.split(dialect.delimiter)]
        fields: Fields = []
        at = 0
        for token in self._tokens.finditer(line):
            if token[0] == dialect.delimiter:
                fields.append(line[at : token.start()])
                at = token.end()
        fields.append(line[at:])
        try:
            return [None if text == dialect.null else self._unescaped(text or b"") for text in fields]
        except KeyError:
            return None

    def _unescaped(self, text: bytes) -> bytes:
        """Resolve the escapes in a text. Raises KeyError for a backslash that begins no escape."""
        return self._tokens.sub(lambda token: self._dialect.escapes[token[0]], text) if BACKSLASH in text else text


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
        if found is not None and found.end - start <= dump_values.RECORD_LIMIT:
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
