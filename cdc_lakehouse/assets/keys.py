"""Names of a feed's assets: asset keys, tables, and the partitions, which are feed dates."""

from __future__ import annotations

import datetime
import functools
import hashlib
import re
from collections.abc import Callable, Iterable
from typing import Final
from zoneinfo import ZoneInfo

import dagster as dg

from cdc_lakehouse.changelog.schema import TableName
from cdc_lakehouse.config import DateSeparator, FeedConfig
from cdc_lakehouse.config.section import zone_of
from cdc_lakehouse.errors import ConfigurationError

_SCHEDULES: Final[dict[DateSeparator, tuple[str, str]]] = {
    "year": ("%Y", "0 0 1 1 *"),
    "month": ("%Y-%m", "0 0 1 * *"),
    "day": ("%Y-%m-%d", "0 0 * * *"),
}
"""Format and cron schedule of the partitions, by `date_separator`."""


def key_in_feed(feed: FeedConfig, *parts: str) -> dg.AssetKey:
    """Return the key with which the keys of all assets of a feed begin, or one of these."""
    return dg.AssetKey([*feed.key_prefix, feed.name, *parts])


def belongs_to_feed(feed: FeedConfig, key: dg.AssetKey) -> bool:
    return key.has_prefix(key_in_feed(feed).path)


def _of_feed(name: str) -> Callable[[FeedConfig], dg.AssetKey]:
    return lambda feed: key_in_feed(feed, name)


# The keys of a feed's assets: the external asset of the change log, the initial dump, landed segments, the changes of
# all tables, the published cut, and what keeps tables small.
source_key, snapshot_key, raw_key, events_key = map(_of_feed, ("source", "snapshot", "raw", "events"))
checkpoint_key, maintenance_key, compaction_key = map(_of_feed, ("checkpoint", "maintenance", "compaction"))


def ddl_key(feed: FeedConfig, database: str) -> dg.AssetKey:
    return key_in_feed(feed, f"ddl_{database}")


def current_key(feed: FeedConfig, table: TableName) -> dg.AssetKey:
    """Return the key of the asset of a table's current rows. The graph shows the last part of a key, and the catalog
    cuts long ones in the middle: so it is short, and the table is last."""
    return key_in_feed(feed, table.database, table.table)


def output_name(kind: str, table: TableName) -> str:
    """Return a name that Dagster accepts for an output (letters, digits and underscores), distinct for each table."""
    readable = re.sub(r"\W", "_", f"{table.database}__{table.table}", flags=re.ASCII)
    digest = hashlib.sha256(f"{table.database}\0{table.table}".encode()).hexdigest()[:8]
    return f"{kind}__{readable}__{digest}"


def partitions_of(feed: FeedConfig, landed: Iterable[str] = ()) -> dg.TimeWindowPartitionsDefinition | None:
    """Return the feed's partitions, from `start_date` to the current one by the source's wall clock; None for a feed
    without dates. With the dates that have segments (`landed`) they begin at the first of these, so that a `start_date`
    long before it makes no partitions in which there is nothing to do."""
    separator = feed.source.date_separator
    if separator == "none":
        return None
    (fmt, cron), zone = _SCHEDULES[separator], feed.source.time_zone
    if zone[0] in "+-":
        # Dagster only accepts names. With an offset that includes minutes, a date begins up to an hour early: a date
        # that exists too early is empty, a missing one is not run.
        offset = zone_of(zone).utcoffset(None)
        assert offset is not None
        hours = -(-offset // datetime.timedelta(hours=1))
        zone = f"Etc/GMT{-hours:+d}" if hours else "UTC"  # These names use the sign of POSIX.
    make = functools.partial(
        dg.TimeWindowPartitionsDefinition, fmt=fmt, cron_schedule=cron, timezone=zone, end_offset=1
    )
    definition = make(feed.start_date.strftime(fmt))
    first = next(filter(definition.has_partition_key, sorted(landed)), None)
    return definition if first is None else make(first)


def run_partitions(feed: FeedConfig, dates: Iterable[str], now: datetime.datetime) -> list[str]:
    """Return the partitions of an incremental run: the dates that are partitions, or else the current one, because a
    run without new segments is for a checkpoint that moved. Segments of other dates are read too. Raises
    `ConfigurationError` when the feed has no partition yet."""
    if (definition := partitions_of(feed)) is None:
        return []
    present = now.astimezone(ZoneInfo(definition.timezone)).strftime(definition.fmt)
    if present < definition.start.strftime(definition.fmt):
        what = f"start_date of the feed {feed.name} is in the future"
        raise ConfigurationError(what, advice="set the date of the sink's first directory")
    known = {date for date in dates if date <= present and definition.has_partition_key(date)}
    return sorted(known) or [present]
