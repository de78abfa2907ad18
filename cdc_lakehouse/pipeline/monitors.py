"""What a sensor and a status see of each kind of source. No JVM is started, and Spark is not imported."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace

from cdc_lakehouse.changelog.positions import commit_time, utc_now
from cdc_lakehouse.config import CanalSource, FeedConfig, KafkaSource
from cdc_lakehouse.decoders.files.registry import FORMATS, layout_of
from cdc_lakehouse.decoders.messages.detection import plain_values
from cdc_lakehouse.decoders.messages.registry import format_of
from cdc_lakehouse.decoders.partition_summary import OptionConflict
from cdc_lakehouse.errors import CdcError
from cdc_lakehouse.lake.catalog import Lake
from cdc_lakehouse.lake.tables.canal_positions import find_stuck, landed_position
from cdc_lakehouse.lake.tables.checkpoints import Checkpoints
from cdc_lakehouse.lake.tables.frontiers import Frontiers
from cdc_lakehouse.lake.tables.landed_offsets import landed_offsets
from cdc_lakehouse.lake.tables.segments import Segments
from cdc_lakehouse.lake.tables.source_metadata import Signals
from cdc_lakehouse.pipeline.source import SourceKind, SourceMonitor, SourceState, SourceStatus
from cdc_lakehouse.sources.canal.client import CanalClient
from cdc_lakehouse.sources.kafka import find_pending, read_topics
from cdc_lakehouse.sources.kafka.reading import first_messages
from cdc_lakehouse.sources.object_store import ObjectStore, open_store
from cdc_lakehouse.sources.record_log import Pending
from cdc_lakehouse.sources.sink.incremental_listing import list_new
from cdc_lakehouse.sources.sink.listing_state import is_of_settings, may_have_expired
from cdc_lakehouse.sources.sink.paths import DataFile, list_sink, read_checkpoint


def open_monitor(lake: Lake, feed: FeedConfig) -> SourceMonitor:
    """Return the monitor of a feed's source, by its configuration."""
    match feed.source:
        case KafkaSource():
            return TopicMonitor(lake, feed)
        case CanalSource():
            return CanalMonitor(lake, feed)
        case _:
            return SinkMonitor(lake, feed)


class SinkMonitor:
    """Monitors a storage sink, which shows its checkpoint-ts."""

    kind = SourceKind(
        "ticdc",
        "What the sink holds: each data file is listed once. Files stay where they are.",
        "checkpoint",
        "Follows the checkpoint-ts of the sink's metadata file.",
    )
    database = "tidb"
    has_files = True
    has_options = False
    has_lossy_text = False
    can_stick = False

    def __init__(self, lake: Lake, feed: FeedConfig) -> None:
        self._lake = lake
        self._feed = feed
        self._source = feed.storage_sink

    @property
    def has_labels(self) -> bool:
        return FORMATS[self._source.protocol].has_labels

    def _store(self) -> ObjectStore:
        return open_store(self._source.uri, self._lake.storage)

    def poll(self, asked: str | None) -> SourceState:
        shown = read_checkpoint(self._store(), utc_now())
        published = Checkpoints(self._lake, self._feed.name).last().checkpoint_ts
        last = max(published, int(asked or 0))
        if shown < last:
            reason = f"the source's checkpoint-ts went backwards, to {shown} from {last}"
        elif shown == last:
            reason = f"the checkpoint-ts has not moved from {shown}"
        else:
            reason = f"the checkpoint-ts moved to {shown}"
        return SourceState(str(shown), shown > published, shown > last, reason)

    def new_dates(self) -> list[str]:
        # Listed from the frontier, so that the cost of a tick depends on what is new.
        takes = self._feed.tables.takes
        # Where directories are named by ids, the tables' names are not known here.
        return sorted({f.feed_date or "" for f in self._new_files() if not f.table or takes(f.database, f.table)})

    def _new_files(self) -> list[DataFile]:
        store, layout = self._store(), layout_of(self._source)
        frontier = Frontiers(self._lake, self._feed.name).last()
        if frontier is not None and is_of_settings(frontier, self._feed):
            return [file for file in list_new(store, layout, frontier).data if frontier.is_new(file)]
        files = list_sink(store, layout).data
        known = Segments(self._lake, self._feed.name).etags(file.path for file in files)
        return [file for file, etag in zip(files, known, strict=True) if etag != file.etag]

    def sample(self) -> Sequence[str]:
        return ()

    def stuck(self) -> CdcError | None:
        return None

    def status(self) -> SourceStatus:
        try:
            store = self._store()
            store.check()
            return SourceStatus(checkpoint_ts=read_checkpoint(store, utc_now()))
        except CdcError as error:
            return SourceStatus(error=error)

    def expiration(self, checkpoint_ts: int | None) -> tuple[str, str | None]:
        read = Checkpoints(self._lake, self._feed.name).last().checkpoint_ts
        if self._source.file_expiration_days:
            said = f"files expire after {self._source.file_expiration_days} days"
        else:
            dates = {file.feed_date for file in list_sink(self._store(), layout_of(self._source)).data}
            oldest = min(filter(None, dates), default=None)
            said = "when files expire is not known" + ("" if oldest is None else f"; the oldest ones are of {oldest}")
        if not read or checkpoint_ts is None or not may_have_expired(self._feed, commit_time(read), checkpoint_ts):
            return said, None
        return said, f"some may have before they were read: the last cut is of {commit_time(read):%Y-%m-%d %H:%M} UTC"


class _RecordMonitor:
    """Base of the monitors of topics and Canal servers, whose messages have a format."""

    has_files = False
    can_stick = False

    def __init__(self, lake: Lake, feed: FeedConfig) -> None:
        self._lake = lake
        self._feed = feed
        message_format = format_of(feed.message_format)
        self.database: str = message_format.database
        self.has_labels = message_format.labels == "labels"
        self.has_options = message_format.can_contradict_options
        self.has_lossy_text = message_format.lossy_columns is not None

    def new_dates(self) -> list[str]:
        return []

    def expiration(self, checkpoint_ts: int | None) -> tuple[str, str | None]:
        return "", None

    def sample(self) -> Sequence[str]:
        return ()

    def stuck(self) -> CdcError | None:
        return None

    def _conflicts(self) -> Sequence[OptionConflict]:
        return Signals(self._lake, self._feed.name).option_conflicts() if self.has_options else ()


class TopicMonitor(_RecordMonitor):
    """Monitors topics, which show their end offsets."""

    kind = SourceKind(
        "kafka",
        "Messages of the topics, each once, as they were on the brokers.",
        "offsets",
        "Follows the end offsets of the topics.",
    )

    def _pending(self) -> Pending:
        source = self._feed.kafka
        return find_pending(source, read_topics(source), landed_offsets(self._lake, self._feed.name))

    def poll(self, asked: str | None) -> SourceState:
        return state_of(self._pending(), asked)

    def sample(self) -> Sequence[str]:
        _, compressions = plain_values(first_messages(self._feed.kafka, read_topics(self._feed.kafka)))
        return [f"TiCDC compresses values with {name}" for name in compressions]

    def status(self) -> SourceStatus:
        status = SourceStatus(option_conflicts=self._conflicts())
        try:
            pending = self._pending()
        except CdcError as error:
            return replace(status, error=error)
        if pending.faults:
            return replace(status, error=pending.faults[0])
        return replace(status, pending_records=pending.records)


class CanalMonitor(_RecordMonitor):
    """Monitors a Canal server, which shows the first waiting entry.

    A destination has one consumer: asking for waiting entries takes them away from a run, and what was delivered is
    rolled back."""

    kind = SourceKind(
        "canal",
        "Entries of the Canal server, each once, as it gave them.",
        "entries",
        "Asks the Canal server whether entries wait.",
    )
    can_stick = True

    def stuck(self) -> CdcError | None:
        return find_stuck(self._lake, self._feed.name, self._feed.canal.destination)

    def _landed(self) -> tuple[int, str | None]:
        return landed_position(self._lake, self._feed.name, self._feed.canal.destination)

    def poll(self, asked: str | None) -> SourceState:
        # The first waiting entry may have landed already, when a run ended before acknowledging it: the next run
        # acknowledges it.
        landed, _ = self._landed()
        with CanalClient(self._feed.canal, patience_seconds=0) as client:
            batch = client.get(batch_size=1, wait_seconds=0)
            client.rollback()
        cursor = _digest(b"%d " % landed + (b"" if batch is None else b"".join(batch.entries[:1])))
        if batch is None:
            return SourceState(cursor, waiting=False, new=False, reason="no entries wait")
        return _waiting(cursor, asked, f"entries wait; {landed} are landed")

    def status(self) -> SourceStatus:
        status = SourceStatus(option_conflicts=self._conflicts())
        try:
            entries, position = self._landed()
            status = replace(status, landed_entries=entries, landed_position=position)
            with CanalClient(self._feed.canal) as client:
                client.check()
            status = replace(status, error=self.stuck())
        except CdcError as error:
            return replace(status, error=error)
        return status


def state_of(pending: Pending, asked: str | None) -> SourceState:
    """Return the state of topics by their pending offsets."""
    ranges = sorted((*partition, *offsets) for partition, offsets in pending.offsets.items())
    cursor = _digest(repr(ranges).encode())
    if not pending.records:
        return SourceState(cursor, False, False, "all messages of the topics are landed", pending.faults)
    state = _waiting(cursor, asked, f"{pending.records} offsets are not landed")
    return replace(state, faults=pending.faults)


def _waiting(cursor: str, asked: str | None, reason: str) -> SourceState:
    # One run for each state: a run that took only a part is followed by another.
    new = cursor != asked
    return SourceState(cursor, True, new, reason if new else "a run for this state of the source was asked for")


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]
