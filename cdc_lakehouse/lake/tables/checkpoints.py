"""The `checkpoints` table: published cuts. A cut is one commit, which publishes it.

A row says which snapshot of a table shows the cut's checkpoint-ts. A held table has no row in a cut: its last good cut
is the last one that has a row of it.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final

import pyarrow as pa

from cdc_lakehouse.changelog.positions import BEGINNING
from cdc_lakehouse.changelog.schema import TableName
from cdc_lakehouse.decoders.arrow import pc
from cdc_lakehouse.errors import StoredFormError
from cdc_lakehouse.lake.catalog import Lake, system_table
from cdc_lakehouse.lake.names import BATCH, CHECKPOINT_TS, HELD, SCHEMA_VERSIONS, SETTINGS, SUPERSEDED
from cdc_lakehouse.lake.tables.small_table import ALL, SmallTable, schema_of


@dataclass(frozen=True, slots=True)
class CutRow:
    """One table of a cut. `snapshot_id` is None for a table that never had a row."""

    checkpoint_ts: int
    database: str
    table: str
    snapshot_id: int | None
    row_count: int
    published_at: datetime.datetime


SCHEMA: Final = schema_of(CutRow)


@dataclass(frozen=True, slots=True)
class Cut:
    """The newest cut: what was applied (checkpoint-ts, batch of segments, number of versions of the schema history),
    and which tables were held (incarnation, reason)."""

    checkpoint_ts: int = BEGINNING
    batch: int = 0
    versions: int = 0
    settings: str = ""
    held: tuple[tuple[str, str], ...] = ()

    @property
    def held_incarnations(self) -> frozenset[str]:
        return frozenset(incarnation for incarnation, _ in self.held)


class Checkpoints:
    def __init__(self, lake: Lake, feed: str) -> None:
        self._table = SmallTable(lake, feed, "checkpoints", SCHEMA)

    def last(self) -> Cut:
        """Return the newest cut, from the table's properties: no data file is read."""
        properties = self._table.properties()
        if CHECKPOINT_TS not in properties:
            return Cut()
        checkpoint_ts, batch, versions = (int(properties[name]) for name in (CHECKPOINT_TS, BATCH, SCHEMA_VERSIONS))
        held = tuple((incarnation, reason) for incarnation, reason in json.loads(properties[HELD]))
        return Cut(checkpoint_ts, batch, versions, properties[SETTINGS], held)

    def rows(self, checkpoint_ts: int) -> list[CutRow]:
        return [CutRow(**row) for row in self._table.read(where={"checkpoint_ts": [checkpoint_ts]})]

    def published(self) -> list[int]:
        """Return the checkpoint-ts of all cuts, oldest first."""
        return sorted(self._table.scan(["checkpoint_ts"])["checkpoint_ts"].unique().to_pylist())

    def newest(self, cuts: int) -> pa.Table:
        """Return the rows of the newest cuts, at most of so many, unordered."""
        rows = self._table.scan()
        found = sorted(rows["checkpoint_ts"].unique().to_pylist())[-cuts:]
        return rows.filter(pc.field("checkpoint_ts") >= min(found, default=BEGINNING))

    def rows_of(self, table: TableName) -> list[CutRow]:
        """Return the rows of the tables with that name in all cuts, oldest first."""
        named = {"database": [table.database], "table": [table.table]}
        return sorted((CutRow(**row) for row in self._table.read(where=named)), key=lambda row: row.checkpoint_ts)

    def publish(self, cut: Cut, rows: Iterable[CutRow]) -> None:
        """Publish a cut in one commit, in place of a newest one with the same checkpoint-ts (a backfill, a release)."""
        properties = {
            CHECKPOINT_TS: str(cut.checkpoint_ts),
            BATCH: str(cut.batch),
            SCHEMA_VERSIONS: str(cut.versions),
            SETTINGS: cut.settings,
            HELD: json.dumps([list(pair) for pair in cut.held]),
        }
        is_same_cut = self.last().checkpoint_ts == cut.checkpoint_ts
        same = {"checkpoint_ts": [cut.checkpoint_ts]}
        self._table.write(rows, replacing=same if is_same_cut else None, properties=properties)

    def named_snapshots(self, before: datetime.datetime | None = None) -> set[int]:
        """Return the snapshots that the cuts name; with `before`, those that remain after `forget`."""
        rows = self._table.scan() if before is None else self._kept(before)
        return set(pc.unique(rows["snapshot_id"]).to_pylist()) - {None}

    def show_instead(self, database: str, table: str, snapshots: dict[int, int]) -> bool:
        """Replace `snapshots` (old to new, of the same rows) of a table in the newest cut; return whether it did."""
        cut = self.last()
        rows = self.rows(cut.checkpoint_ts) if snapshots else []
        of_table = [row for row in rows if (row.database, row.table) == (database, table)]
        moved = {row: snapshots[row.snapshot_id] for row in of_table if row.snapshot_id in snapshots}
        if moved:
            self.publish(cut, [replace(row, snapshot_id=moved.get(row, row.snapshot_id)) for row in rows])
        return bool(moved)

    def forget(self, before: datetime.datetime, *, dry_run: bool = False) -> int:
        """Remove the rows of cuts that were published before a moment, or only count them; return their number. The
        newest cut stays, and the newest row of each table: a held table is shown by its last good cut."""
        kept = self._kept(before)
        removed = len(self._table.scan()) - len(kept)
        if removed and not dry_run:
            self._table.write(kept, replacing=ALL)
        return removed

    def _kept(self, before: datetime.datetime) -> pa.Table:
        rows, key = self._table.scan(), ["database", "table", "checkpoint_ts"]
        rows = rows.append_column("position", pa.array(range(len(rows)), pa.int64()))
        newest = rows.group_by(key[:2]).aggregate([("checkpoint_ts", "max")]).rename_columns(key)
        last = rows.join(newest, key, join_type="left semi")["position"].combine_chunks()
        recent = pc.field("published_at") >= pa.scalar(before, pa.timestamp("us", tz="UTC"))
        of_last_cut = pc.field("checkpoint_ts") == self.last().checkpoint_ts
        return rows.filter(recent | of_last_cut | pc.field("position").isin(last)).select(SCHEMA.names)


@dataclass(frozen=True, slots=True)
class Removal:
    """The removal of a feed's events so far: how many were removed, how many events were there to examine the last
    time, and the commit-ts from which on the state at any moment is still known."""

    removed: int = 0
    looked_at: int = 0
    known_from_ts: int = BEGINNING


def removal_of(lake: Lake, feed: str) -> Removal:
    """Return what was removed of a feed's events."""
    table = lake.load(system_table(feed, "events"))
    text = None if table is None else table.properties.get(SUPERSEDED)
    try:
        return Removal() if text is None else Removal(**json.loads(text))
    except (TypeError, ValueError) as error:
        raise StoredFormError(f"the property {SUPERSEDED} of the events of feed {feed} cannot be read") from error
