"""Maintenance of a feed, and compaction alone, as assets with a job and a schedule each.

They are in no pool and do not have the feed's tag: they take the feed's lease for one table at a time, and the feed's
runs wait for them in between.
"""

import datetime
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

import dagster as dg

from cdc_lakehouse.assets import keys, steps
from cdc_lakehouse.assets.metadata import health_metadata
from cdc_lakehouse.assets.runs import FEED_TAG, OWN_JOBS, delete_log_file
from cdc_lakehouse.changelog.positions import utc_now
from cdc_lakehouse.config import FeedConfig
from cdc_lakehouse.lake.catalog import Lake
from cdc_lakehouse.operate.maintenance import RULES, Maintained, Maintenance
from cdc_lakehouse.operate.state import health_document


def build_maintenance(feed: FeedConfig) -> dg.Definitions:
    """Define the assets, their jobs, and their schedules if the configuration has them."""
    settings, key, other = feed.maintenance, keys.maintenance_key(feed), keys.compaction_key(feed)
    what = "Compaction, manifests, snapshots and orphan files of the feed's tables, by what each needs."
    of_other = "Small files and deleted rows of current-state tables, rewritten where a table needs it."
    return dg.Definitions.merge(
        _on_schedule(feed, key, what, settings.schedule, Maintenance.maintain),
        _on_schedule(feed, other, of_other, settings.compaction_schedule, Maintenance.compact),
    )


def _on_schedule(
    feed: FeedConfig, key: dg.AssetKey, description: str, cron: str | None, work: Callable[[Maintenance], Maintained]
) -> dg.Definitions:
    asset: Any = dg.asset

    @asset(key=key, description=description, kinds={"spark", "iceberg"}, **steps.of_feed(feed))
    def maintenance(context: dg.AssetExecutionContext, lakehouse: steps.Lakehouse) -> dg.MaterializeResult[Any]:
        config = steps.CONFIGURATIONS[feed.name]
        lake = Lake(config.lake, config.storage)
        own = Maintenance(config.feed(feed.name), lake, lambda: lakehouse.session(config), log=context.log)
        done = work(own)
        for row in done.tables:
            if row.source is not None and row.after is not None and row.counts["compacted_files"]:
                # Its files changed. A materialization would say that its rows are newer.
                changed = keys.current_key(feed, row.source)
                context.log_event(dg.AssetObservation(changed, metadata=health_metadata(row.after)))
        shown, after = ("files", "bytes", "delete_ratio", "snapshots"), [row.after or row.before for row in done.tables]
        rows = [
            {
                "table": str(row.identifier),
                **{f"{name}_before": health_document(row.before)[name] for name in shown},
                **{f"{name}_after": health_document(health)[name] for name in shown},
                **{rule.name: row.counts[rule.name] for rule in RULES if rule.column is not None},
                "not_done": row.deferred or "",
            }
            for row, health in zip(done.tables, after, strict=True)
        ]
        return dg.MaterializeResult(
            metadata={
                "files": sum(health.files for health in after),
                "bytes": sum(health.bytes for health in after),
                **{rule.name: sum(row.counts[rule.name] for row in done.tables) for rule in RULES if rule.name},
                "tables_not_done": sum(row.deferred is not None for row in done.tables),
                **{f"removed_{name}": count for name, count in done.removed.items()},
                **({"tables": dg.MetadataValue.table([dg.TableRecord(row) for row in rows])} if rows else {}),
            }
        )

    job = steps.scheduled_job(f"{feed.name}_{key.path[-1]}", dg.AssetSelection.assets(key), description, cron)
    return dg.Definitions.merge(dg.Definitions(assets=[maintenance]), job)


# Delete old runs from the Dagster instance, with their events and their logs.

JOB: Final = "cdc_prune_runs"
_AT: Final = "17 3 * * *"
_ENDED: Final = [dg.DagsterRunStatus.SUCCESS, dg.DagsterRunStatus.FAILURE, dg.DagsterRunStatus.CANCELED]


def build_retention(feeds: Sequence[FeedConfig], keep_days: int | None) -> dg.Definitions:
    """Define a job that deletes runs of the feeds that ended more than `keep_days` ago, and its daily schedule."""
    if keep_days is None:
        return dg.Definitions()

    @dg.op(description=f"Deletes runs older than {keep_days} days, but those that an asset page still shows.")
    def prune_runs(context: dg.OpExecutionContext) -> None:
        before = utc_now() - datetime.timedelta(days=keep_days)
        for feed in feeds:
            deleted, kept = delete_runs(context.instance, feed, before)
            context.log.info("%s: deleted %d runs, kept %d that assets show", feed.name, deleted, kept)
        _delete(context.instance, _ended_before(context.instance, before, job_name=JOB))

    @dg.job(name=JOB, executor_def=dg.in_process_executor, description="Deletes old runs from the Dagster instance.")
    def prune() -> None:
        prune_runs()

    schedule = dg.ScheduleDefinition(job=prune, cron_schedule=_AT, default_status=dg.DefaultScheduleStatus.RUNNING)
    return dg.Definitions(jobs=[prune], schedules=[schedule])


def delete_runs(instance: dg.DagsterInstance, feed: FeedConfig, before: datetime.datetime) -> tuple[int, int]:
    """Delete the runs of a feed that were created before a moment and have ended. Return how many were deleted, and how
    many stay: those with the last materialization of an asset, or of one of its dates, else it is shown as missing."""
    old = _ended_before(instance, before, tags={FEED_TAG: feed.name})
    old += [run for job in OWN_JOBS for run in _ended_before(instance, before, job_name=f"{feed.name}_{job}")]
    known = instance.get_asset_records(instance.get_asset_keys(prefix=[*keys.key_in_feed(feed).path])) if old else ()
    last = (record.asset_entry.last_materialization_record for record in known)
    shown = {each.run_id for each in last if each is not None}
    for key in (keys.raw_key(feed), keys.events_key(feed)) if old else ():
        if by_date := instance.get_latest_storage_id_by_partition(key, dg.DagsterEventType.ASSET_MATERIALIZATION):
            which = dg.AssetRecordsFilter(asset_key=key, storage_ids=list(by_date.values()))
            shown |= {each.run_id for each in instance.fetch_materializations(which, limit=len(by_date)).records}
    unseen = [run for run in old if run not in shown]
    _delete(instance, unseen)
    return len(unseen), len(old) - len(unseen)


def _ended_before(instance: dg.DagsterInstance, before: datetime.datetime, **which: Any) -> list[str]:
    ended = dg.RunsFilter(statuses=_ENDED, created_before=before, **which)
    return [record.dagster_run.run_id for record in instance.get_run_records(ended)]


def _delete(instance: dg.DagsterInstance, runs: Iterable[str]) -> None:
    for run in runs:
        instance.delete_run(run)
        instance.compute_log_manager.delete_logs(prefix=[run])
        delete_log_file(instance, run)
