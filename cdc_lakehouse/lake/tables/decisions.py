"""The `decisions` table: what people decided about tables, on which each run acts."""

from __future__ import annotations

import datetime
from dataclasses import dataclass
from typing import Final, Literal

from cdc_lakehouse.changelog.positions import BEGINNING
from cdc_lakehouse.lake.catalog import Lake
from cdc_lakehouse.lake.tables.small_table import SmallTable, schema_of

DecisionKind = Literal["hold", "rewrite"]


@dataclass(frozen=True, slots=True)
class Decision:
    """A decision about a table, with the name that it had then. A `hold` keeps it as it is, for a `reason`, until a
    person releases it. A `rewrite` allows statements with a commit-ts at or below `commit_ts`, which the policy would
    hold."""

    kind: DecisionKind
    incarnation: str
    database: str
    table: str
    decided_at: datetime.datetime
    decided_by: str | None = None
    reason: str | None = None
    commit_ts: int | None = None


SCHEMA: Final = schema_of(Decision)


class Decisions:
    def __init__(self, lake: Lake, feed: str) -> None:
        self._table = SmallTable(lake, feed, "decisions", SCHEMA)

    def holds(self) -> list[Decision]:
        return [Decision(**row) for row in self._table.read() if row["kind"] == "hold"]

    def approved_upto(self, incarnation: str) -> int:
        """Return the commit-ts up to which a table's rewrites are allowed; 0 when none is."""
        of_table = (row for row in self._table.read() if (row["kind"], row["incarnation"]) == ("rewrite", incarnation))
        return max((row["commit_ts"] for row in of_table), default=BEGINNING)

    def add(self, decision: Decision) -> None:
        """Add a decision, which replaces one of its kind about the same table."""
        same = {"kind": [decision.kind], "incarnation": [decision.incarnation]}
        self._table.write([decision], replacing=same)

    def release(self, incarnation: str) -> None:
        """Remove the hold of a table."""
        self._table.write([], replacing={"kind": ["hold"], "incarnation": [incarnation]})
