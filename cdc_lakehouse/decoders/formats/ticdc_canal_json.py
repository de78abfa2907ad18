"""TiCDC's Canal-JSON in topics: Canal's flat messages, with TiDB's extension.

    {…, "type":"UPDATE", "data":[{…}], "old":[{…}], "_tidb":{"commitTs":…}}
    {…, "type":"TIDB_WATERMARK", "_tidb":{"watermarkTs":…}}

The extension has the commit-ts, which gives the order; it exists only with enable-tidb-extension. A message that was
too large has only its handle key (`onlyHandleKey`), or the location of the complete one (`claimCheckLocation`). Values
may be compressed (see `compression`). TiCDC prints DDL without backslash escapes.

Source of the facts: TiCDC's documentation of the Canal-JSON protocol.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Final, cast

from cdc_lakehouse.changelog.events import Message, MessageError, Origin, RowChange, Watermark
from cdc_lakehouse.changelog.positions import is_commit_ts
from cdc_lakehouse.config import KafkaSource, StorageConfig
from cdc_lakehouse.decoders.compression import uncompressed, uncompressed_batches
from cdc_lakehouse.decoders.format import Decode, Format, Options, present
from cdc_lakehouse.decoders.formats.canal_json import message_of
from cdc_lakehouse.decoders.json.columns import FlatColumns
from cdc_lakehouse.decoders.json.object import JsonObject, parse, utf8
from cdc_lakehouse.errors import SourceError
from cdc_lakehouse.sources.kafka.client import read_claim_check

_WATERMARK: Final = "TIDB_WATERMARK"


Claims = Callable[[str], bytes]
"""Returns the complete message of a claim check by its location. Raises `SourceError` where it cannot, with the segment
where only that file is at fault."""


def _decode(has_extension: bool, claims: Claims | None, key: bytes | None, value: bytes | None) -> Message:
    value = uncompressed(present(value))
    message = parse(utf8(value), exact=False)
    if not has_extension:
        return Message(Origin()) if message.get("type") == _WATERMARK else message_of(message, value)
    extension = _extension(message)
    location = extension.get("claimCheckLocation")
    if not location:
        return _decoded(message, extension, value)
    found = uncompressed(_claimed(claims, location))
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
        if error.segment is None:
            raise  # It is of the whole store: no message is to blame.
        raise MessageError(
            f"the claim-check file with the whole message cannot be used: {error}",
            advice="restore the file, then decode the date again",
        ) from error


def _has_extension(options: Options) -> bool:
    return options.get("tidb_extension") is not False


def _decoder(options: Options) -> Decode:
    """Return the decoder for the options `tidb_extension`, true (the default) or false, and `claims`, a `Claims` or
    None."""
    return functools.partial(_decode, _has_extension(options), cast("Claims | None", options.get("claims")))


def _configured(source: KafkaSource, storage: StorageConfig) -> Options:
    claims = None if source.claim_check is None else functools.partial(read_claim_check, source.claim_check, storage)
    return {"tidb_extension": source.tidb_extension, "claims": claims}


_COLUMNS: Final = FlatColumns(
    time="/_tidb/commitTs",
    unusual=("/_tidb/onlyHandleKey", "/_tidb/claimCheckLocation"),
)


FORMAT: Final = Format(
    name="ticdc-canal-json",
    make=_decoder,
    batches=uncompressed_batches,
    options=("tidb_extension", "claims"),
    configured=_configured,
    column_reader=lambda options: _COLUMNS if _has_extension(options) else None,
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
        return Message(Origin(), (Watermark(_timestamp(extension, "watermarkTs", is_watermark=True)),))
    found = message_of(message, value, _timestamp(extension, "commitTs"))
    if extension.get("onlyHandleKey") and any(isinstance(part, RowChange) and part.op != "D" for part in found.parts):
        raise MessageError(
            "the message was too large and has only its handle key: its other values are nowhere in the log",
            advice="raise max-message-bytes of the changefeed; the row is whole again with its next change",
        )
    return found


def _timestamp(extension: JsonObject, name: str, *, is_watermark: bool = False) -> int:
    found = extension.get(name)
    if not isinstance(found, int) or isinstance(found, bool) or not is_commit_ts(found):
        raise MessageError(
            f"_tidb.{name} is not a timestamp of TiDB of before the year 2100", is_watermark=is_watermark
        )
    return found
