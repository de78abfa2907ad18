"""PARTITION BY and partition definitions: MySQL reference manual, "CREATE TABLE Statement"; TiDB's own."""

from __future__ import annotations

from typing import Final

from cdc_lakehouse.changelog.ddl.cursor import Cursor
from cdc_lakehouse.changelog.ddl.definitions import (
    BoundValue,
    DefaultValue,
    InValues,
    LessThan,
    MaxValue,
    Partition,
    Partitioning,
    PartitionMethod,
)
from cdc_lakehouse.changelog.ddl.literals import read_bound

_METHODS: Final[dict[tuple[str, ...], PartitionMethod]] = {
    ("RANGE", "COLUMNS"): "range columns", ("RANGE", "FIELDS"): "range columns", ("RANGE",): "range",
    ("LIST", "COLUMNS"): "list columns", ("LIST", "FIELDS"): "list columns", ("LIST",): "list",
    ("LINEAR", "HASH"): "linear hash", ("HASH",): "hash", ("LINEAR", "KEY"): "linear key", ("KEY",): "key",
}  # fmt: skip
_OPTIONS: Final = (
    ("STORAGE", "ENGINE"), ("ENGINE",), ("COMMENT",), ("DATA", "DIRECTORY"), ("INDEX", "DIRECTORY"),
    ("MAX_ROWS",), ("MIN_ROWS",), ("TABLESPACE",), ("NODEGROUP",), ("PLACEMENT", "POLICY"),
)  # fmt: skip


def read_partition_by(cursor: Cursor) -> Partitioning:
    """What follows PARTITION BY."""
    method, expression, columns = _read_method(cursor)
    interval = _read_interval(cursor)
    count = cursor.integer() if cursor.accept("PARTITIONS") else None
    subpartitions = _read_subpartition_by(cursor)
    partitions = read_partitions(cursor) if cursor.at("(") else ()
    if cursor.accept("UPDATE", "INDEXES"):
        cursor.parenthesized()
    return Partitioning(method, expression, columns, count, partitions, subpartitions, interval)


def _read_method(cursor: Cursor) -> tuple[PartitionMethod, str, tuple[str, ...]]:
    words = next((words for words in _METHODS if cursor.accept(*words)), None)
    if words is None:
        raise cursor.expected("RANGE, LIST, HASH or KEY")
    method = _METHODS[words]
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
    """The names in the parentheses from position `start` to the cursor; none where there is anything else."""
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
    """TiDB: INTERVAL (...) [FIRST|LAST PARTITION LESS THAN (...)] [NULL|MAXVALUE PARTITION], as its text."""
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


def _read_subpartition_by(cursor: Cursor) -> int:
    if not cursor.accept("SUBPARTITION", "BY"):
        return 0
    _read_method(cursor)
    return cursor.integer() if cursor.accept("SUBPARTITIONS") else 1


def read_partitions(cursor: Cursor) -> tuple[Partition, ...]:
    """Definitions of partitions, in parentheses."""
    return cursor.enclosed(lambda: _read_partition(cursor))


def _read_partition(cursor: Cursor) -> Partition:
    cursor.expect("PARTITION")
    name = cursor.name("a partition")
    bound = _read_values(cursor)
    _skip_options(cursor)
    subpartitions = cursor.enclosed(lambda: _skip_subpartition(cursor)) if cursor.at("(") else ()
    return Partition(name, bound, len(subpartitions))


def _read_values(cursor: Cursor) -> LessThan | InValues | None:
    if cursor.accept("DEFAULT"):
        return InValues(((DefaultValue(),),))
    if not cursor.accept("VALUES"):
        return None
    if cursor.accept("IN"):
        return InValues(cursor.enclosed(lambda: _read_row(cursor)))
    cursor.expect("LESS", "THAN")
    if cursor.accept("MAXVALUE"):
        return LessThan((MaxValue(),))
    return LessThan(cursor.enclosed(lambda: read_bound(cursor)))


def _read_row(cursor: Cursor) -> tuple[BoundValue, ...]:
    """One value, or several in parentheses; `(1 + 1) * 2` begins like the latter and is one value."""
    start = cursor.position
    if cursor.at("("):
        row = cursor.enclosed(lambda: read_bound(cursor))
        if cursor.at(",") or cursor.at(")"):
            return row
        cursor.position = start
    return (read_bound(cursor),)


def _skip_options(cursor: Cursor) -> None:
    while any(cursor.accept(*words) for words in _OPTIONS):
        cursor.accept("=")
        cursor.word_or_string("a value")


def _skip_subpartition(cursor: Cursor) -> None:
    cursor.expect("SUBPARTITION")
    cursor.name("a subpartition")
    _skip_options(cursor)
