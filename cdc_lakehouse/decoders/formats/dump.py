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
from typing import Any, Final, Literal, NamedTuple

import numpy as np
import pyarrow as pa

from cdc_lakehouse import duckdb_sql
from cdc_lakehouse.changelog import mysql_types
from cdc_lakehouse.changelog.mysql_types import BLOBS, GEOMETRIES, INTEGERS, TEMPORALS, ColumnType
from cdc_lakehouse.decoders import problems, text
from cdc_lakehouse.decoders.arrow import Bytes, Positions, pc
from cdc_lakehouse.decoders.event_schema import DECODED, TEXT_OF, most_rows, row_images
from cdc_lakehouse.decoders.text import BACKSLASH, MYSQL_ESCAPES, CellError, Cells, MoreNeededError, NotUsualError, Rows
from cdc_lakehouse.duckdb_sql import at_zone, matches, text_in_zone, try_cast, when
from cdc_lakehouse.errors import SourceError
from cdc_lakehouse.sources.dump.contents import BinaryNotation, InsertNotation, Notation, TextNotation

Kind = Literal["text", "enum", "set", "bit", "characters", "base64", "hex"]

_NUMBERS: Final = INTEGERS | TEMPORALS | {"decimal", "float", "double", "year"}
_BASE64: Final = re.compile(rb"([A-Za-z0-9+/]{4})*([A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?")


def _of_base64(cell: bytes) -> bytes:
    content = cell.translate(None, b" \t\r\n")  # MySQL's TO_BASE64 breaks lines.
    if not _BASE64.fullmatch(content):
        raise ValueError  # `binascii` takes more padding than there is to pad.
    return binascii.a2b_base64(content)


_DECODERS: Final[Mapping[BinaryNotation, Callable[[bytes], bytes]]] = {
    "raw": lambda cell: cell, "hex": binascii.unhexlify, "base64": _of_base64,
}  # fmt: skip
_AS_TEXT: Final[Mapping[str, Callable[[bytes], str]]] = {
    "characters": lambda value: value.decode("latin-1"), "hex": bytes.hex,
    "bit": lambda value: str(int.from_bytes(value, "big")),
    "base64": lambda value: binascii.b2a_base64(value, newline=False).decode(),
}  # fmt: skip
"""The texts of binary values, by their notation."""
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


class DumpColumn:
    """Converts the cells of one column to texts."""

    def __init__(self, name: str, of: ColumnType, context: DumpContext) -> None:
        self.name, notation = name, context.notation
        kinds: dict[str, Kind] = {} if context.labels else {"enum": "enum", "set": "set"}
        kinds |= {**dict.fromkeys(BLOBS, context.binary), **dict.fromkeys(GEOMETRIES, "characters"), "bit": "bit"}
        self.kind = kinds.get(of.name, "text")
        self.is_bytes = self.kind not in ("text", "enum", "set")
        self.encoding: BinaryNotation = "raw"
        """The encoding that is decoded first."""
        if isinstance(notation, TextNotation):
            encoded: dict[str, BinaryNotation] = {column.lower(): each for column, each in notation.encoded.items()}
            self.encoding = encoded.get(name.lower(), notation.binary if self.is_bytes else "raw")
        self._is_number = of.name in _NUMBERS
        # The number of each label that becomes one. Of equal labels, which a server accepts with a warning, the first;
        # the empty text is an ENUM's error value where no label is empty.
        labels = {label: place for place, label in reversed([*enumerate(of.elements)])}
        self._labels = {"": -1, **labels} if self.kind == "enum" else labels
        has_zone = of.name == "timestamp" and context.zone != context.feed_zone
        self._zones = (context.zone, context.feed_zone) if has_zone else None  # Of TIMESTAMPs to be converted.
        # MySQL's name for the character set of a text.
        self._charset = (of.charset if notation.own_charsets else None) or "utf8mb4"

    def text(self, cell: bytes) -> str:
        """Convert a cell to text. Raises CellError."""
        if self.kind == "bit" and isinstance(cell, SqlNumber):
            return cell.decode()
        try:
            value = _DECODERS[self.encoding](cell)
            # MySQL's BIT has at most 64 bits.
            if (isinstance(cell, Octets) and self._is_number) or (self.kind == "bit" and len(value) > 8):
                raise ValueError
            if self.kind in _AS_TEXT:
                return _AS_TEXT[self.kind](value)
            # ASCII can be decoded in any character set.
            text = mysql_types.text(value, self._charset if mysql_types.has_codec(self._charset) else "ascii")
            if self.kind == "enum":
                return str(self._labels[text] + 1)
            if self.kind == "set":
                return str(sum(1 << place for place in {self._labels[label] for label in text.split(",") if text}))
            return text
        except mysql_types.CharsetError:
            kind = problems.NOT_UTF8 if self._charset in mysql_types.UTF8 else problems.NOT_IN_CHARSET
            raise CellError(kind) from None
        except (KeyError, ValueError):
            raise CellError(problems.NOT_A_VALUE) from None

    def texts(self, cells: pa.Array, cell: Callable[[bytes], bytes] | None = None) -> pa.Array:
        """Convert an array of bytes to texts, each to a cell first by `cell`. Raises CellError and ArrowInvalid."""
        if self.kind == "text" and self.encoding == "raw" and cell is None and self._charset in mysql_types.UTF8:
            return cells.cast(pa.string())
        known = cells.dictionary_encode() if self.kind in ("enum", "set", "bit") else None
        values: list[bytes | None] = (cells if known is None else known.dictionary).to_pylist()
        if cell is not None:
            values = [None if value is None else cell(value) for value in values]
        texts = pa.array([None if value is None else self.text(value) for value in values], pa.string())
        return texts if known is None else texts.take(known.indices)

    def in_feed_zone(self, texts: pa.Array) -> pa.Array:
        """Convert texts of moments to the feed's zone. Zero dates, and values that readers must report, stay."""
        if self._zones is None:
            return texts
        local, (zone, feed_zone) = try_cast("text", "timestamp"), self._zones
        known = f"{matches('text', _MOMENT)} AND text >= '0001' AND {local} IS NOT NULL"
        moved = when(known, text_in_zone(at_zone(local, zone), feed_zone, "length(text)"), "text")
        found = duckdb_sql.query(f"SELECT {moved} FROM texts", texts=pa.table({"text": texts}))
        return found.column(0).combine_chunks()


class DumpTable(text.Table):
    """A dump's columns, whose rows have their texts in columns named `0`, `1`, …"""

    def __init__(self, names: Sequence[str], context: DumpContext) -> None:
        """`names` are as the CREATE TABLE has them."""
        self.dump_columns = [DumpColumn(name, context.columns[name], context) for name in names]
        super().__init__([(str(number), pa.string()) for number in range(len(names))], len(names))

    def row(self, cells: Cells) -> tuple[object, ...] | str:
        if len(cells) != self.width:
            return problems.FIELD_COUNT
        pairs = zip(self.dump_columns, cells, strict=True)
        try:
            return tuple(None if cell is None else column.text(cell) for column, cell in pairs)
        except CellError as problem:
            return str(problem)

    def columns(self, cells: list[Any]) -> list[Any]:
        return [column.texts(cell) for column, cell in zip(self.dump_columns, cells, strict=True)]


_HEAD_LIMIT: Final = 1024 * 1024
"""The limit of the text before a tuple, in bytes: MySQL has at most 4096 columns with names of 64 characters."""
_BEYOND: Final = 64  # The prefix of a value is shorter than this, in bytes.

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

_VALUE: Final = re.compile(
    rb"(?P<null>(?i:NULL))|(?P<literal>[xXbB]'|0[xb])(?P<digits>[0-9A-Fa-f]*+)"
    rb"|(?P<number>[-+]?(?:[0-9]++(?:\.[0-9]*+)?|\.[0-9]++)(?:[eE][-+]?[0-9]++)?)"
    rb"|(?i:_binary ?|(?P<convert>CONVERT\())?(?P<quote>['\"])"
)
_USING: Final = re.compile(rb" USING UTF8(?:MB4)?\)", re.IGNORECASE)


class NotSoundError(Exception):
    """The text at a position, the error's argument, is not as dumps write it."""


class Tuple(NamedTuple):
    """A tuple that ends before `end`, and its comma or semicolon before `following`; `last` is the statement's last."""

    end: int
    following: int
    last: bool
    cells: Cells


def behind_space(content: bytes, at: int) -> int:
    found = _SPACE.match(content, at)
    return found.end() if found else at


def _names(text: bytes) -> list[str]:
    """Return the names in a list, without quotes. Raises UnicodeDecodeError."""
    names = [found[0].decode() for found in _NAMES.finditer(text)]
    return [name[1:-1].replace(name[0] * 2, name[0]) if name[0] in '`"' else name for name in names]


LEAST: Final = 4096  # With fewer bytes, fast reading of a statement's tuples does not pay.
_QUOTE, _LF = b"'\n"
_LOWER: Final = 0x20  # The bit that makes an ASCII letter lower case.
_END: Final = b");\n"
_GAPS: Final = (b"),\n(", b")\n,(", b"),(")  # The texts between two tuples: Dumpling's, mydumper's, mysqldump's.
_USUAL_ESCAPES: Final = MYSQL_ESCAPES | {character: character for character in (BACKSLASH, b"'", b'"')}
_WORDS: Final = re.compile(rb"(?<=[(,])(?:(_binary )(?=')|(CONVERT\()'+( USING UTF8MB4\))(?=[,)]))")
"""Words around strings that are removed here, so that only the quotes remain."""

# Classes of bytes, and the classes that may follow each, outside strings; a string is its quotes.
_CLASSES: Final = {b"(": "(", b")": ")", b",": ",", b"'": "'", b"0123456789": "9", b"-": "-", b"+": "+", b".": ".",
                   b"eE": "e", b"N": "N", b"U": "U", b"L": "L", b"\n": "n", b"xX": "x"}  # fmt: skip
_FOLLOWING: Final = {"(": "'9-Nx", ",": "'9-Nx(n", "'": "',)", "9": "9.e,)", "-": "9", "+": "9", ".": "9", "e": "9-+",
                     "N": "U", "U": "L", "L": "L,)", ")": ",n", "n": "(,", "x": "'"}  # fmt: skip
_OF: Final = {of: number for number, of in enumerate(_CLASSES.values(), 1)}
_CLASS: Final = bytes(sum(_OF[of] for characters, of in _CLASSES.items() if byte in characters) for byte in range(256))
"""The number of each byte's class."""
_PAIRS: Final = {_OF[of] * 16 + _OF[each] for of, following in _FOLLOWING.items() for each in following}
_ALLOWED: Final = bytes(pair in _PAIRS for pair in range(256))
"""For 16 times a class plus the next one, whether this sequence is allowed."""


def read_tuples(
    content: bytes, start: int, stop: int, head: bytes, width: int, *, backslash_escapes: bool
) -> tuple[list[Any], bytes, int, bool] | None:
    """Read the tuples of `width` values from the one at `start` that end before `stop`: those of a statement that
    begins with `head`, and of the following ones that begin with it too. None where there are few. Raises
    NotUsualError and ArrowInvalid where not all of them are valid and in the usual form.

    Return a column of bytes for each value; the byte that literals of hexadecimal digits begin with instead of their
    `x`, empty where there are none; the start of the next tuple, or the end of the statement's line; and whether the
    next tuple belongs to another statement."""
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
    tuples = content[start : close + 1]
    marks, statements = text.Marks(tuples), tuples.split(joint) if joined >= 0 else [tuples]
    gap = next((gap for each in (statements[0], tuples) for gap in _GAPS if gap in each), _GAPS[0])
    stand_in, joints = marks.of(), len(statements) - 1
    if joints:
        tuples = (b")" + stand_in * (len(gap) - 2) + b"(").join(statements)
    if backslash_escapes:
        tuples = marks.unescaped(tuples, _USUAL_ESCAPES)
        if BACKSLASH in tuples:
            raise NotUsualError
    array: Bytes = np.frombuffer(tuples, np.uint8).copy()
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
    removed: Positions = np.zeros(0, np.int64)
    if (outside == ord(" ")).any():
        words = [span for found in _WORDS.finditer(outside.tobytes()) for span in found.regs[1:] if span[1] > 0]
        dropped = _ranges(*np.array(words, np.int64).reshape(-1, 2).T)
        removed = places[dropped]
        places, outside = np.delete(places, dropped), np.delete(outside, dropped)
    _require_tuples(outside.tobytes(), gap)
    literals = places[(outside | _LOWER) == ord("x")]
    literal = marks.of() if len(literals) else b""
    array[literals] = ord(literal or b"x")
    # Each tuple becomes a line, and what is between two becomes empty lines.
    closing = places[outside == ord(")")]
    array[0] = array[closing[-1]] = _LF
    for behind in range(len(gap)):
        array[closing[:-1] + behind] = _LF
    array = np.delete(array, removed) if len(removed) else array
    cells = text.parsed(array, b",", b"'", b"NULL", width, blank=True)
    return [marks.restored(cell) for cell in cells], literal, end, last


_HEXADECIMAL: Final = re.compile(rb"'((?:[0-9A-Fa-f]{2})*)'")


def _column(column: DumpColumn, cells: Any, literal: bytes) -> Any:
    """Convert a column's cells, where literals begin with `literal`. Raises NotUsualError, CellError, ArrowInvalid."""
    has_literals = literal and pc.any(pc.starts_with(cells, literal)).as_py()
    if not has_literals and column.kind != "bit":
        return column.texts(cells)
    if not column.is_bytes:
        raise NotUsualError

    def octets(cell: bytes) -> bytes:
        if not (literal and cell.startswith(literal)):
            if column.kind == "bit":  # It may be a number, or text.
                raise NotUsualError
            return cell
        digits = _HEXADECIMAL.fullmatch(cell, 1)
        if digits is None:  # A comma may have ended the cell.
            raise NotUsualError
        return Octets(binascii.unhexlify(digits[1]))

    return column.texts(cells, octets)


def _ranges(starts: Positions, ends: Positions) -> Positions:
    """Return all numbers from each start to before its end."""
    lengths = ends - starts
    before = np.cumsum(lengths) - lengths
    return np.arange(lengths.sum()) + np.repeat(starts - before, lengths)


def _require_tuples(outside: bytes, gap: bytes) -> None:
    """Check the text outside of strings: tuples of values, with this gap between them. Raises NotUsualError."""
    # `translate` looks up bytes in a third of numpy's time.
    classes: Bytes = np.frombuffer(outside.translate(_CLASS), np.uint8)
    gaps = outside.count(gap)
    if (
        0 in (classes[:-1] * 16 + classes[1:]).tobytes().translate(_ALLOWED)
        or not (outside.startswith(b"(") and outside.endswith(b")"))
        or not outside.count(b"(") == outside.count(b")") == gaps + 1
        or outside.count(b"\n") != gaps * gap.count(b"\n")
        or (b"N" in outside and not outside.count(b"NULL") * 2 == outside.count(b"N") * 2 == outside.count(b"L"))
    ):
        raise NotUsualError
    # A number has at most one point and one exponent, in this order.
    array: Bytes = np.frombuffer(outside, np.uint8)
    parts = np.flatnonzero((array == ord(".")) | ((array | _LOWER) == ord("e")))
    if len(parts):
        number = np.searchsorted(np.flatnonzero(array == ord(",")), parts)
        same = np.flatnonzero(number[1:] == number[:-1])
        points = array[parts] == ord(".")
        if not (points[same].all() and not points[same + 1].any()):
            raise NotUsualError


_KEPT: Final = 32
"""The bytes that are kept of a long record: the start of the next statement's line is recognised in fewer."""


class Statement(NamedTuple):
    """A statement up to `at`, where its first tuple is, for the file's table or another one (`is_foreign`)."""

    at: int
    head: bytes
    table: DumpTable
    is_foreign: bool


class InsertReader(text.Reader):
    """Raises SourceError for a statement with columns that the table does not have."""

    def __init__(self, context: DumpContext, notation: InsertNotation) -> None:
        self._context, self._notation = context, notation
        self._tables = dict[tuple[str, ...], DumpTable]()
        special, escape = (rb"\\", rb"|\\.") if notation.backslash_escapes else (b"", b"")
        self._strings = {
            quote: text.repeated(b"[^" + quote + special + b"]*+", quote * 2 + escape) for quote in (b"'", b'"')
        }
        self._escapes = {quote: re.compile(rb"\\(.)|" + quote * 2, re.DOTALL) for quote in (b"'", b'"')}
        self._statement = Statement(0, b"", self._named(notation.columns), is_foreign=False)
        """The one that the next tuple belongs to, or the last one."""
        self._within = False
        """Whether it is open, so that a tuple must follow."""

    def fast(self, content: bytes, start: int, stop: int, final: bool) -> Rows | None:
        at, statement = behind_space(content, start), self._statement if self._within else None
        with contextlib.suppress(MoreNeededError, NotSoundError):
            statement = statement or self.statement(content, at, final)
        if statement is None or statement.is_foreign:
            return None
        at, table = at if self._within else statement.at, statement.table
        escapes = self._notation.backslash_escapes
        read = read_tuples(content, at, stop, statement.head, table.width, backslash_escapes=escapes)
        if read is None:
            return None
        columns, literal, end, last = read
        pairs = zip(table.dump_columns, columns, strict=True)
        rows = Rows.valid(table, [_column(column, cells, literal) for column, cells in pairs], end)
        self._statement, self._within = statement, not last
        return rows

    def strict(self, content: bytes, start: int, stop: int, final: bool) -> Rows:
        rows, at = list[tuple[object, ...]](), start
        with contextlib.suppress(MoreNeededError):
            while at < stop:
                try:
                    if self.within_long:
                        raise NotSoundError(at)  # Its rest.
                    at = behind_space(content, at)
                    if at == len(content):
                        break
                    if self._within:
                        found, table = self.row(content, at, final), self._statement.table
                        raw = content[at : min(found.end, at + problems.RAW_LIMIT)]
                        foreign = self._statement.is_foreign
                        rows.append(
                            table.rejected(problems.WRONG_TABLE, raw) if foreign else table.read(found.cells, raw)
                        )
                        at, self._within = found.following, not found.last
                        continue
                    statement = self.statement(content, at, final)
                except NotSoundError as error:
                    at = self._skipped(content, error.args[0], final, rows)
                    continue
                if statement is None:
                    at = len(content)
                elif rows and statement.table is not self._statement.table:
                    break
                else:
                    at, self._statement, self._within = statement.at, statement, True
            if final and at == len(content) and self._within:
                rows.append(self._statement.table.rejected(problems.NOT_A_DUMP_ROW, b""))
                self._within = False
        return Rows.of(self._statement.table, rows, at)

    def _skipped(self, content: bytes, at: int, final: bool, rows: list[tuple[object, ...]]) -> int:
        """Reject the invalid tuple or statement at `at`, if that is not the rest of one; return the start of the next
        line that begins like a statement or, in a statement, a tuple. Raises MoreNeededError."""
        found = (_NEXT_TUPLE if self._within else _NEXT_STATEMENT).search(content, at)
        following, goes_on = found.end() if found else len(content), not (found or final)
        if goes_on and len(content) - at <= (_KEPT if self.within_long else text.RECORD_LIMIT):
            raise MoreNeededError
        if not self.within_long:
            raw = content[at : min(following, at + problems.RAW_LIMIT)].rstrip(b"\r\n")
            rows.append(self._statement.table.rejected(problems.NOT_A_DUMP_ROW, raw))
        self.within_long = goes_on
        if goes_on:
            return len(content) - _KEPT
        comma = content.startswith(b",(", following)
        self._within = self._within and (comma or content.startswith(b"(", following))
        return following + (self._within and comma)

    def _named(self, names: Sequence[str]) -> DumpTable:
        """Return the table of these columns: the same for the same names."""
        own = self._context.own_names(names)
        if own not in self._tables:
            self._tables[own] = DumpTable(own, self._context)
        return self._tables[own]

    def statement(self, content: bytes, at: int, final: bool) -> Statement | None:
        """Find the next statement with a tuple, None when there is none up to the end of the content. Raises
        MoreNeededError, and NotSoundError with the position of anything else."""
        while (at := behind_space(content, at)) < len(content):
            stop = min(at + _HEAD_LIMIT, len(content))
            unsure = stop == len(content) and not final
            found = _INSERT.match(content, at, stop)
            if found:
                try:
                    table, listed = _names(found["table"]), found["columns"] and _names(found["columns"])
                except UnicodeDecodeError:
                    raise NotSoundError(at) from None
                names, every = listed or self._notation.columns, tuple(self._context.columns)
                if listed is None and len(names) < len(every):
                    # Some tools dump generated columns too.
                    with contextlib.suppress(NotSoundError):
                        names = every if len(self.row(content, found.end(), final).cells) == len(every) else names
                is_foreign = table != [self._context.database, self._context.table][-len(table) :]
                return Statement(found.end(), found[0], self._named(names), is_foreign)
            found = _SKIPPED.match(content, at, stop)
            if found is None or (unsure and found.end() == stop):
                if unsure:
                    raise MoreNeededError
                raise NotSoundError(at)
            at = found.end()
        return None

    def row(self, content: bytes, start: int, final: bool) -> Tuple:
        """Read the tuple at `start`, which is before the end of the content. Raises MoreNeededError, and NotSoundError
        with its position, also where it is too long."""
        found = None
        try:
            found = self._row(content, start)
            at = found.following
        except NotSoundError as error:
            at = error.args[0]
        # What follows decides what a value is, and where it ends.
        unsure = at + _BEYOND > len(content) and not final
        if unsure and len(content) - start <= text.RECORD_LIMIT:
            raise MoreNeededError
        if found is None or unsure or found.end - start > text.RECORD_LIMIT:
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

    def _value(self, content: bytes, at: int) -> tuple[bytes | None, int]:
        found = _VALUE.match(content, at)
        if found is None:
            raise NotSoundError(at)
        end, digits = found.end(), found["digits"]
        if quote := found["quote"]:
            begin, end = end, text.end_of(self._strings[quote], content, end)
            if not content.startswith(quote, end):
                raise NotSoundError(end)
            string, end = content[begin:end], end + 1
            if found["convert"]:
                using = _USING.match(content, end)
                if using is None:
                    raise NotSoundError(end)
                end = using.end()
            if not self._notation.backslash_escapes or BACKSLASH not in string:
                return string.replace(quote * 2, quote), end
            escaped = self._escapes[quote]
            return escaped.sub(lambda of: _ESCAPES.get(of[1], of[1]) if of[1] else quote, string), end
        if digits is None:
            return None if found["null"] else SqlNumber(found[0]), end
        is_bits, is_quoted = found["literal"].lower().strip(b"0'") == b"b", found["literal"].endswith(b"'")
        is_whole = not digits.strip(b"01") if is_bits else not (is_quoted and len(digits) % 2)
        if not (content.startswith(b"'", end) if is_quoted else digits) or not is_whole:
            raise NotSoundError(end)
        if is_bits:
            octets = int(digits or b"0", 2).to_bytes((len(digits) + 7) // 8, "big")
        else:
            octets = binascii.unhexlify(b"0" * (len(digits) % 2) + digits)
        return Octets(octets), end + is_quoted


# Both kinds of files.

_PIECE: Final = 4 * 1024 * 1024
"""Shorter pieces spend more time in calls; longer ones do not fit into the processor's cache."""


def decode_rows(pieces: Iterator[bytes], context: DumpContext, *, piece: int = _PIECE) -> Iterator[pa.RecordBatch]:
    """Decode a file, which comes in pieces that are cut anywhere, into batches of `DECODED`, and of the same texts as
    in the image, each named `TEXT_OF` and the table's column. `piece` is the number of bytes that are read at a time.
    Raises SourceError for a file with other columns, or with a header of other columns than the notation's."""
    notation = context.notation

    def check_header(cells: Cells | None) -> None:
        names = [(cell or b"").decode(errors="replace") for cell in cells or []]
        if [name.lower() for name in names] != [name.lower() for name in notation.columns]:
            raise context.other_columns("a file's header says", names, "the rows of the dump have", notation.columns)

    if isinstance(notation, TextNotation):
        table = DumpTable(context.own_names(notation.columns), context)
        # A table without dumped columns has no header.
        header = check_header if notation.header and notation.columns else None
        reader = text.TextReader(notation, table, problems.NOT_A_DUMP_ROW, header)
    else:
        reader = InsertReader(context, notation)
    columns: Sequence[DumpColumn] = ()
    waiting, size, line = list[pa.RecordBatch](), 0, 1
    for rows in itertools.chain(text.read_rows(reader, pieces, piece), [None]):
        # Rows wait for more, as a statement may have few.
        if waiting and (rows is None or rows.table.dump_columns != columns or size >= piece // 2):
            batch = waiting[0] if len(waiting) == 1 else pa.concat_batches(waiting)  # Which copies.
            limit = most_rows([column.name for column in columns])
            for at in range(0, batch.num_rows, limit):
                yield _events(context.commit_ts, columns, batch.slice(at, limit), line + at)
            waiting, size, line = [], 0, line + batch.num_rows
        if rows is not None:
            columns = rows.table.dump_columns
            waiting.append(rows.batch)
            size += rows.batch.nbytes


def _events(commit_ts: int, columns: Sequence[DumpColumn], batch: pa.RecordBatch, line: int) -> pa.RecordBatch:
    """Return the events of rows with these columns, the first of which is the one of that number in the file."""
    texts = [column.in_feed_zone(of_rows) for column, of_rows in zip(columns, batch.columns, strict=False)]
    problem, value, count = batch.column("problem"), batch.column("value"), batch.num_rows
    events = [pa.repeat("R", count), pa.repeat(pa.scalar(commit_ts, pa.int64()), count), pa.nulls(count, pa.string())]
    names = [column.name for column in columns]
    events.append(row_images(names, texts, count))
    if problem.null_count < count:
        sound = problem.is_null()
        events = [pc.if_else(sound, column, pa.scalar(None, column.type)) for column in events]
    found = [pa.array(np.arange(line, line + count)), *events, problem, value, batch.column("strict"), *texts]
    return pa.RecordBatch.from_arrays(found, names=[*DECODED.names, *(f"{TEXT_OF}{name}" for name in names)])
