"""Data files of tables: list them, read their rows by field id, and write new ones.

Columns are addressed by field id everywhere: a file keeps the names that it was written with, and the table's columns
may have been renamed since. Nothing here needs a JVM; `iceberg_java.TableTransaction` adds written files to the table.

The deleted rows of a data file are a bitmap of positions in a Puffin file (the deletion vectors of Iceberg v3), or
positions in a Parquet file (v2). A data file has at most one vector, and the project writes one file of positions for
each: a writer that deletes further rows writes one that also holds the earlier rows, and removes the earlier one in the
same commit. Other writers add files of positions instead.
"""

from __future__ import annotations

import contextlib
import datetime
import itertools
import json
import struct
import uuid
import zlib
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from io import BytesIO
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.conversions import from_bytes
from pyiceberg.io import FileIO, load_file_io
from pyiceberg.io.pyarrow import (
    MetricModeTypes,
    StatisticsCollector,
    StatsAggregator,
    compute_statistics_plan,
    parquet_path_to_id_mapping,
    schema_to_pyarrow,
)
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.schema import Schema, make_compatible_name
from pyiceberg.table import Table, TableProperties
from pyiceberg.table.locations import load_location_provider
from pyiceberg.table.puffin import MAGIC_BYTES
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.typedef import Record
from pyiceberg.types import DecimalType, FloatType, IcebergType, LongType, NestedField, StringType
from pyiceberg.utils.concurrent import ExecutorFactory
from pyiceberg.utils.datetime import date_to_days, datetime_to_micros
from pyiceberg.utils.decimal import unscaled_to_decimal
from pyroaring import BitMap64

from cdc_lakehouse.config import StorageConfig
from cdc_lakehouse.decoders.arrow import pc
from cdc_lakehouse.duckdb_sql import by_name
from cdc_lakehouse.errors import ConfigurationError, StoredFormError
from cdc_lakehouse.lake.file_io import pyiceberg_file_io

if TYPE_CHECKING:
    from cdc_lakehouse.lake.catalog import Lake

FIRST_SPEC: Final = 0  # The partition spec of every table that the project makes; no other spec is ever added.


def content_file_json(
    path: str,
    file_format: str,
    *,
    file_size: int,
    rows: int,
    deletes_of: str | None = None,
    partition: Sequence[str | None] = (),
    others: Mapping[str, Any] | None = None,
) -> str:
    """A data file, or a file of positions that are deleted of another one (`deletes_of`), as JSON for Iceberg's
    `ContentFileParser`: so it goes from where it was written to the commit. `file_size` is in bytes. `others` are
    further fields, by their names there."""
    deletes = {} if deletes_of is None else {"content": "position-deletes", "referenced-data-file": deletes_of}
    file = {
        "spec-id": FIRST_SPEC,
        "content": "data",
        "file-path": path,
        "file-format": file_format,
        "partition": list(partition),
        "file-size-in-bytes": file_size,
        "record-count": rows,
    }
    return json.dumps({**file, **deletes, **(others or {})}, ensure_ascii=False)


_BLOB_MAGIC: Final = b"\xd1\xd3\x39\x64"


@dataclass(frozen=True, slots=True)
class StoredDeletes:
    """The deletes of one data file: a deletion vector or a file of positions.

    cardinality: deleted rows. content_file: the delete file as JSON of Iceberg's `ContentFileParser`, enough to remove
    it from the table. place: position and length of a vector's blob in the Puffin file, in bytes; None for a file of
    positions.
    """

    path: str
    cardinality: int
    content_file: str
    place: tuple[int, int] | None = None


def read_deletes(io: FileIO, stored: StoredDeletes, data_file: str) -> BitMap64:
    """Return the positions of the data file's deleted rows, from 0; of a vector only its own bytes are read. Raises
    StoredFormError when they cannot be read, or are damaged."""
    found = BitMap64()
    if stored.place is None:
        names = [DATA_FILE.name, POSITION_FIELD.name]
        try:
            with io.new_input(stored.path).open() as stream, pq.ParquetFile(stream) as parquet:
                for batch in parquet.iter_batches(_BATCH_ROWS, columns=names, use_threads=False):
                    own = batch.filter(pc.field(DATA_FILE.name) == data_file)
                    found.update(own.column(POSITION_FIELD.name).to_pylist())
        except (pa.ArrowInvalid, KeyError) as error:
            raise _damaged(stored, str(error)) from error
    else:
        offset, size = stored.place
        with io.new_input(stored.path).open() as file:
            file.seek(offset)
            blob = file.read(size)
        length, body, crc = int.from_bytes(blob[:4], "big"), blob[4:-4], int.from_bytes(blob[-4:], "big")
        if len(blob) != size or len(body) != length:
            raise _damaged(stored, "its length is another")
        if not body.startswith(_BLOB_MAGIC):
            raise _damaged(stored, "it is no deletion vector")
        if zlib.crc32(body) != crc:
            raise _damaged(stored, "its checksum is another")
        try:
            found = BitMap64.deserialize(body[len(_BLOB_MAGIC) :])
        except ValueError as error:
            raise _damaged(stored, "its bitmap cannot be read") from error
    if len(found) != stored.cardinality:
        raise _damaged(stored, f"it has {len(found)} rows of {data_file}, not {stored.cardinality}")
    return found


def _damaged(stored: StoredDeletes, why: str) -> StoredFormError:
    what = f"the position deletes at {stored.path}"
    if stored.place is not None:
        what = f"the deletion vector at {stored.path}, offset {stored.place[0]},"
    return StoredFormError(
        f"{what} cannot be used: {why}", advice="restore the file, or recreate the table with `cdc-lakehouse rebuild`"
    )


def write_vectors(
    io: FileIO, path: str, vectors: Mapping[str, BitMap64], partitions: Mapping[str, Sequence[str | None]] | None = None
) -> list[str]:
    """Write one Puffin file with the vectors of one commit. `vectors` maps the path of a data file to its deleted
    positions; `partitions` maps it to its partition's values, for partitioned tables.

    Returns the delete file of each vector as JSON for Iceberg's `ContentFileParser`. A data file without deleted rows
    gets none; when no file has any, nothing is written.
    """
    vectors = {data_file: positions for data_file, positions in vectors.items() if positions}
    if not vectors:
        return []
    content = bytearray(MAGIC_BYTES)
    blobs: list[dict[str, Any]] = []
    for data_file, positions in vectors.items():
        compact = positions.copy()
        compact.run_optimize()
        body = _BLOB_MAGIC + compact.serialize()
        blob = struct.pack(">I", len(body)) + body + struct.pack(">I", zlib.crc32(body))
        blobs.append({
            "type": "deletion-vector-v1",
            "fields": [2147483645],  # Iceberg's reserved field for a row's position in its file.
            "snapshot-id": -1,  # That of the commit that adds it, as its sequence number.
            "sequence-number": -1,
            "offset": len(content),
            "length": len(blob),
            "properties": {"referenced-data-file": data_file, "cardinality": str(len(positions))},
        })  # fmt: skip
        content += blob
    footer = json.dumps({"blobs": blobs, "properties": {"created-by": "cdc_lakehouse"}}).encode()
    no_flags = bytes(4)
    content += MAGIC_BYTES + footer + len(footer).to_bytes(4, "little") + no_flags + MAGIC_BYTES
    with io.new_output(path).create(overwrite=True) as file:
        file.write(bytes(content))
    return [
        content_file_json(
            path,
            "puffin",
            file_size=len(content),
            rows=len(positions),
            deletes_of=data_file,
            partition=(partitions or {}).get(data_file, ()),
            others={"content-offset": blob["offset"], "content-size-in-bytes": blob["length"]},
        )
        for (data_file, positions), blob in zip(vectors.items(), blobs, strict=True)
    ]


DATA_FILE: Final = NestedField(2147483546, "file_path", StringType(), required=True)
POSITION_FIELD: Final = NestedField(2147483545, "pos", LongType(), required=True)
"""Iceberg's reserved fields of a file of positions; rows are sorted by both."""

POSITION: Final = "position"  # The column of `read_rows` that holds a row's position in its file, from 0.

Range = tuple[Any, Any]  # The least and the greatest wanted value, both included; None for an open end.

_POSITION_DELETES: Final = 1
_ADDED, _DELETED = 1, 2
_PUFFIN, _PARQUET = "PUFFIN", "PARQUET"
_LOWER, _UPPER = "lower_bounds", "upper_bounds"
_BATCH_ROWS: Final = 1 << 17
_BATCH_BYTES: Final = 16 << 20
"""The approximate size of what is read at once. The allocator takes larger blocks from the system and returns them each
time, which takes longer than reading them."""
ROW_GROUP_BYTES: Final = 64 * 1024 * 1024
"""The approximate size in memory of the rows that are added and written at once."""
_BUFFERED_BYTES: Final = 2 * ROW_GROUP_BYTES
_FILE_BYTES: Final = 512 * 1024 * 1024
"""The size in memory of the rows of a data file; on disk they take a third or less."""
_FIELD_ID, _NO_FIELD = b"PARQUET:field_id", -1
_TEXTS: Final = pa.dictionary(pa.int32(), pa.string())

_Entry = Mapping[str, Any]
"""A record of a manifest list, or an entry's data file, by the specification's names; unknown fields are missing."""


@dataclass(frozen=True, slots=True)
class StoredFile:
    """A data file of a table, and the deletes of its rows: a deletion vector, or files of positions.

    size: in bytes. record_count: rows, including deleted ones. bounds: by field id the lower and the upper bound as in
    the manifest (Iceberg's single-value serialization); bounds of strings and binaries may be truncated, which makes
    the range wider. partition: the values of the partition's fields. filled: those of the fields with bounds whose
    values are all there, by the manifest.
    """

    path: str
    size: int
    record_count: int
    bounds: Mapping[int, tuple[bytes | None, bytes | None]] = field(default_factory=dict)
    deletes: tuple[StoredDeletes, ...] = ()
    partition: tuple[str | None, ...] = ()
    filled: frozenset[int] = frozenset()

    @property
    def deleted_rows(self) -> int:
        return sum(each.cardinality for each in self.deletes)

    @property
    def live_rows(self) -> int:
        return self.record_count - self.deleted_rows


def live_files(
    table: Table,
    bounds_of: Collection[int] | None = None,
    added_by: Collection[int] | None = None,
    *,
    snapshot: Snapshot | None = None,
    dangling: list[str] | None = None,
) -> list[StoredFile]:
    """List the data files of a snapshot of the table, by default of the current one; empty when there is no snapshot.

    `bounds_of` are the fields whose bounds are wanted, None for all: tables may have hundreds of columns, and files are
    sent to tasks. `added_by` are the snapshots whose added files are wanted, None for all files. The delete files whose
    data file is gone are added to `dangling`, as JSON of `ContentFileParser`: Iceberg itself leaves no such deletion
    vectors. Raises StoredFormError for files that the project does not write: files of another partition spec than the
    table's first, and deletes that are not positional or apply to more than one data file.
    """
    if (snapshot := snapshot or table.current_snapshot()) is None:
        return []
    manifests = [
        each
        for each in read_avro(table.io, snapshot.manifest_list)
        if any(each.get(name) != 0 for name in ("added_files_count", "existing_files_count"))
    ]
    if any(each["partition_spec_id"] != FIRST_SPEC for each in manifests):
        raise _foreign(table, "its files are partitioned")
    # One is read without threads.
    read = map if len(manifests) < 2 else ExecutorFactory.get_or_create().map
    found = read(lambda each: live_entries(table.io, each["manifest_path"]), manifests)
    data: list[tuple[_Entry, bool]] = []
    deletes: dict[str, list[StoredDeletes]] = defaultdict(list)
    for manifest, entries in zip(manifests, found, strict=True):
        for status, entry in entries:
            if not entry.get("content"):
                added = status == _ADDED and manifest["added_snapshot_id"]
                data.append((entry, added_by is None or added in added_by))
            else:
                path, stored = _deletes_of(entry, table)
                deletes[path].append(stored)
    files: list[StoredFile] = []
    for entry, is_wanted in data:
        path, count, size = entry["file_path"], entry["record_count"], entry["file_size_in_bytes"]
        own = deletes.pop(path, [])
        vectors = [each for each in own if each.place is not None]
        if vectors and len(own) > 1:
            raise _foreign(table, f"a data file has a deletion vector and other deletes ({vectors[0].path})")
        if is_wanted:
            lower, upper, nulls = (_by_field(entry, name) for name in (_LOWER, _UPPER, "null_value_counts"))
            given = lower.keys() | upper.keys()
            bounds = {id: (lower.get(id), upper.get(id)) for id in given if bounds_of is None or id in bounds_of}
            filled = frozenset(id for id in bounds if nulls.get(id) == 0)
            files.append(StoredFile(path, size, count, bounds, tuple(own), (*entry["partition"].values(),), filled))
    if dangling is not None:
        dangling += (each.content_file for left in deletes.values() for each in left)
    return files


def live_entries(io: FileIO, manifest: str) -> list[tuple[int, _Entry]]:
    """Return the status and the file of each entry of a manifest that is not of a deleted file."""
    return [(each["status"], each["data_file"]) for each in read_avro(io, manifest) if each["status"] != _DELETED]


def read_avro(io: FileIO, path: str) -> list[Any]:
    """Read the records of a manifest or of a manifest list. PyIceberg's own reader takes eight times as long, and omits
    what is new in version 3, such as the offset of a vector."""
    import fastavro  # noqa: PLC0415 - Tasks list no files, and do not wait for it.

    with io.new_input(path).open() as stream:
        return [*fastavro.reader(BytesIO(stream.read()))]


def _by_field(entry: _Entry, name: str) -> dict[int, Any]:
    """Return a map of a file's metrics, by field id."""
    return {each["key"]: each["value"] for each in entry.get(name) or ()}


def _deletes_of(entry: _Entry, table: Table) -> tuple[str, StoredDeletes]:
    """Return the path of the data file to which a delete file applies, and the deletes."""
    path, cardinality, data_file = entry["file_path"], entry["record_count"], entry.get("referenced_data_file")
    kind = entry["file_format"].upper() if entry["content"] == _POSITION_DELETES else "others"
    if kind == _PARQUET:
        # Some writers do not name the data file, but its path is both bounds of `file_path`.
        least, greatest = (_by_field(entry, name).get(DATA_FILE.field_id) for name in (_LOWER, _UPPER))
        if data_file is None and least is not None and least == greatest:
            data_file = least.decode()
    if kind not in (_PARQUET, _PUFFIN) or data_file is None:
        raise _foreign(table, f"it has deletes that are not by position, or not of one data file ({path})")
    offset, size = (entry.get(name) or 0 for name in ("content_offset", "content_size_in_bytes"))
    text = content_file_json(
        path,
        kind.lower(),
        file_size=entry["file_size_in_bytes"],
        rows=cardinality,
        deletes_of=data_file,
        partition=(*entry["partition"].values(),),
        others={"content-offset": offset, "content-size-in-bytes": size} if kind == _PUFFIN else {},
    )
    return data_file, StoredDeletes(path, cardinality, text, (offset, size) if kind == _PUFFIN else None)


def _foreign(table: Table, why: str) -> StoredFormError:
    return StoredFormError(
        f"the Iceberg table {'.'.join(table.name())} has been changed by another writer: {why}",
        advice="rewrite its rows as an unpartitioned table without deletes, or drop it and load it again",
    )


def may_hold(file: StoredFile, schema: Schema, between: Mapping[str, Range] | Mapping[int, Range]) -> bool:
    """Whether the file can have rows with values in all of the ranges, which are by the names or the ids of fields.

    Bounds of the manifest from before a column was widened are understood. True when bounds are missing or cannot be
    read; NULLs are ignored.
    """
    fields = ((schema.find_field(name), ends) for name, ends in between.items())
    bounds = ((each, file.bounds.get(each.field_id, (None, None)), ends) for each, ends in fields)
    return all(_overlap(each.field_type, from_bytes, own, ends) for each, own, ends in bounds)


def _overlap(type: IcebergType, read: Callable[[Any, Any], Any], bounds: Range, ends: Range) -> bool:
    """Whether two ranges have a value in common, or bounds cannot be read; None is an open end."""
    try:
        least, greatest = (_value(type, None if bound is None else read(type, bound)) for bound in bounds)
        lower, upper = (_value(type, end) for end in ends)
        is_below = greatest is not None and lower is not None and greatest < lower
        return not is_below and (least is None or upper is None or not upper < least)
    except (struct.error, TypeError, ValueError):
        return True


def _value(type: IcebergType, value: Any) -> Any:
    """Convert a Python value to the form in which values are compared: strings to bytes, times to numbers."""
    match value:
        case str():
            return value.encode()
        case datetime.datetime():
            return datetime_to_micros(value)
        case datetime.date():
            return date_to_days(value)
        case float() if isinstance(type, FloatType):
            # The nearest value that a column of the type can hold.
            with np.errstate(over="ignore"):
                return float(np.float32(value))
        case _:
            return value


# --- Reading ---


def read_rows(
    io: FileIO,
    file: StoredFile,
    schema: Schema,
    names: Sequence[str],
    between: Mapping[str, Range] | None = None,
    as_dictionaries: Collection[str] = (),
) -> Iterator[pa.Table]:
    """Read the live rows of a file, in the file's order, as tables with the columns `names` of the schema, and last
    `position` (int64), whose name can be that of a column.

    Only these columns are read. They have the types of the schema, whatever the file has; a column that the file lacks
    holds its field's initial default. `between` holds ranges of values by the names of columns: nothing is read where
    the file's bounds exclude one of them, and row groups that have no value in one of them by Parquet's statistics are
    skipped (rows outside the range can still appear, and NULLs can be missing). The columns in `as_dictionaries`,
    strings of low cardinality whose names in the file are the same, are returned as Arrow dictionaries where the file
    stores them, which costs a fifth of the time. Raises ValueError for a column that the schema lacks.
    """
    top_level = {each.name: each for each in schema.fields}
    if unknown := {*names, *(between or {})} - top_level.keys():
        raise ValueError(f"the schema has no column {min(unknown)}")
    fields = [top_level[name] for name in names]
    within = {top_level[name].field_id: ends for name, ends in (between or {}).items()}
    if not may_hold(file, schema, within):
        return
    deleted = np.frombuffer(read_deleted(io, file).to_array(), np.uint64).astype(np.int64)
    dictionaries = [name for name in as_dictionaries if name in names]
    with (
        io.new_input(file.path).open() as stream,
        pq.ParquetFile(stream, pre_buffer=True, read_dictionary=dictionaries) as parquet,
    ):
        # By field id the name and the first leaf column.
        leaves = itertools.accumulate((_leaves(each.type) for each in parquet.schema_arrow), initial=0)
        columns = {_field_id(each): (each.name, leaf) for each, leaf in zip(parquet.schema_arrow, leaves, strict=False)}
        wanted = [columns[each.field_id] for each in fields if each.field_id in columns]
        stored = [name for name, _ in wanted]
        types = [schema_to_pyarrow(each.field_type, include_field_ids=False) for each in fields]
        ranges = [(columns[id][1], schema.find_type(id), ends) for id, ends in within.items() if id in columns]
        start = 0
        for number in range(parquet.num_row_groups):
            group = parquet.metadata.row_group(number)
            position, start = start, start + group.num_rows
            found = [(group.column(leaf).statistics, type, ends) for leaf, type, ends in ranges]
            known = [each for each in found if each[0] is not None and each[0].has_min_max]
            if not all(_overlap(type, _raw_value, (own.min_raw, own.max_raw), ends) for own, type, ends in known):
                continue
            size = sum(group.column(leaf).total_uncompressed_size for _, leaf in wanted)
            most = max(1, min(_BATCH_ROWS, _BATCH_BYTES * group.num_rows // max(1, size)))
            for batch in parquet.iter_batches(most, row_groups=[number], columns=stored, use_threads=False):
                # Columns are found by id: a name with a dot selects more than its own column.
                given = {_field_id(each): column for each, column in zip(batch.schema, batch.columns, strict=True)}
                arrays: list[pa.Array] = []
                for each, type in zip(fields, types, strict=True):
                    values = given.get(each.field_id)
                    if values is None:
                        values = pa.repeat(pa.scalar(each.initial_default, type), batch.num_rows)
                    as_it_is = values.type == type or each.name in dictionaries
                    arrays.append(values if as_it_is else values.cast(type))
                arrays.append(pa.array(np.arange(position, position + batch.num_rows, dtype=np.int64)))
                rows = pa.table(arrays, [*names, POSITION])
                first, last = np.searchsorted(deleted, (position, position + rows.num_rows))
                if first < last:
                    live = np.ones(rows.num_rows, dtype=np.bool_)
                    live[deleted[first:last] - position] = False
                    rows = rows.filter(pa.array(live))
                yield rows
                position += batch.num_rows


def rows_between(table: Table, names: Sequence[str], between: Mapping[str, Range | None]) -> Iterator[pa.Table]:
    """Read columns of current rows whose values are in all ranges, by the names of columns; None stands for NULL."""
    schema, columns = table.schema(), list(dict.fromkeys([*names, *between]))
    ids = {name: schema.find_field(name).field_id for name in between}
    ranges = {name: ends for name, ends in between.items() if ends is not None}
    for file in live_files(table, list(ids.values())):
        if any(ids[name] in file.filled for name in between.keys() - ranges.keys()):
            continue
        for rows in read_rows(table.io, file, schema, columns, ranges):
            for name, ends in between.items():
                value = pc.field(name)
                rows = rows.filter(value.is_null() if ends is None else (value >= ends[0]) & (value <= ends[1]))
            yield rows.select(names)


def read_deleted(io: FileIO, file: StoredFile) -> BitMap64:
    """Return the positions of a file's deleted rows, from 0. Raises StoredFormError when its deletes are damaged."""
    found = BitMap64()
    for each in file.deletes:
        found |= read_deletes(io, each, file.path)
    return found


def _field_id(field: pa.Field) -> int:
    return int((field.metadata or {}).get(_FIELD_ID, _NO_FIELD))


def _leaves(type: pa.DataType) -> int:
    return sum(_leaves(type.field(number).type) for number in range(type.num_fields)) or 1


def _raw_value(type: IcebergType, raw: Any) -> Any:
    """Convert a value of Parquet's statistics to the form in which values of its type are compared."""
    if not isinstance(type, DecimalType):
        return raw
    unscaled = int.from_bytes(raw, "big", signed=True) if isinstance(raw, bytes) else raw
    return unscaled_to_decimal(unscaled, type.scale)


# --- Writing ---


class DataFileWriter:
    """Writes one Parquet file: a row group for each `write`, and one of added rows at each `flush` and once they have a
    row group's size. `waiting` and `written` are bytes in memory of added rows.

    `properties` are the table's; `write.parquet.*` and `write.metadata.metrics.*` are used. `partition` holds the
    values of the partition's fields. `plain` are columns whose values hardly repeat: they get no dictionary. `repeated`
    are string columns that are mostly passed as Arrow dictionaries: their values are not looked up one by one."""

    def __init__(
        self,
        io: FileIO,
        path: str,
        schema: Schema,
        properties: Mapping[str, str],
        partition: Sequence[str | None] = (),
        plain: Collection[str] = (),
        repeated: Collection[str] = (),
    ) -> None:
        self._path, self._schema, self._properties, self._partition = path, schema, properties, partition
        # Unique names that every reader of Parquet accepts, as Iceberg's own writers make them.
        fields: dict[str, NestedField] = {}
        for each in schema.fields:
            name = make_compatible_name(each.name)
            while name in fields:
                name = f"{name}_{each.field_id}"
            fields[name] = NestedField(each.field_id, name, each.field_type, each.required)
        self._file_schema = Schema(*fields.values())
        self._target = pa.schema(
            field.with_type(_TEXTS) if each.name in repeated else field
            for each, field in zip(schema.fields, schema_to_pyarrow(self._file_schema), strict=True)
        )
        encoded: Any = [name for name in self._target.names if name not in plain] if plain else True
        codec = properties.get(TableProperties.PARQUET_COMPRESSION, TableProperties.PARQUET_COMPRESSION_DEFAULT)
        level = properties.get(TableProperties.PARQUET_COMPRESSION_LEVEL)
        self._added: list[pa.Table] = []
        self.waiting = self.written = 0
        self._stream = io.new_output(path).create(overwrite=True)
        self._writer = pq.ParquetWriter(
            self._stream,
            self._target,
            use_dictionary=encoded,
            # Iceberg writes decimals like this, and a reader may rely on it.
            store_decimal_as_integer=True,
            store_schema=False,
            compression="none" if codec == "uncompressed" else codec,
            compression_level=None if level is None else int(level),
        )

    def write(self, rows: pa.Table) -> None:
        """Write rows. Their columns have names of the schema's fields and are cast to the fields' types; a field
        without a column is written as NULL. Raises ValueError for a column that the schema lacks, pyarrow.ArrowInvalid
        for a value that does not fit."""
        given, own = by_name(rows), TableProperties
        if unknown := given.keys() - {each.name for each in self._schema.fields}:
            raise ValueError(f"the schema has no columns {sorted(unknown)}")
        columns: list[pa.ChunkedArray | pa.Array] = []
        for each, written in zip(self._schema.fields, self._target, strict=True):
            values = given.get(each.name)
            if values is None:
                columns.append(pa.nulls(rows.num_rows, written.type))
            elif written.type == _TEXTS:
                if not pa.types.is_dictionary(values.type):
                    values = values.cast(pa.string()).dictionary_encode()
                columns.append(values.cast(_TEXTS).unify_dictionaries())
            else:
                columns.append(values if values.type == written.type else values.cast(written.type))
        # By count, and by size before encoding.
        most = int(self._properties.get(own.PARQUET_ROW_GROUP_LIMIT, own.PARQUET_ROW_GROUP_LIMIT_DEFAULT))
        size = int(self._properties.get(own.PARQUET_ROW_GROUP_SIZE_BYTES, own.PARQUET_ROW_GROUP_SIZE_BYTES_DEFAULT))
        group = max(1, min(most, size * rows.num_rows // max(1, rows.nbytes)))
        self._writer.write_table(pa.Table.from_arrays(columns, schema=self._target), row_group_size=group)

    def add(self, rows: pa.Table) -> None:
        self._added.append(rows)
        self.waiting += rows.nbytes
        if self.waiting >= ROW_GROUP_BYTES:
            self.flush()

    def flush(self) -> None:
        if self._added:
            self.write(pa.concat_tables(self._added))
        self.written, self.waiting, self._added = self.written + self.waiting, 0, []

    def close(self, deletes_of: str | None = None) -> str:
        """Its file as JSON for Iceberg's `ContentFileParser`: a data file, or one of deletes of a data file."""
        self.flush()
        self._writer.close()
        metadata: pq.FileMetaData = self._writer.writer.metadata
        size = self._stream.tell()
        self._stream.close()
        # PyIceberg wants metrics modes by the names in the file: it takes a name with a dot for that of a nested one.
        mode, pairs = "write.metadata.metrics.column", zip(self._schema.fields, self._file_schema.fields, strict=True)
        names = {f"{mode}.{each.name}": f"{mode}.{written.name}" for each, written in pairs}
        modes = {names.get(key, key): value for key, value in self._properties.items()}
        return content_file_json(
            self._path,
            "parquet",
            file_size=size,
            rows=metadata.num_rows,
            deletes_of=deletes_of,
            partition=self._partition,
            others=_metrics(metadata, self._file_schema, modes),
        )

    def abandon(self) -> None:
        self._writer.close()
        self._stream.close()


class DatedFiles(contextlib.AbstractContextManager["DatedFiles"]):
    """The data files that a task writes of a table that is partitioned by feed date: one at a time for each date, of at
    most `_BUFFERED_BYTES` in memory for all of them together. `written` are those that are complete, in the order in
    which they were closed, as JSON for Iceberg's `ContentFileParser`. An error deletes all of them."""

    def __init__(
        self,
        table: TableFiles,
        plain: Collection[str],
        repeated: Collection[str],
        most_open: int | None = None,
        name: str | None = None,
    ) -> None:
        """`plain` and `repeated` are as in `DataFileWriter`. Of `most_open` files the one that was opened first is
        closed: dates come in order. Files have the `name`, and numbers in the order in which they were opened."""
        self.written: list[str] = []
        self._table, self._io = table, table.open()
        self._columns = (plain, repeated)
        self._most_open = most_open
        self._locations = load_location_provider(table.location, dict(table.properties))
        self._name = name or str(uuid.uuid4())
        self._paths: list[str] = []
        self._open: dict[str | None, DataFileWriter] = {}

    def add(self, date: str | None, rows: pa.Table) -> None:
        file = self._open.get(date)
        if file is None:
            if len(self._open) == self._most_open:
                self._close(next(iter(self._open)))
            path = self._locations.new_data_location(f"{self._name}-{len(self._paths):05d}.parquet")
            self._paths.append(path)
            file = DataFileWriter(self._io, path, self._table.schema, self._table.properties, (date,), *self._columns)
            self._open[date] = file
        file.add(rows)
        if file.written >= _FILE_BYTES:
            self._close(date)
        elif sum(each.waiting for each in self._open.values()) >= _BUFFERED_BYTES:
            for each in self._open.values():
                each.flush()

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        with contextlib.ExitStack() as on_error:
            on_error.callback(self._discard)
            if kind is None:
                for date in list(self._open):
                    self._close(date)
                on_error.pop_all()

    def _discard(self) -> None:
        # Whatever a store says here, what is raised is the error that led here.
        for file in self._open.values():
            with contextlib.suppress(Exception):
                file.abandon()  # A store may make the file when it is closed.
        for path in self._paths:
            with contextlib.suppress(Exception):
                self._io.delete(path)

    def _close(self, date: str | None) -> None:
        self.written.append(self._open[date].close())
        del self._open[date]


@dataclass(frozen=True)
class TableFiles:
    """A table as tasks read and write it, who have no catalog: as it was when the work was planned. `io` holds the
    properties of its FileIO, with the credentials of then."""

    schema: Schema
    location: str
    properties: Mapping[str, str] = field(default_factory=dict[str, str])
    io: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    warehouse: str = ""
    storage: StorageConfig | None = None  # Set where the credentials in `io` expire.

    @classmethod
    def of(cls, table: Table, lake: Lake, snapshot: Snapshot | None = None) -> TableFiles:
        """The table in its current state, or in that of a snapshot."""
        schema = table.schema() if snapshot is None else table.schemas()[snapshot.schema_id or 0]
        storage = None if lake.expires_at is None else lake.storage
        of_table = (schema, table.location(), dict(table.properties), dict(table.io.properties))
        return cls(*of_table, lake.config.warehouse, storage)

    def open(self) -> FileIO:
        """Open the FileIO with the credentials that the configuration gives in this process now: those sent with the
        task may have expired. They are used where it gives none here."""
        now: Mapping[str, str] = {}
        if self.storage is not None:
            with contextlib.suppress(ConfigurationError):
                now = pyiceberg_file_io(self.warehouse, self.storage).properties
        return load_file_io({**self.io, **now}, self.location)


def delete_unused(properties: Mapping[str, str], files: Iterable[str]) -> None:
    """Delete data files (JSON for `ContentFileParser`) that are not committed."""
    for path in [json.loads(file)["file-path"] for file in files]:
        with contextlib.suppress(OSError):  # Maintenance removes it as an orphan.
            load_file_io(dict(properties), path).delete(path)


def as_data_file(text: str) -> DataFile:
    """Return the data file of the JSON that `DataFileWriter.close` returns, for a commit without a JVM."""
    file: dict[str, Any] = {name.replace("-", "_"): each for name, each in json.loads(text).items()}
    of_fields = {name: each for name, each in file.items() if isinstance(each, dict)}
    maps = {name: dict(zip(each["keys"], each["values"], strict=True)) for name, each in of_fields.items()}
    for name in ("lower_bounds", "upper_bounds"):
        maps[name] = {id: bytes.fromhex(bound) for id, bound in maps[name].items()}
    own: Any = {"content": DataFileContent.DATA, "file_format": FileFormat.PARQUET}
    return DataFile.from_args(**{**file, **maps, **own, "partition": Record(*file["partition"])})


def write_file(
    io: FileIO, path: str, schema: Schema, rows: pa.Table, properties: Mapping[str, str], plain: Collection[str] = ()
) -> str:
    """Write rows as one Parquet file; return its JSON. Raises ValueError also when there are no rows."""
    if not rows.num_rows:
        raise ValueError("a data file has rows")
    writer = DataFileWriter(io, path, schema, properties, plain=plain)
    writer.write(rows)
    return writer.close()


def new_path(location: str, properties: Mapping[str, str], ending: str) -> str:
    """Return the path for a new file of the table at this location, in the layout that its properties define."""
    return load_location_provider(location, dict(properties)).new_data_location(f"{uuid.uuid4()}{ending}")


def _metrics(metadata: pq.FileMetaData, schema: Schema, properties: Mapping[str, str]) -> dict[str, Any]:
    """Compute the metrics of a data file, as in the JSON of `ContentFileParser`.

    PyIceberg's own aggregation over a file is not used: its bounds omit row groups without statistics, which strings of
    some kilobytes cause, and it fails on a date that Python cannot represent.
    """
    names = ("column-sizes", "value-counts", "null-value-counts", "lower-bounds", "upper-bounds")
    ids, plan = parquet_path_to_id_mapping(schema), compute_statistics_plan(schema, dict(properties))
    found = {name: dict[int, Any]() for name in names}
    groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
    for leaf in range(metadata.num_columns):
        chunks = [group.column(leaf) for group in groups]
        id = ids[chunks[0].path_in_schema]
        mode = plan[id].mode.type
        found["column-sizes"][id] = sum(chunk.total_compressed_size for chunk in chunks)
        if mode == MetricModeTypes.NONE:
            continue
        found["value-counts"][id] = sum(chunk.num_values for chunk in chunks)
        if all(chunk.is_stats_set and chunk.statistics.has_null_count for chunk in chunks):
            found["null-value-counts"][id] = sum(chunk.statistics.null_count for chunk in chunks)
        if mode != MetricModeTypes.COUNTS:
            for name, end in zip(names[3:], _bounds(chunks, plan[id]), strict=True):
                found[name] |= {} if end is None else {id: end.hex()}
    firsts = [group.column(0) for group in groups]
    offsets = [min(filter(None, (first.dictionary_page_offset, first.data_page_offset))) for first in firsts]
    maps = {name: {"keys": [*each], "values": [*each.values()]} for name, each in found.items()}
    return {**maps, "split-offsets": sorted(offsets)}


def _bounds(
    chunks: Sequence[pq.ColumnChunkMetaData], collector: StatisticsCollector
) -> tuple[bytes | None, bytes | None]:
    """Return a column's lower and upper bound; None when a row group has no statistics."""
    with_values = [c for c in chunks if not (c.is_stats_set and c.statistics.null_count == c.num_values)]
    if not with_values or not all(c.is_stats_set and c.statistics.has_min_max for c in with_values):
        return None, None
    type = collector.iceberg_type
    found = StatsAggregator(type, chunks[0].physical_type, collector.mode.length)
    for chunk in with_values:
        ends = (_raw_value(type, raw) for raw in (chunk.statistics.min_raw, chunk.statistics.max_raw))
        least, greatest = (end.decode() if isinstance(type, StringType) else end for end in ends)
        found.update_min(least)
        found.update_max(greatest)
    upper = None
    with contextlib.suppress(UnicodeEncodeError):  # The next code point after U+D7FF is no character.
        upper = found.max_as_bytes()  # None where no shorter value is a bound.
    return found.min_as_bytes(), upper


# Delete rows in the way of a table's format version: deletion vectors, or files of positions.

FIRST_WITH_VECTORS: Final = 3  # The first format version that has deletion vectors, and initial defaults of columns.


def delete_rows(
    io: FileIO,
    location: str,
    properties: Mapping[str, str],
    format_version: int,
    files: Sequence[StoredFile],
    deleted: Mapping[str, BitMap64],
) -> tuple[list[str], list[str]]:
    """Write the deletes of data files to new files of the table at this location. `deleted` maps the path of a data
    file to the positions to delete.

    Returns the new delete files, and those that they replace, as JSON for Iceberg's `ContentFileParser`. A data file
    has one delete file: the new one also holds the rows of the old ones, even a vector those of version 2."""
    touched = [file for file in files if deleted.get(file.path)]
    pool = ExecutorFactory.get_or_create()
    stored = pool.map(lambda file: read_deleted(io, file), touched)
    positions = {file.path: deleted[file.path] | before for file, before in zip(touched, stored, strict=True)}
    replaced = [each.content_file for file in touched for each in file.deletes]
    if format_version >= FIRST_WITH_VECTORS:
        path = new_path(location, properties, "-deletes.puffin")
        return write_vectors(io, path, positions, {file.path: file.partition for file in touched}), replaced

    # Readers match the deletes of a data file by whole paths, so the bounds must not be truncated.
    own = {name: value for name, value in properties.items() if name.startswith("write.parquet.")}
    own[TableProperties.DEFAULT_WRITE_METRICS_MODE] = "full"
    schema = Schema(DATA_FILE, POSITION_FIELD)

    def write(file: StoredFile) -> str:
        path = new_path(location, properties, "-deletes.parquet")
        writer = DataFileWriter(io, path, schema, own, file.partition, repeated=[DATA_FILE.name])
        numbers = np.frombuffer(positions[file.path].to_array(), np.uint64).astype(np.int64)
        paths = pa.DictionaryArray.from_arrays(np.zeros(len(numbers), np.int32), [file.path])
        writer.write(pa.table({DATA_FILE.name: paths, POSITION_FIELD.name: pa.array(numbers)}))
        return writer.close(deletes_of=file.path)

    return list(pool.map(write, touched)), replaced
