"""Partitions follow the sink's `date-separator`: a partition is a date directory."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import dagster as dg

from cdc_lakehouse.config import DateSeparator, FeedConfig

_SCHEDULES: Final[dict[DateSeparator, tuple[str, str]]] = {
    "year": ("%Y", "0 0 1 1 *"),
    "month": ("%Y-%m", "0 0 1 * *"),
    "day": ("%Y-%m-%d", "0 0 * * *"),
}


def partitions_of(feed: FeedConfig) -> dg.TimeWindowPartitionsDefinition | None:
    """The feed's partitions; None for a sink without date directories.

    The directory's date is the server's wall clock at the flush, which may be ahead of this machine's: the window that
    is under way, and the one after it, are partitions too.
    """
    separator = feed.source.date_separator
    if separator == "none":
        return None
    fmt, cron = _SCHEDULES[separator]
    return dg.TimeWindowPartitionsDefinition(
        start=feed.start_date.strftime(fmt), fmt=fmt, cron_schedule=cron, end_offset=2
    )


def known_partitions(feed: FeedConfig, dates: Iterable[str]) -> list[str]:
    """Those of the dates that are partitions: segments of other dates are read all the same."""
    definition = partitions_of(feed)
    if definition is None:
        return []
    return sorted(date for date in set(dates) if definition.has_partition_key(date))
