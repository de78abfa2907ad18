"""Decisions of people, on which the next run acts: hold a table, resume it, or decode quarantined rows again.

Segments of quarantined rows land again. They keep their identity, and their rows their place in the order of events.
"""

from __future__ import annotations

import datetime
from collections import defaultdict
from collections.abc import Iterable, Sequence

from cdc_lakehouse.changelog.history import Incarnation
from cdc_lakehouse.changelog.schema import TableName, TableVersion
from cdc_lakehouse.errors import ConfigurationError
from cdc_lakehouse.lake.current.tables import CurrentTables
from cdc_lakehouse.lake.tables.quarantine import Decision, Quarantined
from cdc_lakehouse.lake.tables.segments import DECODED, DUMP, MOVED_ROWS, REPAIR, Kind, Segment
from cdc_lakehouse.pipeline.dump import DumpSource
from cdc_lakehouse.pipeline.feed_tables import is_taken
from cdc_lakehouse.pipeline.holds import unapproved
from cdc_lakehouse.pipeline.run import FeedRun


def hold_table(run: FeedRun, table: str, reason: str, decided_by: str, now: datetime.datetime) -> None:
    """Hold a table (`database.table`) at its last cut. Raises `ConfigurationError` when the feed has no such table."""
    life = _live(run, table)
    name = life.last.name
    run.decisions.add(Decision("hold", life.id, name.database, name.table, now, decided_by, reason))


def resume_table(run: FeedRun, table: str, now: datetime.datetime) -> tuple[Decision | None, list[TableVersion]]:
    """Resume a table that a person holds, or whose rewrite waits; return the hold that was removed, and the versions
    whose rewrite is approved. A hold is found by the table's current name, or by its name when it was held."""
    lives = {id: life for id, life in run.history.history.incarnations().items() if str(life.last.name) == table}
    holds = run.decisions.holds()
    of_table = (each for each in holds if each.incarnation in lives or f"{each.database}.{each.table}" == table)
    if (hold := next(of_table, None)) is not None:
        run.decisions.release(hold.incarnation)
    tables = CurrentTables(run.lake, run.feed)
    approved: list[TableVersion] = []
    for life in lives.values():
        if waiting := unapproved(run.feed, run.decisions, life, tables.find):
            name, upto = life.last.name, waiting[-1].commit_ts
            run.decisions.add(Decision("rewrite", life.id, name.database, name.table, now, commit_ts=upto))
            approved += waiting
    return hold, approved


def tables_named(run: FeedRun, tables: Iterable[str]) -> frozenset[TableName]:
    """Return the live tables of these names (`database.table`). Raises `ConfigurationError` when a name has none."""
    return frozenset(_live(run, table).last.name for table in tables)


def _live(run: FeedRun, table: str) -> Incarnation:
    for life in run.history.history.incarnations().values():
        if str(life.last.name) == table and life.dropped_ts is None and is_taken(run.feed.tables, life):
            return life
    raise ConfigurationError(
        f"the feed has no table {table}", feed=run.feed.name, advice="name one as database.table that `status` lists"
    )


def replay(run: FeedRun, rows: Sequence[Quarantined]) -> tuple[list[Segment], list[Quarantined]]:
    """Land the segments of the rows again; rows that a person had discarded are opened again. Return the segments that
    the next run decodes again, including others that must be decoded with them, and the rows that each run retries by
    itself, such as a file that cannot be read. Needs no JVM.

    Raises `SourceError` when a source no longer has a segment, and `ConcurrentRunError` when another run has written
    meanwhile."""
    known = run.segments.find(row.segment for row in rows).values()
    wanted: dict[Kind, list[Segment]] = defaultdict(list)
    for segment in known:
        if segment.state == DECODED and segment.kind not in (MOVED_ROWS, REPAIR):
            wanted[segment.kind].append(segment)
    landed: list[Segment] = []
    for kind, segments in wanted.items():
        if kind == run.source.kind:
            landed += run.source.replay(segments)
        elif kind == DUMP and run.feed.initial is not None:
            landed += DumpSource(run, run.feed.initial).replay(segments)
        else:
            said = f"the feed has no source of segments of kind {kind} any more"
            raise ConfigurationError(said, feed=run.feed.name, advice="set it back to what it was when they landed")
    # Last: where this ends before, the command can be repeated.
    run.quarantine.reopen({row.id for row in rows})
    names = {segment.segment for segment in landed}
    return landed, [row for row in rows if row.segment not in names]
