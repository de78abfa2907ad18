"""TiCDC's Canal-JSON in topics: Canal's flat messages, with TiDB's extension.

    {…, "type":"UPDATE", "data":[{…}], "old":[{…}], "_tidb":{"commitTs":…}}
    {…, "type":"TIDB_WATERMARK", "_tidb":{"watermarkTs":…}}

The extension has the commit-ts, which is the order; it is there with enable-tidb-extension alone. A message that was
too large has only its handle key (`onlyHandleKey`), or says where the whole one lies (`claimCheckLocation`). Format:
TiCDC Canal-JSON protocol documentation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Final, cast

from cdc_lakehouse.changelog.events import Message, MessageError, Origin, RowChange, Watermark
from cdc_lakehouse.decoders.messages import canal_flat
from cdc_lakehouse.decoders.messages.options import Decode, Options, check_names
from cdc_lakehouse.errors import SourceError

FORMAT: Final = "ticdc-canal-json"
_WATERMARK: Final = "TIDB_WATERMARK"
LIMIT_TS: Final = 1 << 62
"""Timestamps are below it, by far."""


@dataclass(frozen=True)
class _Decoder:
    """`claims` gives the whole message of a claim check by its location."""

    extension: bool
    claims: Callable[[str], bytes] | None

    def __call__(self, key: bytes | None, value: bytes | None) -> Message:
        if value is None:
            raise MessageError(
                "the message has no value", advice="TiCDC's Canal-JSON has none without one: check the topic"
            )
        message = canal_flat.parsed(value)
        if not self.extension:
            return Message(Origin()) if message.get("type") == _WATERMARK else canal_flat.message_of(message, value)
        extension = _extension(message)
        location = extension.get("claimCheckLocation")
        if not location:
            return _decoded(message, extension, value)
        found = self._claimed(location)
        whole = canal_flat.parsed(found)
        if _place(whole) != _place(message) or _extension(whole).get("claimCheckLocation"):
            raise MessageError("the claim-check file holds another message than the one that names it")
        return _decoded(whole, _extension(whole), found)

    def _claimed(self, location: object) -> bytes:
        if self.claims is None or not isinstance(location, str):
            raise MessageError(
                "the message was too large, and lies in a claim-check file",
                advice="set source.claim_check to the changefeed's claim-check-storage-uri, then decode the date again",
            )
        try:
            return self.claims(location)
        except SourceError as error:
            raise MessageError(
                f"the claim-check file with the whole message cannot be used: {error}",
                advice="restore the file, then decode the date again",
            ) from error


def decoder(options: Options) -> Decode:
    """With the options `tidb_extension` (true or false) and `claims` (see `ClaimChecks.read`)."""
    check_names(options, ("tidb_extension", "claims"), of=FORMAT)
    return _Decoder(options.get("tidb_extension") is not False, cast("Any", options.get("claims")))


decode: Final = _Decoder(extension=True, claims=None)
"""Raises `MessageError` for what cannot be used."""


def _place(message: dict[str, Any]) -> tuple[Any, ...]:
    return message.get("database"), message.get("table"), message.get("type"), _extension(message).get("commitTs")


def _extension(message: dict[str, Any]) -> dict[str, Any]:
    extension = message.get("_tidb")
    if not isinstance(extension, dict):
        raise MessageError(
            "the message has no commit-ts, without which the order over partitions is not known",
            advice="set enable-tidb-extension=true in the changefeed's sink URI; or, for a topic with one partition, "
            "tidb_extension: false in the feed's source",
        )
    return cast("dict[str, Any]", extension)


def _decoded(message: dict[str, Any], extension: dict[str, Any], value: bytes) -> Message:
    if message.get("type") == _WATERMARK:
        return Message(Origin(), (Watermark(_timestamp(extension, "watermarkTs")),))
    found = canal_flat.message_of(message, value)
    found = replace(found, origin=replace(found.origin, commit_ts=_timestamp(extension, "commitTs")))
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
