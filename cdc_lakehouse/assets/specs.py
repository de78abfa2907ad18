"""Arguments of asset definitions that are known before any run: group, kinds, owners, tags, names of tables, freshness.

A feed's own assets are in its group, by default `<feed>`, the current-state tables of a database in
`<group>/<database>`, and their schemas in `<group>/<database>/schema`: so a database of 500 tables is one box in the
graph, which can be opened. The page of a group names all neighbours of its assets. Schemas depend on the log, which is
in `<group>/source`: otherwise the feed's page would name each table twice, for its schema and for itself.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Mapping
from typing import Any

import dagster as dg

from cdc_lakehouse.assets import keys
from cdc_lakehouse.assets.metadata import as_markdown, configuration_metadata, events_schema, table_name
from cdc_lakehouse.changelog.schema import TableName
from cdc_lakehouse.config import FeedConfig
from cdc_lakehouse.lake.catalog import Lake, system_table
from cdc_lakehouse.lake.current.tables import CurrentTables
from cdc_lakehouse.lake.names import Identifier
from cdc_lakehouse.pipeline.source import SourceMonitor

Spec = dict[str, Any]
"""Arguments that `dg.asset`, `dg.AssetOut` and `dg.AssetSpec` have in common."""


def source_spec(feed: FeedConfig, source: SourceMonitor) -> Spec:
    """Return the spec of the feed's log, where its lineage begins and which nothing here makes. It is one asset, not
    one for each table."""
    return Spec(
        key=keys.source_key(feed.name),
        description="The change log, as it leaves the source. It is only read.",
        kinds={source.kind.name, source.database},
        metadata={
            "place": feed.source.place,
            "type": feed.source.type,
            "configuration": configuration_metadata(feed),
        },
        **_of_feed(feed, "source"),
    )


def snapshot_spec(feed: FeedConfig, source: SourceMonitor) -> Spec:
    return Spec(
        key=keys.snapshot_key(feed.name),
        description="The rows that the tables held before the change log, from a dump, at one point of it.",
        kinds={source.database},
        **_of_feed(feed),
    )


def raw_spec(feed: FeedConfig, source: SourceMonitor) -> Spec:
    first = [keys.snapshot_key(feed.name)] if feed.initial is not None else []
    return Spec(
        key=keys.raw_key(feed.name),
        deps=[keys.source_key(feed.name), *first],
        description=source.kind.description,
        kinds={source.kind.name},
        **_of_feed(feed),
    )


def events_spec(feed: FeedConfig) -> Spec:
    return Spec(
        key=keys.events_key(feed.name),
        deps=[keys.raw_key(feed.name)],
        description="Every change of every table, once, with its place in the source. Values are the source's text.",
        kinds={"spark", "iceberg"},
        metadata={**_stored(system_table(feed.name, "events")), "dagster/column_schema": events_schema()},
        **_of_feed(feed),
    )


def schema_spec(feed: FeedConfig, table: TableName, source: SourceMonitor) -> Spec:
    return Spec(
        key=keys.schema_key(feed.name, table),
        description=f"DDL of {as_markdown(str(table))}: statements, their effect, and the columns.",
        kinds={source.database},
        **_of_table(feed, table, "schema"),
    )


def current_spec(lake: Lake, feed: FeedConfig, table: TableName) -> Spec:
    minutes = feed.settings_of(table.database, table.table).freshness_minutes
    return Spec(
        key=keys.current_key(feed.name, table),
        description=f"{as_markdown(str(table))}: one row a key, as of the published checkpoint.",
        kinds={"spark", "iceberg"},
        metadata=_stored(CurrentTables(lake, feed).identifier(table)),
        freshness_policy=None if minutes is None else _within(minutes),
        **_of_table(feed, table),
    )


def checkpoint_spec(feed: FeedConfig) -> Spec:
    return Spec(
        key=keys.checkpoint_key(feed.name),
        description="The published cut: which snapshot of every table shows the checkpoint-ts.",
        kinds={"iceberg"},
        metadata=_stored(system_table(feed.name, "checkpoints")),
        # Every run materializes it: it fails when runs fail, and when there are none.
        freshness_policy=_within(feed.freshness_minutes),
        **_of_feed(feed),
    )


def maintenance_spec(feed: FeedConfig) -> Spec:
    return Spec(
        key=keys.maintenance_key(feed.name),
        description="Compaction, manifests, snapshots and orphan files of the feed's tables, by what each needs.",
        kinds={"spark", "iceberg"},
        **_of_feed(feed),
    )


def compaction_spec(feed: FeedConfig) -> Spec:
    return Spec(
        key=keys.compaction_key(feed.name),
        description="Small files and deleted rows of current-state tables, written anew where a table needs it.",
        kinds={"spark", "iceberg"},
        **_of_feed(feed),
    )


def _of_feed(feed: FeedConfig, part: str = "") -> Spec:
    return {"group_name": _group(feed.asset_group, part), "owners": feed.owners, "tags": feed.tags}


def _of_table(feed: FeedConfig, table: TableName, layer: str = "") -> Spec:
    database, name = table.database, table.table
    # Without characters that a group's name cannot hold; so two databases can share a group.
    readable = re.sub(r"\W", "_", database, flags=re.ASCII)
    group = feed.settings_of(database, name).group or f"{feed.asset_group}/{readable}"
    return {
        "group_name": _group(group, layer),
        "owners": feed.owners_of(database, name),
        "tags": feed.tags_of(database, name),
    }


def _group(name: str, part: str) -> str:
    return f"{name}/{part}" if part else name


def _within(minutes: int) -> dg.FreshnessPolicy:
    return dg.FreshnessPolicy.time_window(datetime.timedelta(minutes=minutes))


def _stored(identifier: Identifier) -> Mapping[str, Any]:
    return {"dagster/table_name": table_name(identifier), "dagster/storage_kind": "iceberg"}
