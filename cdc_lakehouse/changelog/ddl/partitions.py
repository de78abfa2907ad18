"""Partitions after a statement, and which rows a partition holds.

A partitioning column is part of every unique key, so a row's partition follows from its key alone: this decides which
rows a DROP or TRUNCATE PARTITION removes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from cdc_lakehouse.changelog.ddl import clauses as ddl
from cdc_lakehouse.errors import DdlError


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
