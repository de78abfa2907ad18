"""Tuples of INSERT statements read by Arrow, many at a time: for sound ones written as usual, which nearly all are.

What stands around strings is checked byte by byte: which byte may follow which says nearly all of a tuple's grammar.
Then what is between tuples becomes line ends, and the rest is csv with `'` for its quote, in which escapes and the
beginnings of literals are marked (see `arrow_csv`). What is not as usual is left to `dump_insert_strict`."""

from __future__ import annotations

import binascii
import re
from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa

from cdc_lakehouse.decoders.arrow import Bytes, Mask, Positions
from cdc_lakehouse.decoders.files.arrow_csv import Marks, NotUsualError, parsed
from cdc_lakehouse.decoders.files.dump_insert_strict import ESCAPES
from cdc_lakehouse.decoders.files.dump_values import CellError, Column, Octets

_LEAST: Final = 4096
"""In fewer bytes a statement's tuples are not worth it."""
_QUOTE: Final = ord("'")
_END: Final = b");\n"
_GAPS: Final = (b"),\n(", b")\n,(", b"),(")
"""Between two tuples: Dumpling's, mydumper's, mysqldump's."""
_ESCAPES: Final = {letter: character for letter, character in ESCAPES.items() if len(character) == 1} | {
    character: character for character in (b"\\", b"'", b'"')
}
_WORDS: Final = re.compile(rb"(?<=[(,])(?:(_binary )(?=')|(CONVERT\()'+( USING UTF8MB4\))(?=[,)]))")
"""Strings are their quotes alone here."""

# Classes of bytes, and which may follow which, outside strings; a string is its quotes.
_CLASSES: Final = {b"(": "(", b")": ")", b",": ",", b"'": "'", b"0123456789": "9", b"-": "-", b"+": "+", b".": ".",
                   b"eE": "e", b"N": "N", b"U": "U", b"L": "L", b"\n": "n", b"xX": "x"}  # fmt: skip
_FOLLOWING: Final = {"(": "'9-Nx", ",": "'9-Nx(n", "'": "',)", "9": "9.e,)", "-": "9", "+": "9", ".": "9", "e": "9-+",
                     "N": "U", "U": "L", "L": "L,)", ")": ",n", "n": "(,", "x": "'"}  # fmt: skip


def _tables() -> tuple[Bytes, Mask]:
    numbers = {of: number for number, of in enumerate(_CLASSES.values(), 1)}
    classes: Bytes = np.zeros(256, np.uint8)
    for characters, of in _CLASSES.items():
        classes[list(characters)] = numbers[of]
    allowed = np.zeros(256, bool)
    for of, following in _FOLLOWING.items():
        allowed[[numbers[of] * 16 + numbers[each] for each in following]] = True
    return classes, allowed


_CLASS, _ALLOWED = _tables()


class Tuples(NamedTuple):
    texts: list[pa.Array]
    end: int
    """Where the next tuple begins, or behind the statement's line."""
    last: bool
    """The next tuple is of another statement."""


def read_tuples(
    content: bytes, start: int, stop: int, head: bytes, columns: Sequence[Column], *, backslash_escapes: bool
) -> Tuples | None:
    """The tuples from that at `start` on which end before `stop`: of a statement that begins with `head`, and of those
    behind it that begin so, too. None when not all of them are sound and as usual, or when there are few."""
    joint, is_plain = _END + head + b"(", not (b"'" in head or b"\\" in head)
    close, following = -1, content.find(_END, start, stop)
    while following >= 0:
        close = following
        if not (is_plain and content.startswith(joint, close)):
            break
        following = content.find(_END, close + len(joint), stop)
    end, last = close + len(_END), True
    if following < 0:
        # Of a statement that goes on beyond `stop`.
        first = start if close < 0 else close + len(joint)
        for gap in _GAPS:
            if (found := content.rfind(gap, first, stop)) >= 0:
                close, end, last = found, found + len(gap) - 1, False
                break
    if close < 0 or (last and close - start < _LEAST) or not columns:
        return None
    try:
        texts = _texts(content[start : close + 1], joint, columns, backslash_escapes)
    except (NotUsualError, CellError, pa.ArrowInvalid, binascii.Error):
        return None
    return Tuples(texts, end, last)


def _texts(text: bytes, joint: bytes, columns: Sequence[Column], backslash_escapes: bool) -> list[pa.Array]:
    marks = Marks(text)
    if backslash_escapes:
        text, others = marks.unescaped(text, _ESCAPES)
        if others:
            raise NotUsualError
    text = _joined(text, joint)
    array: Bytes = np.frombuffer(text, np.uint8)
    places = _outside(array)
    outside = array[places]
    words: list[tuple[int, int]] = []
    if (outside == ord(" ")).any():
        words = [
            span for each in _WORDS.finditer(outside.tobytes()) for span in map(each.span, (1, 2, 3)) if span[1] > 0
        ]
    if words:
        array = np.delete(array, np.concatenate([places[start:end] for start, end in words]))
        places = _outside(array)
        outside = array[places]
    count = _check(outside)
    literal = marks.unused()
    array = array.copy()
    array[places[(outside == ord("x")) | (outside == ord("X"))]] = literal[0]
    array[places[_between(outside)]] = ord("\n")
    cells = parsed(array.tobytes(), b",", b"'", b"NULL", len(columns), blank=True)
    nulls = sum(column.null_count for column in cells)
    if len(cells[0]) != count or nulls != np.count_nonzero(outside == ord("N")):
        raise NotUsualError
    return [_column(column, cell, marks, literal) for column, cell in zip(columns, cells, strict=True)]


def _joined(text: bytes, joint: bytes) -> bytes:
    """The tuples of several statements as those of one. `joint`: the end of a tuple and the beginning of the next."""
    if b"'" in joint or joint not in text:
        return text
    quotes = np.flatnonzero(np.frombuffer(text, np.uint8) == _QUOTE)
    joints = [found.start() for found in re.finditer(re.escape(joint), text)]
    if (np.searchsorted(quotes, joints) % 2).any():
        raise NotUsualError  # One is text of a string.
    return text.replace(joint, next((gap for gap in _GAPS if gap in text), _GAPS[0]))


def _column(column: Column, cells: pa.Array, marks: Marks, literal: bytes) -> pa.Array:
    found = literal in (cells.buffers()[2] or pa.py_buffer(b"")).to_pybytes()
    if not found and column.kind != "bit":
        return column.texts(marks.restored(cells))
    if not column.binary:
        raise NotUsualError

    def octets(cell: bytes) -> bytes:
        if cell.startswith(literal):
            return Octets(binascii.unhexlify(cell[2:-1]))
        if column.kind == "bit":  # It may be a number, or text.
            raise NotUsualError
        return cell

    return column.texts(marks.restored(cells), octets)


def _outside(text: Bytes) -> Positions:
    """The places of what is not in strings, their quotes too. Of a doubled quote, both are."""
    quotes = np.flatnonzero(text == _QUOTE)
    if len(quotes) % 2:
        raise NotUsualError
    starts, ends = np.append(0, quotes[1::2]), np.append(quotes[0::2] + 1, len(text))
    lengths = ends - starts
    before = np.cumsum(lengths) - lengths
    return np.arange(lengths.sum()) + np.repeat(starts - before, lengths)


def _check(outside: Bytes) -> int:
    """How many tuples there are. Raises NotUsualError when something is not as usual."""
    classes = _CLASS[outside]
    if not _ALLOWED[classes[:-1] * 16 + classes[1:]].all():
        raise NotUsualError
    # A number has one point and one exponent, in this order.
    parts = np.flatnonzero((outside == ord(".")) | ((outside | 0x20) == ord("e")))
    if len(parts):
        number = np.searchsorted(np.flatnonzero(outside == ord(",")), parts)
        same = np.flatnonzero(number[1:] == number[:-1])
        points = outside[parts] == ord(".")
        if not (points[same].all() and not points[same + 1].any()):
            raise NotUsualError
    opening, closing = np.flatnonzero(outside == ord("(")), np.flatnonzero(outside == ord(")"))
    if len(opening) != len(closing) or opening[0] != 0 or closing[-1] != len(outside) - 1:
        raise NotUsualError
    if len(opening) > 1:
        gap = outside[closing[0] : opening[1] + 1].tobytes()
        if gap not in _GAPS or not (opening[1:] - closing[:-1] == len(gap) - 1).all():
            raise NotUsualError
        for place, byte in enumerate(gap):
            if not (outside[closing[:-1] + place] == byte).all():
                raise NotUsualError
    return len(opening)


def _between(outside: Bytes) -> Positions:
    """What is of no tuple's values."""
    opening, closing = np.flatnonzero(outside == ord("(")), np.flatnonzero(outside == ord(")"))
    width = int(opening[1] - closing[0]) if len(opening) > 1 else 0
    return np.concatenate([opening, closing, *(closing[:-1] + place for place in range(1, width))])
