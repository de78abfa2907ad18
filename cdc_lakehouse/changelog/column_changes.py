"""What a version of a table changes of its columns, by their identity."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cdc_lakehouse.changelog.mysql_types import type_text
from cdc_lakehouse.changelog.schema import Column, TableVersion


@dataclass(frozen=True, slots=True)
class ColumnChange:
    """A column before and after, None where it was not there or is no more. `moved` says that its place among those
    that stayed is another one; `key_before` and `key_after` whether it is part of the key."""

    before: Column | None
    after: Column | None
    moved: bool = False
    key_before: bool = False
    key_after: bool = False


def column_changes(before: TableVersion, after: TableVersion) -> list[ColumnChange]:
    """Only the columns that differ: those that are gone first, then the others in their new order."""
    old = {column.id: column for column in before.columns}
    new = {column.id: column for column in after.columns}
    moved = _moved([id for id in old if id in new], [id for id in new if id in old])
    gone = [ColumnChange(column, None, key_before=id in before.key) for id, column in old.items() if id not in new]
    stayed = [
        ColumnChange(old.get(id), column, id in moved, id in before.key, id in after.key) for id, column in new.items()
    ]
    return gone + [change for change in stayed if _differs(change)]


def _differs(change: ColumnChange) -> bool:
    before, after = change.before, change.after
    if before is None or after is None or change.moved or change.key_before != change.key_after:
        return True
    return (before.name, before.type, before.nullable) != (after.name, after.type, after.nullable)


def _moved(before: Sequence[int], after: Sequence[int]) -> set[int]:
    """The fewest that must have moved: what is left of the new order besides its longest part in the old order."""
    place = {id: number for number, id in enumerate(before)}
    longest: list[list[int]] = []
    for id in after:
        fitting = [run for run in longest if place[run[-1]] < place[id]]
        longest.append([*_longest(fitting), id])
    return set(after) - set(_longest(longest))


def _longest(runs: Sequence[list[int]]) -> list[int]:
    return max(runs, key=len) if runs else []


def as_lines(changes: Sequence[ColumnChange]) -> list[str]:
    """The changes as lines of a diff: `-` how a column was, `+` how it is."""
    lines: list[str] = []
    for change in changes:
        lines += [] if change.before is None else [f"- {_described(change.before, change.key_before)}"]
        moved = " (moved)" if change.moved else ""
        lines += [] if change.after is None else [f"+ {_described(change.after, change.key_after)}{moved}"]
    return lines


def _described(column: Column, is_key: bool) -> str:
    nullable = "" if column.nullable else " NOT NULL"
    return f"{column.name} {type_text(column.type)}{nullable}{' KEY' if is_key else ''}"
