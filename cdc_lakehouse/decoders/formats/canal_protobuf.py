"""Canal's messages in topics with flatMessage=false: a packet of entries in one value.

The value is a Packet of type MESSAGES whose body is a Messages: the number of Canal's batch and its entries, each as a
server sends it (`canal_entries`). Canal sends unacknowledged entries again; with MariaDB an entry's position may name
an earlier binlog file.

Source of the facts: messages of Canal 1.1.7.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from google.protobuf.message import DecodeError

from cdc_lakehouse.changelog.events import Message, MessageError
from cdc_lakehouse.decoders.format import Format, Redelivery, present
from cdc_lakehouse.decoders.formats import canal_entries
from cdc_lakehouse.decoders.formats.canal_json import lossy_columns
from cdc_lakehouse.sources.canal.wire import packets_pb2 as wire

_NOT_COMPRESSED: Final = (0, 1)


def decode(key: bytes | None, value: bytes | None) -> list[Message | MessageError]:
    """Decode a message of a topic: its entries in order, with an error in the place of one that cannot be used.

    Raises `MessageError` when the value holds no entries.
    """
    return [_entry(entry) for entry in _entries(present(value))]


FORMAT: Final = Format(
    name="canal-protobuf",
    make=lambda options: decode,
    trailing_zeros_cut=True,
    in_table_order=True,
    lossy_columns=lossy_columns,
    # A message has many entries, each with its own position.
    redelivery=Redelivery(messages_before=1000, stale_positions=True),
)


def _entry(entry: bytes) -> Message | MessageError:
    try:
        return canal_entries.decode_entry(entry)
    except MessageError as error:
        return error


def _entries(value: bytes) -> Sequence[bytes]:
    try:
        packet = wire.Packet.FromString(value)
        if packet.type != wire.MESSAGES:
            raise MessageError(
                f"a packet of type {int(packet.type)} instead of Canal's messages",
                advice="see what writes it: with flatMessage=true the protocol is canal-json",
            )
        if packet.compression not in _NOT_COMPRESSED:
            raise MessageError(f"a packet with compression {packet.compression}", advice="none is known to be in use")
        return wire.Messages.FromString(packet.body).messages
    except DecodeError as error:
        raise MessageError(
            f"not a packet of Canal: {error}", advice="see what writes it: with flatMessage=true it is JSON"
        ) from None
