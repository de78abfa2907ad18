"""Joining and filtering of a partition's messages: two halves of an update become one, redelivered messages are left
out.

For this, a batch is read together with the messages before it, as many as `Format.messages_before` says. They are in
the lake, so no state is kept between batches, and a batch that is decoded again gives the same result.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator
from typing import Final

from cdc_lakehouse.changelog.events import Message, MessageError, RowChange
from cdc_lakehouse.decoders.messages.format import Format, Redelivery, UpdateHalves

WINDOW: Final = 20_000
"""The number of messages of a partition that are remembered. A redelivery from further back is treated as new, as a
whole and in order: at its end the rows are as before, but statements are applied twice, or hold their table."""


class PartitionSequence:
    """The messages of one partition and batch, in order. `redelivered` counts those that were left out because they had
    been delivered before."""

    def __init__(self, message_format: Format) -> None:
        redelivery = message_format.redelivery
        self._filter = None if redelivery is None else RedeliveryFilter(redelivery)
        halves = message_format.update_halves
        self._pairing = None if halves is None else UpdatePairing(halves)
        self.redelivered = 0

    def next(self, message: Message | MessageError) -> Iterator[Message | MessageError]:
        """Yield the messages that are complete after one more message: 0, 1 or 2."""
        if self._filter is not None and isinstance(message, Message) and self._filter.is_redelivered(message):
            self.redelivered += 1
        elif self._pairing is None:
            yield message
        else:
            yield from self._pairing.next(message)


class UpdatePairing:
    """Joins the two halves of an update, as messages of one partition come: a change U without `after`, then one
    without `before`, of one table and one `Origin.log_file`. `waiting` is the last half, if its other half has not come
    yet.

    A waiting half is read again together with what comes after it. So no half is kept anywhere except in the topic, and
    a restart changes nothing. The update takes the position of its second half; a half that is not next to its other
    half becomes an error.
    """

    def __init__(self, halves: UpdateHalves) -> None:
        self._halves = halves
        self.waiting: Message | None = None

    def next(self, message: Message | MessageError) -> Iterator[Message | MessageError]:
        """Yield the messages that are determined by one more message, that of the waiting half first."""
        half, self.waiting = self.waiting, None
        whole = None if half is None else self._joined(half, message)
        if half is not None:
            yield self._alone(half, is_first=True) if whole is None else Message(half.origin)
        match whole or message:
            case Message(parts=(RowChange(op="U", after=None),)) as first:
                self.waiting = first
            case Message(parts=(RowChange(op="U", before=None),)) as second:
                yield self._alone(second, is_first=False)
            case other:
                yield other

    def _joined(self, first: Message, second: Message | MessageError) -> Message | None:
        """Return the update of these two halves, None where they do not belong together."""
        match first, second:
            case (
                Message(parts=(RowChange(before=dict() as before) as old,)),
                Message(parts=(RowChange(op="U", before=None, after=dict() as after) as new,)),
            ):
                table, place = (new.database, new.table), second.origin.log_file
                change = RowChange(*table, "U", before, self._halves.join(after, before))
                same = (old.database, old.table, first.origin.log_file) == (*table, place)
                return Message(second.origin, (change,)) if same else None
            case _:
                return None

    def _alone(self, half: Message, *, is_first: bool) -> MessageError:
        table = next((part.database, part.table) for part in half.parts if isinstance(part, RowChange))
        return self._halves.alone(table, is_first)


class RedeliveryFilter:
    """Recognises messages that a partition has delivered before: it remembers the last `window`.

    A DTS task that restarts goes back to a saved position of the source's log, and sends again what it has sent since.
    Each message has its position in the log, but a position before the last one need not be old: another server may
    have become the primary, whose log has other positions. So nothing is left out only because of its position. A
    message is left out if it equals an earlier one: the same position, the same time, the same rows. A message at an
    earlier position that is *not* equal begins something else, and everything before it is forgotten: otherwise newer
    rows could be left out because they equal older ones.

    With `shared_positions`, one row can change in the same way twice at a position (0 to 1, 1 to 0, 0 to 1): then the
    n-th time differs from the first. With `stale_positions`, only the GTID proves that two messages are the same.
    """

    def __init__(self, redelivery: Redelivery, window: int = WINDOW) -> None:
        self._window = window
        self._redelivery = redelivery
        # In the order of arrival.
        self._known: dict[bytes, None] = {}
        self._greatest = ("", -1)
        self._last: tuple[str, int] | None = None
        self._at_position: Counter[bytes] = Counter()

    def is_redelivered(self, message: Message) -> bool:
        """Whether the message, which is the next one of the partition, was delivered before."""
        origin = message.origin
        if not message.parts:
            return False
        if (
            origin.log_file is None
            or origin.log_offset is None
            or (self._redelivery.stale_positions and not origin.gtid)
        ):
            # Without a position it cannot be compared with others.
            self._forget()
            return False
        position = (origin.log_file.zfill(20), origin.log_offset)
        identity = self._identity(position, message)
        if identity in self._known:
            return True
        if position < self._greatest:
            self._forget()
        self._greatest = position
        self._known[identity] = None
        if len(self._known) > self._window:
            del self._known[next(iter(self._known))]
        return False

    def _identity(self, position: tuple[str, int], message: Message) -> bytes:
        content = repr((position, message.origin.time_ms, message.origin.gtid, message.parts))
        digest = hashlib.blake2b(content.encode("utf-8", "surrogatepass"), digest_size=16).digest()
        if position != self._last:
            self._last = position
            self._at_position.clear()
        if not self._redelivery.shared_positions or not isinstance(message.parts[0], RowChange):
            return digest
        self._at_position[digest] += 1
        return digest + self._at_position[digest].to_bytes(8)

    def _forget(self) -> None:
        self._known.clear()
        self._greatest = ("", -1)
