"""Plan the operations that change an Iceberg table's schema to the required one; nothing is executed here.

Columns are matched by the source's column id (`changelog.schema.Column.id`), so renames, swaps of names, and a dropped
name that is added again with another type need no special case. The plan is executed in the transaction that writes the
rows: readers see both or none."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from cdc_lakehouse.changelog.mysql_types import promotable
from cdc_lakehouse.lake.iceberg_java import Add, Drop, Move, Rename, SchemaOperation, Widen


@dataclass(frozen=True, slots=True)
class LakeColumn:
    """A column of a current-state table: the source's column id, its name and Iceberg type, and the value in rows that
    were written before the column was added."""

    id: int
    name: str
    type: str
    initial: Any = None


@dataclass(frozen=True, slots=True)
class Plan:
    """A plan of schema changes. `steps` are executed one after the other; the names in a step are those before it.
    `rewritten` are the columns whose values in existing rows must be rewritten: those whose values must be converted,
    which are dropped and added again, and new ones whose default the table's format cannot hold."""

    steps: tuple[tuple[SchemaOperation, ...], ...]
    rewritten: tuple[int, ...]


def plan_evolution(
    current: Sequence[LakeColumn],
    target: Sequence[LakeColumn],
    order: Sequence[str],
    converted: frozenset[int] = frozenset(),
    leftover: Sequence[str] = (),
    *,
    defaults: bool = True,
) -> Plan:
    """Plan the changes from the `current` columns to the `target` columns.

    `order` are the names of all columns of the table in order, including those that are not the source's; these are
    placed after the source's. `converted` are ids of columns whose values change even if the Iceberg type stays (a time
    with fewer digits). `leftover` are columns to drop in any case. `defaults` says whether the table's format has
    initial defaults.
    """
    have = {column.id: column for column in current}
    changed: list[SchemaOperation] = [Drop(name) for name in leftover]
    kept: set[int] = set()
    added: list[Add] = []
    rewritten: list[int] = []
    for column in target:
        old = have.get(column.id)
        if old is not None and column.id not in converted and _readable(old.type, column.type):
            kept.add(column.id)
            if old.type != column.type:
                changed.append(Widen(old.name, column.type))
            continue
        default = column.initial if old is None else None
        added.append(Add(column.name, column.type, default if defaults else None))
        if old is not None or not (defaults or default is None):
            rewritten.append(column.id)
    changed += [Drop(column.name) for column in current if column.id not in kept]
    renames = {
        have[column.id].name: column.name
        for column in target
        if column.id in kept and have[column.id].name != column.name
    }
    changed += [Rename(old, new) for old, new in renames.items()]
    dropped = {operation.name for operation in changed if isinstance(operation, Drop)}
    present = [renames.get(name, name) for name in order if name not in dropped] + [add.name for add in added]
    moves = _moves(present, [column.name for column in target])
    steps: tuple[Sequence[SchemaOperation], ...] = (changed, added, moves)
    return Plan(tuple(tuple(step) for step in steps if step), tuple(rewritten))


def _readable(current: str, target: str) -> bool:
    return current == target or promotable(current, target)


def _moves(present: Sequence[str], wanted: Sequence[str]) -> tuple[Move, ...]:
    """Return the moves that bring the wanted names to the front, in their order."""
    moves: list[Move] = []
    left = list(present)
    for position, name in enumerate(wanted):
        if left[position] != name:
            moves.append(Move(name, wanted[position - 1] if position else None))
            left.remove(name)
            left.insert(position, name)
    return tuple(moves)
