"""Rows whose columns are not in the order that their table has at that point of the log.

A source that asks the database for a table's columns when it reads a row, as Canal does without its table history, is
behind with DDL now and then: it gives older values the names of newer columns. Where the names are the same ones, as
after two columns were exchanged or one was moved, their order tells it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Final

from cdc_lakehouse.changelog import ddl_kinds
from cdc_lakehouse.changelog.observed_schema import Sight
from cdc_lakehouse.changelog.schema import SchemaChange

_ADVICE: Final = (
    "what reads the log was behind with a statement and has named older values by newer columns; with Canal, switch on "
    "its table history (canal.instance.tsdb), and load the table anew"
)


def misordered(changes: Iterable[SchemaChange], sights: Iterable[Sight]) -> Iterator[SchemaChange]:
    """A change that holds the table, for each sight that contradicts what `changes`, in order, made of it. Columns
    that the table does not have, and those that the row leaves out, are others' concern."""
    told = list(changes)
    known: dict[tuple[str, str], SchemaChange] = {}
    place = 0

    def note(change: SchemaChange) -> None:
        if change.action == ddl_kinds.DROP_TABLE:
            known.pop((change.database, change.table), None)
        elif change.table and change.columns:
            known[change.database, change.table] = change

    for sight in sorted(sights, key=lambda each: each.commit_ts):
        while place < len(told) and told[place].commit_ts < sight.commit_ts and told[place].origin != sight.origin:
            note(told[place])
            place += 1
        table = known.get((sight.database, sight.table))
        if table is not None and (seen := _other_order(table, sight)) is not None:
            own = ", ".join(column.name for column in table.columns)
            yield replace(
                table, commit_ts=sight.commit_ts - 1, action=ddl_kinds.NOT_UNDERSTOOD, query="",
                origin=f"{sight.origin}#order",
                fault=f"rows have the columns in the order {seen}, and the table has {own}: {_ADVICE}",
            )  # fmt: skip


def _other_order(table: SchemaChange, sight: Sight) -> str | None:
    own = [column.name.lower() for column in table.columns]
    there = {name.lower() for name, _ in sight.columns}
    row = [name for name, _ in sight.columns if name.lower() in own]
    wanted = [name for name in own if name in there]
    return None if [name.lower() for name in row] == wanted else ", ".join(row)
