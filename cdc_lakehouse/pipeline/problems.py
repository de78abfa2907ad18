"""Problems of feeds for alerts, and which of them are new, over, or still open after a day."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from cdc_lakehouse.config import AlertReceiver, FeedConfig, ProblemKind
from cdc_lakehouse.pipeline.feed_state import FeedState, stale_tables

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
