"""The columns that identify a table's rows, and when they change."""

from __future__ import annotations

from cdc_lakehouse.changelog.history import Incarnation
from cdc_lakehouse.changelog.mysql_types import type_change
from cdc_lakehouse.changelog.schema import Column, TableVersion
from cdc_lakehouse.config import FeedConfig


def key_columns(feed: FeedConfig, version: TableVersion) -> tuple[Column, ...]:
    """Return the columns that identify a row: the configuration's, otherwise the source's; empty when there are
    none."""
    configured = feed.settings_of(version.name.database, version.name.table).primary_key
    if configured is not None:
        named = [version.named(name) for name in configured]
        return tuple(column for column in named if column is not None) if None not in named else ()
    found = (version.column(id) for id in version.key)
    return tuple(column for column in found if column is not None)


def key_before_version(feed: FeedConfig, life: Incarnation, version: TableVersion) -> tuple[Column, ...]:
    """Return the columns that identified rows until a version, as in the previous version. A table that has temporarily
    lost its key is treated as if it had kept it."""
    earlier = life.versions[: life.versions.index(version)]
    if feed.settings_of(life.last.name.database, life.last.name.table).primary_key is not None:
        ids = [column.id for column in key_columns(feed, life.last)]
    else:
        ids = next((list(each.key) for each in reversed(earlier) if each.key), [])
    found = (earlier[-1].column(id) for id in ids)
    return tuple(column for column in found if column is not None)


def key_changes(feed: FeedConfig, life: Incarnation) -> list[TableVersion]:
    """Return the versions from which on rows are identified by other columns, or by other values of the same ones after
    a type conversion. When the values stay, other texts of them are not another key (`lake.current.key_texts`)."""
    return [
        version
        for version in life.versions[1:]
        if version.commit_ts > life.emptied_ts and version.effect != "drop" and _changes_key(feed, life, version)
    ]


def _changes_key(feed: FeedConfig, life: Incarnation, version: TableVersion) -> bool:
    old = key_before_version(feed, life, version)
    if feed.settings_of(life.last.name.database, life.last.name.table).primary_key is not None:
        new = tuple(column for each in key_columns(feed, life.last) if (column := version.column(each.id)))
    else:
        new = tuple(column for id in version.key if (column := version.column(id)))
    if not new:
        return False
    if [column.id for column in old] != [column.id for column in new]:
        return True
    return any(type_change(was.type, now.type) == "convert" for was, now in zip(old, new, strict=True))
