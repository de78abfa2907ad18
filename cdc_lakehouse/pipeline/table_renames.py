"""Rename current-state tables to the names that the source uses.

A rename chain or swap may be incomplete when a run ends: tables are found by their incarnation, so each run simply
continues from the current names to the wanted ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from cdc_lakehouse.changelog.history import Incarnation
from cdc_lakehouse.lake.current.tables import CurrentTables
from cdc_lakehouse.lake.names import Identifier
from cdc_lakehouse.pipeline.holds import Holds, hold_reason


@dataclass(frozen=True, slots=True)
class TableLocation:
    """A table with its current and its wanted identifier."""

    life: Incarnation
    now: Identifier
    wanted: Identifier


def rename_to_source_names(
    tables: CurrentTables,
    locations: list[TableLocation],
    lives: Mapping[str, Incarnation],
    rename: Callable[[Identifier, Identifier], None],
) -> Holds:
    """Rename until each table has its wanted name; return holds for those that cannot get it, or whose rename fails.
    `lives` are all tables of the feed. Raises a fault of the engine: the next run continues."""
    moving = [table for table in locations if table.now != table.wanted]
    blocked: dict[str, str] = {}

    def renamed(table: TableLocation, now: Identifier, wanted: Identifier) -> bool:
        try:
            rename(now, wanted)
        except Exception as error:  # noqa: BLE001 - One bad table never stops the others; the next run tries again.
            blocked[table.life.id] = hold_reason(error, f"be renamed from {now} to {wanted}", table.life.last.name)
            moving.remove(table)
            return False
        return True

    while moving:
        free = next((table for table in moving if tables.is_free(table.wanted)), None)
        if free is not None:
            if renamed(free, free.now, free.wanted):
                moving.remove(free)
            continue
        first = moving[0]
        occupant = tables.at(first.wanted)
        own = next((table for table in moving if table.now == first.wanted), None)
        if own is not None:
            # A cycle: one of them is parked.
            parking = tables.parking_identifier(own.life, own.life.last.name)
            if renamed(own, own.now, parking):
                moving[moving.index(own)] = TableLocation(own.life, parking, own.wanted)
        elif occupant is not None and occupant.dropped_ts is not None and occupant.incarnation in lives:
            # It was dropped in the source, or renamed to a name that is not taken, and kept here; its name is needed
            # again.
            life = lives[occupant.incarnation]
            parking = tables.parking_identifier(life, occupant.name)
            if life.dropped_ts != occupant.dropped_ts:
                parking = tables.left_identifier(occupant.name, occupant.dropped_ts)
            renamed(first, first.wanted, parking)
        else:
            whose = "a table that is not the feed's, or cannot be read" if occupant is None else "a table that is held"
            blocked[first.life.id] = f"its name {first.wanted} is that of {whose}"
            moving.remove(first)
    return Holds(blocked)
