"""The `holds` table: tables that a person holds, until a person lets them go on."""

from __future__ import annotations

import datetime
from dataclasses import dataclass
from typing import Final

from cdc_lakehouse.lake.catalog import Lake
from cdc_lakehouse.lake.tables.small_table import SmallTable, equal, schema_of


@dataclass(frozen=True, slots=True)
class ManualHold:
    """A table that a person holds: under the name that it had then, why, who, and since when."""

    incarnation: str
    database: str
    table: str
    reason: str
    held_by: str
    held_at: datetime.datetime


SCHEMA: Final = schema_of(ManualHold)


class ManualHolds:
    def __init__(self, lake: Lake, feed: str) -> None:
        self._table = SmallTable(lake, feed, "holds", SCHEMA)

    def all(self) -> list[ManualHold]:
        return [ManualHold(**row) for row in self._table.read()]

    def add(self, hold: ManualHold) -> None:
        """Hold a table; one that is held already is held for the new reason."""
        self._table.write([hold], replacing=equal("incarnation", hold.incarnation))

    def remove(self, incarnation: str) -> None:
        """Let a table go on."""
        self._table.write([], replacing=equal("incarnation", incarnation))
