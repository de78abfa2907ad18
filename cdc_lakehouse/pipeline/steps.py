"""The steps of a run, in order: each is done once, after the ones before it."""

from __future__ import annotations

import datetime
import functools
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple, TypeVar

import pyarrow as pa

from cdc_lakehouse.changelog.positions import BEGINNING
from cdc_lakehouse.changelog.schema import TableName, TableVersion
from cdc_lakehouse.changelog.versions import NOT_UNDERSTOOD
from cdc_lakehouse.config.reporting import plural
from cdc_lakehouse.decoders.problems import BAD_STATEMENT, BAD_VALUE, RAW_LIMIT, Rejected
from cdc_lakehouse.errors import ConfigurationError, QuarantineLimitError, UnreadableTableError
from cdc_lakehouse.lake.current.tables import CurrentTables
from cdc_lakehouse.lake.faults import engine_errors
from cdc_lakehouse.lake.files import delete_unused
from cdc_lakehouse.lake.tables.checkpoints import Cut, CutRow
from cdc_lakehouse.lake.tables.events import COUNTS
from cdc_lakehouse.lake.tables.quarantine import Quarantined
from cdc_lakehouse.lake.tables.segments import DECODED, FILE, OFFSETS, Segment
from cdc_lakehouse.pipeline.apply import Applied
from cdc_lakehouse.pipeline.apply import apply as apply_changes
from cdc_lakehouse.pipeline.dump import DumpSource
from cdc_lakehouse.pipeline.feed_tables import is_purged
from cdc_lakehouse.pipeline.holds import hold_reason
from cdc_lakehouse.pipeline.progress import Progress
from cdc_lakehouse.pipeline.run import FeedRun
from cdc_lakehouse.pipeline.source import Landed, Source

# The limit of quarantined rows (`policy.max_quarantined_rows`) is one of what a run has landed: segments with one
# landing time, in one batch or several. The lake's state decides, so each run stops, and applies and publishes nothing,
# until the rows are repaired or discarded, or the limit is raised.


def require_few_rejected(run: FeedRun, landed_at: Collection[datetime.datetime] | None = None) -> None:
    """Raises `QuarantineLimitError` when what a run has landed (at these times, None: at any) has more open rows of
    decoded segments than the policy allows. Rows that a table cannot take do not count: they only hold their table."""
    limit = run.feed.policy.max_quarantined_rows
    if limit is None:
        return
    rows = [row for row in run.quarantine.open() if row.error_class != BAD_VALUE]
    decoded = [s for s in run.segments.find(row.segment for row in rows).values() if s.state == DECODED]
    times = {s.segment: s.landed_at for s in decoded if landed_at is None or s.landed_at in landed_at}
    for at in sorted(set(times.values())):
        rejected = [row for row in rows if times.get(row.segment) == at]
        if (count := sum(row.count for row in rejected)) > limit:
            first = min(rejected, key=lambda row: (row.segment, row.line or 0))
            message = f"the run of {at:%Y-%m-%d %H:%M:%S} UTC quarantined {plural(count, 'row')}; "
            message += f"policy.max_quarantined_rows is {limit}, so nothing is applied or published. "
            message += f"The first is {first.id} ({first.error_class}: {first.message})"
            advice = "look at `cdc-lakehouse quarantine list`; fix the source, or fix the configuration and replay the "
            advice += "rows, discard them, or raise the limit"
            feed, segment = run.feed.name, first.segment
            raise QuarantineLimitError(message, feed=feed, segment=segment, line=first.line, advice=advice)


_Result = TypeVar("_Result")


class Decoded(NamedTuple):
    """What a run decoded, and the numbers of events. Of the initial dump also the commit-ts of the rows, None when
    nothing of it was loaded; `waits` says what the log must reach first: until then nothing is applied."""

    segments: tuple[Segment, ...] = ()
    counts: pa.Table = COUNTS.empty_table()
    commit_ts: int | None = None
    waits: str | None = None


class Published(NamedTuple):
    """The newest cut after the run; `new` says whether this run published it."""

    cut: Cut
    rows: tuple[CutRow, ...]
    new: bool


def load(steps: Steps) -> Decoded:
    """Load the initial dump into `events`, and publish the first cut at its position."""
    run, dump = steps.run, steps.dump
    if dump is None or not (dump.has_rows_left or run.reload_tables or run.last_cut.checkpoint_ts == BEGINNING):
        return Decoded()
    if dump.fault is not None:
        # The tables that the dump has something left of are held, and no other. What is in `events` already is counted.
        run.log.warning("%s", dump.fault)
        undefined = dump.undefined()
        names = {(each.segment, each.error_class) for each in undefined}
        run.quarantine.replace(lambda row: (row.segment, row.error_class) in names, undefined, run.clock())
        return _decode_all(run, dump)
    if dump.waits is not None:
        run.log.warning("%s", dump.waits)
        return Decoded(waits=dump.waits)
    try:
        decoded = _load(run, dump)
        if run.last_cut.checkpoint_ts == BEGINNING:
            _publish_cut(run, apply_changes(run, dump.checkpoint_ts()))
            for name in ("checkpoints", "last_cut", "last_cut_rows"):  # The next steps look again.
                vars(run).pop(name, None)
    finally:
        # What no table has taken: all of them are held, or the run ends here.
        unused, run.typed = run.typed, []
        delete_unused(run.lake.catalog.properties, [file for _, part in unused for file in part.files])
    return decoded._replace(commit_ts=dump.checkpoint_ts())


def land(steps: Steps) -> Landed:
    return steps.run.source.land()


def decode(steps: Steps) -> Decoded:
    return _decode_all(steps.run, steps.run.source)


def evolve(steps: Steps) -> Sequence[TableVersion]:
    """Record DDL up to the checkpoint in `schema_history`, for all tables in one order; return the new versions."""
    evolved = _evolve(steps.run, steps.run.source, steps.checkpoint_ts)
    dump = steps.dump
    if dump is not None and dump.has_rows_left and dump.fault is None and steps.loaded.waits is None:
        # A table was renamed to a name that the feed takes.
        _load(steps.run, dump)
    return evolved


def apply(steps: Steps) -> Applied:
    return apply_changes(steps.run, steps.checkpoint_ts, steps.run.only)


def publish(steps: Steps) -> Published:
    """Publish the cut in `checkpoints`, and remove the tables that the policy purges."""
    applied = steps.applied
    run, published = steps.run, _publish_cut(steps.run, applied)
    tables = CurrentTables(run.lake, run.feed)
    # Each run checks all of them, because the previous run may have ended between its cut and this.
    for life in () if applied.waiting else {**applied.lives, **applied.left}.values():
        if life.dropped_ts is None or not is_purged(run.feed, life):
            continue
        try:
            if (state := tables.find(life)) is not None:
                run.lake.on_write()
                run.lake.catalog.purge_table(state.identifier.parts)
                run.log.info("purged %s, which was dropped as %s", state.identifier, life.last.name)
        except Exception as error:  # noqa: BLE001 - One bad table never stops the others; the next run tries again.
            name = life.last.name
            run.log.warning("%s, which was dropped, stays: %s", name, hold_reason(error, "be purged", name))
    return published


STEPS: Final[tuple[Callable[[Steps], Any], ...]] = (load, land, decode, evolve, apply, publish)
STEPS_LOG_FIRST: Final[tuple[Callable[[Steps], Any], ...]] = (land, decode, load, evolve, apply, publish)
"""The order for logs that determine the commit-ts of the dump."""

_KINDS: Final = {FILE: "a storage sink", OFFSETS: "topics or a Canal server"}


def _result(step: Callable[[Steps], _Result]) -> functools.cached_property[_Result]:
    return functools.cached_property(lambda steps: steps.upto(step))


class Steps:
    """The steps of one run, and their results. Requesting a step runs those before it first. With the `error` that has
    ended the run no further step begins: it is raised in its place."""

    def __init__(self, run: FeedRun) -> None:
        self.run = run
        self._order = STEPS if run.source.dump_comes_first else STEPS_LOG_FIRST
        self._results: list[Any] = []
        self.error: Exception | None = None

    def upto(self, step: Callable[[Steps], _Result]) -> _Result:
        """Return the result of a step; it runs now, after those before it, unless it has run."""
        number = self._order.index(step)
        kinds = [] if self._results else self.run.segments.rows["kind"].unique().to_pylist()
        landed = {FILE, OFFSETS}.intersection(kinds)
        if landed and self.run.source.kind not in landed:
            # Positions and commit-ts of what has landed cannot be ordered with those of this source.
            was, now = (_KINDS[kind] for kind in (*landed, self.run.source.kind))
            message = f"the source is {now} in the configuration, and the feed's lake is of {was}"
            advice = "give the other source a feed of its own, with another name"
            raise ConfigurationError(message, feed=self.run.feed.name, advice=advice)
        for each in self._order[len(self._results) : number + 1]:
            self.run.require_lease()
            if self.error is not None:
                raise self.error
            # The errors of sources are the project's own already.
            with engine_errors():
                self._results.append(each(self))
        return self._results[number]

    loaded = _result(load)
    landed = _result(land)
    decoded = _result(decode)
    evolved = _result(evolve)
    applied = _result(apply)
    published = _result(publish)

    @functools.cached_property
    def dump(self) -> DumpSource | None:
        """The dump that the feed begins with."""
        initial = self.run.feed.initial
        return None if initial is None else DumpSource(self.run, initial)

    @property
    def checkpoint_ts(self) -> int:
        """The TSO up to which the run applies. For topics, messages contain it, so it is known once they are
        decoded."""
        self.upto(decode)
        if self.loaded.waits is not None:
            return self.run.last_cut.checkpoint_ts
        return self.run.source.checkpoint_ts()


def _load(run: FeedRun, dump: DumpSource) -> Decoded:
    # In the order of the log: its changes of tables up to a load come before the load, and those up to the dump's point
    # after it.
    log = [] if run.source.dump_comes_first else [run.source]
    for source in log:
        _evolve(run, source, dump.load_ts[0])
    dump.land()
    decoded = _decode_all(run, dump)
    for at in dump.load_ts:
        for source in [*log, dump]:
            _evolve(run, source, at)
    for source in log:
        _evolve(run, source, dump.checkpoint_ts())
    return decoded


def _decode_all(run: FeedRun, source: Source) -> Decoded:
    total = Decoded()
    while batches := run.segments.undecoded(source.kind):
        before = len(total.segments)
        progress = Progress(run.log, "segments are decoded", sum(len(segments) for segments in batches.values()))
        for segments in batches.values():
            run.require_lease()
            run.events.ensure()
            # A batch that an earlier run appended and did not mark is decoded again, in the place of its events: what
            # could not be used in it is not known otherwise.
            decoded, rejected = source.decode(segments)
            if decoded:
                names = {segment.segment for segment in decoded}

                # Quarantine rows from before the segments were decoded again are resolved. Discarded rows of a table
                # are found when they are applied, not here.
                def is_resolved(row: Quarantined, names: Collection[str] = names) -> bool:
                    return row.segment in names and not (row.state == "discarded" and row.error_class == BAD_VALUE)

                run.quarantine.replace(is_resolved, rejected, run.clock())
                decoded, counts = run.events.mark_decoded(decoded, run.clock(), rejected)
                of, number = plural(len(decoded), "segment"), decoded[0].batch
                run.log.info("batch %d: decoded %s, %d rejected", number, of, len(rejected))
                total = Decoded((*total.segments, *decoded), pa.concat_tables([total.counts, counts]))
            run.source.resolve_redelivered()
            require_few_rejected(run, {segment.landed_at for segment in decoded})
            progress.add(len(segments))
        if len(total.segments) == before or not source.land_left_out():
            break
    # A run that ended between the two steps has left this to do.
    run.source.resolve_redelivered()
    require_few_rejected(run)
    return total


def _evolve(run: FeedRun, source: Source, upto: int | None) -> Sequence[TableVersion]:
    found, rejected = source.schema_changes(upto)
    known = run.history.changes
    new = [change for change in found if known.get(change.origin) != change]
    kinds = {"row", "contradiction"} if source is run.source else set[str]()
    if run.loads:
        # What a row contradicts may be the dump, which the log does not know: the record judges it with both.
        kinds &= {"contradiction"} if any(change.kind == "text" for change in new) else set[str]()
    explained = run.history.held_by_rows(kinds, upto) - {change.origin for change in found}  # By a late statement.
    versions = run.history.record(new, run.clock(), explained)
    if versions:
        run.log.info("recorded %s", plural(len(versions), "schema version"))
    faults = source.schema_faults | {BAD_STATEMENT}
    rejected = [*rejected]
    for version in run.history.history.versions:
        # Statements that cannot be parsed and name no table of the feed.
        database, table = version.name.database, version.name.table
        is_taken = not table or run.feed.tables.takes(database, table)
        if version.kind == NOT_UNDERSTOOD and not version.incarnation and is_taken:
            reason = f"the statement is not understood, and names no table that is known: {version.note}"
            raw = version.query.encode(errors="replace")[:RAW_LIMIT]
            rejected.append(Rejected(version.origin, None, BAD_STATEMENT, reason, raw, database or None, table or None))
    run.quarantine.replace(lambda row: row.error_class in faults, rejected, run.clock())
    return versions


def _publish_cut(run: FeedRun, applied: Applied) -> Published:
    """Publish the cut, unless nothing has changed since the last one. Held tables are not part of a new one."""
    held = tuple(sorted(applied.held.items()))
    cut = Cut(applied.checkpoint_ts, run.segments.batch, len(run.history.history.versions), run.settings, held)
    # While tables wait that have not reached the checkpoint there is no new cut.
    is_same = applied.checkpoint_ts == BEGINNING or (cut == run.last_cut and not applied.tables)
    if is_same or applied.waiting:
        return Published(run.last_cut, tuple(run.last_cut_rows), False)
    before = {TableName(row.database, row.table): row for row in run.last_cut_rows}
    now = run.clock()
    changed = {table.life.id: table.state for table in applied.tables}
    tables = CurrentTables(run.lake, run.feed)
    rows: list[CutRow] = []
    for life in applied.lives.values():
        if life.dropped_ts is not None:
            continue
        name = life.last.name
        if life.id in applied.held:
            # Where a cut of the same moment is replaced, what it shows of the table stays its last good state.
            rows += [before[name]] if name in before and before[name].checkpoint_ts == cut.checkpoint_ts else []
            continue
        state = changed.get(life.id) or before.get(name)
        if state is None:
            try:
                state = tables.find(life)
            except UnreadableTableError as error:
                cut = replace(cut, held=tuple(sorted([*cut.held, (life.id, str(error))])))
                continue
        if state is not None:
            rows.append(CutRow(cut.checkpoint_ts, name.database, name.table, state.snapshot_id, state.row_count, now))
    run.checkpoints.publish(cut, rows)
    run.log.info("published the cut at %d: %s, %d held", cut.checkpoint_ts, plural(len(rows), "table"), len(cut.held))
    return Published(cut, tuple(rows), True)
