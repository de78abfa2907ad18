"""JSON objects whose values are not nested are validated here, many at once, without extracting their values.

Rows that TiCDC writes mostly differ only in their values. A `RowForm` is such a row without its texts; rows of a form
are recognised by the bytes around their texts, in a third of the time that it takes to parse them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Final

import msgspec
import numpy as np
import pyarrow as pa

from cdc_lakehouse.decoders.arrow import Bytes, Mask, Positions, pc, where
from cdc_lakehouse.decoders.json.object import JsonReader

_QUOTE: Final = ord('"')
_BACKSLASH: Final = ord("\\")
_SPACE: Final = ord(" ")
_VALUE: Final = re.compile(rb'"[^"]*+":(?:"([^"]*+)"|null)')
_USUAL_ROW: Final = re.compile(rb"\{" + _VALUE.pattern + rb"(?:," + _VALUE.pattern + rb"){0,4096}\}")
_ROW_FORMS: Final = 8
"""The maximum number of forms of a file: each column that may be NULL can double it."""
_ROW_TRIES: Final = 4
"""The number of rows of a piece that are tried as new forms."""


@dataclass(frozen=True, eq=False)
class FlatKind:
    """Objects whose values are not nested."""

    reader: JsonReader[dict[str, Any]]
    entry: re.Pattern[bytes]
    """A usual entry behind the first quote of its name."""


_ENTRY: Final = rb'([^"\\\x00-\x1f]*)":(?:"[^"\\\x00-\x1f]*"|null%s)'
ROWS: Final = FlatKind(JsonReader(dict[str, str | None]), re.compile(_ENTRY % b""))
NUMBERS: Final = FlatKind(JsonReader(dict[str, str | int | None]), re.compile(_ENTRY % b"|-?[1-9][0-9]{0,17}|0"))


class RowForm:
    """The bytes around the texts of a row. A row with the same bytes around its texts has the same columns, and NULL in
    the same ones."""

    def __init__(self, row: bytes) -> None:
        """`row` matches `_USUAL_ROW`."""
        ends = [place for value in _VALUE.finditer(row) if value[1] is not None for place in value.span(1)]
        around = [row[start:stop] for start, stop in zip([0, *ends[1::2]], [*ends[0::2], len(row)], strict=True)]
        self._around: list[Bytes] = [np.frombuffer(part, np.uint8) for part in around]
        self._quotes_of = [part.count(b'"') for part in around]
        self.quotes = row.count(b'"')
        self.names: tuple[str, ...] = tuple(msgspec.json.decode(row))

    def matches(self, text: Bytes, starts: Positions, stops: Positions, quotes: Positions) -> Positions:
        """Return the numbers of the rows of this form. `quotes` has the positions of each row's quotes, as many as the
        form has."""
        rows: Positions = np.arange(len(starts))
        begins, ends, behind = starts, starts, 0
        for around, count in zip(self._around, self._quotes_of, strict=True):
            fits = begins + len(around) <= stops[rows]
            rows, begins = rows[fits], begins[fits]
            same = (pieces(text, begins, len(around)) == around).all(axis=1)
            rows, ends, behind = rows[same], begins[same] + len(around), behind + count
            if behind < self.quotes:
                begins = quotes[rows, behind]  # It ends the text.
        return rows[ends == stops[rows]]


def read_rows(rows: pa.Array, forms: list[RowForm]) -> tuple[Mask, Positions]:
    """Return which texts are rows, and the form of each, -1 for none. New forms are added, and rows without a form are
    parsed one by one, which takes three times as long."""
    text, starts, stops = places_of(rows)
    of_form: Positions = np.full(len(rows), -1)
    quotes = np.flatnonzero(text == _QUOTE)
    first, behind = np.searchsorted(quotes, starts), np.searchsorted(quotes, stops)
    left = _are_utf8(rows)
    left[np.searchsorted(stops, np.flatnonzero((text == _BACKSLASH) | (text < _SPACE)), side="right")] = False
    number, tries = 0, _ROW_TRIES
    while left.any():
        if number == len(forms):
            if not tries or number == _ROW_FORMS:
                break
            tries -= 1
            sample = int(np.flatnonzero(left)[np.count_nonzero(left) // 2])
            row = text[starts[sample] : stops[sample]].tobytes()
            if not _USUAL_ROW.fullmatch(row) or not ROWS.reader.usual(row):
                left[sample] = False
                continue
            forms.append(RowForm(row))
        form = forms[number]
        same = np.flatnonzero(left & (behind - first == form.quotes))
        own = quotes[first[same, None] + np.arange(form.quotes)]
        same = same[form.matches(text, starts[same], stops[same], own)]
        of_form[same], left[same] = number, False
        number += 1
    sound = of_form >= 0
    others = ~sound
    sound[others] = are_flat(where(rows, others), ROWS)
    return sound, of_form


def are_flat(objects: pa.Array, flat: FlatKind) -> Mask:
    """Return which texts are JSON objects with such values and distinct names, and at least one."""
    return np.array([bool(flat.reader.usual(text)) for text in objects.to_pylist()], bool)


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
    return sound & _each_differs(of_list, names, len(objects))


def _are_utf8(texts: pa.Array) -> Mask:
    """Return which texts are UTF-8; NULL counts as one."""
    try:
        texts.cast(pa.string())
    except pa.ArrowInvalid:
        return np.array([text is None or is_utf8(text) for text in texts.to_pylist()])
    return np.ones(len(texts), bool)


def is_utf8(text: bytes) -> bool:
    return text.decode(errors="replace").encode() == text


def _each_differs(of_list: Positions, numbers: Positions, lists: int) -> Mask:
    """Return which lists have no number twice. `of_list` is the list of each number."""
    width = int(numbers.max(initial=0)) + 1
    places = of_list * width + numbers
    different: Mask = np.ones(lists, bool)
    if lists * width <= 8 * len(places):
        twice = np.flatnonzero(np.bincount(np.maximum(places, 0), minlength=1) > 1)
    else:
        places.sort()
        twice = places[1:][places[1:] == places[:-1]]
    different[twice // width] = False
    return different


# --- Positions in texts ---


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
