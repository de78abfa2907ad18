"""TiCDC's Canal-JSON in topics: Canal's flat messages, with TiDB's extension.

    {…, "type":"UPDATE", "data":[{…}], "old":[{…}], "_tidb":{"commitTs":…}}
    {…, "type":"TIDB_WATERMARK", "_tidb":{"watermarkTs":…}}

The extension has the commit-ts, which is the order; it is there with enable-tidb-extension alone. A message that was
too large has only its handle key (`onlyHandleKey`), or says where the whole one lies (`claimCheckLocation`). TiCDC
prints DDL without backslash escapes.

Nearly all messages have one row, a commit-ts and nothing unusual. `PLAIN` reads those with msgspec, which takes a fifth
of the time that it takes to look at each value in Python.

Source of the facts: TiCDC's documentation of the Canal-JSON protocol."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final, Literal, cast

import msgspec

from cdc_lakehouse.changelog.events import Message, MessageError, Origin, RowChange, Watermark
from cdc_lakehouse.config import KafkaSource, StorageConfig
from cdc_lakehouse.decoders.messages.canal_json import message_of
from cdc_lakehouse.decoders.messages.format import (
    MAX_BYTES,
    Decode,
    Format,
    Options,
    PlainReader,
    PlainRow,
    Row,
)
from cdc_lakehouse.decoders.messages.json_object import JsonObject, parse, utf8
from cdc_lakehouse.errors import SourceError
from cdc_lakehouse.sources.kafka.claim_checks import read_claim_check

_WATERMARK: Final = "TIDB_WATERMARK"
LIMIT_TS: Final = 1 << 62
"""Timestamps (TSO) are below it, by far."""


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


def _plain_row(value: bytes) -> PlainRow | None:
    if len(value) > MAX_BYTES or b"``" in value or (b"\\u" in value and _may_be_surrogate(value)):
        return None
    try:
        message = _message.decode(value)
        if not value.isascii():
            value.decode("utf-8")  # Parts that are not asked for are not looked at above.
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    extension, data, old = message.extension, message.data, message.old
    if (
        len(data) != 1
        or not data[0]
        or message.is_ddl is True
        or extension.only_handle_key
        or extension.claim_check
        or not 0 < extension.commit_ts < LIMIT_TS
    ):
        return None
    row, shape = data[0], (bytes(message.types), bytes(message.key))
    match message.type:
        case "INSERT":
            return PlainRow(message.database, message.table, "I", extension.commit_ts, None, row, shape)
        case "DELETE":
            return PlainRow(message.database, message.table, "D", extension.commit_ts, row, None, shape)
        case "UPDATE":
            if old and len(old) != 1:
                return None
            before: Row = old[0] if old else {}
            return PlainRow(message.database, message.table, "U", extension.commit_ts, before, row, shape)


def _types_and_key(shape: tuple[bytes, bytes]) -> tuple[dict[str, str], tuple[str, ...] | None] | None:
    try:
        types = (_types.decode(shape[0]) if shape[0] else None) or {}
        key = tuple(_key.decode(shape[1]) or ()) if shape[1] else None
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    return {name: text for name, text in types.items() if text}, key


PLAIN: Final = PlainReader(_plain_row, _types_and_key)

FORMAT: Final = Format(
    name="ticdc-canal-json",
    make=_decoder,
    options=("tidb_extension", "claims"),
    configured=_configured,
    plain_reader=lambda options: PLAIN if _has_extension(options) else None,
    watermarks=_has_extension,
    backslash_escapes=False,
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
    found = message_of(message, value)
    found = replace(found, origin=replace(found.origin, commit_ts=_timestamp(extension, "commitTs")))
    if extension.get("onlyHandleKey") and any(isinstance(part, RowChange) and part.op != "D" for part in found.parts):
        raise MessageError(
            "the message was too large and has only its handle key: its other values are nowhere in the log",
            advice="raise max-message-bytes of the changefeed; the row is whole again with its next change",
        )
    return found


def _timestamp(extension: JsonObject, name: str) -> int:
    found = extension.get(name)
    if not isinstance(found, int) or isinstance(found, bool) or not 0 < found < LIMIT_TS:
        raise MessageError(f"_tidb.{name} is not a timestamp of TiDB")
    return found


class _Extension(msgspec.Struct, gc=False):
    commit_ts: int = msgspec.field(name="commitTs")
    only_handle_key: object = msgspec.field(name="onlyHandleKey", default=None)
    claim_check: object = msgspec.field(name="claimCheckLocation", default=None)


class _Message(msgspec.Struct, gc=False):
    database: str
    table: str
    type: Literal["INSERT", "UPDATE", "DELETE"]
    data: list[Row]
    extension: _Extension = msgspec.field(name="_tidb")
    old: list[Row] | None = None
    is_ddl: object = msgspec.field(name="isDdl", default=None)
    key: msgspec.Raw = msgspec.field(name="pkNames", default=msgspec.Raw(b""))
    types: msgspec.Raw = msgspec.field(name="mysqlType", default=msgspec.Raw(b""))


_message: Final = msgspec.json.Decoder(_Message)
_types: Final = msgspec.json.Decoder(dict[str, str | None] | None)
_key: Final = msgspec.json.Decoder(list[str] | None)


def _may_be_surrogate(value: bytes) -> bool:
    """Half of a pair, or a whole one: both are rare. Other characters are escaped often: `<` is."""
    return b"\\ud" in value or b"\\uD" in value
