"""The clauses of DDL statements: a closed union of frozen values, made by `parser.parse`.

    >>> from cdc_lakehouse.changelog.ddl.parser import parse
    >>> [clause.kind for clause in parse("ALTER TABLE t DROP a, ADD INDEX (b)")]
    ['drop_column', 'add_index']

Consume a `Clause` with `match` and `assert_never`: a new class is then shown by the type checker wherever it matters.
`kind` groups clauses for people; several classes can share one. What changes no row and no column of any table is one
class, `NoEffect`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Final, Literal, TypeVar, dataclass_transform

from cdc_lakehouse.changelog.ddl.definitions import (
    After,
    BoundValue,
    BytesLiteral,
    ColumnDefinition,
    DefaultValue,
    Expression,
    First,
    IndexKey,
    InValues,
    Key,
    KeyPart,
    LessThan,
    MaxValue,
    NullLiteral,
    NumberLiteral,
    Partition,
    Partitioning,
    PartitionMethod,
    Position,
    PrimaryKey,
    TableName,
    TextLiteral,
    UniqueKey,
    Value,
)
from cdc_lakehouse.errors import DdlError

_SHOWN: Final = 200
_ADVICE: Final = "if the source server accepts this statement, the parser lacks it, and its table has to wait"


class DdlSyntaxError(DdlError):
    """A statement that the parser does not understand.

    `statement` is the statement, shortened; `offset` counts characters from 0, `statement_line` and
    `statement_column` from 1, all in the whole statement. (`line`, of the base class, is a line of a
    segment.)
    """

    def __init__(
        self,
        message: str,
        *,
        statement: str,
        offset: int,
        statement_line: int,
        statement_column: int,
        **places: Any,
    ) -> None:
        super().__init__(message, **places)
        self.statement = statement
        self.offset = offset
        self.statement_line = statement_line
        self.statement_column = statement_column

    @classmethod
    def at(cls, reason: str, statement: str, offset: int) -> DdlSyntaxError:
        """The error at a place of a statement, for a reason such as "expected a name, found '('"."""
        line = statement.count("\n", 0, offset) + 1
        column = offset - statement.rfind("\n", 0, offset)
        shown = statement if len(statement) <= _SHOWN else f"{statement[:_SHOWN]}..."
        return cls(
            f"DDL cannot be understood at line {line}, column {column}: {reason}, in: {shown}",
            statement=shown,
            offset=offset,
            statement_line=line,
            statement_column=column,
            advice=_ADVICE,
        )

    def __reduce__(self) -> tuple[Any, ...]:
        names = ("statement", "offset", "statement_line", "statement_column")
        rebuild, (kind, message, places) = super().__reduce__()
        return rebuild, (kind, message, {**places, **{name: getattr(self, name) for name in names}})


# --- What clauses have in common ---


class _Clause:
    __slots__ = ()
    kind: ClassVar[str]


_C = TypeVar("_C", bound=_Clause)


@dataclass_transform(frozen_default=True)
def _clause(kind: str) -> Callable[[type[_C]], type[_C]]:
    """Makes a clause of that kind: a frozen dataclass with slots."""

    def made(clause: type[_C]) -> type[_C]:
        clause.kind = kind
        return dataclass(frozen=True, slots=True)(clause)

    return made


@dataclass(frozen=True, slots=True)
class _OfTable(_Clause):
    table: TableName


NoEffectKind = Literal[
    "add_index", "alter_database", "alter_default", "alter_index", "auto_increment", "check_constraint", "comment",
    "create_view", "drop_view", "foreign_key", "other", "partition_maintenance", "placement_tiflash_ttl_etc",
    "sequence", "table_option",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class NoEffect:
    """A clause that changes no row and no column of a table: `text` is what it says, without comments.

    `table` is None where the statement is about no table: a view, a user, a placement policy.
    """

    table: TableName | None
    kind: NoEffectKind
    text: str


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
    """DROP INDEX, of a unique key too. MySQL and TiDB take the name PRIMARY for the primary key."""

    name: str
    if_exists: bool = False

    @property
    def drops_primary_key(self) -> bool:
        return self.name.lower() == "primary"


@_clause("rename_index")
class RenameIndex(_OfTable):
    name: str
    new_name: str


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
    """ADD PARTITION: with definitions, or (hash, key) by `count` more."""

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
    """EXCHANGE PARTITION `partition` WITH TABLE `other`: the rows change places."""

    partition: str
    other: TableName


@_clause("reorganize_partition")
class ReorganizePartitions(_OfTable):
    """REORGANIZE PARTITION; without names (hash, key) all of them are arranged anew."""

    names: tuple[str, ...] = ()
    partitions: tuple[Partition, ...] = ()


@_clause("reorganize_partition")
class CoalescePartitions(_OfTable):
    """COALESCE PARTITION: `count` fewer."""

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
    """The default of later columns, or, where `convert`, of all columns.

    CONVERT TO CHARACTER SET binary makes binary types of the text types (MySQL reference manual, "ALTER TABLE").
    """

    charset: str | None = None
    collation: str | None = None
    convert: bool = False


# --- Whole tables ---


@_clause("create_table")
class CreateTable(_OfTable):
    """CREATE TABLE with its columns.

    `primary_key` and `unique_keys` include those that are said at a column. `charset` and `collation` are the table's
    own, in lower case; columns without one inherit it. `keys` are all keys and indexes in the order of the text, from
    which those without a name get theirs.
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
    keys: tuple[Key, ...] = ()


@_clause("create_table_like")
class CreateTableLike(_OfTable):
    source: TableName
    if_not_exists: bool = False
    temporary: bool = False


@_clause("create_table_as_select")
class CreateTableAsSelect(_Clause):
    """CREATE TABLE from a query: `definition` holds what is said; the query may add columns.

    `selected` are the names of the query's columns, None where its text does not say them (`SELECT *`).
    """

    definition: CreateTable
    selected: tuple[str, ...] | None = None

    @property
    def table(self) -> TableName:
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
    """One pair of RENAME TABLE, whose pairs count from left to right, or ALTER TABLE ... RENAME (`altering`)."""

    new_name: TableName
    if_exists: bool = False
    altering: bool = False


@_clause("flashback_recover")
class RecoverTable(_Clause):
    """RECOVER or FLASHBACK TABLE (TiDB): a dropped table is back; `table` is None where a job is named."""

    table: TableName | None
    new_name: str | None = None


@_clause("flashback_recover")
class Flashback(_Clause):
    """FLASHBACK to a time, or of a database (TiDB): all rows of the scope change at once."""

    scope: Literal["cluster", "database", "table"]
    database: str | None = None
    tables: tuple[TableName, ...] = ()


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
    """USE: the database of all names without one, from here on."""

    name: str


# What ALTER TABLE, and CREATE and DROP INDEX, do to a table that there is.
TableClause = (
    AddColumn | DropColumn | RenameColumn | ChangeColumn | ModifyColumn | SetColumnDefault | DropColumnDefault
    | AddPrimaryKey | DropPrimaryKey | AddUniqueKey | DropIndex | RenameIndex | DropConstraint
    | AddPartitions | DropPartitions | TruncatePartitions | ExchangePartition | ReorganizePartitions
    | CoalescePartitions | PartitionBy | RemovePartitioning | SetTableCharset | NoEffect
)  # fmt: skip
StatementClause = (
    CreateTable | CreateTableLike | CreateTableAsSelect | DropTable | TruncateTable | RenameTable | RecoverTable
    | Flashback | CreateDatabase | DropDatabase | UseDatabase
)  # fmt: skip
Clause = TableClause | StatementClause
Clauses = tuple[Clause, ...]

__all__ = [
    "AddColumn", "AddPartitions", "AddPrimaryKey", "AddUniqueKey", "After",
    "BoundValue", "BytesLiteral", "ChangeColumn", "Clause", "Clauses", "CoalescePartitions", "ColumnDefinition",
    "CreateDatabase", "CreateTable", "CreateTableAsSelect", "CreateTableLike", "DdlSyntaxError", "DefaultValue",
    "DropColumn", "DropColumnDefault", "DropConstraint", "DropDatabase", "DropIndex", "DropPartitions",
    "DropPrimaryKey", "DropTable", "ExchangePartition", "Expression", "First", "Flashback", "InValues", "IndexKey",
    "Key", "KeyPart", "LessThan", "MaxValue", "ModifyColumn", "NoEffect", "NoEffectKind", "NullLiteral",
    "NumberLiteral", "Partition", "PartitionBy", "PartitionMethod", "Partitioning", "Position", "PrimaryKey",
    "RecoverTable", "RemovePartitioning", "RenameColumn", "RenameIndex", "RenameTable", "ReorganizePartitions",
    "SetColumnDefault", "SetTableCharset", "StatementClause", "TableClause", "TableName", "TextLiteral",
    "TruncatePartitions", "TruncateTable", "UniqueKey", "UseDatabase", "Value",
]  # fmt: skip
