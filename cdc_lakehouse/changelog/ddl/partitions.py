"""Partitions in DDL text: PARTITION BY, definitions, and the clauses of ALTER TABLE.

MySQL reference manual, "CREATE TABLE Statement" and "ALTER TABLE Partition Operations"; TiDB's own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from cdc_lakehouse.changelog.ddl import clauses as ddl
from cdc_lakehouse.changelog.ddl.definitions import VERSIONED, read_bound
from cdc_lakehouse.changelog.ddl.lexer import Cursor

_METHODS: Final[dict[tuple[str, ...], ddl.PartitionMethod]] = {
    ("RANGE", "COLUMNS"): "range columns", ("RANGE", "FIELDS"): "range columns", ("RANGE",): "range",
    ("LIST", "COLUMNS"): "list columns", ("LIST", "FIELDS"): "list columns", ("LIST",): "list",
    ("LINEAR", "HASH"): "linear hash", ("HASH",): "hash", ("LINEAR", "KEY"): "linear key", ("KEY",): "key",
}  # fmt: skip
_OPTIONS: Final = (
    ("STORAGE", "ENGINE"), ("ENGINE",), ("COMMENT",), ("DATA", "DIRECTORY"), ("INDEX", "DIRECTORY"),
    ("MAX_ROWS",), ("MIN_ROWS",), ("TABLESPACE",), ("NODEGROUP",), ("PLACEMENT", "POLICY"),
)  # fmt: skip


def _read_method(cursor: Cursor) -> tuple[ddl.PartitionMethod, str, tuple[str, ...]]:
    method = cursor.accept_longest(_METHODS)
    if method is None:
        raise cursor.expected("RANGE, LIST, HASH or KEY")
    by_key = method in ("key", "linear key")
    if by_key and cursor.accept("ALGORITHM"):
        cursor.accept("=")
        cursor.integer()
    start = cursor.position
    expression = cursor.parenthesized()
    if not (expression or by_key):
        raise cursor.error("an expression is missing")
    return method, expression, _plain_columns(cursor, start)


def _plain_columns(cursor: Cursor, start: int) -> tuple[str, ...]:
    """Return the names in the parentheses from position `start` to the cursor; none where they hold anything else."""
    end = cursor.position
    cursor.position = start + 1
    names: list[str] = []
    while cursor.at_name:
        names.append(cursor.name())
        if not cursor.accept(","):
            break
    plain = cursor.position == end - 1
    cursor.position = end
    return tuple(names) if plain else ()


def _read_interval(cursor: Cursor) -> str | None:
    """Read TiDB's INTERVAL (...) [FIRST|LAST PARTITION LESS THAN (...)] [NULL|MAXVALUE PARTITION] as text."""
    start = cursor.position
    if not cursor.accept("INTERVAL"):
        return None
    cursor.parenthesized()
    while True:
        if cursor.accept_any(("FIRST", "LAST")):
            cursor.expect("PARTITION", "LESS", "THAN")
            cursor.parenthesized()
        elif cursor.accept_any(("NULL", "MAXVALUE")):
            cursor.expect("PARTITION")
        else:
            return cursor.text_between(start, cursor.position)


def _read_partitions(cursor: Cursor) -> tuple[ddl.Partition, ...]:
    """Read definitions of partitions, in parentheses."""
    return cursor.enclosed(lambda: _read_partition(cursor))


def _read_partition(cursor: Cursor) -> ddl.Partition:
    cursor.expect("PARTITION")
    name = cursor.name("a partition")
    cursor.accept_any(("HISTORY", "CURRENT"))  # MariaDB's, by SYSTEM_TIME
    bound = _read_values(cursor)
    _skip_options(cursor)
    if cursor.at("("):
        cursor.enclosed(lambda: _skip_subpartition(cursor))
    return ddl.Partition(name, bound)


def _read_values(cursor: Cursor) -> ddl.LessThan | ddl.InValues | None:
    if cursor.accept("DEFAULT"):
        return ddl.InValues(((ddl.DefaultValue(),),))
    if not cursor.accept("VALUES"):
        return None
    if cursor.accept("IN"):
        return ddl.InValues(cursor.enclosed(lambda: _read_row(cursor)))
    cursor.expect("LESS", "THAN")
    if cursor.accept("MAXVALUE"):
        return ddl.LessThan((ddl.MaxValue(),))
    return ddl.LessThan(cursor.enclosed(lambda: read_bound(cursor)))


def _read_row(cursor: Cursor) -> tuple[ddl.BoundValue, ...]:
    """Read one value, or several in parentheses; `(1 + 1) * 2` begins like the latter and is one value."""
    start = cursor.position
    if cursor.at("("):
        row = cursor.enclosed(lambda: read_bound(cursor))
        if cursor.at(",") or cursor.at(")"):
            return row
        cursor.position = start
    return (read_bound(cursor),)


def _skip_options(cursor: Cursor) -> None:
    while any(cursor.accept(*words) for words in _OPTIONS):
        cursor.skip_value()


def _skip_subpartition(cursor: Cursor) -> None:
    cursor.expect("SUBPARTITION")
    cursor.name("a subpartition")
    _skip_options(cursor)


# --- Clauses of ALTER TABLE ---

_NOT_REPLICATED: Final = ("LOCAL", "NO_WRITE_TO_BINLOG")


def _add(cursor: Cursor, table: ddl.TableRef) -> ddl.Clauses:
    cursor.if_not_exists()
    cursor.accept_any(_NOT_REPLICATED)
    if cursor.accept("PARTITIONS"):
        return (ddl.ChangePartitions(table, "add_partition", count=cursor.integer()),)
    added = _read_partitions(cursor) if cursor.at("(") else ()
    return (ddl.ChangePartitions(table, "add_partition", added=added),)


def _names(cursor: Cursor) -> tuple[str, ...]:
    return cursor.listed(lambda: cursor.name("a partition"))


def _names_or_all(cursor: Cursor) -> tuple[str, ...] | None:
    return None if cursor.accept("ALL") else _names(cursor)


def _drop(cursor: Cursor, table: ddl.TableRef) -> ddl.Clauses:
    cursor.if_exists()
    return (ddl.ChangePartitions(table, "drop_partition", _names(cursor)),)


def _truncate(cursor: Cursor, table: ddl.TableRef) -> ddl.Clauses:
    return (ddl.ChangePartitions(table, "truncate_partition", _names_or_all(cursor)),)


def _exchange(cursor: Cursor, table: ddl.TableRef) -> ddl.Clauses:
    name = cursor.name("a partition")
    cursor.expect("WITH", "TABLE")
    other = cursor.table_name()
    if cursor.accept_any(("WITH", "WITHOUT")):
        cursor.expect("VALIDATION")
    return (ddl.ExchangePartition(table, name, other),)


def _reorganize(cursor: Cursor, table: ddl.TableRef) -> ddl.Clauses:
    cursor.accept_any(_NOT_REPLICATED)
    if not cursor.at_name:  # The rows of all partitions (hash, key) are distributed again.
        return (ddl.ChangePartitions(table, "reorganize_partition"),)
    names = _names(cursor)
    cursor.expect("INTO")
    return (ddl.ChangePartitions(table, "reorganize_partition", names, _read_partitions(cursor)),)


def _coalesce(cursor: Cursor, table: ddl.TableRef) -> ddl.Clauses:
    cursor.accept_any(_NOT_REPLICATED)
    return (ddl.ChangePartitions(table, "reorganize_partition", count=-cursor.integer()),)


def read_partition_by(cursor: Cursor, table: ddl.TableRef) -> ddl.Clauses:
    """Read the rest of PARTITION BY."""
    if cursor.accept("SYSTEM_TIME"):  # MariaDB's, which distributes the past of rows
        cursor.skip_until(())
        return (ddl.UnloggedRows(table, *VERSIONED),)
    method, expression, columns = _read_method(cursor)
    interval = _read_interval(cursor)
    count = cursor.integer() if cursor.accept("PARTITIONS") else None
    if cursor.accept("SUBPARTITION", "BY"):
        _read_method(cursor)
        if cursor.accept("SUBPARTITIONS"):
            cursor.integer()
    partitions = _read_partitions(cursor) if cursor.at("(") else ()
    if cursor.accept("UPDATE", "INDEXES"):
        cursor.parenthesized()
    return (ddl.PartitionBy(table, ddl.Partitioning(method, expression, columns, count, partitions, interval)),)


def _partition_option(cursor: Cursor, table: ddl.TableRef) -> ddl.Clauses:
    """Read TiDB's options of one partition."""
    cursor.name("a partition")
    if not (cursor.accept("PLACEMENT", "POLICY") or cursor.accept("ATTRIBUTES")):
        raise cursor.expected("PLACEMENT POLICY or ATTRIBUTES")
    cursor.skip_clause()
    return (ddl.NoEffect(table, "placement_tiflash_ttl_etc"),)


def _maintain(kind: ddl.NoEffectKind, unlogged: str | None = None) -> Callable[[Cursor, ddl.TableRef], ddl.Clauses]:
    """Return the reader of a clause that works on the files of partitions. It is alone in its statement."""

    def read(cursor: Cursor, table: ddl.TableRef) -> ddl.Clauses:
        cursor.accept_any(_NOT_REPLICATED)
        _names_or_all(cursor)
        cursor.skip_until(())
        return (ddl.NoEffect(table, kind) if unlogged is None else ddl.UnloggedRows(table, kind, unlogged),)

    return read


# Clauses that take files away or put others in their place, by their first word, and why their rows are not known.
UNLOGGED_FILES: Final = {
    "DISCARD": "it takes rows away, and the log does not have those that come in their place",
    "IMPORT": "it replaces rows with those of a file, which are not in the log",
}
# The same rows are read, or written again; REPAIR finds those of damaged files.
_MAINTENANCE: Final = ("ANALYZE", "CHECK", "OPTIMIZE", "REBUILD", "REPAIR")
PARTITION_CLAUSES: Final[dict[tuple[str, ...], Callable[[Cursor, ddl.TableRef], ddl.Clauses]]] = {
    ("ADD", "PARTITION"): _add,
    ("DROP", "PARTITION"): _drop,
    ("TRUNCATE", "PARTITION"): _truncate,
    ("EXCHANGE", "PARTITION"): _exchange,
    ("REORGANIZE", "PARTITION"): _reorganize,
    ("COALESCE", "PARTITION"): _coalesce,
    ("REMOVE", "PARTITIONING"): lambda _, table: (ddl.PartitionBy(table, None),),
    ("PARTITION", "BY"): read_partition_by,
    ("PARTITION",): _partition_option,
    ("COMPACT", "PARTITION"): _maintain("placement_tiflash_ttl_etc"),
    **{(verb, "PARTITION"): _maintain("partition_maintenance") for verb in _MAINTENANCE},
    **{(verb, "PARTITION"): _maintain("partition_maintenance", reason) for verb, reason in UNLOGGED_FILES.items()},
}
"""The reader of each clause, which is called after these words."""
