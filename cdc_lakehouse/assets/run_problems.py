"""Problems of a feed that Dagster knows of: failed runs and checks, and overdue maintenance."""

from __future__ import annotations

import datetime
from collections.abc import Collection, Iterator
from typing import Final

import dagster as dg
from dagster._core.storage.asset_check_execution_record import AssetCheckExecutionRecordStatus
from dagster._utils.schedules import reverse_cron_string_iterator

from cdc_lakehouse.assets import keys
from cdc_lakehouse.assets.checks import WITH_OWN_ALERTS
from cdc_lakehouse.assets.last_runs import last_runs
from cdc_lakehouse.assets.leases import find_unfinished
from cdc_lakehouse.config import FeedConfig, ProblemKind
from cdc_lakehouse.lake.catalog import Lake
from cdc_lakehouse.pipeline.problems import Problem

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
    found = instance.event_log_storage.get_asset_check_summary_records(own)
    for key in sorted(own, key=str):
        # The last planned evaluation may be in progress.
        record = found[key].last_completed_check_execution_record
        evaluation = None if record is None else record.evaluation
        if (
            record is not None
            and evaluation is not None
            and record.status == AssetCheckExecutionRecordStatus.FAILED
            and evaluation.severity == dg.AssetCheckSeverity.ERROR
        ):
            name = f"{key.asset_key.to_user_string()} {key.name}"
            why = evaluation.description or "its page in Dagster has the numbers"
            yield Problem(
                feed, "check", name, f"the check {key.name} of {key.asset_key.to_user_string()} failed: {why}"
            )


def _overdue_maintenance(
    instance: dg.DagsterInstance, feed: FeedConfig, watched: datetime.datetime, now: datetime.datetime
) -> Iterator[Problem]:
    """Yield a problem when maintenance has not succeeded since the tick before the last one: a pass has until the next
    one is due."""
    cron = feed.maintenance.schedule
    if cron is None:
        return
    ticks = reverse_cron_string_iterator(now.timestamp(), cron, "UTC")
    next(ticks)
    due = next(ticks)
    succeeded = dg.RunsFilter(job_name=f"{feed.name}_maintenance", statuses=[dg.DagsterRunStatus.SUCCESS])
    last = next(iter(instance.get_run_records(succeeded, limit=1)), None)
    ended = (
        watched
        if last is None or last.end_time is None
        else datetime.datetime.fromtimestamp(last.end_time, datetime.UTC)
    )
    if max(ended, watched) < due:
        never = "has not succeeded" if last is None else f"last succeeded at {ended:%Y-%m-%d %H:%M} UTC"
        yield Problem(feed.name, "maintenance", "", f"maintenance {never}, and is due by {cron!r}: its runs say why")
