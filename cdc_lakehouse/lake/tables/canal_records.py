"""Land the entries of a Canal server in `records`, each once however often it is delivered.

An entry is a record of partition 0 of a topic with the name of the destination; its offset is a sequence number, its
timestamp the time of its execution, and its key identifies it (`sources.canal.positions`). One commit holds the
entries of a round and the position after them. Redelivered entries have the same times as before, so the known ones of
a round are found by reading the keys of records with these times."""

from __future__ import annotations

import contextlib
import datetime
import json
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import pyarrow as pa
from pyiceberg.table import Table

from cdc_lakehouse.changelog.events import Ddl, MessageError, RowChange
from cdc_lakehouse.config import FeedConfig
from cdc_lakehouse.decoders.formats.canal_entries import decode
from cdc_lakehouse.decoders.topic_reader import PartitionSummary
from cdc_lakehouse.errors import SourceError
from cdc_lakehouse.lake.catalog import Lake
from cdc_lakehouse.lake.files import Range, TableFiles, rows_between
from cdc_lakehouse.lake.names import CANAL_POSITION, CANAL_REPEATS
from cdc_lakehouse.lake.tables import records
from cdc_lakehouse.sources.canal.client import Round
from cdc_lakehouse.sources.canal.positions import BinlogPosition, BinlogSearch, EntryStream, PlacedEntry, ends_at
from cdc_lakehouse.sources.record_log import LogPartition, Messages, OffsetRange, Pending

_AT_ONCE: Final = 500_000
"""The number of entries whose keys are read at once."""
_VALUES_AT_ONCE: Final = 10_000
STUCK: Final = 3
"""So often the last entry comes again from a server that is stuck behind it. Once it may come after any lost connection
or killed run."""
_SHOWN: Final = 200
"""Characters of a statement."""


_ROWS_AT_ONCE: Final = 10_000
_CREATE_TIME: Final = 1


class EntryRecords(records.RecordCommits):
    """The records of a Canal server, as they are when this is made; and those that one run lands: a batch of one
    segment, which grows with each round. `batch` must be above all earlier numbers."""

    def __init__(self, lake: Lake, feed: FeedConfig, batch: int = 0) -> None:
        super().__init__(lake, feed.name)
        self._source, self._partition = feed.canal, LogPartition(feed.canal.destination, 0)
        self._table, self._stream, self.batch = self.load(), EntryStream(), records.LandedBatch(batch, ())
        self._state = records.state_of(self._table)
        self._properties = {} if self._table is None else self._table.properties

    @property
    def landed(self) -> int:
        """The number of entries that have landed."""
        return self._state.landed.end(self._partition) or 0

    @property
    def position(self) -> str | None:
        """The binlog position of the last one, as text for people; None for values that are not entries."""
        place = json.loads(self._properties.get(CANAL_POSITION, "[]"))
        if len(place) < 4:
            return None
        moment = datetime.datetime.fromtimestamp(place[3] / 1000, datetime.UTC)
        return f"{place[1]}:{place[2]} of {moment:%Y-%m-%d %H:%M:%S} UTC"

    def stuck(self) -> SourceError | None:
        """Return an error when the server sends the entry that landed last again and again, and nothing after it."""
        if int(self._properties.get(CANAL_REPEATS, "0")) < STUCK:
            return None
        value, shown = self._value(self.landed - 1), "the end of a transaction"
        with contextlib.suppress(MessageError):
            parts = () if value is None else decode(value).parts
            part = next((part for part in parts if isinstance(part, Ddl | RowChange)), None)
            if part is not None:
                shown = part.sql[:_SHOWN] if isinstance(part, Ddl) else f"a change of {part.database}.{part.table}"
        return SourceError(
            f"the Canal server is stuck after {self.position}: it sends the entry there again and again, and nothing "
            f"after it ({shown})",
            feed=self._feed,
            advice="its log says what it cannot read, such as `fetch failed by table meta` for a table that was "
            "renamed or dropped: give it a store of table histories (tsdb), or set it behind that place and load the "
            "tables again",
        )

    def find(self, sought: BinlogPosition, seed: Callable[[int], int]) -> BinlogSearch:
        """Look for a place among the entries, all of which have been decoded. `seed` is the greatest commit-ts of the
        batches before one.

        Raises `SourceError` when the log is not the one of the position."""
        search = BinlogSearch(sought)
        for start in range(0, self.landed, _AT_ONCE):
            search.add(self._pairs("key", start, min(start + _AT_ONCE, self.landed)))
            if search.beyond is not None:
                break
        before, beyond = search.values = self._value(search.before), self._value(search.beyond)
        search.reached = beyond is not None or (before is not None and ends_at(before, sought))
        search.commit_ts = self._commit_ts(search, seed) if search.reached else None
        return search

    def _commit_ts(self, search: BinlogSearch, seed: Callable[[int], int]) -> int | None:
        first = 0 if search.before is None else search.before + 1
        if search.before is not None:
            batch = self._read("batch", search.before, first).column("batch")[0].as_py()
            rows = self._read("value", 0, first, {"batch": (batch, batch)})
            # That of the last row or statement of its batch, up to it.
            *_, found = seed(batch), *commit_ts_of(rows.column("value").to_pylist(), seed(batch))
            if found:
                return found
        for start in range(first, self.landed, _VALUES_AT_ONCE):
            values = self._pairs("value", start, min(start + _VALUES_AT_ONCE, self.landed))
            found = next(commit_ts_of((value for _, value in values), 0), None)
            if found is not None:
                return found - 1
        return None

    def _read(self, column: str, start: int, end: int, between: Mapping[str, Range] | None = None) -> pa.Table:
        """Read a column of the records with offsets in [start, end), sorted by offset."""
        schema = pa.schema([("offset", pa.int64()), records.ARROW_SCHEMA.field(column)])
        within = {"offset": (start, end - 1), **(between or {})}
        parts = () if self._table is None else rows_between(self._table, schema.names, within)
        return pa.concat_tables([schema.empty_table(), *(rows.cast(schema) for rows in parts)]).sort_by("offset")

    def _pairs(self, column: str, start: int, end: int) -> Iterator[tuple[int, Any]]:
        rows = self._read(column, start, end)
        yield from zip(rows.column("offset").to_pylist(), rows.column(column).to_pylist(), strict=True)

    def _value(self, offset: int | None) -> bytes | None:
        # None where maintenance has removed it.
        return None if offset is None else next((value for _, value in self._pairs("value", offset, offset + 1)), None)

    def append(self, taken: Round) -> int:
        """Land the entries of a round that have not landed yet, in one commit, or none when nothing is new. Return the
        number of new entries.

        Raises `ConcurrentRunError` when another run has landed something meanwhile."""
        table = self.load()
        if records.state_of(table) != self._state:
            raise self.too_late()
        new = list(self._stream.new(taken.connection, taken.entries, _keys(table, taken.entries)))
        number = self.batch.number
        if not new:
            # The entry that landed last came again: that is counted up to the number that shows a server to be stuck.
            known = {} if table is None else table.properties
            repeats = int(known.get(CANAL_REPEATS, "0"))
            last = taken.entries[-1].place[:-1] if taken.entries and taken.batches else None
            if table is not None and last and repeats < STUCK and known.get(CANAL_POSITION, "").startswith(f"{last},"):
                again = {CANAL_REPEATS: str(repeats + 1)}
                self.commit(table, self._state, again, [], records.LandedBatch(number, ()))
            return 0
        table = table or self.create()
        start = self._state.landed.end(self._partition) or 0
        end, before = start + len(new), self.batch.segments[0] if self.batch.segments else None
        whole = OffsetRange(self._partition, start if before is None else before.start, end, 0)
        make = records.RecordRows(self._source.time_zone, self._source.date_separator, number)
        dates = set[str]()
        with records.record_files(TableFiles.of(table, self._lake), f"batch-{number}-{uuid.uuid4()}") as files:
            for first in range(0, len(new), _ROWS_AT_ONCE):
                some = new[first : first + _ROWS_AT_ONCE]
                offsets = list(range(start + first, start + first + len(some)))
                times = [(0, 0) if entry.time_ms is None else (_CREATE_TIME, entry.time_ms) for entry, _ in some]
                keys, values = [key for _, key in some], [entry.value for entry, _ in some]
                for date, rows in make.of(Messages(whole, offsets, times, [*keys], [*values], [None] * len(some))):
                    files.add(date, rows)
                    dates |= set() if date is None else {date}
        size = sum(len(entry.value) + len(key) for entry, key in new)
        name = OffsetRange(self._partition, start, end, 0).segment
        now = records.LandedSegment(name, self._partition, start, end, len(new), size, tuple(sorted(dates)))
        landed = records.LandedBatch(number, (now,))
        if before is not None:
            of_run = tuple(sorted({*before.dates, *dates}))
            now = replace(before, end=end, records=before.records + len(new), bytes=before.bytes + size, dates=of_run)
        batch = records.LandedBatch(number, (now,))
        after = self._state.after(Pending({self._partition: (start, end)}, {}, ()), batch)
        properties = {**after.as_properties(), CANAL_POSITION: new[-1][1].decode(), CANAL_REPEATS: "0"}
        self.commit(table, self._state, properties, files.written, landed)
        self._state, self.batch = after, batch
        return len(new)


def commit_ts_of(values: Iterable[bytes], seed: int) -> Iterator[int]:
    """Yield the commit-ts of the rows and statements of entries, as decoding assigns them after `seed`."""
    summary = PartitionSummary(seed, seed)
    for value in values:
        try:
            message = decode(value)
        except MessageError:
            continue
        for _ in (part for part in message.parts if isinstance(part, RowChange | Ddl)):
            commit_ts = summary.commit_ts(None, 0, message.origin.time_ms)
            assert commit_ts is not None, "entries have none of their own"
            yield commit_ts


def _keys(table: Table | None, entries: Sequence[PlacedEntry]) -> Iterable[bytes]:
    """Yield the keys of the records that have the times of these entries."""
    if table is None or not entries:
        return
    end = records.LAST_SECOND * 1000
    times = [each.time_ms for each in entries if each.time_ms is not None and 0 <= each.time_ms < end]
    epoch = datetime.datetime.fromtimestamp(0, datetime.UTC)
    wanted: list[Range | None] = [None] if len(times) < len(entries) else []
    if times:
        least, greatest = (epoch + datetime.timedelta(milliseconds=time) for time in (min(times), max(times)))
        wanted.append((least, greatest))
    for ends in wanted:
        for rows in rows_between(table, ["key"], {"timestamp": ends}):
            yield from rows.column("key").to_pylist()
