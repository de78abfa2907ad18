r"""The rows of a dump's INSERT statements, read value by value, which is correct for any bytes, or many at a time with
Arrow, for valid ones in the usual form. For the values see `dump_values`.

    /*!40101 SET NAMES binary*/;
    INSERT INTO `orders` VALUES
    (1,'lamp',NULL,x'00ff'),
    (2,'it\'s',-1.5e3,_binary 'a');

A value is NULL, a number, a string in either quote, a literal of bits or hexadecimal digits, a string after `_binary`
or in CONVERT(… USING utf8mb4). Around the statements there are comments and statements that change no row. Anything
else extends up to a line that begins like a tuple or a statement: dumps with backslash escapes have no line ends in
strings. Format: MySQL manual, "Literal Values", "Comments", "INSERT Statement"; TiDB's `dumpling/export/sql_type.go`;
mydumper's `mydumper_write.c`.

For Arrow, the text around strings is checked byte by byte: which byte may follow which covers nearly all of a tuple's
grammar. The values are the texts between its parentheses and commas; escapes, and the prefixes of literals, are single
bytes by then (see `text.columns.Marks`). Anything unusual is left to the strict reader.
"""

from __future__ import annotations

import binascii
import contextlib
import re
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa

from cdc_lakehouse.decoders import problems
from cdc_lakehouse.decoders.arrow import Bytes, Mask, Positions, cut, pc
from cdc_lakehouse.decoders.formats import dump_values
from cdc_lakehouse.decoders.formats.dump_values import (
    CellError,
    Cells,
    DumpColumn,
    DumpContext,
    MoreNeededError,
    Octets,
    RowBuilder,
    Rows,
    SqlNumber,
    columns_of,
    end_of,
    repeated,
    sound_rows,
)
from cdc_lakehouse.decoders.text.columns import Marks, NotUsualError
from cdc_lakehouse.sources.dump.contents import InsertNotation

_HEAD_LIMIT: Final = 1024 * 1024
"""The limit of the text before a tuple, in bytes: MySQL has at most 4096 columns with names of 64 characters."""
_BEYOND: Final = 64
"""The prefix of a value is shorter than this, in bytes."""

ESCAPES: Final = {b"0": b"\0", b"b": b"\b", b"n": b"\n", b"r": b"\r", b"t": b"\t", b"Z": b"\x1a",
                  b"%": rb"\%", b"_": rb"\_"}  # fmt: skip
"""Escapes by the byte after the backslash; any other byte stands for itself."""

_SPACE: Final = re.compile(rb"[ \t\r\n]*+")
_WORD: Final = rb"(?:`[^`]*+(?:``[^`]*+)*`(?!`)|\"[^\"]*+(?:\"\"[^\"]*+)*\"(?!\")|[0-9A-Za-z_$\x80-\xff]++)"
_INSERT: Final = re.compile(
    rb"(?:INSERT(?:\s++IGNORE)?|REPLACE)\s++INTO\s*+(?P<table>" + _WORD + rb"(?:\." + _WORD + rb")?)\s*+"
    rb"(?:\(\s*+(?P<columns>" + _WORD + rb"(?:\s*+,\s*+" + _WORD + rb")*)?\s*+\))?\s*+VALUES\s*+(?=\()",
    re.IGNORECASE,
)
_TEXT: Final = rb"(?:[^;'\"`*]++|'[^'\\]*+(?:\\.[^'\\]*+)*'|\"[^\"\\]*+(?:\\.[^\"\\]*+)*\"|`[^`]*+`)*?"
_HARMLESS: Final = (
    rb"(?:SET\s" + _TEXT + rb"|LOCK\s+TABLES?\s" + _TEXT + rb"|UNLOCK\s+TABLES?"
    rb"|ALTER\s+TABLE\s+" + _WORD + rb"(?:\." + _WORD + rb")?\s+(?:DISABLE|ENABLE)\s+KEYS"
    rb"|USE\s+" + _WORD + rb"|START\s+TRANSACTION|BEGIN|COMMIT)"
)
_SKIPPED: Final = re.compile(
    # MySQL runs a comment with an exclamation mark.
    rb"(?:--(?=\s)[^\n]*+(?:\n|\Z)|#[^\n]*+(?:\n|\Z)|/\*!\d*\s*" + _HARMLESS + rb"\s*\*/\s*;?"
    rb"|/\*(?![!+]|M!).*?\*/\s*;?|" + _HARMLESS + rb"\s*;|;)",
    re.IGNORECASE | re.DOTALL,
)
_NAMES: Final = re.compile(_WORD)
_STATEMENT: Final = rb"INSERT|REPLACE|SET|LOCK|UNLOCK|ALTER|USE|START|BEGIN|COMMIT|--|/\*"
_NEXT_STATEMENT: Final = re.compile(rb"\n(?=" + _STATEMENT + rb")", re.IGNORECASE)
_NEXT_TUPLE: Final = re.compile(rb"\n(?=,?\(|" + _STATEMENT + rb")", re.IGNORECASE)

_NUMBER: Final = re.compile(rb"[-+]?(?:[0-9]++(?:\.[0-9]*+)?|\.[0-9]++)(?:[eE][-+]?[0-9]++)?")
_NULL: Final = re.compile(rb"NULL", re.IGNORECASE)
_DIGITS: Final = re.compile(rb"(?:([xXbB])'|0([xb]))([0-9A-Fa-f]*+)")
_BINARY: Final = re.compile(rb"_binary ?(?=['\"])", re.IGNORECASE)
_CONVERT: Final = re.compile(rb"CONVERT\((?=['\"])", re.IGNORECASE)
_USING: Final = re.compile(rb" USING UTF8(?:MB4)?\)", re.IGNORECASE)


class NotSoundError(Exception):
    """The text at a position is not as dumps write it."""

    def __init__(self, at: int) -> None:
        super().__init__(at)
        self.at = at


class Head(NamedTuple):
    """The start of a tuple, and the head of its statement."""

    at: int
    text: bytes
    """The statement up to the tuple."""
    table: list[str]
    """The table's name, after that of its database if the statement gives it."""
    names: list[str] | None
    """The columns that the statement lists."""


class Tuple(NamedTuple):
    end: int
    """The position after the tuple's closing parenthesis."""
    following: int
    """The position after the comma or semicolon."""
    last: bool
    """Whether it is the last tuple of its statement."""
    cells: Cells


class InsertRecordReader:
    def __init__(self, *, backslash_escapes: bool) -> None:
        self._backslash_escapes = backslash_escapes
        special, escape = (rb"\\", rb"|\\.") if backslash_escapes else (b"", b"")
        self._strings = {
            quote: repeated(b"[^" + quote + special + b"]*+", quote * 2 + escape) for quote in (b"'", b'"')
        }
        self._escapes = {quote: re.compile(rb"\\(.)|" + quote * 2, re.DOTALL) for quote in (b"'", b'"')}

    def head(self, content: bytes, at: int, final: bool) -> Head | None:
        """Find the next statement with a tuple; None when there is none up to the end of the content.

        Raises MoreNeededError, and NotSoundError with the position of anything else.
        """
        while True:
            at = behind_space(content, at)
            if at == len(content):
                return None
            stop = min(at + _HEAD_LIMIT, len(content))
            unsure = stop == len(content) and not final
            found = _INSERT.match(content, at, stop)
            if found:
                try:
                    names = None if found["columns"] is None else _names(found["columns"])
                    return Head(found.end(), found[0], _names(found["table"]), names)
                except UnicodeDecodeError:
                    raise NotSoundError(at) from None
            found = _SKIPPED.match(content, at, stop)
            if found is None or (unsure and found.end() == stop):
                if unsure:
                    raise MoreNeededError
                raise NotSoundError(at)
            at = found.end()

    def row(self, content: bytes, start: int, final: bool) -> Tuple:
        """Read the tuple at `start`, which is before the end of the content. Raises MoreNeededError and
        NotSoundError."""
        if not content.startswith(b"(", start):
            raise NotSoundError(start)
        cells, at = Cells(), behind_space(content, start + 1)
        while cells or not content.startswith(b")", at):
            cell, at = self._value(content, at, final)
            cells.append(cell)
            at, mark = _mark(content, at, final)
            if mark == b")":
                break
            if mark != b",":
                raise NotSoundError(start)
            at = behind_space(content, at + 1)
        end = at + 1
        at, mark = _mark(content, end, final)
        if mark not in b",;":
            raise NotSoundError(start)
        return Tuple(end, at + len(mark), mark == b";", cells)

    def next_begin(self, content: bytes, start: int, final: bool, *, tuples: bool) -> int:
        """Return the start of the next line after `start` that begins like a statement or, with `tuples`, a tuple.
        Raises MoreNeededError."""
        found = (_NEXT_TUPLE if tuples else _NEXT_STATEMENT).search(content, start)
        if found:
            return found.end()
        if not final:
            raise MoreNeededError
        return len(content)

    def _value(self, content: bytes, at: int, final: bool) -> tuple[bytes | None, int]:
        if content[at : at + 1] in (b"'", b'"'):
            return self._text(content, at, final)
        if at + _BEYOND > len(content) and not final:
            raise MoreNeededError
        if found := _NULL.match(content, at):
            return None, found.end()
        if found := _DIGITS.match(content, at):
            return _octets(found, content, final)
        if found := _BINARY.match(content, at):
            return self._text(content, found.end(), final)
        if found := _CONVERT.match(content, at):
            return self._converted(content, found.end(), final)
        found = _NUMBER.match(content, at)
        if found is None:
            raise NotSoundError(at)
        if found.end() == len(content) and not final:
            raise MoreNeededError
        return SqlNumber(found[0]), found.end()

    def _converted(self, content: bytes, at: int, final: bool) -> tuple[bytes, int]:
        text, at = self._text(content, at, final)
        if at + _BEYOND > len(content) and not final:
            raise MoreNeededError
        found = _USING.match(content, at)
        if found is None:
            raise NotSoundError(at)
        return text, found.end()

    def _text(self, content: bytes, at: int, final: bool) -> tuple[bytes, int]:
        """Read the string whose quote is at `at`; return it and the position after it."""
        quote = content[at : at + 1]
        end = end_of(self._strings[quote], content, at + 1)
        if end + 2 > len(content) and not final:
            raise MoreNeededError
        if not content.startswith(quote, end):
            raise NotSoundError(at)
        text = content[at + 1 : end]
        if self._backslash_escapes and b"\\" in text:
            text = self._escapes[quote].sub(_unescaped, text)
        else:
            text = text.replace(quote * 2, quote)
        return text, end + 1


def behind_space(content: bytes, at: int) -> int:
    found = _SPACE.match(content, at)
    return found.end() if found else at


def _mark(content: bytes, at: int, final: bool) -> tuple[int, bytes]:
    """Return the position of the next byte that is not white space, and the byte; an empty one at the end of the file.
    Raises MoreNeededError."""
    at = behind_space(content, at)
    if at == len(content) and not final:
        raise MoreNeededError
    return at, content[at : at + 1]


def _octets(found: re.Match[bytes], content: bytes, final: bool) -> tuple[bytes, int]:
    """Return the value of a literal, which was matched up to its last quote, and the position after it."""
    quoted, bare, digits = found.groups()
    end = found.end()
    if end == len(content) and not final:
        raise MoreNeededError
    if quoted and not content.startswith(b"'", end):
        raise NotSoundError(found.start())
    if (quoted or bare) in (b"b", b"B"):
        if digits.strip(b"01") or not (quoted or digits):
            raise NotSoundError(found.start())
        return Octets(int(digits or b"0", 2).to_bytes((len(digits) + 7) // 8, "big")), end + bool(quoted)
    if (quoted and len(digits) % 2) or not (quoted or digits):
        raise NotSoundError(found.start())
    return Octets(binascii.unhexlify(b"0" * (len(digits) % 2) + digits)), end + bool(quoted)


def _unescaped(found: re.Match[bytes]) -> bytes:
    if found[1] is None:
        return found[0][:1]
    return ESCAPES.get(found[1], found[1])


def _names(text: bytes) -> list[str]:
    """Return the names in a list, without quotes. Raises UnicodeDecodeError."""
    names = [found[0].decode() for found in _NAMES.finditer(text)]
    return [name[1:-1].replace(name[0] * 2, name[0]) if name[0] in '`"' else name for name in names]


LEAST: Final = 4096
"""With fewer bytes, fast reading of a statement's tuples does not pay."""
_QUOTE: Final = ord("'")
_LOWER: Final = 0x20
"""The bit that makes an ASCII letter lower case."""
_END: Final = b");\n"
_GAPS: Final = (b"),\n(", b")\n,(", b"),(")
"""The texts between two tuples: Dumpling's, mydumper's, mysqldump's."""
_ESCAPES: Final = {letter: character for letter, character in ESCAPES.items() if len(character) == 1} | {
    character: character for character in (b"\\", b"'", b'"')
}
_WORDS: Final = re.compile(rb"(?<=[(,])(?:(_binary )(?=')|(CONVERT\()'+( USING UTF8MB4\))(?=[,)]))")
"""Words around strings that are removed here, so that only the quotes remain."""

# Classes of bytes, and the classes that may follow each, outside strings; a string is its quotes.
_CLASSES: Final = {b"(": "(", b")": ")", b",": ",", b"'": "'", b"0123456789": "9", b"-": "-", b"+": "+", b".": ".",
                   b"eE": "e", b"N": "N", b"U": "U", b"L": "L", b"\n": "n", b"xX": "x"}  # fmt: skip
_FOLLOWING: Final = {"(": "'9-Nx", ",": "'9-Nx(n", "'": "',)", "9": "9.e,)", "-": "9", "+": "9", ".": "9", "e": "9-+",
                     "N": "U", "U": "L", "L": "L,)", ")": ",n", "n": "(,", "x": "'"}  # fmt: skip


def _tables() -> tuple[bytes, bytes]:
    """Return the class of each byte, and for 16 times a class plus the next one whether this sequence is allowed."""
    numbers = {of: number for number, of in enumerate(_CLASSES.values(), 1)}
    classes, allowed = bytearray(256), bytearray(256)
    for characters, of in _CLASSES.items():
        for character in characters:
            classes[character] = numbers[of]
    for of, following in _FOLLOWING.items():
        for each in following:
            allowed[numbers[of] * 16 + numbers[each]] = True
    return bytes(classes), bytes(allowed)


_CLASS, _ALLOWED = _tables()


class Tuples(NamedTuple):
    texts: list[pa.Array]
    end: int
    """The start of the next tuple, or the end of the statement's line."""
    last: bool
    """Whether the next tuple belongs to another statement."""


def read_tuples(
    content: bytes, start: int, stop: int, head: bytes, columns: Sequence[DumpColumn], *, backslash_escapes: bool
) -> Tuples | None:
    """Read the tuples from the one at `start` that end before `stop`: those of a statement that begins with `head`, and
    of the following ones that begin with it too. None when not all of them are valid and in the usual form, or when
    there are few."""
    joint = _END + head + b"("
    joints = [*_found(content, joint, start, stop)] if columns and b"'" not in head and b"\\" not in head else []
    close = content.find(_END, joints[-1] + len(joint) if joints else start, stop)
    end, last = close + len(_END), True
    if close < 0:
        # The statement continues after `stop`.
        for gap in _GAPS:
            close = content.rfind(gap, joints[-1] + len(joint) if joints else start, stop)
            if close >= 0:
                end, last = close + len(gap) - 1, False
                break
        else:
            if not joints:
                return None
            close = joints.pop()
            end = close + len(_END)
    if (last and close - start < LEAST) or not columns:
        return None
    try:
        places = [place - start for place in joints]
        texts = _texts(content[start : close + 1], places, len(joint), columns, backslash_escapes)
    except (NotUsualError, CellError, pa.ArrowInvalid, binascii.Error):
        return None
    return Tuples(texts, end, last)


def _found(content: bytes, part: bytes, start: int, stop: int) -> Iterator[int]:
    while (start := content.find(part, start, stop)) >= 0:
        yield start
        start += len(part)


def _texts(
    text: bytes, joints: Sequence[int], width: int, columns: Sequence[DumpColumn], backslash_escapes: bool
) -> list[pa.Array]:
    """Return the values of tuples. `joints` are the positions where one statement ends and the next one begins, up to
    its tuple, each `width` bytes long."""
    marks = Marks(text)
    gap, joined = _gap(text, joints), marks.unused() if joints else b""
    text = (joined * len(gap)).join(_pieces(text, joints, width))
    if backslash_escapes:
        text, others = marks.unescaped(text, _ESCAPES)
        if others:
            raise NotUsualError
    array: Bytes = np.frombuffer(text, np.uint8)
    places = _outside(array)
    outside = array[places]
    if joints:
        between = outside == joined[0]
        if np.count_nonzero(between) != len(joints) * len(gap):
            raise NotUsualError  # What looks like one stands in a string.
        outside[between] = np.tile(np.frombuffer(gap, np.uint8), len(joints))
    words: list[tuple[int, int]] = []
    if (outside == ord(" ")).any():
        words = [
            span for each in _WORDS.finditer(outside.tobytes()) for span in map(each.span, (1, 2, 3)) if span[1] > 0
        ]
    if words:
        starts, ends = np.array(words).T
        dropped = _ranges(starts, ends)
        array = np.delete(array, places[dropped])
        places, outside = _outside(array), np.delete(outside, dropped)
    separators = places[_separators(outside, len(columns))]
    return _columns(array, separators, int(np.count_nonzero(outside == _QUOTE)), columns, marks)


def _gap(text: bytes, joints: Sequence[int]) -> bytes:
    """Return the text between two tuples, without their parentheses."""
    for end in (joints[0] + 1, len(text)) if joints else ():
        for gap in _GAPS:
            if text.find(gap, 0, end) >= 0:
                return gap[1:-1]
    return _GAPS[0][1:-1]


def _pieces(text: bytes, joints: Sequence[int], width: int) -> Iterator[bytes]:
    """Yield the tuples of each statement."""
    start = 0
    for joint in joints:
        yield text[start : joint + 1]
        start = joint + width - 1
    yield text[start:] if start else text


def _columns(
    text: Bytes, separators: Positions, quotes: int, columns: Sequence[DumpColumn], marks: Marks
) -> list[pa.Array]:
    """Return the columns of values between separators; each row has one separator more than there are columns. `quotes`
    is the number of quotes in the text."""
    starts, ends = separators[:, :-1] + 1, separators[:, 1:]
    first = text[starts]
    quoted, null, is_literal = first == _QUOTE, first == ord("N"), (first | _LOWER) == ord("x")
    if not (ends - starts == len(b"NULL"))[null].all():
        raise NotUsualError
    literal = None
    if is_literal.any():
        literal, text = marks.unused(), text.copy()
        text[starts[is_literal]] = literal[0]
    count, width = starts.shape
    # All values of a column, then all of the next one.
    numbers = np.arange(count * width).reshape(count, width).T.ravel()
    which = pa.array(numbers, mask=null.T.ravel() if null.any() else None)
    cells = cut(text, (starts + quoted).ravel(), (ends - quoted).ravel(), which)
    if quotes > 2 * np.count_nonzero(quoted | is_literal):
        undoubled = pc.replace_substring(cells, pattern=b"''", replacement=b"'")
        cells = pc.if_else(pa.array(is_literal.T.ravel()), cells, undoubled) if literal else undoubled
    cells = marks.restored(cells)
    return [
        _column(column, cells.slice(number * count, count), literal if is_literal[:, number].any() else None)
        for number, column in enumerate(columns)
    ]


def _column(column: DumpColumn, cells: pa.Array, literal: bytes | None) -> pa.Array:
    """Convert one column's cells. `literal` is the mark that hexadecimal literals begin with, where there are some."""
    if literal is None and column.kind != "bit":
        return column.texts(cells)
    if not column.binary:
        raise NotUsualError

    def octets(cell: bytes) -> bytes:
        if literal is not None and cell.startswith(literal):
            return Octets(binascii.unhexlify(cell[2:-1]))
        if column.kind == "bit":  # It may be a number, or text.
            raise NotUsualError
        return cell

    return column.texts(cells, octets)


def _outside(text: Bytes) -> Positions:
    """Return the positions outside strings, including their quotes. For a doubled quote, both quotes are included."""
    quotes = np.flatnonzero(text == _QUOTE)
    if len(quotes) % 2:
        raise NotUsualError
    return _ranges(np.append(0, quotes[1::2]), np.append(quotes[0::2] + 1, len(text)))


def _ranges(starts: Positions, ends: Positions) -> Positions:
    """Return all numbers from each start to before its end."""
    lengths = ends - starts
    before = np.cumsum(lengths) - lengths
    return np.arange(lengths.sum()) + np.repeat(starts - before, lengths)


def _separators(outside: Bytes, width: int) -> Positions:
    """Return the positions, in the text outside of strings, of the parentheses and commas around the values: for each
    tuple one more than it has values. Raises NotUsualError for anything unusual."""
    # `translate` looks up bytes in a third of numpy's time.
    classes: Bytes = np.frombuffer(outside.tobytes().translate(_CLASS), np.uint8)
    if 0 in (classes[:-1] * 16 + classes[1:]).tobytes().translate(_ALLOWED):
        raise NotUsualError
    is_comma = outside == ord(",")
    _require_numbers(outside, is_comma)
    opening, closing = np.flatnonzero(outside == ord("(")), np.flatnonzero(outside == ord(")"))
    if len(opening) != len(closing) or opening[0] != 0 or closing[-1] != len(outside) - 1:
        raise NotUsualError
    line_feeds = 0
    if len(opening) > 1:
        gap = outside[closing[0] : opening[1] + 1].tobytes()
        if gap not in _GAPS or not (opening[1:] - closing[:-1] == len(gap) - 1).all():
            raise NotUsualError
        for place, byte in enumerate(gap):
            if not (outside[closing[:-1] + place] == byte).all():
                raise NotUsualError
        is_comma[closing[:-1] + gap.index(b",")] = False
        line_feeds = gap.count(b"\n") * (len(opening) - 1)
    commas = np.flatnonzero(is_comma)
    if len(commas) != len(opening) * (width - 1) or np.count_nonzero(outside == ord("\n")) != line_feeds:
        raise NotUsualError
    found = np.column_stack([opening, commas.reshape(len(opening), width - 1), closing])
    if not (found[:, :-1] < found[:, 1:]).all():
        raise NotUsualError  # One tuple has more values, another one fewer.
    return found


def _require_numbers(outside: Bytes, is_comma: Mask) -> None:
    """Check that a number has at most one point and one exponent, in this order; else raise NotUsualError."""
    parts = np.flatnonzero((outside == ord(".")) | ((outside | _LOWER) == ord("e")))
    if len(parts):
        number = np.searchsorted(np.flatnonzero(is_comma), parts)
        same = np.flatnonzero(number[1:] == number[:-1])
        points = outside[parts] == ord(".")
        if not (points[same].all() and not points[same + 1].any()):
            raise NotUsualError


_KEPT: Final = 32
"""The bytes that are kept of a long record: the start of the next statement's line is recognised in fewer."""


class InsertReader:
    """A `dump_values.Reader`. Raises SourceError for a statement with columns that the table does not have."""

    def __init__(self, context: DumpContext, notation: InsertNotation) -> None:
        self._context = context
        self._notation = notation
        self._columns_by_names: dict[tuple[str, ...], list[DumpColumn]] = {}
        self._columns = self._named(notation.columns)
        """The columns of the statement that the next tuple belongs to, or of the last one."""
        self._records = InsertRecordReader(backslash_escapes=notation.backslash_escapes)
        self._within = False
        """Whether a statement is open, so that a tuple must follow."""
        self._head = b""
        """The beginning of that statement, or of the last one."""
        self._foreign = False
        """Whether the statement is for another table."""
        self._within_long = False

    def fast(self, content: bytes, start: int, stop: int, final: bool) -> Rows | None:
        at, head_text, columns = behind_space(content, start), self._head, self._columns
        foreign = self._foreign
        if self._within_long:
            return None
        if not self._within:
            try:
                head = self._records.head(content, at, final)
                if head is None:
                    return None
                columns = self._columns_of(head, content, final)
            except (MoreNeededError, NotSoundError):
                return None
            at, head_text = head.at, head.text
            foreign = self._is_foreign(head)
        stop = min(stop, at + dump_values.RECORD_LIMIT)
        escapes = self._notation.backslash_escapes
        read = None if foreign else read_tuples(content, at, stop, head_text, columns, backslash_escapes=escapes)
        if read is None:
            return None
        self._head, self._columns, self._foreign, self._within = head_text, columns, False, not read.last
        return sound_rows(columns, read.texts, read.end)

    def strict(self, content: bytes, start: int, stop: int, final: bool) -> Rows:
        rows, at = RowBuilder(self._columns), start
        try:
            while at < stop:
                if self._within_long:
                    at = self._behind_long(content, at, final)
                    continue
                at = behind_space(content, at)
                if at == len(content):
                    break
                if self._within:
                    at = self._tuple(content, at, final, rows)
                    continue
                try:
                    head = self._records.head(content, at, final)
                except NotSoundError as error:
                    at = self._rejected(content, error.at, final, rows)
                    continue
                if head is None:
                    at = len(content)
                    break
                columns = self._columns_of(head, content, final)
                if columns is not self._columns:
                    if len(rows):
                        break
                    rows = RowBuilder(columns)
                self._head, self._columns, self._foreign = head.text, columns, self._is_foreign(head)
                self._within = True
                at = head.at
        except MoreNeededError:
            pass
        return rows.rows(at)

    def rest(self) -> Rows | None:
        """Report a statement that is incomplete at the end of the file."""
        if not self._within:
            return None
        rows = RowBuilder(self._columns)
        rows.reject(problems.NOT_A_DUMP_ROW, b"")
        return rows.rows(0)

    def _tuple(self, content: bytes, at: int, final: bool, rows: RowBuilder) -> int:
        """Read the tuple at `at`; return where to continue. Raises MoreNeededError."""
        try:
            found = self._records.row(content, at, final)
        except NotSoundError:
            return self._rejected(content, at, final, rows)
        except MoreNeededError:
            if len(content) - at <= dump_values.RECORD_LIMIT:
                raise
            return self._rejected(content, at, final, rows)
        if found.end - at > dump_values.RECORD_LIMIT:
            return self._rejected(content, at, final, rows)
        raw = content[at : min(found.end, at + problems.RAW_LIMIT)]
        if self._foreign:
            rows.reject(problems.WRONG_TABLE, raw)
        else:
            rows.add(found.cells, raw)
        self._within = not found.last
        return found.following

    def _rejected(self, content: bytes, at: int, final: bool, rows: RowBuilder) -> int:
        """Reject the invalid tuple or statement at `at`; return where to continue. Raises MoreNeededError."""
        try:
            following = self._records.next_begin(content, at, final, tuples=self._within)
        except MoreNeededError:
            if len(content) - at <= dump_values.RECORD_LIMIT:
                raise
            self._within_long = True
            following = len(content)
        rows.reject(problems.NOT_A_DUMP_ROW, content[at : min(following, at + problems.RAW_LIMIT)].rstrip(b"\r\n"))
        return at if self._within_long else self._begun(content, following)

    def _behind_long(self, content: bytes, at: int, final: bool) -> int:
        """Return where to continue after a record that is too long to be held. Raises MoreNeededError."""
        try:
            following = self._records.next_begin(content, at, final, tuples=self._within)
        except MoreNeededError:
            if len(content) - at <= _KEPT:
                raise
            return len(content) - _KEPT
        self._within_long = False
        return self._begun(content, following)

    def _begun(self, content: bytes, at: int) -> int:
        """Return the position of the tuple or statement that a line begins with."""
        comma = content.startswith(b",(", at)
        self._within = self._within and (comma or content.startswith(b"(", at))
        return at + (self._within and comma)

    def _columns_of(self, head: Head, content: bytes, final: bool) -> list[DumpColumn]:
        """Return the columns that a statement lists, else the notation's, or all of the table where its first tuple has
        as many: some tools dump generated columns too. Raises MoreNeededError."""
        names: Sequence[str] = self._notation.columns if head.names is None else head.names
        every = tuple(self._context.columns)
        if head.names is None and len(names) < len(every) and len(content) - head.at <= dump_values.RECORD_LIMIT:
            with contextlib.suppress(NotSoundError):
                names = every if len(self._records.row(content, head.at, final).cells) == len(every) else names
        return self._named(names)

    def _named(self, names: Sequence[str]) -> list[DumpColumn]:
        """Return the columns of the names: the same list for the same names."""
        own = self._context.own_names(names)
        if own not in self._columns_by_names:
            self._columns_by_names[own] = columns_of(own, self._context)
        return self._columns_by_names[own]

    def _is_foreign(self, head: Head) -> bool:
        return head.table != [self._context.database, self._context.table][-len(head.table) :]
