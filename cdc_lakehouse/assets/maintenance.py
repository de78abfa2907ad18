"""Maintenance of a feed, and compaction alone, as assets with a job and a schedule each.

They are in no pool and do not have the feed's tag: they take the feed's lease for one table at a time, and the feed's
runs wait for them in between."""

from collections.abc import Callable, Iterator
from dataclasses import asdict
from typing import Any

import dagster as dg

from cdc_lakehouse.assets import keys, specs
from cdc_lakehouse.assets.metadata import health_metadata
from cdc_lakehouse.assets.resources import Lakehouse, configuration_of
from cdc_lakehouse.config import FeedConfig
from cdc_lakehouse.lake.catalog import Lake
from cdc_lakehouse.lake.table_health import TableHealth
from cdc_lakehouse.pipeline.maintenance import Maintained, Maintenance


def build_maintenance(feed: FeedConfig) -> dg.Definitions:
    """Define the assets, their jobs, and their schedules if the configuration has them."""
    settings = feed.maintenance
    return dg.Definitions.merge(
        _on_schedule(feed, specs.maintenance_spec(feed), settings.schedule, Maintenance.maintain),
        _on_schedule(feed, specs.compaction_spec(feed), settings.compaction_schedule, Maintenance.compact),
    )


def _on_schedule(
    feed: FeedConfig, spec: specs.Spec, cron: str | None, work: Callable[[Maintenance], Maintained]
) -> dg.Definitions:
    asset: Any = dg.asset

    @asset(**spec)
    def maintenance(context: dg.AssetExecutionContext, lakehouse: Lakehouse) -> dg.MaterializeResult[Any]:
        config = configuration_of(feed.name)
        lake = Lake(config.lake, config.storage)
        own = Maintenance(config.feed(feed.name), lake, lambda: lakehouse.spark.session(config), log=context.log)
        done = work(own)
        for observation in _observations(feed, done):
            context.log_event(observation)
        return dg.MaterializeResult(metadata=_metadata(done))

    key: dg.AssetKey = spec["key"]
    job = dg.define_asset_job(
        f"{feed.name}_{key.path[-1]}",
        selection=dg.AssetSelection.assets(key),
        executor_def=dg.in_process_executor,
        description=spec["description"],
    )
    running = dg.DefaultScheduleStatus.RUNNING
    schedules = (
        []
        if cron is None
        else [dg.ScheduleDefinition(name=f"{job.name}_schedule", job=job, cron_schedule=cron, default_status=running)]
    )
    return dg.Definitions(assets=[maintenance], jobs=[job], schedules=schedules)


def _observations(feed: FeedConfig, done: Maintained) -> Iterator[dg.AssetObservation]:
    """Yield observations of the tables whose files changed. Materializations would say that their rows are newer."""
    for row in done.tables:
        if row.source is not None and row.after is not None and row.actions.compacted_files:
            key = keys.current_key(feed.name, row.source)
            yield dg.AssetObservation(key, metadata=health_metadata(row.after))


def _metadata(done: Maintained) -> dict[str, Any]:
    """Return figures of each table before and after, and their sums."""
    rows = [
        {
            "table": row.table,
            **_numbers("before", row.before),
            **_numbers("after", row.after or row.before),
            "compacted_files": row.actions.compacted_files,
            "expired_snapshots": row.actions.expired_snapshots,
            "orphan_files": row.actions.orphan_files,
            "not_done": row.actions.deferred or "",
        }
        for row in done.tables
    ]
    after = [row.after or row.before for row in done.tables]
    numbers: dict[str, Any] = {
        "files": sum(health.files for health in after),
        "bytes": sum(health.bytes for health in after),
        "compacted_files": sum(row.actions.compacted_files for row in done.tables),
        "expired_snapshots": sum(row.actions.expired_snapshots for row in done.tables),
        "orphan_files": sum(row.actions.orphan_files for row in done.tables),
        "tables_not_done": sum(row.actions.deferred is not None for row in done.tables),
        "superseded_events": sum(row.actions.superseded_events for row in done.tables),
        "forgotten_cut_rows": done.forgotten_cut_rows,
        **{f"removed_{name}": count for name, count in asdict(done.removed).items()},
    }
    if rows:
        numbers["tables"] = dg.MetadataValue.table([dg.TableRecord(row) for row in rows])
    return numbers


def _numbers(when: str, health: TableHealth) -> dict[str, Any]:
    return {
        f"files_{when}": health.files,
        f"bytes_{when}": health.bytes,
        f"delete_ratio_{when}": round(health.delete_ratio, 4),
        f"snapshots_{when}": health.snapshots,
    }
