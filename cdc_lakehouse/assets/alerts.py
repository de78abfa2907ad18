"""The sensor that notifies receivers of problems: when one opens, once a day while it lasts, and when it is over.

Its cursor holds what each receiver was notified of. A receiver that does not accept a message is tried again at the
next tick. No JVM is started, and the sources are not queried.
"""

from __future__ import annotations

import datetime
import functools
import itertools
from collections.abc import Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Final

import dagster as dg
from pydantic import TypeAdapter, ValidationError

from cdc_lakehouse.assets import keys
from cdc_lakehouse.assets.checks import WITH_OWN_ALERTS
from cdc_lakehouse.assets.runs import failed_checks, find_unfinished, last_runs
from cdc_lakehouse.changelog.positions import utc_now
from cdc_lakehouse.config import AlertReceiver, FeedConfig, LakehouseConfig, ProblemKind
from cdc_lakehouse.config.reporting import plural
from cdc_lakehouse.errors import AlertNotSentError, CdcError
from cdc_lakehouse.lake.catalog import Lake
from cdc_lakehouse.operate.alerts import receiver_label, send
from cdc_lakehouse.operate.signals import NotifiedProblem, Problem, find_problems, plan_notifications
from cdc_lakehouse.operate.state import FeedState

# Problems of a feed that Dagster knows of: failed runs and checks, and overdue maintenance.

KINDS: Final[frozenset[ProblemKind]] = frozenset({"failed", "check", "maintenance"})


def run_problems(
    instance: dg.DagsterInstance,
    lake: Lake,
    feed: FeedConfig,
    checks: Collection[dg.AssetCheckKey],
    watched: datetime.datetime,
    now: datetime.datetime,
) -> Iterator[Problem]:
    """Yield the problems of a feed. `checks` are those of all assets in the code location; `watched` is since when the
    feed is watched."""
    # This reports a run whose process is gone as failed.
    find_unfinished(instance, lake, feed.name, now)
    for run in last_runs(instance, feed.name):
        if run.error is not None:
            of_job = f" of {run.job}" if run.job else ""
            yield Problem(feed.name, "failed", run.job, f"run {run.run_id}{of_job}: {run.error}")
    yield from _failed_checks(instance, feed.name, checks)
    yield from _overdue_maintenance(instance, feed, watched, now)


def _failed_checks(instance: dg.DagsterInstance, feed: str, checks: Collection[dg.AssetCheckKey]) -> Iterator[Problem]:
    """Yield the checks whose last evaluation failed with an error. Warnings are only shown in Dagster."""
    own = [key for key in checks if keys.belongs_to_feed(feed, key.asset_key) and key.name not in WITH_OWN_ALERTS]
    for key, evaluation in sorted(failed_checks(instance, own).items(), key=lambda item: str(item[0])):
        if evaluation.severity == dg.AssetCheckSeverity.ERROR:
            asset, why = key.asset_key.to_user_string(), evaluation.description or "its page in Dagster has the numbers"
            yield Problem(feed, "check", f"{asset} {key.name}", f"the check {key.name} of {asset} failed: {why}")


def _overdue_maintenance(
    instance: dg.DagsterInstance, feed: FeedConfig, watched: datetime.datetime, now: datetime.datetime
) -> Iterator[Problem]:
    """Yield a problem when maintenance has not succeeded since the tick before the last one: a pass has until the next
    one is due."""
    cron = feed.maintenance.schedule
    if cron is None:
        return
    ticks = dg.TimeWindowPartitionsDefinition(start=now, fmt="%Y-%m-%d %H:%M", cron_schedule=cron)
    between = ticks.get_prev_partition_window(now, respect_bounds=False)
    assert between is not None
    succeeded = dg.RunsFilter(job_name=f"{feed.name}_maintenance", statuses=[dg.DagsterRunStatus.SUCCESS])
    last = next(iter(instance.get_run_records(succeeded, limit=1)), None)
    ended = (
        watched
        if last is None or last.end_time is None
        else datetime.datetime.fromtimestamp(last.end_time, datetime.UTC)
    )
    if max(ended, watched) < between.start:
        never = "has not succeeded" if last is None else f"last succeeded at {ended:%Y-%m-%d %H:%M} UTC"
        yield Problem(feed.name, "maintenance", "", f"maintenance {never}, and is due by {cron!r}: its runs say why")


SENSOR: Final = "cdc_alerts"
_INTERVAL_SECONDS: Final = 60


@dataclass
class _CursorState:
    """The cursor. watched: since when each feed is watched, in seconds since 1970. notified: by receiver, then by key
    of the problem."""

    watched: dict[str, float] = field(default_factory=dict[str, float])
    notified: dict[str, dict[str, NotifiedProblem]] = field(default_factory=dict[str, dict[str, NotifiedProblem]])

    @classmethod
    def of(cls, cursor: str | None) -> _CursorState:
        """Parse a cursor; empty for one of another form, so that open problems are sent once more."""
        try:
            return _CURSOR.validate_json(cursor or "{}")
        except ValidationError:
            return cls()

    def cursor(self) -> str:
        return _CURSOR.dump_json(self).decode()


_CURSOR: Final = TypeAdapter(_CursorState)


def build_alerts(lake: Lake, config: LakehouseConfig) -> dg.Definitions:
    """Define the sensor, if the configuration has receivers."""
    if not config.alerts:
        return dg.Definitions()

    @dg.sensor(
        name=SENSOR,
        minimum_interval_seconds=_INTERVAL_SECONDS,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description="Tells the receivers of failed runs and checks, held tables, stale feeds and quarantined rows.",
    )
    def alert(context: dg.SensorEvaluationContext) -> dg.SensorResult:
        memory = _CursorState.of(context.cursor)
        checks = context.repository_def.asset_graph.asset_check_keys if context.repository_def is not None else ()
        sent = notify_receivers(context.instance, lake, config, checks, memory, context.log)
        return dg.SensorResult(skip_reason=dg.SkipReason(sent), cursor=memory.cursor())

    return dg.Definitions(sensors=[alert])


_Notified = tuple[str, dict[str, NotifiedProblem], bool, AlertNotSentError | None]
"""The label of a receiver, what it was notified of, whether there was a message, and why it was not taken."""


def notify_receivers(
    instance: dg.DagsterInstance,
    lake: Lake,
    config: LakehouseConfig,
    checks: Collection[dg.AssetCheckKey],
    memory: _CursorState,
    log: Any,
) -> str:
    """Send each receiver what is new to it, and record in the memory what it has accepted. Return a sentence about
    it."""
    time = utc_now()
    now = time.timestamp()
    names = [feed.name for feed in config.feeds]
    memory.watched = {name: memory.watched.get(name, now) for name in names}
    problems: list[Problem] = []
    unread: set[tuple[str, bool]] = set()
    for feed in config.feeds:
        watched = datetime.datetime.fromtimestamp(memory.watched[feed.name], datetime.UTC)
        state = FeedState(lake, feed, time, watched_seconds=now - memory.watched[feed.name])
        of_instance = functools.partial(run_problems, instance, lake, feed, checks, watched, time)
        for of_runs, find in ((True, of_instance), (False, functools.partial(find_problems, state))):
            try:
                problems += list(find())
            except CdcError as error:
                unread.add((feed.name, of_runs))
                log.error(f"feed {feed.name}: {error}")

    def notify(position: int, receiver: AlertReceiver) -> _Notified:
        label = receiver_label(receiver, position)
        known = {key: each for key, each in memory.notified.get(label, {}).items() if each.problem.feed in names}
        notifications, then = plan_notifications(
            receiver, problems, lambda problem: (problem.feed, problem.kind in KINDS) not in unread, known, now
        )
        try:
            if notifications:
                send(receiver, notifications)
        except AlertNotSentError as error:
            return label, known, True, error
        return label, then, bool(notifications), None

    # Concurrently: a tick has a minute, and a receiver that does not answer takes seconds.
    with ThreadPoolExecutor(max_workers=len(config.alerts)) as pool:
        found = list(pool.map(notify, itertools.count(), config.alerts))
    memory.notified = {label: known for label, known, _, _ in found}
    errors = [(label, error) for label, _, _, error in found if error is not None]
    for label, error in errors:
        log.error(f"{label} did not take a message, which is tried again: {error}")
    messages = sum(is_told for _, _, is_told, _ in found)
    return f"{plural(len(problems), 'problem')}; {messages - len(errors)} of {plural(messages, 'message')} taken"
