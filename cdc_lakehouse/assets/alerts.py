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
from typing import Final

import dagster as dg
from pydantic import BaseModel, ValidationError

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

KINDS: Final[frozenset[ProblemKind]] = frozenset({"failed", "check", "maintenance"})
"""Problems that Dagster knows of."""


def run_problems(
    instance: dg.DagsterInstance, lake: Lake, feed: FeedConfig, checks: Collection[dg.AssetCheckKey],
    watched: datetime.datetime, now: datetime.datetime,
) -> Iterator[Problem]:  # fmt: skip
    """Yield the failed runs and checks of a feed, and overdue maintenance. `checks` are those of all assets in the code
    location; `watched` is since when the feed is watched."""
    # This reports a run whose process is gone as failed.
    find_unfinished(instance, lake, feed.name, now)
    for run in last_runs(instance, feed.name):
        if run.error is not None:
            of_job = f" of {run.job}" if run.job else ""
            yield Problem(feed.name, "failed", run.job, f"run {run.run_id}{of_job}: {run.error}")
    # Checks whose last evaluation failed with an error: warnings are only shown in Dagster.
    own = [key for key in checks if keys.belongs_to_feed(feed.name, key.asset_key) and key.name not in WITH_OWN_ALERTS]
    for key, evaluation in sorted(failed_checks(instance, own).items(), key=lambda item: str(item[0])):
        if evaluation.severity == dg.AssetCheckSeverity.ERROR:
            asset, why = key.asset_key.to_user_string(), evaluation.description or "its page in Dagster has the numbers"
            said = f"the check {key.name} of {asset} failed: {why}"
            yield Problem(feed.name, "check", f"{asset} {key.name}", said)
    cron = feed.maintenance.schedule
    if cron is None:
        return
    # Maintenance has until its next tick is due: it is to have succeeded since the tick before the last one.
    ticks = dg.TimeWindowPartitionsDefinition(start=now, fmt="%Y-%m-%d %H:%M", cron_schedule=cron)
    between = ticks.get_prev_partition_window(now, respect_bounds=False)
    assert between is not None
    succeeded = dg.RunsFilter(job_name=f"{feed.name}_maintenance", statuses=[dg.DagsterRunStatus.SUCCESS])
    last, ended = next(iter(instance.get_run_records(succeeded, limit=1)), None), watched
    if last is not None and last.end_time is not None:
        ended = datetime.datetime.fromtimestamp(last.end_time, datetime.UTC)
    if max(ended, watched) < between.start:
        never = "has not succeeded" if last is None else f"last succeeded at {ended:%Y-%m-%d %H:%M} UTC"
        yield Problem(feed.name, "maintenance", "", f"maintenance {never}, and is due by {cron!r}: its runs say why")


class _CursorState(BaseModel):
    """The cursor. watched: since when each feed is watched, in seconds since 1970. notified: by receiver, then by key
    of the problem."""

    watched: dict[str, float] = {}
    notified: dict[str, dict[str, NotifiedProblem]] = {}


_Notified = tuple[str, dict[str, NotifiedProblem], bool, AlertNotSentError | None]
"""The label of a receiver, what it was notified of, whether there was a message, and why it was not taken."""


def build_alerts(lake: Lake, config: LakehouseConfig) -> dg.Definitions:
    """Define the sensor, if the configuration has receivers."""
    if not config.alerts:
        return dg.Definitions()

    @dg.sensor(
        name="cdc_alerts",
        minimum_interval_seconds=60,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description="Tells the receivers of failed runs and checks, held tables, stale feeds and quarantined rows.",
    )
    def alert(context: dg.SensorEvaluationContext) -> dg.SensorResult:
        try:
            memory = _CursorState.model_validate_json(context.cursor or "{}")
        except ValidationError:  # It is of another form: open problems are sent once more.
            memory = _CursorState()
        checks = context.repository_def.asset_graph.asset_check_keys if context.repository_def is not None else ()
        time = utc_now()
        now, names = time.timestamp(), [feed.name for feed in config.feeds]
        memory.watched = {name: memory.watched.get(name, now) for name in names}
        problems: list[Problem] = []
        unread: set[tuple[str, bool]] = set()
        for feed in config.feeds:
            watched = datetime.datetime.fromtimestamp(memory.watched[feed.name], datetime.UTC)
            state = FeedState(lake, feed, time, watched_seconds=now - memory.watched[feed.name])
            of_instance = functools.partial(run_problems, context.instance, lake, feed, checks, watched, time)
            for of_runs, find in ((True, of_instance), (False, functools.partial(find_problems, state))):
                try:
                    problems += list(find())
                except CdcError as error:
                    unread.add((feed.name, of_runs))
                    context.log.error(f"feed {feed.name}: {error}")

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
        # A receiver has accepted what is kept here.
        memory.notified = {label: known for label, known, _, _ in found}
        errors = [(label, error) for label, _, _, error in found if error is not None]
        for label, error in errors:
            context.log.error(f"{label} did not take a message, which is tried again: {error}")
        messages = sum(is_told for _, _, is_told, _ in found)
        taken = f"{messages - len(errors)} of {plural(messages, 'message')} taken"
        sent = f"{plural(len(problems), 'problem')}; {taken}"
        return dg.SensorResult(skip_reason=dg.SkipReason(sent), cursor=memory.model_dump_json())

    return dg.Definitions(sensors=[alert])
