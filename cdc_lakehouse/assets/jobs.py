"""One job a feed: all of its assets, in one process and so in one JVM."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import dagster as dg

from cdc_lakehouse.assets import keys
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
    as soon as one table has nothing new."""
    of_tables = dg.AssetSelection.checks_for_assets(*(keys.current_key(feed.name, table) for table in tables))
    return dg.define_asset_job(
        job_name(feed.name),
        selection=dg.AssetSelection.groups(feed.name) - of_tables,
        executor_def=dg.in_process_executor,
        hooks={_tag_failure},
        tags={FEED_TAG: feed.name},
        description=f"One pass over the feed {feed.name}: land, decode, evolve, apply, publish.",
    )


def partition_tags(partitions: Sequence[str]) -> dict[str, str]:
    """The tags of a run of these partitions and those between them."""
    if not partitions:
        return {}
    return {
        "dagster/asset_partition_range_start": min(partitions),
        "dagster/asset_partition_range_end": max(partitions),
    }
