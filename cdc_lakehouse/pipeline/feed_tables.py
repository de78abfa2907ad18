"""The tables of a feed: which ones it takes, what identifies their rows, how values are read, and which events are
theirs. The configuration names tables; a table may have had other names before its last one, and its rows under those
names belong to it.
"""

from __future__ import annotations

import functools
from collections.abc import Collection
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Final

from cdc_lakehouse.changelog.history import History, Incarnation
from cdc_lakehouse.changelog.mysql_types import type_change
from cdc_lakehouse.changelog.positions import BEGINNING
from cdc_lakehouse.changelog.schema import Column, TableName, TableVersion
from cdc_lakehouse.config import FeedConfig, StorageSinkSource, TablesConfig
from cdc_lakehouse.decoders.arrow import pc
from cdc_lakehouse.decoders.registry import FILE_FORMATS, format_of
from cdc_lakehouse.lake.catalog import Lake
from cdc_lakehouse.lake.current.tables import TableState
from cdc_lakehouse.lake.current.update_tasks import FeedTable
from cdc_lakehouse.lake.current.value_parsing import ValueFormat
from cdc_lakehouse.lake.tables.schema_history import SchemaHistory
from cdc_lakehouse.lake.tables.segments import DECODED, Segments


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
        names: set[TableName] = set()
        for life in history.incarnations().values():
            # Up to the last one that is taken, if the table has that after `since`, and with the name before the first
            # version: a table may be renamed before any row of it is decoded.
            left = left_ts(tables, life)
            taken = life if left is None else life.upto(left - 1)
            if taken is not None and (is_taken(tables, life) if left is None else left > since):
                names |= {*taken.names, *filter(None, [taken.versions[0].previous_name])}
        # A table that was renamed before a row showed it: its rows may have been left out under the old name.
        unknown = ((each.name, each.previous_name) for each in reversed(history.versions) if not each.incarnation)
        names.update(old for new, old in unknown if old and (new in names or _takes(tables, new)))
        return cls(tables, frozenset(name.folded for name in names if not _takes(tables, name)))

    def takes(self, database: str, table: str) -> bool:
        return self.takes_name(TableName(database, table))

    def takes_name(self, name: TableName) -> bool:
        return _takes(self.tables, name) or name.folded in self.earlier


def unmatched_patterns(tables: TablesConfig, history: History) -> list[str]:
    """A sentence for each pattern of `tables.include` that matches no table that the feed has ever seen, by any of its
    names. None as long as it has seen no table."""
    names = {str(name) for version in history.versions for name in (version.name, version.previous_name) if name}
    seen = sorted(name for name in names if not name.endswith("."))
    said: list[str] = []
    for pattern in tables.include if seen else ():
        if any(fnmatchcase(name, pattern) for name in seen):
            continue
        alike = [name for name in seen if fnmatchcase(name.lower(), pattern.lower())]
        others = "" if len(alike) < 2 else f", and {len(alike) - 1} more"
        case = f"; {alike[0]} differs in letter case{others}" if alike else ""
        said.append(
            f"the pattern {pattern} of tables.include matches none of the tables seen so far ({len(seen)}){case}"
        )
    return said


def _takes(tables: TablesConfig, name: TableName) -> bool:
    return tables.takes(name.database, name.table)


# The columns that identify a table's rows, and when they change.


def key_columns(feed: FeedConfig, version: TableVersion) -> tuple[Column, ...]:
    """Return the columns that identify a row: the configuration's, otherwise the source's; empty when there are
    none."""
    configured = feed.settings_of(version.name.database, version.name.table).primary_key
    named = map(version.column, version.key) if configured is None else map(version.named, configured)
    found = [column for column in named if column is not None]
    return tuple(found) if len(found) == len(version.key if configured is None else configured) else ()


def _key_of(feed: FeedConfig, life: Incarnation, version: TableVersion) -> tuple[Column, ...]:
    """Return the columns of a version that identify the table's rows, also those that a later configuration names."""
    name = life.last.name
    configured = feed.settings_of(name.database, name.table).primary_key is not None
    ids = [column.id for column in key_columns(feed, life.last)] if configured else version.key
    return tuple(column for id in ids if (column := version.column(id)))


def key_before_version(feed: FeedConfig, life: Incarnation, version: TableVersion) -> tuple[Column, ...]:
    """Return the columns that identified rows until a version, as in the previous version. A table that has temporarily
    lost its key is treated as if it had kept it."""
    earlier = life.versions[: life.versions.index(version)]
    keys = (_key_of(feed, life, each) for each in reversed(earlier))
    ids = [column.id for column in next(filter(None, keys), ())]
    return tuple(column for id in ids if (column := earlier[-1].column(id)))


def key_changes(feed: FeedConfig, life: Incarnation) -> list[TableVersion]:
    """Return the versions from which on rows are identified by other columns, or by other values of the same ones
    after a type conversion. When the values stay, other texts of them are not another key (`keyed_events.KeyPart`)."""

    def changes(version: TableVersion) -> bool:
        old, new = key_before_version(feed, life, version), _key_of(feed, life, version)
        if [column.id for column in old] != [column.id for column in new]:
            return bool(new)
        return any(type_change(was.type, now.type) == "convert" for was, now in zip(old, new, strict=True))

    later = (version for version in life.versions[1:] if version.commit_ts > life.emptied_ts)
    return [version for version in later if version.effect != "drop" and changes(version)]


def value_format(feed: FeedConfig, name: TableName) -> ValueFormat:
    """Return how the texts of a table's values are read."""
    zone, zero_dates = feed.source.time_zone, feed.zero_dates_of(name.database, name.table)
    if isinstance(source := feed.source, StorageSinkSource):
        binary = "characters" if source.csv is None else source.csv.binary_encoding_method
        return ValueFormat(zone, zero_dates, labels=FILE_FORMATS[source.protocol].has_labels, binary=binary)
    form = format_of(feed.message_format)
    return ValueFormat(
        zone, zero_dates, labels=form.labels == "labels", labels_uncertain=form.labels == "uncertain",
        trailing_zeros_cut=form.trailing_zeros_cut, database=form.database,
    )  # fmt: skip


def feed_table(feed: FeedConfig, life: Incarnation) -> FeedTable:
    """Return a table as the code sees it that makes rows of events."""
    void = max([life.emptied_ts, *(version.commit_ts for version in key_changes(feed, life))])
    return FeedTable(life, key_columns(feed, life.last), value_format(feed, life.last.name), void)


def known_tables(lake: Lake, feed: FeedConfig) -> list[TableName]:
    """Return the tables of the schema history that were not dropped. They are assets; one that appears later is updated
    too, and becomes an asset when the definitions are next loaded."""
    lives = SchemaHistory(lake, feed.name).history.incarnations().values()
    names = {life.last.name for life in lives if life.dropped_ts is None}
    return sorted((name for name in names if feed.tables.takes(name.database, name.table)), key=str)


def is_purged(feed: FeedConfig, life: Incarnation) -> bool:
    """Whether the table is removed, with its data, when the source drops it."""
    return feed.ddl_of(life.last.name.database, life.last.name.table).drop == "purge"


def format_refusal(feed: FeedConfig, life: Incarnation, state: TableState) -> str | None:
    """Return why a table cannot have the format version of the configuration; None when it can, or was dropped."""
    name = life.last.name
    wanted = feed.format_version_of(name.database, name.table)
    if wanted >= state.format_version or life.dropped_ts is not None:
        return None
    return (
        f"the Iceberg table {state.identifier} has format version {state.format_version}, the configuration asks for "
        f'{wanted}, and Iceberg has no way back: set tables.settings."{name}".format_version to '
        f"{state.format_version}, or drop the Iceberg table and recreate it with `cdc-lakehouse rebuild {name}`"
    )


_EVENT_BYTES: Final = 2048
"""The size of an event in the source for which a task has memory; larger ones count as several."""


class EventEstimates:
    """Estimates how many events of a table a run reads, by the segments that can hold some when it is first asked: all
    of them, or those above `after_ts`."""

    def __init__(self, segments: Segments, after_ts: int = BEGINNING) -> None:
        self._segments, self._after_ts = segments, after_ts
        self._by_name = functools.cache(self._count)

    def of(self, names: Collection[TableName], *, above: bool = False) -> tuple[int, bool]:
        """Return the number of events of tables with these names, and whether no UPDATE or DELETE is known of them."""
        counts = self._by_name(above)
        # Ranges of topics hold rows of many tables: all of them may belong to any one.
        found = [counts.get(name, (0, 0)) for name in (*names, None)]
        return sum(events for events, _ in found), not any(others for _, others in found)

    def _count(self, above: bool) -> dict[TableName | None, tuple[int, int]]:
        """Return the number of events, and of those that are an UPDATE or a DELETE, by table."""
        wanted = pc.field("state") == DECODED
        rows = self._segments.rows.filter(wanted & (pc.field("max_commit_ts") > self._after_ts) if above else wanted)
        sums = [(name, "sum") for name in ("events", "size", "updates", "deletes")]
        return {
            None if row["table"] is None else TableName(row["database"], row["table"]): (
                max(row["events_sum"] or 0, row["size_sum"] // _EVENT_BYTES),
                (row["updates_sum"] or 0) + (row["deletes_sum"] or 0),
            )
            for row in rows.group_by(["database", "table"]).aggregate(sums).to_pylist()
        }
