"""The sensor of a feed of topics: messages that are not landed are one run. It needs no JVM."""

import hashlib
from typing import Any

import dagster as dg

from cdc_lakehouse.assets.alone import FEED_TAG, unfinished_run
from cdc_lakehouse.assets.sensors import ATTEMPT_TAG, INTERVAL_SECONDS, Tick, incremental_tags, try_again
from cdc_lakehouse.config import FeedConfig
from cdc_lakehouse.errors import CdcError
from cdc_lakehouse.lake.catalog import Lake
from cdc_lakehouse.lake.landed_offsets import landed_offsets
from cdc_lakehouse.pipeline.feed_run import utc_now
from cdc_lakehouse.sources.kafka import Pending, find_pending, read_topics


def build_topic_sensor(lake: Lake, feed: FeedConfig, job: Any) -> dg.SensorDefinition:
    @dg.sensor(
        name=f"{feed.name}_offsets",
        job=job,
        minimum_interval_seconds=INTERVAL_SECONDS,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description="Follows the end offsets of the topics.",
    )
    def offsets_moved(context: dg.SensorEvaluationContext) -> dg.SensorResult | dg.SkipReason:
        unfinished = unfinished_run(context.instance, feed.name)
        if unfinished is not None:
            return dg.SkipReason(f"run {unfinished.run_id} of the feed is not finished")
        try:
            pending = find_pending(feed.kafka, read_topics(feed.kafka), landed_offsets(lake, feed.name))
        except CdcError as error:
            context.log.error(str(error))
            return dg.SkipReason(str(error))
        for fault in pending.faults:
            context.log.error(str(fault))
        tick = decide(feed.name, pending, context.cursor)
        if tick.run_key is None and pending.records:
            last = context.instance.get_run_records(dg.RunsFilter(tags={FEED_TAG: feed.name}), limit=1)
            tick = try_again(next(iter(last), None), feed.name, pending.records, utc_now()) or tick
        if tick.run_key is None:
            return dg.SkipReason(tick.reason)
        tags = incremental_tags(feed, []) | {ATTEMPT_TAG: str(tick.attempt)}
        request = dg.RunRequest(run_key=tick.run_key, tags=tags)
        return dg.SensorResult(run_requests=[request], cursor=state_of(pending))

    return offsets_moved


def decide(feed: str, pending: Pending, cursor: str | None) -> Tick:
    """One run for each state of what is landed and what there is: a run that took a part is followed by another."""
    if not pending.records:
        return Tick(None, "all messages of the topics are landed")
    state = state_of(pending)
    if state == cursor:
        return Tick(None, "a run for these offsets was asked for")
    return Tick(f"{feed}:{state}", f"{pending.records} offsets are not landed")


def state_of(pending: Pending) -> str:
    told = sorted((*partition, *offsets) for partition, offsets in pending.offsets.items())
    return hashlib.sha256(repr(told).encode()).hexdigest()[:16]
