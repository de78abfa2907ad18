"""The clauses that change one table's columns, keys or existence. `ddl` has the rest and the union of all."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from cdc_lakehouse.changelog.ddl.definitions import (
    ColumnDefinition,
    IndexKey,
    Key,
    Partitioning,
    Position,
    PrimaryKey,
    TableName,
    UniqueKey,
    Value,
)

# --- Columns ---


@dataclass(frozen=True, slots=True)
class AddColumn:
    kind: ClassVar[str] = "add_column"
    table: TableName
    column: ColumnDefinition
    position: Position | None = None
    if_not_exists: bool = False


@dataclass(frozen=True, slots=True)
class DropColumn:
    kind: ClassVar[str] = "drop_column"
    table: TableName
    name: str
    if_exists: bool = False


@dataclass(frozen=True, slots=True)
class RenameColumn:
    kind: ClassVar[str] = "rename_column"
    table: TableName
    name: str
    new_name: str
    if_exists: bool = False


@dataclass(frozen=True, slots=True)
class ChangeColumn:
    """CHANGE `name`: the definition holds the new name. Without a `position` the column stays in place."""

    kind: ClassVar[str] = "change_column"
    table: TableName
    name: str
    column: ColumnDefinition
    position: Position | None = None
    if_exists: bool = False


@dataclass(frozen=True, slots=True)
class ModifyColumn:
    """MODIFY. Without a `position` the column stays in place."""

    kind: ClassVar[str] = "modify_column"
    table: TableName
    column: ColumnDefinition
    position: Position | None = None
    if_exists: bool = False


@dataclass(frozen=True, slots=True)
class SetColumnDefault:
    kind: ClassVar[str] = "alter_default"
    table: TableName
    name: str
    default: Value


@dataclass(frozen=True, slots=True)
class DropColumnDefault:
    kind: ClassVar[str] = "alter_default"
    table: TableName
    name: str


@dataclass(frozen=True, slots=True)
class SetColumnVisibility:
    kind: ClassVar[str] = "alter_default"
    table: TableName
    name: str
    visible: bool


# --- Tables ---


@dataclass(frozen=True, slots=True)
class CreateTable:
    """CREATE TABLE with its columns.

    `primary_key` and `unique_keys` include those that are said at a column. `charset` and `collation` are the
    table's own, in lower case; columns without one inherit it. `keys` are all keys and indexes in the order of
    the text, from which those without a name get theirs.
    """

    kind: ClassVar[str] = "create_table"
    table: TableName
    columns: tuple[ColumnDefinition, ...]
    primary_key: PrimaryKey | None = None
    unique_keys: tuple[UniqueKey, ...] = ()
    partitioning: Partitioning | None = None
    if_not_exists: bool = False
    temporary: bool = False
    charset: str | None = None
    comment: str | None = None
    collation: str | None = None
    keys: tuple[Key, ...] = ()


@dataclass(frozen=True, slots=True)
class CreateTableLike:
    kind: ClassVar[str] = "create_table_like"
    table: TableName
    source: TableName
    if_not_exists: bool = False
    temporary: bool = False


@dataclass(frozen=True, slots=True)
class CreateTableAsSelect:
    """CREATE TABLE from a query: `definition` holds what is said; the query may add columns.

    `selected` are the names of the query's columns, None where its text does not say them (`SELECT *`).
    """

    kind: ClassVar[str] = "create_table_as_select"
    definition: CreateTable
    selected: tuple[str, ...] | None = None

    @property
    def table(self) -> TableName:
        return self.definition.table

    @property
    def temporary(self) -> bool:
        return self.definition.temporary


@dataclass(frozen=True, slots=True)
class DropTable:
    kind: ClassVar[str] = "drop_table"
    table: TableName
    if_exists: bool = False
    temporary: bool = False


@dataclass(frozen=True, slots=True)
class TruncateTable:
    kind: ClassVar[str] = "truncate_table"
    table: TableName


@dataclass(frozen=True, slots=True)
class RenameTable:
    """One pair of RENAME TABLE, whose pairs count from left to right, or ALTER TABLE ... RENAME (`altering`)."""

    kind: ClassVar[str] = "rename_table"
    table: TableName
    new_name: TableName
    if_exists: bool = False
    altering: bool = False


@dataclass(frozen=True, slots=True)
class RecoverTable:
    """RECOVER or FLASHBACK TABLE (TiDB): a dropped table is back; `table` is None where a job is named."""

    kind: ClassVar[str] = "flashback_recover"
    table: TableName | None
    new_name: str | None = None


@dataclass(frozen=True, slots=True)
class Flashback:
    """FLASHBACK to a time, or of a database (TiDB): all rows of the scope change at once."""

    kind: ClassVar[str] = "flashback_recover"
    scope: Literal["cluster", "database", "table"]
    database: str | None = None
    tables: tuple[TableName, ...] = ()


# --- Keys, indexes, constraints ---


@dataclass(frozen=True, slots=True)
class AddPrimaryKey:
    kind: ClassVar[str] = "add_primary_key"
    table: TableName
    key: PrimaryKey


@dataclass(frozen=True, slots=True)
class DropPrimaryKey:
    kind: ClassVar[str] = "drop_primary_key"
    table: TableName


@dataclass(frozen=True, slots=True)
class AddUniqueKey:
    kind: ClassVar[str] = "add_index"
    table: TableName
    key: UniqueKey


@dataclass(frozen=True, slots=True)
class AddIndex:
    kind: ClassVar[str] = "add_index"
    table: TableName
    key: IndexKey

    @property
    def name(self) -> str | None:
        return self.key.name


@dataclass(frozen=True, slots=True)
class DropIndex:
    """DROP INDEX, of a unique key too. MySQL and TiDB take the name PRIMARY for the primary key."""

    kind: ClassVar[str] = "drop_index"
    table: TableName
    name: str
    if_exists: bool = False

    @property
    def drops_primary_key(self) -> bool:
        return self.name.lower() == "primary"


@dataclass(frozen=True, slots=True)
class RenameIndex:
    kind: ClassVar[str] = "rename_index"
    table: TableName
    name: str
    new_name: str


@dataclass(frozen=True, slots=True)
class AlterIndex:
    """VISIBLE or INVISIBLE (MariaDB: IGNORED)."""

    kind: ClassVar[str] = "alter_index"
    table: TableName
    name: str


@dataclass(frozen=True, slots=True)
class ForeignKeyChange:
    """ADD or DROP FOREIGN KEY; `name` is None where the server makes one up."""

    kind: ClassVar[str] = "foreign_key"
    table: TableName
    action: Literal["add", "drop"]
    name: str | None


@dataclass(frozen=True, slots=True)
class ConstraintChange:
    """ADD, DROP or ALTER of a CHECK or a CONSTRAINT.

    MySQL 8.0.19 and later let DROP CONSTRAINT name a foreign key, a unique key or, as PRIMARY, the primary
    key too.
    """

    kind: ClassVar[str] = "check_constraint"
    table: TableName
    action: Literal["add", "drop", "alter"]
    name: str | None

    @property
    def drops_primary_key(self) -> bool:
        return self.action == "drop" and self.name is not None and self.name.lower() == "primary"
