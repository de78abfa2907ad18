"""The specifications of ALTER TABLE that deal with partitions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from cdc_lakehouse.changelog.ddl.clauses import (
    AddPartitions,
    Clause,
    CoalescePartitions,
    DropPartitions,
    ExchangePartition,
    MaintainPartitions,
    PartitionBy,
    Placement,
    RemovePartitioning,
    ReorganizePartitions,
    TableName,
    TruncatePartitions,
)
from cdc_lakehouse.changelog.ddl.cursor import Cursor
from cdc_lakehouse.changelog.ddl.partitions import read_partition_by, read_partitions

_NOT_REPLICATED: Final = ("LOCAL", "NO_WRITE_TO_BINLOG")
_MAINTENANCE_OPTIONS: Final = (
    "QUICK", "FAST", "MEDIUM", "EXTENDED", "CHANGED", "USE_FRM", "FOR", "UPGRADE",
)  # fmt: skip


def read_add_partition(cursor: Cursor, table: TableName) -> tuple[Clause, ...]:
    """ADD PARTITION, after these words."""
    if_not_exists = cursor.if_not_exists()
    cursor.accept_any(_NOT_REPLICATED)
    if cursor.accept("PARTITIONS"):
        return (AddPartitions(table, count=cursor.integer(), if_not_exists=if_not_exists),)
    partitions = read_partitions(cursor) if cursor.at("(") else ()
    return (AddPartitions(table, partitions, None, if_not_exists),)


def _names(cursor: Cursor) -> tuple[str, ...]:
    return cursor.listed(lambda: cursor.name("a partition"))


def _names_or_all(cursor: Cursor) -> tuple[str, ...] | None:
    return None if cursor.accept("ALL") else _names(cursor)


def _drop(cursor: Cursor, table: TableName) -> tuple[Clause, ...]:
    if_exists = cursor.if_exists()
    return (DropPartitions(table, _names(cursor), if_exists),)


def _truncate(cursor: Cursor, table: TableName) -> tuple[Clause, ...]:
    return (TruncatePartitions(table, _names_or_all(cursor)),)


def _exchange(cursor: Cursor, table: TableName) -> tuple[Clause, ...]:
    name = cursor.name("a partition")
    cursor.expect("WITH", "TABLE")
    other = cursor.table_name()
    if cursor.accept_any(("WITH", "WITHOUT")):
        cursor.expect("VALIDATION")
    return (ExchangePartition(table, name, other),)


def _reorganize(cursor: Cursor, table: TableName) -> tuple[Clause, ...]:
    cursor.accept_any(_NOT_REPLICATED)
    if not cursor.at_name:
        return (ReorganizePartitions(table),)
    names = _names(cursor)
    cursor.expect("INTO")
    return (ReorganizePartitions(table, names, read_partitions(cursor)),)


def _coalesce(cursor: Cursor, table: TableName) -> tuple[Clause, ...]:
    cursor.accept_any(_NOT_REPLICATED)
    return (CoalescePartitions(table, cursor.integer()),)


def _remove(_: Cursor, table: TableName) -> tuple[Clause, ...]:
    return (RemovePartitioning(table),)


def _partition_by(cursor: Cursor, table: TableName) -> tuple[Clause, ...]:
    return (PartitionBy(table, read_partition_by(cursor)),)


def _partition_option(cursor: Cursor, table: TableName) -> tuple[Clause, ...]:
    """TiDB's options of one partition."""
    cursor.name("a partition")
    if cursor.accept("PLACEMENT", "POLICY"):
        cursor.accept("SET")
    else:
        cursor.expect("ATTRIBUTES")
    cursor.accept("=")
    cursor.word_or_string("a value")
    return (Placement(table, "partition"),)


def _maintain(action: str) -> Callable[[Cursor, TableName], tuple[Clause, ...]]:
    def read(cursor: Cursor, table: TableName) -> tuple[Clause, ...]:
        cursor.accept_any(_NOT_REPLICATED)
        _names_or_all(cursor)
        while cursor.accept_any(_MAINTENANCE_OPTIONS):
            pass
        return (MaintainPartitions(table, action),)

    return read


def _analyze(cursor: Cursor, table: TableName) -> tuple[Clause, ...]:
    """ANALYZE PARTITION; in TiDB it stands alone, and more can follow."""
    cursor.accept_any(_NOT_REPLICATED)
    _names_or_all(cursor)
    if cursor.token.word in ("ALL", "COLUMNS", "INDEX", "PREDICATE", "WITH"):
        cursor.skip_until(())
    return (MaintainPartitions(table, "analyze"),)


def _tablespace(action: str) -> Callable[[Cursor, TableName], tuple[Clause, ...]]:
    def read(cursor: Cursor, table: TableName) -> tuple[Clause, ...]:
        if cursor.accept("PARTITION"):
            _names_or_all(cursor)
        cursor.expect("TABLESPACE")
        return (MaintainPartitions(table, action),)

    return read


PARTITION_SPECS: Final[dict[tuple[str, ...], Callable[[Cursor, TableName], tuple[Clause, ...]]]] = {
    ("DROP", "PARTITION"): _drop,
    ("TRUNCATE", "PARTITION"): _truncate,
    ("EXCHANGE", "PARTITION"): _exchange,
    ("REORGANIZE", "PARTITION"): _reorganize,
    ("COALESCE", "PARTITION"): _coalesce,
    ("REMOVE", "PARTITIONING"): _remove,
    ("PARTITION", "BY"): _partition_by,
    ("PARTITION",): _partition_option,
    ("DISCARD",): _tablespace("discard"),
    ("IMPORT",): _tablespace("import"),
    ("ANALYZE", "PARTITION"): _analyze,
    ("CHECK", "PARTITION"): _maintain("check"),
    ("OPTIMIZE", "PARTITION"): _maintain("optimize"),
    ("REBUILD", "PARTITION"): _maintain("rebuild"),
    ("REPAIR", "PARTITION"): _maintain("repair"),
}
