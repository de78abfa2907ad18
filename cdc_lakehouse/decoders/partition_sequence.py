"""What the messages of a partition say together: halves of an update become one, what is sent again is left out.

For that a batch is read with the messages that came before it, as many as `messages_before` says. They are in the lake,
so nothing has to be kept from batch to batch, and a batch that is decoded again gives the same."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Final

from cdc_lakehouse.changelog.events import Message, MessageError
from cdc_lakehouse.decoders.messages import canal_protobuf, dts_avro, shareplex_json
from cdc_lakehouse.decoders.redelivery import WINDOW, Resent

_BEFORE: Final[Mapping[str, int]] = {
    # A message of Canal has many entries.
    dts_avro.FORMAT: WINDOW, shareplex_json.FORMAT: WINDOW, canal_protobuf.FORMAT: 1000,
}  # fmt: skip
_LEAST: Final = 100
_RESENT: Final[Mapping[str, Callable[[], Resent]]] = {
    # Rows of one event of a binlog have one place; an operation of Shareplex, and an entry of Canal, has its own.
    dts_avro.FORMAT: functools.partial(Resent, share_places=True),
    shareplex_json.FORMAT: functools.partial(Resent, share_places=False),
    canal_protobuf.FORMAT: functools.partial(Resent, share_places=False, stale_places=True),
}


def messages_before(format_name: str, partitions: int = 1) -> int:
    """How many offsets before a batch are read with it, in each of the partitions that it has messages of; 0 where the
    format needs none."""
    whole = _BEFORE.get(format_name, 0)
    return max(_LEAST, whole // partitions) if whole else 0


class PartitionOrder:
    """The messages of one partition and batch, in order. `left_out` counts those that had come before."""

    def __init__(self, format_name: str) -> None:
        make = _RESENT.get(format_name)
        self._resent = None if make is None else make()
        self._halves = shareplex_json.Halves() if format_name == shareplex_json.FORMAT else None
        self.left_out = 0

    def next(self, message: Message | MessageError) -> Iterator[Message | MessageError]:
        """What can be told with one more message."""
        if self._resent is not None and isinstance(message, Message) and self._resent.has_come(message):
            self.left_out += 1
        elif self._halves is None:
            yield message
        else:
            yield from self._halves.next(message)
