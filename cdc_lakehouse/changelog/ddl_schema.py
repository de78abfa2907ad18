"""A server's schema as DDL leaves it: databases, tables, columns with identities, keys. Frozen values.

    >>> Schema().with_database(Database("d")).database("d").charset
    'utf8mb4'

What is kept is what later statements depend on, or what `information_schema.columns` shows. Names of columns and keys
are compared without case, those of databases and tables with it, as a server on Linux does.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final, Literal

from cdc_lakehouse.changelog.charsets import SERVER_DEFAULT
from cdc_lakehouse.changelog.ddl.definitions import Generated, TableName
from cdc_lakehouse.changelog.mysql_types import BLOBS, GEOMETRIES, TEXTS, ColumnType
from cdc_lakehouse.errors import DdlError

KeyKind = Literal["primary", "unique", "index", "fulltext", "spatial"]

PRIMARY: Final = "PRIMARY"


@dataclass(frozen=True, slots=True)
class Generation:
    """How a generated column is made. `reads` are the columns that its expression names, in lower case."""

    kind: Generated
    expression: str
    reads: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class TableColumn:
    """A column; `id` stays the same through renames, moves and type changes, and is never given to another one.

    `type` is as the server keeps it: with the widths and sizes that the statement left out, and the character set
    that the column inherits. `default` is what `information_schema.columns.column_default` prints.
    """

    id: int
    name: str
    type: ColumnType
    nullable: bool = True
    default: str | None = None
    auto_increment: bool = False
    generation: Generation | None = None

    @property
    def virtual(self) -> bool:
        return self.generation is not None and self.generation.kind == "virtual"


@dataclass(frozen=True, slots=True)
class TableKeyPart:
    """A column, by its id, or the first `length` characters or bytes of it; None for an expression."""

    column: int | None
    length: int | None = None


@dataclass(frozen=True, slots=True)
class TableKey:
    name: str
    kind: KeyKind
    parts: tuple[TableKeyPart, ...]

    @property
    def columns(self) -> tuple[int, ...]:
        return tuple(part.column for part in self.parts if part.column is not None)


@dataclass(frozen=True, slots=True)
class TableSchema:
    """A table: its columns and keys in the server's order, its default character set, the next column's id."""

    columns: tuple[TableColumn, ...]
    keys: tuple[TableKey, ...] = ()
    charset: str = SERVER_DEFAULT
    next_id: int = 1

    def named(self, name: str) -> TableColumn | None:
        folded = name.lower()
        return next((column for column in self.columns if column.name.lower() == folded), None)

    def key(self, name: str) -> TableKey | None:
        folded = name.lower()
        return next((key for key in self.keys if key.name.lower() == folded), None)

    @property
    def primary_key(self) -> tuple[int, ...]:
        """Ids of the columns that `information_schema` shows as PRI: of the primary key, else of the first unique key
        that can stand for one."""
        if not self.keys:
            return ()
        first, by_id = self.keys[0], {column.id: column for column in self.columns}
        if first.kind == "primary" or (first.kind == "unique" and stands_for_primary(first, by_id)):
            return first.columns
        return ()


def stands_for_primary(key: TableKey, columns: Mapping[int, TableColumn]) -> bool:
    """Of a unique key: it has no NULL, no expression, whole columns only, none of them virtual."""
    return all(
        part.column is not None
        and not columns[part.column].nullable
        and not columns[part.column].virtual
        and not is_partial(part, columns[part.column].type)
        for part in key.parts
    )


def is_partial(part: TableKeyPart, kind: ColumnType) -> bool:
    """The part holds only the beginning of the values."""
    if part.length is None:
        return False
    return kind.name not in TEXTS | BLOBS or kind.length is None or part.length < kind.length


def is_large(kind: ColumnType) -> bool:
    """A type whose values lie outside of the row: no default, and keys over beginnings only."""
    return kind.name == "json" or is_spatial(kind) or kind.name.endswith(("text", "blob"))


def is_spatial(kind: ColumnType) -> bool:
    return kind.name in GEOMETRIES


@dataclass(frozen=True, slots=True)
class Database:
    name: str
    charset: str = SERVER_DEFAULT
    tables: Mapping[str, TableSchema] = field(default_factory=dict[str, TableSchema])
    views: frozenset[str] = frozenset()

    def holds(self, name: str) -> bool:
        return name in self.tables or name in self.views


@dataclass(frozen=True, slots=True)
class Schema:
    """All databases, and what a session adds: the database of names without one, and its temporary tables, of which
    only the names are kept.

    Where databases are `assumed`, one that is named and was not dropped is taken to be there: a change log seldom says
    how they came to be."""

    databases: Mapping[str, Database] = field(default_factory=dict[str, Database])
    session: str | None = None
    temporary: frozenset[TableName] = frozenset()
    assumed: bool = False
    dropped: frozenset[str] = frozenset()

    def qualified(self, name: TableName) -> TableName:
        if name.database is not None:
            return name
        if self.session is None:
            raise DdlError(f"no database is selected for table {name.name}")
        return TableName(self.session, name.name)

    def database(self, name: str | None) -> Database:
        if name is None:
            raise DdlError("no database is selected")
        if name in self.databases:
            return self.databases[name]
        if self.assumed and name not in self.dropped:
            return Database(name)
        raise DdlError(f"database {name} does not exist")

    def table(self, name: TableName) -> TableSchema:
        own = self.qualified(name)
        database = self.database(own.database)
        if own.name not in database.tables:
            reason = "is a view" if own.name in database.views else "does not exist"
            raise DdlError(f"table {own} {reason}")
        return database.tables[own.name]

    def holds(self, name: TableName) -> bool:
        """There is a table or a view of that name."""
        own = self.qualified(name)
        database = self.databases.get(own.database or "")
        return database is not None and database.holds(own.name)

    def with_database(self, database: Database) -> Schema:
        return replace(self, databases={**self.databases, database.name: database})

    def without_database(self, name: str) -> Schema:
        rest = {each: database for each, database in self.databases.items() if each != name}
        session = None if self.session == name else self.session
        return replace(self, databases=rest, session=session, dropped=self.dropped | {name})

    def with_table(self, name: TableName, table: TableSchema) -> Schema:
        own = self.qualified(name)
        database = self.database(own.database)
        return self.with_database(replace(database, tables={**database.tables, own.name: table}))

    def without_tables(self, names: Iterable[TableName]) -> Schema:
        schema = self
        for name in names:
            own = schema.qualified(name)
            database = schema.database(own.database)
            rest = {each: table for each, table in database.tables.items() if each != own.name}
            schema = schema.with_database(replace(database, tables=rest))
        return schema

    def with_views(self, database: Database, views: frozenset[str]) -> Schema:
        return self.with_database(replace(database, views=views))
