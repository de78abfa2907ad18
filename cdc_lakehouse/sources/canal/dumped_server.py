"""Whether a dump comes from the database server whose binlog a Canal server reads.

Binlog files have the same names on most servers, so a position alone does not show it. Where Canal follows GTIDs, an
entry's header has all transactions up to it, and its own in `curtGtid` (observed with Canal 1.1.7): what is before the
dump's position is in the dump's set, what is after it is not. Every entry has the id of the server that wrote it first:
MariaDB has that in a GTID, and a database that is read directly gives its own.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from google.protobuf.message import DecodeError

from cdc_lakehouse.sources.canal.wire import entries_pb2 as wire
from cdc_lakehouse.sources.dump.contents import DumpPosition

_OF_MARIADB: Final = re.compile(r"(?P<domain>\d+)-(?P<server>\d+)-(?P<number>\d+)")
_OWN: Final = "curtGtid"

_Numbers = list[tuple[int, int]]
"""The first and last number of each range."""


def contradiction(
    position: DumpPosition, before: bytes | None, beyond: bytes | None, server_ids: Iterable[int]
) -> str | None:
    """Return the evidence that a dump is of another server, as a sentence with both figures; None where there is none.

    `before` is the last entry before the dump's position, `beyond` the first after it, as far as they have landed.
    `server_ids` are those of all entries up to there, and only used where `beyond` is known.
    """
    executed = position.gtid
    if executed is not None:
        log = _header(before).gtid
        if not _is_within(log, executed):
            return f"the dump has the transactions {executed}, and the log has before its place {log}"
        own = next((pair.value for pair in _header(beyond).props if pair.key == _OWN), "")
        if own and _is_within(own, executed):
            return f"the dump has the transactions {executed}, and the log has behind its place {own}"
    known, seen = _server_ids(position), set(server_ids)
    if beyond is not None and known and seen and known.isdisjoint(seen):
        return f"the dump is of the server_id {_listed(known)}, and the log of {_listed(seen)}"
    return None


def _header(entry: bytes | None) -> wire.Header:
    try:
        return wire.Entry.FromString(entry or b"").header
    except DecodeError:
        return wire.Header()


def _server_ids(position: DumpPosition) -> set[int]:
    if position.server_id is not None:
        return {position.server_id}
    found = map(_OF_MARIADB.fullmatch, (position.gtid or "").split(","))
    return {int(match["server"]) for match in found if match is not None}


def _is_within(some: str, executed: str) -> bool:
    """Whether all transactions of a set are in another one."""
    of = _transactions(executed)
    return all(
        any(first <= start and end <= last for first, last in of.get(source, ()))
        for source, numbers in _transactions(some).items()
        for start, end in numbers
    )


def _transactions(text: str) -> Mapping[str, _Numbers]:
    """Return the numbers of each source: a server's UUID, with its tag if it has one; a domain of MariaDB, whose
    numbers rise."""
    found: dict[str, _Numbers] = {}
    for source, start, end in _parts("".join(text.split()).lower()):
        found.setdefault(source, []).append((start, end))
    return {source: _merged(numbers) for source, numbers in found.items()}


def _parts(text: str) -> Iterator[tuple[str, int, int]]:
    for each in filter(None, text.split(",")):
        if match := _OF_MARIADB.fullmatch(each):
            yield match["domain"], 1, int(match["number"])
            continue
        uuid, *parts = each.split(":")
        source = uuid
        for part in parts:
            start, _, end = part.partition("-")
            if start.isdecimal() and (not end or end.isdecimal()):
                yield source, int(start), int(end or start)
            else:
                source = f"{uuid}:{part}"


def _merged(numbers: _Numbers) -> _Numbers:
    """Merge ranges that overlap or adjoin."""
    merged: _Numbers = []
    for start, end in sorted(numbers):
        if merged and start <= merged[-1][1] + 1:
            merged[-1] = merged[-1][0], max(end, merged[-1][1])
        else:
            merged.append((start, end))
    return merged


def _listed(ids: Iterable[int]) -> str:
    return ", ".join(map(str, sorted(ids)))
