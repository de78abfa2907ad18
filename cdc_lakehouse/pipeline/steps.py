"""The whole of a run, in order: each step once, and each after the ones before it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from cdc_lakehouse.changelog.schema import TableVersion
from cdc_lakehouse.lake.faults import writing_to_warehouse
from cdc_lakehouse.lake.properties import of_batch
from cdc_lakehouse.lake.tables.events import BatchCounts, with_counts
from cdc_lakehouse.lake.tables.segments import Segment
from cdc_lakehouse.pipeline.apply import Applied
from cdc_lakehouse.pipeline.apply import apply as apply_changes
from cdc_lakehouse.pipeline.publish import Published, publish_cut, purge_dropped
from cdc_lakehouse.pipeline.run import FeedRun
from cdc_lakehouse.pipeline.sink_schemas import BAD_SCHEMA_FILE
from cdc_lakehouse.pipeline.source import Landed

_Result = TypeVar("_Result")


@dataclass(frozen=True)
class Decoded:
    """What a run decoded, and how many events it was."""

    segments: tuple[Segment, ...] = ()
    counts: BatchCounts = field(default_factory=lambda: BatchCounts({}))

    def __add__(self, other: Decoded) -> Decoded:
        # A batch is decoded once.
        return Decoded(self.segments + other.segments, BatchCounts({**self.counts.rows, **other.counts.rows}))


@dataclass(frozen=True)
class Evolved:
    """The versions that a run added to the history."""

    versions: tuple[TableVersion, ...]


def land(steps: Steps) -> Landed:
    """What the source has is in `segments`."""
    return steps.run.source.land()


def decode(steps: Steps) -> Decoded:
    """The changes of every batch that landed are in `events`, once."""
    decoded, run = Decoded(), steps.run
    while batches := run.segments.undecoded(run.source.kind):
        done = Decoded()
        for batch, segments in batches.items():
            run.require_lease()
            done += _decode_batch(run, batch, segments)
        decoded += done
        if not done.segments or not run.source.land_left_out():
            return decoded
    return decoded


def evolve(steps: Steps) -> Evolved:
    """DDL up to the checkpoint is in `schema_history`, all tables in one order."""
    run = steps.run
    found, rejected = run.source.schema_changes(steps.checkpoint_ts)
    run.quarantine.replace(lambda row: row.error_class == BAD_SCHEMA_FILE, rejected, run.clock())
    known = run.history.changes
    versions = run.history.record([change for change in found if known.get(change.origin) != change], run.clock())
    if versions:
        run.log.info("recorded %d schema versions", len(versions))
    return Evolved(tuple(versions))


def apply(steps: Steps) -> Applied:
    """The current-state tables are as of the checkpoint."""
    return apply_changes(steps.run, steps.checkpoint_ts)


def publish(steps: Steps) -> Published:
    """The cut is in `checkpoints`; tables that the policy purges are gone."""
    applied = steps.applied
    published = publish_cut(steps.run, applied)
    purge_dropped(steps.run, {**applied.lives, **applied.left})
    return published


STEPS: Final[tuple[Callable[[Steps], Any], ...]] = (land, decode, evolve, apply, publish)


class Steps:
    """The steps of one run, and what they did. A step that is asked for makes those before it happen first."""

    def __init__(self, run: FeedRun) -> None:
        self.run = run
        self._results: list[Any] = []

    def upto(self, step: Callable[[Steps], _Result]) -> _Result:
        """What a step of `STEPS` did; it happens now, after those before it, unless it has happened."""
        number = STEPS.index(step)
        for each in STEPS[len(self._results) : number + 1]:
            self.run.require_lease()
            # The errors of sources are the project's own already.
            with writing_to_warehouse():
                self._results.append(each(self))
        return self._results[number]

    @property
    def landed(self) -> Landed:
        return self.upto(land)

    @property
    def decoded(self) -> Decoded:
        return self.upto(decode)

    @property
    def checkpoint_ts(self) -> int:
        """Up to where the run applies, a TSO. Messages of topics say it: it is known when they are decoded."""
        self.upto(decode)
        return self.run.source.checkpoint_ts()

    @property
    def evolved(self) -> Evolved:
        return self.upto(evolve)

    @property
    def applied(self) -> Applied:
        return self.upto(apply)

    @property
    def published(self) -> Published:
        return self.upto(publish)


def run_all(run: FeedRun) -> Steps:
    """All steps."""
    steps = Steps(run)
    steps.upto(publish)
    return steps


def _decode_batch(run: FeedRun, batch: int, segments: Sequence[Segment]) -> Decoded:
    """Append, quarantine, count, mark. The commit that appends a batch carries its number, and the counts are read back
    from it: a run that finds the commit, and not what comes after it, does the same as one that has just committed."""
    run.events.ensure()
    append = run.events.snapshot_of(batch) is None
    segments, rejected = run.source.decode(segments, append=append)
    if not segments:
        return Decoded()
    batch, names = segments[0].batch, {segment.segment for segment in segments}
    # What the segments had in quarantine before they were decoded again is done with.
    run.quarantine.replace(lambda row: row.segment in names, rejected, run.clock())
    counts = run.events.counts(batch)
    decoded = with_counts(segments, counts, rejected, run.clock())
    run.segments.mark_decoded(batch, decoded, of_batch(batch))
    run.log.info("batch %d: decoded %d segments, %d records rejected", batch, len(decoded), len(rejected))
    return Decoded(tuple(decoded), counts)
