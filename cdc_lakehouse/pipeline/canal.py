"""A Canal server as a source: its entries land in `records`, and are acknowledged once they have landed. A run that
ends between the two, or before the next step has recorded them, is completed by the next run: redelivered entries are
recognized, and `records` holds the batch that landed last.

An entry is a record of partition 0 of a topic with the name of the destination; its offset is a sequence number, its
timestamp the time of its execution, and its key identifies it (`sources.canal.positions`). One commit holds the
entries of a round and the position after them. Redelivered entries have the same times as before, so the known ones of
a round are found by reading the keys of records with these times."""

from __future__ import annotations

import contextlib
import datetime
import json
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Final

import pyarrow as pa
from pyiceberg.table import Table

from cdc_lakehouse.changelog.events import Ddl, MessageError, RowChange
from cdc_lakehouse.config import FeedConfig
from cdc_lakehouse.decoders.formats.canal_entries import decode
from cdc_lakehouse.decoders.topic_reader import PartitionSummary
from cdc_lakehouse.errors import CdcError, SourceError, SourceUnreachableError
from cdc_lakehouse.lake.catalog import Lake
from cdc_lakehouse.lake.files import Range, TableFiles, rows_between
from cdc_lakehouse.lake.names import CANAL_POSITION, CANAL_REPEATS
from cdc_lakehouse.lake.tables import records
from cdc_lakehouse.pipeline.source import JoinPoint, SourceKind, SourceState, SourceStatus
from cdc_lakehouse.pipeline.topics import RecordSource
from cdc_lakehouse.sources.canal import positions
from cdc_lakehouse.sources.canal.client import CanalClient, Round, rounds
from cdc_lakehouse.sources.dump.contents import DumpPosition
from cdc_lakehouse.sources.record_log import ByteColumn, LogPartition, Messages, OffsetRange, Pending

_PATIENCE_SECONDS: Final = 30
"""How long to wait for an unreachable server before the run fails and the next one tries again."""
_KEYS_AT_ONCE: Final = 500_000
_ROWS_AT_ONCE: Final = 10_000
STUCK: Final = 3
"""So often the last entry comes again from a server that is stuck behind it. Once it may come after any lost connection
or killed run."""
_SHOWN: Final = 200
"""Characters of a statement."""
_CREATE_TIME: Final = 1


class CanalServer(RecordSource):
    """The `Source` for a destination of a Canal server. Raises when the server fails before any entry has landed.

    A destination has one consumer: asking for waiting entries takes them away from a run. What was delivered is sent
    again, as it is not acknowledged."""

    shown = SourceKind(
        "canal", "Entries of the Canal server, each once, as it gave them.",
        "entries", "Asks the Canal server whether entries wait.",
    )  # fmt: skip
    can_stick = True
    look_takes = True
    dump_comes_first = False
    _has_record_times = False

    def _entries(self, batch: int = 0) -> EntryRecords:
        return EntryRecords(self._run.lake, self._run.feed, batch)

    def _receive(self, batch: int) -> tuple[Sequence[records.LandedSegment], Sequence[CdcError]]:
        run, entries = self._run, self._entries(batch)
        try:
            with CanalClient(run.feed.canal, patience_seconds=_PATIENCE_SECONDS) as client:
                for taken in rounds(client, run.feed.canal):
                    new = entries.append(taken)
                    run.log.info("landed %d entries of %d that came", new, len(taken.entries))
        except (SourceError, SourceUnreachableError) as error:
            if not entries.segments:
                raise
            return entries.segments, [error]
        stuck = self.stuck()
        return entries.segments, [] if stuck is None else [stuck]

    def join_point(self, position: DumpPosition) -> JoinPoint:
        run = self._run
        if position.log_file is None or position.log_offset is None:
            advice = "load a dump of the database server that Canal reads, with the name and the offset of its binlog: "
            advice += "dump as a user who may see its status (REPLICATION CLIENT)"
            message = f"the dump's position is not a place in a binlog ({position})"
            raise SourceError(message, feed=run.feed.name, advice=advice)
        sought = positions.BinlogPosition.of(position.log_file, position.log_offset)
        found = self._entries().find(sought, run.signals.last_ts)
        other = positions.contradiction(position, *found.values, found.server_ids)
        if other is not None:
            advice = "dump that server itself, not another one of its replicas, and name the dump as "
            advice += "source.initial.uri (with type database: its address as url)"
            message = f"the dump of {sought} is not of the database server that Canal reads: {other}"
            raise SourceError(message, feed=run.feed.name, advice=advice)
        initial = run.feed.initial
        if found.first is not None and not found.covered and not (initial is not None and initial.log_starts_at_dump):
            advice = "start Canal at the dump's position or before it, and the feed afresh; where it was started at "
            advice += "that position, say so with source.initial.log_starts_at_dump"
            message = f"the dump is of {sought} and the log begins at {found.first}"
            raise SourceError(
                f"{message}: what changed in between may be in neither", feed=run.feed.name, advice=advice
            )
        if found.commit_ts is not None:
            return found.commit_ts
        if found.reached:
            return f"the dump of {sought} waits for the first change in the log"
        where = "nothing of it has landed" if found.last is None else f"the log is at {found.last}"
        return f"the dump waits for the log to reach {sought}; {where}"

    def stuck(self) -> CdcError | None:
        return self._entries().stuck()

    def poll(self, asked: str | None) -> SourceState:
        # The first waiting entry may have landed already, when a run ended before acknowledging it: the next run
        # acknowledges it.
        landed = self._entries().landed
        with CanalClient(self._run.feed.canal, patience_seconds=0) as client:
            batch = client.get(batch_size=1, wait_seconds=0)
        shown = b"%d " % landed + (b"" if batch is None else b"".join(batch.entries[:1]))
        reason = "no entries wait" if batch is None else f"entries wait; {landed} are landed"
        return self._state(shown, asked, reason, waiting=batch is not None)

    def status(self) -> SourceStatus:
        status = SourceStatus()
        try:
            entries = self._entries()
            status = SourceStatus(landed_entries=entries.landed, landed_position=entries.position)
            with CanalClient(self._run.feed.canal) as client:
                client.check()
            return replace(status, error=entries.stuck())
        except CdcError as error:
            return replace(status, error=error)


class EntryRecords(records.RecordCommits):
    """The records of a Canal server, as they are when this is made; and those that one run lands: a batch of one
    segment, which grows with each round. `batch` must be above all earlier numbers."""

    def __init__(self, lake: Lake, feed: FeedConfig, batch: int = 0) -> None:
        super().__init__(lake, feed.name)
        self._source, self._partition = feed.canal, LogPartition(feed.canal.destination, 0)
        self._table, self._stream, self._batch = self._lake.load(self.identifier), positions.EntryStream(), batch
        self._state = records.state_of(self._table)
        self._properties = {} if self._table is None else self._table.properties

    @property
    def segments(self) -> tuple[records.LandedSegment, ...]:
        """What this has landed."""
        return self._state.segments if self._state.batch == self._batch else ()

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

    def find(self, sought: positions.BinlogPosition, seed: Callable[[int], int]) -> positions.BinlogSearch:
        """Look for a place among the entries, all of which have been decoded. `seed` is the greatest commit-ts of the
        batches before one.

        Raises `SourceError` when the log is not the one of the position."""
        search = positions.BinlogSearch(sought)
        for start in range(0, self.landed, _KEYS_AT_ONCE):
            search.add(self._read("key", start, min(start + _KEYS_AT_ONCE, self.landed)))
            if search.beyond is not None:
                break
        before, beyond = search.values = self._value(search.before), self._value(search.beyond)
        search.reached = beyond is not None or (before is not None and positions.ends_at(before, sought))
        search.commit_ts = self._commit_ts(search, seed) if search.reached else None
        return search

    def _commit_ts(self, search: positions.BinlogSearch, seed: Callable[[int], int]) -> int | None:
        first = 0 if search.before is None else search.before + 1
        if search.before is not None:
            ((_, batch),) = self._read("batch", search.before, first)
            values = [value for _, value in self._read("value", 0, first, batch=(batch, batch))]
            # That of the last row or statement of its batch, up to it.
            *_, found = seed(batch), *commit_ts_of(values, seed(batch))
            if found:
                return found
        for start in range(first, self.landed, _ROWS_AT_ONCE):
            rows = self._read("value", start, min(start + _ROWS_AT_ONCE, self.landed))
            found = next(commit_ts_of((value for _, value in rows), 0), None)
            if found is not None:
                return found - 1
        return None

    def _read(self, column: str, start: int, end: int, **between: Range) -> Iterator[tuple[int, Any]]:
        """Read a column of the records with offsets in [start, end), in their order."""
        schema = pa.schema([("offset", pa.int64()), records.ARROW_SCHEMA.field(column)])
        within = {"offset": (start, end - 1), **between}
        parts = () if self._table is None else rows_between(self._table, schema.names, within)
        rows = pa.concat_tables([schema.empty_table(), *(rows.cast(schema) for rows in parts)]).sort_by("offset")
        yield from zip(*(each.to_pylist() for each in rows.columns), strict=True)

    def _value(self, offset: int | None) -> bytes | None:
        # None where maintenance has removed it.
        return None if offset is None else next((value for _, value in self._read("value", offset, offset + 1)), None)

    def append(self, taken: Round) -> int:
        """Land the entries of a round that have not landed yet, in one commit, or none when nothing is new. Return the
        number of new entries.

        Raises `ConcurrentRunError` when another run has landed something meanwhile."""
        table = self._lake.load(self.identifier)
        if records.state_of(table) != self._state:
            raise self.too_late()
        new = list(self._stream.new(taken.connection, taken.entries, _keys(table, taken.entries)))
        if not new:
            # The entry that landed last came again: that is counted up to the number that shows a server to be stuck.
            known = {} if table is None else table.properties
            repeats = int(known.get(CANAL_REPEATS, "0"))
            last = taken.entries[-1].place[:-1] if taken.entries and taken.batches else None
            if table is not None and last and repeats < STUCK and known.get(CANAL_POSITION, "").startswith(f"{last},"):
                self.commit(table, self._state, {CANAL_REPEATS: str(repeats + 1)}, [], self._batch, ())
            return 0
        table = table or self.create()
        start, size = self.landed, sum(len(entry.value) + len(key) for entry, key in new)
        run = next(iter(self.segments), records.LandedSegment(self._partition, start, start, 0, 0, ()))
        whole, dates = OffsetRange(self._partition, run.start, start + len(new), 0), {*run.dates}
        make = records.RecordRows(self._source.time_zone, self._source.date_separator, self._batch)
        with records.record_files(TableFiles.of(table, self._lake), f"batch-{self._batch}-{uuid.uuid4()}") as files:
            for first in range(0, len(new), _ROWS_AT_ONCE):
                some = new[first : first + _ROWS_AT_ONCE]
                offsets = list(range(start + first, start + first + len(some)))
                dated = ((0, 0) if entry.time_ms is None else (_CREATE_TIME, entry.time_ms) for entry, _ in some)
                times = [number for each in dated for number in each]
                keys, values = ByteColumn(key for _, key in some), ByteColumn(entry.value for entry, _ in some)
                dates |= make.add(Messages(whole, offsets, times, keys, values, [None] * len(some)), files)[1]
        count, size = run.records + len(new), run.bytes + size
        now = replace(run, end=whole.end, records=count, bytes=size, dates=tuple(sorted(dates)))
        after = self._state.after(Pending({self._partition: (start, whole.end)}, {}, ()), self._batch, (now,))
        properties = {**after.as_properties(), CANAL_POSITION: new[-1][1].decode(), CANAL_REPEATS: "0"}
        self.commit(table, self._state, properties, files.written, self._batch, [replace(now, start=start)])
        self._state = after
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


def _keys(table: Table | None, entries: Sequence[positions.PlacedEntry]) -> Iterable[bytes]:
    """Yield the keys of the records that have the times of these entries."""
    if table is None or not entries:
        return
    end = records.LAST_SECOND * 1000
    times = [each.time_ms for each in entries if each.time_ms is not None and 0 <= each.time_ms < end]
    wanted: list[Range | None] = [None] if len(times) < len(entries) else []
    if times:
        epoch = datetime.datetime.fromtimestamp(0, datetime.UTC)
        least, greatest = (epoch + datetime.timedelta(milliseconds=time) for time in (min(times), max(times)))
        wanted.append((least, greatest))
    for ends in wanted:
        for rows in rows_between(table, ["key"], {"timestamp": ends}):
            yield from rows.column("key").to_pylist()
