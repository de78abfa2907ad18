"""Vectorised reading of Canal's flat JSON messages, and of similar ones.

Most messages have one row, a time and nothing unusual. DuckDB reads those in a fraction of the time that Python needs
to process each value. Its JSON parser accepts slightly more than JSON: a comma before a bracket, and words for
infinity; of a duplicate name DuckDB takes the first, so a message with one is left to the decoder.
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
from cdc_lakehouse.decoders.arrow import TEXTS, are_all, pc
from cdc_lakehouse.decoders.messages.canal_event_types import OPS
from cdc_lakehouse.decoders.messages.format import RowShape, UsualRows
from cdc_lakehouse.decoders.messages.json_object import key_of, types_of, unique
from cdc_lakehouse.duckdb_sql import query

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
        if self.merged:
            places += ["/old", "/gtid"]
        time, image, second, old, second_old, *others = (
            f"part[{number}]" for number in range(len(common) + 1, len(places) + 1)
        )
        kind = f"part[{_SHAPE.index('type') + 1}]"
        more = f"{second} IS NOT NULL OR ({kind} = '\"UPDATE\"' AND {second_old} IS NOT NULL)"
        if self.merged:
            olds, gtid = others
            nothing = f"coalesce({olds}, 'null') IN ('null', '[]', '[null]')"
            text = f"(coalesce({gtid}, 'null') = 'null' OR starts_with({gtid}, '\"'))"
            row = f"({kind} = '\"UPDATE\"' AND coalesce(starts_with({old}, '{{'), false))"
            more = f"{more} OR NOT {text} OR NOT ({nothing} OR {row})"
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
