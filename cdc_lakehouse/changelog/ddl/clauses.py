"""The clauses of DDL statements: a closed union of frozen values, with those that they contain.

    >>> from cdc_lakehouse.changelog.ddl.statements import parse
    >>> [clause.kind for clause in parse("ALTER TABLE t DROP a, ADD INDEX (b)")]
    ['drop_column', 'add_index']

Consume a `Clause` with `match` and `assert_never`: the type checker then shows every place that a new class affects.
`kind` groups clauses for display; several classes can share one. One class, `NoEffect`, covers everything that changes
no row and no column of any table.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Literal, TypeVar, dataclass_transform

from cdc_lakehouse.changelog.mysql_types import ColumnType


@dataclass(frozen=True, slots=True)
class TableRef:
    """A table as the statement names it. `database` is None where the name has no database."""

    database: str | None
    name: str

    def __str__(self) -> str:
        return self.name if self.database is None else f"{self.database}.{self.name}"


# --- Values that stand in a statement ---


@dataclass(frozen=True, slots=True)
class TextLiteral:
    """A string. `charset` is its introducer (`_utf8mb4'x'`) in lower case."""

    value: str
    charset: str | None = None


@dataclass(frozen=True, slots=True)
class NumberLiteral:
    """A number as it is written, with its minus sign. TRUE and FALSE are 1 and 0, as in MySQL."""

    text: str


@dataclass(frozen=True, slots=True)
class BytesLiteral:
    """A hexadecimal or bit literal as bytes, most significant first, padded with zero bits on the left."""

    value: bytes
    charset: str | None = None


@dataclass(frozen=True, slots=True)
class NullLiteral:
    """An explicit NULL."""


@dataclass(frozen=True, slots=True)
class Expression:
    """Any other value, as its text: `CURRENT_TIMESTAMP(3)`, or `uuid()` of `(uuid())`."""

    text: str


@dataclass(frozen=True, slots=True)
class MaxValue:
    """MAXVALUE in a partition's bound."""


@dataclass(frozen=True, slots=True)
class DefaultValue:
    """DEFAULT in a list partition's bound (TiDB): every value that no other partition has."""


Value = TextLiteral | NumberLiteral | BytesLiteral | NullLiteral | Expression
BoundValue = Value | MaxValue | DefaultValue


@dataclass(frozen=True, slots=True)
class ForeignKey:
    """A foreign key. `actions` is the text of those that change rows of this table when the other one's change:
    `ON DELETE CASCADE`, `ON UPDATE SET NULL`; None where none does. `name` is None where the statement has none."""

    name: str | None = None
    actions: str | None = None


# --- Columns ---

Generated = Literal["virtual", "stored"]


@dataclass(frozen=True, slots=True)
class ColumnDefinition:
    """A column's declaration.

    `nullable` is None where neither NULL nor NOT NULL is given; a primary key or SERIAL still means NOT NULL (for
    SERIAL it is set here). `default` is None without a DEFAULT clause. `expression` is the text of a generated column.
    `collation` is in lower case.
    """

    name: str
    type: ColumnType
    nullable: bool | None = None
    default: Value | None = None
    primary_key: bool = False
    unique: bool = False
    auto_increment: bool = False
    generated: Generated | None = None
    expression: str | None = None
    comment: str | None = None
    collation: str | None = None
    references: ForeignKey | None = None
    versioned: bool = False

    @property
    def stored_as(self) -> str | None:
        """The expression of a stored generated column; None for any other column."""
        return self.expression if self.generated == "stored" else None


@dataclass(frozen=True, slots=True)
class First:
    """FIRST: before all other columns."""


@dataclass(frozen=True, slots=True)
class After:
    """AFTER a column."""

    column: str


Position = First | After


# --- Keys ---


@dataclass(frozen=True, slots=True)
class KeyPart:
    """A column, or the first `length` characters or bytes of it; `column` is None for an expression."""

    column: str | None
    length: int | None = None
    expression: str | None = None


@dataclass(frozen=True, slots=True)
class PrimaryKey:
    parts: tuple[KeyPart, ...]

    @property
    def columns(self) -> tuple[str, ...]:
        return tuple(part.column for part in self.parts if part.column is not None)


@dataclass(frozen=True, slots=True)
class UniqueKey:
    """A unique key. With `has_expression`, `columns` are only the parts that are columns."""

    name: str | None
    parts: tuple[KeyPart, ...]

    @property
    def columns(self) -> tuple[str, ...]:
        return tuple(part.column for part in self.parts if part.column is not None)

    @property
    def has_expression(self) -> bool:
        return any(part.column is None for part in self.parts)


Key = PrimaryKey | UniqueKey


# --- Partitions ---

PartitionMethod = Literal["range", "range columns", "list", "list columns", "hash", "linear hash", "key", "linear key"]


@dataclass(frozen=True, slots=True)
class LessThan:
    """VALUES LESS THAN: one value for each partitioning column; `(MaxValue(),)` for MAXVALUE without parentheses."""

    values: tuple[BoundValue, ...]


@dataclass(frozen=True, slots=True)
class InValues:
    """VALUES IN: rows with one value for each partitioning column; TiDB's DEFAULT is the row `(DefaultValue(),)`."""

    rows: tuple[tuple[BoundValue, ...], ...]


@dataclass(frozen=True, slots=True)
class Partition:
    """One partition. `bound` is None for hash and key."""

    name: str
    bound: LessThan | InValues | None = None


@dataclass(frozen=True, slots=True)
class Partitioning:
    """PARTITION BY.

    `expression` is the text between the parentheses; `columns` are the names where that is a plain list of columns,
    else empty. `count` is the number in PARTITIONS. `interval` is the text of TiDB's INTERVAL partitioning, whose
    partitions the statement does not list.
    """

    method: PartitionMethod
    expression: str
    columns: tuple[str, ...] = ()
    count: int | None = None
    partitions: tuple[Partition, ...] = ()
    interval: str | None = None


# --- What clauses have in common ---


class _Clause:
    __slots__ = ()
    kind: ClassVar[str]


_C = TypeVar("_C", bound=_Clause)


@dataclass_transform(frozen_default=True)
def _clause(kind: str) -> Callable[[type[_C]], type[_C]]:
    """Make the class a frozen dataclass with slots, a clause of that kind."""

    def made(clause: type[_C]) -> type[_C]:
        clause.kind = kind
        return dataclass(frozen=True, slots=True)(clause)

    return made


@dataclass(frozen=True, slots=True)
class _OfTable(_Clause):
    table: TableRef


NoEffectKind = Literal[
    "add_index", "alter_database", "alter_default", "alter_index", "auto_increment", "check_constraint", "comment",
    "create_view", "drop_view", "other", "partition_maintenance", "placement_tiflash_ttl_etc",
    "sequence", "table_option",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class NoEffect:
    """A clause that changes no row and no column of a table. `text` is its text without comments.

    `table` is None where the statement does not concern a table: a view, a user, a placement policy.
    """

    table: TableRef | None
    kind: NoEffectKind
    text: str


@dataclass(frozen=True, slots=True)
class UnloggedRows:
    """A clause that changes a table's rows as neither the log nor the statement says. `reason` is a sentence.
    `versioned` says whether MariaDB keeps the table's history after the clause, None where it does not change that."""

    table: TableRef
    kind: str
    reason: str
    versioned: bool | None = None


# --- Columns ---


@_clause("add_column")
class AddColumn(_OfTable):
    column: ColumnDefinition
    position: Position | None = None
    if_not_exists: bool = False


@_clause("drop_column")
class DropColumn(_OfTable):
    name: str
    if_exists: bool = False


@_clause("rename_column")
class RenameColumn(_OfTable):
    name: str
    new_name: str
    if_exists: bool = False


@_clause("change_column")
class ChangeColumn(_OfTable):
    """CHANGE `name`: the definition holds the new name. Without a `position` the column stays in place."""

    name: str
    column: ColumnDefinition
    position: Position | None = None
    if_exists: bool = False


@_clause("modify_column")
class ModifyColumn(_OfTable):
    """MODIFY. Without a `position` the column stays in place."""

    column: ColumnDefinition
    position: Position | None = None
    if_exists: bool = False


@_clause("alter_default")
class SetColumnDefault(_OfTable):
    name: str
    default: Value


@_clause("alter_default")
class DropColumnDefault(_OfTable):
    name: str


# --- Keys ---


@_clause("add_primary_key")
class AddPrimaryKey(_OfTable):
    key: PrimaryKey


@_clause("drop_primary_key")
class DropPrimaryKey(_OfTable):
    pass


@_clause("add_index")
class AddUniqueKey(_OfTable):
    key: UniqueKey


@_clause("drop_index")
class DropIndex(_OfTable):
    """DROP INDEX, also of a unique key. MySQL and TiDB accept the name PRIMARY for the primary key."""

    name: str
    if_exists: bool = False

    @property
    def drops_primary_key(self) -> bool:
        return self.name.lower() == "primary"


@_clause("rename_index")
class RenameIndex(_OfTable):
    name: str
    new_name: str


@_clause("foreign_key")
class AddForeignKey(_OfTable):
    key: ForeignKey


@_clause("foreign_key")
class DropForeignKey(_OfTable):
    name: str


@_clause("check_constraint")
class DropConstraint(_OfTable):
    """DROP CONSTRAINT of a check, a foreign key, a unique key or, as PRIMARY, the primary key (MySQL 8.0.19)."""

    name: str

    @property
    def drops_primary_key(self) -> bool:
        return self.name.lower() == "primary"


# --- Partitions ---


@_clause("add_partition")
class AddPartitions(_OfTable):
    """ADD PARTITION with definitions or, for hash and key, of `count` more partitions."""

    partitions: tuple[Partition, ...] = ()
    count: int | None = None
    if_not_exists: bool = False


@_clause("drop_partition")
class DropPartitions(_OfTable):
    names: tuple[str, ...]
    if_exists: bool = False


@_clause("truncate_partition")
class TruncatePartitions(_OfTable):
    """TRUNCATE PARTITION; `names` is None for ALL."""

    names: tuple[str, ...] | None


@_clause("exchange_partition")
class ExchangePartition(_OfTable):
    """EXCHANGE PARTITION `partition` WITH TABLE `other`: exchanges their rows."""

    partition: str
    other: TableRef


@_clause("reorganize_partition")
class ReorganizePartitions(_OfTable):
    """REORGANIZE PARTITION. Without names (hash, key) it redistributes the rows of all partitions."""

    names: tuple[str, ...] = ()
    partitions: tuple[Partition, ...] = ()


@_clause("reorganize_partition")
class CoalescePartitions(_OfTable):
    """COALESCE PARTITION: removes `count` partitions."""

    count: int


@_clause("reorganize_partition")
class PartitionBy(_OfTable):
    partitioning: Partitioning


@_clause("reorganize_partition")
class RemovePartitioning(_OfTable):
    pass


# --- Character sets ---


@_clause("charset")
class SetTableCharset(_OfTable):
    """The character set of columns that are added later or, with `convert`, of all columns.

    CONVERT TO CHARACTER SET binary turns text types into binary types (MySQL reference manual, "ALTER TABLE").
    """

    charset: str | None = None
    collation: str | None = None
    convert: bool = False


# --- Whole tables ---


@_clause("create_table")
class CreateTable(_OfTable):
    """CREATE TABLE with its columns.

    Keys include those that are declared at a column: MySQL before 9.0 ignores such foreign keys. `charset` and
    `collation` are the table's own, in lower case; columns without one inherit it. `versioned` is MariaDB's WITH SYSTEM
    VERSIONING, of the table or of a column.
    """

    columns: tuple[ColumnDefinition, ...]
    primary_key: PrimaryKey | None = None
    unique_keys: tuple[UniqueKey, ...] = ()
    partitioning: Partitioning | None = None
    if_not_exists: bool = False
    temporary: bool = False
    charset: str | None = None
    comment: str | None = None
    collation: str | None = None
    foreign_keys: tuple[ForeignKey, ...] = ()
    versioned: bool = False


@_clause("create_table_like")
class CreateTableLike(_OfTable):
    source: TableRef
    if_not_exists: bool = False
    temporary: bool = False


@_clause("create_table_as_select")
class CreateTableAsSelect(_Clause):
    """CREATE TABLE from a query. `definition` holds what the statement declares; the query may add columns.

    `selected` are the names of the query's columns, None where its text does not give them (`SELECT *`).
    """

    definition: CreateTable
    selected: tuple[str, ...] | None = None

    @property
    def table(self) -> TableRef:
        return self.definition.table

    @property
    def temporary(self) -> bool:
        return self.definition.temporary


@_clause("drop_table")
class DropTable(_OfTable):
    if_exists: bool = False
    temporary: bool = False


@_clause("truncate_table")
class TruncateTable(_OfTable):
    pass


@_clause("rename_table")
class RenameTable(_OfTable):
    """One pair of RENAME TABLE, whose pairs apply from left to right, or ALTER TABLE ... RENAME."""

    new_name: TableRef
    if_exists: bool = False


@_clause("flashback_recover")
class RecoverTable(_Clause):
    """RECOVER or FLASHBACK TABLE (TiDB): restores a dropped table. `table` is None where a job is named."""

    table: TableRef | None
    new_name: str | None = None


@_clause("recover_database")
class RecoverDatabase(_Clause):
    """FLASHBACK DATABASE (TiDB): restores the tables of a dropped database."""

    name: str
    new_name: str | None = None


@_clause("flashback")
class Flashback(_Clause):
    """FLASHBACK to a time (TiDB): changes all rows of the scope at once."""

    scope: Literal["cluster", "database", "table"]
    database: str | None = None
    tables: tuple[TableRef, ...] = ()


# --- Databases ---


@_clause("create_database")
class CreateDatabase(_Clause):
    name: str
    if_not_exists: bool = False
    charset: str | None = None
    collation: str | None = None


@_clause("drop_database")
class DropDatabase(_Clause):
    name: str
    if_exists: bool = False


@_clause("use_database")
class UseDatabase(_Clause):
    """USE: sets the database of all later names without one."""

    name: str


# Clauses of ALTER TABLE, and of CREATE and DROP INDEX: they change a table that exists.
TableClause = (
    AddColumn | DropColumn | RenameColumn | ChangeColumn | ModifyColumn | SetColumnDefault | DropColumnDefault
    | AddPrimaryKey | DropPrimaryKey | AddUniqueKey | DropIndex | RenameIndex | DropConstraint
    | AddForeignKey | DropForeignKey | UnloggedRows
    | AddPartitions | DropPartitions | TruncatePartitions | ExchangePartition | ReorganizePartitions
    | CoalescePartitions | PartitionBy | RemovePartitioning | SetTableCharset | NoEffect
)  # fmt: skip
StatementClause = (
    CreateTable | CreateTableLike | CreateTableAsSelect | DropTable | TruncateTable | RenameTable | RecoverTable
    | RecoverDatabase | Flashback | CreateDatabase | DropDatabase | UseDatabase
)  # fmt: skip
Clause = TableClause | StatementClause
Clauses = tuple[Clause, ...]


def tables_of(clause: Clause) -> tuple[TableRef, ...]:
    """Return the existing tables that a clause changes, the one that it is about first."""
    match clause:
        case ExchangePartition(table, _, other):
            return table, other
        case Flashback(_, _, tables):
            return tables
        case (
            NoEffect() | CreateTable() | CreateTableLike() | CreateTableAsSelect() | RecoverTable() | RecoverDatabase()
            | CreateDatabase() | DropDatabase() | UseDatabase()
        ):  # fmt: skip
            return ()
        case DropTable(_, _, True):
            return ()
        case _:
            return (clause.table,)
