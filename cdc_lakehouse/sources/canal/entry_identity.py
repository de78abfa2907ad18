"""The identity of entries, by which an entry that is sent again is recognised.

Canal sends entries again after any loss: unacknowledged ones, in other batches, and after a restart of the server older
ones too. An entry is identified by its position in the binlog. That is no order: with MariaDB the file's name can be
out of date after a rotation, and then offsets go back.

A position has one entry, except where MySQL compresses transactions: then a whole transaction is one event, and all of
its entries have the event's position. Their `ordinal` distinguishes them. It counts from the event's first entry; where
a stream begins in the middle of an event, its first entries are found among the known ones by their content.

GTIDs are not part of the identity: Canal sends them only where it is configured to, and the position is as reliable for
one MySQL server.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from google.protobuf.message import DecodeError

from cdc_lakehouse.sources.canal.wire import entries_pb2 as wire

Event = tuple[str, int]
"""A binlog file and an offset in it."""


@dataclass(frozen=True, slots=True)
class PlacedEntry:
    """An entry with its position, as a text that is the same whenever the entry is sent. `event` is None for bytes that
    are no entry, which are identified by their hash; `time_ms` is the time of execution at the source (milliseconds
    since 1970), None where it is not given."""

    value: bytes
    place: str
    event: Event | None
    entry_type: int
    time_ms: int | None

    @property
    def digest(self) -> str:
        """The hash of the content, in 16 hexadecimal digits."""
        return hashlib.blake2b(self.value, digest_size=8).hexdigest()

    def key(self, ordinal: int) -> bytes:
        """Return the key that `records` keeps: the position, the ordinal and the digest, as a JSON list."""
        return f'{self.place[:-1]},{ordinal},"{self.digest}"]'.encode()


def placed(value: bytes) -> PlacedEntry:
    """Return an entry's bytes with the position in its header."""
    try:
        entry = wire.Entry.FromString(value)
    except DecodeError:
        return PlacedEntry(value, json.dumps([hashlib.sha256(value).hexdigest()]), None, 0, None)
    header = entry.header
    place = [
        header.server_id, header.logfile_name, header.logfile_offset, header.execute_time, int(entry.entry_type),
        int(header.event_type), header.schema_name, header.table_name,
    ]  # fmt: skip
    text = json.dumps(place, ensure_ascii=False, separators=(",", ":"))
    time_ms = header.execute_time if header.HasField("execute_time") else None
    return PlacedEntry(value, text, (header.logfile_name, header.logfile_offset), int(entry.entry_type), time_ms)


@dataclass
class KnownEntries:
    """Entries that are stored already: the digests by position and ordinal."""

    by_place: dict[str, dict[int, str]] = field(default_factory=dict[str, dict[int, str]])
    begun: set[Event] = field(default_factory=set[Event])
    """Events that begin a transaction."""

    @classmethod
    def of(cls, keys: Iterable[bytes]) -> KnownEntries:
        """Build the entries from keys, as `PlacedEntry.key` makes them."""
        known = cls()
        for key in keys:
            place, ordinal, digest = key.decode().rsplit(",", 2)
            known.by_place.setdefault(f"{place}]", {})[int(ordinal)] = digest[1:-2]
            parts = json.loads(f"{place}]")
            if len(parts) > 1 and parts[4] == wire.TRANSACTION_BEGIN:
                known.begun.add((parts[1], parts[2]))
        return known

    def holds(self, place: str, ordinal: int) -> bool:
        """Whether the entry with this ordinal at this position is known."""
        return ordinal in self.by_place.get(place, ())

    def add(self, entry: PlacedEntry, ordinal: int) -> None:
        """Add an entry to the known ones."""
        self.by_place.setdefault(entry.place, {})[ordinal] = entry.digest
        if entry.entry_type == wire.TRANSACTION_BEGIN and entry.event is not None:
            self.begun.add(entry.event)


class EntryStream:
    """Entries of one connection after the other; each connection delivers its own in the log's order."""

    def __init__(self) -> None:
        self._connection: int | None = None
        self._event: Event | None = None
        self._cut = False
        """Whether the event may have begun before the connection did."""
        self._begun = False
        """Whether the event is a whole transaction."""
        self._next: dict[str, int] = {}

    def new(
        self, connection: int, entries: Iterable[PlacedEntry], known: KnownEntries
    ) -> Iterator[tuple[PlacedEntry, bytes]]:
        """Yield the entries that are not known, with their keys, and add them to the known ones."""
        for entry in entries:
            ordinal = self._ordinal(connection, entry, known)
            if not known.holds(entry.place, ordinal):
                known.add(entry, ordinal)
                yield entry, entry.key(ordinal)

    def _ordinal(self, connection: int, entry: PlacedEntry, known: KnownEntries) -> int:
        if entry.event is None:
            return 0
        is_first = connection != self._connection
        begins = entry.entry_type == wire.TRANSACTION_BEGIN
        if is_first or begins or entry.event != self._event:
            self._connection, self._event, self._next = connection, entry.event, {}
            self._cut = is_first and not begins
            self._begun = begins or entry.event in known.begun
        ordinal = self._next.get(entry.place)
        if ordinal is None:
            ordinal = _first_of_cut(entry, known) if self._cut else 0
        elif not self._begun:
            # Outside of a compressed transaction a position has one entry of a kind. A server that is stuck sends the
            # last one again and again.
            return next((n for n, digest in known.by_place[entry.place].items() if digest == entry.digest), ordinal)
        self._next[entry.place] = ordinal + 1
        return ordinal


def _first_of_cut(entry: PlacedEntry, known: KnownEntries) -> int:
    """Return the ordinal of the first entry of an event that may have begun before the connection did.

    A server that was not restarted sends an entry again with the same bytes. A restarted one begins with whole
    transactions, and its data about columns may differ from before.
    """
    landed = known.by_place.get(entry.place, {})
    same = [ordinal for ordinal, digest in landed.items() if digest == entry.digest]
    if same:
        return min(same)
    return max(landed, default=-1) + 1 if entry.event in known.begun else 0
