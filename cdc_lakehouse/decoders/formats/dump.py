r"""Data files of dumps: each row is an event that the row was read, at one commit-ts.

Nothing is lost: a record that cannot be used has its `problem`, a key of `problems.PROBLEMS`, and its first bytes in
`value`; its other columns are null except `line`, the row's number in the file. A header is not a row, nor is the text
around the rows of INSERT statements. For delimited text see `decoders.text`, for the values `DumpColumn`.

    1,"lamp",\N

The rows of INSERT statements are read value by value, which is correct for any bytes, or many at a time with Arrow, for
valid ones in the usual form.

    /*!40101 SET NAMES binary*/;
    INSERT INTO `orders` VALUES
    (1,'lamp',NULL,x'00ff'),
    (2,'it\'s',-1.5e3,_binary 'a');

A value is NULL, a number, a string in either quote, a literal of bits or hexadecimal digits, a string after `_binary`
or in CONVERT(… USING utf8mb4). Around the statements there are comments and statements that change no row. Anything
else extends up to a line that begins like a tuple or a statement: dumps with backslash escapes have no line ends in
strings. Format: MySQL manual, "Literal Values", "Comments", "INSERT Statement"; TiDB's `dumpling/export/sql_type.go`;
mydumper's `mydumper_write.c`.

For Arrow's csv reader each tuple becomes a line. First the text around strings is checked byte by byte: which byte may
follow which covers nearly all of a tuple's grammar. Escapes and the prefixes of literals are single bytes by then (see
`text.Marks`), the words around a string are gone. Anything unusual is left to the strict reader.
"""

from __future__ import annotations

import binascii
import contextlib
import itertools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple, Self

import numpy as np
import pyarrow as pa

from cdc_lakehouse import duckdb_sql
from cdc_lakehouse.changelog import mysql_types
from cdc_lakehouse.changelog.mysql_types import BLOBS, GEOMETRIES, INTEGERS, LABELS, TEMPORALS, ColumnType
from cdc_lakehouse.decoders import problems, text
from cdc_lakehouse.decoders.arrow import Bytes, Positions, pc
from cdc_lakehouse.decoders.event_schema import DECODED, TEXT_OF, most_rows, row_images
from cdc_lakehouse.decoders.text import (
    BACKSLASH,
    MYSQL_ESCAPES,
    CellError,
    Cells,
    Dialect,
    Marks,
    MoreNeededError,
    NotUsualError,
    RowBuilder,
    Rows,
    TextReader,
    end_of,
    parsed,
    read_rows,
    repeated,
    valid_rows,
)
from cdc_lakehouse.duckdb_sql import at_zone, matches, text_in_zone, try_cast, when
from cdc_lakehouse.errors import SourceError
from cdc_lakehouse.sources.dump.contents import BinaryNotation, InsertNotation, Notation, TextNotation

Kind = Literal["text", "enum", "set", "bit", "characters", "base64", "hex"]

_NUMBERS: Final = INTEGERS | {"decimal", "float", "double", "year"}
_BASE64: Final = re.compile(rb"([A-Za-z0-9+/]{4})*([A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?")
_BIT_BYTES: Final = 8
"""MySQL's BIT has at most 64 bits."""
_MOMENT: Final = r"\d{4}-\d{2}-\d{2} \d{2}:\d{2}:\d{2}(\.\d{1,6})?"


@dataclass(frozen=True)
class DumpContext:
    """The facts that a decoder needs of one data file: its table, how it is written, and how the feed writes values.

    `commit_ts` is that of every event. `columns` are types by column name, as in the CREATE TABLE. With `labels` the
    feed's ENUM and SET are labels, else numbers (an ENUM's 1-based index, a SET's bit mask). `binary` is the feed's
    notation of binary values; `characters` has one character for each byte (ISO-8859-1). TIMESTAMP text of the file is
    in the time zone `zone`, that of events in `feed_zone`.
    """

    database: str
    table: str
    commit_ts: int
    notation: Notation
    columns: Mapping[str, ColumnType]
    labels: bool
    binary: Literal["characters", "base64", "hex"]
    zone: str
    feed_zone: str

    def own_names(self, names: Sequence[str]) -> tuple[str, ...]:
        """Return the names as the CREATE TABLE has them. Raises SourceError for names of no column."""
        own = {name.lower(): name for name in self.columns}
        try:
            return tuple(own[name.lower()] for name in names)
        except KeyError:
            raise self.other_columns("the file's rows have", names, "the table has", tuple(self.columns)) from None

    def other_columns(self, who: str, names: Sequence[str], other: str, others: Sequence[str]) -> SourceError:
        return SourceError(
            f"{who} the columns {', '.join(names)}; {other} {', '.join(others)}",
            table=f"{self.database}.{self.table}",
            advice="take the dump again, or give the options that it was taken with",
        )


class SqlNumber(bytes):
    """The digits of an SQL number, which were not in quotes."""


class Octets(bytes):
    """The value of SQL's hexadecimal or bit literal."""


@dataclass(frozen=True)
class DumpColumn:
    """Converts the cells of one column to texts."""

    name: str
    kind: Kind
    encoding: BinaryNotation
    """The encoding that is decoded first."""
    number: bool
    labels: dict[str, int]
    """The number of each label, for an ENUM or SET whose labels become numbers."""
    zones: tuple[str, str] | None
    """The source and target time zone, for a TIMESTAMP that must be converted."""
    charset: str = "utf8mb4"
    """MySQL's name for the character set of a text."""

    @classmethod
    def of(cls, name: str, of: ColumnType, context: DumpContext) -> Self:
        numbered, notation = of.name in LABELS and not context.labels, context.notation
        is_bytes = of.name in BLOBS or of.name in GEOMETRIES or of.name == "bit"
        kind: Kind = "text"
        if is_bytes:
            kind = context.binary if of.name in BLOBS else "characters" if of.name in GEOMETRIES else "bit"
        elif numbered:
            kind = "enum" if of.name == "enum" else "set"
        encoding: BinaryNotation = "raw"
        if not isinstance(notation, InsertNotation):
            encoded: dict[str, BinaryNotation] = {column.lower(): each for column, each in notation.encoded.items()}
            encoding = encoded.get(name.lower(), notation.binary if is_bytes else "raw")
        return cls(
            name,
            kind,
            encoding,
            of.name in _NUMBERS or of.name in TEMPORALS,
            # Of equal labels, which a server accepts with a warning, use the first.
            {label: place for place, label in reversed([*enumerate(of.elements)])} if numbered else {},
            (context.zone, context.feed_zone) if of.name == "timestamp" and context.zone != context.feed_zone else None,
            (of.charset if notation.own_charsets else None) or "utf8mb4",
        )

    @property
    def binary(self) -> bool:
        """Whether the cells are bytes, not text."""
        return self.kind in ("bit", "characters", "base64", "hex")

    def text(self, cell: bytes) -> str:
        """Convert a cell to text. Raises CellError."""
        if isinstance(cell, Octets) and self.number:
            raise CellError(problems.NOT_A_VALUE)
        if self.kind == "bit" and isinstance(cell, SqlNumber):
            return cell.decode()
        value = cell
        if self.encoding != "raw":
            # MySQL's TO_BASE64 breaks lines.
            digits = cell if self.encoding == "hex" else cell.translate(None, b" \t\r\n")
            if self.encoding == "base64" and not _BASE64.fullmatch(digits):
                raise CellError(problems.NOT_A_VALUE)
            try:
                value = binascii.unhexlify(digits) if self.encoding == "hex" else binascii.a2b_base64(digits)
            except binascii.Error:
                raise CellError(problems.NOT_A_VALUE) from None
        match self.kind:
            case "characters":
                return value.decode("latin-1")
            case "base64":
                return binascii.b2a_base64(value, newline=False).decode()
            case "hex":
                return value.hex()
            case "bit":
                if len(value) > _BIT_BYTES:
                    raise CellError(problems.NOT_A_VALUE)
                return str(int.from_bytes(value, "big"))
            case _:
                pass
        try:
            # ASCII can be decoded in any character set.
            text = mysql_types.text(value, self.charset if mysql_types.has_codec(self.charset) else "ascii")
        except mysql_types.CharsetError:
            kind = problems.NOT_UTF8 if self.charset in mysql_types.UTF8 else problems.NOT_IN_CHARSET
            raise CellError(kind) from None
        if self.kind == "text":
            return text
        if self.kind == "enum":
            # The empty text is an ENUM's error value where no label is empty.
            place = self.labels.get(text, -1 if text == "" else None)
            if place is not None:
                return str(place + 1)
        else:
            places = {self.labels.get(label) for label in text.split(",")} if text else set[int | None]()
            if None not in places:
                return str(sum(1 << place for place in places if place is not None))
        raise CellError(problems.NOT_A_VALUE)

    def texts(self, cells: pa.Array, cell: Callable[[bytes], bytes] | None = None) -> pa.Array:
        """Convert an array of bytes to texts; `cell`, if given, converts each value to a cell first. Raises CellError
        and ArrowInvalid."""
        if self.kind == "text" and self.encoding == "raw" and cell is None and self.charset in mysql_types.UTF8:
            return cells.cast(pa.string())
        if self.kind in ("enum", "set", "bit"):
            known = cells.dictionary_encode()
            return self._each(known.dictionary, cell).take(known.indices)
        return self._each(cells, cell)

    def expression(self, text: str) -> str:
        """Return the DuckDB expression that converts the text to an image's value. Text that is not a timestamp stays:
        zero dates, and values that the readers must report."""
        if self.zones is None:
            return text
        zone, feed_zone = self.zones
        local = try_cast(text, "timestamp")
        known = f"{matches(text, _MOMENT)} AND {text} >= '0001' AND {local} IS NOT NULL"
        return when(known, text_in_zone(at_zone(local, zone), feed_zone, f"length({text})"), text)

    def _each(self, cells: pa.Array, cell: Callable[[bytes], bytes] | None) -> pa.Array:
        values: list[bytes | None] = cells.to_pylist()
        if cell is not None:
            values = [None if value is None else cell(value) for value in values]
        return pa.array([None if value is None else self.text(value) for value in values], pa.string())


class DumpTable:
    """A `text.Table` of a dump's columns, whose rows have their texts in columns named `0`, `1`, …"""

    def __init__(self, names: Sequence[str], context: DumpContext) -> None:
        """`names` are as the CREATE TABLE has them."""
        self.dump_columns = [DumpColumn.of(name, context.columns[name], context) for name in names]
        self.width = len(names)
        texts = [(str(number), pa.string()) for number in range(self.width)]
        self.schema = pa.schema([*texts, *(DECODED.field(name) for name in ("problem", "value", "strict"))])

    def row(self, cells: Cells) -> tuple[object, ...] | str:
        if len(cells) != self.width:
            return problems.FIELD_COUNT
        pairs = zip(self.dump_columns, cells, strict=True)
        try:
            return tuple(None if cell is None else column.text(cell) for column, cell in pairs)
        except CellError as error:
            return error.problem

    def columns(self, cells: list[Any]) -> list[Any]:
        return [column.texts(cell) for column, cell in zip(self.dump_columns, cells, strict=True)]


_HEAD_LIMIT: Final = 1024 * 1024
"""The limit of the text before a tuple, in bytes: MySQL has at most 4096 columns with names of 64 characters."""
_BEYOND: Final = 64
"""The prefix of a value is shorter than this, in bytes."""

_ESCAPES: Final = MYSQL_ESCAPES | {b"%": rb"\%", b"_": rb"\_"}

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
        found = None
        try:
            found = self._row(content, start)
            at = found.following
        except NotSoundError as error:
            at = error.at
        # What follows decides what a value is, and where it ends.
        if at + _BEYOND > len(content) and not final:
            raise MoreNeededError
        if found is None:
            raise NotSoundError(start)
        return found

    def _row(self, content: bytes, start: int) -> Tuple:
        """Read a tuple. Raises NotSoundError with the position of the first byte that does not belong to one."""
        if not content.startswith(b"(", start):
            raise NotSoundError(start)
        cells, at = Cells(), behind_space(content, start + 1)
        while cells or not content.startswith(b")", at):
            cell, at = self._value(content, at)
            cells.append(cell)
            at = behind_space(content, at)
            if content.startswith(b")", at):
                break
            if not content.startswith(b",", at):
                raise NotSoundError(at)
            at = behind_space(content, at + 1)
        end = at + 1
        at = behind_space(content, end)
        mark = content[at : at + 1]
        if mark not in b",;":
            raise NotSoundError(at)
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

    def _value(self, content: bytes, at: int) -> tuple[bytes | None, int]:
        if content[at : at + 1] in (b"'", b'"'):
            return self._text(content, at)
        if found := _NULL.match(content, at):
            return None, found.end()
        if found := _DIGITS.match(content, at):
            quoted, bare, digits = found.groups()
            end, size = found.end(), len(digits)
            is_bits = (quoted or bare) in (b"b", b"B")
            is_whole = not digits.strip(b"01") if is_bits else not (quoted and size % 2)
            if not (quoted or digits) or (quoted and not content.startswith(b"'", end)) or not is_whole:
                raise NotSoundError(end)
            if is_bits:
                octets = int(digits or b"0", 2).to_bytes((size + 7) // 8, "big")
            else:
                octets = binascii.unhexlify(b"0" * (size % 2) + digits)
            return Octets(octets), end + bool(quoted)
        if found := _BINARY.match(content, at):
            return self._text(content, found.end())
        if found := _CONVERT.match(content, at):
            text, at = self._text(content, found.end())
            if found := _USING.match(content, at):
                return text, found.end()
        elif found := _NUMBER.match(content, at):
            return SqlNumber(found[0]), found.end()
        raise NotSoundError(at)

    def _text(self, content: bytes, at: int) -> tuple[bytes, int]:
        """Read the string whose quote is at `at`; return it and the position after it."""
        quote = content[at : at + 1]
        end = end_of(self._strings[quote], content, at + 1)
        if not content.startswith(quote, end):
            raise NotSoundError(end)
        text = content[at + 1 : end]
        if self._backslash_escapes and b"\\" in text:
            text = self._escapes[quote].sub(_unescaped, text)
        else:
            text = text.replace(quote * 2, quote)
        return text, end + 1


def behind_space(content: bytes, at: int) -> int:
    found = _SPACE.match(content, at)
    return found.end() if found else at


def _unescaped(found: re.Match[bytes]) -> bytes:
    if found[1] is None:
        return found[0][:1]
    return _ESCAPES.get(found[1], found[1])


def _names(text: bytes) -> list[str]:
    """Return the names in a list, without quotes. Raises UnicodeDecodeError."""
    names = [found[0].decode() for found in _NAMES.finditer(text)]
    return [name[1:-1].replace(name[0] * 2, name[0]) if name[0] in '`"' else name for name in names]


LEAST: Final = 4096
"""With fewer bytes, fast reading of a statement's tuples does not pay."""
_QUOTE: Final = ord("'")
_LF: Final = ord("\n")
_LOWER: Final = 0x20
"""The bit that makes an ASCII letter lower case."""
_END: Final = b");\n"
_GAPS: Final = (b"),\n(", b")\n,(", b"),(")
"""The texts between two tuples: Dumpling's, mydumper's, mysqldump's."""
_USUAL_ESCAPES: Final = MYSQL_ESCAPES | {character: character for character in (BACKSLASH, b"'", b'"')}
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
    cells: list[Any]
    """A column of bytes for each value."""
    literal: bytes
    """The byte that literals of hexadecimal digits begin with instead of their `x`; empty where there are none."""
    end: int
    """The start of the next tuple, or the end of the statement's line."""
    last: bool
    """Whether the next tuple belongs to another statement."""


def read_tuples(
    content: bytes, start: int, stop: int, head: bytes, width: int, *, backslash_escapes: bool
) -> Tuples | None:
    """Read the tuples of `width` values from the one at `start` that end before `stop`: those of a statement that
    begins with `head`, and of the following ones that begin with it too. None where there are few. Raises
    NotUsualError and ArrowInvalid where not all of them are valid and in the usual form."""
    joint = _END + head + b"("
    joined = content.find(joint, start, stop) if b"'" not in head and b"\\" not in head else -1
    joined = joined if joined < 0 else content.rfind(joint, start, stop)
    first = start if joined < 0 else joined + len(joint)
    close = content.find(_END, first, stop)
    end, last = close + len(_END), True
    if close < 0:
        # The statement continues after `stop`.
        found = ((content.rfind(gap, first, stop), gap) for gap in _GAPS)
        close, gap = next((each for each in found if each[0] >= 0), (joined, _END + b"("))
        end, last = close + len(gap) - 1, gap not in _GAPS
    if close < 0 or (last and close - start < LEAST) or not width:
        return None
    cells, literal = _cells(content[start : close + 1], joint if joined >= 0 else b"", width, backslash_escapes)
    return Tuples(cells, literal, end, last)


def _cells(text: bytes, joint: bytes, width: int, backslash_escapes: bool) -> tuple[list[Any], bytes]:
    """Return the cells and the literal of `Tuples`. `joint` is the text from the end of one statement to the first
    value of the next one."""
    marks, joints = Marks(text), text.count(joint) if joint else 0
    within = (text.find(joint) + 1, len(text)) if joints else (len(text),)
    gap = next((gap for size in within for gap in _GAPS if text.find(gap, 0, size) >= 0), _GAPS[0])
    stand_in = marks.unused()
    if joints:
        text = text.replace(joint, b")" + stand_in * (len(gap) - 2) + b"(")
    if backslash_escapes:
        text = marks.unescaped(text, _USUAL_ESCAPES)
        if BACKSLASH in text:
            raise NotUsualError
    array: Bytes = np.frombuffer(text, np.uint8).copy()
    quotes = np.flatnonzero(array == _QUOTE)
    if len(quotes) % 2:
        raise NotUsualError
    # Outside strings, including their quotes; of a doubled quote, both.
    places = _ranges(np.append(0, quotes[1::2]), np.append(quotes[0::2] + 1, len(array)))
    outside = array[places]
    if joints:
        between = outside == stand_in[0]
        if np.count_nonzero(between) != joints * (len(gap) - 2):
            raise NotUsualError  # What looks like one stands in a string.
        outside[between] = np.tile(np.frombuffer(gap[1:-1], np.uint8), joints)
    kept = None
    if (outside == ord(" ")).any():
        words = [span for found in _WORDS.finditer(outside.tobytes()) for span in found.regs[1:] if span[1] > 0]
        dropped = _ranges(*np.array(words, np.int64).reshape(-1, 2).T)
        kept = np.ones(len(array), bool)
        kept[places[dropped]] = False
        places, outside = np.delete(places, dropped), np.delete(outside, dropped)
    _require_tuples(outside.tobytes(), gap)
    literals = places[(outside | _LOWER) == ord("x")]
    literal = marks.unused() if len(literals) else b""
    array[literals] = ord(literal or b"x")
    # Each tuple becomes a line, and what is between two becomes empty lines.
    closing = places[outside == ord(")")]
    array[0] = array[closing[-1]] = _LF
    for behind in range(len(gap)):
        array[closing[:-1] + behind] = _LF
    cells = parsed(array if kept is None else array[kept], b",", b"'", b"NULL", width, blank=True)
    return [marks.restored(cell) for cell in cells], literal


def _column(column: DumpColumn, cells: Any, literal: bytes) -> Any:
    """Convert one column's cells, where hexadecimal literals begin with `literal`. Raises NotUsualError, CellError and
    ArrowInvalid."""
    has_literals = literal and pc.any(pc.starts_with(cells, literal)).as_py()
    if not has_literals and column.kind != "bit":
        return column.texts(cells)
    if not column.binary:
        raise NotUsualError

    def octets(cell: bytes) -> bytes:
        if literal and cell.startswith(literal):
            # A comma, which is no digit, may have ended the cell.
            if len(cell) < 3 or not cell.endswith(b"'"):
                raise NotUsualError
            return Octets(binascii.unhexlify(cell[2:-1]))
        if column.kind == "bit":  # It may be a number, or text.
            raise NotUsualError
        return cell

    return column.texts(cells, octets)


def _ranges(starts: Positions, ends: Positions) -> Positions:
    """Return all numbers from each start to before its end."""
    lengths = ends - starts
    before = np.cumsum(lengths) - lengths
    return np.arange(lengths.sum()) + np.repeat(starts - before, lengths)


def _require_tuples(outside: bytes, gap: bytes) -> None:
    """Check the text outside of strings: tuples of values with this gap between them. Raises NotUsualError for anything
    unusual. The number of values is not checked."""
    # `translate` looks up bytes in a third of numpy's time.
    classes: Bytes = np.frombuffer(outside.translate(_CLASS), np.uint8)
    gaps = outside.count(gap)
    if (
        0 in (classes[:-1] * 16 + classes[1:]).tobytes().translate(_ALLOWED)
        or not (outside.startswith(b"(") and outside.endswith(b")"))
        or not outside.count(b"(") == outside.count(b")") == gaps + 1
        or outside.count(b"\n") != gaps * gap.count(b"\n")
        or not outside.count(b"NULL") * 2 == outside.count(b"N") * 2 == outside.count(b"L")
    ):
        raise NotUsualError
    # A number has at most one point and one exponent, in this order.
    text: Bytes = np.frombuffer(outside, np.uint8)
    parts = np.flatnonzero((text == ord(".")) | ((text | _LOWER) == ord("e")))
    if len(parts):
        number = np.searchsorted(np.flatnonzero(text == ord(",")), parts)
        same = np.flatnonzero(number[1:] == number[:-1])
        points = text[parts] == ord(".")
        if not (points[same].all() and not points[same + 1].any()):
            raise NotUsualError


_KEPT: Final = 32
"""The bytes that are kept of a long record: the start of the next statement's line is recognised in fewer."""


class InsertReader:
    """A `text.Reader`. Raises SourceError for a statement with columns that the table does not have."""

    def __init__(self, context: DumpContext, notation: InsertNotation) -> None:
        self._context = context
        self._notation = notation
        self._tables: dict[tuple[str, ...], DumpTable] = {}
        self._table = self._named(notation.columns)
        """The table, by its columns, of the statement that the next tuple belongs to, or of the last one."""
        self._records = InsertRecordReader(backslash_escapes=notation.backslash_escapes)
        self._within = False
        """Whether a statement is open, so that a tuple must follow."""
        self._head = b""
        """The beginning of that statement, or of the last one."""
        self._foreign = False
        """Whether the statement is for another table."""
        self._within_long = False

    def fast(self, content: bytes, start: int, stop: int, final: bool) -> Rows | None:
        at, head_text, table = behind_space(content, start), self._head, self._table
        foreign = self._foreign
        if self._within_long:
            return None
        if not self._within:
            try:
                head = self._records.head(content, at, final)
                if head is None:
                    return None
                table = self._table_of(head, content, final)
            except (MoreNeededError, NotSoundError):
                return None
            at, head_text = head.at, head.text
            foreign = self._is_foreign(head)
        if foreign:
            return None
        stop = min(stop, at + text.RECORD_LIMIT)
        try:
            escapes = self._notation.backslash_escapes
            read = read_tuples(content, at, stop, head_text, table.width, backslash_escapes=escapes)
            if read is None:
                return None
            pairs = zip(table.dump_columns, read.cells, strict=True)
            rows = valid_rows(table, [_column(column, cells, read.literal) for column, cells in pairs], read.end)
        except (NotUsualError, CellError, pa.ArrowInvalid, binascii.Error):
            return None
        self._head, self._table, self._foreign, self._within = head_text, table, False, not read.last
        return rows

    def strict(self, content: bytes, start: int, stop: int, final: bool) -> Rows:
        rows, at = RowBuilder(self._table), start
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
                table = self._table_of(head, content, final)
                if table is not self._table:
                    if len(rows):
                        break
                    rows = RowBuilder(table)
                self._head, self._table, self._foreign = head.text, table, self._is_foreign(head)
                self._within = True
                at = head.at
        except MoreNeededError:
            pass
        return rows.rows(at)

    def rest(self) -> Rows | None:
        """Report a statement that is incomplete at the end of the file."""
        if not self._within:
            return None
        rows = RowBuilder(self._table)
        rows.reject(problems.NOT_A_DUMP_ROW, b"")
        return rows.rows(0)

    def _tuple(self, content: bytes, at: int, final: bool, rows: RowBuilder) -> int:
        """Read the tuple at `at`; return where to continue. Raises MoreNeededError."""
        try:
            found = self._records.row(content, at, final)
        except NotSoundError:
            return self._rejected(content, at, final, rows)
        except MoreNeededError:
            if len(content) - at <= text.RECORD_LIMIT:
                raise
            return self._rejected(content, at, final, rows)
        if found.end - at > text.RECORD_LIMIT:
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
            if len(content) - at <= text.RECORD_LIMIT:
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

    def _table_of(self, head: Head, content: bytes, final: bool) -> DumpTable:
        """Return the table of the columns that a statement lists, else the notation's, or all of the table where its
        first tuple has as many: some tools dump generated columns too. Raises MoreNeededError."""
        names: Sequence[str] = self._notation.columns if head.names is None else head.names
        every = tuple(self._context.columns)
        if head.names is None and len(names) < len(every) and len(content) - head.at <= text.RECORD_LIMIT:
            with contextlib.suppress(NotSoundError):
                names = every if len(self._records.row(content, head.at, final).cells) == len(every) else names
        return self._named(names)

    def _named(self, names: Sequence[str]) -> DumpTable:
        """Return the table of these columns: the same for the same names."""
        own = self._context.own_names(names)
        if own not in self._tables:
            self._tables[own] = DumpTable(own, self._context)
        return self._tables[own]

    def _is_foreign(self, head: Head) -> bool:
        return head.table != [self._context.database, self._context.table][-len(head.table) :]


# Both kinds of files.

_PIECE: Final = 4 * 1024 * 1024
"""Shorter pieces spend more time in calls; longer ones do not fit into the processor's cache."""


def decode_rows(
    connection: Any, pieces: Iterator[bytes], context: DumpContext, *, piece: int = _PIECE
) -> Iterator[pa.RecordBatch]:
    """Decode a file into events, in batches with the columns of `DECODED`, and of the same texts as in the image, each
    named `TEXT_OF` and the table's column, with a DuckDB connection of `duckdb_sql.database`.

    `pieces` are the content's parts in order, cut anywhere. A few of them are held, or a record that is longer. `piece`
    is the number of bytes that are read at a time. Raises SourceError for a file with other columns, or with a header
    of other columns than the notation's.
    """
    notation = context.notation

    def check_header(cells: Cells | None) -> None:
        names = [(cell or b"").decode(errors="replace") for cell in cells or []]
        if [name.lower() for name in names] != [name.lower() for name in notation.columns]:
            raise context.other_columns("a file's header says", names, "the rows of the dump have", notation.columns)

    if isinstance(notation, TextNotation):
        table = DumpTable(context.own_names(notation.columns), context)
        # A table without dumped columns has no header.
        header = check_header if notation.header and notation.columns else None
        reader = TextReader(Dialect.of_dump(notation), table, problems.NOT_A_DUMP_ROW, header)
    else:
        reader = InsertReader(context, notation)
    columns: Sequence[DumpColumn] = ()
    waiting, size, line = list[pa.RecordBatch](), 0, 1
    for rows in itertools.chain(read_rows(reader, pieces, piece), [None]):
        # Rows wait for more, as a statement may have few.
        if waiting and (rows is None or rows.table.dump_columns != columns or size >= piece // 2):
            batch, limit = pa.concat_batches(waiting), most_rows([column.name for column in columns])
            for at in range(0, batch.num_rows, limit):
                yield _events(connection, context.commit_ts, columns, batch.slice(at, limit), line + at)
            waiting, size, line = [], 0, line + batch.num_rows
        if rows is not None:
            columns = rows.table.dump_columns
            waiting.append(rows.batch)
            size += rows.batch.nbytes


def _events(
    connection: Any, commit_ts: int, columns: Sequence[DumpColumn], batch: pa.RecordBatch, line: int
) -> pa.RecordBatch:
    """Return the events of rows with these columns, the first of which is the one of that number in the file."""
    count, texts = batch.num_rows, list[pa.Array]()
    for column, of_rows in zip(columns, batch.columns, strict=False):
        if column.zones is not None:
            select, table = f"SELECT {column.expression('text')} FROM texts", pa.table({"text": of_rows})
            of_rows = duckdb_sql.query(connection, select, texts=table).column(0).combine_chunks()
        texts.append(of_rows)
    problem, value = batch.column("problem"), batch.column("value")
    events = [pa.repeat("R", count), pa.repeat(pa.scalar(commit_ts, pa.int64()), count), pa.nulls(count, pa.string())]
    names = [column.name for column in columns]
    events.append(row_images(names, texts, count))
    if problem.null_count < count:
        sound = problem.is_null()
        events = [pc.if_else(sound, column, pa.scalar(None, column.type)) for column in events]
    lines = pa.array(np.arange(line, line + count))
    found = [lines, *events, problem, value, batch.column("strict"), *texts]
    return pa.RecordBatch.from_arrays(found, names=[*DECODED.names, *(f"{TEXT_OF}{name}" for name in names)])
