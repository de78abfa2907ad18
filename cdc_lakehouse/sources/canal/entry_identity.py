"""Which entry an entry is, so that one that comes again is known.

Canal gives entries again after any loss: what was not acknowledged in batches that are cut otherwise, and after a
restart of the server older ones too. An entry is known by its place in the binlog. That is no order: behind MariaDB the
file's name can be stale after a rotation, and then offsets go back.

A place has one entry, but where MySQL compresses transactions: then a whole one is one event, and all its entries have
the event's place. Their `ordinal` tells them apart. It is counted from the event's first entry on; where a stream
begins in the midst of an event, its first entries are found among those that are known, by their content.

GTIDs are not part of it: Canal sends them only where it is told to, and the place is as sure for one MySQL server.
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
    """An entry with its place: text that is the same whenever the entry comes. `event` is None for bytes that are no
    entry, which are their own place; `time_ms` is when the source executed it, None where that is not said."""

    value: bytes
    place: str
    event: Event | None
    entry_type: int
    time_ms: int | None

    @property
    def digest(self) -> str:
        """16 hexadecimal digits of the content."""
        return hashlib.blake2b(self.value, digest_size=8).hexdigest()

    def key(self, ordinal: int) -> bytes:
        """What `records` keeps: the place, the ordinal, the digest, as a list in JSON."""
        return f'{self.place[:-1]},{ordinal},"{self.digest}"]'.encode()


def placed(value: bytes) -> PlacedEntry:
    """An entry's bytes with the place that its header says."""
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
    """Entries that are kept already: by place their digests, by ordinal."""

    by_place: dict[str, dict[int, str]] = field(default_factory=dict[str, dict[int, str]])
    begun: set[Event] = field(default_factory=set[Event])
    """Events that a transaction begins with."""

    @classmethod
    def of(cls, keys: Iterable[bytes]) -> KnownEntries:
        """From keys as `PlacedEntry.key` makes them."""
        known = cls()
        for key in keys:
            place, ordinal, digest = key.decode().rsplit(",", 2)
            known.by_place.setdefault(f"{place}]", {})[int(ordinal)] = digest[1:-2]
            parts = json.loads(f"{place}]")
            if len(parts) > 1 and parts[4] == wire.TRANSACTION_BEGIN:
                known.begun.add((parts[1], parts[2]))
        return known

    def holds(self, place: str, ordinal: int) -> bool:
        """Whether the entry with this ordinal at this place is known."""
        return ordinal in self.by_place.get(place, ())

    def add(self, entry: PlacedEntry, ordinal: int) -> None:
        """Know an entry from now on."""
        self.by_place.setdefault(entry.place, {})[ordinal] = entry.digest
        if entry.entry_type == wire.TRANSACTION_BEGIN and entry.event is not None:
            self.begun.add(entry.event)


class EntryStream:
    """Entries as connections give them, one after the other; each connection gives its own in the log's order."""

    def __init__(self) -> None:
        self._connection: int | None = None
        self._event: Event | None = None
        self._cut = False
        """The event may have begun before the connection did."""
        self._next: dict[str, int] = {}

    def new(
        self, connection: int, entries: Iterable[PlacedEntry], known: KnownEntries
    ) -> Iterator[tuple[PlacedEntry, bytes]]:
        """The entries that are not known, with their keys. They are added to the known ones."""
        for entry in entries:
            ordinal = self._ordinal(connection, entry, known)
            if not known.holds(entry.place, ordinal):
                known.add(entry, ordinal)
                yield entry, entry.key(ordinal)

    def _ordinal(self, connection: int, entry: PlacedEntry, known: KnownEntries) -> int:
        if entry.event is None:
            return 0
        is_first = connection != self._connection
        if is_first or entry.event != self._event:
            self._connection, self._event, self._next = connection, entry.event, {}
            self._cut = is_first and entry.entry_type != wire.TRANSACTION_BEGIN
        ordinal = self._next.get(entry.place)
        if ordinal is None:
            ordinal = _first_of_cut(entry, known) if self._cut else 0
        self._next[entry.place] = ordinal + 1
        return ordinal


def _first_of_cut(entry: PlacedEntry, known: KnownEntries) -> int:
    """The ordinal of the first entry of an event that may have begun before the connection did.

    A server that has not been restarted gives an entry again with the bytes that it had. A restarted one begins with
    whole transactions, and what it says of columns may be other than before."""
    landed = known.by_place.get(entry.place, {})
    same = [ordinal for ordinal, digest in landed.items() if digest == entry.digest]
    if same:
        return min(same)
    return max(landed, default=-1) + 1 if entry.event in known.begun else 0
