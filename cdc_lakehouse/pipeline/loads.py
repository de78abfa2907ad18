"""Which tables were loaded from a dump, and whether the log continues where the dump ends."""

from __future__ import annotations

from collections.abc import Mapping

from cdc_lakehouse.changelog.positions import is_commit_ts
from cdc_lakehouse.changelog.schema import SchemaChange, TableName
from cdc_lakehouse.errors import SourceError
from cdc_lakehouse.lake.tables.schema_history import SchemaHistory
from cdc_lakehouse.pipeline.context import FeedContext
from cdc_lakehouse.pipeline.source import JoinPoint
from cdc_lakehouse.sources.dump.contents import DumpPosition


def loads_of(history: SchemaHistory) -> Mapping[TableName, int]:
    """Return the loaded tables, by the names that they had in their dumps, with the commit-ts of their rows; for a
    table that was loaded again, of the last dump."""
    return {TableName(each.database, each.table): each.commit_ts for each in load_changes(history)}


def load_changes(history: SchemaHistory) -> list[SchemaChange]:
    """Return the recorded loads, in the order of their commit-ts."""
    return sorted((each for each in history.changes.values() if each.kind == "load"), key=lambda each: each.commit_ts)


def require_no_gap(run: FeedContext, first_ts: int | None, loaded_ts: int | None = None) -> None:
    """Raises `SourceError` when changes between a dump and the start of the log are missing. `first_ts` is the
    commit-ts from which on the log has changes, as far as it shows that; `loaded_ts` is that of the dump, None for all
    loaded ones."""
    initial = run.feed.initial
    positions = loads_of(run.history).values() if loaded_ts is None else [loaded_ts]
    if initial is None or not positions:
        return
    if initial.start_ts is not None:
        first_ts = initial.start_ts
    if first_ts is not None and first_ts > min(positions):
        raise SourceError(
            f"the dump is of {min(positions)} and the change log begins at {first_ts}: what changed in between is in "
            "neither",
            feed=run.feed.name,
            advice="create the changefeed with the dump's position as its start-ts, or dump again; where it has that, "
            "and only showed itself later, say so with source.initial.start_ts",
        )


def join_at_tso(run: FeedContext, position: DumpPosition) -> JoinPoint:
    """Return the point at which a dump joins a log of TiDB. Raises `SourceError` for a dump of another database
    server."""
    if position.tso is None or not is_commit_ts(position.tso):
        raise SourceError(
            f"the dump's position is not a TSO of TiDB ({position})",
            feed=run.feed.name,
            advice="load a dump of TiDB; the rows of a MySQL can be put into the order of a feed of Canal alone",
        )
    return JoinPoint(position.tso)
