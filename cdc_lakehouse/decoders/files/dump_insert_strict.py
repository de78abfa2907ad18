r"""Strict reading of a dump's INSERT statements, value by value: slower than `dump_insert_fast`, and correct for any
bytes.

    /*!40101 SET NAMES binary*/;
    INSERT INTO `orders` VALUES
    (1,'lamp',NULL,x'00ff'),
    (2,'it\'s',-1.5e3,_binary 'a');

A value is NULL, a number, a string in either quote, a literal of bits or hexadecimal digits, a string after `_binary`
or in CONVERT(… USING utf8mb4). Around the statements there are comments and statements that change no row. Anything
else extends up to a line that begins like a tuple or a statement: dumps with backslash escapes have no line ends in
strings. Format: MySQL manual, "Literal Values", "Comments", "INSERT Statement"; TiDB's `dumpling/export/sql_type.go`;
mydumper's `mydumper_write.c`."""

from __future__ import annotations

import binascii
import re
from typing import Final, NamedTuple

from cdc_lakehouse.decoders.files.dump_records import Cells, MoreNeededError, end_of, repeated
from cdc_lakehouse.decoders.files.dump_values import Octets, SqlNumber

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
