"""The jobs of one feed, each in one process and so with one JVM.

`<feed>_new` processes what is new, for the sensor's runs and for a person's. It has no assets of its own, because those
with dates would require one; it logs its results as materializations and checks of the assets. `<feed>_dates` decodes
dates again. `<feed>_tables` holds, resumes and recomputes tables.
"""

from collections.abc import Sequence
from typing import Any, Final

import dagster as dg
from pydantic import Field

from cdc_lakehouse.assets import assets, checks, keys
from cdc_lakehouse.assets.leases import FAILURE_TAG, FEED_TAG
from cdc_lakehouse.assets.resources import Lakehouse
from cdc_lakehouse.changelog.positions import utc_now
from cdc_lakehouse.config import FeedConfig
from cdc_lakehouse.errors import CdcError, PermanentError
from cdc_lakehouse.pipeline.table_decisions import hold_table, resume_table, tables_named

PRIORITY_TAG: Final = "dagster/priority"
SENSOR_PRIORITY: Final = "-1"
"""The priority of runs that nobody waits for: those of people and backfills have 0."""


@dg.failure_hook
def _tag_failure(context: dg.HookContext) -> None:
    """Tag the run with whether a retry may succeed; the sensor then retries it."""
    error: BaseException | None = context.op_exception
    while error is not None and not isinstance(error, CdcError):
        error = error.__cause__
    kind = "permanent" if isinstance(error, PermanentError) else "transient"
    context.instance.add_run_tags(context.run_id, {FAILURE_TAG: kind})


def new_job_name(feed: str) -> str:
    """Return the name of the job that processes what is new."""
    return f"{feed}_new"


def dates_job_name(feed: str) -> str:
    """Return the name of the job that decodes dates again."""
    return f"{feed}_dates"


def tables_job_name(feed: str) -> str:
    """Return the name of the job that holds, resumes and recomputes tables."""
    return f"{feed}_tables"


def decide_op_name(feed: str) -> str:
    """Return the name of the op whose configuration holds the decisions about tables."""
    return f"{tables_job_name(feed)}__decide"


def build_new_job(feed: FeedConfig) -> dg.JobDefinition:
    """Define the job that processes what is new."""
    land, decode, apply = _ops(feed, new_job_name(feed.name))

    @_job(feed, new_job_name(feed.name), f"Take what is new in {feed.name}: land, decode, evolve, apply, publish.")
    def take_what_is_new() -> None:
        apply(decode(land()))

    return take_what_is_new


class TableDecisions(dg.Config):
    """Tables are named as database.table."""

    rebuild: list[str] = Field(default_factory=list[str], description="Tables to recompute from all of their events.")
    hold: dict[str, str] = Field(
        default_factory=dict[str, str], description="Tables to hold at their last cut, each with the reason."
    )
    resume: list[str] = Field(
        default_factory=list[str], description="Tables that may go on: held ones, and those whose rewrite waits."
    )
    decided_by: str = Field("a user of Dagster", description="Who decides: it is shown with a hold.")


def build_tables_job(feed: FeedConfig) -> dg.JobDefinition:
    """Define the job that carries out a person's decisions about tables, and processes what is new."""
    name = tables_job_name(feed.name)
    land, decode, apply = _ops(feed, name)

    @dg.op(
        name=decide_op_name(feed.name),
        pool=assets.pool_of(feed),
        ins={"before": dg.In(dg.Nothing)},
        out=dg.Out(dg.Nothing),
    )
    def decide(context: dg.OpExecutionContext, config: TableDecisions, lakehouse: Lakehouse) -> None:
        run = lakehouse.steps(context, feed.name).run
        run.rebuild = tables_named(run, config.rebuild)
        for table, reason in config.hold.items():
            hold_table(run, table, reason, config.decided_by, utc_now())
        for table in config.resume:
            if not resume_table(run, table, utc_now()):
                context.log.warning("nobody holds %s, and no rewrite of it waits", table)

    @_job(feed, name, f"Rebuild, hold or resume tables of {feed.name}, which the run's configuration names.")
    def act_on_tables() -> None:
        apply(decide(decode(land())))

    return act_on_tables


def build_dates_job(feed: FeedConfig) -> Any:
    """Define the job that decodes dates again, all of a backfill in one run; None for a feed without dates."""
    if keys.partitions_of(feed) is None:
        return None
    return dg.define_asset_job(
        dates_job_name(feed.name),
        selection=dg.AssetSelection.assets(keys.raw_key(feed.name), keys.events_key(feed.name)),
        executor_def=dg.in_process_executor,
        hooks={_tag_failure},
        tags={FEED_TAG: feed.name},
        description=f"Decode dates of {feed.name} again, and bring the tables to the checkpoint.",
    )


def build_verify(feed: FeedConfig) -> tuple[list[Any], list[dg.ScheduleDefinition]]:
    """Define the job that compares the tables with the source database, and its schedule, if they are configured."""
    if feed.verify is None:
        return [], []
    job = dg.define_asset_job(
        f"{feed.name}_verify",
        selection=dg.AssetSelection.checks(dg.AssetCheckKey(keys.checkpoint_key(feed.name), checks.EQUALS_SOURCE)),
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


def _job(feed: FeedConfig, name: str, description: str) -> Any:
    return dg.job(
        name=name,
        description=description,
        executor_def=dg.in_process_executor,
        hooks={_tag_failure},
        tags={FEED_TAG: feed.name},
    )


def _ops(feed: FeedConfig, job: str) -> tuple[Any, Any, Any]:
    """Define the ops of a run that processes what is new. Each logs its results."""
    settings: dict[str, Any] = {"pool": assets.pool_of(feed), "out": dg.Out(dg.Nothing)}
    after: dict[str, Any] = {"ins": {"before": dg.In(dg.Nothing)}, **settings}

    @dg.op(name=f"{job}__land", **settings)
    def land(context: dg.OpExecutionContext, lakehouse: Lakehouse) -> None:
        steps = lakehouse.steps(context, feed.name)
        if feed.initial is not None:
            described = assets.describe_snapshot(steps)
            context.log_event(dg.AssetMaterialization(keys.snapshot_key(feed.name), metadata=described))
        _log_dates(context, feed, keys.raw_key(feed.name), assets.describe_raw(context, steps))
        checks.log_feed_checks(context, steps.run.lake, feed, keys.raw_key(feed.name))

    @dg.op(name=f"{job}__decode", **after)
    def decode(context: dg.OpExecutionContext, lakehouse: Lakehouse) -> None:
        steps = lakehouse.steps(context, feed.name)
        _log_dates(context, feed, keys.events_key(feed.name), assets.describe_events(steps))
        checks.log_feed_checks(context, steps.run.lake, feed, keys.events_key(feed.name))

    @dg.op(name=f"{job}__apply", **after)
    def apply(context: dg.OpExecutionContext, lakehouse: Lakehouse) -> None:
        assets.log_tables(context, lakehouse.steps(context, feed.name), feed)

    return land, decode, apply


def _log_dates(
    context: dg.OpExecutionContext, feed: FeedConfig, asset: dg.AssetKey, described: assets.Described
) -> None:
    """Log a materialization of each date with something new; if there is none, of the current date."""
    dates: Sequence[str | None] = keys.run_partitions(feed, described.new_dates, utc_now()) or [None]
    for date in dates:
        context.log_event(dg.AssetMaterialization(asset, partition=date, metadata=described.numbers(date)))


def partition_tags(partitions: Sequence[str]) -> dict[str, str]:
    """Return the tags of a run of these partitions and those between them."""
    if not partitions:
        return {}
    return {
        "dagster/asset_partition_range_start": min(partitions),
        "dagster/asset_partition_range_end": max(partitions),
    }
