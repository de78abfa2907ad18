"""TiCDC's Canal-JSON as it nearly always is: one row, with a commit-ts, nothing out of the way.

Such messages are checked and read by msgspec in one go, a fifth of the time that it takes to look at each value. What
is other in any way, be it wrong or only seldom, is None here and for the whole decoder to read."""

from __future__ import annotations

from typing import Final, Literal

import msgspec

from cdc_lakehouse.decoders.messages.body import MAX_BYTES
from cdc_lakehouse.decoders.messages.ticdc_canal_json import LIMIT_TS

Row = dict[str, str | None]
Shape = tuple[bytes, bytes]


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


class PlainRow(msgspec.Struct, gc=False):
    """`shape` says, together with the columns' names, which types and key the message tells: see `told`."""

    database: str
    table: str
    op: Literal["I", "U", "D"]
    commit_ts: int
    before: Row | None
    after: Row | None
    shape: Shape


_message: Final = msgspec.json.Decoder(_Message)
_types: Final = msgspec.json.Decoder(dict[str, str | None] | None)
_key: Final = msgspec.json.Decoder(list[str] | None)


def plain_row(value: bytes) -> PlainRow | None:
    """The row, None where it takes more than this to read the message."""
    if len(value) > MAX_BYTES or b"``" in value or (b"\\u" in value and _half_of_a_pair(value)):
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


def _half_of_a_pair(value: bytes) -> bool:
    """Or a whole one, which is as seldom. Other characters are escaped often: `<` is."""
    return b"\\ud" in value or b"\\uD" in value


def told(shape: Shape) -> tuple[dict[str, str], tuple[str, ...] | None] | None:
    """The types of the columns and the key that a shape says; None for the whole decoder where it is no such."""
    try:
        types = (_types.decode(shape[0]) if shape[0] else None) or {}
        key = tuple(_key.decode(shape[1]) or ()) if shape[1] else None
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    return {name: text for name, text in types.items() if text}, key
