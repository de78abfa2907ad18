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

WINDOW: Final = 20_000
"""So many messages are remembered. What is sent again from further back is taken as new, as a whole and in order: when
it has come to its end rows are as they were, but statements are carried out twice, or hold their table."""

Place = tuple[str, int]


class Resent:
    """The last messages of one partition. Where rows `share_places`, one row can change in the same way twice at a
    place (0 to 1, 1 to 0, 0 to 1): then the n-th time is not the first one again. Where there are `stale_places` (Canal
    gives those of MariaDB the name of an earlier file) only the GTID tells for sure that a message is the same."""

    def __init__(self, window: int = WINDOW, *, share_places: bool = True, stale_places: bool = False) -> None:
        self._window = window
        self._share_places = share_places
        self._stale_places = stale_places
        # In the order in which they came.
        self._known: dict[bytes, None] = {}
        self._greatest: Place = ("", -1)
        self._last: Place | None = None
        self._at_place: Counter[bytes] = Counter()

    def has_come(self, message: Message) -> bool:
        """Whether the message, which is the next one of the partition, has come before."""
        origin = message.origin
        if not message.parts:
            return False
        if origin.log_file is None or origin.log_offset is None or (self._stale_places and not origin.gtid):
            # What it comes after cannot be told.
            self._forget()
            return False
        place = (origin.log_file.zfill(20), origin.log_offset)
        identity = self._identity(place, message)
        if identity in self._known:
            return True
        if place < self._greatest:
            self._forget()
        self._greatest = place
        self._known[identity] = None
        if len(self._known) > self._window:
            del self._known[next(iter(self._known))]
        return False

    def _identity(self, place: Place, message: Message) -> bytes:
        told = repr((place, message.origin.time_ms, message.origin.gtid, message.parts))
        digest = hashlib.blake2b(told.encode("utf-8", "surrogatepass"), digest_size=16).digest()
        if place != self._last:
            self._last = place
            self._at_place.clear()
        if not self._share_places or not isinstance(message.parts[0], RowChange):
            return digest
        self._at_place[digest] += 1
        return digest + self._at_place[digest].to_bytes(8)

    def _forget(self) -> None:
        self._known.clear()
        self._greatest = ("", -1)
