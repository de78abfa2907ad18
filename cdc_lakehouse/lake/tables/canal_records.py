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
from cdc_lakehouse.lake.catalog import Lake, system_table
from cdc_lakehouse.lake.files import Range, TableFiles, rows_between
from cdc_lakehouse.lake.names import CANAL_POSITION, CANAL_REPEATS
from cdc_lakehouse.lake.tables.records import (
    ARROW_SCHEMA,
    LAST_SECOND,
    LandedBatch,
    LandedSegment,
    RecordCommits,
    RecordRows,
    record_files,
    state_of,
)
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


def landed_position(lake: Lake, feed: str, destination: str) -> tuple[int, str | None]:
    """Return how many entries of a feed have landed, and the binlog position of the last one as text for people."""
    table = lake.load(system_table(feed, "records"))
    landed = state_of(table).landed.end(LogPartition(destination, 0)) or 0
    key = None if table is None else table.properties.get(CANAL_POSITION)
    place = [] if key is None else json.loads(key)
    if len(place) < 4:
        return landed, None  # Values that are not entries have no position.
    moment = datetime.datetime.fromtimestamp(place[3] / 1000, datetime.UTC)
    return landed, f"{place[1]}:{place[2]} of {moment:%Y-%m-%d %H:%M:%S} UTC"


def find_stuck(lake: Lake, feed: str, destination: str) -> SourceError | None:
    """Return an error when the server sends the entry that landed last again and again, and nothing after it."""
    table = lake.load(system_table(feed, "records"))
    if table is None or int(table.properties.get(CANAL_REPEATS, "0")) < STUCK:
        return None
    landed, position = landed_position(lake, feed, destination)
    value, shown = _value(table, landed - 1), "the end of a transaction"
    with contextlib.suppress(MessageError):
        parts = () if value is None else decode(value).parts
        part = next(part for part in (*parts, None) if part is None or isinstance(part, Ddl | RowChange))
        if part is not None:
            shown = part.sql[:_SHOWN] if isinstance(part, Ddl) else f"a change of {part.database}.{part.table}"
    return SourceError(
        f"the Canal server is stuck after {position}: it sends the entry there again and again, and nothing after it"
        f" ({shown})",
        feed=feed,
        advice="its log says what it cannot read, such as `fetch failed by table meta` for a table that was renamed or "
        "dropped: give it a store of table histories (tsdb), or set it behind that place and load the tables again",
    )


def find_binlog_position(
    lake: Lake, feed: str, destination: str, sought: BinlogPosition, seed: Callable[[int], int]
) -> BinlogSearch:
    """Look for a place among the entries of a feed, all of which have been decoded. `seed` is the greatest commit-ts of
    the batches before one.

    Raises `SourceError` when the log is not the one of the position."""
    table, search = lake.load(system_table(feed, "records")), BinlogSearch(sought)
    if table is None:
        return search
    end = state_of(table).landed.end(LogPartition(destination, 0)) or 0
    for start in range(0, end, _AT_ONCE):
        search.add(_pairs(table, "key", start, min(start + _AT_ONCE, end)))
        if search.beyond is not None:
            break
    before, beyond = search.values = _value(table, search.before), _value(table, search.beyond)
    search.reached = beyond is not None or (before is not None and ends_at(before, sought))
    search.commit_ts = _commit_ts(table, search, end, seed) if search.reached else None
    return search


def _value(table: Table, offset: int | None) -> bytes | None:
    # None where maintenance has removed it.
    return None if offset is None else next((value for _, value in _pairs(table, "value", offset, offset + 1)), None)


def _commit_ts(table: Table, search: BinlogSearch, end: int, seed: Callable[[int], int]) -> int | None:
    if search.before is not None:
        batch = _read(table, "batch", search.before, search.before + 1).column("batch")[0].as_py()
        rows = _read(table, "value", 0, search.before + 1, {"batch": (batch, batch)})
        # That of the last row or statement of its batch, up to it.
        *_, found = seed(batch), *commit_ts_of(rows.column("value").to_pylist(), seed(batch))
        if found:
            return found
    first = 0 if search.before is None else search.before + 1
    for start in range(first, end, _VALUES_AT_ONCE):
        values = _pairs(table, "value", start, min(start + _VALUES_AT_ONCE, end))
        found = next(commit_ts_of((value for _, value in values), 0), None)
        if found is not None:
            return found - 1
    return None


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


def _read(table: Table, column: str, start: int, end: int, between: Mapping[str, Range] | None = None) -> pa.Table:
    """Read a column of the records with offsets in [start, end), sorted by offset."""
    schema = pa.schema([("offset", pa.int64()), ARROW_SCHEMA.field(column)])
    parts = rows_between(table, schema.names, {"offset": (start, end - 1), **(between or {})})
    return pa.concat_tables([schema.empty_table(), *(rows.cast(schema) for rows in parts)]).sort_by("offset")


def _pairs(table: Table, column: str, start: int, end: int) -> Iterator[tuple[int, Any]]:
    rows = _read(table, column, start, end)
    yield from zip(rows.column("offset").to_pylist(), rows.column(column).to_pylist(), strict=True)


_ROWS_AT_ONCE: Final = 10_000
_CREATE_TIME: Final = 1


class EntryRecords(RecordCommits):
    """The records that one run lands from a Canal server: a batch of one segment, which grows with each round. `batch`
    must be above all earlier numbers."""

    def __init__(self, lake: Lake, feed: FeedConfig, batch: int) -> None:
        super().__init__(lake, feed.name)
        self._source, self._partition = feed.canal, LogPartition(feed.canal.destination, 0)
        self._stream, self._state, self.batch = EntryStream(), state_of(self.load()), LandedBatch(batch, ())

    def append(self, taken: Round) -> int:
        """Land the entries of a round that have not landed yet, in one commit, or none when nothing is new. Return the
        number of new entries.

        Raises `ConcurrentRunError` when another run has landed something meanwhile."""
        table = self.load()
        if state_of(table) != self._state:
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
                self.commit(table, self._state, again, [], LandedBatch(number, ()))
            return 0
        table = table or self.create()
        start = self._state.landed.end(self._partition) or 0
        end, before = start + len(new), self.batch.segments[0] if self.batch.segments else None
        whole = OffsetRange(self._partition, start if before is None else before.start, end, 0)
        make = RecordRows(self._source.time_zone, self._source.date_separator, number)
        dates = set[str]()
        with record_files(TableFiles.of(table, self._lake), f"batch-{number}-{uuid.uuid4()}") as files:
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
        now = LandedSegment(name, self._partition, start, end, len(new), size, tuple(sorted(dates)))
        landed = LandedBatch(number, (now,))
        if before is not None:
            of_run = tuple(sorted({*before.dates, *dates}))
            now = replace(before, end=end, records=before.records + len(new), bytes=before.bytes + size, dates=of_run)
        batch = LandedBatch(number, (now,))
        after = self._state.after(Pending({self._partition: (start, end)}, {}, ()), batch)
        properties = {**after.as_properties(), CANAL_POSITION: new[-1][1].decode(), CANAL_REPEATS: "0"}
        self.commit(table, self._state, properties, files.written, landed)
        self._state, self.batch = after, batch
        return len(new)


def _keys(table: Table | None, entries: Sequence[PlacedEntry]) -> Iterable[bytes]:
    """Yield the keys of the records that have the times of these entries."""
    if table is None or not entries:
        return
    times = [each.time_ms for each in entries if each.time_ms is not None and 0 <= each.time_ms < LAST_SECOND * 1000]
    epoch = datetime.datetime.fromtimestamp(0, datetime.UTC)
    wanted: list[Range | None] = [None] if len(times) < len(entries) else []
    if times:
        least, greatest = (epoch + datetime.timedelta(milliseconds=time) for time in (min(times), max(times)))
        wanted.append((least, greatest))
    for ends in wanted:
        for rows in rows_between(table, ["key"], {"timestamp": ends}):
            yield from rows.column("key").to_pylist()
