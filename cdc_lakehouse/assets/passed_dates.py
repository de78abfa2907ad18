"""Mark dates that the checkpoint has passed and that no run has materialized as done: most of them have no files."""

from __future__ import annotations

import dagster as dg

from cdc_lakehouse.assets import keys, metadata
from cdc_lakehouse.changelog.positions import BEGINNING, commit_time, utc_now
from cdc_lakehouse.config import FeedConfig
from cdc_lakehouse.config.section import zone_of
from cdc_lakehouse.decoders.arrow import pc
from cdc_lakehouse.lake.tables.segments import DECODED, as_rows, totals
from cdc_lakehouse.pipeline.source import Landed
from cdc_lakehouse.pipeline.steps import Steps


def log_passed_dates(context: dg.AssetExecutionContext | dg.OpExecutionContext, feed: FeedConfig, steps: Steps) -> None:
    """Materialize the partitions of `raw` and `events` that are over at the checkpoint, by the source's wall clock, and
    that this Dagster instance does not know yet, with the lake's numbers for them. A file has the date on which it was
    flushed, and everything committed before was flushed: no more files with these dates follow."""
    dates, checkpoint_ts = steps.run.segments.dates(), steps.published.cut.checkpoint_ts
    definition = keys.partitions_of(feed, dates)
    if definition is None or not dates or checkpoint_ts == BEGINNING:
        return
    reached = commit_time(checkpoint_ts)
    under_way = reached.astimezone(zone_of(feed.source.time_zone)).strftime(definition.fmt)
    passed = {date for date in definition.get_partition_keys(reached) if date < under_way}
    landed = steps.run.segments.rows
    decoded = landed.filter(pc.field("state") == DECODED)
    none, rows = totals(as_rows([])), totals(decoded).events
    for key, segments in ((keys.raw_key(feed.name), landed), (keys.events_key(feed.name), decoded)):
        for date in sorted(passed - context.instance.get_materialized_partitions(key)):
            of_date = totals(segments.filter(pc.field("feed_date") == date))
            if segments is landed:
                numbers = metadata.landed_metadata(Landed(), of_date, none, utc_now())
            else:
                numbers = metadata.events_metadata(of_date, none, rows, by_date=True)
            context.log_event(dg.AssetMaterialization(key, metadata=numbers, partition=date))
