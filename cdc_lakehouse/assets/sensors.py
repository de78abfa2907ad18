"""The sensor of a feed: it requests one run for what is new in the source, and retries failed runs. And the sensor that
notifies receivers of problems. No JVM is started.
"""

import datetime
import functools
import logging
import threading
from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, Final

import dagster as dg
import grpc
from pydantic import BaseModel, ValidationError

from cdc_lakehouse.assets import keys, runs
from cdc_lakehouse.assets.checks import WITH_OWN_ALERTS
from cdc_lakehouse.assets.runs import attempt_of, find_unfinished, retry_at, run_tags
from cdc_lakehouse.changelog.positions import utc_now
from cdc_lakehouse.changelog.schema import TableName
from cdc_lakehouse.config import AlertReceiver, FeedConfig, LakehouseConfig, ProblemKind
from cdc_lakehouse.config.reporting import plural
from cdc_lakehouse.errors import AlertNotSentError, CdcError
from cdc_lakehouse.lake.catalog import Lake, system_table
from cdc_lakehouse.operate.alerts import receiver_label, send
from cdc_lakehouse.operate.signals import Notification, Problem, find_problems
from cdc_lakehouse.operate.state import FeedState
from cdc_lakehouse.pipeline.feed_tables import known_tables
from cdc_lakehouse.pipeline.run import FeedRun
from cdc_lakehouse.pipeline.source import SourceState, record_look

_RELOAD_SECONDS: Final = 300
_REMINDER_SECONDS: Final = 24 * 3600
_LOG: Final = logging.getLogger("cdc_lakehouse")


@dataclass(frozen=True)
class Decision:
    """The decision of a tick: a run with `run_key`, or none, and why. `state` is what the source shows, None if not
    asked. `attempt` counts earlier runs that failed."""

    run_key: str | None
    reason: str
    state: SourceState | None = None
    attempt: int = 0


def build_sensor(lake: Lake, feed: FeedConfig, jobs: Sequence[Any], tables: Sequence[TableName]) -> dg.SensorDefinition:
    """Define the sensor that requests runs of the first of the feed's jobs. It targets the others for their assets, so
    that the page of an asset names the sensor that updates it. It does not query the source while a run or a backfill
    of the feed is unfinished. When the lake's tables differ from the known `tables`, it reloads the code location."""
    shown, looked_at, is_asked = FeedRun(feed, lake).source.shown, list[str | None]([None]), threading.Event()

    def reload_if_outdated(origin: Any, log: logging.Logger) -> None:
        """Ask the code server to load its code again, once, when the lake's tables are not those that are assets, so
        that new ones become assets by themselves."""
        if is_asked.is_set():
            return
        table = lake.load(system_table(feed.name, "schema_history"))
        before, looked_at[0] = looked_at[0], None if table is None else table.metadata_location
        if looked_at[0] == before or known_tables(lake, feed) == list(tables):
            return
        is_asked.set()
        if (server := runs.code_server(origin)) is None:
            log.warning("the tables of feed %s have changed: reload the code location to see them", feed.name)
            return
        log.info("the tables of feed %s have changed: the code location is loaded again", feed.name)

        def reload() -> None:
            try:
                server.reload_code(timeout=_RELOAD_SECONDS)
            except dg.DagsterError as error:
                cause = error.__cause__
                if isinstance(cause, grpc.RpcError) and cause.code() == grpc.StatusCode.UNIMPLEMENTED:  # ty: ignore
                    _LOG.warning("this code server cannot load its code again: restart it to see new tables")
                else:
                    _LOG.warning("the code location could not be loaded again: %s", error)

        # In a thread, not in the tick: the new server starts while this one still answers.
        threading.Thread(target=reload, name="reload", daemon=True).start()

    @dg.sensor(
        name=f"{feed.name}_{shown.sensor}",
        jobs=jobs,
        minimum_interval_seconds=30,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description=shown.sensor_description,
    )
    def follow_source(context: dg.SensorEvaluationContext) -> dg.SensorResult | dg.SkipReason:
        try:
            reload_if_outdated(context.code_location_origin, context.log)
            # Between two of its runs a backfill has no run.
            for backfill in runs.requested_backfills(context.instance):
                if any(keys.belongs_to_feed(feed, key) for key in backfill.asset_selection or ()):
                    return dg.SkipReason(f"backfill {backfill.backfill_id} of the feed is not finished")
            decision = poll_source(context.instance, lake, feed, context.cursor)
        except CdcError as error:
            context.log.error(error.coded)
            return dg.SkipReason(error.coded)
        state = decision.state
        for fault in () if state is None else state.faults:
            context.log.error(str(fault))
        if state is None or decision.run_key is None:
            return dg.SkipReason(decision.reason)
        # Nobody waits for it: the runs of people and backfills have the priority 0.
        tags = {"dagster/priority": "-1", **run_tags(feed, decision.attempt)}
        request = dg.RunRequest(run_key=decision.run_key, tags=tags, job_name=jobs[0].name)
        return dg.SensorResult(run_requests=[request], cursor=state.cursor)

    return follow_source


def poll_source(instance: dg.DagsterInstance, lake: Lake, feed: FeedConfig, cursor: str | None) -> Decision:
    """Decide on one run for what the source shows, and on another when that run is to be retried (see `retry_at`).
    The source is not queried while a run of the feed is unfinished. `cursor` is the last requested run's. Raises as
    `poll` does. Whoever wants no runs stops the sensor."""
    now = utc_now()
    if (unfinished := find_unfinished(instance, lake, feed, now)) is not None:
        return Decision(None, unfinished)
    # Opened for each look: credentials may be replaced while it is followed for days.
    source = FeedRun(feed, lake).source
    state = source.poll(cursor)
    if not (state.waiting or state.faults or source.shows_time):
        record_look(lake, feed.name, now)
    if state.waiting and state.new:
        return Decision(f"{feed.name}:{state.cursor}", state.reason, state)
    last = next(iter(instance.get_run_records(dg.RunsFilter(tags=run_tags(feed)), limit=1)), None)
    then = None if last is None or last.end_time is None else retry_at(last.dagster_run, last.end_time)
    if last is None or then is None or not state.waiting:
        return Decision(None, state.reason, state)
    run, left = last.dagster_run, round(then - now.timestamp())
    ended = f"run {run.run_id} " + ("was cancelled" if run.status == dg.DagsterRunStatus.CANCELED else "failed")
    if left > 0:
        return Decision(None, f"{ended}; it is retried in {left} seconds", state)
    return Decision(f"{feed.name}:{state.cursor}:{run.run_id}", f"{ended} and is retried", state, attempt_of(run) + 1)


# --- Alerts ---

_OF_DAGSTER: Final[frozenset[ProblemKind]] = frozenset({"failed", "check", "maintenance"})
"""Problems that Dagster knows of."""


def _run_problems(
    instance: dg.DagsterInstance, lake: Lake, feed: FeedConfig, checks: Collection[dg.AssetCheckKey],
    watched: datetime.datetime, now: datetime.datetime,
) -> Iterator[Problem]:  # fmt: skip
    """Yield the failed runs and checks of a feed, and overdue maintenance. `checks` are those of all assets in the code
    location; `watched` is since when the feed is watched."""
    # This reports a run whose process is gone as failed.
    find_unfinished(instance, lake, feed, now)
    for run in runs.last_runs(instance, feed.name):
        if run.error is not None:
            of_job = f" of {run.job}" if run.job else ""
            yield Problem(feed.name, "failed", run.job, f"run {run.run_id}{of_job}: {run.error}")
    # Checks whose last evaluation failed with an error: warnings are only shown in Dagster.
    own = [key for key in checks if keys.belongs_to_feed(feed, key.asset_key) and key.name not in WITH_OWN_ALERTS]
    for key, evaluation in sorted(runs.failed_checks(instance, own).items(), key=lambda item: str(item[0])):
        if evaluation.severity == dg.AssetCheckSeverity.ERROR:
            asset, why = key.asset_key.to_user_string(), evaluation.description or "its page in Dagster has the numbers"
            said = f"the check {key.name} of {asset} failed: {why}"
            yield Problem(feed.name, "check", f"{asset} {key.name}", said)
    if (cron := feed.maintenance.schedule) is None:
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
    """The cursor. watched: from when on, in seconds since 1970, by feed. notified: by receiver, then problem's key."""

    watched: dict[str, float] = {}
    notified: dict[str, dict[str, Notification]] = {}


def build_alerts(lake: Lake, config: LakehouseConfig) -> dg.Definitions:
    """Define the sensor that notifies receivers of problems, if there are any: when one opens, once a day while it
    lasts, and when it is over. Its cursor holds what each receiver was notified of. One that does not accept a message
    is tried again at the next tick. The sources are not queried."""
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
            state = FeedState(feed, lake, now=time, watched_seconds=now - memory.watched[feed.name])
            of_instance = functools.partial(_run_problems, context.instance, lake, feed, checks, watched, time)
            for of_runs, find in ((True, of_instance), (False, functools.partial(find_problems, state))):
                try:
                    problems += list(find())
                except CdcError as error:
                    unread.add((feed.name, of_runs))
                    context.log.error(f"feed {feed.name}: {error}")

        def notify(receiver: AlertReceiver, label: str) -> tuple[dict[str, Notification], AlertNotSentError | bool]:
            """Return what the receiver was notified of, and whether it took a message, or why not."""
            known = {key: each for key, each in memory.notified.get(label, {}).items() if each.problem.feed in names}
            notifications, then = list[Notification](), dict[str, Notification]()
            for problem in problems:
                if receiver.takes(problem.feed, problem.kind):
                    last = known.get(problem.key)
                    if last is None or now - last.notified_at >= _REMINDER_SECONDS:
                        event, since = ("opened", now) if last is None else ("reminder", last.since)
                        notifications.append(last := Notification(problem, since, now, event))
                    then[problem.key] = last
            for key, last in known.items():
                problem = last.problem
                if key in then or not receiver.takes(problem.feed, problem.kind):
                    continue
                if (problem.feed, problem.kind in _OF_DAGSTER) in unread:
                    then[key] = last  # It stays open where it cannot be read whether it is over.
                else:
                    notifications.append(replace(last, event="over"))
            try:
                if notifications:
                    send(receiver, notifications)
            except AlertNotSentError as error:
                return known, error
            return then, bool(notifications)

        labels = [receiver_label(receiver, position) for position, receiver in enumerate(config.alerts)]
        # Concurrently: a tick has a minute, and a receiver that does not answer takes seconds.
        with ThreadPoolExecutor(max_workers=len(config.alerts)) as pool:
            found = dict(zip(labels, pool.map(notify, config.alerts, labels), strict=True))
        # A receiver has accepted what is kept here.
        memory.notified = {label: known for label, (known, _) in found.items()}
        for label, (_, result) in found.items():
            if isinstance(result, AlertNotSentError):
                context.log.error(f"{label} did not take a message, which is tried again: {result}")
        results = [result for _, result in found.values()]
        taken = f"{results.count(True)} of {plural(len(results) - results.count(False), 'message')} taken"
        sent = f"{plural(len(problems), 'problem')}; {taken}"
        return dg.SensorResult(skip_reason=dg.SkipReason(sent), cursor=memory.model_dump_json())

    return dg.Definitions(sensors=[alert])
