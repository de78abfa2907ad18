"""One job a feed: all of its assets, in one process and so in one JVM."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import dagster as dg

from cdc_lakehouse.assets import keys
from cdc_lakehouse.assets.checks import EQUALS_SOURCE
from cdc_lakehouse.assets.leases import FAILURE_TAG, FEED_TAG
from cdc_lakehouse.changelog.schema import TableName
from cdc_lakehouse.config import FeedConfig
from cdc_lakehouse.errors import CdcError, PermanentError


@dg.failure_hook
def _tag_failure(context: dg.HookContext) -> None:
    """Tag the run with whether another try may succeed. The sensor retries it then."""
    error: BaseException | None = context.op_exception
    while error is not None and not isinstance(error, CdcError):
        error = error.__cause__
    kind = "permanent" if isinstance(error, PermanentError) else "transient"
    context.instance.add_run_tags(context.run_id, {FAILURE_TAG: kind})


def job_name(feed: str) -> str:
    """The name of the feed's job."""
    return f"{feed}_feed"


def build_job(feed: FeedConfig, tables: Sequence[TableName]) -> Any:
    """The job of a feed whose known tables are `tables`.

    It is without the checks of tables, which the op that changes the tables evaluates: Dagster would skip all of them
    as soon as one table has nothing new. It is without the one that reads the source's tables whole, too."""
    of_tables = dg.AssetSelection.checks_for_assets(*(keys.current_key(feed.name, table) for table in tables))
    return dg.define_asset_job(
        job_name(feed.name),
        selection=dg.AssetSelection.groups(feed.name) - of_tables - _of_source(feed),
        executor_def=dg.in_process_executor,
        hooks={_tag_failure},
        tags={FEED_TAG: feed.name},
        description=f"One pass over the feed {feed.name}: land, decode, evolve, apply, publish.",
    )


def build_verify(feed: FeedConfig) -> tuple[list[Any], list[dg.ScheduleDefinition]]:
    """The job that compares the tables with the source database, and its schedule, where they are configured."""
    if feed.verify is None:
        return [], []
    job = dg.define_asset_job(
        f"{feed.name}_verify",
        selection=_of_source(feed),
        executor_def=dg.in_process_executor,
        description=f"Compares the published tables of the feed {feed.name} with the source database.",
    )
    if feed.verify.schedule is None:
        return [job], []
    schedule = dg.ScheduleDefinition(
        name=f"{feed.name}_verify",
        job=job,
        cron_schedule=feed.verify.schedule,
        default_status=dg.DefaultScheduleStatus.RUNNING,
    )
    return [job], [schedule]


def _of_source(feed: FeedConfig) -> dg.AssetSelection:
    if feed.verify is None:
        return dg.AssetSelection.assets()
    return dg.AssetSelection.checks(dg.AssetCheckKey(keys.checkpoint_key(feed.name), EQUALS_SOURCE))


def partition_tags(partitions: Sequence[str]) -> dict[str, str]:
    """The tags of a run of these partitions and those between them."""
    if not partitions:
        return {}
    return {
        "dagster/asset_partition_range_start": min(partitions),
        "dagster/asset_partition_range_end": max(partitions),
    }
