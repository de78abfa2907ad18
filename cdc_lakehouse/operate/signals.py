"""What of a feed concerns people: each number and each problem once, in `SIGNALS`, for metrics, the status, checks and
alerts."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final, Literal

from cdc_lakehouse.changelog.positions import commit_time
from cdc_lakehouse.changelog.schema import TableName
from cdc_lakehouse.config import ProblemKind
from cdc_lakehouse.config.reporting import plural
from cdc_lakehouse.operate.state import FeedState, TableHealth
from cdc_lakehouse.pipeline.progress import time_span


@dataclass(frozen=True, slots=True)
class Problem:
    """A problem of a feed. subject: the affected part of the feed, such as a job or a held table. text: a sentence for
    people. brief: a shorter one, which problems can share."""

    feed: str
    kind: ProblemKind
    subject: str
    text: str
    brief: str = ""

    @property
    def key(self) -> str:
        """The identity of the problem: the numbers in its text may change."""
        return f"{self.feed} {self.kind} {self.subject}"


@dataclass(frozen=True, slots=True)
class Notification:
    """A problem that a receiver is notified of, when it was first seen, and when that is, in seconds since 1970."""

    problem: Problem
    since: float
    notified_at: float
    event: Literal["opened", "reminder", "over"] = "opened"

    def document(self) -> dict[str, Any]:
        problem = {name: getattr(self.problem, name) for name in ("feed", "kind", "subject", "text")}
        since = datetime.datetime.fromtimestamp(self.since, datetime.UTC)
        return {"event": self.event, **problem, "since": since.isoformat(timespec="seconds")}


# --- Signals ---


@dataclass(frozen=True, slots=True)
class Signal:
    """A number of a feed, or of each of its tables (`of_tables`), as metrics name it, with a sentence of help. `values`
    yields it with its table, None for the feed. `problems` says where it needs a person."""

    name: str
    help: str
    values: Callable[[FeedState], Iterable[tuple[TableName | None, float | None]]]
    problems: Callable[[FeedState], Iterable[Problem]] = lambda state: ()
    of_tables: bool = False


def _held(state: FeedState) -> Iterator[Problem]:
    for table, why in sorted(state.held.items(), key=str):
        yield Problem(state.feed.name, "held", str(table), f"the table {table} is held: {why}", f"{table} is held")


def _quarantined(state: FeedState) -> Iterator[Problem]:
    brief = f"{plural(state.quarantine.count(), 'row')} in quarantine"
    for table, rows in sorted(state.quarantined.items(), key=str):
        name = "" if table is None else str(table)
        where = f" of the table {name}" if name else ""
        text = f"{plural(rows, 'row')}{where} could not be used; `cdc-lakehouse quarantine list` shows them"
        yield Problem(state.feed.name, "quarantined", name, text, brief)


def _stale(state: FeedState) -> Iterator[Problem]:
    lag, at, limit = state.lag_seconds, state.checkpoint_ts, f"freshness_minutes is {state.feed.freshness_minutes}"
    if (state.watched_seconds if lag is None else lag) <= state.feed.freshness_minutes * 60:
        return
    if lag is None or at is None:
        text, brief = "nothing has been published yet", "nothing is published"
    else:
        text = f"the published cut shows {commit_time(at):%Y-%m-%d %H:%M} UTC"
        brief = f"the cut is {time_span(lag)} old, and {limit}"
    yield Problem(state.feed.name, "stale", "", f"{text}; {limit}", brief)


def _stale_tables(state: FeedState) -> Iterator[Problem]:
    for table in filter(state.is_late, state.tables):
        # Tables without a limit of their own are late with their feed, which is one problem.
        if allowed := state.feed.settings_of(table.database, table.table).freshness_minutes:
            said = f"{table} is {time_span(state.lag_of(table) or 0)} old, and its freshness_minutes is {allowed}"
            yield Problem(state.feed.name, "stale", str(table), f"the table {said}", said)


def _of_feed(value: Callable[[FeedState], float | None]) -> Any:
    return lambda state: [(None, value(state))]


def _of_health(value: Callable[[TableHealth], float | None]) -> Any:
    return lambda state: [(name, value(health)) for name, health in state.health.items() if health is not None]


SIGNALS: Final = (
    Signal("published_checkpoint_timestamp_seconds", "What the published cut shows, in seconds since 1970.",
           _of_feed(lambda state: state.checkpoint_ts and commit_time(state.checkpoint_ts).timestamp())),
    Signal("published_lag_seconds", "How far the published cut is behind the source.",
           _of_feed(lambda state: state.lag_seconds), _stale),
    Signal("freshness_limit_seconds", "freshness_minutes of the feed.",
           _of_feed(lambda state: state.feed.freshness_minutes * 60)),
    Signal("last_cut_timestamp_seconds", "When the last cut was published, in seconds since 1970.",
           _of_feed(lambda state: max((row.published_at.timestamp() for row in state.last_cut_rows), default=None))),
    Signal("tables", "Tables of the published cut.", _of_feed(lambda state: len(state.last_cut_rows))),
    Signal("held_tables", "Tables that stay at an earlier cut.", _of_feed(lambda state: len(state.held)), _held),
    Signal("quarantined_rows", "Rows that could not be used and are open.",
           _of_feed(lambda state: state.quarantine.count()), _quarantined),
    Signal("discarded_rows", "Rows that could not be used and were given up.",
           _of_feed(lambda state: state.quarantine.count("discarded"))),
    Signal("events", "Rows of the table events.", _of_feed(lambda state: state.event_count)),
    Signal("records_read_one_by_one", "Lines and messages read one by one: of rare forms, or too few for more.",
           _of_feed(lambda state: state.segments.read_one_by_one())),
    Signal("segments_waiting", "Segments that are landed and not decoded.",
           _of_feed(lambda state: state.segments.waiting())),
    Signal("table_rows", "Rows of a table in the published cut.",
           lambda state: [(TableName(row.database, row.table), row.row_count) for row in state.last_cut_rows],
           of_tables=True),
    Signal("table_lag_seconds", "How far what readers see of a table is behind the source.",
           lambda state: [(table, state.lag_of(table)) for table in state.tables], _stale_tables, of_tables=True),
    Signal("table_held", "1 for a table that stays at an earlier cut.",
           lambda state: [(table, 1) for table in state.tables if table in state.held], of_tables=True),
    Signal("table_files", "Data files of a table.", _of_health(lambda health: health.files), of_tables=True),
    Signal("table_average_file_bytes", "Average size of a data file of a table, with its deletion vectors.",
           _of_health(lambda health: health.average_bytes), of_tables=True),
    Signal("table_delete_ratio", "Share of the rows in the data files of a table that are deleted.",
           _of_health(lambda health: health.delete_ratio), of_tables=True),
    Signal("table_last_compaction_timestamp_seconds", "When maintenance last rewrote files of a table, in seconds "
           "since 1970.", _of_health(lambda health: health.compacted_at and health.compacted_at.timestamp()),
           of_tables=True),
)  # fmt: skip


def find_problems(state: FeedState, *kinds: ProblemKind) -> list[Problem]:
    """Return the problems that the lake shows, of these kinds or of all."""
    found = [problem for signal in SIGNALS for problem in signal.problems(state)]
    return sorted((each for each in found if not kinds or each.kind in kinds), key=lambda each: each.kind)
