"""What the sensors of all sources have in common: one run at a time, asked for once, and again where it failed."""

import datetime
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import dagster as dg

from cdc_lakehouse.assets.jobs import partition_tags
from cdc_lakehouse.assets.partitions import run_partitions
from cdc_lakehouse.assets.resources import INCREMENTAL, TRIGGER_TAG
from cdc_lakehouse.assets.run_lock import FAILURE_TAG, FEED_TAG, unfinished_run
from cdc_lakehouse.config import FeedConfig
from cdc_lakehouse.errors import CdcError
from cdc_lakehouse.pipeline.context import utc_now

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


@dataclass(frozen=True)
class Sighting:
    """What a source shows: its decision, the cursor for what it shows, whether there is anything to do at all, and what
    stands in the way of a part of it. `dates` are those that have something new, as far as that is known."""

    tick: Tick
    cursor: str
    waiting: bool
    faults: Sequence[str] = ()
    dates: Callable[[], Sequence[str]] = tuple


def build_feed_sensor(
    feed: FeedConfig, job: Any, name: str, description: str, look: Callable[[str | None], Sighting]
) -> dg.SensorDefinition:
    """`look` is given the cursor. It is not called while a run is unfinished; an error of its is told."""

    @dg.sensor(
        name=f"{feed.name}_{name}",
        job=job,
        minimum_interval_seconds=INTERVAL_SECONDS,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description=description,
    )
    def something_new(context: dg.SensorEvaluationContext) -> dg.SensorResult | dg.SkipReason:
        unfinished = unfinished_run(context.instance, feed.name)
        if unfinished is not None:
            return dg.SkipReason(f"run {unfinished.run_id} of the feed is not finished")
        try:
            seen = look(context.cursor)
        except CdcError as error:
            context.log.error(str(error))
            return dg.SkipReason(str(error))
        for fault in seen.faults:
            context.log.error(fault)
        tick = seen.tick
        if tick.run_key is None and seen.waiting:
            last = context.instance.get_run_records(dg.RunsFilter(tags={FEED_TAG: feed.name}), limit=1)
            tick = try_again(next(iter(last), None), feed.name, seen.cursor, utc_now()) or tick
        if tick.run_key is None:
            return dg.SkipReason(tick.reason)
        tags = incremental_tags(feed, seen.dates()) | {ATTEMPT_TAG: str(tick.attempt)}
        request = dg.RunRequest(run_key=tick.run_key, tags=tags)
        return dg.SensorResult(run_requests=[request], cursor=seen.cursor)

    return something_new


def try_again(record: dg.RunRecord | None, feed: str, shown: object, now: datetime.datetime) -> Tick | None:
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
    return Tick(f"{feed}:{shown}:{run.run_id}", f"run {run.run_id} failed and is tried again", attempt)


def asked_once(seen: Sighting, last: str | None) -> Sighting:
    """One run for each cursor: a run that took a part is followed by another."""
    if seen.tick.run_key is None or seen.cursor != last:
        return seen
    return replace(seen, tick=Tick(None, "a run for this state of the source was asked for"))


def incremental_tags(feed: FeedConfig, dates: Sequence[str]) -> dict[str, str]:
    """Tags of a run that takes what is new; its partitions are the dates that have new segments."""
    partitions = run_partitions(feed, dates, utc_now())
    return {FEED_TAG: feed.name, TRIGGER_TAG: INCREMENTAL, **partition_tags(partitions)}
