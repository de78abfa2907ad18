"""The tables that a feed's definitions name: those of its schema history, without those that were dropped."""

from __future__ import annotations

from cdc_lakehouse.changelog.schema import TableName
from cdc_lakehouse.config import FeedConfig
from cdc_lakehouse.lake.catalog import Lake
from cdc_lakehouse.lake.tables.schema_history import SchemaHistory


def known_tables(lake: Lake, feed: FeedConfig) -> list[TableName]:
    """Tables that are assets. One that appears later is applied all the same, and is an asset at the next load."""
    lives = SchemaHistory(lake, feed.name).history.incarnations().values()
    names = {life.last.name for life in lives if life.dropped_ts is None}
    return sorted((name for name in names if feed.tables.takes(name.database, name.table)), key=str)
