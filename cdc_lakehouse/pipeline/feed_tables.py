"""Which tables a feed takes. The configuration names them; a table may have had other names before its last one, and
its rows under those names belong to it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase

from cdc_lakehouse.changelog.history import History, Incarnation
from cdc_lakehouse.changelog.mysql_types import type_change
from cdc_lakehouse.changelog.schema import Column, TableName, TableVersion
from cdc_lakehouse.config import FeedConfig, TablesConfig
from cdc_lakehouse.lake.catalog import Lake
from cdc_lakehouse.lake.tables.schema_history import SchemaHistory


def is_taken(tables: TablesConfig, life: Incarnation) -> bool:
    """Whether the configuration takes a table, by its last name."""
    return _takes(tables, life.last.name)


def was_taken(tables: TablesConfig, life: Incarnation) -> bool:
    """Whether the configuration takes a table, by its last name or an earlier one."""
    return is_taken(tables, life) or left_ts(tables, life) is not None


def left_ts(tables: TablesConfig, life: Incarnation) -> int | None:
    """Return when a table was renamed from a name that the configuration takes to one that it does not; None when it
    was not."""
    if is_taken(tables, life):
        return None
    last = next((n for n, version in enumerate(reversed(life.versions)) if _takes(tables, version.name)), None)
    return None if last is None else life.versions[-last].commit_ts


@dataclass(frozen=True)
class TakenNames:
    """The names whose rows are wanted: those that the configuration takes, and the `earlier` names, folded, of tables
    that it takes by a later name: a statement has the old name as it was typed."""

    tables: TablesConfig
    earlier: frozenset[TableName] = frozenset()

    @classmethod
    def of(cls, tables: TablesConfig, history: History, since: int) -> TakenNames:
        """Return the names to take. `since` is the commit-ts of the last cut. The history goes beyond the next cut: a
        table that has a taken name for a while is in the cuts of that time."""
        names = {name for life in history.incarnations().values() for name in _wanted(tables, life, since)}
        # A table that was renamed before a row showed it: its rows may have been left out under the old name.
        unknown = ((each.name, each.previous_name) for each in reversed(history.versions) if not each.incarnation)
        names.update(old for new, old in unknown if old and (new in names or _takes(tables, new)))
        return cls(tables, frozenset(name.folded for name in names if not _takes(tables, name)))

    @property
    def digest(self) -> str:
        """A digest that differs when other names are taken."""
        names = (self.tables.include, self.tables.exclude, sorted(name.identity for name in self.earlier))
        return hashlib.sha256(repr(names).encode()).hexdigest()[:16]

    def takes(self, database: str, table: str) -> bool:
        return self.takes_name(TableName(database, table))

    def takes_name(self, name: TableName) -> bool:
        return _takes(self.tables, name) or name.folded in self.earlier


def unmatched_patterns(tables: TablesConfig, history: History) -> list[str]:
    """A sentence for each pattern of `tables.include` that matches no table that the feed has ever seen, by any of its
    names. None as long as it has seen no table."""
    names = {str(name) for version in history.versions for name in (version.name, version.previous_name) if name}
    seen = sorted(name for name in names if not name.endswith("."))
    return [_sentence(p, seen) for p in tables.include if seen and not any(fnmatchcase(name, p) for name in seen)]


def _sentence(pattern: str, seen: list[str]) -> str:
    alike = [name for name in seen if fnmatchcase(name.lower(), pattern.lower())]
    said = f"the pattern {pattern} of tables.include matches none of the tables seen so far ({len(seen)})"
    if not alike:
        return said
    others = "" if len(alike) == 1 else f", and {len(alike) - 1} more"
    return f"{said}; {alike[0]} differs in letter case{others}"


def _wanted(tables: TablesConfig, life: Incarnation, since: int) -> Iterator[TableName]:
    """Yield the names up to the last one that is taken, if the table has that name after `since`. This includes the
    name before the first version: a table may be renamed before any row of it is decoded."""
    left = left_ts(tables, life)
    is_wanted = is_taken(tables, life) if left is None else left > since
    taken = life if left is None else life.upto(left - 1)
    if not is_wanted or taken is None:
        return
    yield from taken.names
    if taken.versions[0].previous_name is not None:
        yield taken.versions[0].previous_name


def _takes(tables: TablesConfig, name: TableName) -> bool:
    return tables.takes(name.database, name.table)


# The columns that identify a table's rows, and when they change.


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
    a type conversion. When the values stay, other texts of them are not another key (`keyed_events.TableKey`)."""
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


def known_tables(lake: Lake, feed: FeedConfig) -> list[TableName]:
    """Return the tables of the schema history that were not dropped. They are assets; one that appears later is updated
    too, and becomes an asset when the definitions are next loaded."""
    lives = SchemaHistory(lake, feed.name).history.incarnations().values()
    names = {life.last.name for life in lives if life.dropped_ts is None}
    return sorted((name for name in names if feed.tables.takes(name.database, name.table)), key=str)
