"""Strict reading of csv, record by record: slower than `csv_fast`, and correct for any bytes.

TiCDC writes a quote only around a whole field, always around a record's first one, and doubled inside one; without
quotes, a backslash only in an escape or in NULL. Anything else is not csv. Such a record ends where the next line
begins as a record does: with its operation in quotes. No valid field can contain that after a line end, because quotes
are doubled in a field.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from cdc_lakehouse.decoders.files.csv_format import BACKSLASH, LINE_ENDS, Dialect

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
