"""Validation of JSON objects whose values are not nested, many at once, without extracting their values.

Rows that TiCDC writes mostly differ only in their values. A `RowForm` is such a row without its texts; rows of a form
are recognised by the bytes around their texts, in a third of the time that DuckDB needs to parse them.
"""

from __future__ import annotations

import re
from typing import Any, Final, NamedTuple

import duckdb
import numpy as np
import pyarrow as pa

from cdc_lakehouse.decoders.arrow import TEXTS, Bytes, Mask, Positions, are_all, pc, where

_QUOTE: Final = ord('"')
_BACKSLASH: Final = ord("\\")
_SPACE: Final = ord(" ")
_VALUE: Final = re.compile(rb'"[^"]*+":(?:"([^"]*+)"|null)')
_USUAL_ROW: Final = re.compile(rb"\{" + _VALUE.pattern + rb"(?:," + _VALUE.pattern + rb"){0,4096}\}")
_LARGE: Final = 80 * 1024 * 1024
_ROW_FORMS: Final = 8
"""The maximum number of forms of a file: each column that may be NULL can double it."""
_ROW_TRIES: Final = 4
"""The number of rows of a piece that are tried as new forms."""


class Flat(NamedTuple):
    """Objects whose values are not nested."""

    ends: bytes
    """The bytes that a value can end with."""
    kinds: pa.Array
    """The types of values in DuckDB."""


_ROWS: Final = Flat(b'"l', TEXTS)
TYPE_OBJECTS: Final = Flat(b'"l0123456789', pa.array(["VARCHAR", "NULL", "BIGINT", "UBIGINT"]))


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


def read_rows(connection: Any, rows: pa.Array, forms: list[RowForm]) -> tuple[Mask, Positions]:
    """Return which texts are rows, and the form of each, -1 for none. New forms are added, and rows without a form are
    read by DuckDB, which takes three times as long."""
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
            if not _USUAL_ROW.fullmatch(row) or not are_flat(connection, pa.array([row]), _ROWS).all():
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
    sound[others] = are_flat(connection, where(rows, others), _ROWS)
    return sound, of_form


def are_flat(connection: Any, objects: pa.Array, flat: Flat) -> Mask:
    """Return which texts are JSON objects with such values and distinct names. Large ones count as invalid: DuckDB
    needs four times their memory."""
    if not len(objects):
        return np.zeros(0, bool)
    text, starts, stops = places_of(objects)
    sound: Mask = (stops - starts > 2) & (stops - starts < _LARGE)
    # DuckDB accepts a comma after the last value, which is not JSON.
    sound[sound] = np.isin(text[stops[sound] - 2], list(flat.ends)) & (text[stops[sound] - 1] == ord("}"))
    sound[sound] = _are_utf8(where(objects, sound))
    sound[sound] = _have_kinds(connection, where(objects, sound), flat.kinds)
    return sound


def _are_utf8(texts: pa.Array) -> Mask:
    try:
        texts.cast(pa.string())
    except pa.ArrowInvalid:
        return np.array([_is_utf8(text) for text in texts.to_pylist()], bool)
    return np.ones(len(texts), bool)


def _is_utf8(text: bytes) -> bool:
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return True


def _have_kinds(connection: Any, objects: pa.Array, kinds: pa.Array) -> Mask:
    try:
        names, found = _asked(connection, "json_keys(object), json_type(object, '$.*')", objects)
    except (duckdb.InvalidInputException, UnicodeDecodeError):
        # DuckDB quotes the invalid text in its error, and may cut it within a character: then Python cannot decode the
        # message.
        (valid,) = _asked(connection, "json_valid(object)", objects)
        sound: Mask = valid.to_numpy(zero_copy_only=False).copy()
        sound[sound] = _have_kinds(connection, objects.filter(valid), kinds)
        return sound
    return _are_different(names) & are_all(found, kinds)


def _asked(connection: Any, columns: str, objects: pa.Array) -> list[pa.Array]:
    """Return columns that DuckDB computes from JSON texts."""
    relation = connection.from_arrow(pa.table({"object": objects.cast(pa.string())})).project(columns)
    return [column.combine_chunks() for column in relation.to_arrow_table()]


def _are_different(lists: pa.Array) -> Mask:
    """Return which lists have no text twice."""
    texts = lists.flatten().dictionary_encode()
    width = max(len(texts.dictionary), 1)
    of_list: Positions = pc.list_parent_indices(lists).to_numpy()
    places = np.sort(of_list * width + texts.indices.to_numpy())
    different: Mask = np.ones(len(lists), bool)
    different[places[1:][places[1:] == places[:-1]] // width] = False
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
    places = np.frombuffer(offsets, np.int32)[: len(texts) + 1].astype(np.int64)
    return np.frombuffer(data, np.uint8), places[:-1], places[1:]
