"""Asset keys: of the same shape everywhere."""

from __future__ import annotations

import hashlib
import re

import dagster as dg

from cdc_lakehouse.changelog.schema import TableName


def raw_key(feed: str) -> dg.AssetKey:
    return dg.AssetKey([feed, "raw"])


def events_key(feed: str) -> dg.AssetKey:
    return dg.AssetKey([feed, "events"])


def schema_key(feed: str, table: TableName) -> dg.AssetKey:
    return dg.AssetKey([feed, "schema", table.database, table.table])


def current_key(feed: str, table: TableName) -> dg.AssetKey:
    return dg.AssetKey([feed, "current", table.database, table.table])


def checkpoint_key(feed: str) -> dg.AssetKey:
    return dg.AssetKey([feed, "checkpoint"])


def output_name(kind: str, table: TableName) -> str:
    """A name that Dagster takes for an output: letters, digits and underscores, distinct for each table."""
    readable = re.sub(r"\W", "_", f"{table.database}__{table.table}", flags=re.ASCII)
    digest = hashlib.sha256(f"{table.database}\0{table.table}".encode()).hexdigest()[:8]
    return f"{kind}__{readable}__{digest}"
