"""Decisions of people about tables: the `approvals` table has rewrites that the policy would hold and that a person has
approved, the `holds` table what a person holds until a person releases it."""

from __future__ import annotations

import datetime
from dataclasses import dataclass
from typing import Final

from cdc_lakehouse.changelog.positions import BEGINNING
from cdc_lakehouse.lake.catalog import Lake
from cdc_lakehouse.lake.tables.small_table import SmallTable, equal, schema_of


@dataclass(frozen=True, slots=True)
class Approval:
    """Allows a table's statements with a commit-ts at or below `commit_ts` to be carried out."""

    incarnation: str
    database: str
    table: str
    commit_ts: int
    approved_at: datetime.datetime


APPROVALS_SCHEMA: Final = schema_of(Approval)


class Approvals:
    def __init__(self, lake: Lake, feed: str) -> None:
        self._table = SmallTable(lake, feed, "approvals", APPROVALS_SCHEMA)

    def upto(self, incarnation: str) -> int:
        """Return the commit-ts up to which a table's statements are approved; 0 when none is."""
        found = (row["commit_ts"] for row in self._table.read() if row["incarnation"] == incarnation)
        return max(found, default=BEGINNING)

    def add(self, approval: Approval) -> None:
        self._table.write([approval])


@dataclass(frozen=True, slots=True)
class ManualHold:
    """A table that a person holds: its name at that time, the reason, the person and the time."""

    incarnation: str
    database: str
    table: str
    reason: str
    held_by: str
    held_at: datetime.datetime


MANUAL_HOLDS_SCHEMA: Final = schema_of(ManualHold)


class ManualHolds:
    def __init__(self, lake: Lake, feed: str) -> None:
        self._table = SmallTable(lake, feed, "holds", MANUAL_HOLDS_SCHEMA)

    def all(self) -> list[ManualHold]:
        return [ManualHold(**row) for row in self._table.read()]

    def add(self, hold: ManualHold) -> None:
        """Hold a table; the reason of an existing hold is replaced."""
        self._table.write([hold], replacing=equal("incarnation", hold.incarnation))

    def remove(self, incarnation: str) -> None:
        """Release a table."""
        self._table.write([], replacing=equal("incarnation", incarnation))
