"""The sensor of a feed: a checkpoint-ts that moved is one run."""

import datetime
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import dagster as dg

from cdc_lakehouse.assets.alone import FAILURE_TAG, FEED_TAG, unfinished_run
from cdc_lakehouse.assets.jobs import partition_tags
from cdc_lakehouse.assets.partitions import run_partitions
from cdc_lakehouse.assets.resources import INCREMENTAL, TRIGGER_TAG
from cdc_lakehouse.config import FeedConfig
from cdc_lakehouse.errors import CheckpointError
from cdc_lakehouse.lake.catalog import Lake
from cdc_lakehouse.lake.checkpoints import Checkpoints
from cdc_lakehouse.lake.frontiers import Frontiers
from cdc_lakehouse.lake.segments import Segments
from cdc_lakehouse.pipeline.feed_run import utc_now
from cdc_lakehouse.pipeline.sight import settings_of
from cdc_lakehouse.sources.object_store import open_store
from cdc_lakehouse.sources.storage_sink import DataFile, SinkLayout, list_sink, read_checkpoint
from cdc_lakehouse.sources.walk import list_new

INTERVAL_SECONDS: Final = 30
ATTEMPT_TAG: Final = "cdc/attempt"
_FIRST_WAIT_SECONDS: Final = 60
_LONGEST_WAIT_SECONDS: Final = 3600


@dataclass(frozen=True)
class Tick:
    """What a tick decides: a run for `run_key`, or the reason why there is none. `attempt` counts those that failed."""

    run_key: str | None
    reason: str
    attempt: int = 0


def decide(feed: str, shown_ts: int, published_ts: int, cursor: str | None) -> Tick:
    """The decision, from the source's checkpoint-ts, the published one, and the one of the last run that was asked
    for."""
    asked = int(cursor) if cursor else 0
    if shown_ts < max(published_ts, asked):
        return Tick(None, f"the source's checkpoint-ts went backwards, to {shown_ts} from {max(published_ts, asked)}")
    if shown_ts == max(published_ts, asked):
        return Tick(None, f"the checkpoint-ts has not moved from {shown_ts}")
    return Tick(f"{feed}:{shown_ts}", f"the checkpoint-ts moved to {shown_ts}")


def try_again(record: dg.RunRecord | None, feed: str, shown_ts: int, now: datetime.datetime) -> Tick | None:
    """The decision after the feed's last run, where that failed in a way that may pass: each time after a longer
    wait."""
    if record is None or record.end_time is None:
        return None
    run = record.dagster_run
    if run.status != dg.DagsterRunStatus.FAILURE or run.tags.get(FAILURE_TAG) != "transient":
        return None
    attempt = int(run.tags.get(ATTEMPT_TAG, "0")) + 1
    wait = min(_FIRST_WAIT_SECONDS * 2 ** (attempt - 1), _LONGEST_WAIT_SECONDS)
    left = round(record.end_time + wait - now.timestamp())
    if left > 0:
        return Tick(None, f"run {run.run_id} failed; it is tried again in {left} seconds")
    return Tick(f"{feed}:{shown_ts}:{run.run_id}", f"run {run.run_id} failed and is tried again", attempt)


def build_sensor(lake: Lake, feed: FeedConfig, job: Any) -> dg.SensorDefinition:
    @dg.sensor(
        name=f"{feed.name}_checkpoint",
        job=job,
        minimum_interval_seconds=INTERVAL_SECONDS,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description="Follows the checkpoint-ts of the sink's metadata file.",
    )
    def checkpoint_moved(context: dg.SensorEvaluationContext) -> dg.SensorResult | dg.SkipReason:
        unfinished = unfinished_run(context.instance, feed.name)
        if unfinished is not None:
            return dg.SkipReason(f"run {unfinished.run_id} of the feed is not finished")
        store = open_store(feed.storage_sink.uri, lake.storage)
        try:
            shown = read_checkpoint(store)
        except CheckpointError as error:
            context.log.error(str(error))
            return dg.SkipReason(str(error))
        published = Checkpoints(lake, feed.name).last().checkpoint_ts
        tick = decide(feed.name, shown, published, context.cursor)
        if tick.run_key is None and shown > published:
            last = context.instance.get_run_records(dg.RunsFilter(tags={FEED_TAG: feed.name}), limit=1)
            tick = try_again(next(iter(last), None), feed.name, shown, utc_now()) or tick
        if tick.run_key is None:
            return dg.SkipReason(tick.reason)
        tags = incremental_tags(feed, new_dates(lake, feed)) | {ATTEMPT_TAG: str(tick.attempt)}
        request = dg.RunRequest(run_key=tick.run_key, tags=tags)
        return dg.SensorResult(run_requests=[request], cursor=str(shown))

    return checkpoint_moved


def new_dates(lake: Lake, feed: FeedConfig) -> list[str]:
    """Feed dates of which the sink holds segments that are not known, or not in this form.

    Listed from the frontier, so that a tick costs what is new. It is a note for the run, which looks for itself."""
    new = _new_files(lake, feed)
    # Where directories are called by ids, the tables' names are not known here.
    return sorted({f.feed_date for f in new if f.feed_date and (not f.table or feed.tables.takes(f.database, f.table))})


def _new_files(lake: Lake, feed: FeedConfig) -> list[DataFile]:
    store, layout = open_store(feed.storage_sink.uri, lake.storage), SinkLayout.of(feed.storage_sink)
    frontier = Frontiers(lake, feed.name).last()
    if frontier is not None and frontier.settings == settings_of(feed):
        return [file for file in list_new(store, layout, frontier).data if frontier.is_new(file)]
    known = Segments(lake, feed.name).rows
    listing = list_sink(store, layout)
    return [file for file in listing.data if file.path not in known or known[file.path].etag != file.etag]


def incremental_tags(feed: FeedConfig, dates: Sequence[str]) -> dict[str, str]:
    """Tags of a run that takes what is new; its partitions are the dates that have new segments."""
    partitions = run_partitions(feed, dates, utc_now())
    return {FEED_TAG: feed.name, TRIGGER_TAG: INCREMENTAL, **partition_tags(partitions)}
