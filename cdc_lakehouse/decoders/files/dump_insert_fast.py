"""Tuples of INSERT statements read by Arrow, many at a time: for sound ones written as usual, which nearly all are.

What stands around strings is checked byte by byte: which byte may follow which says nearly all of a tuple's grammar.
Then what is between tuples becomes line ends, and the rest is csv with `'` for its quote, in which escapes and the
beginnings of literals are marked (see `arrow_csv`). What is not as usual is left to `dump_insert_strict`."""

from __future__ import annotations

import binascii
import re
from collections.abc import Iterator, Sequence
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
_LOWER: Final = 0x20
"""What makes a letter of ASCII a small one."""
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
    joint = _END + head + b"("
    joints = [*_found(content, joint, start, stop)] if columns and b"'" not in head and b"\\" not in head else []
    close = content.find(_END, joints[-1] + len(joint) if joints else start, stop)
    end, last = close + len(_END), True
    if close < 0:
        # Of a statement that goes on beyond `stop`.
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
    if (last and close - start < _LEAST) or not columns:
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
    text: bytes, joints: Sequence[int], width: int, columns: Sequence[Column], backslash_escapes: bool
) -> list[pa.Array]:
    """The values of tuples. `joints`: where one statement ends and the next one begins, up to its tuple, in so many
    bytes."""
    marks = Marks(text)
    gap, joined = _gap(text, joints), marks.unused() if joints else b""
    text = (joined * len(gap)).join(_pieces(text, joints, width))
    if backslash_escapes:
        text, others = marks.unescaped(text, _ESCAPES)
        if others:
            raise NotUsualError
    array: Bytes = np.frombuffer(text, np.uint8).copy()
    places = _outside(array)
    outside = array[places]
    if joints:
        between = outside == joined[0]
        if np.count_nonzero(between) != len(joints) * len(gap):
            raise NotUsualError  # What looks like one stands in a string.
        outside[between] = array[places[between]] = np.tile(np.frombuffer(gap, np.uint8), len(joints))
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
    array[places[(outside | _LOWER) == ord("x")]] = literal[0]
    array[places[_between(outside)]] = ord("\n")
    cells = parsed(array, b",", b"'", b"NULL", len(columns), blank=True)
    nulls = sum(column.null_count for column in cells)
    if len(cells[0]) != count or nulls != np.count_nonzero(outside == ord("N")):
        raise NotUsualError
    return [_column(column, cell, marks, literal) for column, cell in zip(columns, cells, strict=True)]


def _gap(text: bytes, joints: Sequence[int]) -> bytes:
    """What stands between two tuples of the text, without their parentheses."""
    for end in (joints[0] + 1, len(text)) if joints else ():
        for gap in _GAPS:
            if text.find(gap, 0, end) >= 0:
                return gap[1:-1]
    return _GAPS[0][1:-1]


def _pieces(text: bytes, joints: Sequence[int], width: int) -> Iterator[bytes]:
    """The tuples of each statement."""
    start = 0
    for joint in joints:
        yield text[start : joint + 1]
        start = joint + width - 1
    yield text[start:] if start else text


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
    parts = np.flatnonzero((outside == ord(".")) | ((outside | _LOWER) == ord("e")))
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
