"""What the messages of a partition say together: halves of an update become one, what is sent again is left out.

For that a batch is read with the messages that came before it, as many as `messages_before` says. They are in the lake,
so nothing has to be kept from batch to batch, and a batch that is decoded again gives the same."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from cdc_lakehouse.changelog.messages import Message, MessageError
from cdc_lakehouse.decoders.messages import dts_avro, shareplex_json
from cdc_lakehouse.decoders.resent import WINDOW, Resent

_BEFORE: Final[Mapping[str, int]] = {dts_avro.FORMAT: WINDOW, shareplex_json.FORMAT: WINDOW}


def messages_before(format_name: str) -> int:
    """How many offsets before a batch are read with it."""
    return _BEFORE.get(format_name, 0)


class PartitionOrder:
    """The messages of one partition and batch, in order. `left_out` counts those that had come before."""

    def __init__(self, format_name: str) -> None:
        # An operation of Shareplex has a number of its own, rows of one event of a binlog have one place.
        self._resent = Resent(share_places=format_name == dts_avro.FORMAT) if format_name in _BEFORE else None
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
