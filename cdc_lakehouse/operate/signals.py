"""What of a feed concerns people: its problems for alerts, with which of them are new, over, or still open after a day,
and the contents of its report."""

from __future__ import annotations

import datetime
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from cdc_lakehouse.changelog.positions import BEGINNING
from cdc_lakehouse.changelog.schema import TableName, TableVersion
from cdc_lakehouse.config import AlertReceiver, FeedConfig, ProblemKind
from cdc_lakehouse.decoders.arrow import pc
from cdc_lakehouse.lake.catalog import Lake
from cdc_lakehouse.lake.tables.checkpoints import CutRow
from cdc_lakehouse.lake.tables.quarantine import Quarantined
from cdc_lakehouse.lake.tables.segments import DECODED, FILE, OFFSETS, SUMMARY, Totals, totals
from cdc_lakehouse.operate.state import (
    FeedState,
    TableHealth,
    changes_by_table,
    held_by_name,
    read_health,
    stale_tables,
)
from cdc_lakehouse.pipeline.feed_tables import unmatched_patterns
from cdc_lakehouse.pipeline.run import FeedRun
from cdc_lakehouse.pipeline.source import SourceStatus, open_monitor

REMINDER_SECONDS: Final = 24 * 3600


@dataclass(frozen=True, slots=True)
class Problem:
    """A problem of a feed. subject: the affected part of the feed, such as a job or a held table. text: a sentence for
    people."""

    feed: str
    kind: ProblemKind
    subject: str
    text: str

    @property
    def key(self) -> str:
        """The identity of the problem: the numbers in its text may change."""
        return f"{self.feed} {self.kind} {self.subject}"

    def document(self) -> dict[str, Any]:
        """Return the problem as a document, in which it is sent to receivers and stored."""
        return {"feed": self.feed, "kind": self.kind, "subject": self.subject, "text": self.text}


@dataclass(frozen=True, slots=True)
class NotifiedProblem:
    """An open problem that a receiver was notified of. Times are seconds since 1970: since when it is open, and when
    the receiver was last notified."""

    problem: Problem
    since: float
    notified_at: float

    def stored(self) -> dict[str, Any]:
        return {**self.problem.document(), "since": self.since, "told_at": self.notified_at}

    @classmethod
    def of_stored(cls, stored: Mapping[str, Any]) -> NotifiedProblem:
        """Parse a stored document. Raises `KeyError`, `TypeError` or `ValueError` when it is something else."""
        problem = Problem(feed=stored["feed"], kind=stored["kind"], subject=stored["subject"], text=stored["text"])
        return cls(problem, since=float(stored["since"]), notified_at=float(stored["told_at"]))


@dataclass(frozen=True, slots=True)
class Notification:
    """One problem in a message. since: when it was first seen, in seconds since 1970."""

    event: Literal["opened", "reminder", "over"]
    problem: Problem
    since: float

    def document(self) -> dict[str, Any]:
        since = datetime.datetime.fromtimestamp(self.since, datetime.UTC)
        return {"event": self.event, **self.problem.document(), "since": since.isoformat(timespec="seconds")}


def lake_problems(feed: FeedConfig, state: FeedState, watched_seconds: float) -> Iterator[Problem]:
    """Yield the problems that the lake shows: held tables, rows that could not be used, a cut or a table that is too
    old. For a feed that has published nothing, its age counts from when it is watched."""
    for table, reason in sorted(state.held.items(), key=str):
        yield Problem(feed.name, "held", str(table), f"the table {table} is held: {reason}")
    for table, rows in sorted(state.quarantined.items(), key=str):
        name = "" if table is None else str(table)
        where = f" of the table {name}" if name else ""
        advice = "`cdc-lakehouse quarantine list` shows them"
        yield Problem(feed.name, "quarantined", name, f"{rows} rows{where} could not be used; {advice}")
    if (watched_seconds if state.lag_seconds is None else state.lag_seconds) > feed.freshness_minutes * 60:
        at = state.checkpoint_time
        shown = "nothing has been published yet" if at is None else f"the published cut shows {at:%Y-%m-%d %H:%M} UTC"
        yield Problem(feed.name, "stale", "", f"{shown}; freshness_minutes is {feed.freshness_minutes}")
    for table, lag, allowed in stale_tables(feed, state):
        text = f"the table {table} is {lag / 60:.0f} minutes old"
        yield Problem(feed.name, "stale", str(table), f"{text}; its freshness_minutes is {allowed}")


def plan_notifications(
    receiver: AlertReceiver,
    problems: Sequence[Problem],
    is_known: Callable[[Problem], bool],
    notified: Mapping[str, NotifiedProblem],
    now: float,
) -> tuple[list[Notification], dict[str, NotifiedProblem]]:
    """What a receiver is to be told, and what it was told of once it has taken that.

    `is_known` says whether a problem of before would be among `problems` if it were still there; where that could not
    be read, it stays open. `notified` and the result are by the problems' keys."""
    notifications: list[Notification] = []
    then: dict[str, NotifiedProblem] = {}
    for problem in problems:
        if not receiver.takes(problem.feed, problem.kind):
            continue
        before = notified.get(problem.key)
        if before is None:
            notifications.append(Notification("opened", problem, now))
            then[problem.key] = NotifiedProblem(problem, now, now)
        elif now - before.notified_at >= REMINDER_SECONDS:
            notifications.append(Notification("reminder", problem, before.since))
            then[problem.key] = NotifiedProblem(problem, before.since, now)
        else:
            then[problem.key] = before
    for key, before in notified.items():
        if key in then or not receiver.takes(before.problem.feed, before.problem.kind):
            continue
        if is_known(before.problem):
            notifications.append(Notification("over", before.problem, before.since))
        else:
            then[key] = before
    return notifications, then


# The contents of a feed's report, from the lake's own tables and the source. No JVM is started, nothing is written.

_DATES_OF_CHANGES: Final = 7
"""The number of feed dates for which a table's changes are counted: its recent rate, and a limit to what is read."""


@dataclass(frozen=True)
class ReportedTable:
    """A table of the last cut, or a held one. row: of the last cut that has the table. health: of the table now.
    changes: its inserts, updates and deletes on the counted dates; None when it has none."""

    name: TableName
    row: CutRow | None
    held: str | None
    health: TableHealth | None
    changes: tuple[int, int, int] | None


@dataclass(frozen=True)
class ReportedCut:
    """A published cut: when (UTC), and how many tables and rows it shows."""

    checkpoint_ts: int
    published_at: datetime.datetime
    tables: int
    rows: int


@dataclass(frozen=True)
class FeedReport:
    """One feed at a moment. by_date: what was decoded, by feed date, oldest first; None for segments without a date.
    changes_since: the first date for which tables' changes are counted; None for a feed without dates, where all are.
    ddl: versions that a statement made, newest first. cuts: newest first."""

    feed: str
    at: datetime.datetime
    source: SourceStatus
    tables: Sequence[ReportedTable]
    decoded: Totals
    by_date: Sequence[tuple[str | None, Totals]]
    changes_since: str | None
    ddl: Sequence[TableVersion]
    cuts: Sequence[ReportedCut]
    quarantine: Sequence[Quarantined]
    contradictions: Sequence[str]
    warnings: Sequence[str]


def report(feed: FeedConfig, lake: Lake, now: datetime.datetime) -> FeedReport:
    """Report on a feed. An unreachable source is recorded in its status."""
    run = FeedRun(feed, lake, clock=lambda: now)
    source = open_monitor(lake, feed).status()
    decoded = run.segments.rows.filter(pc.field("state") == DECODED)
    dated = decoded.filter(pc.field("kind") != SUMMARY)
    dates = sorted(pc.unique(dated["feed_date"]).to_pylist(), key=lambda date: date or "")
    since = next(iter([date for date in dates if date is not None][-_DATES_OF_CHANGES:]), None)
    history = run.history.history
    return FeedReport(
        feed.name,
        now,
        source,
        _tables(run, since),
        totals(decoded),
        [(date, totals(dated.filter(_is(date)))) for date in dates],
        since,
        [v for v in reversed(history.versions) if v.query and v.kind != "seen"],
        _cuts(run),
        run.quarantine.open(),
        [
            f"{conflict.topic}/{conflict.partition} from offset {conflict.offset} on: {conflict.reason}"
            for conflict in source.option_conflicts
        ],
        unmatched_patterns(feed.tables, history),
    )


def _is(date: str | None) -> Any:
    return pc.field("feed_date").is_null() if date is None else pc.field("feed_date") == date


def _tables(run: FeedRun, since: str | None) -> list[ReportedTable]:
    held = held_by_name(run.last_cut.held, run.history.history.incarnations())
    rows = {name: run.checkpoints.last_of(name) for name in held}
    if run.last_cut.checkpoint_ts != BEGINNING:
        rows |= {TableName(row.database, row.table): row for row in run.last_cut_rows}
    changes = _changes(run, since)
    return [
        ReportedTable(name, row, held.get(name), read_health(run.lake, run.feed, name), changes.get(name))
        for name, row in sorted(rows.items(), key=lambda each: str(each[0]))
    ]


def _changes(run: FeedRun, since: str | None) -> Mapping[TableName, tuple[int, int, int]]:
    """Count the changes of tables, by the counts of files, each of which belongs to one table, otherwise by the
    events."""
    rows = run.segments.rows
    if OFFSETS in rows["kind"].unique().to_pylist():
        counted = changes_by_table(run.lake, run.feed.name, since)
        return {name: (ops["I"], ops["U"], ops["D"]) for name, ops in counted.items()}
    rows = rows.filter((pc.field("kind") == FILE) & (pc.field("state") == DECODED))
    if since is not None:
        rows = rows.filter(pc.field("feed_date") >= since)
    none_is_0 = pc.ScalarAggregateOptions(min_count=0)
    sums = [(column, "sum", none_is_0) for column in ("inserts", "updates", "deletes")]
    columns = rows.group_by(["database", "table"]).aggregate(sums).to_pydict().values()
    return {TableName(database, table): tuple(counts) for database, table, *counts in zip(*columns, strict=True)}


def _cuts(run: FeedRun) -> list[ReportedCut]:
    tables: Counter[int] = Counter()
    rows: Counter[int] = Counter()
    published: dict[int, datetime.datetime] = {}
    for row in run.checkpoints.all_rows():
        tables[row.checkpoint_ts] += 1
        rows[row.checkpoint_ts] += row.row_count
        published[row.checkpoint_ts] = row.published_at
    return [ReportedCut(ts, published[ts], tables[ts], rows[ts]) for ts in sorted(published, reverse=True)]
