"""TiCDC's Canal-JSON in files and topics: Canal's flat messages, with TiDB's extension.

    {"id":0,"database":"d","table":"t","pkNames":["id"],"isDdl":false,"type":"UPDATE","es":…,"ts":…,"sql":"",
     "sqlType":{…},"mysqlType":{…},"old":[{"v":"1"}],"data":[{"id":"1","v":"2"}],"_tidb":{"commitTs":…}}
    {…, "type":"TIDB_WATERMARK", "_tidb":{"watermarkTs":…}}

All values are strings or null. An INSERT's and an UPDATE's new row is in `data`, an UPDATE's old values (all, or only
the changed ones) in `old`, a DELETE's row (all columns, or only the handle key's) in `data`. The extension has the
commit-ts, which gives the order; it exists only with enable-tidb-extension. TiCDC prints DDL without backslash escapes.

In a topic, a message that was too large has only its handle key (`onlyHandleKey`), or the location of the complete one
(`claimCheckLocation`). With `large-message-handle-compression` TiCDC compresses each value itself: rows, statements,
watermarks and claim checks alike. `lz4` writes a frame, which begins with a magic number. `snappy` writes a block,
which begins with the size of the text as a varint: one that began with `{`, as JSON does, would have 123 bytes, and
TiCDC's messages have more.

A file has one message of one row per line. Lines and messages have one strict reader, which alone judges what is bad.

Source of the facts: TiCDC's documentation of the protocol, its code, and the descriptions of both compressions.

TiCDC writes all lines and messages of one table and operation alike, except for their rows, their numbers, and
`sqlType` and `mysqlType`, where columns come in any order. A `Form` is such a line without its rows: the text before
them, its head, and after them, its tail. A line with the same head and tail, whatever the digits of the numbers and the
objects of types in them, agrees with the form's line in everything else; so only those objects and the rows are looked
at, many at once, without extracting their values. Lines without a form are read one after the other, in eight times the
time. Rows mostly differ only in their values: a `RowForm` is a row without its texts, recognised by the bytes around
them, in a third of the time that it takes to parse it.
"""

from __future__ import annotations

import codecs
import functools
import hashlib
import itertools
import json
import re
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, Self, cast

import msgspec
import numpy as np
import pyarrow as pa
from msgspec import structs

from cdc_lakehouse.changelog.events import Message, MessageError, Origin, RowChange, Watermark
from cdc_lakehouse.changelog.positions import BEGINNING, END_TS, is_commit_ts
from cdc_lakehouse.config import CsvOptions
from cdc_lakehouse.decoders import problems
from cdc_lakehouse.decoders.arrow import Bytes, Mask, Positions, batch_of, cut, pc, where
from cdc_lakehouse.decoders.event_schema import BATCH_ROWS, DECODED, image_of, image_text
from cdc_lakehouse.decoders.format import PIECE, FileContext, Format, Options, Row, RowShape, UsualRows, present
from cdc_lakehouse.decoders.formats.canal_json import READER, Flat, FlatRows, origin_of, parts_of
from cdc_lakehouse.decoders.json_object import OPS, JsonObject, JsonReader, NotJsonError, read_message
from cdc_lakehouse.errors import SourceError

# Splitting of a text file into pieces of whole lines, without copying the bytes.

_LF, _CR = b"\n\r"


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
    """Yield the lines of a file that comes in parts, cut anywhere: in pieces of about `piece` bytes unless a line is
    longer, which are the same for the same parts. CR LF, LF and CR end a line; a byte order mark is not part of the
    first."""
    number = 1
    for text in _whole_lines(parts, piece):
        breaks: Positions = np.flatnonzero(text <= _CR)  # And a few others: one pass finds both.
        ends = breaks[text[breaks] == _LF]
        stops = ends - ((ends > 0) & (text[ends - 1] == _CR))
        if np.count_nonzero(text[breaks] == _CR) != np.count_nonzero(stops < ends):
            # Some CRs end a line alone.
            text = np.frombuffer(text.tobytes().replace(b"\r\n", b"\n").replace(b"\r", b"\n"), np.uint8)
            stops = ends = np.flatnonzero(text == _LF)
        starts = np.append(0, ends[:-1] + 1)
        lines = Lines(text, starts, stops, np.arange(number, number + len(starts)))
        number += len(starts)
        has_text = starts < stops
        yield lines if has_text.all() else lines.taken(has_text)


def _whole_lines(parts: Iterable[bytes], piece: int) -> Iterator[Bytes]:
    """Yield the text, cut after line feeds; the last line has one too."""
    rest, mark = list[bytes](), codecs.BOM_UTF8
    for part in itertools.chain(parts, [b"\n"]):
        stop = part.rfind(b"\n") + 1
        if not stop:
            rest.append(part)
            continue
        # A part is only copied where a line goes on in it.
        content = b"".join([*rest, memoryview(part)[:stop]]) if rest else part
        end, rest = len(content) if rest else stop, [part[stop:]] if stop < len(part) else []
        at, mark = len(mark) if content.startswith(mark) else 0, b""
        while at < end:
            start, at = at, end  # What is left of the part before comes with this one, not as a small piece of its own.
            if end - start > piece * 3 // 2:
                at = content.rfind(b"\n", start, start + piece) + 1 or content.find(b"\n", start + piece) + 1
            yield np.frombuffer(content, np.uint8, at - start, start)


# Rows and objects of types, whose values are not nested.

_QUOTE, _BACKSLASH, _SPACE = b'"\\ '
_VALUE: Final = re.compile(rb'"[^"]++":(?:"([^"]*+)"|null)')
_USUAL_ROW: Final = re.compile(rb"\{" + _VALUE.pattern + rb"(?:," + _VALUE.pattern + rb"){0,4096}\}")
_ROW_FORMS: Final = 8  # The maximum number of forms of a file: each column that may be NULL can double it.
_PAIR_SHARE: Final = 8  # An UPDATE's rows are compared together where an eighth of those left have their form.
_ROW_TRIES: Final = 4  # The number of rows of a piece that are tried as new forms.
# Its quotes are not escaped: it cannot occur in a row.
_BETWEEN_ROWS: Final = b'],"data":['


class FlatKind(NamedTuple):
    """Objects whose values are not nested. `entry` is a usual one behind the first quote of its name."""

    reader: JsonReader[dict[str, Any]]
    entry: re.Pattern[bytes]


_ENTRY: Final = rb'([^"\\\x00-\x1f]*)":(?:"[^"\\\x00-\x1f]*"|null%s)'
ROWS: Final = FlatKind(JsonReader(dict[str, str | None]), re.compile(_ENTRY % b""))
NUMBERS: Final = FlatKind(JsonReader(dict[str, str | int | None]), re.compile(_ENTRY % b"|-?[1-9][0-9]{0,17}|0"))


class RowForm:
    """The bytes around the texts of a row, or of an UPDATE's two and between these. With the same ones another has the
    same columns, and NULL in the same."""

    def __init__(self, rows: Sequence[bytes]) -> None:
        # They match `_USUAL_ROW`.
        text, ends = b"", [0]
        for row in rows:
            text += _BETWEEN_ROWS * bool(text)
            ends += [len(text) + at for value in _VALUE.finditer(row) if value[1] is not None for at in value.span(1)]
            text += row
        around = [text[start:stop] for start, stop in zip(ends[0::2], [*ends[1::2], len(text)], strict=True)]
        self.quotes, self.is_pair = text.count(b'"'), len(rows) > 1
        self.names: tuple[str, ...] = tuple(msgspec.json.decode(rows[-1]))
        self.first_end = rows[0].count(b'"') - 1, len(rows[0]) - rows[0].rindex(b'"')
        """The first row's end: the number of the quote before it, and the distance."""
        # Each begins with a quote but the first, which has one behind its brace. They are compared by words of eight
        # bytes, which lie in the row whatever its texts are: together they are not shorter.
        self._words: list[tuple[int, int, np.uint64, np.uint64]] = []
        quote, at, left = 0, -1, sum(map(len, around))
        for part in around:
            padded = [bytes(8) + each + bytes(8) for each in (part, b"\xff" * len(part))]
            for first in range(0, len(part), 8):
                begin = min(first, left - 8)
                word, mask = (np.frombuffer(each, np.uint64, 1, 8 + begin)[0] for each in padded)
                self._words.append((quote, at + begin, word, mask))
            self._end = quote, at + len(part)
            quote, at, left = quote + part.count(b'"'), 0, left - len(part)

    def matches(self, text: Bytes, starts: Positions, stops: Positions, quotes: Positions) -> Mask:
        """Return which rows have this form. `quotes` has the positions of each row's quotes, as many as the form's."""
        words: Any = np.ndarray(max(len(text) - 7, 0), np.uint64, text, strides=(1,))
        same: Mask = (quotes[:, 0] == starts + 1) & (quotes[:, self._end[0]] + self._end[1] == stops)
        for quote, at, word, mask in self._words:
            places = quotes[:, quote] + at
            if places.min(initial=0) < 0 or places.max(initial=-1) >= len(words):
                inside = (places >= 0) & (places < len(words))
                same &= inside
                places[~inside] = 0
            if len(words):
                same &= (words[places] ^ word) & mask == 0
        return same


def read_rows(rows: pa.Array, forms: list[RowForm], *, two: bool = False) -> tuple[Mask, Positions, Positions]:
    """Return which texts are rows, or `two` of them around `_BETWEEN_ROWS`; the form of each, or of its second row, -1
    for none; and the end of its first row. New forms are added. Rows without one take three times as long."""
    text, starts, stops = places_of(rows)
    of_form: Positions = np.full(len(rows), -1)
    quotes = np.flatnonzero(text == _QUOTE)
    left: Mask = np.ones(len(rows), bool)
    whole = np.array([0, len(text)], np.int32)
    try:  # If all is UTF-8, so is each part between braces, as the texts of a form are.
        pa.Array.from_buffers(pa.binary(), 1, [None, pa.py_buffer(whole), pa.py_buffer(text)]).cast(pa.string())
    except pa.ArrowInvalid:
        left = np.array([is_utf8(row) for row in rows.to_pylist()])
    special = text == _BACKSLASH
    if text.min(initial=_SPACE) < _SPACE:
        special |= text < _SPACE
    if special.any():
        left[np.searchsorted(stops, np.flatnonzero(special), side="right")] = False
    number, tries, least, first_ends = 0, _ROW_TRIES, 0, stops.copy()
    while left.any():
        if number == len(forms):
            if not tries or sum(form.is_pair == two for form in forms) == _ROW_FORMS:
                break
            tries -= 1
            numbers = np.flatnonzero(left)
            sample, least = int(numbers[len(numbers) // 2]), two * len(numbers) // _PAIR_SHARE
            found = text[starts[sample] : stops[sample]].tobytes().split(_BETWEEN_ROWS, two)
            if len(found) <= two or not all(_USUAL_ROW.fullmatch(row) and ROWS.reader.usual(row) for row in found):
                left[sample] = False
                continue
            forms.append(RowForm(found))
        form, number = forms[number], number + 1
        if form.is_pair != two:
            continue
        same, own = with_quotes(quotes, form.quotes, starts, stops)
        matches = form.matches(text, starts[same], stops[same], own) & left[same]
        same, (quote, at) = same[matches], form.first_end
        if len(same) < least:
            forms.pop()  # It is new.
            break
        of_form[same], left[same], first_ends[same] = number - 1, False, own[matches, quote] + at
    sound = of_form >= 0
    others = np.flatnonzero(~sound)
    if two and len(others):
        starts, stops = starts[others], stops[others]
        # By its rarest byte: a search for the whole takes as long as all else together.
        found = np.flatnonzero(text[: 1 - len(_BETWEEN_ROWS)] == _BETWEEN_ROWS[0])
        found = found[(pieces(text, found, len(_BETWEEN_ROWS)) == [*_BETWEEN_ROWS]).all(axis=1)]
        # Where it is missing, the second row is empty.
        first_ends[others] = ends = np.minimum(np.append(found, len(text))[np.searchsorted(found, starts)], stops)
        second = cut(text, np.minimum(ends + len(_BETWEEN_ROWS), stops), stops)
        (new, of_new, _), (old, _, _) = (read_rows(row, forms) for row in (second, cut(text, starts, ends)))
        sound[others] = both = new & old
        of_form[others] = np.where(both, of_new, -1)
    else:
        sound[others] = are_flat(where(rows, ~sound), ROWS)
    return sound, of_form, first_ends


def with_quotes(quotes: Positions, count: int, starts: Positions, stops: Positions) -> tuple[Positions, Positions]:
    """Return the numbers of the rows that have `count` of the quotes, and a row of these quotes for each of them."""
    if len(quotes) == len(starts) * count:
        of_row = quotes.reshape(-1, count)
        if (of_row[:, 0] >= starts).all() and (of_row[:, -1] < stops).all():  # All rows have, as is usual.
            return np.arange(len(starts)), of_row
    first = np.searchsorted(quotes, starts)
    rows = np.flatnonzero(np.searchsorted(quotes, stops) - first == count)
    return rows, quotes[first[rows, None] + np.arange(count)]


def are_flat(objects: pa.Array, flat: FlatKind) -> Mask:
    """Return which texts are JSON objects with such values and distinct names, at least one, and no space around."""
    return np.array([text == text.strip() and bool(flat.reader.usual(text)) for text in objects.to_pylist()], bool)


def have_known_entries(objects: pa.Array, flat: FlatKind, known: dict[bytes | str, int]) -> Mask:
    """Return which objects have usual entries with distinct names: this takes a fourth of the time of `are_flat` where
    entries come again and again in any order. `known` keeps, by entry, the number of its name, -1 for an unusual one.

    An object without spaces is cut at each comma before a quote. A piece that is a whole entry cannot be the part of
    one, so if all are, the object is JSON."""
    lists = pc.split_pattern(pc.binary_slice(objects, 2, -1), b',"')
    entries = lists.flatten().dictionary_encode()
    for entry in entries.dictionary.to_pylist():
        if entry not in known:
            name = flat.entry.fullmatch(entry) if is_utf8(entry) else None
            known[entry] = -1 if name is None else known.setdefault(name[1].decode(), len(known))
    names = np.array([known[entry] for entry in entries.dictionary.to_pylist()], np.int64)[entries.indices.to_numpy()]
    sound: Mask = np.array(pc.and_(pc.starts_with(objects, b'{"'), pc.ends_with(objects, b"}")))
    of_list = pc.list_parent_indices(lists).to_numpy()
    sound[of_list[names < 0]] = False
    # Which have a name twice.
    width = int(names.max(initial=0)) + 1
    places = of_list * width + names
    if len(objects) * width <= 8 * len(places):
        twice = np.flatnonzero(np.bincount(np.maximum(places, 0), minlength=1) > 1)
    else:
        places.sort()
        twice = places[1:][places[1:] == places[:-1]]
    sound[twice // width] = False
    return sound


def is_utf8(text: bytes) -> bool:
    return text.decode(errors="replace").encode() == text


def pieces(text: Bytes, places: Positions, width: int) -> Bytes:
    """Return the `width` bytes at each position, as one row for each."""
    if not len(places):
        return np.zeros((0, width), np.uint8)
    found = np.ndarray(len(text) - width + 1, f"V{width}", text, strides=(1,))[places]
    return found.view(np.uint8).reshape(len(places), width)


def places_of(texts: pa.Array) -> tuple[Bytes, Positions, Positions]:
    """Return the bytes, starts and stops of texts: the inverse of `arrow.cut`."""
    _, offsets, data = texts.buffers()
    places = np.frombuffer(offsets, np.int32)[texts.offset :][: len(texts) + 1].astype(np.int64)
    return np.frombuffer(data, np.uint8), places[:-1], places[1:]


# Forms.

_NUMBER: Final = re.compile(rb'(?<=":)[1-9][0-9]*(?=[,}])')
_COMMIT_TS: Final = re.compile(rb'"commitTs":([1-9][0-9]{0,17})[,}]')
"""At most 18 digits, which always fit into 63 bits."""
_TYPES: Final = re.compile(rb'"(?:sqlType|mysqlType)":(\{.*?\})(?=,")')
_OTHER_DIGITS: Final = bytes.maketrans(b"0123456789", b"1234567891")
_ZERO: Final = ord("0")
_OLD: Final = b'{"old":"1"}'
_NEW: Final = b'{"new":"2"}'
_FEW_TYPES: Final = 32  # The number of type objects that are parsed in less time than their entries are looked up.
_NO_TYPES: Final = b'{"types":"3"}'
_FORMS: Final = 64
"""The maximum number of forms: each operation has one, and possibly a few more for numbers of other lengths."""
_TRIES: Final = 16  # The number of lines of a piece that are tried as new forms.


@functools.lru_cache(1024)
def _types_of(text: bytes) -> Mapping[str, str]:
    types: Any = image_of(text)
    return types if all(types.values()) else {name: type for name, type in types.items() if type}


class Fixed:
    """A text in which only the digits of numbers, none of which begins with 0, and objects of types, whose length is
    fixed, differ from line to line."""

    def __init__(self, text: bytes) -> None:
        self.width = len(text)
        self._bytes: Bytes = np.frombuffer(text, np.uint8)
        found = [*_TYPES.finditer(text)]
        self.types = [slice(*each.span(1)) for each in found]
        self.kinds = [ROWS if each[0].startswith(b'"my') else NUMBERS for each in found]
        numbers = (slice(*number.span()) for number in _NUMBER.finditer(text))
        self._numbers = [each for each in numbers if not any(of.start < each.start < of.stop for of in self.types)]

    def probe(self) -> bytes:
        """Return the text with other digits and types."""
        text = self._bytes.tobytes()
        for number in self._numbers:
            text = text[: number.start] + text[number].translate(_OTHER_DIGITS) + text[number.stop :]
        for types in reversed(self.types):
            text = text[: types.start] + _NO_TYPES + text[types.stop :]
        return text

    def matches(self, text: Bytes, places: Positions) -> tuple[Mask, Mask]:
        """Return which texts are like this one, and which have its types too."""
        found = pieces(text, places, self.width)
        same: Mask = np.ones(len(found), bool)
        for number in self._numbers:
            # Unsigned bytes wrap around: a value below 0 is far above 9.
            digits = found[:, number] - _ZERO
            if digits.max(initial=0) > 9:
                same &= (digits <= 9).all(axis=1)
            same &= digits[:, 0] > 0
            found[:, number] = self._bytes[number]
        with_types = same & self._are(found)
        if not self.types or with_types.all():
            return with_types, with_types
        for types in self.types:
            found[:, types] = self._bytes[types]
        return same & self._are(found), with_types

    def _are(self, found: Bytes) -> Mask:
        texts: Any = pa.Array.from_buffers(pa.binary(self.width), len(found), [None, pa.py_buffer(found)])
        own = pa.scalar(self._bytes.tobytes(), texts.type)
        return pc.equal(texts, own).to_numpy(zero_copy_only=False)


@dataclass(frozen=True)
class Form:
    change: RowChange
    """That of the line that the form was made of."""
    head: Fixed
    head_end: Fixed
    tail: Fixed
    commit_ts: slice
    """The positions of the commit-ts's digits in the tail."""
    two_rows: bool
    """Whether lines have an old row and a new one, with only `_BETWEEN_ROWS` between them."""
    entries: Mapping[FlatKind, dict[bytes | str, int]] = field(default_factory=lambda: {ROWS: {}, NUMBERS: {}})
    row_forms: list[RowForm] = field(default_factory=list)

    @classmethod
    def of(cls, line: bytes, table: tuple[str, str] | None) -> Self | None:
        """Return the form of a line, None when it is not as TiCDC writes it."""
        found = event_of(line, table, END_TS)
        if isinstance(found, str):
            return None
        change = found[1]
        two_rows = change.op == "U" and change.before is not None
        first = line.find(b'"old":[{' if two_rows else b'"data":[{')
        last = line.rfind(b'}],"_tidb":{')
        commit_ts = _COMMIT_TS.search(line, last)
        # With duplicates, the search may have found the wrong one.
        if -1 in (first, last) or commit_ts is None or line.count(b'"data":[{') > 1 or line.count(b'"commitTs"') > 1:
            return None
        tail_at = last + 1
        head, tail = line[: line.index(b"{", first)], line[tail_at:]
        digits = slice(commit_ts.start(1) - tail_at, commit_ts.end(1) - tail_at)
        # Another row, as an INSERT may have in `old`, would be part of the form.
        if b"[{" in head or _TYPES.search(tail):
            return None
        form = cls(change, Fixed(head), Fixed(head[-8:]), Fixed(tail), digits, two_rows)
        # The rows and types must be at the expected positions, and the numbers have no other meaning than their value.
        probe, other_tail = form.head.probe(), form.tail.probe()
        probe += (_OLD + _BETWEEN_ROWS if two_rows else b"") + _NEW + other_tail
        old, new = image_of(_OLD) if two_rows else None, image_of(_NEW)
        before, after = (new, None) if change.op == "D" else (old, new)
        types = change.types if form._types_at is None else image_of(_NO_TYPES)
        expected = structs.replace(change, before=before, after=after, types=types)
        if not all(kind.reader.usual(head[at]) for at, kind in zip(form.head.types, form.head.kinds, strict=True)):
            return None
        return form if event_of(probe, None, END_TS) == (int(other_tail[digits]), expected) else None

    @property
    def _types_at(self) -> slice | None:
        """The position of the columns' types in the head; None where they are the same in all lines."""
        return next((at for at, kind in zip(self.head.types, self.head.kinds, strict=True) if kind is ROWS), None)

    def matches(self, lines: Lines) -> tuple[Positions, Mask]:
        """Return which lines have this form, and which of those have its types too."""
        which = np.flatnonzero(lines.stops - lines.starts > self.head.width + self.tail.width)
        same: Mask = np.ones(len(which), bool)
        # The end of the head rules out most lines of another form.
        for part, places in (
            (self.head_end, lines.starts + self.head.width - self.head_end.width),
            (self.tail, lines.stops - self.tail.width),
            (self.head, lines.starts),
        ):
            same, with_types = part.matches(lines.text, places[which])
            which, same = which[same], with_types[same]
        return which, same

    def _shapes(self, lines: Lines, row_forms: Positions, rows: pa.Array) -> tuple[list[RowShape], Positions]:
        """Return the shapes of rows, and the number of each row's. `row_forms` are their forms, -1 for none."""
        names: dict[tuple[str, ...], int] = {}
        of_form = [names.setdefault(form.names, len(names)) for form in self.row_forms]
        of_names, odd = np.array([*of_form, 0])[row_forms], row_forms < 0
        of_names[odd] = [names.setdefault(tuple(image_of(row)), len(names)) for row in where(rows, odd).to_pylist()]
        change, types, of_types = self.change, [self.change.types], np.zeros(len(rows), np.int64)
        if (at := self._types_at) is not None:
            objects = cut(lines.text, lines.starts + at.start, lines.starts + at.stop).dictionary_encode()
            types, of_types = [*map(_types_of, objects.dictionary.to_pylist())], objects.indices.to_numpy()
        of_number = [*names]
        distinct, which = np.unique(of_types * len(names) + of_names, return_inverse=True)
        # Of rows and types that come in any order, all pairs would be as many as the square of those that there are.
        pairs = ((types[number // len(names)], of_number[number % len(names)]) for number in distinct.tolist())
        return [RowShape(change.database, change.table, change.op, of, each, change.key) for each, of in pairs], which

    def rows(self, lines: Lines, with_types: Mask, end_ts: int) -> UsualRows:
        """Return the rows of lines that match and have no irregularity, nor a commit-ts at or above `end_ts`."""
        at, stop, odd = self.commit_ts.start, self.commit_ts.stop, ~with_types
        digits = pieces(lines.text, lines.stops - self.tail.width + at, stop - at)
        commit_ts = (digits - _ZERO) @ (10 ** np.arange(digits.shape[1])[::-1])
        read: Mask = (commit_ts > BEGINNING) & (commit_ts < end_ts)
        for types, kind in zip(self.head.types, self.head.kinds, strict=True) if odd.any() else ():
            starts = lines.starts[odd]
            objects = cut(lines.text, starts + types.start, starts + types.stop).dictionary_encode()
            sound: Mask = np.zeros(len(objects.dictionary), bool)
            if len(sound) > _FEW_TYPES:
                sound = have_known_entries(objects.dictionary, kind, self.entries[kind])
            sound[~sound] = are_flat(where(objects.dictionary, ~sound), kind)
            read[odd] &= sound[objects.indices.to_numpy()]
        rows = where(cut(lines.text, lines.starts + self.head.width, lines.stops - self.tail.width), read)
        sound, row_forms, first_ends = read_rows(rows, self.row_forms, two=self.two_rows)
        read[read], images = sound, [where(rows, sound)]
        if self.two_rows:
            text, starts, stops = places_of(rows)
            starts, ends, stops = starts[sound], first_ends[sound], stops[sound]
            images = [cut(text, starts, ends), cut(text, ends + len(_BETWEEN_ROWS), stops)]
        images = [image.view(pa.string()) for image in images]  # They are UTF-8.
        nothing = pa.nulls(len(images[0]), pa.string())
        before, after = (images[0], nothing) if self.change.op == "D" else ([nothing, *images][-2], images[-1])
        shapes = functools.partial(self._shapes, lines.taken(read), row_forms[sound], images[-1])
        return UsualRows(self.change, lines.numbers[read], commit_ts[read], before, after, shapes)


class Forms:
    """The forms of the lines of one table, or of messages that begin alike, in the order in which they are found."""

    def __init__(self, table: tuple[str, str] | None = None) -> None:
        self._table = table
        self._forms: list[Form] = []

    def rows(self, lines: Lines, end_ts: int) -> Iterator[UsualRows]:
        """Yield the rows of lines that have a form; their places are the lines' numbers."""
        number, tries = 0, _TRIES
        while len(lines.numbers):
            if number == len(self._forms):
                if not tries or number == _FORMS:
                    break
                tries -= 1
                # Not the first line: a file may begin with bad ones.
                sample = np.arange(len(lines.numbers)) == len(lines.numbers) // 2
                form = Form.of(lines.taken(sample).line(0), self._table)
                if form is None:
                    lines = lines.taken(~sample)
                    continue
                self._forms.append(form)
            form = self._forms[number]
            of_form, with_types = form.matches(lines)
            if len(of_form):
                rows = form.rows(lines.taken(of_form), with_types, end_ts)
                if len(rows.places):
                    yield rows
                lines = lines.taken(np.delete(np.arange(len(lines.numbers)), of_form))
            number += 1


# Values that TiCDC has compressed.

LIMIT: Final = 256 << 20  # The most bytes of a message's text. Brokers accept 100 MB of TiCDC at most, compressed.
AT_ONCE: Final = 64 << 10
LZ4_MAGIC: Final = b"\x04\x22\x4d\x18"
_SNAPPY_RATIO: Final = 22  # An element of 3 bytes stands for 64 bytes at most.
_TOO_LONG: Final = "the message has more than the {} MiB that are read, once it is uncompressed"
_ADVICE: Final = "see whether the message came whole; the changefeed has large-message-handle-compression"


def uncompressed(value: bytes) -> bytes:
    """Return the text of a value, which need not be compressed. Raises MessageError for one that cannot be read, or is
    too long."""
    if value.startswith(b"{"):
        return value
    if value.startswith(LZ4_MAGIC):
        found = bytearray()
        try:
            stream = pa.CompressedInputStream(pa.BufferReader(value), "lz4")
            while part := stream.read(AT_ONCE):
                found += part
                if len(found) > LIMIT:
                    raise MessageError(_TOO_LONG.format(LIMIT >> 20))
        except OSError as error:
            raise MessageError("the message is not a complete frame of LZ4", advice=_ADVICE) from error
        return bytes(found)
    size = 0
    for at, byte in enumerate(value[:5]):
        size |= (byte & 0x7F) << (7 * at)
        if byte < 0x80:
            break
    if size > len(value) * _SNAPPY_RATIO:
        return value
    if size > LIMIT:
        raise MessageError(_TOO_LONG.format(LIMIT >> 20))
    try:
        text: bytes = pa.Codec("snappy").decompress(value, decompressed_size=size, asbytes=True)
    except OSError:
        return value
    # It is a block if it holds an object in JSON.
    return text if text.startswith(b"{") else value


def text_or_value(value: bytes | None) -> bytes | None:
    """Return the text of a value as `uncompressed` does, or the value where that fails."""
    try:
        return None if value is None else uncompressed(value)
    except MessageError:
        return value


# Messages of topics.

_WATERMARK: Final = "TIDB_WATERMARK"


def _decode(options: Options, value: bytes | None) -> Message:
    message = READER.read(uncompressed(present(value)))
    if not options.tidb_extension:
        return Message(Origin()) if message.type == _WATERMARK else Message(origin_of(message), parts_of(message))
    extension = extension_of(message)
    location = extension.get("claimCheckLocation")
    if not location:
        return _decoded(message, extension)
    if options.claims is None or not isinstance(location, str):
        raise MessageError(
            "the message was too large, and lies in a claim-check file",
            advice="set source.claim_check to the changefeed's claim-check-storage-uri, then decode the date again",
        )
    try:
        claimed = options.claims(location)
    except SourceError as error:
        if error.segment is None:
            raise  # It is of the whole store: no message is to blame.
        raise MessageError(
            f"the claim-check file with the whole message cannot be used: {error}",
            advice="restore the file, then decode the date again",
        ) from error
    whole = READER.read(uncompressed(claimed))
    of_whole, of_message = (
        (each.database, each.table, each.type, extension_of(each).get("commitTs")) for each in (whole, message)
    )
    if of_whole != of_message or extension_of(whole).get("claimCheckLocation"):
        raise MessageError("the claim-check file holds another message than the one that names it")
    return _decoded(whole, extension_of(whole))


def commit_ts_of(message: Flat[Row]) -> int | None:
    """Return the commit-ts of a message whose extension has nothing else, None where it is none."""
    extension = message.extension
    commit_ts = extension.get("commitTs") if isinstance(extension, dict) and len(extension) == 1 else None
    return commit_ts if type(commit_ts) is int and is_commit_ts(commit_ts) else None


LEAST: Final = 128  # Fewer messages with one table and operation are read one by one: to make a form takes longer.
_SAMPLES: Final = 8
_TABLES: Final = 10_000  # The number of tables and operations whose forms are kept.
_BEHIND_TYPE: Final = b',"es":'


class MessageColumns:
    """The `ColumnReader` of messages: they are read as the lines of files are."""

    def __init__(self) -> None:
        self._forms = functools.lru_cache(_TABLES)(lambda head: Forms())

    def __call__(self, values: pa.Array, end_ts: int) -> Iterator[UsualRows]:
        lines = Lines(*places_of(values), np.arange(len(values))).taken(np.array(values.is_valid()))
        # Names of one length put what follows the operation at one place: that of a few messages is tried first.
        samples = lines.numbers[:: len(lines.numbers) // _SAMPLES | 1] if len(lines.numbers) >= LEAST else ()
        for width in np.unique(_places_behind_type(values, samples)).tolist():
            if width > 0:
                alike = np.flatnonzero(lines.stops - lines.starts > width + len(_BEHIND_TYPE))
                alike = alike[Fixed(_BEHIND_TYPE).matches(lines.text, lines.starts[alike] + width)[0]]
                texts = pa.py_buffer(pieces(lines.text, lines.starts[alike], width))
                heads = pa.Array.from_buffers(pa.binary(width), len(alike), [None, texts])
                lines = yield from self._rows(lines, alike, heads, end_ts)
        if len(lines.numbers) >= LEAST:
            places = _places_behind_type(values, lines.numbers)
            alike = np.flatnonzero(places > 0)
            heads = cut(lines.text, lines.starts[alike], (lines.starts + places)[alike])
            yield from self._rows(lines, alike, heads, end_ts)

    def _rows(self, lines: Lines, alike: Positions, heads: pa.Array, end_ts: int) -> Generator[UsualRows, None, Lines]:
        """Yield the rows of messages of which many have one head, the text before what follows the operation; return
        the others. What begins otherwise may be compressed."""
        heads, left = heads.dictionary_encode(), np.ones(len(lines.numbers), bool)
        of_head = heads.indices.to_numpy()
        for which in np.flatnonzero(np.bincount(of_head) >= LEAST).tolist():
            head, own = heads.dictionary[which].as_py(), alike[of_head == which]
            if head.startswith(b"{"):
                yield from self._forms(head).rows(lines.taken(own), end_ts)
                left[own] = False
        return lines.taken(left)


def _places_behind_type(values: pa.Array, which: Any) -> Positions:
    return pc.find_substring(values.take(pa.array(which, pa.int64())), _BEHIND_TYPE).to_numpy()


FORMAT: Final = Format(
    make=lambda options: functools.partial(_decode, options),
    text_of=text_or_value,
    row_reader=lambda options: FlatRows(parts_of, commit_ts_of) if options.tidb_extension else None,
    column_reader=lambda options: MessageColumns() if options.tidb_extension else None,
    watermarks=lambda options: options.tidb_extension,
    backslash_escapes=False,
    database="tidb",
)


def extension_of(message: Flat[Row]) -> JsonObject:
    """Return TiDB's extension of a message. Raises MessageError where it has none."""
    extension = message.extension
    if not isinstance(extension, dict):
        raise MessageError(
            "the message has no commit-ts, without which the order over partitions is not known",
            advice="set enable-tidb-extension=true in the changefeed's sink URI; or, for a topic with one partition, "
            "tidb_extension: false in the feed's source",
        )
    return cast("JsonObject", extension)


def _decoded(message: Flat[Row], extension: JsonObject) -> Message:
    if message.type == _WATERMARK:
        return Message(Origin(), (Watermark(timestamp_of(extension, "watermarkTs", is_watermark=True)),))
    parts = parts_of(message)
    origin = origin_of(message, timestamp_of(extension, "commitTs"))
    if extension.get("onlyHandleKey") and any(isinstance(part, RowChange) and part.op != "D" for part in parts):
        raise MessageError(
            "the message was too large and has only its handle key: its other values are nowhere in the log",
            advice="raise max-message-bytes of the changefeed; the row is whole again with its next change",
        )
    return Message(origin, parts)


def timestamp_of(extension: JsonObject, name: str, *, is_watermark: bool = False) -> int:
    """Return a timestamp of TiDB in an extension. Raises MessageError where it is none."""
    number = extension.get(name)
    # A string with a number is no timestamp.
    if type(number) is not int or not is_commit_ts(number):
        raise MessageError(
            f"_tidb.{name} is not a timestamp of TiDB of before the year 2100", is_watermark=is_watermark
        )
    return number


# Files.


def event_of(line: bytes, table: tuple[str, str] | None, end_ts: int) -> tuple[int, RowChange] | str:
    """Return the commit-ts and the one change of a table's line, or its problem, a key of `problems.PROBLEMS`."""
    problem = problems.NO_ROW
    try:
        head = message = READER.read(line)
    except NotJsonError:
        return problems.NOT_JSON if is_utf8(line) else problems.NOT_UTF8
    except MessageError:
        # Something in it is odd, but not what is looked at first.
        said, message = read_message(line), None
        head = Flat[Row](*map(said.get, ("type", "isDdl", "database", "table")), extension=said.get("_tidb"))
    if not isinstance(head.type, str) or head.type not in OPS or head.is_ddl:
        return problems.NOT_A_ROW_CHANGE
    if table is not None and (head.database, head.table) != table:
        return problems.WRONG_TABLE
    try:
        problem = problems.NO_COMMIT_TS
        extension = extension_of(head)
        if timestamp_of(extension, "commitTs") >= end_ts:
            return problem
        problem = problems.NO_ROW
        if message is None or extension.get("claimCheckLocation"):
            return problem
        decoded = _decoded(message, extension)
    except MessageError:
        return problem
    match decoded:
        case Message(Origin(commit_ts=int() as commit_ts), (RowChange() as change,)):
            return commit_ts, change
        case _:
            return problem


def lacks_commit_ts(head: bytes) -> bool:
    """Whether the first line is a message without a commit-ts. `head` is the beginning of a file that is not empty;
    False for a bad line, or one that is longer."""
    try:
        message = read_message(head.splitlines()[0])
    except MessageError:
        return False
    return "type" in message and "_tidb" not in message


def decode(parts: Iterable[bytes], context: FileContext, *, piece: int = PIECE) -> Iterator[pa.RecordBatch]:
    """Decode a file, which comes in parts, into batches with the columns of `DECODED`: those of its pieces that the
    context names, of about `piece` bytes."""
    forms = Forms((context.database, context.table))
    for lines in itertools.islice(lines_of(parts, piece), *context.pieces):
        batches, left = list[pa.RecordBatch](), np.ones(len(lines.numbers), bool)
        for rows in forms.rows(lines, context.end_ts):
            count = len(rows.places)
            nothing = pa.nulls(count, pa.string()), pa.nulls(count, pa.binary()), pa.repeat(False, count)
            ops, commit_ts = pa.repeat(rows.change.op, count), pa.array(rows.commit_ts)
            columns = [pa.array(rows.places), ops, commit_ts, rows.before, rows.after, *nothing]
            batches.append(pa.RecordBatch.from_arrays(columns, schema=DECODED))
            left &= ~np.isin(lines.numbers, rows.places, kind="table")
        if left.any():
            batches.append(read_strictly(lines.taken(left), context))
        for events in batches:
            yield from (events.slice(at, BATCH_ROWS) for at in range(0, events.num_rows, BATCH_ROWS))


def read_strictly(lines: Lines, context: FileContext) -> pa.RecordBatch:
    rows: list[tuple[object, ...]] = []
    for which, number in enumerate(lines.numbers.tolist()):
        line = lines.line(which)
        found = event_of(line, (context.database, context.table), context.end_ts)
        if isinstance(found, str):
            rows.append((number, None, None, None, None, found, line, True))
        else:
            commit_ts, change = found
            images = image_text(change.before), image_text(change.after)
            rows.append((number, change.op, commit_ts, *images, None, None, True))
    return batch_of(rows, DECODED)


# Whether later files contain everything of a file that was cut off.

_SENT_AT: Final = b',"ts":'
_IMAGES: Final = re.compile(rb',"old":(?:null|\[)')


def redelivers_canal_json(cut: bytes, later: Sequence[bytes], csv: CsvOptions | None) -> bool:
    """Whether the later canal-json files of TiCDC contain the cut one: a message is the same whenever it was sent."""
    *whole, part = cut.split(b"\n")
    lines = b"".join(later).split(b"\n")[:-1]
    if not whole or not part.strip():
        return False
    wanted = [_digest(line) for line in whole]
    found = [_digest(line) for line in lines]
    count = len(wanted)
    return None not in wanted and any(
        found[at : at + count] == wanted and found[at + count] is not None and _begins_with(lines[at + count], part)
        for at in range(len(found) - count)
        if found[at] == wanted[0]
    )


def _digest(line: bytes) -> bytes | None:
    """Return the hash of a message without the time of sending and the order of its names; None for another text."""
    try:
        message = read_message(line)
    except MessageError:
        return None
    message.pop("ts", None)
    return hashlib.sha256(json.dumps(message, sort_keys=True, default=repr).encode()).digest()


def _begins_with(line: bytes, part: bytes) -> bool:
    """Whether a message that was cut off to `part` can be this one, comparing what two sendings have in common: the
    part up to the time of sending, and the row's images. Between them are the types, whose order changes."""
    sent_at = line.find(_SENT_AT)
    if sent_at < 0 or not line[:sent_at].startswith(part[:sent_at]):
        return False
    images, own = _IMAGES.search(line, sent_at), _IMAGES.search(part, sent_at)
    if images is None:
        return False
    return own is None or line.startswith(part[own.start() :], images.start())
