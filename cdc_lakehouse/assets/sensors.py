"""The sensor of a feed: a checkpoint-ts that moved is one run."""

from typing import Any

import dagster as dg

from cdc_lakehouse.assets.feed_sensor import Sighting, Tick, build_feed_sensor
from cdc_lakehouse.config import FeedConfig
from cdc_lakehouse.lake.catalog import Lake
from cdc_lakehouse.lake.tables.checkpoints import Checkpoints
from cdc_lakehouse.lake.tables.frontiers import Frontiers
from cdc_lakehouse.lake.tables.segments import Segments
from cdc_lakehouse.sources.object_store import open_store
from cdc_lakehouse.sources.sink.incremental_listing import list_new
from cdc_lakehouse.sources.sink.listing_state import settings_digest
from cdc_lakehouse.sources.sink.paths import DataFile, SinkLayout, list_sink, read_checkpoint


def decide(feed: str, shown_ts: int, published_ts: int, cursor: str | None) -> Tick:
    """The decision, from the source's checkpoint-ts, the published one, and the one of the last run that was asked
    for."""
    asked = int(cursor) if cursor else 0
    if shown_ts < max(published_ts, asked):
        return Tick(None, f"the source's checkpoint-ts went backwards, to {shown_ts} from {max(published_ts, asked)}")
    if shown_ts == max(published_ts, asked):
        return Tick(None, f"the checkpoint-ts has not moved from {shown_ts}")
    return Tick(f"{feed}:{shown_ts}", f"the checkpoint-ts moved to {shown_ts}")


def build_sensor(lake: Lake, feed: FeedConfig, job: Any) -> dg.SensorDefinition:
    def look(cursor: str | None) -> Sighting:
        shown = read_checkpoint(open_store(feed.storage_sink.uri, lake.storage))
        published = Checkpoints(lake, feed.name).last().checkpoint_ts
        tick = decide(feed.name, shown, published, cursor)
        return Sighting(tick, str(shown), shown > published, dates=lambda: new_dates(lake, feed))

    return build_feed_sensor(feed, job, "checkpoint", "Follows the checkpoint-ts of the sink's metadata file.", look)


def new_dates(lake: Lake, feed: FeedConfig) -> list[str]:
    """Feed dates of which the sink holds segments that are not known, or not in this form.

    Listed from the frontier, so that a tick costs what is new. It is a note for the run, which looks for itself."""
    new = _new_files(lake, feed)
    # Where directories are called by ids, the tables' names are not known here.
    return sorted({f.feed_date for f in new if f.feed_date and (not f.table or feed.tables.takes(f.database, f.table))})


def _new_files(lake: Lake, feed: FeedConfig) -> list[DataFile]:
    store, layout = open_store(feed.storage_sink.uri, lake.storage), SinkLayout.of(feed.storage_sink)
    frontier = Frontiers(lake, feed.name).last()
    if frontier is not None and frontier.settings == settings_digest(feed):
        return [file for file in list_new(store, layout, frontier).data if frontier.is_new(file)]
    files = list_sink(store, layout).data
    known = Segments(lake, feed.name).etags(file.path for file in files)
    return [file for file, etag in zip(files, known, strict=True) if etag != file.etag]
