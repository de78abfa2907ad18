"""The sensor of a feed of a Canal server: entries that wait there are one run. It needs no JVM.

A destination has one consumer: asking for what waits takes it away from a run. So nothing is asked while one is
unfinished, and what was given is given back."""

import hashlib
from typing import Any

import dagster as dg

from cdc_lakehouse.assets.feed_sensor import Sighting, Tick, asked_once, build_feed_sensor
from cdc_lakehouse.config import FeedConfig
from cdc_lakehouse.lake.catalog import Lake
from cdc_lakehouse.lake.tables.landed_offsets import landed_position
from cdc_lakehouse.sources.canal.client import CanalClient


def build_canal_sensor(lake: Lake, feed: FeedConfig, job: Any) -> dg.SensorDefinition:
    def look(cursor: str | None) -> Sighting:
        landed, _ = landed_position(lake, feed)
        with CanalClient(feed.canal, patience_seconds=0) as client:
            batch = client.get(batch_size=1, wait_seconds=0)
            client.rollback()
        return decide(feed.name, landed, None if batch is None else batch.entries, cursor)

    return build_feed_sensor(feed, job, "entries", "Asks the Canal server whether entries wait.", look)


def decide(feed: str, landed: int, waiting: tuple[bytes, ...] | None, cursor: str | None) -> Sighting:
    """One run for each state of what is landed and what comes first of what waits. That can be landed already, where a
    run ended before it was acknowledged: the next one does that."""
    content = b"" if waiting is None else b"".join(waiting[:1])
    state = hashlib.sha256(b"%d " % landed + content).hexdigest()[:16]
    if waiting is None:
        return Sighting(Tick(None, "no entries wait"), state, waiting=False)
    tick = Tick(f"{feed}:{state}", f"entries wait; {landed} are landed")
    return asked_once(Sighting(tick, state, waiting=True), cursor)
