"""The context of a run before its source is opened: the feed, its tables in the lake, and Spark on demand."""

from __future__ import annotations

import datetime
import functools
import hashlib
import json
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal, NoReturn

from pyspark.sql import SparkSession

from cdc_lakehouse.changelog.history import Incarnation
from cdc_lakehouse.changelog.positions import utc_now
from cdc_lakehouse.changelog.schema import TableName
from cdc_lakehouse.config import FeedConfig
from cdc_lakehouse.config.feed import LABELS
from cdc_lakehouse.decoders.problems import Rejected
from cdc_lakehouse.lake.catalog import Lake, system_table
from cdc_lakehouse.lake.iceberg_java import IcebergJavaApi
from cdc_lakehouse.lake.tables.checkpoints import Checkpoints, Cut, CutRow
from cdc_lakehouse.lake.tables.decisions import Decisions
from cdc_lakehouse.lake.tables.events import BatchCounts, Events, with_counts
from cdc_lakehouse.lake.tables.quarantine import Quarantine
from cdc_lakehouse.lake.tables.schema_history import Frontiers, SchemaHistory
from cdc_lakehouse.lake.tables.segments import Appended, Archive, Segment, Segments, SourceFiles
from cdc_lakehouse.lake.tables.source_metadata import Signals
from cdc_lakehouse.pipeline.feed_tables import is_taken
from cdc_lakehouse.sources.object_store import ObjectStore, open_store

# A repair in the form in which a run gets it.

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


def _no_spark() -> NoReturn:
    raise AssertionError("a run that only reads starts no JVM")


_LOG: Final = logging.getLogger("cdc_lakehouse")


@dataclass
class FeedContext:
    """One run of a feed, as its source sees it. Without `spark_session` it only reads.

    dates: feed dates to decode again, even if nothing changed. reload_tables: tables of the initial dump to load again,
    as `database.table`, or `*` for all. repairs: written before tables are updated. only: the tables to bring to the
    checkpoint, None for all. rebuild: the tables to recompute from all of their events. require_lease: raises
    `ConcurrentRunError` when another run now holds the feed."""

    feed: FeedConfig
    lake: Lake
    spark_session: Callable[[], SparkSession] = _no_spark
    dates: frozenset[str] = frozenset()
    reload_tables: frozenset[str] = frozenset()
    repairs: tuple[TableRepair, ...] = ()
    only: frozenset[TableName] | None = None
    rebuild: frozenset[TableName] = frozenset()
    log: logging.Logger = _LOG
    clock: Callable[[], datetime.datetime] = utc_now
    require_lease: Callable[[], None] = lambda: None

    @functools.cached_property
    def landed_at(self) -> datetime.datetime:
        """The landing time of the run's segments: one time for all of them, which distinguishes them from those of
        other runs."""
        return self.clock()

    @functools.cached_property
    def spark(self) -> SparkSession:
        """The session, started at the first use: a run without work starts no JVM."""
        return self.spark_session()

    @functools.cached_property
    def iceberg(self) -> IcebergJavaApi:
        """The API, one for the run: it caches what it has looked up in the JVM."""
        return IcebergJavaApi(self.spark)

    @functools.cached_property
    def store(self) -> ObjectStore:
        return open_store(self.feed.storage_sink.uri, self.lake.storage)

    @functools.cached_property
    def raw(self) -> SourceFiles:
        """The reader of the content of segments."""
        archived = self.feed.storage_sink.archive
        return Archive(self.lake, self.feed.name, self.store) if archived else SourceFiles(self.store)

    @functools.cached_property
    def segments(self) -> Segments:
        return Segments(self.lake, self.feed.name)

    @functools.cached_property
    def frontiers(self) -> Frontiers:
        return Frontiers(self.lake, self.feed.name)

    @functools.cached_property
    def quarantine(self) -> Quarantine:
        return Quarantine(self.lake, self.feed.name)

    @functools.cached_property
    def history(self) -> SchemaHistory:
        return SchemaHistory(self.lake, self.feed.name)

    @functools.cached_property
    def signals(self) -> Signals:
        return Signals(self.lake, self.feed.name)

    @functools.cached_property
    def decisions(self) -> Decisions:
        return Decisions(self.lake, self.feed.name)

    @functools.cached_property
    def checkpoints(self) -> Checkpoints:
        return Checkpoints(self.lake, self.feed.name)

    @functools.cached_property
    def last_cut(self) -> Cut:
        """The newest cut when the run began."""
        return self.checkpoints.last()

    @functools.cached_property
    def last_cut_rows(self) -> Sequence[CutRow]:
        """The tables of that cut."""
        return self.checkpoints.rows(self.last_cut.checkpoint_ts)

    def forget_cut(self) -> None:
        """Forget the last cut after this run has published one, so that the next steps use the new one."""
        for name in ("checkpoints", "last_cut", "last_cut_rows"):
            vars(self).pop(name, None)

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

    @functools.cached_property
    def events(self) -> Events:
        of = self.lake, self.feed.name, lambda: self.spark, lambda: self.iceberg
        return Events(*of, self.segments, self.require_lease)

    def mark_decoded(
        self, segments: Sequence[Segment], rejected: Sequence[Rejected] = ()
    ) -> tuple[list[Segment], BatchCounts]:
        """Segments of a batch whose events are committed are decoded, with the counts of the commit: gives both."""
        counts = self.events.counts(segments)
        decoded = with_counts(segments, counts, rejected, self.clock())
        self.segments.mark_decoded(decoded)
        return decoded, counts

    def shows(self, life: Incarnation) -> bool:
        """Whether the last cut shows the table, so that it had nothing further to apply then. A table that was held, or
        left out by the configuration at that time, has applied what its own properties say."""
        cut = self.last_cut
        before = life.upto(cut.checkpoint_ts)
        is_free = life.id not in cut.held_incarnations and self.settings == cut.settings
        return is_free and before is not None and is_taken(self.feed.tables, before)
