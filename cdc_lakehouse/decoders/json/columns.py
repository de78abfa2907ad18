"""Vectorised reading of Canal's flat JSON messages, and of similar ones.

Most messages have one row, a time and nothing unusual. DuckDB reads those in a fraction of the time that Python needs
to process each value. Its JSON parser accepts slightly more than JSON: a comma before a bracket, and words for
infinity; of a duplicate name DuckDB takes the first, so a message with one is left to the decoder.

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

_REPLACEMENTS: Final = {"\ufffd": False, "\\ufffd": True}
"""U+FFFD in the forms that JSON allows, and whether the case of the letters is ignored."""


@dataclass(frozen=True, kw_only=True)
class FlatColumns:
    """The `ColumnReader` of a format. `time` is the path of a message's commit-ts or, with `in_order`, of its time of
    execution (milliseconds since 1970). Values at the paths `unusual` must be absent or false. With `lossy`, text with
    U+FFFD is left to the decoder. With `merged`, an update may have old values or none, columns that its new row leaves
    out are unchanged, and other changes have no old values. Otherwise an update must have them."""

    time: str
    in_order: bool = False
    ops: Mapping[str, Literal["I", "U", "D"]] = field(default_factory=lambda: OPS)
    unusual: tuple[str, ...] = ()
    lossy: bool = False
    merged: bool = False

    def __call__(self, connection: Any, values: pa.Array) -> UsualRows:
        texts = _texts(values)
        if self.lossy:
            texts = _without_replacements(texts)
        found = query(connection, self._query, messages=pa.table({"value": texts})).combine_chunks()
        (shapes, times, types, old_names, old_types, before, after, has_more) = (
            column.combine_chunks() for column in found.columns
        )
        shapes = shapes.dictionary_encode()
        shape_of = shapes.indices.to_numpy()
        shapes = [self._shape(text) for text in shapes.dictionary.to_pylist()]
        ops = np.array([None if shape is None else shape.op for shape in shapes], dtype=object)[shape_of]
        numbers = _numbers(times)
        lowest, end = (-1, END_MS) if self.in_order else (BEGINNING, END_TS)
        usual = (ops != None) & (numbers > lowest) & (numbers < end)  # noqa: E711 - of each one
        usual &= ~_numpy(has_more, False) & are_all(types, TEXTS) & are_all(old_types, TEXTS)
        has_old = _numpy(pc.starts_with(before, "{"), False)
        usual &= (ops != "U") | (has_old & _each_once(old_names)) | (self.merged & _numpy(before.is_null(), False))
        places = np.flatnonzero(usual)
        if len(places) < len(usual):
            before, after = before.take(pa.array(places)), after.take(pa.array(places))
        return UsualRows(places, numbers[places], self.in_order, shape_of[places], shapes, before, after)

    @functools.cached_property
    def _query(self) -> str:
        """The query for the shape, the time, the types of the row's values, names and types of the old values, both
        images, and whether there is anything more."""
        common = [*(f"/{name}" for name in _SHAPE), *self.unusual]
        places = [*common, self.time, "$.data[0]", "$.data[1]", "$.old[0]", "$.old[1]"]
        places += ["/gtid"] * self.in_order + ["/old"] * self.merged
        time, image, second, old, second_old, *others = (
            f"part[{number}]" for number in range(len(common) + 1, len(places) + 1)
        )
        kind = f"part[{_SHAPE.index('type') + 1}]"
        more = f"{second} IS NOT NULL OR ({kind} = '\"UPDATE\"' AND {second_old} IS NOT NULL)"
        if self.in_order:
            more = f"{more} OR NOT (coalesce({others[0]}, 'null') = 'null' OR starts_with({others[0]}, '\"'))"
        if self.merged:
            nothing = f"coalesce({others[1]}, 'null') IN ('null', '[]', '[null]')"
            row = f"({kind} = '\"UPDATE\"' AND coalesce(starts_with({old}, '{{'), false))"
            more = f"{more} OR NOT ({nothing} OR {row})"
            old = f"nullif({old}, 'null')"
        objects = ["$", "$.sqlType", "$._tidb"]
        twice = " OR ".join(f"list_unique(names[{n}]) < len(names[{n}])" for n in range(1, len(objects) + 1))
        # No filter: DuckDB would read each message again. DuckDB's JSON has no line feeds.
        return f"""
            SELECT
                concat({", chr(10), ".join(f"part[{n + 1}]" for n in range(len(common)))}, chr(10),
                    to_json(json_keys(image)){", chr(10), to_json(json_keys(old))" if self.merged else ""}) AS shape,
                time,
                json_type(image, '$.*') AS types,
                to_json(json_keys(old)) AS old_names,
                json_type(old, '$.*') AS old_types,
                CASE WHEN is_delete THEN image ELSE old END AS before,
                CASE WHEN is_delete THEN NULL ELSE image END AS after,
                has_more
            FROM (
                SELECT
                    part,
                    {time} AS time,
                    {image} AS image,
                    CASE WHEN {kind} = '"UPDATE"' THEN {old} END AS old,
                    {kind} = '"DELETE"' AS is_delete,
                    {more} OR {twice} AS has_more
                FROM (
                    SELECT TRY(json_extract(value, {places})) AS part, TRY(json_keys(value, {objects})) AS names
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
            or any(found.get(place) for place in self.unusual)
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
    try:
        return values.cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array(map(_utf8_or_none, values.to_pylist()), pa.string())


def _utf8_or_none(value: bytes | None) -> str | None:
    try:
        return None if value is None else value.decode("utf-8")
    except UnicodeDecodeError:
        return None


def _without_replacements(texts: pa.Array) -> pa.Array:
    """Replace texts with U+FFFD by NULL."""
    for text, ignore_case in _REPLACEMENTS.items():
        texts = pc.if_else(pc.match_substring(texts, text, ignore_case=ignore_case), None, texts)
    return texts


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


ROWS: Final = Flat(b'"l', TEXTS)
NUMBERS: Final = Flat(b'"l0123456789', pa.array(["VARCHAR", "NULL", "BIGINT", "UBIGINT"]))


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
    import duckdb  # noqa: PLC0415 - There is a connection, so it is imported.

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
