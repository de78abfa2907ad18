"""Delete old runs from the Dagster instance, with their events and their logs."""

import datetime
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

import dagster as dg

from cdc_lakehouse.assets import keys
from cdc_lakehouse.assets.last_runs import OWN_JOBS
from cdc_lakehouse.assets.leases import FEED_TAG
from cdc_lakehouse.changelog.positions import utc_now

JOB: Final = "cdc_prune_runs"
_AT: Final = "17 3 * * *"
_ENDED: Final = [dg.DagsterRunStatus.SUCCESS, dg.DagsterRunStatus.FAILURE, dg.DagsterRunStatus.CANCELED]


def build_retention(feeds: Iterable[str], keep_days: int | None) -> dg.Definitions:
    """Define a job that deletes runs of the feeds that ended more than `keep_days` ago, and its daily schedule."""
    if keep_days is None:
        return dg.Definitions()
    names = tuple(feeds)

    @dg.op(description=f"Deletes runs older than {keep_days} days, but those that an asset page still shows.")
    def prune_runs(context: dg.OpExecutionContext) -> None:
        before = utc_now() - datetime.timedelta(days=keep_days)
        for feed in names:
            deleted, kept = delete_runs(context.instance, feed, before)
            context.log.info("%s: deleted %d runs, kept %d that assets show", feed, deleted, kept)
        _delete(context.instance, _ended_before(context.instance, before, dg.RunsFilter(job_name=JOB)))

    @dg.job(name=JOB, executor_def=dg.in_process_executor, description="Deletes old runs from the Dagster instance.")
    def prune() -> None:
        prune_runs()

    schedule = dg.ScheduleDefinition(job=prune, cron_schedule=_AT, default_status=dg.DefaultScheduleStatus.RUNNING)
    return dg.Definitions(jobs=[prune], schedules=[schedule])


def delete_runs(instance: dg.DagsterInstance, feed: str, before: datetime.datetime) -> tuple[int, int]:
    """Delete the runs of a feed that were created before a moment and have ended. Return how many were deleted, and how
    many stay.

    A run with the last materialization of an asset, or of one of its dates, stays: without it the asset would be shown
    as missing."""
    of_feed = [dg.RunsFilter(tags={FEED_TAG: feed}), *(dg.RunsFilter(job_name=f"{feed}_{job}") for job in OWN_JOBS)]
    old = [run for which in of_feed for run in _ended_before(instance, before, which)]
    shown = _shown_runs(instance, feed) if old else set[str]()
    _delete(instance, [run for run in old if run not in shown])
    kept = sum(run in shown for run in old)
    return len(old) - kept, kept


def _ended_before(instance: dg.DagsterInstance, before: datetime.datetime, which: dg.RunsFilter) -> list[str]:
    found = instance.get_run_records(
        dg.RunsFilter(tags=which.tags, job_name=which.job_name, statuses=_ENDED, created_before=before)
    )
    return [record.dagster_run.run_id for record in found]


def _shown_runs(instance: dg.DagsterInstance, feed: str) -> set[str]:
    """Return the runs whose materializations the pages of assets show."""
    found: set[str] = set()
    for record in instance.get_asset_records(instance.get_asset_keys(prefix=keys.feed_key_path(feed))):
        last = record.asset_entry.last_materialization_record
        found |= {last.run_id} if last is not None else set()
    for key in (keys.raw_key(feed), keys.events_key(feed)):
        by_date = instance.get_latest_storage_id_by_partition(key, dg.DagsterEventType.ASSET_MATERIALIZATION)
        if by_date:
            which = dg.AssetRecordsFilter(asset_key=key, storage_ids=list(by_date.values()))
            records = instance.fetch_materializations(which, limit=len(by_date)).records
            found |= {record.run_id for record in records}
    return found


def _delete(instance: dg.DagsterInstance, runs: Iterable[str]) -> None:
    storage: Any = instance.event_log_storage
    for run in runs:
        instance.delete_run(run)
        instance.compute_log_manager.delete_logs(prefix=[run])
        # Checked by its method: importing the class of SQLite's storage takes a fifteenth of the time to load the
        # definitions.
        if hasattr(storage, "path_for_shard"):
            # Each run has its own file, of which 130 kB remain when its rows are deleted.
            Path(storage.path_for_shard(run)).unlink(missing_ok=True)
