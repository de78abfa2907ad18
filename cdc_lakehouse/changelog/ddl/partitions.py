"""Partitions in DDL text (PARTITION BY, definitions, the clauses of ALTER TABLE), and which rows a partition holds.

MySQL reference manual, "CREATE TABLE Statement" and "ALTER TABLE Partition Operations"; TiDB's own. A partitioning
column is part of every unique key, so a row's partition follows from its key alone: this decides which rows a DROP or
TRUNCATE PARTITION removes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal

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

_Reader = Callable[[Cursor, ddl.TableRef], ddl.Clauses]
_NOT_REPLICATED: Final = ("LOCAL", "NO_WRITE_TO_BINLOG")


def _add(cursor: Cursor, table: ddl.TableRef) -> ddl.Clauses:
    cursor.if_not_exists()
    cursor.accept_any(_NOT_REPLICATED)
    if cursor.accept("PARTITIONS"):
        return (ddl.ChangePartitions(table, "add_partition", count=cursor.integer()),)
    added = _read_partitions(cursor) if cursor.at("(") else ()
    return (ddl.ChangePartitions(table, "add_partition", added=added),)


def _names(cursor: Cursor) -> tuple[str, ...] | None:
    """Read the names of partitions; None for ALL."""
    return None if cursor.accept("ALL") else cursor.listed(lambda: cursor.name("a partition"))


def _leave(kind: Literal["drop_partition", "truncate_partition"]) -> _Reader:
    def read(cursor: Cursor, table: ddl.TableRef) -> ddl.Clauses:
        cursor.if_exists()
        return (ddl.ChangePartitions(table, kind, _names(cursor)),)

    return read


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


def _maintain(kind: ddl.NoEffectKind, unlogged: str | None = None) -> _Reader:
    """Return the reader of a clause that works on the files of partitions. It is alone in its statement."""

    def read(cursor: Cursor, table: ddl.TableRef) -> ddl.Clauses:
        cursor.accept_any(_NOT_REPLICATED)
        _names(cursor)
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
PARTITION_CLAUSES: Final[dict[tuple[str, ...], _Reader]] = {
    ("ADD", "PARTITION"): _add,
    ("DROP", "PARTITION"): _leave("drop_partition"),
    ("TRUNCATE", "PARTITION"): _leave("truncate_partition"),
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


# --- Rows of partitions ---


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
        match clause:
            case ddl.PartitionBy(_, new):
                partitioning = new
            case ddl.ChangePartitions() if partitioning is not None and clause.kind != "truncate_partition":
                partitioning = _changed(partitioning, clause)
            case _:
                pass
    return partitioning


def _changed(scheme: ddl.Partitioning, clause: ddl.ChangePartitions) -> ddl.Partitioning:
    old, gone = scheme.partitions, _folded(clause.names or ())
    if scheme.method in _HASHES and (clause.count or (clause.added and not gone)):
        count = _count(scheme)
        if clause.added:
            old = old or tuple(ddl.Partition(f"p{number}") for number in range(count))
        scheme = replace(scheme, count=count + clause.count + len(clause.added))
        old = () if clause.count < 0 else old
    # The new partitions come in the place of the first of the old ones.
    place = next((i for i, partition in enumerate(old) if partition.name.lower() in gone), len(old))
    kept = [partition for partition in old if partition.name.lower() not in gone]
    return replace(scheme, partitions=(*kept[:place], *clause.added, *kept[place:]))


def rows_of(scheme: ddl.Partitioning, name: str) -> PartitionRows:
    """Return which rows a partition holds. Raises `DdlError` where its definition does not determine them."""
    if scheme.interval is not None:
        raise DdlError(f"the bounds of partition {name} are not in the log: the table is partitioned by INTERVAL")
    names = [partition.name.lower() for partition in scheme.partitions]
    if scheme.method in _HASHES:
        return _hash_rows(scheme, name, names)
    if name.lower() not in names:
        raise DdlError(f"partition {name} is not known: the log does not define it")
    position = names.index(name.lower())
    bound = scheme.partitions[position].bound
    match bound:
        case ddl.LessThan(upper):
            lower = scheme.partitions[position - 1].bound if position else None
            return RangeRows(lower.values if isinstance(lower, ddl.LessThan) else None, upper)
        case ddl.InValues(rows):
            others = tuple(
                row
                for other in scheme.partitions
                if other.name.lower() != name.lower() and isinstance(other.bound, ddl.InValues)
                for row in other.bound.rows
            )
            return ListRows(rows, others)
        case None:
            raise DdlError(f"partition {name} has no bound in its definition")


def _hash_rows(scheme: ddl.Partitioning, name: str, names: Sequence[str]) -> HashRows:
    if scheme.method != "hash":
        raise DdlError(f"rows of a partition BY {scheme.method.upper()} cannot be told from their values")
    # Partitions without names have the names p0, p1, …
    if name.lower() in names:
        return HashRows(names.index(name.lower()), _count(scheme))
    if name[:1].lower() == "p" and name[1:].isdigit() and int(name[1:]) < _count(scheme):
        return HashRows(int(name[1:]), _count(scheme))
    raise DdlError(f"partition {name} is not known: the log does not define it")


def _count(scheme: ddl.Partitioning) -> int:
    return scheme.count if scheme.count is not None else max(1, len(scheme.partitions))


def _folded(names: Sequence[str]) -> frozenset[str]:
    return frozenset(name.lower() for name in names)
