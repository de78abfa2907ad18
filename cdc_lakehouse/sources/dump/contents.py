"""The content of a dump, whichever tool made it, as frozen values: its files, their notation and the listing of its
directory."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

from cdc_lakehouse.changelog.ddl import apply
from cdc_lakehouse.changelog.ddl.clauses import CreateTable
from cdc_lakehouse.changelog.schema import SourceColumn, TableName
from cdc_lakehouse.errors import DumpError, SourceError
from cdc_lakehouse.sources.object_store import ObjectStore, StoredObject, UnreadableDirectory

ONE_DUMP: Final = "dump again into an empty directory: it may hold files of two dumps"
Compression = Literal["gzip", "snappy", "zstd"]
BinaryNotation = Literal["raw", "hex", "base64"]


@dataclass(frozen=True)
class InsertNotation:
    """INSERT statements of MySQL. `backslash_escapes`: a backslash in a string begins an escape; a quote in a string
    may be doubled in any case. `columns`: the columns of a row, in order, where the statements do not list them.
    `own_charsets`: text is in the character set of its column, else in UTF-8."""

    columns: tuple[str, ...]
    backslash_escapes: bool = True
    own_charsets: bool = False


@dataclass(frozen=True)
class TextNotation:
    """Delimited text. `columns`: the columns of a row, in order, even where a header repeats them. `quote`: empty for
    none; otherwise values may be quoted or not. `null`: the text of NULL, without quotes. `terminator`: None for any
    line end, where empty lines are no records. `backslash_escapes`: a backslash begins an escape, else a quote within
    quotes is doubled and line ends in quotes are raw. `binary`: the notation of values of binary columns (BINARY,
    VARBINARY, BLOBs, BIT, geometry); `encoded`: that of single columns, by name. `own_charsets`: as in
    `InsertNotation`. `escapes`: the text of each escape, in the order in which they must be tried, where a backslash
    stands in no others. `begin`: the pattern that each record begins with, after a quote; empty where any text may be a
    record."""

    columns: tuple[str, ...]
    separator: bytes = b","
    quote: bytes = b'"'
    null: bytes = rb"\N"
    terminator: bytes | None = b"\r\n"
    backslash_escapes: bool = True
    header: bool = False
    binary: BinaryNotation = "raw"
    encoded: Mapping[str, BinaryNotation] = field(default_factory=dict[str, BinaryNotation])
    own_charsets: bool = False
    escapes: Mapping[bytes, bytes] = field(default_factory=dict[bytes, bytes])
    begin: bytes = b""

    @property
    def has_escapes(self) -> bool:
        return self.backslash_escapes or bool(self.escapes)


Notation = InsertNotation | TextNotation


@dataclass(frozen=True, slots=True)
class DumpPosition:
    """The position in the change log that the dump's rows correspond to. For TiDB it is `tso`. For MySQL it is
    `log_file` (the binlog's name) with `log_offset` (in bytes), `gtid` (the set of executed ones, without blanks; for
    MariaDB the last of each domain), or both. `server_id` is the server's, where it is known and the server is no
    replica: then all later events have it."""

    tso: int | None = None
    log_file: str | None = None
    log_offset: int | None = None
    gtid: str | None = None
    server_id: int | None = None

    def __str__(self) -> str:
        if self.tso is not None:
            return f"TSO {self.tso}"
        known = [str(part) for part in (self.log_file, self.log_offset) if part is not None]
        # A set of GTIDs may have kilobytes.
        return ", ".join(known or [f"GTID {self.gtid}"])


@dataclass(frozen=True, slots=True)
class DumpFile:
    """A file of rows. Its path is relative to the dump's root."""

    stored: StoredObject
    compression: Compression | None
    notation: Notation


@dataclass(frozen=True)
class DumpedTable:
    """A table. `create_statement` is the CREATE TABLE statement of the file at `schema_path`, without a semicolon, and
    `definition` the parsed one. `files` are in the order of their numbers; `rows` is the number of rows that the dump
    itself gives, None without one. `position` is that of its rows, None for the whole dump's."""

    name: TableName
    schema_path: str
    create_statement: str
    definition: CreateTable
    files: tuple[DumpFile, ...]
    rows: int | None
    position: DumpPosition | None = None

    @property
    def row_columns(self) -> tuple[str, ...]:
        """The names of the columns that rows have: tools do not dump generated ones."""
        return tuple(column.name for column in self.definition.columns if not column.generated)

    @functools.cached_property
    def columns(self) -> tuple[SourceColumn, ...]:
        return apply.altered(None, self.definition.clauses).columns


@dataclass(frozen=True, slots=True)
class UnreadTable:
    """A table whose columns are not known: `reason` says what is wrong with the file at `schema_path`."""

    name: TableName
    schema_path: str
    reason: str


@dataclass(frozen=True, slots=True)
class Dump:
    """A whole dump that is known to be finished.

    `tables` and `unread` are sorted by name; rows of the latter cannot be loaded.

    `until` is the position up to which rows were read, for a dump that is not of one position: they may include changes
    of the log from `position` up to there, and are consistent with all of these changes applied."""

    position: DumpPosition
    tables: tuple[DumpedTable, ...]
    unread: tuple[UnreadTable, ...]
    until: DumpPosition | None = None


def dump_of(
    position: DumpPosition, found: Iterable[DumpedTable | UnreadTable], until: DumpPosition | None = None
) -> Dump:
    """Return the dump with these tables. Raises `SourceError` when one occurs twice."""
    tables = sorted(found, key=lambda each: (each.name.database, each.name.table))
    for one, other in itertools.pairwise(tables):
        if one.name == other.name:
            said = f"the dump has the table {one.name.quoted} twice: {one.schema_path} and {other.schema_path}"
            raise SourceError(said, advice=ONE_DUMP)
    read = tuple(each for each in tables if isinstance(each, DumpedTable))
    return Dump(position, read, tuple(each for each in tables if isinstance(each, UnreadTable)), until)


def list_objects(
    store: ObjectStore, prefix: str = "", what: str = "a part of the dump", advice: str | None = None
) -> list[StoredObject]:
    """Return everything in the dump, sorted by path. Raises as `ObjectStore.list` does, and `SourceError` with the
    advice when a part of it cannot be listed."""
    objects: list[StoredObject] = []
    for found in store.list(prefix):
        if isinstance(found, UnreadableDirectory):
            raise DumpError(f"{what} cannot be listed: {found.reason}", segment=found.path, advice=advice)
        objects.append(found)
    return sorted(objects, key=lambda found: found.path)


def refuse_unknown(paths: Iterable[str], tool: str) -> None:
    for path in paths:
        said = f"the directory holds a file that {tool} does not write, or not with this name"
        advice = "dump with the default names of files into an empty directory, and keep other files elsewhere"
        raise SourceError(said, segment=path, advice=advice)
