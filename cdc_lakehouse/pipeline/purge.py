"""After the cut: dropped tables whose policy is `purge` go, with their data."""

from __future__ import annotations

from collections.abc import Mapping

from cdc_lakehouse.changelog.history import Incarnation
from cdc_lakehouse.lake.current.tables import CurrentTables
from cdc_lakehouse.pipeline.run import FeedRun


def purge_dropped(run: FeedRun, lives: Mapping[str, Incarnation]) -> None:
    """All of them each time: a run may have ended between its cut and this. A table of another feed is not touched."""
    tables = CurrentTables(run.lake, run.feed)
    for life in lives.values():
        if life.dropped_ts is None or not is_purged(run, life):
            continue
        state = tables.find(life)
        if state is not None:
            run.lake.catalog.purge_table(state.identifier.parts)
            run.log.info("purged %s, which was dropped as %s", state.identifier, life.last.name)


def is_purged(run: FeedRun, life: Incarnation) -> bool:
    return run.feed.drop_of(life.last.name.database, life.last.name.table) == "purge"
