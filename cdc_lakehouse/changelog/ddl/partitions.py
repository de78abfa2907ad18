"""Partitions in DDL text (PARTITION BY, definitions, the clauses of ALTER TABLE), and which rows a partition holds.

MySQL reference manual, "CREATE TABLE Statement" and "ALTER TABLE Partition Operations"; TiDB's own. A partitioning
column is part of every unique key, so a row's partition follows from its key alone: this decides which rows a DROP or
TRUNCATE PARTITION removes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from cdc_lakehouse.changelog.ddl import clauses as ddl
from cdc_lakehouse.changelog.ddl.definitions import VERSIONED, read_bound
from cdc_lakehouse.changelog.ddl.lexer import Cursor
from cdc_lakehouse.errors import DdlError

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
    """Read the method, its expression, and the names where the expression is a plain list of columns."""
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
    end, cursor.position = cursor.position, start + 1
    names: list[str] = []
    while cursor.at_name:
        names.append(cursor.name())
        if not cursor.accept(","):
            break
    is_plain, cursor.position = cursor.position == end - 1, end
    return method, expression, tuple(names) if is_plain else ()


def _read_partitions(cursor: Cursor) -> tuple[ddl.Partition, ...]:
    def skip_options() -> None:
        while any(cursor.accept(*words) for words in _OPTIONS):
            cursor.skip_value()

    def skip_subpartition() -> None:
        cursor.expect("SUBPARTITION")
        cursor.name("a subpartition")
        skip_options()

    def read_row() -> tuple[ddl.BoundValue, ...]:
        # `(1 + 1) * 2` begins like several values in parentheses and is one value.
        start = cursor.position
        if cursor.at("("):
            row = cursor.enclosed(lambda: read_bound(cursor))
            if cursor.at(",") or cursor.at(")"):
                return row
            cursor.position = start
        return (read_bound(cursor),)

    def read() -> ddl.Partition:
        cursor.expect("PARTITION")
        name = cursor.name("a partition")
        cursor.accept_any(("HISTORY", "CURRENT"))  # MariaDB's, by SYSTEM_TIME
        bound: ddl.LessThan | ddl.InValues | None = None
        if cursor.accept("DEFAULT"):
            bound = ddl.InValues(((ddl.DefaultValue(),),))
        elif cursor.accept("VALUES", "IN"):
            bound = ddl.InValues(cursor.enclosed(read_row))
        elif cursor.accept("VALUES"):
            cursor.expect("LESS", "THAN")
            is_most = cursor.accept("MAXVALUE")
            bound = ddl.LessThan((ddl.MaxValue(),) if is_most else cursor.enclosed(lambda: read_bound(cursor)))
        skip_options()
        if cursor.at("("):
            cursor.enclosed(skip_subpartition)
        return ddl.Partition(name, bound)

    return cursor.enclosed(read)


# Clauses that take files away or put others in their place, by their first word, and why their rows are not known.
UNLOGGED_FILES: Final = {
    "DISCARD": "it takes rows away, and the log does not have those that come in their place",
    "IMPORT": "it replaces rows with those of a file, which are not in the log",
}
# The same rows are read, or written again; REPAIR finds those of damaged files.
_MAINTENANCE: Final = ("ANALYZE", "CHECK", "COMPACT", "OPTIMIZE", "REBUILD", "REPAIR", *UNLOGGED_FILES)
_NOT_REPLICATED: Final = ("LOCAL", "NO_WRITE_TO_BINLOG")


def read_partition_by(cursor: Cursor, table: ddl.TableRef) -> ddl.Clauses:
    """Read the rest of PARTITION BY."""
    if cursor.accept("SYSTEM_TIME"):  # MariaDB's, which distributes the past of rows
        cursor.skip_until(())
        return (ddl.OtherClause(table, *VERSIONED),)
    method, expression, columns = _read_method(cursor)
    start = cursor.position
    if cursor.accept("INTERVAL"):  # TiDB's: (...) [FIRST|LAST PARTITION LESS THAN (...)] [NULL|MAXVALUE PARTITION]
        cursor.parenthesized()
        while word := cursor.accept_any(("FIRST", "LAST", "NULL", "MAXVALUE")):
            cursor.expect("PARTITION")
            if word in ("FIRST", "LAST"):
                cursor.expect("LESS", "THAN")
                cursor.parenthesized()
    interval = cursor.text_between(start, cursor.position) or None
    count = cursor.integer() if cursor.accept("PARTITIONS") else None
    if cursor.accept("SUBPARTITION", "BY"):
        _read_method(cursor)
        if cursor.accept("SUBPARTITIONS"):
            cursor.integer()
    partitions = _read_partitions(cursor) if cursor.at("(") else ()
    if cursor.accept("UPDATE", "INDEXES"):
        cursor.parenthesized()
    return (ddl.PartitionBy(table, ddl.Partitioning(method, expression, columns, count, partitions, interval)),)


def _read_clause(verb: str, cursor: Cursor, table: ddl.TableRef) -> ddl.Clauses:
    """Read the rest of a clause after its verb and PARTITION."""

    def names() -> tuple[str, ...] | None:
        """Read the names of partitions; None for ALL."""
        return None if cursor.accept("ALL") else cursor.listed(lambda: cursor.name("a partition"))

    if verb == "ADD":
        cursor.accept("IF", "NOT", "EXISTS")
    elif verb in ("DROP", "TRUNCATE"):
        cursor.accept("IF", "EXISTS")
        kind = "drop_partition" if verb == "DROP" else "truncate_partition"
        return (ddl.ChangePartitions(table, kind, names()),)
    elif verb == "EXCHANGE":
        name = cursor.name("a partition")
        cursor.expect("WITH", "TABLE")
        other = cursor.table_name()
        if cursor.accept_any(("WITH", "WITHOUT")):
            cursor.expect("VALIDATION")
        return (ddl.ExchangePartition(table, name, other),)
    cursor.accept_any(_NOT_REPLICATED)
    match verb:
        case "ADD" if cursor.accept("PARTITIONS"):
            return (ddl.ChangePartitions(table, "add_partition", count=cursor.integer()),)
        case "ADD":
            added = _read_partitions(cursor) if cursor.at("(") else ()
            return (ddl.ChangePartitions(table, "add_partition", added=added),)
        case "REORGANIZE" if not cursor.at_name:  # The rows of all partitions (hash, key) are distributed again.
            return (ddl.ChangePartitions(table, "reorganize_partition"),)
        case "REORGANIZE":
            gone = names()
            cursor.expect("INTO")
            return (ddl.ChangePartitions(table, "reorganize_partition", gone, _read_partitions(cursor)),)
        case "COALESCE":
            return (ddl.ChangePartitions(table, "reorganize_partition", count=-cursor.integer()),)
        case _:  # It works on the files of partitions, and is alone in its statement.
            names()
            cursor.skip_until(())
            kind = "placement_tiflash_ttl_etc" if verb == "COMPACT" else "partition_maintenance"
            return (ddl.OtherClause(table, kind, UNLOGGED_FILES.get(verb)),)


def _read_option(cursor: Cursor, table: ddl.TableRef) -> ddl.Clauses:
    cursor.name("a partition")
    if not (cursor.accept("PLACEMENT", "POLICY") or cursor.accept("ATTRIBUTES")):
        raise cursor.expected("PLACEMENT POLICY or ATTRIBUTES")
    cursor.skip_clause()
    return (ddl.OtherClause(table, "placement_tiflash_ttl_etc"),)


PARTITION_CLAUSES: Final[dict[tuple[str, ...], Callable[[Cursor, ddl.TableRef], ddl.Clauses]]] = {
    **{
        (verb, "PARTITION"): partial(_read_clause, verb)
        for verb in ("ADD", "DROP", "TRUNCATE", "EXCHANGE", "REORGANIZE", "COALESCE", *_MAINTENANCE)
    },
    ("REMOVE", "PARTITIONING"): lambda _, table: (ddl.PartitionBy(table, None),),
    ("PARTITION", "BY"): read_partition_by,
    ("PARTITION",): _read_option,
}
"""The reader of each clause, which is called after these words."""


@dataclass(frozen=True, slots=True)
class RangeRows:
    """Rows whose partitioning values, compared as a tuple, are at least `lower` (None: no bound, which includes NULL)
    and below `upper` (None: no bound)."""

    lower: tuple[ddl.BoundValue, ...] | None
    upper: tuple[ddl.BoundValue, ...] | None


@dataclass(frozen=True, slots=True)
class ListRows:
    """Rows whose partitioning values are one of `rows`; for DEFAULT, those whose values are in none of `others`, the
    lists of the table's other partitions."""

    rows: tuple[tuple[ddl.BoundValue, ...], ...]
    others: tuple[tuple[ddl.BoundValue, ...], ...] = ()


@dataclass(frozen=True, slots=True)
class HashRows:
    """Rows whose expression modulo `count` is `remainder`."""

    remainder: int
    count: int


_HASHES: Final = frozenset({"hash", "linear hash", "key", "linear key"})
PartitionRows = RangeRows | ListRows | HashRows


def after(partitioning: ddl.Partitioning | None, clauses: Sequence[ddl.Clause]) -> ddl.Partitioning | None:
    """Return the partitioning after the clauses."""
    for clause in clauses:
        if isinstance(clause, ddl.PartitionBy):
            partitioning = clause.partitioning
        if not isinstance(clause, ddl.ChangePartitions) or partitioning is None or clause.kind == "truncate_partition":
            continue
        old, gone = partitioning.partitions, {name.lower() for name in clause.names or ()}
        if partitioning.method in _HASHES and (clause.count or (clause.added and not gone)):
            count = _count(partitioning)
            if clause.added:
                old = old or tuple(ddl.Partition(f"p{number}") for number in range(count))
            partitioning = replace(partitioning, count=count + clause.count + len(clause.added))
            old = () if clause.count < 0 else old
        # The new partitions come in the place of the first of the old ones.
        place = next((i for i, partition in enumerate(old) if partition.name.lower() in gone), len(old))
        kept = [partition for partition in old if partition.name.lower() not in gone]
        partitioning = replace(partitioning, partitions=(*kept[:place], *clause.added, *kept[place:]))
    return partitioning


def rows_of(scheme: ddl.Partitioning, name: str) -> PartitionRows:
    """Return which rows a partition holds. Raises `DdlError` where its definition does not determine them."""
    if scheme.interval is not None:
        raise DdlError(f"the bounds of partition {name} are not in the log: the table is partitioned by INTERVAL")
    folded, names = name.lower(), [partition.name.lower() for partition in scheme.partitions]
    position = names.index(folded) if folded in names else None
    if scheme.method in _HASHES:
        if scheme.method != "hash":
            raise DdlError(f"rows of a partition BY {scheme.method.upper()} cannot be told from their values")
        # Partitions without names have the names p0, p1, …
        if position is None and folded[:1] == "p" and folded[1:].isdigit() and int(folded[1:]) < _count(scheme):
            position = int(folded[1:])
        if position is not None:
            return HashRows(position, _count(scheme))
    if position is None:
        raise DdlError(f"partition {name} is not known: the log does not define it")
    match scheme.partitions[position].bound:
        case ddl.LessThan(upper):
            lower = scheme.partitions[position - 1].bound if position else None
            return RangeRows(lower.values if isinstance(lower, ddl.LessThan) else None, upper)
        case ddl.InValues(rows):
            others = [other.bound for other in scheme.partitions if other.name.lower() != folded]
            return ListRows(rows, tuple(row for each in others if isinstance(each, ddl.InValues) for row in each.rows))
        case None:
            raise DdlError(f"partition {name} has no bound in its definition")


def _count(scheme: ddl.Partitioning) -> int:
    return scheme.count if scheme.count is not None else max(1, len(scheme.partitions))
