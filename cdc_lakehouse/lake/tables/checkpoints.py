"""The `checkpoints` table: published cuts. A cut is one commit, which publishes it.

A row says which snapshot of a table shows the cut's checkpoint-ts. A held table has no row in a cut: its last good cut
is the last one that has a row of it.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Final

import pyarrow as pa
from pyroaring import BitMap64

from cdc_lakehouse.changelog.positions import BEGINNING
from cdc_lakehouse.changelog.schema import TableName
from cdc_lakehouse.decoders.arrow import pc
from cdc_lakehouse.errors import StoredFormError
from cdc_lakehouse.lake.catalog import Lake, system_table
from cdc_lakehouse.lake.files import delete_rows, live_files
from cdc_lakehouse.lake.names import BATCH, CHECKPOINT_TS, HELD, SCHEMA_VERSIONS, SETTINGS, SUPERSEDED
from cdc_lakehouse.lake.tables.small_table import ALL, SmallTable, schema_of

if TYPE_CHECKING:
    from cdc_lakehouse.lake.iceberg_java import IcebergJavaApi  # Checks use the rest without Spark.


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
        held: list[list[str]] = json.loads(properties.get(HELD, "[]"))
        return Cut(
            int(properties[CHECKPOINT_TS]),
            int(properties[BATCH]),
            int(properties[SCHEMA_VERSIONS]),
            properties[SETTINGS],
            tuple((pair[0], pair[1]) for pair in held),
        )

    def rows(self, checkpoint_ts: int) -> list[CutRow]:
        return [CutRow(**row) for row in self._table.read(where={"checkpoint_ts": [checkpoint_ts]})]

    def published(self) -> list[int]:
        """Return the checkpoint-ts of all cuts, oldest first."""
        return sorted(self._table.scan().column("checkpoint_ts").unique().to_pylist())

    def newest(self, cuts: int) -> pa.Table:
        """Return the rows of the newest cuts, at most of so many, unordered."""
        rows = self._table.scan()
        found = sorted(rows["checkpoint_ts"].unique().to_pylist())[-cuts:]
        return rows.filter(pc.field("checkpoint_ts") >= found[0]) if found else rows

    def rows_of(self, table: TableName) -> list[CutRow]:
        """Return the rows of the tables with that name in all cuts, oldest first."""
        named = {"database": [table.database], "table": [table.table]}
        rows = [CutRow(**row) for row in self._table.read(where=named)]
        return sorted(rows, key=lambda row: row.checkpoint_ts)

    def publish(self, cut: Cut, rows: Iterable[CutRow]) -> None:
        """Publish a cut in one commit. It replaces a newest cut with the same checkpoint-ts (after a backfill, or when
        a table is no longer held)."""
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
        """Replace snapshots of a table in the newest cut, by `snapshots` (old to new), which have the same rows. Return
        whether the cut changed."""
        cut = self.last()
        rows = self.rows(cut.checkpoint_ts) if snapshots else []
        moved = [
            replace(row, snapshot_id=snapshots[row.snapshot_id])
            if (row.database, row.table) == (database, table) and row.snapshot_id in snapshots
            else row
            for row in rows
        ]
        if moved == rows:
            return False
        self.publish(cut, moved)
        return True

    def forget(self, before: datetime.datetime, *, dry_run: bool = False) -> int:
        """Remove the rows of cuts that were published before a moment, or only count them; return their number. The
        newest cut stays, and the newest row of each table: a held table is shown by its last good cut."""
        kept = self._kept(before)
        removed = len(self._table.scan()) - len(kept)
        if removed and not dry_run:
            self._table.write(kept, replacing=ALL)
        return removed

    def _kept(self, before: datetime.datetime) -> pa.Table:
        rows = self._table.scan()
        rows = rows.append_column("position", pa.array(range(len(rows)), pa.int64()))
        newest = rows.group_by(["database", "table"]).aggregate([("checkpoint_ts", "max")])
        newest = newest.rename_columns(["database", "table", "checkpoint_ts"])
        last = rows.join(newest, ["database", "table", "checkpoint_ts"], join_type="left semi")["position"]
        recent = pc.greater_equal(rows["published_at"], pa.scalar(before, pa.timestamp("us", tz="UTC")))
        of_last_cut = pc.equal(rows["checkpoint_ts"], self.last().checkpoint_ts)
        kept = pc.or_(pc.or_(recent, of_last_cut), pc.is_in(rows["position"], value_set=last.combine_chunks()))
        return rows.filter(kept).select(SCHEMA.names)


# Remove events that a later event of the same row supersedes from the `events` table, and keep count of them.


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


def delete_superseded(
    lake: Lake, feed: str, iceberg: IcebergJavaApi, found: Mapping[str, BitMap64], looked_at: int, known_from_ts: int
) -> int:
    """Delete events by their positions in data files, in one commit; files that no longer exist are skipped. Returns
    the number of deleted events. Raises `TransientError` when another run has changed the table meanwhile."""
    identifier = system_table(feed, "events")
    table = lake.existing(identifier)
    files = [file for file in live_files(table, ()) if file.path in found]
    before = removal_of(lake, feed)
    deletes, replaced = delete_rows(table.io, table.location(), table.properties, table.format_version, files, found)
    count = sum(len(found[file.path]) for file in files)
    after = Removal(before.removed + count, looked_at, known_from_ts if count else before.known_from_ts)
    iceberg.transaction(identifier, table.metadata.current_snapshot_id).commit(
        delete_files=deletes,
        replaced_deletes=replaced,
        properties={SUPERSEDED: json.dumps(asdict(after))},
    )
    return count
