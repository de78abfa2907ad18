"""A text file as pieces of whole lines, whose bytes are not copied."""

from __future__ import annotations

import codecs
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import numpy as np

from cdc_lakehouse.decoders.arrow import Bytes, Positions

_PIECE: Final = 8 * 1024 * 1024
"""In bytes: in shorter pieces more time goes into calls; longer ones do not stay in the processor's cache."""
_LF: Final = ord("\n")
_CR: Final = ord("\r")


class Lines(NamedTuple):
    """Some lines of a file that are not blank, one after the other."""

    text: Bytes
    """What `starts` and `stops` are places in."""
    starts: Positions
    stops: Positions
    """Behind each line, before its line end."""
    numbers: Positions
    """Each line's number in the file, from 1."""

    def taken(self, which: Any) -> Lines:
        return Lines(self.text, self.starts[which], self.stops[which], self.numbers[which])

    def line(self, which: int) -> bytes:
        return self.text[self.starts[which] : self.stops[which]].tobytes()


def lines_of(content: bytes, piece: int = _PIECE) -> Iterator[Lines]:
    """The lines of a file, in pieces of at most so many bytes where a line is not longer. CR LF, LF and CR end a line;
    a byte order mark is not part of the first."""
    at = len(codecs.BOM_UTF8) if content.startswith(codecs.BOM_UTF8) else 0
    number = 1
    while at < len(content):
        stop = content.rfind(b"\n", at, at + piece) + 1 or content.find(b"\n", at + piece) + 1 or len(content)
        text: Bytes = np.frombuffer(content, np.uint8, stop - at, at)
        ends: Positions = np.flatnonzero(text == _LF)
        before = ends - ((ends > 0) & (text[ends - 1] == _CR))
        if np.count_nonzero(text == _CR) != np.count_nonzero(before < ends):
            # Some end a line alone.
            text = np.frombuffer(content[at:stop].replace(b"\r\n", b"\n").replace(b"\r", b"\n"), np.uint8)
            before = ends = np.flatnonzero(text == _LF)
        starts, stops = np.concatenate([[0], ends + 1]), np.append(before, len(text))
        if text[-1] == _LF:
            starts, stops = starts[:-1], stops[:-1]
        lines = Lines(text, starts, stops, np.arange(number, number + len(starts)))
        number, at = number + len(starts), stop
        has_text = starts < stops
        yield lines if has_text.all() else lines.taken(has_text)
