"""TiCDC's Canal-JSON in topics: Canal's flat messages, with TiDB's extension.

    {…, "type":"UPDATE", "data":[{…}], "old":[{…}], "_tidb":{"commitTs":…}}
    {…, "type":"TIDB_WATERMARK", "_tidb":{"watermarkTs":…}}

The extension has the commit-ts, which is the order; it is there with enable-tidb-extension alone. A message that was
too large has only its handle key (`onlyHandleKey`), or says where the whole one lies (`claimCheckLocation`). TiCDC
prints DDL without backslash escapes.

Nearly all messages have one row, a commit-ts and nothing unusual. `read_columns` reads those in DuckDB, many at once,
which takes a fraction of the time that it takes to look at each value in Python. DuckDB's JSON is a little more than
JSON: a comma before a bracket passes, and so do words for infinity; of a name of the message that comes twice, DuckDB
takes the first.

Source of the facts: TiCDC's documentation of the Canal-JSON protocol."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable, Sequence
from typing import Any, Final, Literal, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cdc_lakehouse.changelog.events import Message, MessageError, Origin, RowChange, Watermark
from cdc_lakehouse.changelog.positions import BEGINNING, END_TS, is_commit_ts
from cdc_lakehouse.config import KafkaSource, StorageConfig
from cdc_lakehouse.decoders.json_kinds import TEXTS, are_all
from cdc_lakehouse.decoders.messages.canal_json import message_of
from cdc_lakehouse.decoders.messages.format import Decode, Format, Options, RowShape, UsualRows
from cdc_lakehouse.decoders.messages.json_object import JsonObject, key_of, parse, types_of, utf8
from cdc_lakehouse.duckdb_sql import query
from cdc_lakehouse.errors import SourceError
from cdc_lakehouse.sources.kafka.claim_checks import read_claim_check

_WATERMARK: Final = "TIDB_WATERMARK"
_DIGITS: Final = re.compile("[0-9]{1,19}")
_compute: Any = pc  # What its functions take is hidden from type checkers.


Claims = Callable[[str], bytes]
"""Gives the whole message of a claim check by its location. Raises `SourceError` where it cannot."""


def _decode(has_extension: bool, claims: Claims | None, key: bytes | None, value: bytes | None) -> Message:
    if value is None:
        raise MessageError(
            "the message has no value", advice="TiCDC's Canal-JSON has none without one: check the topic"
        )
    message = parse(utf8(value), exact=False)
    if not has_extension:
        return Message(Origin()) if message.get("type") == _WATERMARK else message_of(message, value)
    extension = _extension(message)
    location = extension.get("claimCheckLocation")
    if not location:
        return _decoded(message, extension, value)
    found = _claimed(claims, location)
    whole = parse(utf8(found), exact=False)
    if _identity(whole) != _identity(message) or _extension(whole).get("claimCheckLocation"):
        raise MessageError("the claim-check file holds another message than the one that names it")
    return _decoded(whole, _extension(whole), found)


def _claimed(claims: Claims | None, location: object) -> bytes:
    if claims is None or not isinstance(location, str):
        raise MessageError(
            "the message was too large, and lies in a claim-check file",
            advice="set source.claim_check to the changefeed's claim-check-storage-uri, then decode the date again",
        )
    try:
        return claims(location)
    except SourceError as error:
        raise MessageError(
            f"the claim-check file with the whole message cannot be used: {error}",
            advice="restore the file, then decode the date again",
        ) from error


def _has_extension(options: Options) -> bool:
    return options.get("tidb_extension") is not False


def _decoder(options: Options) -> Decode:
    """Options: `tidb_extension`, true (the default) or false; `claims`, which is a `Claims`, or None."""
    return functools.partial(_decode, _has_extension(options), cast("Claims | None", options.get("claims")))


def _configured(source: KafkaSource, storage: StorageConfig) -> Options:
    claims = None if source.claim_check is None else functools.partial(read_claim_check, source.claim_check, storage)
    return {"tidb_extension": source.tidb_extension, "claims": claims}


_LONGEST: Final = 1 << 20
"""Bytes of a message that is read with others: DuckDB holds 2048 at once."""
_SHAPES_KEPT: Final = 10_000
_OPS: Final[dict[object, Literal["I", "U", "D"]]] = {"INSERT": "I", "UPDATE": "U", "DELETE": "D"}
_SHAPE: Final = {
    "database": "/database", "table": "/table", "type": "/type", "isDdl": "/isDdl",
    "onlyHandleKey": "/_tidb/onlyHandleKey", "claimCheckLocation": "/_tidb/claimCheckLocation",
    "mysqlType": "/mysqlType", "pkNames": "/pkNames",
}  # fmt: skip
"""What many messages have in common, with its place."""
_PATHS: Final = [*_SHAPE.values(), "/_tidb/commitTs", "$.data[0]", "$.data[1]", "$.old[0]", "$.old[1]"]

# No filter: it would have DuckDB read each message again. JSON of DuckDB's has no line feeds.
_QUERY: Final = f"""
    SELECT
        concat({", chr(10), ".join(f"part[{n + 1}]" for n in range(len(_SHAPE)))}, chr(10), to_json(json_keys(image)))
            AS shape,
        commit_ts,
        json_type(image, '$.*') AS types,
        to_json(json_keys(old)) AS old_names,
        json_type(old, '$.*') AS old_types,
        CASE WHEN is_delete THEN image ELSE old END AS before,
        CASE WHEN is_delete THEN NULL ELSE image END AS after,
        has_more
    FROM (
        SELECT
            part,
            part[9] AS commit_ts,
            part[10] AS image,
            CASE WHEN part[3] = '"UPDATE"' THEN part[12] END AS old,
            part[3] = '"DELETE"' AS is_delete,
            part[11] IS NOT NULL OR (part[3] = '"UPDATE"' AND part[13] IS NOT NULL) AS has_more
        FROM (SELECT TRY(json_extract(value, {_PATHS})) AS part FROM messages)
    )
"""


def read_columns(connection: Any, values: pa.Array) -> UsualRows:
    """The messages that are usual, as a `ColumnReader` gives them."""
    found = query(connection, _QUERY, messages=pa.table({"value": _texts(values)})).combine_chunks()
    (texts, timestamps, types, old_names, old_types, before, after, has_more) = (
        column.combine_chunks() for column in found.columns
    )
    texts = texts.dictionary_encode()
    shapes, shape_of = [_shape(text) for text in texts.dictionary.to_pylist()], texts.indices.to_numpy()
    ops = np.array([None if shape is None else shape.op for shape in shapes], dtype=object)[shape_of]
    commit_ts = _timestamps(timestamps)
    usual = (ops != None) & (commit_ts > BEGINNING) & (commit_ts < END_TS)  # noqa: E711 - of each one
    usual &= ~_numpy(has_more, False) & are_all(types, TEXTS) & are_all(old_types, TEXTS)
    usual &= (ops != "U") | (_numpy(_compute.starts_with(before, "{"), False) & _each_once(old_names))
    places = np.flatnonzero(usual)
    if len(places) < len(usual):
        before, after = before.take(pa.array(places)), after.take(pa.array(places))
    return UsualRows(places, commit_ts[places], shape_of[places], shapes, before, after)


def _texts(values: pa.Array) -> pa.Array:
    """None for what is left to the decoder: long messages, and those that are not UTF-8."""
    values = _compute.if_else(_compute.less_equal(_compute.binary_length(values), _LONGEST), values, None)
    try:
        return values.cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array(map(_utf8_or_none, values.to_pylist()), pa.string())


def _utf8_or_none(value: bytes | None) -> str | None:
    try:
        return None if value is None else value.decode("utf-8")
    except UnicodeDecodeError:
        return None


@functools.lru_cache(_SHAPES_KEPT)
def _shape(text: str) -> RowShape | None:
    """None where it is not of a usual message."""
    try:
        found = {
            name: json.loads(part) for name, part in zip([*_SHAPE, "names"], text.split("\n"), strict=True) if part
        }
        types, key = types_of(found), key_of(found)
    except (MessageError, ValueError, RecursionError):
        return None
    database, table, kind, names = (found.get(name) for name in ("database", "table", "type", "names"))
    op = _OPS.get(kind) if isinstance(kind, str) else None
    if (
        op is None
        or not (isinstance(database, str) and isinstance(table, str))
        or found.get("isDdl") is True
        or found.get("onlyHandleKey")
        or found.get("claimCheckLocation")
        or not names
        or not _is_each_once(names)
        or "``" in text
    ):
        return None
    return RowShape(database, table, op, tuple(names), types, key)


def _is_each_once(names: Sequence[str]) -> bool:
    return len(set(names)) == len(names)


def _each_once(names: pa.Array) -> np.ndarray[Any, Any]:
    """Whether each list of names, as JSON, has none twice, and none that Canal has changed."""
    encoded = names.dictionary_encode()
    good = [_is_each_once(json.loads(text)) and "``" not in text for text in encoded.dictionary.to_pylist()]
    return np.array([*good, True])[_numpy(encoded.indices, len(good))]


def _timestamps(texts: pa.Array) -> np.ndarray[Any, Any]:
    """Of numbers in JSON; 0 for anything else."""
    try:
        return _numpy(texts.cast(pa.int64()), 0)
    except pa.ArrowInvalid:
        # Python refuses to read a number of thousands of digits.
        numbers = (int(text) if text and _DIGITS.fullmatch(text) else 0 for text in texts.to_pylist())
        return np.array([number if number < END_TS else 0 for number in numbers], np.int64)


def _numpy(values: pa.Array, null: Any) -> np.ndarray[Any, Any]:
    return _compute.fill_null(values, null).to_numpy(zero_copy_only=False)


FORMAT: Final = Format(
    name="ticdc-canal-json",
    make=_decoder,
    options=("tidb_extension", "claims"),
    configured=_configured,
    column_reader=lambda options: read_columns if _has_extension(options) else None,
    watermarks=_has_extension,
    backslash_escapes=False,
    database="tidb",
)


def _identity(message: JsonObject) -> tuple[Any, ...]:
    return message.get("database"), message.get("table"), message.get("type"), _extension(message).get("commitTs")


def _extension(message: JsonObject) -> JsonObject:
    extension = message.get("_tidb")
    if not isinstance(extension, dict):
        raise MessageError(
            "the message has no commit-ts, without which the order over partitions is not known",
            advice="set enable-tidb-extension=true in the changefeed's sink URI; or, for a topic with one partition, "
            "tidb_extension: false in the feed's source",
        )
    return cast("JsonObject", extension)


def _decoded(message: JsonObject, extension: JsonObject, value: bytes) -> Message:
    if message.get("type") == _WATERMARK:
        return Message(Origin(), (Watermark(_timestamp(extension, "watermarkTs")),))
    found = message_of(message, value, _timestamp(extension, "commitTs"))
    if extension.get("onlyHandleKey") and any(isinstance(part, RowChange) and part.op != "D" for part in found.parts):
        raise MessageError(
            "the message was too large and has only its handle key: its other values are nowhere in the log",
            advice="raise max-message-bytes of the changefeed; the row is whole again with its next change",
        )
    return found


def _timestamp(extension: JsonObject, name: str) -> int:
    found = extension.get(name)
    if not isinstance(found, int) or isinstance(found, bool) or not is_commit_ts(found):
        raise MessageError(f"_tidb.{name} is not a timestamp of TiDB of before the year 2100")
    return found
