"""A person's decisions about one table: hold it, resume it, or recompute it. The next run acts on them."""

from __future__ import annotations

import datetime
from collections.abc import Iterable
from dataclasses import dataclass, field

from cdc_lakehouse.changelog.history import Incarnation
from cdc_lakehouse.changelog.schema import TableName, TableVersion
from cdc_lakehouse.errors import ConfigurationError
from cdc_lakehouse.lake.current.tables import CurrentTables
from cdc_lakehouse.lake.tables.approvals import Approval
from cdc_lakehouse.lake.tables.manual_holds import ManualHold
from cdc_lakehouse.pipeline.holds import unapproved
from cdc_lakehouse.pipeline.run import FeedRun
from cdc_lakehouse.pipeline.taken_tables import is_taken


@dataclass(frozen=True)
class Resumed:
    """What may continue for a table: the hold that was removed, and the statements whose rewrite is approved."""

    hold: ManualHold | None = None
    approved: tuple[TableVersion, ...] = field(default=())

    def __bool__(self) -> bool:
        return self.hold is not None or bool(self.approved)


def hold_table(run: FeedRun, table: str, reason: str, held_by: str, now: datetime.datetime) -> None:
    """Hold a table (`database.table`) at its last cut. Raises `ConfigurationError` when the feed has no such table."""
    life = _live(run, table)
    name = life.last.name
    run.manual_holds.add(ManualHold(life.id, name.database, name.table, reason, held_by, now))


def resume_table(run: FeedRun, table: str, now: datetime.datetime) -> Resumed:
    """Resume a table that a person holds, or whose rewrite waits. A hold is found by the table's current name, or by
    its name when it was held."""
    lives = run.history.history.incarnations()
    hold = next((each for each in run.manual_holds.all() if table in _names(each, lives.get(each.incarnation))), None)
    if hold is not None:
        run.manual_holds.remove(hold.incarnation)
    tables = CurrentTables(run.lake, run.feed)
    approved: list[TableVersion] = []
    for life in lives.values():
        waiting = unapproved(run, life, tables.find) if str(life.last.name) == table else ()
        if waiting:
            name = life.last.name
            run.approvals.add(Approval(life.id, name.database, name.table, waiting[-1].commit_ts, now))
            approved += waiting
    return Resumed(hold, tuple(approved))


def tables_named(run: FeedRun, tables: Iterable[str]) -> frozenset[TableName]:
    """Return the live tables of these names (`database.table`). Raises `ConfigurationError` when a name has none."""
    return frozenset(_live(run, table).last.name for table in tables)


def _names(hold: ManualHold, life: Incarnation | None) -> set[str]:
    return {f"{hold.database}.{hold.table}", *(() if life is None else (str(life.last.name),))}


def _live(run: FeedRun, table: str) -> Incarnation:
    for life in run.history.history.incarnations().values():
        if str(life.last.name) == table and life.dropped_ts is None and is_taken(run.feed.tables, life):
            return life
    raise ConfigurationError(
        f"the feed has no table {table}", feed=run.feed.name, advice="name one as database.table that `status` lists"
    )
