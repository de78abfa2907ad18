"""The interface that a run, a sensor and a status use for every kind of source.

`Source` is opened for a run (`FeedRun.source`) and implements its first three steps; `SourceMonitor` is opened without
a run (`open_monitor`) and needs neither Spark nor a JVM. A new kind of source implements both. No other code
asks which kind a feed has.
"""

from __future__ import annotations

import abc
import contextlib
import datetime
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Final

from cdc_lakehouse.changelog.positions import BEGINNING, commit_time, utc_now
from cdc_lakehouse.changelog.schema import SchemaChange, TableName
from cdc_lakehouse.config import CanalSource, FeedConfig, KafkaSource, StorageSinkSource
from cdc_lakehouse.decoders.problems import Rejected
from cdc_lakehouse.decoders.registry import FILE_FORMATS, format_of, layout_of, plain_values
from cdc_lakehouse.decoders.topic_order import OptionConflict
from cdc_lakehouse.errors import CdcError
from cdc_lakehouse.lake.catalog import Lake, system_namespace
from cdc_lakehouse.lake.current.value_parsing import ValueFormat
from cdc_lakehouse.lake.tables.checkpoints import Checkpoints
from cdc_lakehouse.lake.tables.records import landed_offsets
from cdc_lakehouse.lake.tables.schema_history import Frontiers
from cdc_lakehouse.lake.tables.segments import Kind, Segment, Segments
from cdc_lakehouse.lake.tables.source_metadata import Signals
from cdc_lakehouse.sources.dump.contents import DumpPosition
from cdc_lakehouse.sources.object_store import ObjectStore, open_store
from cdc_lakehouse.sources.record_log import Pending
from cdc_lakehouse.sources.sink.listing import is_of_settings, list_new, may_have_expired
from cdc_lakehouse.sources.sink.paths import DataFile, list_sink, read_checkpoint

_LOOK: Final = "looked_at"


@dataclass(frozen=True)
class Landed:
    """What a run landed.

    new: segments that are new, or to be decoded again. faults: sentences about parts of the source that could not be
    used. source_ts: the source's own checkpoint-ts (a TSO), None when it has none or it cannot be read. files_listed:
    data files in the listing, None when files are not listed.
    """

    new: tuple[Segment, ...] = ()
    faults: tuple[str, ...] = ()
    source_ts: int | None = None
    files_listed: int | None = None


class Source(abc.ABC):
    """One source, opened for one run. Opening it does nothing. The steps call, in this order, `land`, `decode` for each
    batch, `checkpoint_ts` and `schema_changes`; a plan calls `peek` in the place of the first two."""

    kind: ClassVar[Kind]
    """The kind of the source's segments."""
    schema_faults: ClassVar[frozenset[str]] = frozenset()
    """The error classes of the unusable changes that `schema_changes` returns: a row that it no longer returns is
    resolved."""

    @abc.abstractmethod
    def land(self) -> Landed:
        """Record in `segments` what is new in the source, and what is decoded again (`FeedRun.dates`). Raises
        `SourceUnreachableError`, and `SourceError` when the source as a whole cannot be used."""

    def peek(self) -> None:
        """Read the source's schema, unless it has landed, and land nothing. Raises `SourceUnreachableError`,
        `SourceError` and `CheckpointError`."""
        return

    def first_ts(self) -> int | None:
        """The least commit-ts (a TSO) from which on the source has all changes, as far as it shows it: what is older is
        in a dump, if anywhere. Raises as `peek` does."""
        return None

    @abc.abstractmethod
    def decode(self, segments: Sequence[Segment], *, append: bool) -> tuple[Sequence[Segment], Sequence[Rejected]]:
        """Append the events of the landed segments of one batch to `events`, in one commit with the batch's number.

        Without `append` they are already in, and a run ended before it could record its other findings: the segments
        are read again for those. Returns the segments that are now decoded (they may have moved to a later batch; the
        others wait, with rows in the quarantine), and what was rejected in them."""

    def land_left_out(self) -> Sequence[Segment]:
        """Land segments again whose left-out rows are wanted now: decoding may reveal that a taken table had another
        name before."""
        return ()

    @abc.abstractmethod
    def replay(self, segments: Sequence[Segment]) -> Sequence[Segment]:
        """Land decoded segments again, with what has to be decoded with them: the next run decodes them, and their
        events take the place of the earlier ones. Needs no JVM. Gives what landed.

        Raises `SourceError`, with nothing changed, when the source no longer has one of them."""

    @abc.abstractmethod
    def checkpoint_ts(self) -> int:
        """Return the TSO up to which the run applies: all changes at or below it are in `events`. It is never below the
        published one."""

    @abc.abstractmethod
    def schema_changes(self, upto: int | None = None) -> tuple[Sequence[SchemaChange], Sequence[Rejected]]:
        """Return the changes of tables' schemas in the log up to a commit-ts (a TSO; None: all), and those that cannot
        be used. Recorded changes may be omitted, unless they differ now."""


@dataclass(frozen=True)
class JoinPoint:
    """The position in a log that the rows of a dump have: `commit_ts`, a TSO. It is None while the log has not reached
    it; `waits` is then a sentence on what is awaited."""

    commit_ts: int | None
    waits: str | None = None


class LogSource(Source):
    """A change log that a dump may precede."""

    dump_comes_first: ClassVar[bool] = True
    """Whether `join` needs nothing from the log. Otherwise a dump is loaded after what has landed is decoded."""

    def resolve_redelivered(self) -> None:
        """Resolve the open rows of the quarantine whose input was sent again, undamaged: of a log where these are not
        recognized when they are decoded. Needs no JVM."""
        return

    @abc.abstractmethod
    def join(self, position: DumpPosition) -> JoinPoint:
        """Return the commit-ts such that exactly the changes contained in a dump of that position are at or below it.
        The result is always the same.

        Raises `SourceError` for a position that is not of this log, and when the log begins after it."""


@dataclass(frozen=True)
class SourceState:
    """What a source shows to a sensor.

    cursor: text that stays the same as long as the source shows the same. waiting: whether there is work for a run.
    new: whether it is more than when the last run was requested. reason: a sentence on what waits, or why nothing does.
    faults: errors that affect a part of it.
    """

    cursor: str
    waiting: bool
    new: bool
    reason: str
    faults: tuple[CdcError, ...] = ()


@dataclass(frozen=True)
class SourceStatus:
    """What a source shows to people; what its kind does not have is None.

    checkpoint_ts: its own, a TSO. pending_records: offsets of topics that have not landed. landed_entries: entries of a
    Canal server that are in the lake. landed_position: the binlog position of the last of them. option_conflicts:
    messages that contradict an option of their format. error: why the source cannot be used.
    """

    checkpoint_ts: int | None = None
    pending_records: int | None = None
    landed_entries: int | None = None
    landed_position: str | None = None
    option_conflicts: Sequence[OptionConflict] = ()
    error: CdcError | None = None


@dataclass(frozen=True)
class SourceKind:
    """The names of a kind of source. name: Dagster's kind of the raw asset. description: what the raw asset holds.
    sensor: last part of the sensor's name. sensor_description: what the sensor follows."""

    name: str
    description: str
    sensor: str
    sensor_description: str


@dataclass
class Batches:
    """Assigns batch numbers to files from `number` on, so that no batch, which is one commit, exceeds the limits."""

    number: int
    max_files: int
    max_bytes: int
    files: int = 0
    size: int = 0

    def of_file(self, size: int) -> int:
        """Return the batch of the next file of `size` bytes."""
        if self.files and (self.files == self.max_files or self.size + size > self.max_bytes):
            self.number, self.files, self.size = self.number + 1, 0, 0
        self.files, self.size = self.files + 1, self.size + size
        return self.number


def value_format(feed: FeedConfig, name: TableName) -> ValueFormat:
    """Return how the texts of a table's values are read."""
    zone, zero_dates = feed.source.time_zone, feed.zero_dates_of(name.database, name.table)
    match feed.source:
        case StorageSinkSource() as source:
            of_files = FILE_FORMATS[source.protocol]
            binary = of_files.binary(source.csv)
            return ValueFormat(zone, zero_dates, labels=of_files.has_labels, binary=binary)
        case _:
            form = format_of(feed.message_format)
            return ValueFormat(
                zone, zero_dates, labels=form.labels == "labels", labels_uncertain=form.labels == "uncertain",
                trailing_zeros_cut=form.trailing_zeros_cut, database=form.database,
            )  # fmt: skip


# What a sensor and a status see of each kind of source. No JVM is started, and Spark is not imported.


def open_monitor(lake: Lake, feed: FeedConfig) -> SourceMonitor:
    """Return the monitor of a feed's source, by its configuration."""
    match feed.source:
        case KafkaSource():
            return TopicMonitor(lake, feed)
        case CanalSource():
            return CanalMonitor(lake, feed)
        case _:
            return SinkMonitor(lake, feed)


class SourceMonitor(abc.ABC):
    """One source, opened without a run. Opening it does nothing."""

    kind: SourceKind
    database = "tidb"
    """The database in which the changes were made: `mysql` or `tidb`."""
    has_files = False
    """Whether it has numbered data files, and schema files beside them."""
    has_labels = False
    """Whether values of ENUM and SET are labels, not the source's numbers."""
    has_options = False
    """Whether messages can contradict an option of their format."""
    has_lossy_text = False
    """Whether text can arrive damaged and is checked for that."""
    shows_time = True
    """Whether it shows how far its log has come when nothing changes: by a checkpoint-ts or watermarks."""
    can_stick = False
    """Whether it can send what has landed again and again, and nothing after it."""

    def __init__(self, lake: Lake, feed: FeedConfig) -> None:
        self._lake = lake
        self._feed = feed

    @abc.abstractmethod
    def poll(self, asked: str | None) -> SourceState:
        """Return what the source shows now. `asked` is the cursor of the state for which the last run was requested.

        A sensor requests a run, with `cursor` in the run's key, when the state is `waiting` and `new`; when it is
        waiting and not new, that run may have failed and can be retried. This must not be called while a run of the
        feed is unfinished: a Canal server delivers what it shows here to nobody else. Raises `SourceUnreachableError`,
        `SourceError` and `CheckpointError`."""

    @abc.abstractmethod
    def status(self) -> SourceStatus:
        """Return whether the source can be used, and its progress. It takes nothing away from a run; the project's
        errors are in the result."""

    def stuck(self) -> CdcError | None:
        """Return an error that says where the source is stuck, as the last runs saw it; None where it is not."""
        return None

    def new_dates(self) -> Sequence[str]:
        """Return the feed dates that have new segments, as far as that is known without landing them: a note for the
        run. Segments without a date have an empty string."""
        return ()

    def sample(self) -> Sequence[str]:
        """Return what the first messages or files show and the configuration does not say."""
        return ()

    def expiration(self, checkpoint_ts: int | None) -> tuple[str, str | None]:
        """Return when files expire, and a warning where some may have before they were read, as the source's
        checkpoint-ts shows; of a source with files."""
        return "", None


class SinkMonitor(SourceMonitor):
    """Monitors a storage sink, which shows its checkpoint-ts."""

    kind = SourceKind(
        "ticdc",
        "What the sink holds: each data file is listed once. Files stay where they are.",
        "checkpoint",
        "Follows the checkpoint-ts of the sink's metadata file.",
    )
    has_files = True

    def __init__(self, lake: Lake, feed: FeedConfig) -> None:
        super().__init__(lake, feed)
        self._source = feed.storage_sink
        self.has_labels = FILE_FORMATS[self._source.protocol].has_labels

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


class _RecordMonitor(SourceMonitor):
    """Base of the monitors of topics and Canal servers, whose messages have a format."""

    def __init__(self, lake: Lake, feed: FeedConfig) -> None:
        super().__init__(lake, feed)
        message_format = format_of(feed.message_format)
        self.database = message_format.database
        self.has_labels = message_format.labels == "labels"
        self.has_options = message_format.can_contradict_options
        self.has_lossy_text = message_format.lossy_columns is not None
        is_topic = isinstance(feed.source, KafkaSource)
        options = message_format.configured(feed.kafka, lake.storage) if is_topic else {}
        self.shows_time = message_format.watermarks(options)

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

    # The client is imported where it is asked.

    def _pending(self) -> Pending:
        from cdc_lakehouse.sources.kafka import find_pending, read_topics  # noqa: PLC0415

        source = self._feed.kafka
        return find_pending(source, read_topics(source), landed_offsets(self._lake, self._feed.name))

    def poll(self, asked: str | None) -> SourceState:
        return state_of(self._pending(), asked)

    def sample(self) -> Sequence[str]:
        from cdc_lakehouse.sources.kafka import read_topics  # noqa: PLC0415
        from cdc_lakehouse.sources.kafka.reading import first_messages  # noqa: PLC0415

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
        from cdc_lakehouse.lake.tables.canal_records import find_stuck  # noqa: PLC0415

        return find_stuck(self._lake, self._feed.name, self._feed.canal.destination)

    def _landed(self) -> tuple[int, str | None]:
        from cdc_lakehouse.lake.tables.canal_records import landed_position  # noqa: PLC0415

        return landed_position(self._lake, self._feed.name, self._feed.canal.destination)

    def poll(self, asked: str | None) -> SourceState:
        from cdc_lakehouse.sources.canal.client import CanalClient  # noqa: PLC0415

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
        from cdc_lakehouse.sources.canal.client import CanalClient  # noqa: PLC0415

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


# When a source that shows no time of its own was last seen with nothing new. It is a file, for a look changes no table.


def record_look(lake: Lake, feed: str, at: datetime.datetime) -> None:
    """Record a look at a source that had nothing new, of a feed that has published something."""
    if Checkpoints(lake, feed).last().checkpoint_ts == BEGINNING:
        return
    with contextlib.suppress(OSError):  # A look that is not recorded counts for nothing: the source is late then.
        lake.write(lake.location(system_namespace(feed), _LOOK), at.isoformat().encode())


def last_look(lake: Lake, feed: str) -> datetime.datetime | None:
    """Return the time in UTC of the last look that found nothing new; None before the first."""
    found = lake.read(lake.location(system_namespace(feed), _LOOK))
    try:
        return None if found is None else datetime.datetime.fromisoformat(found.decode())
    except ValueError:  # Another process is writing it.
        return None


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
