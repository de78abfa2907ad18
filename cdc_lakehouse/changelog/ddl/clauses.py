"""The clauses of DDL statements: a closed union of frozen values, made by `ddl_parser.parse`.

    >>> from cdc_lakehouse.changelog.ddl.parser import parse
    >>> [clause.kind for clause in parse("ALTER TABLE t DROP a, ADD INDEX (b)")]
    ['drop_column', 'add_index']

Consume a `Clause` with `match` and `assert_never`: a new class is then shown by the type checker wherever
it matters. `kind` groups clauses for people; several classes can share one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Final

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
from cdc_lakehouse.changelog.ddl.table_clauses import (
    AddColumn,
    AddIndex,
    AddPrimaryKey,
    AddUniqueKey,
    AlterIndex,
    ChangeColumn,
    ConstraintChange,
    CreateTable,
    CreateTableAsSelect,
    CreateTableLike,
    DropColumn,
    DropColumnDefault,
    DropIndex,
    DropPrimaryKey,
    DropTable,
    Flashback,
    ForeignKeyChange,
    ModifyColumn,
    RecoverTable,
    RenameColumn,
    RenameIndex,
    RenameTable,
    SetColumnDefault,
    SetColumnVisibility,
    TruncateTable,
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


# --- Partitions ---


@dataclass(frozen=True, slots=True)
class AddPartitions:
    """ADD PARTITION: with definitions, or (hash, key) by `count` more."""

    kind: ClassVar[str] = "add_partition"
    table: TableName
    partitions: tuple[Partition, ...] = ()
    count: int | None = None
    if_not_exists: bool = False


@dataclass(frozen=True, slots=True)
class DropPartitions:
    kind: ClassVar[str] = "drop_partition"
    table: TableName
    names: tuple[str, ...]
    if_exists: bool = False


@dataclass(frozen=True, slots=True)
class TruncatePartitions:
    """TRUNCATE PARTITION; `names` is None for ALL."""

    kind: ClassVar[str] = "truncate_partition"
    table: TableName
    names: tuple[str, ...] | None


@dataclass(frozen=True, slots=True)
class ExchangePartition:
    """EXCHANGE PARTITION `partition` WITH TABLE `other`: the rows change places."""

    kind: ClassVar[str] = "exchange_partition"
    table: TableName
    partition: str
    other: TableName


@dataclass(frozen=True, slots=True)
class ReorganizePartitions:
    """REORGANIZE PARTITION; without names (hash, key) all of them are arranged anew."""

    kind: ClassVar[str] = "reorganize_partition"
    table: TableName
    names: tuple[str, ...] = ()
    partitions: tuple[Partition, ...] = ()


@dataclass(frozen=True, slots=True)
class CoalescePartitions:
    """COALESCE PARTITION: `count` fewer."""

    kind: ClassVar[str] = "reorganize_partition"
    table: TableName
    count: int


@dataclass(frozen=True, slots=True)
class PartitionBy:
    kind: ClassVar[str] = "reorganize_partition"
    table: TableName
    partitioning: Partitioning


@dataclass(frozen=True, slots=True)
class RemovePartitioning:
    kind: ClassVar[str] = "reorganize_partition"
    table: TableName


@dataclass(frozen=True, slots=True)
class MaintainPartitions:
    """ANALYZE, CHECK, OPTIMIZE, REBUILD or REPAIR of partitions, DISCARD or IMPORT of tablespaces."""

    kind: ClassVar[str] = "partition_maintenance"
    table: TableName
    action: str


# --- Table options ---


@dataclass(frozen=True, slots=True)
class SetTableComment:
    kind: ClassVar[str] = "comment"
    table: TableName
    comment: str


@dataclass(frozen=True, slots=True)
class SetTableCharset:
    """The default of later columns, or, where `convert`, of all columns.

    CONVERT TO CHARACTER SET binary makes binary types of the text types (MySQL reference manual, "ALTER
    TABLE").
    """

    kind: ClassVar[str] = "charset"
    table: TableName
    charset: str | None = None
    collation: str | None = None
    convert: bool = False


@dataclass(frozen=True, slots=True)
class SetAutoIncrement:
    kind: ClassVar[str] = "auto_increment"
    table: TableName


@dataclass(frozen=True, slots=True)
class TableOption:
    """ENGINE, ROW_FORMAT, ENABLE KEYS and the like: `name` in lower case."""

    kind: ClassVar[str] = "table_option"
    table: TableName
    name: str


@dataclass(frozen=True, slots=True)
class Placement:
    """What TiDB adds about where and how rows are kept (placement, TiFlash, TTL ...); `name` in lower case.

    `table` is None for a placement policy itself.
    """

    kind: ClassVar[str] = "placement_tiflash_ttl_etc"
    table: TableName | None
    name: str


# --- Everything that is not one table ---


@dataclass(frozen=True, slots=True)
class CreateDatabase:
    kind: ClassVar[str] = "create_database"
    name: str
    if_not_exists: bool = False
    charset: str | None = None
    collation: str | None = None


@dataclass(frozen=True, slots=True)
class DropDatabase:
    kind: ClassVar[str] = "drop_database"
    name: str
    if_exists: bool = False


@dataclass(frozen=True, slots=True)
class AlterDatabase:
    """ALTER DATABASE; `name` is None where the session's database is meant."""

    kind: ClassVar[str] = "alter_database"
    name: str | None
    charset: str | None = None
    collation: str | None = None


@dataclass(frozen=True, slots=True)
class UseDatabase:
    """USE: the database of all names without one, from here on."""

    kind: ClassVar[str] = "use_database"
    name: str


@dataclass(frozen=True, slots=True)
class CreateView:
    """CREATE VIEW, or ALTER VIEW, which is the same as OR REPLACE."""

    kind: ClassVar[str] = "create_view"
    view: TableName
    or_replace: bool = False


@dataclass(frozen=True, slots=True)
class DropView:
    kind: ClassVar[str] = "drop_view"
    view: TableName
    if_exists: bool = False


@dataclass(frozen=True, slots=True)
class Sequence:
    """CREATE, ALTER or DROP SEQUENCE (one clause a statement)."""

    kind: ClassVar[str] = "sequence"
    action: str


@dataclass(frozen=True, slots=True)
class OtherStatement:
    """A statement that no table depends on, such as CREATE USER or GRANT: its first words in lower case."""

    kind: ClassVar[str] = "other"
    words: str


# What ALTER TABLE, and CREATE and DROP INDEX, do to a table that there is; a placement policy belongs to none.
TableClause = (
    AddColumn | DropColumn | RenameColumn | ChangeColumn | ModifyColumn | SetColumnDefault | DropColumnDefault
    | SetColumnVisibility | AddPrimaryKey | DropPrimaryKey | AddUniqueKey | AddIndex | DropIndex | RenameIndex
    | AlterIndex | ForeignKeyChange | ConstraintChange | AddPartitions | DropPartitions | TruncatePartitions
    | ExchangePartition | ReorganizePartitions | CoalescePartitions | PartitionBy | RemovePartitioning
    | MaintainPartitions | SetTableComment | SetTableCharset | SetAutoIncrement | TableOption | Placement
)  # fmt: skip
StatementClause = (
    CreateTable | CreateTableLike | CreateTableAsSelect | DropTable | TruncateTable | RenameTable | RecoverTable
    | Flashback | CreateDatabase | DropDatabase | AlterDatabase | UseDatabase | CreateView | DropView | Sequence
    | OtherStatement
)  # fmt: skip
Clause = TableClause | StatementClause

__all__ = [
    "AddColumn", "AddIndex", "AddPartitions", "AddPrimaryKey", "AddUniqueKey", "After", "AlterDatabase",
    "AlterIndex", "BoundValue", "BytesLiteral", "ChangeColumn", "Clause", "CoalescePartitions",
    "ColumnDefinition", "ConstraintChange", "CreateDatabase", "CreateTable", "CreateTableAsSelect",
    "CreateTableLike", "CreateView", "DdlSyntaxError", "DefaultValue", "DropColumn", "DropColumnDefault",
    "DropDatabase", "DropIndex", "DropPartitions", "DropPrimaryKey", "DropTable", "DropView",
    "ExchangePartition", "Expression", "First", "Flashback", "ForeignKeyChange", "InValues", "IndexKey",
    "Key", "KeyPart", "LessThan", "MaintainPartitions", "MaxValue", "ModifyColumn", "NullLiteral",
    "NumberLiteral", "OtherStatement", "Partition", "PartitionBy", "PartitionMethod", "Partitioning",
    "Placement", "Position", "PrimaryKey", "RecoverTable", "RemovePartitioning", "RenameColumn",
    "RenameIndex", "RenameTable", "ReorganizePartitions", "Sequence", "SetAutoIncrement", "SetColumnDefault",
    "SetColumnVisibility", "SetTableCharset", "SetTableComment", "StatementClause", "TableClause",
    "TableName", "TableOption", "TextLiteral", "TruncatePartitions", "TruncateTable", "UniqueKey",
    "UseDatabase", "Value",
]  # fmt: skip
