"""Positions in the binlog, and which entries of a Canal server are before one: those are in a dump of that position.

An entry's position is the start of its event, a dump's is the end of its last event. Entries are in the order in which
they came. With MariaDB the file's name can be the previous one after a rotation: where offsets go back under one name,
the file is a later one.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final, NamedTuple, Self

from google.protobuf.message import DecodeError

from cdc_lakehouse.errors import SourceError
from cdc_lakehouse.sources.canal.wire import entries_pb2 as wire

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
            raise SourceError(
                f"{file!r} is no name of a binlog file: it does not end in a number",
                advice="set log_bin of the database to a name, to which it adds numbers",
            )
        return cls(match["base"], int(match["number"]), offset, file)

    def __str__(self) -> str:
        return f"{self.file}, {self.offset}"


@dataclass
class BinlogSearch:
    """Searches for the first entry after a position. Entries are added in their order, until it is found.

    `beyond`: the running offset of that entry. `before`: that of the last entry before the position. `first`, `last`:
    the positions of the first entry, and of the last one that was checked. `server_ids`: those of all entries up to
    there.
    """

    sought: BinlogPosition
    beyond: int | None = None
    before: int | None = None
    first: BinlogPosition | None = None
    last: BinlogPosition | None = None
    server_ids: set[int] = field(default_factory=set[int])
    _number: int = 0

    def add(self, entries: Iterable[tuple[int, bytes]]) -> None:
        """Add entries as running offsets with keys, as `PlacedEntry.key` makes them.

        Raises `SourceError` for an entry of a log whose files have another base name.
        """
        for offset, key in entries:
            parts = json.loads(key)
            if len(parts) < 3 or not parts[1]:
                continue  # Not an entry, or one that is nowhere in the binlog.
            here = BinlogPosition.of(parts[1], parts[2])
            self.server_ids.add(parts[0])
            if here.base != self.sought.base:
                raise SourceError(
                    f"the dump is of {self.sought} and the log has {here}: these are not files of one binlog",
                    advice="dump the database server that Canal reads",
                )
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
    return (
        whole
        and header.logfile_name == position.file
        and (header.logfile_offset + header.event_length == position.offset)
    )
