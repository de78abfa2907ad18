"""Binlogs as Canal tells them, made up: entries that can be told apart by their numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st

from tests.boundaries.sources import entries_pb2 as wire

T0_MS = 1_780_000_000_000
_HIGHEST = 10_000_000


@dataclass(frozen=True)
class Binlog:
    """`entries` are in order, `starts` where a transaction begins: there a server begins that is started again.
    `compressed` are the numbers of entries whose transaction is one event."""

    entries: tuple[bytes, ...]
    starts: tuple[int, ...]
    compressed: frozenset[int]

    def told_anew(self, value: bytes) -> bytes:
        """As a server that was started again may tell an entry: by columns that the table has meanwhile. Those of
        one event are told apart by what they say, so they say the same."""
        if number_of(value) in self.compressed:
            return value
        entry = wire.Entry.FromString(value)
        change = wire.RowChange.FromString(entry.store_value)
        change.sql += "/anew"
        entry.store_value = change.SerializeToString()
        return entry.SerializeToString()


def number_of(value: bytes) -> int:
    return int(wire.RowChange.FromString(wire.Entry.FromString(value).store_value).sql.split("/")[0])


def binlog_of(shape: Sequence[dict[str, Any]]) -> Binlog:
    """Of transactions: `rows` of them, what `kind` of source wrote them, seconds since the one before, a new file
    (whose name MariaDB does not tell at once)."""
    entries: list[bytes] = []
    starts: list[int] = []
    compressed: set[int] = set()
    file, offset, time = 1, _HIGHEST, T0_MS

    def add(kind: wire.EntryType, event: wire.EventType | None, table: str = "") -> None:
        header = wire.Header(
            logfile_name=f"bin.{file:06}", logfile_offset=offset, server_id=1, execute_time=time, schema_name="d",
            table_name=table, event_length=50,
        )  # fmt: skip
        if event is not None:
            header.event_type = event
        content = wire.RowChange(sql=str(len(entries))).SerializeToString()
        entries.append(wire.Entry(header=header, entry_type=kind, store_value=content).SerializeToString())

    for number, each in enumerate(shape):
        kind, rows = each["kind"], each["rows"]
        time += 1000 * each["seconds"]
        if each["rotated"]:
            # To where nothing was, whatever the file is called.
            file, offset = file + (kind != "mariadb"), _HIGHEST - 100_000 * (1 + number)
        starts.append(len(entries))
        if kind == "ddl":
            add(wire.ROW_DATA, wire.ALTER, "t")
            offset += 100
            continue
        step = 0 if kind == "compressed" else 50
        first = len(entries)
        if kind != "mariadb":
            add(wire.TRANSACTION_BEGIN, None)
            offset += step
        for row in range(rows):
            add(wire.ROW_DATA, wire.UPDATE, "tu"[row % 2])
            offset += step
        add(wire.TRANSACTION_END, None)
        offset += 60
        if kind == "compressed":
            compressed.update(range(first, len(entries)))
    return Binlog(tuple(entries), tuple(starts), frozenset(compressed))


binlogs = st.lists(
    st.fixed_dictionaries({
        "kind": st.sampled_from(["mysql", "mariadb", "compressed", "ddl"]),
        "rows": st.integers(1, 6),
        "seconds": st.sampled_from([0, 0, 1, 30, 100_000]),
        "rotated": st.booleans(),
    }),
    min_size=1,
    max_size=8,
).map(binlog_of)  # fmt: skip
