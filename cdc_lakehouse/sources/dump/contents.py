"""The content of a dump, whichever tool made it: frozen values."""

from __future__ import annotations

import datetime
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from cdc_lakehouse.changelog.ddl.clauses import CreateTable
from cdc_lakehouse.changelog.schema import TableName
from cdc_lakehouse.errors import SourceError
from cdc_lakehouse.sources.dump.notation import Notation

Compression = Literal["gzip", "snappy", "zstd"]


@dataclass(frozen=True, slots=True)
class DumpPosition:
    """The position in the change log that the dump's rows correspond to.

    For TiDB it is `tso`. For MySQL it is `log_file` (the binlog's name) with `log_offset` (in bytes), `gtid` (the set
    of executed ones, without blanks; for MariaDB the last of each domain), or both. `server_id` is the server's, where
    it is known and the server is no replica: then all later events have it.
    """

    tso: int | None = None
    log_file: str | None = None
    log_offset: int | None = None
    gtid: str | None = None
    server_id: int | None = None

    def __str__(self) -> str:
        if self.tso is not None:
            return f"TSO {self.tso}"
        known = [str(part) for part in (self.log_file, self.log_offset) if part is not None]
        return ", ".join(known or [f"GTID {self.gtid}"])


@dataclass(frozen=True, slots=True)
class DumpFile:
    """A file of rows. `path` is relative to the dump's root; `size` is the stored size in bytes."""

    path: str
    size: int
    etag: str
    modified: datetime.datetime
    compression: Compression | None
    notation: Notation


@dataclass(frozen=True, slots=True)
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


@dataclass(frozen=True, slots=True)
class UnreadTable:
    """A table whose columns are not known: `reason` says what is wrong with the file at `schema_path`."""

    name: TableName
    schema_path: str
    reason: str


@dataclass(frozen=True, slots=True)
class Dump:
    """A whole dump that is known to be finished.

    `tables` and `unread` are sorted by name; rows of the latter cannot be loaded. `left_out` lists what it holds
    besides tables (views, triggers, users), and the tables of which rows are missing. `started` is the time as the tool
    wrote it, in the time zone of the machine that it ran on.

    `until` is the position up to which rows were read, for a dump that is not of one position: they may include changes
    of the log from `position` up to there, and are consistent with all of these changes applied.
    """

    position: DumpPosition
    tables: tuple[DumpedTable, ...]
    unread: tuple[UnreadTable, ...]
    left_out: tuple[str, ...]
    started: str | None
    until: DumpPosition | None = None


def sorted_tables(
    tables: Iterable[DumpedTable | UnreadTable],
) -> tuple[tuple[DumpedTable, ...], tuple[UnreadTable, ...]]:
    """Sort tables by name, and those that are unread. Raises `SourceError` when one occurs twice."""
    by_name: dict[TableName, DumpedTable | UnreadTable] = {}
    for table in tables:
        other = by_name.setdefault(table.name, table)
        if other is not table:
            raise SourceError(
                f"the dump has the table {table.name.quoted} twice: {other.schema_path} and {table.schema_path}",
                advice="dump again into an empty directory: it may hold files of two dumps",
            )
    found = [by_name[name] for name in sorted(by_name, key=lambda name: (name.database, name.table))]
    return (
        tuple(each for each in found if isinstance(each, DumpedTable)),
        tuple(each for each in found if isinstance(each, UnreadTable)),
    )
