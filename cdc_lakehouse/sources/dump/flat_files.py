"""Directories of Dumpling and mydumper: all files are in one directory, and their names give their kind.

    {database}-schema-create.sql                                      CREATE DATABASE
    {database}.{table}-schema.sql                                     CREATE TABLE; of a view: a table in its place
    {database}.{table}-schema-{view|sequence|triggers|post}.sql
    {database}-schema-{post|triggers}.sql
    {database}.{table}[.{number}[.{number}]].{sql|csv|dat|parquet}    rows

each with the suffix of its compression. Neither tool writes a dot in the name of a database or a table (see `dumpling`
and `mydumper` for the replacement)."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final, Literal, cast

from cdc_lakehouse.changelog.schema import TableName, quoted
from cdc_lakehouse.errors import SourceError
from cdc_lakehouse.sources.dump.contents import DumpFile
from cdc_lakehouse.sources.dump.notation import Notation
from cdc_lakehouse.sources.dump.reading import without_suffix
from cdc_lakehouse.sources.object_store import StoredObject

RowFormat = Literal["sql", "csv", "dat", "parquet"]

_OF_DATABASE: Final = re.compile(r"(?P<database>[^./]+)-schema-(?P<kind>create|post|triggers)\.sql")
_OF_TABLE: Final = re.compile(
    r"(?P<database>[^./]+)\.(?P<table>[^./]+?)-schema(?:-(?P<kind>view|sequence|triggers|post))?\.sql"
)
_ROWS: Final = re.compile(
    r"(?P<database>[^./]+)\.(?P<table>[^./]+)(?P<numbers>(?:\.[0-9]{1,20}){0,2})\.(?P<format>sql|csv|dat|parquet)"
)


@dataclass(frozen=True, slots=True)
class RowFile:
    """A file of rows. `numbers` are those of its name, as digits."""

    object: StoredObject
    numbers: tuple[str, ...]
    format: RowFormat

    @property
    def order(self) -> tuple[int, ...]:
        return tuple(int(number) for number in self.numbers)

    def with_notation(self, notation: Notation) -> DumpFile:
        """Return the file as part of a dump."""
        found = self.object
        compression = without_suffix(found.path)[1]
        return DumpFile(found.path, found.size, found.etag, found.modified, compression, notation)


@dataclass
class TableFiles:
    """All files of a table or similar object, by the names that its files use for it."""

    database: str
    table: str
    schemas: list[StoredObject] = field(default_factory=list[StoredObject])
    rows: list[RowFile] = field(default_factory=list[RowFile])
    others: dict[str, StoredObject] = field(default_factory=dict[str, StoredObject])
    """Objects besides the table, or in its place, by kind."""

    @property
    def shown(self) -> str:
        return f"{quoted(self.database)}.{quoted(self.table)}"

    @property
    def stand_in(self) -> str | None:
        """The kind of object that the schema file represents: a view or a sequence, which have no rows; None for a
        table."""
        return None if self.rows else next((kind for kind in ("view", "sequence") if kind in self.others), None)

    @property
    def is_table(self) -> bool:
        """Whether it is a table of which the dump has more than its triggers."""
        return self.stand_in is None and bool(self.schemas or self.rows)

    def only_schema(self) -> StoredObject:
        """Return the only schema file. Raises `SourceError` when there is none, or several."""
        if not self.schemas:
            raise SourceError(
                f"the dump has rows of {self.shown} and no file with its CREATE TABLE",
                segment=self.rows[0].object.path if self.rows else None,
                advice="dump again with the schemas of tables",
            )
        if len(self.schemas) > 1:
            paths = " and ".join(each.path for each in self.schemas[:2])
            raise SourceError(f"the dump has the table {self.shown} twice: {paths}", advice=_ONE_DUMP)
        return self.schemas[0]

    def ordered(self, rows: Iterable[RowFile]) -> list[RowFile]:
        """Sort the table's files of rows by their numbers. Raises `SourceError` when two have the same, or are of two
        formats: then two dumps are in one directory."""
        found = sorted(rows, key=lambda file: (file.order, file.object.path))
        for one, other in itertools.pairwise(found):
            if one.order == other.order or one.format != other.format:
                raise SourceError(
                    f"the dump has rows of {self.shown} in files that do not belong together: {one.object.path} and "
                    f"{other.object.path}",
                    advice=_ONE_DUMP,
                )
        return found


_ONE_DUMP: Final = "dump again into an empty directory: it may hold files of two dumps"


@dataclass
class FlatFiles:
    """All files of a directory. `databases` are the CREATE DATABASE files by the names of databases in paths."""

    tables: dict[tuple[str, str], TableFiles] = field(default_factory=dict[tuple[str, str], TableFiles])
    databases: dict[str, StoredObject] = field(default_factory=dict[str, StoredObject])
    beside_tables: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])
    """Other objects of databases: kind, and the database in paths."""
    unknown: list[str] = field(default_factory=list[str])
    """Paths that match no rule."""


def classify(objects: Iterable[StoredObject]) -> FlatFiles:
    """Classify the files by their names."""
    files = FlatFiles()
    for found in objects:
        name, _ = without_suffix(found.path)
        if match := _OF_TABLE.fullmatch(name):
            table = _table(files, match)
            if match["kind"] is None:
                table.schemas.append(found)
            else:
                table.others[match["kind"]] = found
        elif match := _ROWS.fullmatch(name):
            numbers = tuple(match["numbers"].split(".")[1:])
            _table(files, match).rows.append(RowFile(found, numbers, cast("RowFormat", match["format"])))
        elif match := _OF_DATABASE.fullmatch(name):
            if match["kind"] == "create":
                files.databases[match["database"]] = found
            else:
                files.beside_tables.append((match["kind"], match["database"]))
        else:
            files.unknown.append(found.path)
    return files


def left_out(files: FlatFiles, decode: Callable[[str], str]) -> list[str]:
    """Return descriptions of everything that is not a table, sorted. `decode` returns the name for one in a path."""
    sentences = [
        f"{_WORDS[kind]} {TableName(decode(table.database), decode(table.table)).quoted}"
        for table in files.tables.values()
        for kind in table.others
    ]
    sentences += (f"{_WORDS[kind]} the database {quoted(decode(database))}" for kind, database in files.beside_tables)
    return sorted(sentences)


_WORDS: Final = {
    "view": "the view", "sequence": "the sequence", "triggers": "triggers of", "post": "routines and events of",
}  # fmt: skip


def _table(files: FlatFiles, match: re.Match[str]) -> TableFiles:
    key = (match["database"], match["table"])
    return files.tables.setdefault(key, TableFiles(*key))
