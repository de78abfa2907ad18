"""How an Iceberg table's schema gets from what it is to what it must be: a plan of operations, nothing is run here.

Columns are matched by the source's identity of them (`changelog.schema.Column.id`), so renames, swaps of names, and a
dropped name that comes back with another type need no special case. The plan has two parts:

- `before`: what must be there before rows are written: new columns (under a name of their own where theirs is still
  taken, or where the column replaces one of another type) and wider types. Readers see no value change.
- `publish`: what goes with the rows, in the same commit: drops, renames, order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from cdc_lakehouse.changelog.mysql_types import promotable

STAGED_PREFIX: Final = "_cdc_staged_"


@dataclass(frozen=True, slots=True)
class Add:
    """`default` is the Iceberg initial default as a Python value, None for NULL."""

    name: str
    type: str
    default: Any = None


@dataclass(frozen=True, slots=True)
class Drop:
    name: str


@dataclass(frozen=True, slots=True)
class Rename:
    name: str
    new_name: str


@dataclass(frozen=True, slots=True)
class Widen:
    name: str
    type: str


@dataclass(frozen=True, slots=True)
class Move:
    """To the place after another column, or to the first."""

    name: str
    after: str | None


SchemaOperation = Add | Drop | Rename | Widen | Move


@dataclass(frozen=True, slots=True)
class LakeColumn:
    """A column of a current-state table: the source's identity of it, name and Iceberg type in the lake."""

    id: int
    name: str
    type: str
    initial: Any = None


@dataclass(frozen=True, slots=True)
class Plan:
    """`names` says under which name each column is written until the plan is published; `rewritten` are the columns
    whose old values must be converted: (id, name of the old column, name of the new one)."""

    before: tuple[SchemaOperation, ...]
    publish: tuple[tuple[SchemaOperation, ...], ...]
    names: tuple[tuple[int, str], ...]
    rewritten: tuple[tuple[int, str, str], ...]

    @property
    def staged(self) -> tuple[str, ...]:
        """Columns that the plan adds before rows are written."""
        return tuple(operation.name for operation in self.before if isinstance(operation, Add))

    @property
    def changes_schema(self) -> bool:
        return bool(self.before or self.publish)


def plan_evolution(
    current: Sequence[LakeColumn],
    target: Sequence[LakeColumn],
    order: Sequence[str],
    converted: frozenset[int] = frozenset(),
) -> Plan:
    """Plan the way from the `current` columns to the `target` ones.

    `order` are the names of all columns of the table as they stand, also those that are not the source's; these go
    behind the source's. `converted` are ids whose values change though the Iceberg type may stay (a time with fewer
    digits).
    """
    have = {column.id: column for column in current}
    taken = {name.lower() for name in order}
    before: list[SchemaOperation] = []
    rewritten: list[tuple[int, str, str]] = []
    names: dict[int, str] = {}
    for column in target:
        old = have.get(column.id)
        if old is not None and column.id not in converted and _readable(old.type, column.type):
            if old.type != column.type:
                before.append(Widen(old.name, column.type))
            names[column.id] = old.name
            continue
        # A new column: under its own name where that is free now, in any case: Spark makes no difference.
        name = column.name if old is None and column.name.lower() not in taken else f"{STAGED_PREFIX}{column.id}"
        taken.add(name.lower())
        names[column.id] = name
        before.append(Add(name, column.type, column.initial if old is None else None))
        if old is not None:
            rewritten.append((column.id, old.name, name))
    kept = set(names.values())
    drops = [Drop(column.name) for column in current if column.name not in kept]
    renames = [Rename(names[column.id], column.name) for column in target if names[column.id] != column.name]
    moves = _moves(_after(order, before, drops, renames), [column.name for column in target])
    publish = tuple(step for step in ((*drops, *renames), moves) if step)
    return Plan(tuple(before), publish, tuple(names.items()), tuple(rewritten))


def _readable(current: str, target: str) -> bool:
    return current == target or promotable(current, target)


def _after(
    order: Sequence[str], before: Sequence[SchemaOperation], drops: Sequence[Drop], renames: Sequence[Rename]
) -> list[str]:
    """The table's columns once all but the order is done: added ones stand last."""
    dropped = {drop.name for drop in drops}
    renamed = {rename.name: rename.new_name for rename in renames}
    added = [operation.name for operation in before if isinstance(operation, Add)]
    return [renamed.get(name, name) for name in (*order, *added) if name not in dropped]


def _moves(present: Sequence[str], wanted: Sequence[str]) -> tuple[Move, ...]:
    """The moves that bring the wanted names to the front, in their order."""
    moves: list[Move] = []
    left = list(present)
    for position, name in enumerate(wanted):
        if left[position] != name:
            moves.append(Move(name, wanted[position - 1] if position else None))
            left.remove(name)
            left.insert(position, name)
    return tuple(moves)
