"""One run of a feed: its source, its tables in the lake, and Spark on demand; and what sources do alike with what has
landed: segments that cannot be decoded now wait, with a reason, and every run tries them again."""

from __future__ import annotations

import datetime
import functools
import hashlib
import importlib
import json
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar

from cdc_lakehouse.changelog.history import Incarnation
from cdc_lakehouse.changelog.positions import utc_now
from cdc_lakehouse.changelog.schema import SchemaChange, TableName
from cdc_lakehouse.config import FeedConfig
from cdc_lakehouse.config.feed import LABELS
from cdc_lakehouse.decoders.problems import Rejected
from cdc_lakehouse.decoders.tasks import spark_errors
from cdc_lakehouse.errors import SourceError
from cdc_lakehouse.lake.catalog import Lake, system_table
from cdc_lakehouse.lake.current.update_tasks import TableUpdate, UpdatedTable
from cdc_lakehouse.lake.faults import run_isolated
from cdc_lakehouse.lake.iceberg_java import IcebergJavaApi
from cdc_lakehouse.lake.tables.checkpoints import Checkpoints, Cut, CutRow
from cdc_lakehouse.lake.tables.events import DecodedFiles, Events
from cdc_lakehouse.lake.tables.lease import Lease, take_when_free
from cdc_lakehouse.lake.tables.quarantine import Decisions, Quarantine
from cdc_lakehouse.lake.tables.schema_history import Frontiers, SchemaHistory
from cdc_lakehouse.lake.tables.segments import Appended, Archive, Segment, Segments, SourceFiles, replayed_segment
from cdc_lakehouse.lake.tables.source_metadata import Signals
from cdc_lakehouse.pipeline.feed_tables import is_taken
from cdc_lakehouse.pipeline.source import LogSource
from cdc_lakehouse.sources.object_store import ObjectStore, open_store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Image = Mapping[str, str | None]
"""A row's texts by column, in the form of the feed's events."""


@dataclass(frozen=True, slots=True)
class RowRepair:
    """The repair of one row: I for a row that the lake lacks, U for one that it has with other values, D for one that
    the source lacks."""

    op: Literal["I", "U", "D"]
    image: Image


@dataclass(frozen=True, slots=True)
class TableRepair:
    """The repair of one table, by its name and incarnation, as of the cut at `checkpoint_ts`. `requested_by` is the
    person who requested it."""

    name: TableName
    incarnation: str
    checkpoint_ts: int
    rows: tuple[RowRepair, ...]
    requested_by: str

    def count(self, op: str) -> int:
        return sum(row.op == op for row in self.rows)


_LOG: Final = logging.getLogger("cdc_lakehouse")
_SOURCES: Final = {"storage_sink": "sink.Sink", "kafka": "topics.Topics", "canal": "canal.CanalServer"}
"""By `source.type`: the module of this package and its class."""
_MAINTENANCE: Final = datetime.timedelta(minutes=4)
"""How long a run waits for maintenance: it must hold the feed before it is considered dead at its start."""

_Table = TypeVar("_Table")


def _table(kind: Callable[[Lake, str], _Table]) -> functools.cached_property[_Table]:
    """Return a table of the feed, opened when it is asked for."""
    return functools.cached_property(lambda run: kind(run.lake, run.feed.name))


@dataclass
class FeedRun:
    """What the steps and the source of one run share. Without `spark_session` it only reads.

    dates: feed dates to decode again, even if nothing changed. reload_tables: tables of the initial dump to load again,
    as `database.table`, or `*` for all. repairs: written before tables are updated. only: the tables to bring to the
    checkpoint, None for all. rebuild: the tables to recompute from all of their events. require_lease: raises
    `ConcurrentRunError` when another run now holds the feed."""

    feed: FeedConfig
    lake: Lake
    spark_session: Callable[[], SparkSession] | None = None
    dates: frozenset[str] = frozenset()
    reload_tables: frozenset[str] = frozenset()
    repairs: tuple[TableRepair, ...] = ()
    only: frozenset[TableName] | None = None
    rebuild: frozenset[TableName] = frozenset()
    log: logging.Logger = _LOG
    clock: Callable[[], datetime.datetime] = utc_now
    require_lease: Callable[[], None] = lambda: None
    typed: list[tuple[TableUpdate, UpdatedTable]] = field(default_factory=list[Any])
    """What was made of new tables while a dump was decoded, each with the update that was expected."""

    @functools.cached_property
    def source(self) -> LogSource:
        """The feed's source, opened by its configuration. Its module is imported now: others need other clients."""
        module, _, name = _SOURCES[self.feed.source.type].partition(".")
        return getattr(importlib.import_module(f"{__package__}.{module}"), name)(self)

    @functools.cached_property
    def landed_at(self) -> datetime.datetime:
        """The landing time of the run's segments: one time for all of them, which distinguishes them from those of
        other runs."""
        return self.clock()

    @functools.cached_property
    def spark(self) -> SparkSession:
        """The session, started at the first use: a run whose work fits this process starts none."""
        assert self.spark_session is not None, "a run that only reads starts no JVM"
        return self.spark_session()

    @functools.cached_property
    def iceberg(self) -> IcebergJavaApi:
        """The API, one for the run, which writes by it."""
        self.lake.on_write()
        from cdc_lakehouse.lake.spark import open_catalog  # noqa: PLC0415 - A run without work needs none of it.

        return IcebergJavaApi(lambda: open_catalog(self.lake.config, self.lake.storage))

    @functools.cached_property
    def store(self) -> ObjectStore:
        return open_store(self.feed.storage_sink.uri, self.lake.storage)

    @functools.cached_property
    def raw(self) -> SourceFiles:
        """The reader of the content of segments."""
        archived = self.feed.storage_sink.archive
        return Archive(self.lake, self.feed.name, self.store) if archived else SourceFiles(self.store)

    segments = _table(Segments)
    frontiers = _table(Frontiers)
    quarantine = _table(Quarantine)
    history = _table(SchemaHistory)
    signals = _table(Signals)
    decisions = _table(Decisions)
    checkpoints = _table(Checkpoints)

    @functools.cached_property
    def last_cut(self) -> Cut:
        """The newest cut when the run began, or was asked to look again."""
        return self.checkpoints.last()

    @functools.cached_property
    def last_cut_rows(self) -> Sequence[CutRow]:
        """The tables of that cut."""
        return self.checkpoints.rows(self.last_cut.checkpoint_ts)

    @functools.cached_property
    def settings(self) -> str:
        """A hash of the settings that the content of tables depends on. When it changes, every table is checked."""
        settings = {
            # By the names of the configuration, without defaults, so that a release can add settings.
            "policy": self.feed.policy.model_dump(mode="json", exclude_defaults=True, exclude={"max_quarantined_rows"}),
            "tables": {
                name: settings
                for name, table in self.feed.tables.settings.items()
                if (settings := table.model_dump(mode="json", exclude_defaults=True, exclude=set(LABELS)))
            },
            "time_zone": self.feed.source.time_zone,
            "taken": [self.feed.tables.include, self.feed.tables.exclude],
            **self.feed.model_dump(mode="json", exclude_defaults=True, include={"format_version", "namespace"}),
        }
        return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:12]

    def appended(self) -> Appended:
        """Return which batches are in `events` now; needs no Spark."""
        return Appended.of(self.lake.load(system_table(self.feed.name, "events")))

    def land_files(self, segments: Iterable[Segment], max_files: int, max_bytes: int) -> tuple[Segment, ...]:
        """Land files in new batches, each of which is one commit and does not exceed the limits. Gives what landed."""
        batch, files, size, landed = self.segments.batch + 1, 0, 0, list[Segment]()
        for segment in segments:
            if files and (files == max_files or size + segment.size > max_bytes):
                batch, files, size = batch + 1, 0, 0
            files, size = files + 1, size + segment.size
            landed.append(replace(segment, batch=batch))
        if landed:
            self.segments.land(landed)
        return tuple(landed)

    def land_again(self, segments: Sequence[Segment], max_files: int, max_bytes: int) -> Sequence[Segment]:
        """Land decoded files again: the next run decodes them. Gives what landed."""
        appended = self.appended()
        again = (replayed_segment(segment, 0, appended, self.landed_at) for segment in segments)
        return self.land_files(again, max_files, max_bytes)

    @functools.cached_property
    def events(self) -> Events:
        of = self.lake, self.feed.name, lambda: self.spark, lambda: self.iceberg
        return Events(*of, self.segments, self.require_lease)

    @property
    def loads(self) -> list[SchemaChange]:
        """The recorded loads of tables from dumps, in the order of their commit-ts."""
        found = (change for change in self.history.changes.values() if change.kind == "load")
        return sorted(found, key=lambda change: change.commit_ts)

    @property
    def loaded(self) -> Mapping[TableName, int]:
        """The loaded tables, by the names that they had in their dumps, with the commit-ts of their rows; for a table
        that was loaded again, of the last dump."""
        return {TableName(each.database, each.table): each.commit_ts for each in self.loads}

    def require_no_gap(self, loaded_ts: int | None = None) -> None:
        """Raises `SourceError` when changes between a dump and the start of the log are missing, as far as the log
        shows its start. `loaded_ts` is the commit-ts of the dump, None for all loaded ones."""
        initial = self.feed.initial
        positions = self.loaded.values() if loaded_ts is None else [loaded_ts]
        if initial is None or not positions:
            return
        first_ts = self.source.first_ts() if initial.start_ts is None else initial.start_ts
        if first_ts is not None and first_ts > min(positions):
            advice = "create the changefeed with the dump's position as its start-ts, or dump again; where it has "
            advice += "that, and only showed itself later, say so with source.initial.start_ts"
            message = f"the dump is of {min(positions)} and the change log begins at {first_ts}"
            raise SourceError(f"{message}: what changed in between is in neither", feed=self.feed.name, advice=advice)

    def shows(self, life: Incarnation) -> bool:
        """Whether the last cut shows the table, so that it had nothing further to apply then. A table that was held, or
        left out by the configuration at that time, has applied what its own properties say."""
        cut = self.last_cut
        before = life.upto(cut.checkpoint_ts)
        is_free = life.id not in cut.held_incarnations and self.settings == cut.settings
        return is_free and before is not None and is_taken(self.feed.tables, before)


def take_feed(lake: Lake, feed: str, run_id: str) -> Lease:
    """Take the feed's lease for a run, which waits for maintenance. Raises `ConcurrentRunError` when another run holds
    it."""
    return take_when_free(lake, feed, run_id, utc_now, _MAINTENANCE, lambda holder: holder.is_maintenance)


UNREADABLE_SEGMENT: Final = "UnreadableSegment"
UNKNOWN_COLUMNS: Final = "UnknownColumns"
DecodeFiles = Callable[[Sequence[Segment]], DecodedFiles]


def append_files(
    run: FeedRun, segments: Sequence[Segment], faults: Mapping[str, str],
    prepare: Callable[[Sequence[Segment]], tuple[DecodeFiles, Mapping[str, str]]],
    find_faults: Callable[[Sequence[Segment], SourceError], Mapping[str, str]],
) -> tuple[Sequence[Segment], Sequence[Rejected]]:  # fmt: skip
    """Append the files of a batch that can be decoded, in one commit; return them, and what was rejected in them. The
    others wait: those with `faults` (reasons by segment), and those with faults that only decoding shows.

    `prepare` says how readable files are decoded, and of which ones the columns are not known."""
    while True:
        readable = [segment for segment in segments if segment.segment not in faults]
        try:
            decode, unknown = prepare(readable)
            ready = defer(run, segments, {UNREADABLE_SEGMENT: faults, UNKNOWN_COLUMNS: unknown})
            if not ready:
                return [], []
            try:
                decoded = decode(ready)
            except spark_errors():
                failed = run_isolated(lambda: run.spark, ready, decode)
                if not failed:
                    raise
                index, reason = next(iter(failed.items()))
                raise SourceError(
                    f"Spark fails when it decodes this segment alone ({reason})",
                    advice="see the log of Spark, and whether its workers have memory for the segment",
                    segment=ready[index].segment,
                ) from None
            run.typed += decoded.typed
            run.events.commit(decoded.data_files, ready)
            return decoded.counted(ready), decoded.rejected
        except SourceError as error:
            # A fault of one segment defers it; one of the whole store, or of the feed's settings, ends the run.
            found = find_faults(readable, error) if error.segment is not None and error.feed is None else {}
            if not found:
                raise
            faults = {**faults, **found}


def defer(run: FeedRun, segments: Sequence[Segment], faults: Mapping[str, Mapping[str, str]]) -> Sequence[Segment]:
    """Split a batch by `faults` (reasons by error class and segment); return the segments to decode now. Segments with
    a fault stay in it, and every run tries them again; the rest move to a new batch, because a batch is decoded as a
    whole. So do segments that an earlier run has landed: batch numbers rise in the order of commits, and tables look
    for batches after the one that they have applied. What that run has appended of them and not marked as decoded is
    replaced; what it has appended of segments with a fault stays, and is marked in a batch of its own."""
    names, appended = {segment.segment for segment in segments}, run.events.appended
    are_in = {segment.segment for segment in segments if appended.has(segment)}
    further = dict.fromkeys(are_in, "; its events are in: `cdc-lakehouse quarantine replay` decodes it again")
    rejected = [
        Rejected(at, None, error_class, reasons[at] + further.get(at, ""), None, s.database, s.table)
        for error_class, reasons in faults.items()
        for s in segments
        if (at := s.segment) in reasons
    ]
    run.quarantine.replace(lambda row: row.error_class in faults and row.segment in names, rejected, run.clock())
    is_new = segments[0].landed_at == run.landed_at
    if not rejected and is_new and segments[0].batch > appended.newest:
        return segments
    deferred = {row.segment for row in rejected}
    batch = run.segments.batch + 1
    marked = [replayed_segment(s, batch, appended, s.landed_at) for s in segments if s.segment in deferred & are_in]
    if marked:
        run.segments.land(marked)
        run.events.mark_decoded(marked, run.clock())
        batch += 1
    rest = [
        replace(s, batch=batch) if is_new else replayed_segment(s, batch, appended, s.landed_at)
        for s in segments
        if s.segment not in deferred
    ]
    if rest:
        run.segments.land(rest)
    return rest
