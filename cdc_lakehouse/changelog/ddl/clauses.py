"""The clauses of DDL statements: a closed union of frozen values, with those that they contain.

`kind` groups clauses for display; several classes can share one. One class, `OtherClause`, covers everything that
changes no column of any table.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import ClassVar, Final, Literal, dataclass_transform

import msgspec

from cdc_lakehouse.changelog.mysql_types import ColumnType


@dataclass_transform(frozen_default=True)
class _Frozen:
    """Makes its subclasses frozen dataclasses."""

    def __init_subclass__(cls) -> None:
        dataclass(frozen=True)(cls)


class _Tagged(msgspec.Struct, frozen=True, tag=True):
    """Its stored form has the name of its class: it is one of several."""


class TableRef(_Frozen):
    """A table as the statement names it. `database` is None where the name has no database."""

    database: str | None
    name: str

    def __str__(self) -> str:
        return self.name if self.database is None else f"{self.database}.{self.name}"


class TextLiteral(_Tagged, frozen=True):
    """A string. `charset` is its introducer (`_utf8mb4'x'`) in lower case."""

    value: str
    charset: str | None = None


class NumberLiteral(_Tagged, frozen=True):
    """A number as it is written, with its minus sign. TRUE and FALSE are 1 and 0, as in MySQL."""

    text: str


class BytesLiteral(_Tagged, frozen=True):
    """A hexadecimal or bit literal as bytes, most significant first, padded with zero bits on the left."""

    value: bytes
    charset: str | None = None


class NullLiteral(_Tagged, frozen=True):
    """An explicit NULL."""


class Expression(_Tagged, frozen=True):
    """Any other value, as its text: `CURRENT_TIMESTAMP(3)`, or `uuid()` of `(uuid())`."""

    text: str


class MaxValue(_Tagged, frozen=True):
    """MAXVALUE in a partition's bound."""


class DefaultValue(_Tagged, frozen=True):
    """DEFAULT in a list partition's bound (TiDB): every value that no other partition has."""


Value = TextLiteral | NumberLiteral | BytesLiteral | NullLiteral | Expression
BoundValue = Value | MaxValue | DefaultValue


class ForeignKey(_Frozen):
    """A foreign key. `actions` is the text of those that change rows of this table when the other one's change:
    `ON DELETE CASCADE`, `ON UPDATE SET NULL`; None where none does. `name` is None where the statement has none."""

    name: str | None = None
    actions: str | None = None


class ColumnDefinition(_Frozen):
    """A column's declaration. `nullable` is None where neither NULL nor NOT NULL is given, also for a primary key.
    `default` is None without a DEFAULT clause. `stored_as` is the expression of a stored generated column."""

    name: str
    type: ColumnType
    nullable: bool | None = None
    default: Value | None = None
    primary_key: bool = False
    unique: bool = False
    auto_increment: bool = False
    virtual: bool = False
    stored_as: str | None = None
    comment: str | None = None
    references: ForeignKey | None = None
    versioned: bool = False

    @property
    def generated(self) -> bool:
        return self.virtual or self.stored_as is not None


FIRST: Final = ""
"""The position before all other columns; any other one is the name of the column before it."""


class KeyPart(_Frozen):
    """A column, or the first `length` characters or bytes of it. `column` is None for an expression, and for the
    condition of a key that holds only some rows."""

    column: str | None
    length: int | None = None


PartitionMethod = Literal["range", "range columns", "list", "list columns", "hash", "linear hash", "key", "linear key"]


class LessThan(_Tagged, frozen=True):
    """VALUES LESS THAN: one value for each partitioning column; `(MaxValue(),)` for MAXVALUE without parentheses."""

    values: tuple[BoundValue, ...]


class InValues(_Tagged, frozen=True):
    """VALUES IN: rows with one value for each partitioning column; TiDB's DEFAULT is the row `(DefaultValue(),)`."""

    rows: tuple[tuple[BoundValue, ...], ...]


class Partition(_Frozen):
    """One partition. `bound` is None for hash and key."""

    name: str
    bound: LessThan | InValues | None = None


class Partitioning(_Frozen):
    """PARTITION BY. `expression` is the text between the parentheses; `columns` are the names where that is a list of
    columns alone, else empty. `count` is the number in PARTITIONS. `interval` is the text of TiDB's INTERVAL, whose
    partitions the statement does not list."""

    method: PartitionMethod
    expression: str
    columns: tuple[str, ...] = ()
    count: int | None = None
    partitions: tuple[Partition, ...] = ()
    interval: str | None = None


class _Clause(_Frozen):
    """A clause of one kind."""

    kind: ClassVar[str]

    def __init_subclass__(cls, kind: str = "") -> None:
        cls.kind = kind
        super().__init_subclass__()


class _OfTable(_Clause):
    table: TableRef


class OtherClause(_Frozen):
    """A clause that changes no column of a table. `unlogged` is a sentence that says why it changes the table's rows as
    neither the log nor the statement says, None where it changes none. `table` is None where the statement concerns no
    table: a view, a user, a placement policy. `versioned` says whether MariaDB keeps the table's history after the
    clause, None where it does not change that."""

    table: TableRef | None
    kind: str
    unlogged: str | None = None
    versioned: bool | None = None


class AddColumn(_OfTable, kind="add_column"):
    """Without a `position` the column comes last."""

    column: ColumnDefinition
    position: str | None = None
    if_not_exists: bool = False


class DropColumn(_OfTable, kind="drop_column"):
    name: str
    if_exists: bool = False


class RenameColumn(_OfTable, kind="modify_column"):
    name: str
    new_name: str
    if_exists: bool = False


class ModifyColumn(_OfTable, kind="modify_column"):
    """CHANGE and MODIFY of the column `name`: the definition holds the new one. Without a `position` the column stays
    in place."""

    name: str
    column: ColumnDefinition
    position: str | None = None
    if_exists: bool = False


class SetColumnDefault(_OfTable, kind="alter_default"):
    """SET DEFAULT; `default` is None for DROP DEFAULT."""

    name: str
    default: Value | None


class AddKey(_Frozen):
    """A new primary key or, as `add_index`, a unique one. `name` is None where the statement has none."""

    table: TableRef
    kind: Literal["add_primary_key", "add_index"]
    name: str | None
    parts: tuple[KeyPart, ...]

    @property
    def columns(self) -> tuple[str, ...]:
        """The parts that are columns."""
        return tuple(part.column for part in self.parts if part.column is not None)

    @property
    def has_expression(self) -> bool:
        return any(part.column is None for part in self.parts)


class AddForeignKey(_OfTable, kind="foreign_key"):
    key: ForeignKey


class DropKey(_Frozen):
    """DROP of a key or constraint. Without a word for the kind (`check_constraint`) it can be a check or a key of any
    kind. MySQL and TiDB accept the name PRIMARY for the primary key."""

    table: TableRef
    kind: Literal["drop_primary_key", "drop_index", "foreign_key", "check_constraint"]
    name: str

    @property
    def drops_primary_key(self) -> bool:
        return self.kind != "foreign_key" and self.name.lower() == "primary"


class RenameIndex(_OfTable, kind="rename_index"):
    name: str
    new_name: str


class ChangePartitions(_Frozen):
    """ADD, DROP, REORGANIZE, COALESCE or TRUNCATE PARTITION: the rows of the partitions `names` go, or go to those that
    are `added`. For hash and key, `count` is the number of further partitions, below zero for COALESCE. `names` is None
    for TRUNCATE PARTITION ALL."""

    table: TableRef
    kind: Literal["add_partition", "drop_partition", "truncate_partition", "reorganize_partition"]
    names: tuple[str, ...] | None = ()
    added: tuple[Partition, ...] = ()
    count: int = 0


class ExchangePartition(_OfTable, kind="exchange_partition"):
    """EXCHANGE PARTITION `partition` WITH TABLE `other`: exchanges their rows."""

    partition: str
    other: TableRef


class PartitionBy(_OfTable, kind="reorganize_partition"):
    """PARTITION BY; `partitioning` is None for REMOVE PARTITIONING."""

    partitioning: Partitioning | None


class SetTableCharset(_OfTable, kind="charset"):
    """The character set of columns that are added later or, with `convert`, of all columns."""

    charset: str | None = None
    convert: bool = False


class CreateTable(_OfTable, kind="create_table"):
    """CREATE TABLE: `clauses` are those of an ALTER TABLE that makes it of an empty one, in order. `like` is the table
    whose columns and keys it has. With a query (`has_query`) it has the query's columns, too; a server that logs rows
    logs it with all columns and without the query."""

    clauses: tuple[Clause, ...] = ()
    like: TableRef | None = None
    has_query: bool = False
    if_not_exists: bool = False

    @property
    def columns(self) -> tuple[ColumnDefinition, ...]:
        return tuple(clause.column for clause in self.clauses if isinstance(clause, AddColumn))

    @property
    def keys(self) -> list[AddKey]:
        """The keys, those that are declared at a column too; the primary key first."""
        found = [key for key in added_keys(self.clauses) if isinstance(key, AddKey)]
        return sorted(found, key=lambda key: key.kind == "add_index")


class DropTable(_OfTable, kind="drop_table"):
    pass


class TruncateTable(_OfTable, kind="truncate_table"):
    pass


class RenameTable(_OfTable, kind="rename_table"):
    """One pair of RENAME TABLE, whose pairs apply from left to right, or ALTER TABLE ... RENAME."""

    new_name: TableRef


class RecoverTable(_Clause, kind="flashback_recover"):
    """RECOVER or FLASHBACK TABLE (TiDB): restores a dropped table. `table` is None where a job is named."""

    table: TableRef | None
    new_name: str | None = None


class Flashback(_Clause, kind="flashback"):
    """FLASHBACK to a time (TiDB): changes all rows of the scope at once."""

    scope: Literal["cluster", "database", "table"]
    database: str | None = None
    tables: tuple[TableRef, ...] = ()


class OfDatabase(_Frozen):
    """CREATE or DROP DATABASE; FLASHBACK DATABASE (TiDB: `recover_database`), which restores the tables of a dropped
    one, perhaps under a new name; or USE, which sets the database of all later names without one."""

    kind: Literal["create_database", "drop_database", "recover_database", "use_database"]
    name: str
    new_name: str | None = None


# Clauses of ALTER TABLE, and of CREATE and DROP INDEX: they change a table that exists.
TableClause = (
    AddColumn | DropColumn | RenameColumn | ModifyColumn | SetColumnDefault | AddKey | AddForeignKey | DropKey
    | RenameIndex | ChangePartitions | ExchangePartition | PartitionBy | SetTableCharset | OtherClause
)  # fmt: skip
Clause = TableClause | CreateTable | DropTable | TruncateTable | RenameTable | RecoverTable | Flashback | OfDatabase
Clauses = tuple[Clause, ...]


def added_keys(clauses: Iterable[Clause]) -> Iterator[AddKey | AddForeignKey]:
    """Yield the keys that clauses add, those that are declared at a column too."""
    for clause in clauses:
        match clause:
            case AddKey() | AddForeignKey():
                yield clause
            case AddColumn(table, column) | ModifyColumn(table, _, column):
                parts = (KeyPart(column.name),)
                yield from [AddKey(table, "add_primary_key", None, parts)] * column.primary_key
                yield from [AddKey(table, "add_index", None, parts)] * column.unique
                yield from [] if column.references is None else [AddForeignKey(table, column.references)]
            case _:
                pass
