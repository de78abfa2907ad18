"""Commits without a JVM, which PyIceberg makes; and system tables of few rows, which are read and written as a whole,
in tens of milliseconds.

Each write keeps a small table small in its own commit: it merges small data files and expires old snapshots, so that
the cost of a write does not grow with the number of earlier ones.
"""

from __future__ import annotations

import contextlib
import datetime
import functools
import operator
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from types import NoneType
from typing import TYPE_CHECKING, Any, Final, Literal, get_args, get_origin, get_type_hints

import pyarrow as pa
from pyiceberg.exceptions import CommitFailedException, TableAlreadyExistsError
from pyiceberg.expressions import AlwaysTrue
from pyiceberg.io import FileIO
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat, ManifestFile
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC, PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table, Transaction
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Operation, Snapshot
from pyiceberg.table.update.snapshot import ExpireSnapshots, _OverwriteFiles
from pyiceberg.transforms import IdentityTransform
from pyiceberg.typedef import Record
from pyiceberg.utils.concurrent import ExecutorFactory

from cdc_lakehouse.decoders.arrow import pc
from cdc_lakehouse.errors import ConcurrentRunError, StoredFormError
from cdc_lakehouse.lake.catalog import Lake, load_current, system_table
from cdc_lakehouse.lake.files import (
    FIRST_SPEC,
    Range,
    StoredFile,
    as_data_file,
    live_entries,
    live_files,
    may_hold,
    new_path,
    read_avro,
    read_rows,
    write_file,
)
from cdc_lakehouse.lake.names import Identifier

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

_TRIES: Final = 3
BY_DATE: Final = PartitionSpec(PartitionField(1, 1000, IdentityTransform(), "feed_date"))
"""Of tables whose first column is the date of the feed."""
_PROPERTIES: Final = {
    "format-version": "2",
    "write.parquet.compression-codec": "zstd",
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "20",
    # A lost race must be noticed: only one run of a feed may be active.
    "commit.retry.num-retries": "0",
}


def create(
    lake: Lake, identifier: Identifier, schema: Schema | pa.Schema, properties: Mapping[str, str] | None = None,
    spec: PartitionSpec = UNPARTITIONED_PARTITION_SPEC,
) -> Table:  # fmt: skip
    """Create a table, with further properties. Raises `ConcurrentRunError` when another run has just created it."""
    lake.on_write()
    lake.ensure_namespace(identifier.namespace)
    try:
        return lake.catalog.create_table(
            identifier.parts, schema, partition_spec=spec, properties={**_PROPERTIES, **(properties or {})}
        )
    except TableAlreadyExistsError as error:
        raise ConcurrentRunError(f"another run has just made {identifier}") from error


def commit(
    table: Table,
    *,
    added: Sequence[str] = (),
    removed: Sequence[StoredFile] = (),
    properties: Mapping[str, str],
    summary: Mapping[str, str] | None = None,
    keep: int | None = None,
    stands: Callable[[Table], bool] = lambda _: False,
) -> Table:
    """Commit files, properties and a snapshot's summary together, on top of the state in which the table was loaded;
    return the table after it. Raises `CommitFailedException` when another writer has changed the table.

    There is a snapshot even without files: it makes another run fail that has not seen this commit. added: data files
    as JSON of `ContentFileParser`. keep: when there are many more snapshots than this, older ones expire in the same
    commit, and their own files are deleted after it. stands: whether this commit may be made on the table as another
    writer left it meanwhile, such as maintenance."""
    about, expired = dict(summary or {}), list[Snapshot]()
    for tries_left in reversed(range(_TRIES)):
        try:
            with _Transaction(table) as transaction:
                if removed:
                    new: Any = _Overwrite(Operation.OVERWRITE, transaction, table.io, snapshot_properties=about)
                    new.delete_by_predicate(AlwaysTrue())  # Otherwise it reads no manifest.
                else:
                    new = transaction.update_snapshot(snapshot_properties=about).merge_append()
                with new as snapshot:
                    for file in removed:
                        gone = DataFile.from_args(
                            content=DataFileContent.DATA,
                            file_path=file.path,
                            file_format=FileFormat.PARQUET,
                            partition=Record(*file.partition),
                            record_count=file.record_count,
                            file_size_in_bytes=file.size,
                        )
                        gone.spec_id = FIRST_SPEC
                        snapshot.delete_data_file(gone)
                    for file in added:
                        snapshot.append_data_file(as_data_file(file))
                transaction.set_properties(dict(properties))
                expired = [] if keep is None else _expire(transaction, keep)
            break
        except (CommitFailedException, FileNotFoundError) as error:
            now = load_current(table.catalog, table.name())
            # Another writer may have expired what this one reads; otherwise a file is lost.
            if isinstance(error, FileNotFoundError) and now.metadata_location == table.metadata_location:
                raise
            if not tries_left or not stands(now):
                raise CommitFailedException(f"another writer has changed {'.'.join(table.name())}") from error
            table = now
    if expired:
        _delete_orphans(table, expired)
    return table


class _Transaction(Transaction):
    """A transaction that caches its metadata: PyIceberg copies it at each access, which is most of a commit's time."""

    _copied: tuple[object, TableMetadata] | None = None

    @property
    def table_metadata(self) -> TableMetadata:
        if not self._updates:
            return self._table.metadata
        if self._copied is None or self._copied[0] is not self._updates:
            self._copied = self._updates, super().table_metadata
        return self._copied[1]


class _Overwrite(_OverwriteFiles):
    """An overwrite without empty manifests: PyIceberg carries those of deleted files on, one more each time."""

    def _existing_manifests(self) -> list[ManifestFile]:
        return [each for each in super()._existing_manifests() if each.has_added_files() or each.has_existing_files()]


def _expire(transaction: Transaction, keep: int) -> list[Snapshot]:
    """Expire the oldest snapshots once there are half as many more than are kept: looking for orphans takes time."""
    least = max(1, keep // 2)
    if len(transaction._table.metadata.snapshots) < keep + least - 1:
        return []  # What this commit adds is one more.
    metadata = transaction.table_metadata
    named = {ref.snapshot_id for ref in metadata.refs.values()}
    snapshots = sorted(metadata.snapshots, key=lambda snapshot: snapshot.sequence_number or 0)
    old = [each for each in snapshots[:-keep] if each.snapshot_id not in named]
    if len(old) < least:
        return []
    with ExpireSnapshots(transaction) as expire:
        expire.by_ids([each.snapshot_id for each in old])
    return old


def _delete_orphans(table: Table, expired: Sequence[Snapshot]) -> None:
    """Delete the files that only expired snapshots reference, as far as they can be read and deleted."""
    with contextlib.suppress(OSError):
        # Each commit builds on the one before: what an expired snapshot shares with any later one, the next one has.
        left = sorted(table.snapshots(), key=lambda snapshot: snapshot.sequence_number or 0)
        needed, manifests = _files(table.io, {each.snapshot_id: each for each in (left[0], left[-1])}.values(), set())
        orphans, _ = _files(table.io, expired, manifests)
        for path in orphans - needed:
            with contextlib.suppress(OSError):
                table.io.delete(path)


def _files(io: FileIO, snapshots: Collection[Snapshot], known: Collection[str]) -> tuple[set[str], set[str]]:
    """Return the files that snapshots reference, and the manifests among them; known manifests are skipped."""
    lists = {snapshot.manifest_list for snapshot in snapshots}
    manifests = {each["manifest_path"] for path in lists for each in read_avro(io, path)} - set(known)
    data = {entry["file_path"] for path in manifests for _, entry in live_entries(io, path)}
    return lists | manifests | data, manifests


# --- Small tables ---

_FEW_FILES: Final = 8
"""The number of small data files that a table may have beside those that a write adds."""
_LARGE_BYTES: Final = 32 << 20
"""Files of this size are no longer merged."""
_KEPT_SNAPSHOTS: Final = 20
"""A reader that has loaded the table can continue while this many are written."""

_COLUMN_TYPES: Final[Mapping[Any, pa.DataType]] = {
    str: pa.string(), int: pa.int64(), bytes: pa.binary(), datetime.datetime: pa.timestamp("us", tz="UTC"),
}  # fmt: skip


def schema_of(row: type[DataclassInstance], **others: pa.DataType) -> pa.Schema:
    """The columns of a table whose rows are a dataclass: its fields. One that may be None is optional. `others` are the
    types of columns that are not those of their Python types."""
    columns: list[pa.Field] = []
    for name, hint in get_type_hints(row).items():
        kinds: Sequence[Any] = (str,) if get_origin(hint) is Literal else get_args(hint) or (hint,)
        columns.append(pa.field(name, others.get(name) or _COLUMN_TYPES[kinds[0]], nullable=NoneType in kinds))
    return pa.schema(columns)


Where = Mapping[str, Collection[str | int]]
"""Which rows: those whose columns each have one of some values. Without columns all rows."""
ALL: Final[Where] = {}


class SmallTable:
    """A small table that is loaded once. Raises `ConcurrentRunError` where it is not as it was read."""

    def __init__(self, lake: Lake, feed: str, name: str, schema: pa.Schema) -> None:
        self._lake = lake
        self._identifier = system_table(feed, name)
        self._schema = schema

    @functools.cached_property
    def table(self) -> Table | None:
        # The absence of the table is remembered too: a table that another run creates meanwhile must not be written to.
        table = self._lake.load(self._identifier)
        stored = set() if table is None else {field.name for field in table.schema().fields}
        if table is not None and (missing := {*self._schema.names} - stored):
            raise StoredFormError(
                f"{self._identifier} lacks the columns {sorted(missing)}: an earlier version made this lake",
                advice="load the feed into a new one",
            )
        return table

    def scan(self, columns: Collection[str] | None = None, where: Where = ALL) -> pa.Table:
        """Return rows, all or some; none when the table does not exist yet. The columns are those of the schema, in its
        order, or only some, with those of `where`."""
        schema = pa.schema([field for field in self._schema if columns is None or field.name in columns])
        if self.table is None:
            return schema.empty_table()
        with self._on_what_was_read(self.table):
            rows = _rows(self.table, live_files(self.table, _field_ids(self.table, where)), schema, _ranges(where))
            return rows.filter(_condition(where)) if where else rows

    def read(self, columns: Collection[str] | None = None, where: Where = ALL) -> list[dict[str, Any]]:
        """Return the rows of `scan` as dictionaries."""
        return self.scan(columns, where).to_pylist()

    def properties(self) -> Mapping[str, str]:
        """Return the table's properties, which other writers leave as they are."""
        return {} if self.table is None else self.table.properties

    def write(
        self, rows: Iterable[DataclassInstance] | pa.Table, *, replacing: Where | None = None,
        properties: Mapping[str, str] | None = None,
    ) -> None:  # fmt: skip
        """Add rows in one commit, remove those of `replacing`, and set `properties` of the table."""
        self._lake.on_write()
        new: Any = rows
        if not isinstance(rows, pa.Table):
            new = pa.Table.from_pylist([asdict(row) for row in rows], schema=self._schema)
        table = self.table = self.table or create(self._lake, self._identifier, self._schema)
        with self._on_what_was_read(table):
            removed, kept = self._rewritten(table, replacing)
            # Kept rows get a file of their own, so that later replacements of the new rows do not touch it.
            path = functools.partial(new_path, table.location(), table.properties, ".parquet")
            parts = [each for each in (kept, new) if len(each)]
            added = [write_file(table.io, path(), table.schema(), each, table.properties) for each in parts]
            self.table = commit(table, added=added, removed=removed, properties=properties or {}, keep=_KEPT_SNAPSHOTS)

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

    def _rewritten(self, table: Table, replacing: Where | None) -> tuple[list[StoredFile], pa.Table]:
        """Return the data files to remove, and the rows of them to keep."""
        where, removed, kept = replacing or ALL, list[StoredFile](), list[pa.Table]()
        live = live_files(table, _field_ids(table, where))
        if replacing is not None and not where:
            return live, self._schema.empty_table()
        for file in live if where else ():
            if may_hold(file, table.schema(), _ranges(where)):
                rows = _rows(table, [file], self._schema)
                others = rows.filter(~_condition(where))
                if len(others) < len(rows):
                    removed.append(file)
                    kept.append(others)
        merged = _to_merge([file for file in live if file not in removed])
        return [*removed, *merged], pa.concat_tables([*kept, _rows(table, merged, self._schema)])


def _field_ids(table: Table, where: Where) -> list[int]:
    return [table.schema().find_field(name).field_id for name in where]


def _ranges(where: Where) -> dict[str, Range]:
    return {name: (min(values), max(values)) for name, values in where.items()}


def _rows(
    table: Table, files: Iterable[StoredFile], schema: pa.Schema, between: Mapping[str, Range] | None = None
) -> pa.Table:
    def read(file: StoredFile) -> list[pa.Table]:
        parts = read_rows(table.io, file, table.schema(), schema.names, between)
        return [rows.select(schema.names).cast(schema) for rows in parts]

    found = ExecutorFactory.get_or_create().map(read, files)
    return pa.concat_tables([schema.empty_table(), *(rows for parts in found for rows in parts)])


def _condition(where: Where) -> Any:
    return functools.reduce(operator.and_, (pc.field(name).isin(list(each)) for name, each in where.items()))


def _to_merge(files: Sequence[StoredFile]) -> list[StoredFile]:
    """Return the files to merge: the smallest of many files, without files that are larger than all smaller ones
    together. So a row is rewritten a number of times that grows with the logarithm of the rows."""
    small = sorted((file for file in files if file.size < _LARGE_BYTES), key=lambda file: file.record_count)
    if len(small) < _FEW_FILES:
        return []
    rows = 0
    for number, file in enumerate(small):
        # At least half of them, so that the next writes do not merge again.
        if number >= _FEW_FILES // 2 and file.record_count > rows:
            return small[:number]
        rows += file.record_count
    return small
