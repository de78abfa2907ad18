"""What a run, a sensor and a status ask of a source, whichever kind it is.

`Source` is opened for a run (`FeedRun.source`) and has its first three steps; `SourceMonitor` is opened without a run
(`monitors.open_monitor`) and needs neither Spark nor a JVM. A new kind of source is one implementation of both. Nobody
else asks which kind a feed has.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol

from cdc_lakehouse.changelog.schema import SchemaChange
from cdc_lakehouse.decoders.partition_summary import OptionConflict
from cdc_lakehouse.decoders.problems import Rejected
from cdc_lakehouse.errors import CdcError
from cdc_lakehouse.lake.tables.segments import Kind, Segment
from cdc_lakehouse.sources.dump.contents import DumpPosition

if TYPE_CHECKING:
    # For types alone: it brings Spark, which a monitor does without.
    from cdc_lakehouse.lake.current.value_parsing import ValueFormat


@dataclass(frozen=True)
class Landed:
    """What a run landed.

    new: segments that are new, or are decoded again. faults: sentences about parts of the source that could not be
    used. source_ts: the source's own checkpoint-ts (a TSO), None where it has none or it cannot be read. files_listed:
    data files in the listing, None where files are not listed.
    """

    new: tuple[Segment, ...] = ()
    faults: tuple[str, ...] = ()
    source_ts: int | None = None
    files_listed: int | None = None


class Source(Protocol):
    """One source, opened for one run. Opening it does nothing. The steps call, in this order, `land`, `decode` for each
    batch, `checkpoint_ts` and `schema_changes`; a plan calls `peek` in the place of the first two."""

    @property
    def kind(self) -> Kind:
        """Which kind of segments are the source's."""
        ...

    def land(self) -> Landed:
        """Record in `segments` what the source has that is not there, and what is decoded again (`FeedRun.dates`).

        Raises `SourceUnreachableError`, and `SourceError` where the source as a whole cannot be used."""
        ...

    def peek(self) -> None:
        """Read what the source has, as far as the schema is concerned, and land nothing.

        Raises `SourceUnreachableError`, `SourceError` and `CheckpointError`."""
        ...

    def first_ts(self) -> int | None:
        """The least commit-ts (a TSO) from which on the source has all changes, as far as it shows it: what is older is
        in a dump, if anywhere. Raises as `peek` does."""
        ...

    def decode(self, segments: Sequence[Segment], *, append: bool) -> tuple[Sequence[Segment], Sequence[Rejected]]:
        """Append the events of the landed segments of one batch to `events`, in one commit with the batch's number.

        Without `append` they are in already, and a run ended before it could say what else it found: the segments are
        read again for that. Gives the segments that are decoded now (they may have moved to a later batch; the others
        wait, with rows in the quarantine), and what was rejected in them."""
        ...

    def land_left_out(self) -> Sequence[Segment]:
        """Land again the segments of which rows were left out that are wanted now: what is decoded may tell that a
        table which is taken had another name before."""
        ...

    def replay(self, segments: Sequence[Segment]) -> Sequence[Segment]:
        """Land decoded segments again, with what has to be decoded with them: the next run decodes them, and their
        events take the place of the earlier ones. Needs no JVM. Gives what landed.

        Raises `SourceError`, with nothing changed, where the source has one of them no longer."""
        ...

    def checkpoint_ts(self) -> int:
        """The TSO up to which the run applies: all changes at or below it are in `events`. Never below the published
        one."""
        ...

    def schema_changes(self, upto: int | None = None) -> tuple[Sequence[SchemaChange], Sequence[Rejected]]:
        """What the log says of the tables' schemas up to a commit-ts (a TSO; None: all of it), and what of it cannot be
        used. Changes that are recorded may be left out, unless they differ by now."""
        ...

    @property
    def schema_faults(self) -> frozenset[str]:
        """The error classes of what `schema_changes` says cannot be used: what it does not say again is mended."""
        ...

    def value_format(self, zero_dates: Literal["null", "string", "error"]) -> ValueFormat:
        """How the text of values is read."""
        ...


@dataclass(frozen=True)
class JoinPoint:
    """Where in a log the rows of a dump stand: at `commit_ts`, a TSO. It is None while the log is not so far; `waits`
    says, as a sentence, what for."""

    commit_ts: int | None
    waits: str | None = None


class LogSource(Source, Protocol):
    """A change log that a dump may come before."""

    @property
    def dump_comes_first(self) -> bool:
        """Whether `join` needs nothing of the log. Else a dump is loaded when what has landed is decoded."""
        ...

    def resolve_redelivered(self) -> None:
        """Resolve the open rows of the quarantine whose input has come again, whole. Needs no JVM."""
        ...

    def join(self, position: DumpPosition) -> JoinPoint:
        """The commit-ts such that exactly the changes that a dump of that position has in its rows are at or below it:
        always the same one.

        Raises `SourceError` for a position that is none of this log, and where the log begins behind it."""
        ...


@dataclass(frozen=True)
class SourceState:
    """What a source shows, for a sensor.

    cursor: text that stays the same as long as the source shows the same. waiting: whether there is something for a run
    to do. new: whether it is more than the last run was asked for. reason: a sentence that says what waits, or why
    nothing does. faults: what stands in the way of a part of it.
    """

    cursor: str
    waiting: bool
    new: bool
    reason: str
    faults: tuple[CdcError, ...] = ()


@dataclass(frozen=True)
class SourceStatus:
    """What a source shows, for people; what its kind does not have is None.

    checkpoint_ts: its own, a TSO. pending_records: offsets of topics that are not landed. landed_entries: entries of a
    Canal server that are in the lake. landed_position: where in the binlog the last of them was. option_conflicts:
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
    """What a kind of source is called. name: Dagster's kind of the raw asset. description: what the raw asset holds.
    sensor: last part of the sensor's name. sensor_description: what the sensor follows."""

    name: str
    description: str
    sensor: str
    sensor_description: str


class SourceMonitor(Protocol):
    """One source, opened without a run. Opening it does nothing."""

    @property
    def kind(self) -> SourceKind: ...

    @property
    def database(self) -> str:
        """What the changes were made in: `mysql` or `tidb`."""
        ...

    @property
    def has_files(self) -> bool:
        """Whether it has numbered data files, and schema files beside them."""
        ...

    @property
    def has_labels(self) -> bool:
        """Whether values of ENUM and SET are labels, not the source's numbers."""
        ...

    @property
    def has_options(self) -> bool:
        """Whether messages can contradict an option of their format."""
        ...

    @property
    def has_lossy_text(self) -> bool:
        """Whether text can have been damaged before it came here, and is looked at for that."""
        ...

    def poll(self, asked: str | None) -> SourceState:
        """What the source shows now. `asked` is the cursor of the state for which the last run was asked for.

        A sensor asks for a run, with `cursor` in the run's key, where the state is `waiting` and `new`; where it is
        waiting and not new, that run may have failed and can be tried again. Not to be called while a run of the feed
        is unfinished: a Canal server gives what it shows here to nobody else.
        Raises `SourceUnreachableError`, `SourceError` and `CheckpointError`."""
        ...

    def new_dates(self) -> Sequence[str]:
        """Feed dates that have new segments, as far as that can be known without landing them: a note for the run.
        Those without a date have an empty text."""
        ...

    def status(self) -> SourceStatus:
        """Whether the source can be used, and how far it is. Takes nothing from a run; errors of ours are in it."""
        ...
