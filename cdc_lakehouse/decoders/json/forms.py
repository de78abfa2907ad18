"""Vectorised reading of Canal-JSON lines that have the same form as a line that was read strictly.

TiCDC writes all lines of one file and operation alike, except for their rows, their numbers, and `sqlType` and
`mysqlType`, where columns come in any order. A `Form` is such a line without its rows: the text before them, its head,
and after them, its tail. A line with the same head and tail, whatever the digits of the numbers and the objects of
types in them, agrees with the form's line in everything else; so only those objects and the rows are parsed, in DuckDB.
A line with any irregularity is not judged here: it is read strictly.
"""

from __future__ import annotations

import codecs
import itertools
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, Self

import numpy as np
import pyarrow as pa

from cdc_lakehouse.changelog.positions import BEGINNING
from cdc_lakehouse.decoders.arrow import Bytes, Mask, Positions, cut, pc, where
from cdc_lakehouse.decoders.json.columns import NUMBERS, ROWS, Flat, RowForm, are_flat, pieces, places_of, read_rows

# Splitting of a text file into pieces of whole lines, without copying the bytes.

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


_NUMBER: Final = re.compile(rb'(?<=":)[1-9][0-9]*(?=[,}])')
_COMMIT_TS: Final = re.compile(rb'"commitTs":([1-9][0-9]{0,17})[,}]')
"""At most 18 digits, which always fit into 63 bits."""
_TYPES: Final = re.compile(rb'"(?:sqlType|mysqlType)":(\{.*?\})(?=,")')
_OTHER_DIGITS: Final = bytes.maketrans(b"0123456789", b"1234567891")
_ZERO: Final = ord("0")
# Its quotes are not escaped: it cannot occur in a row's text.
_BETWEEN_ROWS: Final = b'}],"data":[{'
_PROBE: Final = ('{"old":"1"}', '{"new":"2"}')
_KNOWN_TYPES: Final = 100
"""The number of type objects remembered from a piece: with few columns all orders recur, with many it would be useless.
"""
_NO_TYPES: Final = b'{"types":"3"}'
_FORMS: Final = 64
"""The maximum number of forms: each operation has one, and possibly a few more for numbers of other lengths."""
_TRIES: Final = 16
"""The number of lines of a piece that are tried as new forms."""


class Event(NamedTuple):
    op: str
    commit_ts: int
    before: str | None
    after: str | None


Read = Callable[[bytes], Event | None]
"""Reads a single line; None where it cannot be used."""


class FormEvents(NamedTuple):
    """The events of those lines of a form that have no irregularity."""

    read: Mask
    """Which lines these are; the other fields are of these lines alone."""
    commit_ts: Positions
    before: pa.Array
    after: pa.Array


class Fixed:
    """A text in which only the digits of numbers, none of which begins with 0, and objects of types, whose length is
    fixed, differ from line to line."""

    def __init__(self, text: bytes) -> None:
        self.width = len(text)
        self._bytes: Bytes = np.frombuffer(text, np.uint8)
        found = [*_TYPES.finditer(text)]
        self.types = [slice(*each.span(1)) for each in found]
        self.kinds = [ROWS if each[0].startswith(b'"my') else NUMBERS for each in found]
        self._is_free: Mask = np.zeros(self.width, bool)
        for types in self.types:
            self._is_free[types] = True
        numbers = [found.span() for found in _NUMBER.finditer(text) if not self._is_free[found.start()]]
        self._is_digit: Mask = np.zeros(self.width, bool)
        for first, end in numbers:
            self._is_digit[first:end] = True
        self._is_free |= self._is_digit
        self._first_digits = [first for first, _ in numbers]

    def probe(self) -> bytes:
        """Return the text with other digits and types."""
        other = np.frombuffer(self._bytes.tobytes().translate(_OTHER_DIGITS), np.uint8)
        text = np.where(self._is_digit, other, self._bytes).tobytes()
        for types in reversed(self.types):
            text = text[: types.start] + _NO_TYPES + text[types.stop :]
        return text

    def read(self, text: Bytes, places: Positions) -> Bytes:
        """Return the bytes at each place, as one row for each."""
        return pieces(text, places, self.width)

    def matches(self, text: Bytes, places: Positions) -> Mask:
        found = self.read(text, places)
        same = ((found == self._bytes) | self._is_free).all(axis=1)
        # Unsigned bytes wrap around: a value below 0 is far above 9.
        same &= (found[:, self._is_digit] - _ZERO <= 9).all(axis=1)
        return same & (found[:, self._first_digits] != _ZERO).all(axis=1)


@dataclass(frozen=True)
class Form:
    op: str
    head: Fixed
    head_end: Fixed
    tail: Fixed
    commit_ts: slice
    """The positions of the commit-ts's digits in the tail."""
    two_rows: bool
    """Whether lines have an old row and a new one, with only `_BETWEEN_ROWS` between them."""
    known_types: set[tuple[Flat, bytes]] = field(default_factory=set[tuple[Flat, bytes]])
    """Objects of types that were parsed before."""
    row_forms: list[RowForm] = field(default_factory=list[RowForm])

    @classmethod
    def of(cls, line: bytes, read: Read) -> Self | None:
        """Return the form of a line, None when it is not as TiCDC writes it."""
        event = read(line)
        if event is None:
            return None
        two_rows = event.op == "U" and event.before is not None
        first = line.find(b'"old":[{' if two_rows else b'"data":[{')
        last = line.rfind(b'}],"_tidb":{')
        commit_ts = _COMMIT_TS.search(line, last)
        # With duplicates, the search may have found the wrong one.
        if -1 in (first, last) or commit_ts is None or line.count(b'"data":[{') > 1 or line.count(b'"commitTs"') > 1:
            return None
        tail_at = last + 1
        head, tail = line[: line.index(b"{", first)], line[tail_at:]
        digits = slice(commit_ts.start(1) - tail_at, commit_ts.end(1) - tail_at)
        if _TYPES.search(tail):
            return None
        form = cls(event.op, Fixed(head), Fixed(head[-8:]), Fixed(tail), digits, two_rows)
        return form if form._is_true(read) else None

    def _is_true(self, read: Read) -> bool:
        """Whether the rows are at the expected positions, and the numbers have no other meaning than their value."""
        old, new = _PROBE
        rows = f'{old}],"data":[{new}' if self.two_rows else new
        tail = self.tail.probe()
        event = read(self.head.probe() + rows.encode() + tail)
        before, after = (new, None) if self.op == "D" else (old if self.two_rows else None, new)
        return event == Event(self.op, int(tail[self.commit_ts]), before, after)

    def matches(self, lines: Lines) -> Mask:
        """Return which lines have this form."""
        found: Mask = lines.stops - lines.starts > self.head.width + self.tail.width
        # The end of the head rules out most lines of another form.
        for part, places in (
            (self.head_end, lines.starts + self.head.width - self.head_end.width),
            (self.tail, lines.stops - self.tail.width),
            (self.head, lines.starts),
        ):
            found[found] = part.matches(lines.text, places[found])
        return found

    def _have_types(self, connection: Any, lines: Lines) -> Mask:
        """Return for which lines valid objects of types are at the expected positions."""
        have: Mask = np.ones(len(lines.numbers), bool)
        for types, kind in zip(self.head.types, self.head.kinds, strict=True):
            objects = cut(lines.text, lines.starts + types.start, lines.starts + types.stop).dictionary_encode()
            texts = objects.dictionary.to_pylist()
            sound: Mask = np.array([(kind, text) in self.known_types for text in texts], bool)
            if not sound.all():
                sound[~sound] = are_flat(connection, where(objects.dictionary, ~sound), kind)
                known = itertools.compress(texts[:_KNOWN_TYPES], sound)
                self.known_types.update((kind, text) for text in known)
            have &= sound[objects.indices.to_numpy()]
        return have

    def events(self, connection: Any, lines: Lines, end_ts: int) -> FormEvents:
        """Return the events of lines that match, none with a commit-ts at or above `end_ts`."""
        digits = self.tail.read(lines.text, lines.stops - self.tail.width)[:, self.commit_ts]
        commit_ts = (digits - _ZERO) @ (10 ** np.arange(digits.shape[1])[::-1])
        read = self._have_types(connection, lines) & (commit_ts > BEGINNING) & (commit_ts < end_ts)
        rows = cut(lines.text, lines.starts + self.head.width, lines.stops - self.tail.width)
        images = [rows]
        if self.two_rows:
            between = pc.find_substring(rows, _BETWEEN_ROWS).to_numpy()
            read &= between >= 0
            text, starts, stops = places_of(rows)
            # Where it is missing, both images are wrong, but such lines are not read.
            between = starts + between
            images = [
                cut(text, starts, np.maximum(between + 1, starts)),
                cut(text, np.minimum(between + len(_BETWEEN_ROWS) - 1, stops), stops),
            ]
        for image in images:
            read[read], _ = read_rows(connection, where(image, read), self.row_forms)
        images = [where(image, read).cast(pa.string()) for image in images]
        nothing = pa.nulls(len(images[0]), pa.string())
        before, after = (images[0], nothing) if self.op == "D" else ([nothing, *images][-2], images[-1])
        return FormEvents(read, commit_ts[read], before, after)


class Forms:
    """The forms of a file, in the order in which they are found."""

    def __init__(self) -> None:
        self._forms: list[Form] = []

    def parts(self, lines: Lines, read: Read) -> Iterator[tuple[Form | None, Lines]]:
        """Yield the lines of each form, and those without one."""
        number, tries = 0, _TRIES
        while len(lines.numbers):
            if number == len(self._forms):
                if not tries or number == _FORMS:
                    break
                tries -= 1
                # Not the first line: a file may begin with bad ones.
                sample = np.arange(len(lines.numbers)) == len(lines.numbers) // 2
                form = Form.of(lines.taken(sample).line(0), read)
                if form is None:
                    yield None, lines.taken(sample)
                    lines = lines.taken(~sample)
                    continue
                self._forms.append(form)
            form = self._forms[number]
            of_form = form.matches(lines)
            if of_form.any():
                yield form, lines.taken(of_form)
                lines = lines.taken(~of_form)
            number += 1
        if len(lines.numbers):
            yield None, lines
