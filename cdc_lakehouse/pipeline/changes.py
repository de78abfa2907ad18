"""Find what is new for each table: the part of the feed that a run must apply to it."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from cdc_lakehouse.changelog.history import History, Incarnation
from cdc_lakehouse.changelog.positions import BEGINNING, synthetic_stage
from cdc_lakehouse.changelog.schema import TableName, TableVersion
from cdc_lakehouse.config import FeedConfig
from cdc_lakehouse.decoders.arrow import pc
from cdc_lakehouse.errors import TableHeldError
from cdc_lakehouse.lake.current.keyed_events import KeyedSpan
from cdc_lakehouse.lake.current.tables import CurrentTables, TableState, schema_fingerprint
from cdc_lakehouse.lake.current.typed_rows import lake_name
from cdc_lakehouse.lake.current.update_tasks import RecomputedKeys
from cdc_lakehouse.lake.tables.checkpoints import Cut
from cdc_lakehouse.lake.tables.quarantine import Quarantined
from cdc_lakehouse.lake.tables.segments import (
    DECODED,
    DUMP,
    IS_REPLACED,
    OFFSETS,
    REPAIR,
    Appended,
    Segment,
    Segments,
    applied_content,
    may_hold,
)
from cdc_lakehouse.pipeline.feed_tables import FeedTable, key_columns, value_format
from cdc_lakehouse.pipeline.holds import Holds, hold_reason


@dataclass(frozen=True)
class TableChanges:
    """What one run must apply to one table. Timestamps are commit-ts (TSO).

    applied_ts, checkpoint_ts: events with applied_ts < commit_ts <= checkpoint_ts are new.
    redecoded: segments decoded after the table had passed their events, or decoded again; all keys that they contain
      are recomputed from the full event history. earlier: the snapshots of `events` with what the table has applied of
      such segments.
    rebuild: whether the whole table is recomputed because its columns were not what they were assumed to be, or because
      one of the earlier snapshots no longer exists. recompute:
      whether it is because a person requested it. keys_may_collide: whether keys that differ in the source can be equal
      in the lake (zero dates that became NULL).
    events: about how many events the run reads, and whether all are INSERTs, as `EventEstimates.of` says.
    """

    number: int
    table: FeedTable
    state: TableState | None
    applied_ts: int
    checkpoint_ts: int
    rebuild: bool = False
    redecoded: tuple[Segment, ...] = ()
    earlier: frozenset[int] = frozenset()
    recompute: bool = False
    keys_may_collide: bool = False
    events: tuple[int, bool] = (0, False)

    @property
    def life(self) -> Incarnation:
        return self.table.life

    @property
    def target(self) -> TableVersion:
        return self.life.last

    @property
    def applied_version(self) -> TableVersion:
        """The version that the rows in the lake were written under."""
        before = self.life.upto(self.applied_ts)
        return self.life.versions[0] if before is None else before.last

    @property
    def is_rebuilt(self) -> bool:
        return self.rebuild or self.recompute

    @property
    def replaces_all_rows(self) -> bool:
        return self.is_rebuilt or self.table.void_upto_ts > self.applied_ts

    @property
    def recomputes_keys(self) -> bool:
        """Whether its changed keys are recomputed from all of their events."""
        return not self.is_rebuilt and (self.keys_may_collide or bool(self.redecoded))

    @property
    def reads_all_events(self) -> bool:
        return self.is_rebuilt or self.recomputes_keys

    @property
    def reads_new_events(self) -> bool:
        return self.state is not None and not self.reads_all_events

    @property
    def recomputed(self) -> RecomputedKeys | None:
        """The keys to recompute; None when everything that is read is applied."""
        segments = frozenset(segment.segment for segment in self.redecoded)
        return RecomputedKeys(synthetic_stage(self.applied_ts), segments) if self.recomputes_keys else None

    def spans(self) -> list[KeyedSpan]:
        """Return the spans of the table's events."""
        applied = BEGINNING if self.reads_all_events else synthetic_stage(self.applied_ts)
        return self.table.spans(self.number, applied, synthetic_stage(self.checkpoint_ts))


def is_purged(feed: FeedConfig, life: Incarnation) -> bool:
    """Whether the table is removed, with its data, when the source drops it."""
    return feed.drop_of(life.last.name.database, life.last.name.table) == "purge"


def find_changed_tables(
    tables: CurrentTables, news: News, lives: Mapping[str, Incarnation], holds: Holds, rebuild: Collection[TableName]
) -> tuple[list[TableChanges], Holds]:
    """Return the changes of each table that has some and is not held, numbered from 0, and holds for tables that turn
    out to be blocked. Tables of `rebuild` are recomputed."""
    cut = news.cut
    # The reasons of the tables whose rows did not fit in the last run, when nothing has changed since: they would not
    # fit now.
    refused: dict[str, str] = {}
    if not news.everywhere and (cut.checkpoint_ts, cut.batch) == (news.checkpoint_ts, news.segments.batch):
        names = {TableName(row.database or "", row.table or "") for row in news.misfits}
        known = news.history.incarnations()
        refused = {id: why for id, why in cut.held if (life := known.get(id)) and life.last.name in names}
    found: list[TableChanges] = []
    reasons: dict[str, str] = {}
    for id, life in lives.items():
        shown = news.shows(life)
        over = life.dropped_ts is not None and life.dropped_ts <= cut.checkpoint_ts
        if id in holds or (over and shown and (is_purged(news.feed, life) or not news.everywhere)):
            continue
        if id in refused:
            reasons[id] = refused[id]
            continue
        passed, batch = (cut.checkpoint_ts, cut.batch) if shown else (BEGINNING, 0)
        asked = life.last.name in rebuild
        has_ddl = any(version.commit_ts > passed and version.effect != "none" for version in life.versions)
        is_concerned = asked or news.everywhere or has_ddl
        is_concerned = is_concerned or news.recent is None or not news.recent.isdisjoint(life.names)
        if shown and not is_concerned:
            continue
        try:
            state = tables.find(life)
            if state is None and life.is_replaced_by_dump:
                continue  # It never existed: the dump came first.
            recompute = asked and life.dropped_ts is None
            found.append(_changes(news, len(found), life, state, passed, batch, recompute))
        except Exception as error:  # noqa: BLE001 - One bad table never stops the others, whatever is wrong with it.
            reasons[id] = hold_reason(error, "be looked at", life.last.name)
    return found, reasons


def _changes(
    news: News, number: int, life: Incarnation, state: TableState | None, passed_ts: int, batch: int, recompute: bool
) -> TableChanges:
    feed, upto = news.feed, news.checkpoint_ts
    table = FeedTable.of(feed, life)
    if not table.key:
        # It was dropped: others are held. The configuration may name the key of the table that has its name now.
        raise TableHeldError("none of its columns is known to be its key")
    if state is not None and (refusal := format_refusal(feed, life, state)) is not None:
        raise TableHeldError(refusal)
    if state is None or not state.schema_fingerprint:
        return TableChanges(number, table, state, BEGINNING, upto)
    applied, batch = max(state.applied_ts, passed_ts), max(state.applied_batch, batch)
    before = life.upto(state.applied_ts)
    # Whether the lake's table is not what its currently known history makes of it: other columns, or, by the
    # configuration, another key.
    rebuild = before is None
    if before is not None:
        fingerprint = schema_fingerprint(before, value_format(feed, before.last.name))
        key = tuple(lake_name(column) for column in key_columns(feed, before.last))
        rebuild = fingerprint != state.schema_fingerprint or bool(state.key is not None and key and key != state.key)
    void_for_all = max(table.void_upto_ts, life.versions[0].since)
    redecoded = () if rebuild or recompute else tuple(news.redecoded(life, applied, batch, void_for_all))
    contents = (applied_content(segment, batch) for segment in redecoded)
    earlier = frozenset(id for id in contents if id is not None)
    if earlier and not earlier <= news.appended().snapshots:
        rebuild, redecoded, earlier = True, (), frozenset()
    return TableChanges(number, table, state, applied, upto, rebuild, redecoded, earlier, recompute)


def format_refusal(feed: FeedConfig, life: Incarnation, state: TableState) -> str | None:
    """Return why a table cannot have the format version of the configuration; None when it can, or was dropped."""
    name = life.last.name
    wanted = feed.format_version_of(name.database, name.table)
    if wanted >= state.format_version or life.dropped_ts is not None:
        return None
    return (
        f"the Iceberg table {state.identifier} has format version {state.format_version}, the configuration asks for "
        f'{wanted}, and Iceberg has no way back: set tables.settings."{name}".format_version to '
        f"{state.format_version}, or drop the Iceberg table and recreate it with `cdc-lakehouse rebuild {name}`"
    )


@dataclass
class News:
    """What is new between the last cut and a checkpoint-ts: which tables the new segments and the new history can
    concern. `misfits` are the open rows of the quarantine that their tables cannot take, `shows` says whether the cut
    shows a table, `appended` what is in `events`."""

    feed: FeedConfig
    history: History
    segments: Segments
    misfits: Sequence[Quarantined]
    cut: Cut
    checkpoint_ts: int
    same_settings: bool
    shows: Callable[[Incarnation], bool]
    appended: Callable[[], Appended]

    @property
    def everywhere(self) -> bool:
        """Whether any table can have changes."""
        return len(self.history.versions) != self.cut.versions or not self.same_settings

    @functools.cached_property
    def recent(self) -> Set[TableName] | None:
        """The tables that the new segments can concern; None for any."""
        cut = self.cut
        concerned = (pc.field("batch") > cut.batch) & (IS_REPLACED | (pc.field("events") > 0))
        if self.checkpoint_ts > cut.checkpoint_ts:
            # Segments that were decoded before and exceeded the checkpoint at that time.
            began = pc.field("min_commit_ts") <= self.checkpoint_ts
            concerned = concerned | ((pc.field("max_commit_ts") > cut.checkpoint_ts) & began)
        rows = self.segments.rows.filter((pc.field("state") == DECODED) & concerned)
        names = rows.group_by(["kind", "database", "table"]).aggregate([]).to_pylist()
        if any(row["kind"] == OFFSETS for row in names):
            return None
        return {TableName(row["database"], row["table"]) for row in names if row["table"] is not None}

    def redecoded(self, life: Incarnation, applied_ts: int, batch: int, void_upto_ts: int) -> list[Segment]:
        """Return segments decoded since `batch` with events that the table had passed, or had in another form. Ignored
        events do not count, unless they are rows of a dump or of a repair, which follow a DDL of their own. Segments
        with rows that the table could not take and skipped, under an earlier policy, are included."""
        passed = pc.field("min_commit_ts") <= applied_ts
        counts = pc.field("kind").isin([DUMP, REPAIR])
        if void_upto_ts < applied_ts:
            counts = counts | (pc.field("max_commit_ts") > void_upto_ts)
        late = (pc.field("batch") > batch) & (passed & counts | IS_REPLACED) & may_hold(life.names)
        unusable = () if self.feed.policy.quarantine == "skip" else self.misfits
        own = {row.segment for row in unusable if TableName(row.database or "", row.table or "") in life.names}
        passed_by = passed & pc.field("segment").isin(pa.array(sorted(own), pa.string()))
        return self.segments.select((pc.field("state") == DECODED) & (late | passed_by))


_EVENT_BYTES: Final = 2048
"""The size of an event in the source for which a task has memory; larger ones count as several."""


class EventEstimates:
    """Estimates how many events of a table a run reads, by the segments that can hold some: all of them, or those
    above `after_ts`."""

    def __init__(self, segments: pa.Table, after_ts: int = BEGINNING) -> None:
        decoded = segments.filter(pc.field("state") == DECODED)
        self._all = _events_by_name(decoded)
        self._new = _events_by_name(decoded.filter(pc.field("max_commit_ts") > after_ts))

    def of(self, names: Collection[TableName], *, above: bool = False) -> tuple[int, bool]:
        """Return the number of events of tables with these names, and whether no UPDATE or DELETE is known of them."""
        counts = self._new if above else self._all
        # Ranges of topics hold rows of many tables: all of them may belong to any one.
        found = [counts.get(name, (0, 0)) for name in (*names, None)]
        return sum(events for events, _ in found), not any(others for _, others in found)


def _events_by_name(rows: pa.Table) -> dict[TableName | None, tuple[int, int]]:
    """Return the number of events, and of those that are an UPDATE or a DELETE."""
    sums = [(name, "sum") for name in ("events", "size", "updates", "deletes")]
    return {
        None if row["table"] is None else TableName(row["database"], row["table"]): (
            max(row["events_sum"] or 0, row["size_sum"] // _EVENT_BYTES),
            (row["updates_sum"] or 0) + (row["deletes_sum"] or 0),
        )
        for row in rows.group_by(["database", "table"]).aggregate(sums).to_pylist()
    }
