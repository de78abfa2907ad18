"""Partitions follow the sink's `date-separator`: a partition is a date directory."""

from __future__ import annotations

import datetime
from collections.abc import Iterable
from typing import Final

import dagster as dg

from cdc_lakehouse.config import DateSeparator, FeedConfig
from cdc_lakehouse.errors import ConfigurationError

_SCHEDULES: Final[dict[DateSeparator, tuple[str, str]]] = {
    "year": ("%Y", "0 0 1 1 *"),
    "month": ("%Y-%m", "0 0 1 * *"),
    "day": ("%Y-%m-%d", "0 0 * * *"),
}


def partitions_of(feed: FeedConfig) -> dg.TimeWindowPartitionsDefinition | None:
    """The feed's partitions, up to the one under way by the source's wall clock; None for a feed without dates."""
    separator = feed.source.date_separator
    if separator == "none":
        return None
    fmt, cron = _SCHEDULES[separator]
    return dg.TimeWindowPartitionsDefinition(
        start=feed.start_date.strftime(fmt),
        fmt=fmt,
        cron_schedule=cron,
        timezone=feed.source.time_zone,
        end_offset=1,
    )


def run_partitions(feed: FeedConfig, dates: Iterable[str], now: datetime.datetime) -> list[str]:
    """The partitions of an incremental run: the dates that are partitions, else the one that is under way, for a run
    that finds no new segment is about a checkpoint that moved. Segments of other dates are read all the same.

    Raises `ConfigurationError` when the feed has no partition yet.
    """
    definition = partitions_of(feed)
    if definition is None:
        return []
    partitions = definition.get_partition_keys(now)
    if not partitions:
        raise ConfigurationError(
            f"start_date of the feed {feed.name} is in the future", advice="set the date of the sink's first directory"
        )
    return sorted(set(partitions).intersection(dates)) or [partitions[-1]]
