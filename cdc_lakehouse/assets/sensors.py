"""The sensor of a feed: it requests one run for what is new in the source, and retries failed runs. No JVM is
started.
"""

import datetime
import logging
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import dagster as dg
import grpc

from cdc_lakehouse.assets import keys, runs
from cdc_lakehouse.assets.runs import ATTEMPT_TAG, FEED_TAG, attempt_of, find_unfinished, retry_at
from cdc_lakehouse.changelog.positions import utc_now
from cdc_lakehouse.changelog.schema import TableName
from cdc_lakehouse.config import FeedConfig
from cdc_lakehouse.errors import CdcError
from cdc_lakehouse.lake.catalog import Lake, system_table
from cdc_lakehouse.pipeline.feed_tables import known_tables
from cdc_lakehouse.pipeline.run import FeedRun
from cdc_lakehouse.pipeline.source import SourceState, record_look

_RELOAD_SECONDS: Final = 300
_LOG: Final = logging.getLogger("cdc_lakehouse")


@dataclass(frozen=True)
class Decision:
    """The decision of a tick: a run with `run_key`, or none, and why. `attempt` counts earlier runs that failed."""

    run_key: str | None
    reason: str
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
                if any(keys.belongs_to_feed(feed.name, key) for key in backfill.asset_selection or ()):
                    return dg.SkipReason(f"backfill {backfill.backfill_id} of the feed is not finished")
            decision, state = poll_source(context.instance, lake, feed, context.cursor)
        except CdcError as error:
            context.log.error(error.coded)
            return dg.SkipReason(error.coded)
        for fault in () if state is None else state.faults:
            context.log.error(str(fault))
        if state is None or decision.run_key is None:
            return dg.SkipReason(decision.reason)
        # Nobody waits for it: the runs of people and backfills have the priority 0.
        tags = {"dagster/priority": "-1", **run_tags(feed, decision.attempt)}
        request = dg.RunRequest(run_key=decision.run_key, tags=tags, job_name=jobs[0].name)
        return dg.SensorResult(run_requests=[request], cursor=state.cursor)

    return follow_source


def poll_source(
    instance: dg.DagsterInstance, lake: Lake, feed: FeedConfig, cursor: str | None
) -> tuple[Decision, SourceState | None]:
    """Decide whether to request a run of the feed; return the decision and what the source shows, None when it was not
    queried because a run of the feed is unfinished. `cursor` is that of the last requested run. Raises as `poll` of a
    source does."""
    now = utc_now()
    if (unfinished := find_unfinished(instance, lake, feed.name, now)) is not None:
        return Decision(None, unfinished), None
    # Opened for each look: credentials may be replaced while it is followed for days.
    source = FeedRun(feed, lake).source
    state = source.poll(cursor)
    if not (state.waiting or state.faults or source.shows_time):
        record_look(lake, feed.name, now)
    last = instance.get_run_records(dg.RunsFilter(tags={FEED_TAG: feed.name}), limit=1)
    return decide(feed.name, state, next(iter(last), None), now), state


def decide(feed: str, state: SourceState, last: dg.RunRecord | None, now: datetime.datetime) -> Decision:
    """Decide on one run for what the source shows, and on another when that run is to be retried (see `retry_at`).
    `last` is the feed's last run. Whoever wants no runs stops the sensor."""
    if state.waiting and state.new:
        return Decision(f"{feed}:{state.cursor}", state.reason)
    then = None if last is None or last.end_time is None else retry_at(last.dagster_run, last.end_time)
    if last is None or then is None or not state.waiting:
        return Decision(None, state.reason)
    run = last.dagster_run
    ended = "was cancelled" if run.status == dg.DagsterRunStatus.CANCELED else "failed"
    left = round(then - now.timestamp())
    if left > 0:
        return Decision(None, f"run {run.run_id} {ended}; it is retried in {left} seconds")
    key = f"{feed}:{state.cursor}:{run.run_id}"
    return Decision(key, f"run {run.run_id} {ended} and is retried", attempt_of(run) + 1)


def run_tags(feed: FeedConfig, attempt: int = 0) -> dict[str, str]:
    """Return the tags of a run that processes what is new."""
    return {FEED_TAG: feed.name} | ({ATTEMPT_TAG: str(attempt)} if attempt else {})
