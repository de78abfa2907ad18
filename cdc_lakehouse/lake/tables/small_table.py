"""A system table of few rows, which PyIceberg reads and writes as a whole, in tens of milliseconds and without a JVM.

Each write keeps the table small in its own commit: it merges small data files and expires old snapshots, so that the
cost of a write does not grow with the number of earlier ones.
"""

from __future__ import annotations

import contextlib
import datetime
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from types import NoneType
from typing import TYPE_CHECKING, Any, Final, Literal, cast, get_args, get_origin, get_type_hints

import pyarrow as pa
from pyiceberg.exceptions import CommitFailedException, TableAlreadyExistsError
from pyiceberg.expressions import (
    AlwaysTrue,
    And,
    BooleanExpression,
    EqualTo,
    GreaterThanOrEqual,
    In,
    IsNull,
    LessThanOrEqual,
)
from pyiceberg.expressions.visitors import bind
from pyiceberg.io import FileIO
from pyiceberg.io.pyarrow import ArrowScan, expression_to_pyarrow
from pyiceberg.manifest import DataFile, ManifestFile
from pyiceberg.schema import Schema
from pyiceberg.table import DataScan, FileScanTask, Table, Transaction
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Operation, Snapshot
from pyiceberg.table.update.snapshot import ExpireSnapshots, _FastAppendFiles, _OverwriteFiles

from cdc_lakehouse.errors import ConcurrentRunError
from cdc_lakehouse.lake.catalog import Lake, system_table
from cdc_lakehouse.lake.files import as_data_file, new_path, write_file

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

_PROPERTIES: Final = {
    "format-version": "2",
    "write.parquet.compression-codec": "zstd",
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "20",
    # A lost race must be noticed: only one run of a feed may be active.
    "commit.retry.num-retries": "0",
}
_FEW_FILES: Final = 8
"""The number of small data files that a table may have beside those that a write adds."""
_LARGE_BYTES: Final = 32 << 20
"""Files of this size are no longer merged."""
_KEPT_SNAPSHOTS: Final = 20
"""A reader that has loaded the table can continue while this many are written."""
_LEAST_EXPIRED: Final = 10
"""Fewer do not expire: looking for orphans at each write costs more than it frees."""
_UP_TO_DATE: Final[set[tuple[str, pa.Schema]]] = set()
"""Pairs of a table's schema, as Iceberg's JSON, and a written schema whose columns it all has: comparing them takes
longer than writing."""

_COLUMN_TYPES: Final[Mapping[Any, pa.DataType]] = {
    str: pa.string(), int: pa.int64(), bytes: pa.binary(), datetime.datetime: pa.timestamp("us", tz="UTC"),
}  # fmt: skip


def schema_of(row: type[DataclassInstance], **others: pa.DataType) -> pa.Schema:
    """The columns of a table whose rows are a dataclass: its fields. One that may be None is optional. `others` are the
    types of columns that are not those of their Python types."""
    columns: list[pa.Field] = []
    for name, hint in get_type_hints(row).items():
        is_literal = get_origin(hint) is Literal
        kinds: Sequence[Any] = (str,) if is_literal else get_args(hint) or (hint,)
        type = others.get(name) or _COLUMN_TYPES[kinds[0]]
        columns.append(pa.field(name, type, nullable=NoneType in kinds))
    return pa.schema(columns)


# Type checkers do not see the arguments of PyIceberg's models.
equal: Callable[[str, str | int], BooleanExpression] = cast("Any", EqualTo)
missing: Callable[[str], BooleanExpression] = cast("Any", IsNull)
among: Callable[[str, Collection[str]], BooleanExpression] = cast("Any", In)
_at_least: Callable[[str, str], BooleanExpression] = cast("Any", GreaterThanOrEqual)
_at_most: Callable[[str, str], BooleanExpression] = cast("Any", LessThanOrEqual)


def between(column: str, least: str, greatest: str) -> BooleanExpression:
    """Return a filter for rows whose column is in a range, both ends included."""
    return And(_at_least(column, least), _at_most(column, greatest))


class SmallTable:
    """A small table that is loaded once. It writes on top of the state that it read; otherwise it raises
    `ConcurrentRunError`."""

    def __init__(self, lake: Lake, feed: str, name: str, schema: pa.Schema) -> None:
        self._lake = lake
        self._identifier = system_table(feed, name)
        self._schema = schema
        self._table: Table | None = None
        self._looked = False

    @property
    def table(self) -> Table | None:
        # The absence of the table is remembered too: a table that another run creates meanwhile must not be written to.
        if not self._looked:
            self._table = self._lake.load(self._identifier)
            self._looked = True
        return self._table

    def scan(self, columns: Collection[str] | None = None, **scan: Any) -> pa.Table:
        """Return rows, all or those of PyIceberg's scan arguments; none when the table does not exist yet.

        The columns are those of the schema, in its order, or only some; one that an older table lacks is NULL.
        """
        schema = pa.schema([field for field in self._schema if columns is None or field.name in columns])
        if self.table is None:
            return schema.empty_table()
        stored = {field.name for field in self.table.schema().fields}
        names = [name for name in schema.names if name in stored]
        with self._on_what_was_read(self.table):
            arrow = self.table.scan(selected_fields=tuple(names), **scan).to_arrow().select(names)
        for position, field in enumerate(schema):
            if field.name not in stored:
                arrow = arrow.add_column(position, field.with_nullable(True), pa.nulls(len(arrow), field.type))
        return arrow

    def read(self, **scan: Any) -> list[dict[str, Any]]:
        """Return the rows of `scan` as dictionaries."""
        return self.scan(**scan).to_pylist()

    def properties(self) -> Mapping[str, str]:
        """Return the properties of the table, which other writers' expiry and rewrites leave as they are."""
        return {} if self.table is None else self.table.properties

    def write(
        self,
        rows: Iterable[DataclassInstance] | pa.Table,
        *,
        replacing: BooleanExpression | None = None,
        properties: Mapping[str, str] | None = None,
    ) -> None:
        """Add rows in one commit, and remove those that match `replacing`. `properties` of the table are set in it. It
        adds columns that a table of older code lacks. Raises `ConcurrentRunError` when another run has written to it.
        """
        new: Any = rows
        if not isinstance(rows, pa.Table):
            new = pa.Table.from_pylist([asdict(row) for row in rows], schema=self._schema)
        table = self._ensure()
        with self._on_what_was_read(table), _Transaction(table) as transaction:
            self._evolve(transaction, table.schema())
            gone, kept = _rewritten(transaction.table_metadata, table.io, replacing)
            # Kept rows get a file of their own, so that later replacements of the new rows do not touch it.
            added = [pa.concat_tables(kept, promote_options="permissive")] if kept else []
            added += [new] if len(new) else []
            files = [_written(transaction.table_metadata, table.io, each) for each in added]
            with _new_snapshot(transaction, table.io, replaces=bool(gone)) as snapshot:
                if gone:
                    snapshot.delete_by_predicate(AlwaysTrue())  # Otherwise it reads no manifest.
                for file in gone:
                    snapshot.delete_data_file(file)
                for file in files:
                    snapshot.append_data_file(file)
            transaction.set_properties(dict(properties or {}))
            expired = _expire(transaction)
        self._lake.writes += 1
        if self._lake.on_write is not None:
            self._lake.on_write()
        if expired:
            _delete_orphans(table, expired)

    @contextlib.contextmanager
    def _on_what_was_read(self, table: Table) -> Iterator[None]:
        try:
            yield
        except (CommitFailedException, FileNotFoundError) as error:
            # Another writer may have expired what this one has read; otherwise a file is lost.
            now = self._lake.load(self._identifier)
            is_same = now is not None and now.metadata_location == table.metadata_location
            if isinstance(error, FileNotFoundError) and is_same:
                raise
            raise ConcurrentRunError(f"another run has written to {self._identifier}") from error

    def _evolve(self, transaction: Transaction, before: Schema) -> None:
        """Add the columns (and fields of structs) that the table lacks; those that are no longer written stay."""
        known = (before.model_dump_json(), self._schema)
        if known in _UP_TO_DATE:
            return
        stored = {field.name for field in before.fields}
        # Earlier rows have no value for a new column, so it is optional, whatever the schema says of new rows.
        schema = pa.schema([f if f.name in stored else f.with_nullable(True) for f in self._schema])
        update = transaction.update_schema().union_by_name(schema)
        for name in stored - set(schema.names):
            update.make_column_optional(name)
        if update._apply().as_struct() != before.as_struct():
            update.commit()
        else:
            _UP_TO_DATE.add(known)

    def _ensure(self) -> Table:
        if self.table is None:
            self._lake.ensure_namespace(self._identifier.namespace)
            try:
                self._table = self._lake.catalog.create_table(
                    self._identifier.parts, self._schema, properties=dict(_PROPERTIES)
                )
            except TableAlreadyExistsError as error:
                raise ConcurrentRunError(f"another run has just made {self._identifier}") from error
        assert self._table is not None
        return self._table


class _Transaction(Transaction):
    """A transaction that caches its metadata: PyIceberg copies all of it at each access, which is most of a commit's
    time."""

    _copied: tuple[object, TableMetadata] | None = None

    @property
    def table_metadata(self) -> TableMetadata:
        if not self._updates:
            return self._table.metadata
        if self._copied is None or self._copied[0] is not self._updates:
            self._copied = self._updates, super().table_metadata
        return self._copied[1]


class _Overwrite(_OverwriteFiles):
    """An overwrite without empty manifests: PyIceberg carries manifests of only deleted files from snapshot to
    snapshot, one more each time."""

    def _existing_manifests(self) -> list[ManifestFile]:
        return [each for each in super()._existing_manifests() if each.has_added_files() or each.has_existing_files()]


def _new_snapshot(transaction: Transaction, io: FileIO, *, replaces: bool) -> _OverwriteFiles | _FastAppendFiles:
    if not replaces:
        return transaction.update_snapshot().fast_append()
    return _Overwrite(Operation.OVERWRITE, transaction, io)


def _written(metadata: TableMetadata, io: FileIO, rows: pa.Table) -> DataFile:
    path = new_path(metadata.location, metadata.properties, ".parquet")
    return as_data_file(write_file(io, path, metadata.schema(), rows, metadata.properties))


def _rewritten(
    metadata: TableMetadata, io: FileIO, replacing: BooleanExpression | None
) -> tuple[list[DataFile], list[pa.Table]]:
    """Return the data files to remove, and the rows of them to keep."""
    live = list(DataScan(metadata, io).plan_files())
    if isinstance(replacing, AlwaysTrue):
        return [task.file for task in live], []
    scan = ArrowScan(metadata, io, metadata.schema(), AlwaysTrue())
    gone: list[DataFile] = []
    kept: list[pa.Table] = []
    if replacing is not None:
        replaced: Any = expression_to_pyarrow(bind(metadata.schema(), replacing, case_sensitive=True))
        for task in DataScan(metadata, io, replacing).plan_files():
            rows = scan.to_table([task])
            others = rows.filter(~replaced | replaced.is_null())
            if len(others) < len(rows):
                gone.append(task.file)
                kept += [others] if len(others) else []
    merged = to_merge([task for task in live if task.file not in gone])
    if merged:
        kept.append(scan.to_table(merged))
    return [*gone, *(task.file for task in merged)], kept


def to_merge(files: Sequence[FileScanTask]) -> list[FileScanTask]:
    """Return the files to merge: the smallest of many files, without files that are larger than all smaller ones
    together. So a row is rewritten a number of times that grows with the logarithm of the rows."""
    small = [task for task in files if task.file.file_size_in_bytes < _LARGE_BYTES]
    if len(small) < _FEW_FILES:
        return []
    small.sort(key=lambda task: task.file.record_count)
    rows = 0
    for number, task in enumerate(small):
        # At least half of them, so that the next writes do not merge again.
        if number >= _FEW_FILES // 2 and task.file.record_count > rows:
            return small[:number]
        rows += task.file.record_count
    return small


def _expire(transaction: Transaction) -> list[Snapshot]:
    """Expire the oldest snapshots once there are many, in the transaction's own commit."""
    if len(transaction._table.metadata.snapshots) < _KEPT_SNAPSHOTS + _LEAST_EXPIRED - 1:
        return []  # What this write adds is one more.
    metadata = transaction.table_metadata
    named = {ref.snapshot_id for ref in metadata.refs.values()}
    snapshots = sorted(metadata.snapshots, key=lambda snapshot: snapshot.sequence_number or 0)
    old = [each for each in snapshots[:-_KEPT_SNAPSHOTS] if each.snapshot_id not in named]
    if len(old) < _LEAST_EXPIRED:
        return []
    with ExpireSnapshots(transaction) as expire:
        expire.by_ids([each.snapshot_id for each in old])
    return old


def _delete_orphans(table: Table, expired: Sequence[Snapshot]) -> None:
    """Delete the files that only expired snapshots reference. The commit is done: errors of reading or deleting are
    ignored."""
    with contextlib.suppress(OSError):
        # Each write builds on the one before: what an expired snapshot shares with any later one is also in the next
        # one.
        left = sorted(table.snapshots(), key=lambda snapshot: snapshot.sequence_number or 0)
        needed, manifests = _files(table, {each.snapshot_id: each for each in (left[0], left[-1])}.values(), set())
        orphans, _ = _files(table, expired, manifests)
        for path in orphans - needed:
            with contextlib.suppress(OSError):
                table.io.delete(path)


def _files(table: Table, snapshots: Collection[Snapshot], known: Collection[str]) -> tuple[set[str], set[str]]:
    """Return the files that snapshots reference, and the manifests among them; known manifests are skipped."""
    manifests = {
        each.manifest_path: each
        for snapshot in snapshots
        for each in snapshot.manifests(table.io)
        if each.manifest_path not in known
    }
    data = {
        entry.data_file.file_path
        for manifest in manifests.values()
        for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=True)
    }
    lists = {snapshot.manifest_list for snapshot in snapshots}
    return lists | manifests.keys() | data, set(manifests)
