"""Land the entries of a Canal server in `records`, each once however often it is delivered.

An entry is a record of partition 0 of a topic with the name of the destination; its offset is a sequence number, its
timestamp the time of its execution, and its key identifies it (`sources.canal.positions`). One commit holds the
entries of a round and the position after them. Redelivered entries have the same times as before, so the known ones of
a round are found by reading the keys of records with these times."""

from __future__ import annotations

import datetime
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Final

from pyiceberg.expressions import AlwaysFalse, BooleanExpression, Or
from pyiceberg.table import Table

from cdc_lakehouse.config import FeedConfig
from cdc_lakehouse.lake.catalog import Lake
from cdc_lakehouse.lake.names import CANAL_POSITION, CANAL_REPEATS
from cdc_lakehouse.lake.tables.canal_positions import STUCK
from cdc_lakehouse.lake.tables.landed_offsets import LandedBatch, LandedSegment, LandedState, state_of
from cdc_lakehouse.lake.tables.records import RecordCommits, RecordRows, RecordWriter, offsets_summary
from cdc_lakehouse.lake.tables.small_table import between, missing
from cdc_lakehouse.sources.canal.client import Round
from cdc_lakehouse.sources.canal.positions import EntryStream, KnownEntries, PlacedEntry
from cdc_lakehouse.sources.record_log import LogPartition, Messages, OffsetRange, Pending

_AT_ONCE: Final = 10_000
_CREATE_TIME: Final = 1
_LAST_MS: Final = 253_370_764_800_000
"""Records have no timestamp from the year 9999 on."""

_Landing = tuple[PlacedEntry, bytes]
"""An entry and its key."""


class EntryRecords:
    """The records that one run lands from a Canal server: a batch of one segment, which grows with each round."""

    def __init__(self, lake: Lake, feed: FeedConfig, batch: int) -> None:
        """`batch` must be above all earlier numbers."""
        self._lake = lake
        self._source = feed.canal
        self._partition = LogPartition(feed.canal.destination, 0)
        self._commits = RecordCommits(lake, feed.name)
        self._stream = EntryStream()
        self._state = state_of(self._commits.load())
        self.batch = LandedBatch(batch, ())

    def append(self, taken: Round) -> int:
        """Land the entries of a round that have not landed yet, in one commit, or none when nothing is new. Return the
        number of new entries.

        Raises `ConcurrentRunError` when another run has landed something meanwhile."""
        table = self._commits.load()
        if state_of(table) != self._state:
            raise self._commits.too_late()
        known = KnownEntries.of(_keys(table, taken.entries))
        new = list(self._stream.new(taken.connection, taken.entries, known))
        if not new:
            if table is not None and taken.entries and taken.batches:
                self._count_repeat(table, taken.entries[-1])
            return 0
        table = table or self._commits.create()
        start = self._state.landed.end(self._partition) or 0
        files, dates = self._write(RecordWriter.of(table, self._lake), new, start)
        self._commit(table, new, start, files, dates)
        return len(new)

    def _count_repeat(self, table: Table, last: PlacedEntry) -> None:
        """Count that the entry which landed last came again, up to the number that shows a server to be stuck."""
        repeats = int(table.properties.get(CANAL_REPEATS, "0"))
        if repeats < STUCK and table.properties.get(CANAL_POSITION, "").startswith(f"{last.place[:-1]},"):
            properties = {CANAL_REPEATS: str(repeats + 1)}
            self._commits.commit(
                table, self._state, properties, [], offsets_summary(LandedBatch(self.batch.number, ()))
            )

    def _write(self, writer: RecordWriter, new: Sequence[_Landing], start: int) -> tuple[list[str], set[str]]:
        """Write new entries; return the files, and the feed dates in them."""
        first_of_run = self.batch.segments[0].start if self.batch.segments else start
        whole = OffsetRange(self._partition, first_of_run, start + len(new), 0)
        rows = RecordRows(self._source.time_zone, self._source.date_separator, self.batch.number)
        dates: set[str] = set()
        with writer.files(f"batch-{self.batch.number}-{uuid.uuid4()}") as files:
            for first in range(0, len(new), _AT_ONCE):
                for date, batch in rows.of(_messages(whole, new[first : first + _AT_ONCE], start + first)):
                    files.add(date, batch)
                    if date is not None:
                        dates.add(date)
        return files.written, dates

    def _commit(self, table: Table, new: Sequence[_Landing], start: int, files: Sequence[str], dates: set[str]) -> None:
        end, size = start + len(new), sum(len(entry.value) + len(key) for entry, key in new)
        name = OffsetRange(self._partition, start, end, 0).segment
        landed = LandedSegment(name, self._partition, start, end, len(new), size, tuple(sorted(dates)))
        whole = _joined(self.batch.segments[0], landed) if self.batch.segments else landed
        batch = LandedBatch(self.batch.number, (whole,))
        after: LandedState = self._state.after(Pending({self._partition: (start, end)}, {}, ()), batch)
        properties = {**after.as_properties(), CANAL_POSITION: new[-1][1].decode(), CANAL_REPEATS: "0"}
        summary = offsets_summary(LandedBatch(batch.number, (landed,)))
        self._commits.commit(table, self._state, properties, files, summary)
        self._state, self.batch = after, batch


def _joined(one: LandedSegment, next_one: LandedSegment) -> LandedSegment:
    return replace(
        one,
        end=next_one.end,
        records=one.records + next_one.records,
        bytes=one.bytes + next_one.bytes,
        dates=tuple(sorted({*one.dates, *next_one.dates})),
    )


def _messages(whole: OffsetRange, new: Sequence[_Landing], start: int) -> Messages:
    return Messages(
        whole,
        list(range(start, start + len(new))),
        [(0, 0) if entry.time_ms is None else (_CREATE_TIME, entry.time_ms) for entry, _ in new],
        [key for _, key in new],
        [entry.value for entry, _ in new],
        [None] * len(new),
    )


def _keys(table: Table | None, entries: Sequence[PlacedEntry]) -> Iterable[bytes]:
    """Yield the keys of the records that have the times of these entries."""
    if table is None or not entries:
        return
    scan = table.scan(_of_their_times(entries), selected_fields=("key",))
    for batch in scan.to_arrow_batch_reader():
        yield from batch.column("key").to_pylist()


def _of_their_times(entries: Sequence[PlacedEntry]) -> BooleanExpression:
    times_ms = [entry.time_ms for entry in entries]
    times = [time for time in times_ms if time is not None and 0 <= time < _LAST_MS]
    found: BooleanExpression = AlwaysFalse()
    if times:
        found = between("timestamp", _iso(min(times)), _iso(max(times)))
    return found if len(times) == len(times_ms) else Or(found, missing("timestamp"))


def _iso(time_ms: int) -> str:
    epoch = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
    return (epoch + datetime.timedelta(milliseconds=time_ms)).isoformat()
