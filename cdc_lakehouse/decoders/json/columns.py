"""Vectorised reading of Canal's flat JSON messages, and of similar ones.

Most messages have one row, a time and nothing unusual. DuckDB reads those in a fraction of the time that Python needs
to process each value. Its JSON parser accepts slightly more than JSON: a comma before a bracket, words for infinity, a
name twice, and any depth. So values with such a comma, and those with anything nested where a usual message has
nothing nested, are left to the decoder, as are names that come twice elsewhere.

JSON objects whose values are not nested are also validated, many at once, without extracting their values.

Rows that TiCDC writes mostly differ only in their values. A `RowForm` is such a row without its texts; rows of a form
are recognised by the bytes around their texts, in a third of the time that DuckDB needs to parse them.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal

import numpy as np
import pyarrow as pa

from cdc_lakehouse.changelog.events import MessageError
from cdc_lakehouse.changelog.positions import BEGINNING, END_MS, END_TS
from cdc_lakehouse.decoders.arrow import TEXTS, Bytes, Mask, Positions, are_all, pc, where
from cdc_lakehouse.decoders.format import RowShape, UsualRows
from cdc_lakehouse.decoders.json.object import key_of, types_of, unique
from cdc_lakehouse.duckdb_sql import query

OPS: Final[dict[str, Literal["I", "U", "D"]]] = {"INSERT": "I", "UPDATE": "U", "DELETE": "D"}

_LONGEST: Final = 1 << 20
"""The maximum bytes of a message that is read together with others: DuckDB holds 2048 at once."""
_SHAPES_KEPT: Final = 10_000
_DIGITS: Final = re.compile("[0-9]{1,19}")
_SHAPE: Final = ("database", "table", "type", "isDdl", "mysqlType", "pkNames")
"""The fields that many messages have in common."""

_REPLACEMENT: Final = r"\x{fffd}|\\[uU][fF]{3}[dD]"
"""U+FFFD in the forms that JSON allows."""
_COMMA: Final = r",[ \t\r\n]*[}\]]"
"""One before a bracket, which may be in a text."""
_SCALAR_KINDS: Final = ("VARCHAR", "NULL", "BIGINT", "UBIGINT", "BOOLEAN")
_SCALARS: Final = pa.array(_SCALAR_KINDS)
_NESTED: Final = {
    "data": "ARRAY", "old": "ARRAY", "pkNames": "ARRAY", "sqlType": "OBJECT", "mysqlType": "OBJECT", "_tidb": "OBJECT",
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class FlatColumns:
    """The `ColumnReader` of a format. `time` is the path of a message's commit-ts or, with `in_order`, of its time of
    execution (milliseconds since 1970). Values at the paths `unusual` must be absent or false. With `lossy`, text with
    U+FFFD is left to the decoder. With `merged`, columns that an update's new row leaves out are unchanged, and other
    changes have no old values."""

    time: str
    in_order: bool = False
    ops: Mapping[str, Literal["I", "U", "D"]] = field(default_factory=lambda: OPS)
    unusual: tuple[str, ...] = ()
    lossy: bool = False
    merged: bool = False

    def __call__(self, connection: Any, values: pa.Array) -> UsualRows:
        texts = _texts(values)
        for pattern in (_COMMA, *[_REPLACEMENT] * self.lossy):
            texts = pc.if_else(pc.match_substring_regex(texts, pattern), None, texts)
        found = query(connection, self._query, messages=pa.table({"value": texts})).combine_chunks()
        (shapes, frames, times, types, old_names, old_types, scalars, scalar_names, before, after, is_plain) = (
            column.combine_chunks() for column in found.columns
        )
        frames, shapes = frames.dictionary_encode(), shapes.dictionary_encode()
        shape_of, framed = shapes.indices.to_numpy(), [_is_usual_frame(text) for text in frames.dictionary.to_pylist()]
        shapes = [self._shape(text) for text in shapes.dictionary.to_pylist()]
        numbers = _numbers(times)
        lowest, end = (-1, END_MS) if self.in_order else (BEGINNING, END_TS)
        usual = np.array([shape is not None for shape in shapes], bool)[shape_of] & (numbers > lowest) & (numbers < end)
        usual &= np.array([*framed, False], bool)[_numpy(frames.indices, len(framed))] & _numpy(is_plain, False)
        usual &= are_all(types, TEXTS) & are_all(old_types, TEXTS) & are_all(scalars, _SCALARS)
        usual &= _each_once(old_names) & _are_different(scalar_names)
        places = np.flatnonzero(usual)
        if len(places) < len(usual):
            before, after = before.take(pa.array(places)), after.take(pa.array(places))
        return UsualRows(places, numbers[places], self.in_order, shape_of[places], shapes, before, after)

    @functools.cached_property
    def _query(self) -> str:
        """The query for the shape, the names and types of the message's own values, the time, the types of the row's
        values, names and types of the old ones, types of other nested values, both images, and whether there is one row
        and nothing but JSON."""
        common = [*(f"/{name}" for name in _SHAPE), *self.unusual]
        places = [*common, self.time, "$.data[0]", "$.data[1]", "$.old[0]", "$.old[1]", "/sqlType", "/_tidb", "/gtid"]
        time, image, second, old, second_old, sql_types, extension, gtid = (
            f"part[{number}]" for number in range(len(common) + 1, len(places) + 1)
        )
        kind = f"part[{_SHAPE.index('type') + 1}]"
        plain = f"{image} IS NOT NULL AND {second} IS NULL AND {second_old} IS NULL"
        plain += f" AND (old IS NULL OR (starts_with(old, '{{'){' AND is_update' * self.merged}))"
        if self.in_order:
            plain += f" AND (coalesce({gtid}, 'null') = 'null' OR starts_with({gtid}, '\"'))"
        # No filter: DuckDB would read each message again. DuckDB's JSON has no line feeds.
        return f"""
            SELECT
                concat({", chr(10), ".join(f"part[{n + 1}]" for n in range(len(common)))}, chr(10),
                    to_json(json_keys(image)){", chr(10), to_json(json_keys(old))" if self.merged else ""}) AS shape,
                concat(to_json(names[1]), chr(10), to_json(kinds), chr(10), to_json(names[3])) AS frame,
                time,
                json_type(image, '$.*') AS types,
                to_json(json_keys(old)) AS old_names,
                json_type(old, '$.*') AS old_types,
                scalars,
                names[2] AS scalar_names,
                CASE WHEN is_delete THEN image WHEN is_update THEN old END AS before,
                CASE WHEN is_delete THEN NULL ELSE image END AS after,
                coalesce({plain}, false) AS is_plain
            FROM (
                SELECT
                    part, names, kinds, {time} AS time, {image} AS image,
                    list_concat(json_type({sql_types}, '$.*'), json_type({extension}, '$.*')) AS scalars,
                    {f"CASE WHEN {old} <> 'null' THEN {old} END" if self.merged else old} AS old,
                    {kind} = '"UPDATE"' AS is_update, {kind} = '"DELETE"' AS is_delete
                FROM (
                    SELECT
                        TRY(json_extract(value, {places})) AS part,
                        TRY(json_keys(value, ['$', '$.sqlType', '$._tidb'])) AS names,
                        TRY(json_type(value, '$.*')) AS kinds
                    FROM messages
                )
            )
        """

    @functools.cached_property
    def _shape(self) -> Any:
        return functools.lru_cache(_SHAPES_KEPT)(self._new_shape)

    def _new_shape(self, text: str) -> RowShape | None:
        """Parse a shape; None where it is not that of a usual message."""
        titles = [*_SHAPE, *self.unusual, "names", *(("old names",) if self.merged else ())]
        try:
            found = {
                title: json.loads(part, object_pairs_hook=unique)
                for title, part in zip(titles, text.split("\n"), strict=True)
                if part
            }
            types, key = types_of(found), key_of(found)
        except (MessageError, ValueError, RecursionError):
            return None
        database, table, kind, names = (found.get(name) for name in ("database", "table", "type", "names"))
        op = self.ops.get(kind) if isinstance(kind, str) else None
        if (
            op is None
            or not (isinstance(database, str) and isinstance(table, str) and database and table)
            or not (found.get("isDdl") is None or found["isDdl"] is False)
            or any(found.get(place) is not None and found[place] is not False for place in self.unusual)
            or not names
            or not _is_each_once(names)
            or "``" in text
        ):
            return None
        if old_names := found.get("old names"):
            if not set(old_names) <= set(names):
                return None
            names = list(dict.fromkeys([*old_names, *names]))
        return RowShape(database, table, op, tuple(names), types, key)


def _texts(values: pa.Array) -> pa.Array:
    """Convert values to text; NULL for those that are left to the decoder: long messages, and those that are not
    UTF-8."""
    values = pc.if_else(pc.less_equal(pc.binary_length(values), _LONGEST), values, None)
    return pc.if_else(pa.array(_are_utf8(values)), values, None).cast(pa.string())


def _is_usual_frame(text: str) -> bool:
    """Whether of the values of a message only those are nested that its shape, images and scalars are read of."""
    names, kinds, others = (json.loads(part) if part else [] for part in text.split("\n"))
    usual = (
        kind in ("NULL", _NESTED[name]) if name in _NESTED else kind in _SCALAR_KINDS
        for name, kind in zip(names, kinds, strict=True)
    )
    return bool(names) and _is_each_once(names) and _is_each_once(others) and all(usual)


def _is_each_once(names: Sequence[str]) -> bool:
    return len(set(names)) == len(names)


def _each_once(names: pa.Array) -> np.ndarray[Any, Any]:
    """Return whether each list of names, as JSON, has no duplicates, and no name that Canal has changed."""
    encoded = names.dictionary_encode()
    good = [_is_each_once(json.loads(text)) and "``" not in text for text in encoded.dictionary.to_pylist()]
    return np.array([*good, True])[_numpy(encoded.indices, len(good))]


def _numbers(texts: pa.Array) -> np.ndarray[Any, Any]:
    """Convert numbers in JSON to integers; -1 for anything else."""
    try:
        return _numpy(texts.cast(pa.int64()), -1)
    except pa.ArrowInvalid:
        # Python refuses to read a number with thousands of digits.
        numbers = (int(text) if text and _DIGITS.fullmatch(text) else -1 for text in texts.to_pylist())
        return np.array([number if number < END_TS else -1 for number in numbers], np.int64)


def _numpy(values: pa.Array, null: Any) -> np.ndarray[Any, Any]:
    return pc.fill_null(values, null).to_numpy(zero_copy_only=False)


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


@dataclass(frozen=True, eq=False)
class Flat:
    """Objects whose values are not nested."""

    ends: bytes
    """The bytes that a value can end with."""
    kinds: pa.Array
    """The types of values in DuckDB."""
    entry: re.Pattern[bytes]
    """A usual entry behind the first quote of its name."""


_ENTRY: Final = rb'([^"\\\x00-\x1f]*)":(?:"[^"\\\x00-\x1f]*"|null%s)'
ROWS: Final = Flat(b'"l', TEXTS, re.compile(_ENTRY % b""))
NUMBERS: Final = Flat(
    b'"l0123456789', pa.array(["VARCHAR", "NULL", "BIGINT", "UBIGINT"]), re.compile(_ENTRY % b"|-?[1-9][0-9]{0,17}|0")
)


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
            if not _USUAL_ROW.fullmatch(row) or not are_flat(connection, pa.array([row]), ROWS).all():
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
    sound[others] = are_flat(connection, where(rows, others), ROWS)
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


def have_known_entries(objects: pa.Array, flat: Flat, known: dict[bytes | str, int]) -> Mask:
    """Return which objects have usual entries with distinct names: this takes a fourth of the time of `are_flat` where
    entries come again and again in any order. `known` keeps, by entry, the number of its name, -1 for an unusual one.

    An object without spaces is cut at each comma before a quote. A piece that is a whole entry cannot be the part of
    one, so if all are, the object is JSON."""
    lists = pc.split_pattern(pc.binary_slice(objects, 2, -1), b',"')
    entries = lists.flatten().dictionary_encode()
    for entry in entries.dictionary.to_pylist():
        if entry not in known:
            name = flat.entry.fullmatch(entry) if _is_utf8(entry) else None
            known[entry] = -1 if name is None else known.setdefault(name[1].decode(), len(known))
    names = np.array([known[entry] for entry in entries.dictionary.to_pylist()], np.int64)[entries.indices.to_numpy()]
    sound: Mask = _numpy(pc.and_(pc.starts_with(objects, b'{"'), pc.ends_with(objects, b"}")), False).copy()
    of_list = pc.list_parent_indices(lists).to_numpy()
    sound[of_list[names < 0]] = False
    return sound & _each_differs(of_list, names, len(objects))


def _are_utf8(texts: pa.Array) -> Mask:
    """Return which texts are UTF-8; NULL counts as one."""
    try:
        texts.cast(pa.string())
    except pa.ArrowInvalid:
        return np.array([text is None or _is_utf8(text) for text in texts.to_pylist()])
    return np.ones(len(texts), bool)


def _is_utf8(text: bytes) -> bool:
    return text.decode(errors="replace").encode() == text


def _have_kinds(connection: Any, objects: pa.Array, kinds: pa.Array) -> Mask:
    statement = "SELECT TRY(json_keys(object)) AS names, TRY(json_type(object, '$.*')) AS found FROM objects"
    rows = query(connection, statement, objects=pa.table({"object": objects.cast(pa.string())})).combine_chunks()
    names, found = (column.combine_chunks() for column in rows.columns)
    return _numpy(names.is_valid(), False) & _are_different(names) & are_all(found, kinds)


def _are_different(lists: pa.Array) -> Mask:
    """Return which lists have no text twice."""
    texts = lists.flatten().dictionary_encode()
    return _each_differs(pc.list_parent_indices(lists).to_numpy(), texts.indices.to_numpy(), len(lists))


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
    places = np.frombuffer(offsets, np.int32)[: len(texts) + 1].astype(np.int64)
    return np.frombuffer(data, np.uint8), places[:-1], places[1:]
