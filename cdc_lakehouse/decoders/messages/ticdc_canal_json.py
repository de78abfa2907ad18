"""TiCDC's Canal-JSON in topics: Canal's flat messages, with TiDB's extension.

    {…, "type":"UPDATE", "data":[{…}], "old":[{…}], "_tidb":{"commitTs":…}}
    {…, "type":"TIDB_WATERMARK", "_tidb":{"watermarkTs":…}}

The extension has the commit-ts, which is the order; it is there with enable-tidb-extension alone. A message that was
too large has only its handle key (`onlyHandleKey`), or says where the whole one lies (`claimCheckLocation`). Format:
TiCDC Canal-JSON protocol documentation."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final, cast

from cdc_lakehouse.changelog.messages import Message, MessageError, Origin, RowChange, Watermark
from cdc_lakehouse.decoders.messages import canal_flat
from cdc_lakehouse.decoders.messages.options import Decode, Options, check_names

FORMAT: Final = "ticdc-canal-json"
_WATERMARK: Final = "TIDB_WATERMARK"
LIMIT_TS: Final = 1 << 62
"""Timestamps are below it, by far."""


def decoder(options: Options) -> Decode:
    check_names(options, (), of=FORMAT)
    return decode


def decode(key: bytes | None, value: bytes | None) -> Message:
    """Raises `MessageError` for what cannot be used."""
    if value is None:
        raise MessageError(
            "the message has no value", advice="TiCDC's Canal-JSON has none without one: check the topic"
        )
    message = canal_flat.parsed(value)
    extension = message.get("_tidb")
    if not isinstance(extension, dict):
        raise MessageError(
            "the message has no commit-ts, without which the order over partitions is not known",
            advice="set enable-tidb-extension=true in the changefeed's sink URI",
        )
    extension = cast("dict[str, Any]", extension)
    if message.get("type") == _WATERMARK:
        return Message(Origin(), (Watermark(_timestamp(extension, "watermarkTs")),))
    found = canal_flat.message_of(message, value)
    found = replace(found, origin=replace(found.origin, commit_ts=_timestamp(extension, "commitTs")))
    if extension.get("claimCheckLocation"):
        raise MessageError(
            "the message is a claim check, and the file that holds the whole one is not read",
            advice="set large-message-handle-option=none in the changefeed, and raise max-message-bytes",
        )
    if extension.get("onlyHandleKey") and any(isinstance(part, RowChange) and part.op != "D" for part in found.parts):
        raise MessageError(
            "the message was too large and has only its handle key: its other values are nowhere in the log",
            advice="raise max-message-bytes of the changefeed; the row is whole again with its next change",
        )
    return found


def _timestamp(extension: dict[str, Any], name: str) -> int:
    found = extension.get(name)
    if not isinstance(found, int) or isinstance(found, bool) or not 0 < found < LIMIT_TS:
        raise MessageError(f"_tidb.{name} is not a timestamp of TiDB")
    return found
