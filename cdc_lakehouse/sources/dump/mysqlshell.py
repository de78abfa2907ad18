r"""Dumps of MySQL Shell: util.dumpInstance, dumpSchemas, dumpTables (mysql/mysql-shell, modules/util/dump/dumper.cc).

    @.json                              written first: schemas and the names of their files, position
    @.done.json                         written last
    {schema}.json                       tables, views, and the names of their files
    {schema}@{table}.json               how the rows are written; partitions, and the names of their files
    {schema}@{table}.sql                CREATE TABLE
    {schema}@{table}.{extension}                                            all rows
    {schema}@{table}@0.{extension} … {schema}@{table}@@{last}.{extension}   or rows in chunks, the last marked by @@
    {schema}@{table}@{partition}…                                           or so for each partition
    ….idx                               beside a file of rows: offsets in it, of no use here

The names of files are in `basenames`: they are escaped and shortened there, so paths are never parsed. A local file is
`….dumping` until it is complete. `tableRows` (the number of rows) and `chunkFileBytes` (the files) in `@.done.json`
were added in later releases."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, TypeVar

from cdc_lakehouse.changelog.schema import TableName
from cdc_lakehouse.config import InitialLoad
from cdc_lakehouse.errors import DumpError, SourceError
from cdc_lakehouse.sources import read_json
from cdc_lakehouse.sources.dump import contents
from cdc_lakehouse.sources.dump.contents import DumpedTable, UnreadTable
from cdc_lakehouse.sources.dump.flat_files import TIDB_LOG, position_of, read_table
from cdc_lakehouse.sources.dump.reading import read_small
from cdc_lakehouse.sources.object_store import ObjectStore, StoredObject

_LOG: Final = logging.getLogger("cdc_lakehouse")
_START, _DONE = "@.json", "@.done.json"
_UNFINISHED: Final = ".dumping"
# Of the whole dump: statements before and after, users, checksums, the manifest of a bucket, and what a load did.
_NO_ROWS: Final = re.compile(
    r"@\.(?:json|done\.json|sql|post\.sql|users\.sql|checksums\.json|manifest\.json)|load-progress[^/]*"
)
_COMPRESSIONS: Final[dict[str, contents.Compression | None]] = {"none": None, "gzip": "gzip", "zstd": "zstd"}
_DECODED: Final[dict[str, contents.BinaryNotation]] = {"FROM_BASE64": "base64", "UNHEX": "hex"}
_UTF8: Final = frozenset({"utf8mb4", "utf8mb3", "utf8"})


def read_mysqlshell(store: ObjectStore, initial: InitialLoad) -> contents.Dump:
    files = _Files(store, {found.path: found for found in contents.list_objects(store)})
    if missing := [path for path in (_START, _DONE) if path not in files.objects]:
        said = f"the dump is not finished, or not there: it has no {missing[0]}"
        advice = "check source.initial.uri, wait until the dump is finished, or dump again into an empty directory"
        raise SourceError(said, segment=missing[0], advice=advice)
    start, done = files.document(_START), files.document(_DONE)
    if start.of("consistent", bool) is False:
        said = "the dump is not of one point: it was made with consistent: false"
        raise SourceError(said, segment=_START, advice="dump again with consistent: true")
    charset = start.of("defaultCharacterSet", str)
    if charset is not None and charset not in _UTF8:
        said = f"the dump's text is in {charset}, which is not read"
        raise SourceError(said, segment=_START, advice="dump again with defaultCharacterSet: utf8mb4")
    utc = start.of("tzUtc", bool)
    if utc and initial.time_zone != "UTC":
        said = f"the dump has times in UTC (tzUtc), the configuration says {initial.time_zone}"
        raise SourceError(said, segment=_START, advice="leave out source.initial.time_zone")
    if utc is False and "time_zone" not in initial.model_fields_set:
        said = "the dump has times in the zone of its server (tzUtc: false), which it does not say"
        raise SourceError(said, segment=_START, advice="set source.initial.time_zone to that zone")
    tables: list[DumpedTable | UnreadTable] = []
    for database in start.names("schemas"):
        basename = _basename(start, database)
        schema = files.document(f"{basename}.json")
        files.known |= {f"{basename}.json", f"{basename}.sql"}
        for flag, lacks in (("includesData", "rows"), ("includesDdl", "CREATE TABLE statements")):
            if schema.of(flag, bool) is False:
                said = f"the dump of the database {database!r} has no {lacks}"
                raise SourceError(said, segment=schema.path, advice="dump again without ddlOnly and dataOnly")
        counted = done.within("tableRows").within(database)
        for table in schema.names("tables"):
            name = TableName(database, table)
            tables.append(_read_table(files, name, _basename(schema, table), counted.of(table, int)))
        for view in schema.names("views"):
            name = _basename(schema, view)
            files.known |= {f"{name}.sql", f"{name}.pre.sql"}
    for path in done.within("chunkFileBytes").values:
        if path not in files.objects:
            raise DumpError("a file of the dump is not there", segment=path)
    unknown = [path for path in files.objects if path not in files.known and not _NO_ROWS.fullmatch(path)]
    contents.refuse_unknown(unknown, "MySQL Shell")
    log, offset, gtid = start.of("binlogFile", str), start.of("binlogPosition", int), start.of("gtidExecuted", str)
    if log == TIDB_LOG:
        said = "the dump is of TiDB, of which MySQL Shell does not read one snapshot"
        raise SourceError(said, segment=_START, advice="dump TiDB with Dumpling")
    if log and start.of("gtidExecutedInconsistent", bool):
        gtid = None  # Of another moment than the rows.
    position = position_of(log, None if offset is None else str(offset), gtid, _START)
    return contents.Dump(position, *contents.sorted_tables(tables))


_Value = TypeVar("_Value", str, int, bool, list[Any], dict[str, Any])


@dataclass(frozen=True, slots=True)
class _Document:
    """A JSON object of the dump. Its methods raise `DumpError` for a value of another kind."""

    path: str
    values: Mapping[str, Any]

    def of(self, key: str, kind: type[_Value]) -> _Value | None:
        value = self.values.get(key)
        if value is not None and (not isinstance(value, kind) or (kind is int and isinstance(value, bool))):
            raise DumpError(f"{key!r} of the dump's metadata is no {kind.__name__}", segment=self.path)
        return value

    def names(self, key: str) -> list[str]:
        found = self.of(key, list) or []
        if not all(isinstance(each, str) for each in found):
            raise DumpError(f"{key!r} of the dump's metadata are no names", segment=self.path)
        return found

    def within(self, key: str) -> _Document:
        return _Document(self.path, self.of(key, dict) or {})


class _Files:
    """The objects of the dump by their paths, and which of them are known."""

    def __init__(self, store: ObjectStore, objects: Mapping[str, StoredObject]) -> None:
        self.store = store
        self.objects = objects
        self.known: set[str] = set()

    def required(self, path: str) -> StoredObject:
        if path not in self.objects:
            raise DumpError("a file of the dump is not there", segment=path)
        self.known.add(path)
        return self.objects[path]

    def document(self, path: str) -> _Document:
        content = read_small(self.store, self.required(path))
        return _Document(path, read_json(content, "the dump's metadata", partial(DumpError, segment=path)))


# --- Tables ---


def _read_table(files: _Files, name: TableName, basename: str, rows: int | None) -> DumpedTable | UnreadTable:
    document = files.document(f"{basename}.json")
    schema = files.required(f"{basename}.sql")
    files.known.add(f"{basename}.triggers.sql")
    if where := document.of("where", str):
        _LOG.warning("the dump lacks rows of %s: it has those where %s", name.quoted, where)
    compression = document.of("compression", str) or "none"
    extension = document.of("extension", str)
    if compression not in _COMPRESSIONS or not extension:
        raise SourceError(
            f"the rows of {name.quoted} are in a form that is not read: extension {extension}, compression "
            f"{compression}",
            segment=document.path,
            advice="dump again with compression none, gzip or zstd",
        )
    parts = [_basename(document, partition) for partition in document.names("partitions")]
    stored = [file for part in parts or [basename] for file in _chunks(files, part, extension, document.path)]
    files.known |= {f"{file.path}{ending}" for file in stored for ending in ("", ".idx")}

    def dumped(table: DumpedTable) -> Iterator[contents.DumpFile]:
        notation, of = _notation(document, table), _COMPRESSIONS[compression]
        return (contents.DumpFile.of(each, of, notation) for each in stored)

    return read_table(files.store, schema, name, dumped, rows)


def _basename(document: _Document, name: str) -> str:
    basename = document.within("basenames").of(name, str)
    if not basename:
        raise DumpError(f"the dump does not say what the files of {name!r} are called", segment=document.path)
    return basename


def _chunks(files: _Files, basename: str, extension: str, origin: str) -> list[StoredObject]:
    """Return the files of a table or a partition: one with all rows, or chunks up to the one that is marked as the
    last. Raises `SourceError` when one is missing."""
    whole = files.objects.get(f"{basename}.{extension}")
    if whole is not None:
        return [whole]
    found: list[StoredObject] = []
    while True:
        number = len(found)
        last = files.objects.get(f"{basename}@@{number}.{extension}")
        if last is not None:
            return [*found, last]
        path = f"{basename}@{number}.{extension}"
        if path not in files.objects:
            if f"{path}{_UNFINISHED}" in files.objects:
                said = "the dump is not finished: a file is being written"
                advice = "wait until it is finished, or dump again into an empty directory"
                raise DumpError(said, segment=f"{path}{_UNFINISHED}", advice=advice)
            said = f"a chunk of rows is not there: {path}, or the last as {basename}@@{number}.{extension}"
            raise DumpError(said, segment=origin)
        found.append(files.objects[path])


def _notation(document: _Document, table: DumpedTable) -> contents.TextNotation:
    options = document.within("options")
    columns = tuple(options.names("columns"))
    if not {*table.row_columns} <= {*columns} <= {*table.columns}:
        said = f"the dump's rows have the columns {', '.join(columns)}, its CREATE TABLE has "
        raise DumpError(said + ", ".join(table.row_columns), segment=document.path)
    escape = _required(options, "fieldsEscapedBy")
    decoded = options.within("decodeColumns")
    encoded = {column: decoded.of(column, str) or "" for column in decoded.values}
    other = next((function for function in encoded.values() if function not in _DECODED), None)
    if escape not in ("\\", "") or other is not None:
        raise SourceError(
            f"values of the dump are escaped by {escape!r}" if other is None else f"columns are decoded by {other}",
            segment=document.path,
            advice="dump again with the dialect default or csv",
        )
    return contents.TextNotation(
        columns=columns,
        separator=_required(options, "fieldsTerminatedBy").encode(),
        quote=_required(options, "fieldsEnclosedBy").encode(),
        # MySQL, "SELECT ... INTO Statement": without escapes, NULL is the word NULL.
        null=rb"\N" if escape else b"NULL",
        terminator=_required(options, "linesTerminatedBy").encode(),
        backslash_escapes=bool(escape),
        encoded={column: _DECODED[function] for column, function in encoded.items()},
    )


def _required(options: _Document, key: str) -> str:
    value = options.of(key, str)
    if value is None:
        raise DumpError(f"the dump does not say how its rows are written: it lacks {key}", segment=options.path)
    return value
