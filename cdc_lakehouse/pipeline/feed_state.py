"""The state of a feed as numbers: one reading for the status, for alerts and for metrics. No JVM is started, and the
source is not queried."""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from cdc_lakehouse.changelog.history import Incarnation
from cdc_lakehouse.changelog.positions import BEGINNING, commit_time, lag_seconds
from cdc_lakehouse.changelog.schema import TableName
from cdc_lakehouse.config import FeedConfig
from cdc_lakehouse.lake.catalog import Lake, system_table
from cdc_lakehouse.lake.current.tables import CurrentTables, row_count
from cdc_lakehouse.lake.engine_faults import engine_fault
from cdc_lakehouse.lake.table_health import TableHealth, table_health
from cdc_lakehouse.lake.tables.checkpoints import Checkpoints, Cut, CutRow
from cdc_lakehouse.lake.tables.quarantine import Quarantine
from cdc_lakehouse.lake.tables.schema_history import SchemaHistory
from cdc_lakehouse.lake.tables.segments import Segments


@dataclass(frozen=True, slots=True)
class FeedState:
    """The state of a feed.

    checkpoint_ts: of the published cut, a TSO; None when nothing is published, like lag_seconds. cut: its tables.
    tables: these and the held ones, each held one with the last row that shows it, None when there is none. held:
    reasons by table. quarantined: open rows by table, None for those without a table. discarded: rows that a person
    discarded. read_at: in UTC."""

    checkpoint_ts: int | None
    lag_seconds: float | None
    cut: tuple[CutRow, ...]
    tables: Mapping[TableName, CutRow | None]
    held: Mapping[TableName, str]
    quarantined: Mapping[TableName | None, int]
    discarded: int
    read_at: datetime.datetime

    def lag_of(self, table: TableName) -> float | None:
        """Return the seconds by which the readers' view of a table lags; None when they have not seen it."""
        row = self.tables.get(table)
        return None if row is None else lag_seconds(row.checkpoint_ts, self.read_at)

    @property
    def checkpoint_time(self) -> datetime.datetime | None:
        """The time that the tables show, in UTC."""
        return None if self.checkpoint_ts is None else commit_time(self.checkpoint_ts)

    @property
    def published_at(self) -> datetime.datetime | None:
        """When the cut was published, in UTC; None for one without tables."""
        return max((row.published_at for row in self.cut), default=None)

    @property
    def quarantined_rows(self) -> int:
        return sum(self.quarantined.values())


@dataclass(frozen=True, slots=True)
class FeedSizes:
    """The sizes of a feed. events: rows of the `events` table. segments_waiting: segments that have landed and are not
    decoded."""

    events: int
    segments_waiting: int


def read_feed_state(lake: Lake, feed: FeedConfig, now: datetime.datetime) -> FeedState:
    """Read the state of a feed. Raises `CatalogUnreachableError` when the lake cannot be read."""
    checkpoints = Checkpoints(lake, feed.name)
    cut = checkpoints.last()
    published = None if cut.checkpoint_ts == BEGINNING else cut.checkpoint_ts
    quarantine = Quarantine(lake, feed.name)
    quarantined: dict[TableName | None, int] = {}
    for row in quarantine.open():
        table = None if row.database is None or row.table is None else TableName(row.database, row.table)
        quarantined[table] = quarantined.get(table, 0) + row.count
    rows = () if published is None else tuple(checkpoints.rows(published))
    held = held_of_cut(lake, feed.name, cut)
    tables: dict[TableName, CutRow | None] = {TableName(row.database, row.table): row for row in rows}
    tables |= {name: checkpoints.last_of(name) for name in held.keys() - tables.keys()}
    return FeedState(
        published,
        None if published is None else lag_seconds(published, now),
        rows,
        tables,
        held,
        quarantined,
        quarantine.count("discarded"),
        now,
    )


def held_by_name(held: Iterable[tuple[str, str]], lives: Mapping[str, Incarnation]) -> dict[TableName, str]:
    """Return the reasons by the last names of tables. `held` are pairs of an incarnation (or the identity of the name
    of a table without a history) and its reason."""
    found: dict[TableName, str] = {}
    for id, reason in held:
        name = lives[id].last.name if id in lives else TableName.of_identity(id)
        found[name] = reason if name not in found else f"{found[name]}; {reason}"
    return found


def held_of_cut(lake: Lake, feed: str, cut: Cut) -> dict[TableName, str]:
    """Return the held tables of a cut. The schema history is only read when a table is held."""
    return held_by_name(cut.held, SchemaHistory(lake, feed).history.incarnations() if cut.held else {})


def stale_tables(feed: FeedConfig, state: FeedState) -> Iterator[tuple[TableName, float, int]]:
    """Yield the tables that lag more than their `freshness_minutes` allow, with the seconds and these minutes."""
    for table in sorted(state.tables, key=lambda name: (name.database, name.table)):
        lag, allowed = state.lag_of(table), feed.settings_of(table.database, table.table).freshness_minutes
        if allowed is not None and lag is not None and lag > allowed * 60:
            yield table, lag, allowed


def read_sizes(lake: Lake, feed: str) -> FeedSizes:
    """Read the sizes of the `events` and `segments` tables. Raises `CatalogUnreachableError` when the lake cannot be
    read."""
    events = lake.load(system_table(feed, "events"))
    return FeedSizes(
        0 if events is None else row_count(events, events.current_snapshot()), Segments(lake, feed).waiting()
    )


def read_health(lake: Lake, feed: FeedConfig, name: TableName) -> TableHealth | None:
    """Read the health of a current-state table; None when it does not exist, or cannot be read."""
    tables = CurrentTables(lake, feed)
    try:
        table = tables.load(tables.identifier(name))
        return None if table is None else table_health(table)
    except Exception as error:
        if engine_fault(error) is not None:
            raise
        return None
