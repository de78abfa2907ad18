"""Messages that a partition has brought before.

A DTS task that starts again goes back to a place of the source's log that it keeps, and sends again what it has sent
since. Each message says its place in the log, but a place that is behind the last one need not be old: another server
may have become the primary, whose log has other places. So nothing is left out for its place alone. What is left out is
the same message as one before: the same place, the same one in order of those at that place, the same time, the same
rows. A message that is behind and *not* the same begins something else, and all that came before it is forgotten: were
what follows compared with it, newer rows could be left out behind older ones."""

from __future__ import annotations

import hashlib
from typing import Final

from cdc_lakehouse.changelog.messages import Message

WINDOW: Final = 20_000
"""So many messages are remembered. What is sent again from further back is taken as new, as a whole and in order: when
it has come to its end rows are as they were, but statements are carried out twice, or hold their table."""

Place = tuple[str, int]


class Resent:
    """The last messages of one partition."""

    def __init__(self, window: int = WINDOW) -> None:
        self._window = window
        # In the order in which they came.
        self._known: dict[bytes, None] = {}
        self._greatest: Place = ("", -1)
        self._last: Place | None = None
        self._at_place = 0

    def has_come(self, message: Message) -> bool:
        """Whether the message, which is the next one of the partition, has come before."""
        origin = message.origin
        if not message.parts:
            return False
        if origin.log_file is None or origin.log_offset is None:
            # What it comes after cannot be told.
            self._forget()
            return False
        place = (origin.log_file.zfill(20), origin.log_offset)
        self._at_place = self._at_place + 1 if place == self._last else 0
        self._last = place
        identity = _digest(place, self._at_place, message)
        if identity in self._known:
            return True
        if place < self._greatest:
            self._forget()
        self._greatest = place
        self._known[identity] = None
        if len(self._known) > self._window:
            del self._known[next(iter(self._known))]
        return False

    def _forget(self) -> None:
        self._known.clear()
        self._greatest = ("", -1)


def _digest(place: Place, number: int, message: Message) -> bytes:
    told = repr((place, number, message.origin.time_ms, message.parts))
    return hashlib.blake2b(told.encode("utf-8", "surrogatepass"), digest_size=16).digest()
