"""Current-state tables: one typed row for each key, as of a commit-ts.

The rows of a batch, the deletes of the rows that they replace, and the schema change are one commit, so readers see all
of it or none. The table's properties, in the same commit, record up to where it was applied: a run after a crash sees
which tables the previous run had committed.

Tags on a current-state table, by which the states that earlier cuts showed stay readable for a while.

A commit tags the state that it replaces. By then the cut that shows that state is published, and a tag never names an
unpublished state. A state that no cut has shown gets no tag. So a tag needs no commit of its own, and a table's newest
state needs no tag.

- `cut_<checkpoint_ts>`: the state since this cut. It is valid until the table's next such tag, so a later cut shows the
  newest of these at or below it, or the table's current state if that is older than the cut.
- `day_<YYYY-MM-DD>`: the state at the end of a day, by the checkpoint's time in UTC. A table that has not changed since
  has none: its current state is the same.
"""

from __future__ import annotations

import datetime
import hashlib
import itertools
import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass
from typing import Final

from pyiceberg.table import Table
from pyiceberg.table.refs import SnapshotRefType
from pyiceberg.table.snapshots import Operation, Snapshot, ancestors_of

from cdc_lakehouse.changelog.history import Incarnation
from cdc_lakehouse.changelog.positions import commit_time, tso
from cdc_lakehouse.changelog.schema import TableName
from cdc_lakehouse.config import CutsConfig, FeedConfig
from cdc_lakehouse.errors import CdcError, UnreadableTableError, in_one_line
from cdc_lakehouse.lake import names
from cdc_lakehouse.lake.catalog import Lake
from cdc_lakehouse.lake.current.typed_rows import LakeColumn
from cdc_lakehouse.lake.current.value_parsing import ValueFormat
from cdc_lakehouse.lake.faults import engine_fault
from cdc_lakehouse.lake.iceberg_java import TagChanges
from cdc_lakehouse.lake.names import Identifier, encode_namespace, encode_table, path_part, summary_of

FORMAT_VERSION: Final = "format-version"
_OWN_PLACE: Final = re.compile(r"-([0-9a-f]{12})/metadata/[^/]+$")
"""Matches the id of the table's owner in the path of a metadata file, as `CurrentTables.location` writes it."""
TABLE_PROPERTIES: Final = {
    # Rows are deleted by delete files: copying data files for a few changed rows costs 25 times as much.
    "write.delete.mode": "merge-on-read",
    "write.update.mode": "merge-on-read",
    "write.merge.mode": "merge-on-read",
    # For version 2, when another writer deletes rows.
    "write.delete.granularity": "file",
    "write.distribution-mode": "none",
    "write.parquet.compression-codec": "zstd",
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "20",
    # Every batch adds manifests, and each costs a reader of a small table a tenth of the time. Merging them at every
    # commit would rewrite the newest one, of up to 8 MB, each time.
    "commit.manifest.min-count-to-merge": "4",
}


@dataclass(frozen=True, slots=True)
class TableState:
    """A current-state table as it is in the lake: what readers see, and which part of the feed is in it. `counts_rows`:
    its snapshots have `ROW_COUNT`. `key`: its columns, None for a table that has had no rows yet."""

    identifier: Identifier
    incarnation: str
    name: TableName
    applied_ts: int
    applied_batch: int
    schema_fingerprint: str
    columns: tuple[LakeColumn, ...]
    order: tuple[str, ...]
    key: tuple[str, ...] | None
    row_count: int
    snapshot_id: int | None
    dropped_ts: int | None
    format_version: int
    counts_rows: bool


class CurrentTables:
    """Finds the current-state tables of a feed. A table is identified by its incarnation, not by its name."""

    def __init__(self, lake: Lake, feed: FeedConfig) -> None:
        self.lake = lake
        self._feed = feed

    def identifier(self, name: TableName) -> Identifier:
        """Return the identifier of a table with that name."""
        namespace = self._feed.namespace.format(database=name.database, feed=self._feed.name)
        return Identifier(encode_namespace(namespace), encode_table(name.table))

    def parking_identifier(self, life: Incarnation, name: TableName) -> Identifier:
        """Return the identifier of a table while another has its name: between two renames, or after it was dropped."""
        suffix = f"moving_{_digest(life.id)}" if life.dropped_ts is None else f"dropped_{life.dropped_ts}"
        return self._beside(name, suffix)

    def left_identifier(self, name: TableName, left_ts: int) -> Identifier:
        """Return the identifier of a table that was renamed out of the feed at `left_ts`, once another has its name."""
        return self._beside(name, f"renamed_{left_ts}")

    def _beside(self, name: TableName, suffix: str) -> Identifier:
        where = self.identifier(name)
        return Identifier(where.namespace, f"{where.name}__{suffix}")

    def candidates(self, life: Incarnation) -> Iterator[Identifier]:
        """Yield all identifiers that a table can have, whenever the last run ended."""
        for name in life.names:
            yield self.identifier(name)
        for name in life.names:
            yield self.parking_identifier(life, name)
            yield self._beside(name, f"moving_{_digest(life.id)}")
        for before, after in itertools.pairwise(life.versions):
            if before.name != after.name:
                yield self.left_identifier(before.name, after.commit_ts)

    def find(self, life: Incarnation) -> TableState | None:
        """Return the table of an incarnation, wherever it is; None when there is none. Raises `UnreadableTableError`
        when it cannot be read, or when a table at one of its identifiers cannot be read and may be it."""
        unreadable: UnreadableTableError | None = None
        for identifier in dict.fromkeys(self.candidates(life)):
            try:
                table = self.load(identifier)
                if table is not None and table.properties.get(names.INCARNATION) == life.id and self._is_own(table):
                    return _state_of(identifier, table)
            except UnreadableTableError as error:
                if self._files_are_of(life, identifier) is not False:
                    advice = "restore it, or drop the table in the catalog: the source has dropped it"
                    if life.dropped_ts is None:
                        drop = "" if self._files_are_of(life, identifier) else "drop the table in the catalog and "
                        advice = (
                            f"restore it, or {drop}recreate the table with `cdc-lakehouse rebuild {life.last.name}`"
                        )
                    error.table, error.advice = str(life.last.name), advice
                    unreadable = unreadable or error
        if unreadable is not None:
            raise unreadable
        return None

    def at(self, identifier: Identifier) -> TableState | None:
        """Return the table with an identifier; None when there is none, or it is not the feed's or cannot be read."""
        try:
            table = self.load(identifier)
            if table is None or not self._is_own(table) or names.INCARNATION not in table.properties:
                return None
            return _state_of(identifier, table)
        except UnreadableTableError:
            return None

    def is_free(self, identifier: Identifier) -> bool:
        try:
            return self.load(identifier) is None
        except UnreadableTableError:
            return False

    def load(self, identifier: Identifier) -> Table | None:
        """Load the table with an identifier, whoever owns it; None when there is none. Raises `UnreadableTableError`
        when its metadata is unusable; errors of an unreachable catalog or store are passed on."""
        try:
            return self.lake.load(identifier)
        except Exception as error:
            if isinstance(error, CdcError) or engine_fault(error) is not None:
                raise
            file = self.lake.metadata_file(identifier)
            named = "" if file is None else f" in {file}"
            raise UnreadableTableError(
                f"the metadata of the Iceberg table {identifier}{named} cannot be read: {in_one_line(error)}",
                advice="restore it",
            ) from error

    def drop_unreadable(self, life: Incarnation) -> Identifier | None:
        """Drop a table that cannot be read from the catalog, so that it can be recreated; its files stay. Return its
        identifier; None when the table can be read, or when the unreadable one may be another's."""
        try:
            self.find(life)
        except UnreadableTableError:
            for identifier in dict.fromkeys(self.candidates(life)):
                if not self.is_free(identifier) and self._files_are_of(life, identifier):
                    self.lake.catalog.drop_table(identifier.parts)
                    return identifier
        return None

    def _files_are_of(self, life: Incarnation, identifier: Identifier) -> bool | None:
        """Whether the files of the table with an identifier are where those of the incarnation are (`location`); None
        when that is unknown: a catalog may not say where they are, and old tables have no location of their own."""
        found = _OWN_PLACE.search(self.lake.metadata_file(identifier) or "")
        return None if found is None else found[1] == self._place(life)

    def _place(self, life: Incarnation) -> str:
        return _digest(f"{self._feed.name}/{life.id}")

    def location(self, life: Incarnation, name: TableName) -> str:
        """Return the location for a new table's files, which is unique to each incarnation and feed: another table can
        take a name while the files stay, and two feeds can have a table of the same name."""
        where = self.identifier(name)
        return self.lake.location(path_part(where.namespace), f"{path_part(where.name)}-{self._place(life)}")

    def first_properties(self, life: Incarnation) -> dict[str, str]:
        name = life.last.name
        return {
            **TABLE_PROPERTIES,
            FORMAT_VERSION: str(self._feed.format_version_of(name.database, name.table)),
            names.FEED: self._feed.name,
            names.DATABASE: name.database,
            names.TABLE: name.table,
            names.INCARNATION: life.id,
            names.APPLIED_TS: "0",
            names.APPLIED_BATCH: "0",
            names.LINEAGE: "",
            names.COLUMNS: "[]",
        }

    def _is_own(self, table: Table) -> bool:
        return table.properties.get(names.FEED) == self._feed.name


def _state_of(identifier: Identifier, table: Table) -> TableState:
    properties = table.properties
    dropped, key = properties.get(names.DROPPED_TS), properties.get(names.KEY)
    try:
        fields, snapshot = table.schema().fields, table.current_snapshot()
        ids = {name: id for id, name in json.loads(properties.get(names.COLUMNS, "[]"))}
        return TableState(
            identifier=identifier,
            incarnation=properties[names.INCARNATION],
            name=TableName(properties[names.DATABASE], properties[names.TABLE]),
            applied_ts=int(properties[names.APPLIED_TS]),
            applied_batch=int(properties[names.APPLIED_BATCH]),
            schema_fingerprint=properties[names.LINEAGE],
            columns=tuple(
                LakeColumn(ids[each.name], each.name, iceberg_name(each.field_type))
                for each in fields
                if each.name in ids
            ),
            order=tuple(field.name for field in fields),
            key=None if key is None else tuple(json.loads(key)),
            row_count=row_count(table, snapshot),
            snapshot_id=None if snapshot is None else snapshot.snapshot_id,
            dropped_ts=None if dropped is None else int(dropped),
            format_version=table.format_version,
            counts_rows=_counted_rows(table, snapshot) is not None,
        )
    except (KeyError, TypeError, ValueError) as error:
        raise UnreadableTableError(
            f"the properties `cdc.*` of the Iceberg table {identifier} cannot be read: {in_one_line(error)}",
            advice="restore them",
        ) from error


def row_count(table: Table, snapshot: Snapshot | None) -> int:
    """Count the live rows of a snapshot, from summaries: a row is deleted only once. Version 2 deletes can remain for a
    while after the rows of their data file were rewritten: for such tables runs have recorded the count."""
    counted, totals = _counted_rows(table, snapshot), summary_of(snapshot)
    summed = int(totals.get("total-records", "0")) - int(totals.get("total-position-deletes", "0"))
    return summed if counted is None else counted


def _counted_rows(table: Table, snapshot: Snapshot | None) -> int | None:
    for id in same_rows(table, snapshot):
        summary = summary_of(table.snapshot_by_id(id))
        if names.ROW_COUNT in summary:
            return int(summary[names.ROW_COUNT])
    return None


def same_rows(table: Table, snapshot: Snapshot | None) -> Sequence[int]:
    """Return the ids of a snapshot and of the earlier ones that hold the same rows in other files."""
    found: list[int] = []
    for each in ancestors_of(snapshot, table.metadata):
        found.append(each.snapshot_id)
        if each.summary is None or each.summary.operation is not Operation.REPLACE:
            break
    return found


def iceberg_name(field_type: object) -> str:
    """Return the name of an Iceberg type as `mysql_types.iceberg_type` writes it."""
    return str(field_type).replace(" ", "")


def schema_fingerprint(life: Incarnation, value_format: ValueFormat) -> str:
    """Return a digest of a table's history and of how its values are read.

    When it differs from the one that the table was written with, earlier DDL was found, or the configuration has
    another time zone or policy: the table must be recomputed. Lakes hold these digests: with another field of
    `ValueFormat` or `ColumnType` every table is recomputed.
    """
    versions = [
        (
            version.commit_ts,
            str(version.name),
            version.effect,
            [(column.id, column.name, astuple(column.type), column.carried) for column in version.columns],
        )
        for version in life.versions
        if version.effect != "none"
    ]
    return _digest(json.dumps([astuple(value_format), versions], ensure_ascii=False))


def column_names(names: Mapping[int, str]) -> str:
    """Return the property that maps source columns to the table's columns."""
    return json.dumps([[id, name] for id, name in names.items()], ensure_ascii=False)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:12]


_CUT: Final = re.compile(r"cut_(\d+)")
_DAY: Final = re.compile(r"day_(\d{4}-\d\d-\d\d)")
_ONE_DAY: Final = datetime.timedelta(days=1)


@dataclass(frozen=True, slots=True)
class ShownState:
    """A state of a table that a cut shows: its snapshot, and the checkpoint-ts of the first cut that showed it."""

    snapshot_id: int
    checkpoint_ts: int


def cut_tag(checkpoint_ts: int) -> str:
    return f"cut_{checkpoint_ts}"


def cut_of_tag(name: str) -> int | None:
    """Return the checkpoint-ts in a tag's name; None for other tags."""
    found = _CUT.fullmatch(name)
    return None if found is None else int(found[1])


def day_of_tag(name: str) -> datetime.date | None:
    """Return the day in a tag's name; None for other tags and for invalid dates."""
    found = _DAY.fullmatch(name)
    try:
        return None if found is None else datetime.date.fromisoformat(found[1])
    except ValueError:
        return None


def end_of_day(day: datetime.date) -> int:
    """Return the greatest commit-ts of a day in UTC."""
    following = datetime.datetime.combine(day + _ONE_DAY, datetime.time(), datetime.UTC)
    return tso(following) - 1


def tags_of(table: Table) -> dict[str, int]:
    """Return the snapshots of all tags of the table, whoever made them."""
    refs = table.metadata.refs.items()
    return {name: ref.snapshot_id for name, ref in refs if ref.snapshot_ref_type == SnapshotRefType.TAG}


def shown_state(table: Table, published: Collection[int | None]) -> ShownState | None:
    """Return the newest published state of the table: `published` are the snapshots that cuts name. None when there is
    none, or when it has expired."""
    unpublished = False
    for snapshot in ancestors_of(table.current_snapshot(), table.metadata):
        if snapshot.snapshot_id in published:
            break
        unpublished = unpublished or _checkpoint_ts(snapshot) is not None
    else:
        return None
    # A compacted table shows the rows of the preceding commit of a run.
    of_runs = map(_checkpoint_ts, ancestors_of(snapshot, table.metadata))
    since = next((found for found in of_runs if found is not None), None)
    if since is None and not unpublished:
        since = int(table.properties[names.APPLIED_TS])
    return None if since is None else ShownState(snapshot.snapshot_id, since)


def _checkpoint_ts(snapshot: Snapshot) -> int | None:
    summary = summary_of(snapshot)
    return int(summary[names.CHECKPOINT_TS]) if names.CHECKPOINT_TS in summary else None


def plan_tags(
    tags: Mapping[str, int], replaced: ShownState | None, checkpoint_ts: int, config: CutsConfig
) -> TagChanges:
    """Plan the tags for a commit at `checkpoint_ts` that replaces a state, including the removal of expired tags."""
    wanted: dict[str, int] = {}
    today = commit_time(checkpoint_ts).date()
    oldest_day = today - config.keep_daily_days * _ONE_DAY
    # At the same checkpoint-ts the new cut replaces the previous one.
    if replaced is not None and replaced.checkpoint_ts < checkpoint_ts:
        if config.keep_all_hours:
            wanted[cut_tag(replaced.checkpoint_ts)] = replaced.snapshot_id
        day = max(commit_time(replaced.checkpoint_ts).date(), oldest_day)
        while day < today:
            wanted[f"day_{day.isoformat()}"] = replaced.snapshot_id
            day += _ONE_DAY
    window = tso(commit_time(checkpoint_ts) - datetime.timedelta(hours=config.keep_all_hours))
    cuts = sorted(found for name in {*tags, *wanted} if (found := cut_of_tag(name)) is not None)
    # Each state lasts until the next; this commit ends the last one.
    ends = zip(cuts, [*cuts, checkpoint_ts][1:], strict=True)
    over = {cut_tag(cut) for cut, until in ends if until <= window or not config.keep_all_hours}
    over |= {name for name in tags if (day := day_of_tag(name)) is not None and day < oldest_day}
    changed = {name: id for name, id in wanted.items() if name not in over and tags.get(name) != id}
    return changed | dict.fromkeys(sorted(over & tags.keys()))
