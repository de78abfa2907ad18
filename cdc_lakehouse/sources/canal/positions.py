"""Positions in the binlog, and which entries of a Canal server are before one: those are in a dump of that position.

An entry's position is the start of its event, a dump's is the end of its last event. Entries are in the order in which
they came. With MariaDB the file's name can be the previous one after a rotation: where offsets go back under one name,
the file is a later one.

Canal sends entries again after any loss: unacknowledged ones, in other batches, and after a restart of the server older
ones too. An entry is recognized by its position in the binlog. A position has one entry, except where MySQL compresses
transactions: then a whole transaction is one event, and all of its entries have the event's position. Their `ordinal`
distinguishes them. It counts from the event's first entry; where a stream begins in the middle of an event, its first
entries are found among the known ones by their content. GTIDs are no part of the identity: Canal sends them only where
it is configured to, and the position is as reliable for one MySQL server.

Binlog files have the same names on most servers, so a position alone does not show whether a dump comes from the server
that Canal reads. Where Canal follows GTIDs, an entry's header has all transactions up to it, and its own in `curtGtid`
(observed with Canal 1.1.7): what is before the dump's position is in the dump's set, what is after it is not. Every
entry has the id of the server that wrote it first: MariaDB has that in a GTID, and a database that is read directly
gives its own."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple, Self

from google.protobuf.message import DecodeError

from cdc_lakehouse.errors import SourceError
from cdc_lakehouse.sources.canal.wire import entries_pb2 as wire
from cdc_lakehouse.sources.dump.contents import DumpPosition

_NAME: Final = re.compile(r"(?P<base>.+)\.(?P<number>\d{1,18})")
_ROWS: Final = (wire.INSERT, wire.UPDATE, wire.DELETE)


class BinlogPosition(NamedTuple):
    """An offset in bytes in the binlog file `base`.`number`; among files of one base, later ones are greater."""

    base: str
    number: int
    offset: int
    file: str

    @classmethod
    def of(cls, file: str, offset: int) -> Self:
        """Parse a position. Raises `SourceError` for a name without a number."""
        match = _NAME.fullmatch(file)
        if match is None:
            said = f"{file!r} is no name of a binlog file: it does not end in a number"
            raise SourceError(said, advice="set log_bin of the database to a name, to which it adds numbers")
        return cls(match["base"], int(match["number"]), offset, file)

    def __str__(self) -> str:
        return f"{self.file}, {self.offset}"


@dataclass
class BinlogSearch:
    """Searches for the first entry after a position. Entries are added in their order, until it is found.

    `beyond`: the running offset of that entry. `before`: that of the last entry before the position. `first`, `last`:
    the positions of the first entry, and of the last one that was checked. `server_ids`: those of all entries up to
    there. `values` are the entries `before` and `beyond`.

    `reached`: whether all entries before the position have come. `commit_ts`: the corresponding commit-ts; None while
    the position is not reached, and when no row or statement has come on either side."""

    sought: BinlogPosition
    beyond: int | None = None
    before: int | None = None
    first: BinlogPosition | None = None
    last: BinlogPosition | None = None
    server_ids: set[int] = field(default_factory=set)
    values: tuple[bytes | None, bytes | None] = (None, None)
    reached: bool = False
    commit_ts: int | None = None
    _number: int = 0

    @property
    def covered(self) -> bool:
        """Whether the log begins before or at the position."""
        return self.first is not None and (self.before is not None or self.first[:3] == self.sought[:3])

    def add(self, entries: Iterable[tuple[int, bytes]]) -> None:
        """Add entries as running offsets with keys. Raises `SourceError` for a log whose files have another base
        name."""
        for offset, key in entries:
            parts = json.loads(key)
            if len(parts) < 3 or not parts[1]:
                continue  # Not an entry, or one that is nowhere in the binlog.
            here = BinlogPosition.of(parts[1], parts[2])
            self.server_ids.add(parts[0])
            if here.base != self.sought.base:
                said = f"the dump is of {self.sought} and the log has {here}: these are not files of one binlog"
                raise SourceError(said, advice="dump the database server that Canal reads")
            gone_back = self.last is not None and self.last.file == here.file and here.offset < self.last.offset
            self._number = max(here.number, self._number + gone_back)
            self.first, self.last = self.first or here, here
            if (self._number, here.offset) >= (self.sought.number, self.sought.offset):
                self.beyond = offset
                return
            self.before = offset


def ends_at(value: bytes, position: BinlogPosition) -> bool:
    """Whether an entry ends a transaction, or is a statement, exactly at a position: then nothing before it is
    missing."""
    try:
        entry = wire.Entry.FromString(value)
        of_rows = entry.entry_type == wire.ROW_DATA and wire.RowChange.FromString(entry.store_value).event_type in _ROWS
    except DecodeError:
        return False
    header = entry.header
    whole = entry.entry_type == wire.TRANSACTION_END or (entry.entry_type == wire.ROW_DATA and not of_rows)
    end = header.logfile_name, header.logfile_offset + header.event_length
    return whole and end == (position.file, position.offset)


Event = tuple[str, int]
"""A binlog file and an offset in it."""


@dataclass(frozen=True, slots=True)
class PlacedEntry:
    """An entry with its position, as a text that is the same whenever the entry is sent. `event` is None for bytes that
    are no entry, which are identified by their hash; `time_ms` is the time of execution at the source."""

    value: bytes
    place: str
    event: Event | None
    entry_type: int
    time_ms: int | None

    @property
    def digest(self) -> str:
        return hashlib.blake2b(self.value, digest_size=8).hexdigest()

    def key(self, ordinal: int) -> bytes:
        """Return the key that `records` keeps: the position, the ordinal and the digest, as a JSON list."""
        return f'{self.place[:-1]},{ordinal},"{self.digest}"]'.encode()


def placed(value: bytes) -> PlacedEntry:
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
        self, connection: int, entries: Iterable[PlacedEntry], keys: Iterable[bytes]
    ) -> Iterator[tuple[PlacedEntry, bytes]]:
        """Yield the entries that are not stored already, with their keys; `keys` are those of stored ones."""
        known: dict[str, dict[int, str]] = {}  # The digests by position and ordinal.
        begun: set[Event] = set()  # Events that begin a transaction.
        for key in keys:
            place, ordinal, digest = key.decode().rsplit(",", 2)
            known.setdefault(f"{place}]", {})[int(ordinal)] = digest[1:-2]
            parts = json.loads(f"{place}]")
            if len(parts) > 1 and parts[4] == wire.TRANSACTION_BEGIN:
                begun.add((parts[1], parts[2]))
        for entry in entries:
            digests = known.setdefault(entry.place, {})
            ordinal = self._ordinal(connection, entry, digests, begun)
            if ordinal not in digests:
                digests[ordinal] = entry.digest
                if entry.entry_type == wire.TRANSACTION_BEGIN and entry.event is not None:
                    begun.add(entry.event)
                yield entry, entry.key(ordinal)

    def _ordinal(self, connection: int, entry: PlacedEntry, digests: Mapping[int, str], begun: set[Event]) -> int:
        if entry.event is None:
            return 0
        is_first = connection != self._connection
        begins = entry.entry_type == wire.TRANSACTION_BEGIN
        if is_first or begins or entry.event != self._event:
            self._connection, self._event, self._next = connection, entry.event, {}
            self._cut = is_first and not begins
            self._begun = begins or entry.event in begun
        ordinal = self._next.get(entry.place)
        if ordinal is None:
            ordinal = 0
            if self._cut:
                # A server that was not restarted sends an entry again with the same bytes. A restarted one begins with
                # whole transactions, and its data about columns may differ from before.
                following = max(digests, default=-1) + 1 if entry.event in begun else 0
                ordinal = min((n for n, digest in digests.items() if digest == entry.digest), default=following)
        elif not self._begun:
            # Outside of a compressed transaction a position has one entry of a kind. A server that is stuck sends the
            # last one again and again.
            return next((n for n, digest in digests.items() if digest == entry.digest), ordinal)
        self._next[entry.place] = ordinal + 1
        return ordinal


_OF_MARIADB: Final = re.compile(r"(?P<domain>\d+)-(?P<server>\d+)-(?P<number>\d+)")
_OWN: Final = "curtGtid"


def contradiction(
    position: DumpPosition, before: bytes | None, beyond: bytes | None, server_ids: Iterable[int]
) -> str | None:
    """Return the evidence that a dump is of another server, as a sentence with both figures; None where there is none.
    The others are those of a `BinlogSearch`; `server_ids` are only used where `beyond` is known."""
    executed = position.gtid
    if executed is not None:
        log = _header(before).gtid
        if not _is_within(log, executed):
            return f"the dump has the transactions {executed}, and the log has before its place {log}"
        own = next((pair.value for pair in _header(beyond).props if pair.key == _OWN), "")
        if own and _is_within(own, executed):
            return f"the dump has the transactions {executed}, and the log has behind its place {own}"
    of_gtid = filter(None, map(_OF_MARIADB.fullmatch, (executed or "").split(",")))
    known = {position.server_id} if position.server_id is not None else {int(match["server"]) for match in of_gtid}
    seen = set(server_ids)
    if beyond is not None and known and seen and known.isdisjoint(seen):
        dumped, logged = (", ".join(map(str, sorted(ids))) for ids in (known, seen))
        return f"the dump is of the server_id {dumped}, and the log of {logged}"
    return None


def _header(entry: bytes | None) -> wire.Header:
    try:
        return wire.Entry.FromString(entry or b"").header
    except DecodeError:
        return wire.Header()


def _is_within(some: str, executed: str) -> bool:
    of = _transactions(executed)
    return all(
        any(first <= start and end <= last for first, last in of.get(source, ()))
        for source, numbers in _transactions(some).items()
        for start, end in numbers
    )


def _transactions(text: str) -> Mapping[str, list[tuple[int, int]]]:
    """Return the first and last numbers of each source's ranges: of a server's UUID, with its tag if it has one; of a
    domain of MariaDB, whose numbers rise. Servers print ranges that do not adjoin."""
    found: dict[str, list[tuple[int, int]]] = {}
    for each in filter(None, "".join(text.split()).lower().split(",")):
        if match := _OF_MARIADB.fullmatch(each):
            found.setdefault(match["domain"], []).append((1, int(match["number"])))
            continue
        uuid, *parts = each.split(":")
        source = uuid
        for part in parts:
            start, _, end = part.partition("-")
            if start.isdecimal() and (not end or end.isdecimal()):
                found.setdefault(source, []).append((int(start), int(end or start)))
            else:
                source = f"{uuid}:{part}"
    return found
