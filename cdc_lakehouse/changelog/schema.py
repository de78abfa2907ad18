"""What a table looks like at a version, and what changes it: frozen values, no behaviour beyond look-ups."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from cdc_lakehouse.changelog.ddl.definitions import Partitioning
from cdc_lakehouse.changelog.mysql_types import ColumnType

Effect = Literal["none", "evolve", "rewrite", "empty", "swap", "move", "create", "drop", "hold"]
"""What a DDL does to the Iceberg table (DESIGN §7); `hold` is one that cannot be carried out."""


@dataclass(frozen=True, slots=True)
class SourceColumn:
    """A column as the source describes it.

    `default` is the source's text of the default; `source_id` the source's own identity of the column, where it says
    one. `virtual` says that it is a generated column which rows never have, and who knows it, for the source does not
    say: the configuration, or somebody who has seen the rows."""

    name: str
    type: ColumnType
    nullable: bool = True
    primary_key: bool = False
    default: str | None = None
    source_id: int | None = None
    virtual: Literal["configured", "seen"] | None = None


@dataclass(frozen=True, slots=True)
class SchemaChange:
    """One DDL, or one sight of a table's columns, as the source tells it.

    `table` is empty for a statement on a database. `action` is TiDB's ActionType, 0 where the source only shows the
    columns. `columns` are those after the change. `origin` says where it was read. `backslash_escapes` says
    whether strings of the query have them: TiCDC prints backslashes as they are.
    """

    commit_ts: int
    database: str
    table: str
    action: int
    query: str
    columns: tuple[SourceColumn, ...]
    origin: str
    backslash_escapes: bool = False
    fault: str | None = None
    """Why nothing can be made of it."""


@dataclass(frozen=True, slots=True)
class InitialDefault:
    """What rows that are older than a column hold in it: `text` in the notation of row values, None for NULL."""

    text: str | None = None


@dataclass(frozen=True, slots=True)
class Column:
    """A column with an identity: `id` stays the same through renames and type changes, within one incarnation.

    `carried` is False for a column that row events never have (a virtual generated column).
    """

    id: int
    name: str
    type: ColumnType
    nullable: bool = True
    initial: InitialDefault = InitialDefault()
    source_id: int | None = None
    carried: bool = True


@dataclass(frozen=True, slots=True)
class UniqueKey:
    name: str
    columns: tuple[int, ...]
    """Ids of the columns."""


@dataclass(frozen=True, slots=True)
class TableName:
    database: str
    table: str

    def __str__(self) -> str:
        return f"{self.database}.{self.table}"

    @property
    def identity(self) -> str:
        """As `str`, but not the same for two names that differ in where the dot is."""
        return f"{self.database.replace('%', '%25').replace('.', '%2E')}.{self.table}"


@dataclass(frozen=True, slots=True)
class Swap:
    """An EXCHANGE PARTITION: rows of `partition` of a table and all rows of a plain one change places. Both tables get
    a version with it."""

    partitioned: str
    """Its incarnation."""
    partition: str
    plain: str
    """Its incarnation."""


@dataclass(frozen=True, slots=True)
class TableVersion:
    """One row of a table's history: the table as it is after a change, and what the change was.

    `incarnation` names the table from its CREATE to its DROP through all renames; it is empty for a change that is
    not of a table (a database, a view). `key` holds the ids of the columns that identify a row, empty where the
    source declares none. `emptied` names the partitions that the change emptied, `swap` the rows that changed places.
    `since` is the commit-ts above which the version is in force: its own, or less for the first sight of a table that
    is older than the feed. `note` is a warning for people, `hold` the reason why the table cannot go on."""

    commit_ts: int
    name: TableName
    incarnation: str
    kind: str
    effect: Effect
    query: str
    origin: str
    columns: tuple[Column, ...] = ()
    key: tuple[int, ...] = ()
    unique_keys: tuple[UniqueKey, ...] = ()
    next_id: int = 1
    partitioning: Partitioning | None = None
    emptied: tuple[str, ...] = ()
    swap: Swap | None = None
    previous_name: TableName | None = None
    since: int = 0
    note: str | None = None
    hold: str | None = None

    @property
    def carried(self) -> tuple[Column, ...]:
        """The columns that rows have."""
        return tuple(column for column in self.columns if column.carried)

    def column(self, column_id: int) -> Column | None:
        return next((column for column in self.columns if column.id == column_id), None)

    def named(self, name: str) -> Column | None:
        """The column of that name; MySQL compares column names without case."""
        folded = name.lower()
        return next((column for column in self.columns if column.name.lower() == folded), None)

    @property
    def key_names(self) -> tuple[str, ...]:
        return tuple(column.name for id in self.key if (column := self.column(id)))

    def holding(self, reason: str) -> TableVersion:
        return replace(self, effect="hold", hold=reason)
