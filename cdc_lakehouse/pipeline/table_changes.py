"""What is new for each table: the part of the feed that a run has to apply to it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import pyarrow.compute as pc

from cdc_lakehouse.changelog.history import Incarnation
from cdc_lakehouse.changelog.positions import BEGINNING, restated_stage, row_stage
from cdc_lakehouse.changelog.schema import Column, TableName, TableVersion
from cdc_lakehouse.decoders.problems import BAD_VALUE
from cdc_lakehouse.errors import TableHeldError
from cdc_lakehouse.lake.current.latest_changes import KeyedSpan
from cdc_lakehouse.lake.current.staging import EmptiedPartition
from cdc_lakehouse.lake.current.tables import CurrentTables, TableState, lineage
from cdc_lakehouse.lake.tables.segments import DECODED, OFFSETS, Segment, may_hold
from cdc_lakehouse.pipeline.purge import is_purged
from cdc_lakehouse.pipeline.row_keys import key_columns, rekeyings
from cdc_lakehouse.pipeline.run import FeedRun


@dataclass(frozen=True)
class Work:
    """One table's share. Events in (`above`, `upto`] are new; row changes at or below
    `floor` are void (a TRUNCATE, or rows that were restated under another key).

    `again` are segments that were decoded after the table had passed their events, or decoded again: the keys that
    they touch are worked out from all events. With `rebuild` the whole table is. `blurred` says that keys which
    differ in the source can be one in the lake (zero dates that became NULL)."""

    number: int
    life: Incarnation
    state: TableState | None
    above: int
    upto: int
    floor: int
    rebuild: bool
    again: tuple[Segment, ...]
    key: tuple[Column, ...]
    blurred: bool = False

    @property
    def target(self) -> TableVersion:
        return self.life.last

    @property
    def applied(self) -> TableVersion:
        """The version that the rows in the lake were written under."""
        before = self.life.upto(self.above)
        return self.life.versions[0] if before is None else before.last

    @property
    def cleared(self) -> bool:
        return self.rebuild or self.floor > self.above

    @property
    def reads_all(self) -> bool:
        return self.rebuild or self.blurred or bool(self.again)

    def spans(self) -> list[KeyedSpan]:
        """Where the table's events are."""
        applied = BEGINNING if self.reads_all else restated_stage(self.above)
        lowest = max(applied, row_stage(self.floor))
        return keyed_spans(self.life, self.key, self.number, lowest, restated_stage(self.upto))

    def emptied(self, above: int) -> tuple[EmptiedPartition, ...]:
        """Partitions that were emptied in (above, upto], and that nothing later has made pointless."""
        return emptied_partitions(self.life, max(above, self.floor))


def keyed_spans(
    life: Incarnation, key: Sequence[Column], number: int, above_stage: int, upto_stage: int
) -> list[KeyedSpan]:
    """Where a life's events at stages in (above, upto] are. Events of a commit-ts are of the version before its DDL,
    restated ones of the version that it made."""
    found: list[KeyedSpan] = []
    for span in life.spans():
        above = max(row_stage(span.above), above_stage)
        upto = upto_stage if span.upto is None else min(row_stage(span.upto), upto_stage)
        if above < upto:
            names = tuple(column.name for each in key if (column := span.version.column(each.id)))
            number_of_version = life.versions.index(span.version)
            found.append(KeyedSpan(number, number_of_version, span.name.database, span.name.table, above, upto, names))
    return found


def emptied_partitions(life: Incarnation, above: int) -> tuple[EmptiedPartition, ...]:
    found: list[EmptiedPartition] = []
    for position, version in enumerate(life.versions):
        if version.emptied and version.commit_ts > above:
            before = life.versions[position - 1]
            assert before.partitioning is not None
            found += [
                EmptiedPartition(version.commit_ts, before.partitioning, name, before) for name in version.emptied
            ]
    return tuple(found)


def find_work(
    run: FeedRun, tables: CurrentTables, lives: Mapping[str, Incarnation], held: dict[str, str], upto: int
) -> Iterator[Work]:
    """The tables that have something new. Adds to `held` those that turn out not to be able to go on."""
    cut = run.last_cut
    touched = _Touched(run, upto)
    refused = _refused(run, upto, touched)
    for id, life in lives.items():
        was_held = id in cut.held_incarnations
        over = life.dropped_ts is not None and life.dropped_ts <= cut.checkpoint_ts
        if id in held or (over and not was_held and (is_purged(run, life) or not touched.everywhere)):
            continue
        if id in refused:
            held[id] = refused[id]
            continue
        passed, batch = (BEGINNING, 0) if was_held else (cut.checkpoint_ts, cut.batch)
        if not (was_held or touched.everywhere or _has_ddl(life, passed) or touched.by_segments(life)):
            continue
        state = tables.find(life)
        try:
            yield _work(run, life, state, passed, batch, upto, touched)
        except TableHeldError as error:
            held[id] = str(error)


def _refused(run: FeedRun, upto: int, touched: _Touched) -> dict[str, str]:
    """Tables whose rows did not fit them in the last run, when nothing has changed since: they would not fit now."""
    cut = run.last_cut
    if touched.everywhere or cut.checkpoint_ts != upto or cut.batch != run.segments.batch:
        return {}
    names = {(row.database, row.table) for row in run.quarantine.open() if row.error_class == BAD_VALUE}
    lives = run.history.history.incarnations()
    return {
        id: reason
        for id, reason in cut.held
        if (life := lives.get(id)) and (life.last.name.database, life.last.name.table) in names
    }


def _work(
    run: FeedRun,
    life: Incarnation,
    state: TableState | None,
    passed: int,
    batch: int,
    upto: int,
    touched: _Touched,
) -> Work:
    key = key_columns(run.feed, life.last)
    floor = max([life.emptied_ts, *(version.commit_ts for version in rekeyings(run.feed, life))])
    if state is None or not state.lineage:
        return Work(0, life, state, BEGINNING, upto, floor, False, (), key)
    above, batch = max(state.applied_ts, passed), max(state.applied_batch, batch)
    before = life.upto(state.applied_ts)
    rebuild = before is None or lineage(before, run.reading(before.last)) != state.lineage
    again = tuple(touched.again(life, above, batch))
    return Work(0, life, state, above, upto, floor, rebuild, () if rebuild else again, key)


def _has_ddl(life: Incarnation, above: int) -> bool:
    return any(version.commit_ts > above and version.effect != "none" for version in life.versions)


class _Touched:
    """Which tables the segments and the history of a run can concern."""

    def __init__(self, run: FeedRun, upto: int) -> None:
        cut = run.last_cut
        self.everywhere = len(run.history.history.versions) != cut.versions or run.settings != cut.settings
        self._segments = run.segments
        replaced = ~pc.field("replaces_snapshot").is_null()
        concerned = (pc.field("batch") > cut.batch) & (replaced | (pc.field("events") > 0))
        if upto > cut.checkpoint_ts:
            # Decoded before, and above the checkpoint of then.
            waited = (pc.field("max_commit_ts") > cut.checkpoint_ts) & (pc.field("min_commit_ts") <= upto)
            concerned = concerned | waited
        rows = run.segments.rows.filter((pc.field("state") == DECODED) & concerned)
        self._of_any_table = OFFSETS in rows["kind"].unique().to_pylist()
        names = rows.group_by(["database", "table"]).aggregate([]).to_pylist()
        self._recent = {TableName(row["database"], row["table"]) for row in names if row["table"] is not None}

    def by_segments(self, life: Incarnation) -> bool:
        return self._of_any_table or not self._recent.isdisjoint(life.names)

    def again(self, life: Incarnation, above: int, batch: int) -> list[Segment]:
        """Segments decoded since `batch` with events that the table had passed, or had in another form."""
        replaced = ~pc.field("replaces_snapshot").is_null()
        passed = (pc.field("min_commit_ts") <= above) | replaced
        decoded = pc.field("state") == DECODED
        return self._segments.select((pc.field("batch") > batch) & decoded & passed & may_hold(life.names))
