"""Splitting of a text file into pieces of whole lines, without copying the bytes."""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Iterator
from typing import Any, Final, NamedTuple

import numpy as np

from cdc_lakehouse.decoders.arrow import Bytes, Positions

PIECE: Final = 8 * 1024 * 1024
"""In bytes: shorter pieces spend more time in calls; longer ones do not fit into the processor's cache."""
_LF: Final = ord("\n")
_CR: Final = ord("\r")


class Lines(NamedTuple):
    """Some lines of a file that are not blank, in order."""

    text: Bytes
    """The text that `starts` and `stops` are positions in."""
    starts: Positions
    stops: Positions
    """The end of each line, before its line end."""
    numbers: Positions
    """Each line's number in the file, from 1."""

    def taken(self, which: Any) -> Lines:
        return Lines(self.text, self.starts[which], self.stops[which], self.numbers[which])

    def line(self, which: int) -> bytes:
        return self.text[self.starts[which] : self.stops[which]].tobytes()


def lines_of(parts: Iterable[bytes], piece: int = PIECE) -> Iterator[Lines]:
    """Yield the lines of a file that comes in parts, cut anywhere: in pieces of at most `piece` bytes unless a line is
    longer. CR LF, LF and CR end a line; a byte order mark is not part of the first."""
    number = 1
    for text in _whole_lines(parts, piece):
        ends: Positions = np.flatnonzero(text == _LF)
        before = ends - ((ends > 0) & (text[ends - 1] == _CR))
        if np.count_nonzero(text == _CR) != np.count_nonzero(before < ends):
            # Some CRs end a line alone.
            text = np.frombuffer(text.tobytes().replace(b"\r\n", b"\n").replace(b"\r", b"\n"), np.uint8)
            before = ends = np.flatnonzero(text == _LF)
        starts, stops = np.concatenate([[0], ends + 1]), np.append(before, len(text))
        if text[-1] == _LF:
            starts, stops = starts[:-1], stops[:-1]
        lines = Lines(text, starts, stops, np.arange(number, number + len(starts)))
        number += len(starts)
        has_text = starts < stops
        yield lines if has_text.all() else lines.taken(has_text)


def _whole_lines(parts: Iterable[bytes], piece: int) -> Iterator[Bytes]:
    """Yield the text, cut after line feeds."""
    mark = codecs.BOM_UTF8
    for content, stop in _complete(parts):
        at = len(mark) if content.startswith(mark) else 0
        mark = b""
        while at < stop:
            end = content.rfind(b"\n", at, at + piece) + 1 or content.find(b"\n", at + piece) + 1 or stop
            yield np.frombuffer(content, np.uint8, end - at, at)
            at = end


def _complete(parts: Iterable[bytes]) -> Iterator[tuple[bytes, int]]:
    """Yield texts, each with the end of its last line; the remainder is in the next text."""
    rest: list[bytes] = []
    for part in parts:
        stop = part.rfind(b"\n") + 1
        if not stop:
            rest.append(part)
            continue
        content = b"".join([*rest, memoryview(part)[:stop]]) if rest else part
        yield content, len(content) if rest else stop
        rest = [part[stop:]] if stop < len(part) else []
    content = b"".join(rest)
    yield content, len(content)
