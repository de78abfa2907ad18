"""The interface that a run, a sensor and a status use for every kind of source.

A `Source` is opened for a run (`FeedRun.source`) and implements its first three steps. A `LogSource` also says what a
sensor and a status see of it, which needs neither Spark nor a JVM. No other code asks which kind a feed has.
"""

from __future__ import annotations

import abc
import contextlib
import datetime
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Final

from cdc_lakehouse.changelog.positions import BEGINNING, is_commit_ts
from cdc_lakehouse.changelog.schema import SchemaChange
from cdc_lakehouse.decoders.problems import Rejected
from cdc_lakehouse.errors import CdcError, SourceError
from cdc_lakehouse.lake.catalog import Lake, system_namespace
from cdc_lakehouse.lake.tables.checkpoints import Checkpoints
from cdc_lakehouse.lake.tables.segments import Kind, Segment
from cdc_lakehouse.sources.dump.contents import DumpPosition

_LOOK: Final = "looked_at"


@dataclass(frozen=True)
class Landed:
    """What a run landed: segments that are `new`, or to be decoded again. faults: sentences about parts of the source
    that could not be used. source_ts: the source's own checkpoint-ts (a TSO), None when it has none or it cannot be
    read. files_listed: data files in the listing, None when files are not listed."""

    new: tuple[Segment, ...] = ()
    faults: tuple[str, ...] = ()
    source_ts: int | None = None
    files_listed: int | None = None


class Source(abc.ABC):
    """One source, opened for one run. Opening it does nothing. The steps call, in this order, `land`, `decode` for each
    batch, `checkpoint_ts` and `schema_changes`."""

    kind: ClassVar[Kind]
    """The kind of the source's segments."""
    schema_faults: ClassVar[frozenset[str]] = frozenset()
    """The error classes of the unusable changes that `schema_changes` returns: a row that it no longer returns is
    resolved."""

    @abc.abstractmethod
    def land(self) -> Landed:
        """Record in `segments` what is new in the source, and what is decoded again (`FeedRun.dates`). Raises
        `SourceUnreachableError`, and `SourceError` when the source as a whole cannot be used."""

    @abc.abstractmethod
    def decode(self, segments: Sequence[Segment]) -> tuple[Sequence[Segment], Sequence[Rejected]]:
        """Append the events of the landed segments of one batch to `events`, in one commit with the batch's number.
        Return the segments that are now decoded (they may have moved to a later batch; the others wait, with rows in
        the quarantine), and what was rejected in them."""

    def land_left_out(self) -> Sequence[Segment]:
        """Land segments again whose left-out rows are wanted now: decoding may reveal that a taken table had another
        name before."""
        return ()

    @abc.abstractmethod
    def replay(self, segments: Sequence[Segment]) -> Sequence[Segment]:
        """Land decoded segments again, with what has to be decoded with them: the next run decodes them, and their
        events take the place of the earlier ones. Needs no JVM. Gives what landed. Raises `SourceError`, with nothing
        changed, when the source no longer has one of them."""

    @abc.abstractmethod
    def checkpoint_ts(self) -> int:
        """Return the TSO up to which the run applies: all changes at or below it are in `events`. It is never below the
        published one."""

    @abc.abstractmethod
    def schema_changes(self, upto: int | None = None) -> tuple[Sequence[SchemaChange], Sequence[Rejected]]:
        """Return the changes of tables' schemas in the log up to a commit-ts (a TSO; None: all), and those that cannot
        be used. Recorded changes may be omitted, unless they differ now."""


JoinPoint = int | str
"""The commit-ts (a TSO) that the rows of a dump have in a log; until the log has reached it, a sentence on what is
awaited."""


@dataclass(frozen=True)
class SourceState:
    """What a source shows to a sensor. cursor: text that stays the same as long as the source shows the same. waiting:
    whether there is work for a run. new: whether it is more than when the last run was requested. reason: a sentence on
    what waits, or why nothing does. faults: errors that affect a part of it."""

    cursor: str
    waiting: bool
    new: bool
    reason: str
    faults: tuple[CdcError, ...] = ()


@dataclass(frozen=True)
class SourceStatus:
    """What a source shows to people; what its kind does not have is None. checkpoint_ts: its own, a TSO.
    pending_records: offsets of topics that have not landed. landed_entries: entries of a Canal server that are in the
    lake. landed_position: the binlog position of the last of them. error: why the source cannot be used."""

    checkpoint_ts: int | None = None
    pending_records: int | None = None
    landed_entries: int | None = None
    landed_position: str | None = None
    error: CdcError | None = None


@dataclass(frozen=True)
class SourceKind:
    """The names of a kind of source. name: Dagster's kind of the raw asset. description: what the raw asset holds.
    sensor: last part of the sensor's name. sensor_description: what the sensor follows."""

    name: str
    description: str
    sensor: str
    sensor_description: str


class LogSource(Source):
    """A change log that a dump may precede. What a sensor and a status ask of it starts no JVM, and can be asked again
    and again."""

    shown: ClassVar[SourceKind]
    database: str = "tidb"
    """The database in which the changes were made: `mysql` or `tidb`."""
    has_files: bool = False
    """Whether it has numbered data files, and schema files beside them."""
    has_labels: bool = False
    """Whether values of ENUM and SET are labels, not the source's numbers."""
    has_options: bool = False
    """Whether messages can contradict an option of their format."""
    has_lossy_text: bool = False
    """Whether text can arrive damaged and is checked for that."""
    shows_time: bool = True
    """Whether it shows how far its log has come when nothing changes: by a checkpoint-ts or watermarks."""
    can_stick: bool = False
    """Whether it can send what has landed again and again, and nothing after it."""
    look_takes: bool = False
    """Whether `poll` takes away from a run what it shows."""
    dump_comes_first: ClassVar[bool] = True
    """Whether `join_point` needs nothing from the log. Otherwise a dump is loaded after what has landed is decoded."""

    def peek(self) -> None:
        """Read the source's schema, unless it has landed, and land nothing. Raises `SourceUnreachableError`,
        `SourceError` and `CheckpointError`."""

    def first_ts(self) -> int | None:
        """The least commit-ts (a TSO) from which on the source has all changes, as far as it shows it: what is older is
        in a dump, if anywhere. Raises as `peek` does."""
        return None

    def resolve_redelivered(self) -> None:
        """Resolve the open rows of the quarantine whose input was sent again, undamaged: of a log where these are not
        recognized when they are decoded. Needs no JVM."""

    @abc.abstractmethod
    def join_point(self, position: DumpPosition) -> JoinPoint:
        """Return the commit-ts such that exactly the changes contained in a dump of that position are at or below it;
        always the same one, once there is one. Raises `SourceError` for a position that is not of this log, and when
        the log begins after it."""

    @staticmethod
    def tso_of(position: DumpPosition, feed: str) -> int:
        """Return where a dump joins a log of TiDB. Raises `SourceError` for a dump of another database server."""
        if position.tso is None or not is_commit_ts(position.tso):
            advice = "load a dump of TiDB; the rows of a MySQL can be put into the order of a feed of Canal alone"
            raise SourceError(f"the dump's position is not a TSO of TiDB ({position})", feed=feed, advice=advice)
        return position.tso

    @abc.abstractmethod
    def poll(self, asked: str | None) -> SourceState:
        """Return what the source shows now. `asked` is the cursor of the state for which the last run was requested: a
        sensor requests a run, with `cursor` in the run's key, when the state is `waiting` and `new`; when it is waiting
        and not new, that run may have failed and can be retried. This must not be called while a run of the feed is
        unfinished: a Canal server delivers what it shows here to nobody else. Raises `SourceUnreachableError`,
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
