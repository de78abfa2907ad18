"""Reading of INSERT statements' tuples with Arrow, many at a time: for valid ones in the usual form, as nearly all are.

The text around strings is checked byte by byte: which byte may follow which covers nearly all of a tuple's grammar. The
values are the texts between its parentheses and commas; escapes, and the prefixes of literals, are single bytes by then
(see `arrow_csv.Marks`). Anything unusual is left to `dump_insert_strict`.
"""

from __future__ import annotations

import binascii
import re
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa

from cdc_lakehouse.decoders.arrow import Bytes, Mask, Positions, cut, pc
from cdc_lakehouse.decoders.files.arrow_csv import Marks, NotUsualError
from cdc_lakehouse.decoders.files.dump_insert_strict import ESCAPES
from cdc_lakehouse.decoders.files.dump_values import CellError, DumpColumn, Octets

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
