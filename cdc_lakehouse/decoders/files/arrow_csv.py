"""Conversion of text to a form that Arrow's csv reader supports, and reading with it.

Arrow supports doubled quotes, separators of one ASCII byte and no escapes; it accepts any line end, and treats text
next to quotes as part of the value. So quotes are checked first, and sequences that it does not support are replaced by
bytes that do not occur in the text, and restored in the columns. Text with any irregularity is left to a strict reader.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import pyarrow as pa
from pyarrow import csv

from cdc_lakehouse.decoders.arrow import Bytes, Mask, Positions, pc

TAIL: Final = 64 * 1024
"""The number of bytes at the end of a piece in which the end of its last record is searched first."""
_MARKS: Final = [bytes([byte]) for byte in (*range(0xF8, 0x100), 0xC0, 0xC1, *range(0x01, 0x08), *range(0x0E, 0x1A))]
"""Bytes that can replace others where they do not occur in a piece: first those that never occur in UTF-8, and none
that an escape stands for."""
_SEPARATORS: Final = [bytes([byte]) for byte in (0x1F, 0x1E, 0x1D, 0x1C, *range(0x20, 0x7F), *range(0x01, 0x08))]
"""Replacements for a separator that Arrow does not accept."""
_LINE_ENDS: Final = b"\r\n"
_BACKSLASH: Final = ord("\\")


class NotUsualError(Exception):
    """The piece must be read strictly."""


class Marks:
    """Replaces sequences that Arrow does not support by single bytes, and restores them."""

    def __init__(self, text: bytes) -> None:
        self._unused = (mark for mark in _MARKS if mark not in text)
        self._characters: dict[bytes, bytes] = {}

    def unescaped(self, text: bytes, escapes: Mapping[bytes, bytes]) -> tuple[bytes, int]:
        """Replace each escape by a mark, by the byte after the backslash; return the text and the number of other
        escapes."""
        array: Bytes = np.frombuffer(text, np.uint8)
        backslashes = np.flatnonzero(array == _BACKSLASH)
        if not len(backslashes):
            return text, 0
        # In a run of backslashes every other one begins an escape.
        numbers = np.arange(len(backslashes))
        first = np.concatenate([[True], np.diff(backslashes) > 1])
        begins = backslashes[(numbers - np.maximum.accumulate(np.where(first, numbers, 0))) % 2 == 0]
        if begins[-1] + 1 == len(text):
            raise NotUsualError
        behind = array[begins + 1]
        marks: Bytes = np.zeros(256, np.uint8)
        counts = np.bincount(behind, minlength=256)
        for letter, character in escapes.items():
            if counts[letter[0]]:
                marks[letter[0]] = self._of(character)[0]
        known = marks[behind] > 0
        array = array.copy()
        array[begins[known]] = marks[behind[known]]
        kept = np.ones(len(array), bool)
        kept[begins[known] + 1] = False
        return array[kept].tobytes(), int(np.count_nonzero(~known))

    def replaced(self, text: bytes, escape: bytes, character: bytes, *others: bytes) -> list[bytes]:
        """Replace an escape by a mark, in a text and in others."""
        if escape not in text:
            return [text, *others]
        mark = self._of(character)
        return [each.replace(escape, mark) for each in (text, *others)]

    def unused(self) -> bytes:
        """Return a byte that does not occur in the piece."""
        mark = next(self._unused, None)
        if mark is None:
            raise NotUsualError
        return mark

    def _of(self, character: bytes) -> bytes:
        mark = self.unused()
        self._characters[mark] = character
        return mark

    def separated(self, text: bytes, separator: bytes, other: bytes) -> tuple[bytes, bytes]:
        """Replace the separator by one byte that occurs neither in the text nor in `other`; return the text and that
        byte."""
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
    """Parse a text into columns, arrays of bytes. With `blank`, empty lines are allowed and ignored. Raises
    ArrowInvalid."""
    names = [str(number) for number in range(width)]
    table = csv.read_csv(
        pa.py_buffer(text),
        csv.ReadOptions(column_names=names, block_size=len(text) + 1, use_threads=False),
        csv.ParseOptions(
            delimiter=separator.decode(),
            quote_char=quote.decode() or False,
            newlines_in_values=bool(quote),
            ignore_empty_lines=blank,
        ),
        csv.ConvertOptions(
            column_types=dict.fromkeys(names, pa.binary()),
            null_values=[null],
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,
        ),
    )
    return [column.combine_chunks() for column in table.columns]


def quoted_records(text: Bytes, quotes: Positions, beside: bytes) -> int | None:
    """Count the records that begin with a quote. Return None unless quotes come in pairs, the opening one after, the
    closing one before a line end or one of the bytes in `beside`.

    A doubled quote in a value is then an adjacent closing and opening quote.
    """
    if len(quotes) % 2:
        return None
    # Treat the positions before the first and after the last byte as line ends.
    closing, opening = quotes[1::2], quotes[0::2]
    behind = text[np.minimum(closing + 1, len(text) - 1)]
    before = text[np.maximum(opening - 1, 0)]
    if len(closing) and closing[-1] == len(text) - 1:
        behind[-1] = ord("\n")
    if len(opening) and opening[0] == 0:
        before[0] = ord("\n")
    if not (_among(_LINE_ENDS + beside)[behind].all() and _among(_LINE_ENDS + beside)[before].all()):
        return None
    return int(np.count_nonzero(_among(_LINE_ENDS)[before]))


def _among(characters: bytes) -> Mask:
    """Return a table that says for each byte whether it is one of these."""
    table = np.zeros(256, bool)
    table[list(characters)] = True
    return table


def is_plain(text: bytes) -> bool:
    """Whether Arrow accepts it as a separator or a quote."""
    return len(text) == 1 and 0 < text[0] < 0x80 and text not in _LINE_ENDS
