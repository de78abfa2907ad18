"""Messages that a partition has brought before.

A DTS task that starts again goes back to a place of the source's log that it keeps, and sends again what it has sent
since. Each message says its place in the log, but a place that is behind the last one need not be old: another server
may have become the primary, whose log has other places. So nothing is left out for its place alone. What is left out
is the same message as one before: the same place, the same time, the same rows. A message that is behind and *not* the
same begins something else, and all that came before it is forgotten: were what follows compared with it, newer rows
could be left out behind older ones."""

from __future__ import annotations

import hashlib
from collections import Counter
from typing import Final

from cdc_lakehouse.changelog.events import Message, RowChange
from cdc_lakehouse.decoders.messages.format import Redelivery

WINDOW: Final = 20_000
"""Messages that are remembered of a partition. What is sent again from further back is taken as new, as a whole and in
order: when it has come to its end rows are as they were, but statements are carried out twice, or hold their table."""


class RedeliveryFilter:
    """Remembers the last `window` messages of one partition. Where rows have `shared_positions`, one row can change in
    the same way twice at a position (0 to 1, 1 to 0, 0 to 1): then the n-th time is not the first one again. Where
    there are `stale_positions` only the GTID shows for sure that a message is the same."""

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
