"""Rewrites that wait for a person, where the policy says so."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from cdc_lakehouse.changelog.history import Incarnation
from cdc_lakehouse.changelog.schema import TableVersion
from cdc_lakehouse.lake.current.tables import CurrentTables, TableState
from cdc_lakehouse.pipeline.run import FeedRun

Finder = Callable[[Incarnation], TableState | None]


def hold_unapproved(run: FeedRun, lives: Mapping[str, Incarnation], held: dict[str, str]) -> None:
    """Adds to `held` the tables that have a rewrite which nobody has approved."""
    tables = CurrentTables(run.lake, run.feed)
    for id, life in lives.items():
        if id not in held and (waiting := unapproved(run, life, tables.find)):
            held[id] = waiting_reason(life, waiting)


def unapproved(run: FeedRun, life: Incarnation, find: Finder) -> Sequence[TableVersion]:
    """The rewrites that a table waits with. One that has no rows yet has none to rewrite."""
    name = life.last.name
    if run.feed.rewrite_of(name.database, name.table) == "apply" or life.dropped_ts is not None:
        return ()
    rewrites = [version for version in life.versions[1:] if version.effect == "rewrite"]
    approved = run.approvals.upto(life.id) if rewrites else 0
    waiting = [version for version in rewrites if version.commit_ts > max(approved, life.emptied_ts)]
    state = find(life) if waiting else None
    if state is None or not state.row_count:
        return ()
    return [version for version in waiting if version.commit_ts > state.applied_ts]


def waiting_reason(life: Incarnation, waiting: Sequence[TableVersion]) -> str:
    statements = "; ".join(version.query or version.kind for version in waiting)
    return (
        f"{statements}: rewrites the table's rows, and policy.ddl.rewrite is hold: look at it with "
        f"`cdc-lakehouse plan`, then let it through with `cdc-lakehouse resume {life.last.name}`"
    )
