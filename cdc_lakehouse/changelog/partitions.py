"""Partitioning of source tables, as far as it decides which rows a DROP or TRUNCATE PARTITION removes.

A partitioning column is part of every unique key, so a row's partition follows from its key alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from cdc_lakehouse.changelog.ddl.clauses import (
    BoundValue,
    ChangePartitions,
    Clause,
    InValues,
    LessThan,
    Partition,
    PartitionBy,
    Partitioning,
)
from cdc_lakehouse.errors import DdlError


@dataclass(frozen=True, slots=True)
class RangeRows:
    """Rows whose partitioning values, compared as a tuple, are at least `lower` (None: no bound, which includes NULL)
    and below `upper` (None: no bound)."""

    lower: tuple[BoundValue, ...] | None
    upper: tuple[BoundValue, ...] | None


@dataclass(frozen=True, slots=True)
class ListRows:
    """Rows whose partitioning values are one of `rows`; for DEFAULT, those whose values are in none of `others`, the
    lists of the table's other partitions."""

    rows: tuple[tuple[BoundValue, ...], ...]
    others: tuple[tuple[BoundValue, ...], ...] = ()


@dataclass(frozen=True, slots=True)
class HashRows:
    """Rows whose expression modulo `count` is `remainder`."""

    remainder: int
    count: int


_HASHES: Final = frozenset({"hash", "linear hash", "key", "linear key"})
PartitionRows = RangeRows | ListRows | HashRows


def after(partitioning: Partitioning | None, clauses: Sequence[Clause]) -> Partitioning | None:
    """Return the partitioning after the clauses."""
    for clause in clauses:
        match clause:
            case PartitionBy(_, new):
                partitioning = new
            case ChangePartitions() if partitioning is not None and clause.kind != "truncate_partition":
                partitioning = _changed(partitioning, clause)
            case _:
                pass
    return partitioning


def _changed(scheme: Partitioning, clause: ChangePartitions) -> Partitioning:
    old, gone = scheme.partitions, _folded(clause.names or ())
    if scheme.method in _HASHES and (clause.count or (clause.added and not gone)):
        count = _count(scheme)
        if clause.added:
            old = old or tuple(Partition(f"p{number}") for number in range(count))
        scheme = replace(scheme, count=count + clause.count + len(clause.added))
        old = () if clause.count < 0 else old
    # The new partitions come in the place of the first of the old ones.
    place = next((i for i, partition in enumerate(old) if partition.name.lower() in gone), len(old))
    kept = [partition for partition in old if partition.name.lower() not in gone]
    return replace(scheme, partitions=(*kept[:place], *clause.added, *kept[place:]))


def rows_of(scheme: Partitioning, name: str) -> PartitionRows:
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
        case LessThan(upper):
            lower = scheme.partitions[position - 1].bound if position else None
            return RangeRows(lower.values if isinstance(lower, LessThan) else None, upper)
        case InValues(rows):
            others = tuple(
                row
                for other in scheme.partitions
                if other.name.lower() != name.lower() and isinstance(other.bound, InValues)
                for row in other.bound.rows
            )
            return ListRows(rows, others)
        case None:
            raise DdlError(f"partition {name} has no bound in its definition")


def _hash_rows(scheme: Partitioning, name: str, names: Sequence[str]) -> HashRows:
    if scheme.method != "hash":
        raise DdlError(f"rows of a partition BY {scheme.method.upper()} cannot be told from their values")
    # Partitions without names have the names p0, p1, …
    if name.lower() in names:
        return HashRows(names.index(name.lower()), _count(scheme))
    if name[:1].lower() == "p" and name[1:].isdigit() and int(name[1:]) < _count(scheme):
        return HashRows(int(name[1:]), _count(scheme))
    raise DdlError(f"partition {name} is not known: the log does not define it")


def _count(scheme: Partitioning) -> int:
    return scheme.count if scheme.count is not None else max(1, len(scheme.partitions))


def _folded(names: Sequence[str]) -> frozenset[str]:
    return frozenset(name.lower() for name in names)
