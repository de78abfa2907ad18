"""What a DDL statement defines: names, literals, columns, keys, partitions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from cdc_lakehouse.changelog.mysql_types import ColumnType


@dataclass(frozen=True, slots=True)
class TableName:
    """A table as the statement names it; `database` is None where the session's database is meant."""

    database: str | None
    name: str

    def __str__(self) -> str:
        return self.name if self.database is None else f"{self.database}.{self.name}"


# --- Values that stand in a statement ---


@dataclass(frozen=True, slots=True)
class TextLiteral:
    """A string; `charset` is its introducer (`_utf8mb4'x'`) in lower case."""

    value: str
    charset: str | None = None


@dataclass(frozen=True, slots=True)
class NumberLiteral:
    """A number as it is written, with its minus sign. TRUE and FALSE are 1 and 0, as in MySQL."""

    text: str


@dataclass(frozen=True, slots=True)
class BytesLiteral:
    """A hexadecimal or bit literal: the bytes, most significant first, filled up on the left."""

    value: bytes
    charset: str | None = None


@dataclass(frozen=True, slots=True)
class NullLiteral:
    """NULL, said aloud."""


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


# --- Columns ---

Generated = Literal["virtual", "stored"]


@dataclass(frozen=True, slots=True)
class ColumnDefinition:
    """A column as it is declared.

    `nullable` is None where neither NULL nor NOT NULL is said; a primary key or SERIAL means NOT NULL all
    the same (for SERIAL it is spelled out here). `default` is None where there is no DEFAULT clause.
    `expression` is the text of a generated column. `collation` is in lower case.
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
    on_update: str | None = None
    comment: str | None = None
    collation: str | None = None


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
    """A unique key. Where `has_expression`, `columns` are only those parts that are columns."""

    name: str | None
    parts: tuple[KeyPart, ...]

    @property
    def columns(self) -> tuple[str, ...]:
        return tuple(part.column for part in self.parts if part.column is not None)

    @property
    def has_expression(self) -> bool:
        return any(part.column is None for part in self.parts)


IndexKind = Literal["index", "fulltext", "spatial"]


@dataclass(frozen=True, slots=True)
class IndexKey:
    """An index that is not unique. Those of TiDB (vector, columnar) count as plain ones."""

    name: str | None
    parts: tuple[KeyPart, ...] = ()
    kind: IndexKind = "index"


Key = PrimaryKey | UniqueKey | IndexKey


# --- Partitions ---

PartitionMethod = Literal["range", "range columns", "list", "list columns", "hash", "linear hash", "key", "linear key"]


@dataclass(frozen=True, slots=True)
class LessThan:
    """VALUES LESS THAN: one value a partitioning column; `(MaxValue(),)` for MAXVALUE without parentheses."""

    values: tuple[BoundValue, ...]


@dataclass(frozen=True, slots=True)
class InValues:
    """VALUES IN: rows of one value a partitioning column; TiDB's DEFAULT is the row `(DefaultValue(),)`."""

    rows: tuple[tuple[BoundValue, ...], ...]


@dataclass(frozen=True, slots=True)
class Partition:
    """One partition; `bound` is None for hash and key, `subpartitions` counts those that are named."""

    name: str
    bound: LessThan | InValues | None = None
    subpartitions: int = 0


@dataclass(frozen=True, slots=True)
class Partitioning:
    """PARTITION BY.

    `expression` is the text between the parentheses; `columns` are the names where that is a plain list of
    columns, else empty. `count` is PARTITIONS n, `subpartitions` SUBPARTITIONS n (1 where only SUBPARTITION
    BY is said). `interval` is the text of TiDB's INTERVAL partitioning, whose partitions the statement does
    not list.
    """

    method: PartitionMethod
    expression: str
    columns: tuple[str, ...] = ()
    count: int | None = None
    partitions: tuple[Partition, ...] = ()
    subpartitions: int = 0
    interval: str | None = None
