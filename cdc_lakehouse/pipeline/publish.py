"""Step 5, checkpoint: one commit records which snapshot of every table shows the checkpoint-ts. Then tables are
purged."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from cdc_lakehouse.changelog.history import Incarnation
from cdc_lakehouse.changelog.positions import BEGINNING
from cdc_lakehouse.changelog.schema import TableName
from cdc_lakehouse.errors import UnreadableTableError
from cdc_lakehouse.lake.current.tables import CurrentTables
from cdc_lakehouse.lake.tables.checkpoints import Cut, CutRow
from cdc_lakehouse.pipeline.apply import Applied
from cdc_lakehouse.pipeline.changes import is_purged
from cdc_lakehouse.pipeline.holds import hold_reason
from cdc_lakehouse.pipeline.run import FeedRun


@dataclass(frozen=True)
class Published:
    """The newest cut after the run; `new` says whether this run published it."""

    cut: Cut
    rows: tuple[CutRow, ...]
    new: bool


def publish_cut(run: FeedRun, applied: Applied) -> Published:
    """Publish the cut, unless nothing has changed since the last one. Held tables are not part of it."""
    held = tuple(sorted(applied.held.items()))
    cut = Cut(applied.checkpoint_ts, run.segments.batch, len(run.history.history.versions), run.settings, held)
    if applied.checkpoint_ts == BEGINNING:
        return Published(run.last_cut, (), False)
    if applied.waiting:
        # Not all tables have reached the checkpoint: there is no new cut yet.
        return Published(run.last_cut, tuple(run.last_cut_rows), False)
    before = {TableName(row.database, row.table): row for row in run.last_cut_rows}
    if cut == run.last_cut and not applied.tables:
        return Published(cut, tuple(before.values()), False)
    now = run.clock()
    changed = {table.life.id: table.state for table in applied.tables}
    tables = CurrentTables(run.lake, run.feed)
    rows: list[CutRow] = []
    for life in applied.lives.values():
        if life.dropped_ts is not None or life.id in applied.held:
            continue
        name = life.last.name
        old = before.get(name)
        state = changed.get(life.id)
        if state is None and old is None:
            try:
                state = tables.find(life)
            except UnreadableTableError as error:
                cut = replace(cut, held=tuple(sorted([*cut.held, (life.id, str(error))])))
                continue
        if state is not None:
            rows.append(CutRow(cut.checkpoint_ts, name.database, name.table, state.snapshot_id, state.row_count, now))
        elif old is not None:
            rows.append(CutRow(cut.checkpoint_ts, name.database, name.table, old.snapshot_id, old.row_count, now))
    run.checkpoints.publish(cut, rows)
    run.log.info("published the cut at %d: %d tables, %d held", cut.checkpoint_ts, len(rows), len(cut.held))
    return Published(cut, tuple(rows), True)


def purge_dropped(run: FeedRun, lives: Mapping[str, Incarnation]) -> None:
    """Remove the dropped tables among `lives` whose policy is `purge`, with their data. Tables of other feeds stay.

    Each run checks all of them, because the previous run may have ended between its cut and this. A table that cannot
    be removed stays, and the log says why.
    """
    tables = CurrentTables(run.lake, run.feed)
    for life in lives.values():
        if life.dropped_ts is None or not is_purged(run, life):
            continue
        try:
            state = tables.find(life)
            if state is not None:
                run.lake.catalog.purge_table(state.identifier.parts)
                run.log.info("purged %s, which was dropped as %s", state.identifier, life.last.name)
        except Exception as error:  # noqa: BLE001 - One bad table never stops the others; the next run tries again.
            name = life.last.name
            run.log.warning("%s, which was dropped, stays: %s", name, hold_reason(error, "be purged", name))
