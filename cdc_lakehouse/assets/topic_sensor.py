"""The sensor of a feed of topics: messages that are not landed are one run. It needs no JVM."""

import hashlib
from typing import Any

import dagster as dg

from cdc_lakehouse.assets.feed_sensor import Sighting, Tick, asked_once, build_feed_sensor
from cdc_lakehouse.config import FeedConfig
from cdc_lakehouse.lake.catalog import Lake
from cdc_lakehouse.lake.tables.landed_offsets import landed_offsets
from cdc_lakehouse.sources.kafka import find_pending, read_topics
from cdc_lakehouse.sources.record_log import Pending


def build_topic_sensor(lake: Lake, feed: FeedConfig, job: Any) -> dg.SensorDefinition:
    def look(cursor: str | None) -> Sighting:
        pending = find_pending(feed.kafka, read_topics(feed.kafka), landed_offsets(lake, feed.name))
        return decide(feed.name, pending, cursor)

    return build_feed_sensor(feed, job, "offsets", "Follows the end offsets of the topics.", look)


def decide(feed: str, pending: Pending, cursor: str | None) -> Sighting:
    """One run for each state of what is landed and what there is."""
    state, faults = state_of(pending), tuple(map(str, pending.faults))
    if not pending.records:
        return Sighting(Tick(None, "all messages of the topics are landed"), state, False, faults)
    tick = Tick(f"{feed}:{state}", f"{pending.records} offsets are not landed")
    return asked_once(Sighting(tick, state, True, faults), cursor)


def state_of(pending: Pending) -> str:
    told = sorted((*partition, *offsets) for partition, offsets in pending.offsets.items())
    return hashlib.sha256(repr(told).encode()).hexdigest()[:16]
