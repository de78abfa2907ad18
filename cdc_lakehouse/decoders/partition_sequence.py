"""What the messages of a partition say together: halves of an update become one, what is sent again is left out.

For that a batch is read with the messages that came before it, as many as `Format.messages_before` says. They are in
the lake, so nothing has to be kept from batch to batch, and a batch that is decoded again gives the same."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator
from typing import Final

from cdc_lakehouse.changelog.events import Message, MessageError, RowChange
from cdc_lakehouse.decoders.messages.format import Format, Redelivery, UpdateHalves

WINDOW: Final = 20_000
"""Messages that are remembered of a partition. What is sent again from further back is taken as new, as a whole and in
order: when it has come to its end rows are as they were, but statements are carried out twice, or hold their table."""


class PartitionSequence:
    """The messages of one partition and batch, in order. `redelivered` counts those that were left out because they
    had been delivered before."""

    def __init__(self, message_format: Format) -> None:
        redelivery = message_format.redelivery
        self._filter = None if redelivery is None else RedeliveryFilter(redelivery)
        halves = message_format.update_halves
        self._pairing = None if halves is None else UpdatePairing(halves)
        self.redelivered = 0

    def next(self, message: Message | MessageError) -> Iterator[Message | MessageError]:
        """The messages that are complete with one more message: 0, 1 or 2."""
        if self._filter is not None and isinstance(message, Message) and self._filter.is_redelivered(message):
            self.redelivered += 1
        elif self._pairing is None:
            yield message
        else:
            yield from self._pairing.next(message)


class UpdatePairing:
    """Makes one update of two halves as messages of one partition come: a change U without `after`, then one without
    `before`, of one table and one place `Origin.log_file`. `waiting` is the half that came last, if its other one is
    yet to come.

    What waits is read again together with what comes after it. So no half is kept anywhere but in the topic, and a
    restart changes nothing. The update stands where its second half was; a half whose other half is not next to it
    becomes an error."""

    def __init__(self, halves: UpdateHalves) -> None:
        self._halves = halves
        self.waiting: Message | None = None

    def next(self, message: Message | MessageError) -> Iterator[Message | MessageError]:
        """What is known with one more message: of the half that waited first."""
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
        """The update that the two are the halves of, None where they are not."""
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
    """Knows messages again that a partition has brought before: it remembers the last `window`.

    A DTS task that starts again goes back to a place of the source's log that it keeps, and sends again what it has
    sent since. Each message says its place in the log, but a place that is behind the last one need not be old: another
    server may have become the primary, whose log has other places. So nothing is left out for its place alone. What is
    left out is the same message as one before: the same place, the same time, the same rows. A message that is behind
    and *not* the same begins something else, and all that came before it is forgotten: were what follows compared with
    it, newer rows could be left out behind older ones.

    Where rows have `shared_positions`, one row can change in the same way twice at a position (0 to 1, 1 to 0, 0 to 1):
    then the n-th time is not the first one again. Where there are `stale_positions` only the GTID shows for sure that a
    message is the same."""

    def __init__(self, redelivery: Redelivery, window: int = WINDOW) -> None:
        self._window = window
        self._redelivery = redelivery
        # In the order in which they came.
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
