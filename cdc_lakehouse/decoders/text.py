r"""Quoted text: csv of TiCDC, delimited text of dumps, and in part the rows of INSERT statements.

`StrictReader` reads one record at a time, correct for any bytes; `TextReader` reads many with Arrow, where they are
written as usual. Arrow supports doubled quotes, separators of one ASCII byte and no escapes; it accepts any line end,
and treats text next to quotes as part of the value. So quotes are checked first, and sequences that it does not support
are replaced by bytes that do not occur in the text, and restored in the columns. Text with any irregularity is read
record by record; the result here is the same as there.

A cell is quoted as a whole or not at all; NULL is its own text, without quotes. With escapes, line ends in cells are
escaped, as is a quote; otherwise a quote is doubled in quotes, and line ends are raw there. A terminator of a dump
without a line end is raw in quotes in both cases. An invalid record ends at the first terminator after its beginning,
but in csv with quotes where the next line begins as a record does: with its operation in quotes. No valid cell can
contain that after a line end, because quotes are doubled in a cell. Elsewhere, where terminators can be text, the
following may be the rest of a text: lines that are no rows, up to the start of the next row.

Format: MySQL manual, "LOAD DATA Statement", "Field and Line Handling"; TiDB's `pkg/dumpformat/csvfile`; TiCDC csv
protocol documentation, and its `pkg/sink/codec/csv/csv_message.go`.
"""

from __future__ import annotations

import codecs
import contextlib
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple, Self

import numpy as np
import pyarrow as pa
from pyarrow import csv

from cdc_lakehouse.decoders import problems
from cdc_lakehouse.decoders.arrow import Bytes, Positions, batch_of, pc
from cdc_lakehouse.decoders.event_schema import DECODED
from cdc_lakehouse.sources.dump.contents import TextNotation

RECORD_LIMIT: Final = 512 * 1024 * 1024  # In bytes. A longer record is not held in memory to check whether it is valid.

BACKSLASH: Final = b"\\"
LINE_ENDS: Final = b"\r\n"

MYSQL_ESCAPES: Final = {b"0": b"\0", b"b": b"\b", b"n": b"\n", b"r": b"\r", b"t": b"\t", b"Z": b"\x1a"}
"""Escapes by the byte after the backslash; any other byte stands for itself."""

Cells = list[bytes | None]  # None for NULL.


class MoreNeededError(Exception):
    """The reader needs the following content first."""


class CellError(Exception):
    """A cell is not a value of its column: the problem is a key of `problems.PROBLEMS`."""


# Strict reading.

_REPEATS: Final = 4096


def repeated(plain: bytes, other: bytes) -> re.Pattern[bytes]:
    """Return a pattern for `end_of`: a `plain` run of bytes, then `other` and a plain run, again and again; not too
    often, as each needs memory. Possessive quantifiers do not, but Python before 3.11.5 has them wrong for groups."""
    return re.compile(b"%b(?:(?:%b)%b){0,%d}" % (plain, other, plain, _REPEATS), re.DOTALL)


def end_of(pattern: re.Pattern[bytes], content: bytes, at: int) -> int:
    """Return the end of all text from `at` on that a pattern of `repeated` matches, however often it repeats."""
    while found := pattern.match(content, at):
        start, at = found.span()
        if at - start < _REPEATS:
            break
    return at


class Record(NamedTuple):
    """A record before `end`, and its terminator before `following`, which equals `end` when it has none. `cells` are
    None for what is not a record of the notation."""

    start: int
    end: int
    following: int
    cells: Cells | None


class StrictReader:
    def __init__(self, notation: TextNotation) -> None:
        self._notation = notation
        quote, terminator = re.escape(notation.quote), notation.terminator
        line_end = rb"\r\n|\n|\r" if terminator is None else re.escape(terminator)
        self._terminator = re.compile(line_end)
        self._next_record = re.compile(b"(?:%b)(?=%b)" % (line_end, notation.begin)) if notation.begin else None
        self._no_more = False
        """Whether no record begins any more, up to the end of the file."""
        known = {BACKSLASH + letter: character for letter, character in MYSQL_ESCAPES.items()}
        self._escapes = known if notation.backslash_escapes else notation.escapes
        escape = [*map(re.escape, self._escapes), rb"\\." if notation.backslash_escapes else rb"\\"]
        self._escape = re.compile(b"|".join(escape), re.DOTALL)
        special, escaped = (rb"\\", b"|" + self._escape.pattern) if notation.has_escapes else (b"", b"")
        ends = [b"\r", b"\n"] if terminator is None else [terminator]
        stops = [notation.separator, *ends]
        first = b"".join(re.escape(stop[:1]) for stop in stops) + re.escape(notation.quote[:1])
        apart = b"|".join(filter(None, [*map(re.escape, stops), quote]))
        self._bare = repeated(b"[^" + first + special + b"]*+", b"(?!" + apart + b")[" + first + b"]" + escaped)
        first, apart, inside = re.escape(notation.quote[:1]), quote, escaped or b"|" + quote * 2
        if escaped and terminator is not None and set(terminator) & set(LINE_ENDS):
            first, apart = first + re.escape(terminator[:1]), apart + b"|" + re.escape(terminator)
        inside = b"(?!" + apart + b")[" + first + b"]" + inside
        self._quoted = repeated(b"[^" + first + special + b"]*+", inside) if quote else self._bare
        self._beyond = max(2, len(notation.separator), len(terminator or LINE_ENDS), 2 * len(notation.quote))

    def records(self, content: bytes, start: int, stop: int) -> Iterator[Record]:
        """Yield the records of a whole content that begin from `start` to before `stop`."""
        at = start
        while (at := self.after_blank(content, at)) < stop:
            record = self.record(content, at, final=True)
            yield record
            at = record.following

    def after_blank(self, content: bytes, at: int) -> int:
        """Return the position behind empty lines that are no records."""
        while self._notation.terminator is None and content[at : at + 1] in (b"\r", b"\n"):
            at += 1
        return at

    def record(self, content: bytes, start: int, final: bool) -> Record:
        """Read the record at `start`, which is before the end of the content. Raises MoreNeededError."""
        notation, cells, at, closed = self._notation, Cells(), start, True
        valid = not notation.begin or content.startswith(notation.quote, start)
        while valid:
            try:
                cell, at, closed = self._cell(content, at)
            except KeyError:
                break
            # The following bytes must be complete.
            if at + self._beyond > len(content) and not final:
                raise MoreNeededError
            if not closed:
                break
            cells.append(cell)
            end = self._terminator.match(content, at)
            if end or at == len(content):
                if at - start > RECORD_LIMIT:
                    break
                return Record(start, at, end.end() if end else at, cells)
            if not content.startswith(notation.separator, at):
                break  # Text behind a closing quote, or a quote in a bare cell, or a backslash at the end of the file.
            at += len(notation.separator)
        # An invalid record.
        if self._next_record is None or (self._no_more and closed):
            return self.line(content, start, final)
        found = None if self._no_more else self._next_record.search(content, start)
        if found:
            return Record(start, *found.span(), None)
        if not final:
            raise MoreNeededError
        self._no_more = True
        # Of a file that ends in a cut record, this is the rest; one that never had any comes by lines.
        return self.line(content, start) if closed else Record(start, len(content), len(content), None)

    def line(self, content: bytes, start: int, final: bool = True) -> Record:
        """Return the text up to the next terminator as a record without cells. Raises MoreNeededError."""
        end = self._terminator.search(content, start)
        if end is None and not final:
            raise MoreNeededError
        return Record(start, *(end.span() if end else (len(content), len(content))), None)

    def _cell(self, content: bytes, at: int) -> tuple[bytes | None, int, bool]:
        """Return the cell at `at`, its end, and whether its quote is closed. Raises KeyError for an unknown escape."""
        notation, quote = self._notation, self._notation.quote
        if not quote or not content.startswith(quote, at):
            end = end_of(self._bare, content, at)
            bare = content[at:end]
            return None if bare == notation.null else self._unescaped(bare), end, True
        end = end_of(self._quoted, content, at + len(quote))
        if not content.startswith(quote, end):
            return None, end, False
        text = content[at + len(quote) : end]
        return self._unescaped(text) if notation.has_escapes else text.replace(quote * 2, quote), end + len(quote), True

    def _unescaped(self, text: bytes) -> bytes:
        escapes, others = self._escapes, self._notation.backslash_escapes
        if BACKSLASH not in text or not escapes:
            return text
        return self._escape.sub(lambda of: of[0][1:] if others and of[0] not in escapes else escapes[of[0]], text)


# Reading with Arrow.

TAIL: Final = 64 * 1024
"""The number of bytes at the end of a piece in which the end of its last record is searched first."""
_MARKS: Final = [bytes([byte]) for byte in (*range(0xF8, 0x100), 0xC0, 0xC1, *range(0x01, 0x08), *range(0x0E, 0x1A))]
"""Bytes that can replace others where they do not occur in a piece: first those that never occur in UTF-8, and none
that an escape stands for."""
_SEPARATORS: Final = [bytes([byte]) for byte in (0x1F, 0x1E, 0x1D, 0x1C, *range(0x20, 0x7F), *range(0x01, 0x08))]
"""Replacements for a separator that Arrow does not accept."""
_CR, _LF = LINE_ENDS


class NotUsualError(Exception):
    """The piece must be read strictly."""


class Marks:
    """Replaces sequences that Arrow does not support by single bytes, and restores them."""

    def __init__(self, text: bytes) -> None:
        self._unused = (mark for mark in _MARKS if mark not in text)
        self._characters: dict[bytes, bytes] = {}

    def unescaped(self, text: bytes, escapes: Mapping[bytes, bytes]) -> bytes:
        """Replace each escape by a mark, by the byte after the backslash, that of the backslash among them. Raises
        NotUsualError for a last byte that is a backslash."""
        if BACKSLASH not in text:
            return text
        array: Bytes = np.frombuffer(text, np.uint8)
        backslashes = np.flatnonzero(array == BACKSLASH[0])
        # In a run of backslashes every other one begins an escape.
        numbers = np.arange(len(backslashes))
        first = np.concatenate([[True], np.diff(backslashes) > 1])
        begins = backslashes[(numbers - np.maximum.accumulate(np.where(first, numbers, 0))) % 2 == 0]
        if begins[-1] + 1 == len(text):
            raise NotUsualError
        behind, array = array[begins + 1], array.copy()
        marks: Bytes = np.zeros(256, np.uint8)
        counts = np.bincount(behind, minlength=256)
        for letter, character in escapes.items():
            if counts[letter[0]]:
                marks[letter[0]] = self.of(character)[0]
        known = marks[behind] > 0
        array[begins[known]] = marks[behind[known]]
        return np.delete(array, begins[known] + 1).tobytes()

    def of(self, character: bytes | None = None) -> bytes:
        """Return a byte that does not occur in the piece, as a mark that stands for a character."""
        mark = next(self._unused, None)
        if mark is None:
            raise NotUsualError
        if character is not None:
            self._characters[mark] = character
        return mark

    def separated(self, text: bytes, separator: bytes, other: bytes) -> tuple[bytes, bytes]:
        """Replace the separator by one byte that is neither in the text nor in `other`; return text and byte."""
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
    """Parse a text into columns, arrays of bytes; with `blank`, empty lines are ignored. Raises ArrowInvalid."""
    names = [str(number) for number in range(width)]
    read = csv.ReadOptions(column_names=names, block_size=len(text) + 1, use_threads=False)
    parse = csv.ParseOptions(delimiter=separator.decode(), newlines_in_values=bool(quote), ignore_empty_lines=blank)
    parse.quote_char = quote.decode() or False
    types = dict.fromkeys(names, pa.binary())
    convert = csv.ConvertOptions(column_types=types, null_values=[null], strings_can_be_null=True)
    convert.quoted_strings_can_be_null = False
    table = csv.read_csv(pa.py_buffer(text), read, parse, convert)
    return [column.chunk(0) if column.num_chunks == 1 else column.combine_chunks() for column in table.columns]


def is_plain(text: bytes) -> bool:
    """Whether Arrow accepts it as a separator or a quote."""
    return len(text) == 1 and 0 < text[0] < 0x80 and text not in LINE_ENDS


# Records as rows of a batch.


class Table(ABC):
    """What the cells of a file's records become. `schema` has the columns of a row, then the last three of
    `event_schema.DECODED`; in a row that cannot be used, all others are null."""

    def __init__(self, columns: Sequence[tuple[str, pa.DataType]], width: int) -> None:
        """`width` is the number of cells of a record."""
        self.schema = pa.schema([*columns, *(DECODED.field(name) for name in ("problem", "value", "strict"))])
        self.width = width

    @abstractmethod
    def row(self, cells: Cells) -> tuple[object, ...] | str:
        """Return the row without the last three, or its problem: a key of `problems.PROBLEMS`."""

    @abstractmethod
    def columns(self, cells: list[Any]) -> list[Any]:
        """Return the same for columns of cells. Raises NotUsualError, CellError or ArrowInvalid if some are invalid."""

    def read(self, cells: Cells, record: bytes) -> tuple[object, ...]:
        """Return a whole row. `record` are the bytes that are kept of it if it cannot be used."""
        row = self.row(cells)
        return self.rejected(row, record) if isinstance(row, str) else (*row, None, None, True)

    def rejected(self, problem: str, record: bytes) -> tuple[object, ...]:
        return (*[None] * (len(self.schema) - 3), problem, record[: problems.RAW_LIMIT], True)


class Rows(NamedTuple):
    """Rows of one table."""

    table: Any
    batch: pa.RecordBatch
    end: int
    """The position in the content where the next row is expected."""

    @classmethod
    def of(cls, table: Table, rows: Sequence[tuple[object, ...]], end: int) -> Self:
        return cls(table, batch_of(rows, table.schema), end)

    @classmethod
    def valid(cls, table: Table, columns: list[Any], end: int) -> Self:
        """Return rows that are all valid, of at least one column."""
        count = len(columns[0])
        nothing = [pa.nulls(count, pa.string()), pa.nulls(count, pa.binary()), pa.repeat(False, count)]
        return cls(table, pa.RecordBatch.from_arrays([*columns, *nothing], schema=table.schema), end)


class Reader(ABC):
    """Reads the rows of one file, in order. `content` is a part of the file, `final` whether it is the last."""

    within_long = False
    """Whether the record before was too long to be held, and has not ended."""

    @abstractmethod
    def fast(self, content: bytes, start: int, stop: int, final: bool) -> Rows | None:
        """Return the rows from `start` to `stop`, without an incomplete last one. None, NotUsualError, CellError or
        ArrowInvalid when not all are valid and in the usual form, or there are none."""

    @abstractmethod
    def strict(self, content: bytes, start: int, stop: int, final: bool) -> Rows:
        """Return the rows that begin from `start` to before `stop`, or the first of them; none if they need more."""


class TextReader(Reader):
    """`problem` is that of a text that is no record; `header` checks the cells of a first record that is no row."""

    def __init__(
        self, notation: TextNotation, table: Table, problem: str, header: Callable[[Cells | None], None] | None = None
    ) -> None:
        self._notation, self._table, self._problem, self._header = notation, table, problem, header
        self._records = StrictReader(notation)
        special = (notation.quote[:1], notation.separator[:1], b"'", b'"', BACKSLASH)
        self._letters = {byte: byte for byte in special if byte} | MYSQL_ESCAPES
        escapes = [BACKSLASH + letter for letter in self._letters if notation.backslash_escapes]
        self._is_known_to_arrow = table.width > 0 and (not notation.quote or is_plain(notation.quote))
        self._is_known_to_arrow &= not any(escape in notation.null for escape in escapes)
        self._has_raw_ends = bool(notation.quote) and not notation.has_escapes

    def fast(self, content: bytes, start: int, stop: int, final: bool) -> Rows | None:
        # Arrow drops a byte order mark.
        if self._header or not self._is_known_to_arrow or content.startswith(codecs.BOM_UTF8, start):
            return None
        window: Bytes = np.frombuffer(content, np.uint8, stop - start, start)
        quotes = self._quotes(window)
        end = stop if final and stop == len(content) else start + self._end(content, start, window, quotes)
        quotes = quotes[: np.searchsorted(quotes, end - start)]
        if end == start:
            return None
        return Rows.valid(self._table, self._table.columns(self._columns(content[start:end], quotes)), end)

    def _quotes(self, text: Bytes) -> Positions:
        quote = self._notation.quote
        return np.flatnonzero(text == quote[0]) if quote else np.zeros(0, np.int64)

    def _end(self, content: bytes, start: int, window: Bytes, quotes: Positions) -> int:
        """Return the position in the window, which is at `start`, after the last terminator that is not in quotes."""
        terminator, size = self._notation.terminator, len(window)
        if not self._has_raw_ends:
            # In quotes none is raw; if one is, the quotes do not come in pairs.
            ends = (b"\r", b"\n") if terminator is None else (terminator,)
            found = ((content.rfind(end, start, start + size), end) for end in ends)
            return max([0, *(at + len(end) - start for at, end in found if at >= 0)])
        for first in (max(size - TAIL, 0), 0):
            # A cut between a CR and its LF does no harm: the LF is then an empty line.
            last = (window[first:] == _LF) | (window[first:] == _CR if terminator is None else False)
            ends = np.flatnonzero(last) + (first + 1)
            outside = ends[np.searchsorted(quotes, ends) % 2 == 0]
            end = int(outside[-1]) if len(outside) else 0
            if end and content.startswith(terminator or b"", start + end - len(terminator or b"")):
                return end
        return 0

    def _columns(self, text: bytes, quotes: Positions) -> list[Any]:
        """`quotes` are the positions of quotes in the text."""
        notation, marks, size = self._notation, Marks(text), len(text)
        separator, quote, null = notation.separator, notation.quote, notation.null
        if notation.backslash_escapes:
            text = marks.unescaped(text, self._letters)
        else:
            for escape, character in notation.escapes.items():
                if escape in text:
                    mark = marks.of(character)
                    text, null = text.replace(escape, mark), null.replace(escape, mark)
        if not is_plain(separator):
            text, separator = marks.separated(text, separator, quote + null)
        array: Bytes = np.frombuffer(text, np.uint8)
        quotes = quotes if len(text) == size else self._quotes(array)
        # Quotes come in pairs, the opening one after, the closing one before a line end, a separator or, where doubled
        # quotes in a value are a closing and an opening one, a quote. Before the first and after the last byte is a
        # line end, too.
        closing, opening = quotes[1::2], quotes[0::2]
        if len(closing) != len(opening):
            raise NotUsualError
        behind, before = array[np.minimum(closing + 1, len(array) - 1)], array[np.maximum(opening - 1, 0)]
        if len(quotes) and quotes[-1] == len(array) - 1:
            behind[-1] = _LF
        if len(quotes) and quotes[0] == 0:
            before[0] = _LF
        ends, beside = np.zeros(256, bool), np.zeros(256, bool)
        ends[list(LINE_ENDS)] = beside[list(LINE_ENDS + separator + (b"" if notation.has_escapes else quote))] = True
        if not (beside[behind].all() and beside[before].all()):
            raise NotUsualError
        begun = int(np.count_nonzero(ends[before]))
        count_of_ends = None if notation.terminator is None else self._terminators(array, quotes, notation.terminator)
        columns = parsed(text, separator, quote, null, self._table.width, blank=notation.terminator is None)
        count = len(columns[0])
        if notation.begin and begun != count:
            raise NotUsualError  # All records begin with a quote.
        if notation.has_escapes:
            if count_of_ends is not None and count_of_ends + (not text.endswith(notation.terminator or b"")) != count:
                raise NotUsualError  # One stands in quotes.
            of_nulls = null.count(BACKSLASH) * sum(column.null_count for column in columns)
            if BACKSLASH in text and text.count(BACKSLASH) != of_nulls:  # Counting takes five times as long.
                raise NotUsualError  # A backslash begins no known escape, and is not NULL's, or that is in quotes.
        return [marks.restored(column) for column in columns]

    def _terminators(self, text: Bytes, quotes: Positions, terminator: bytes) -> int:
        """Count the line ends, in quotes or not. Raises NotUsualError where they are not terminators only, but those of
        text that is raw in quotes, or a line is empty in a table of several columns."""

        def are_ends(returns: Positions, feeds: Positions) -> bool:
            # Arrow reads an empty line as a row of empty values.
            width = len(terminator)
            if self._table.width > 1 and len(feeds) and (feeds[0] < width or (np.diff(feeds) == width).any()):
                return False
            if terminator == b"\r\n":
                return np.array_equal(returns + 1, feeds)
            return terminator == b"\n" and not len(returns)

        controls = np.flatnonzero(text <= _CR)  # In one pass.
        ends = [controls[text[controls] == end] for end in LINE_ENDS]
        outside = (at[np.searchsorted(quotes, at) % 2 == 0] for at in ends)
        if are_ends(*ends) or (self._has_raw_ends and are_ends(*outside)):
            return len(ends[1])
        raise NotUsualError

    def strict(self, content: bytes, start: int, stop: int, final: bool) -> Rows:
        rows, at = list[tuple[object, ...]](), start
        while (at := self._records.after_blank(content, at)) < stop:
            try:
                if self.within_long:
                    at, self.within_long = self._records.line(content, at, final).following, False
                    continue
                record = self._records.record(content, at, final)
            except MoreNeededError:
                if self.within_long:
                    # The terminator is not there; part of it may be.
                    at = max(at, len(content) - len(self._notation.terminator or LINE_ENDS) + 1)
                elif len(content) - at > RECORD_LIMIT:
                    rows.append(self._table.rejected(self._problem, content[at : at + problems.RAW_LIMIT]))
                    self.within_long, self._header = True, None
                    continue
                break
            raw = content[at : min(record.end, at + problems.RAW_LIMIT)]
            at = record.following
            if self._header:
                check, self._header = self._header, None
                check(record.cells)
                break  # What is behind it may be usual.
            if record.cells is None:
                rows.append(self._table.rejected(self._problem, raw))
            else:
                # Rows without cells are empty lines.
                rows.append(self._table.read([] if not self._table.width and not raw else record.cells, raw))
        return Rows.of(self._table, rows, at)


_SMALLER: Final = 32  # The factor by which pieces are smaller where one is not valid.


def read_rows(reader: Reader, parts: Iterator[bytes], piece: int) -> Iterator[Rows]:
    """Yield the rows of a file that comes in parts, cut anywhere. A few of them are held, or a record that is longer.
    `piece` is the number of bytes that are read at a time."""
    content, at, parts = b"", 0, filter(None, parts)
    size = piece = max(piece, _SMALLER)
    needed, final = piece // 2, False
    while not final or at < len(content):
        if not final and len(content) - at < needed:
            found, at = [content[at:]], 0
            length = len(found[0])
            while not final and length < max(needed, piece):
                found.append(next(parts, b""))
                length, final = length + len(found[-1]), not found[-1]
            content = b"".join(found)
            found.clear()  # They would be held beside the content while it is read.
        stop, rows = min(at + size, len(content)), None
        with contextlib.suppress(NotUsualError, CellError, pa.ArrowInvalid):
            rows = None if reader.within_long else reader.fast(content, at, min(stop, at + RECORD_LIMIT), final)
        if rows is not None:
            size = min(size * 2, piece)
        elif size > piece // _SMALLER:
            size = piece // _SMALLER  # So that little of what is beside a bad record is read the slow way.
            continue
        else:
            rows = reader.strict(content, at, stop, final)
        # A row that extends beyond the content needs more of it.
        needed = piece // 2 if rows.end > at else min(2 * (len(content) - at), RECORD_LIMIT) + piece
        at = rows.end
        yield rows
