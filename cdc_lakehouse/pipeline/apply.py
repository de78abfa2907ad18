"""Step 4, current: bring every table to the checkpoint-ts.

The tables with changes are found, one job computes the updates of all of them, and each successful one is committed
separately; the commits follow each other within moments. Then tables get the names that the source uses. A rename chain
or swap may be incomplete when a run ends: tables are found by their incarnation, so each run simply continues from the
current names to the wanted ones.
"""

from __future__ import annotations

import contextlib
import functools
import json
import logging
from collections.abc import Callable, Collection, Mapping, Sequence, Set
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

import pyarrow as pa
from pyiceberg.io import load_file_io
from pyiceberg.schema import Schema

from cdc_lakehouse.changelog.history import Incarnation
from cdc_lakehouse.changelog.positions import BEGINNING, synthetic_stage
from cdc_lakehouse.changelog.schema import TableName
from cdc_lakehouse.changelog.versions import LOAD
from cdc_lakehouse.config.reporting import plural
from cdc_lakehouse.decoders.arrow import pc
from cdc_lakehouse.decoders.problems import BAD_VALUE
from cdc_lakehouse.errors import CdcError, ConcurrentRunError, TableHeldError, TransientError, UnreadableTableError
from cdc_lakehouse.lake import names
from cdc_lakehouse.lake.current import update_tasks
from cdc_lakehouse.lake.current.keyed_events import commit_ts_range
from cdc_lakehouse.lake.current.tables import (
    CurrentTables,
    TableState,
    column_names,
    plan_tags,
    schema_fingerprint,
    shown_state,
    tags_of,
)
from cdc_lakehouse.lake.current.typed_rows import Plan, lake_columns, lake_name, plan_evolution
from cdc_lakehouse.lake.faults import engine_fault
from cdc_lakehouse.lake.files import FIRST_WITH_VECTORS, delete_rows, live_files
from cdc_lakehouse.lake.iceberg_java import IcebergJavaApi, TableTransaction, TagChanges
from cdc_lakehouse.lake.names import DROPPED_TS, Identifier
from cdc_lakehouse.lake.tables.quarantine import Quarantined, discards
from cdc_lakehouse.lake.tables.segments import (
    DECODED,
    DUMP,
    IS_REPLACED,
    OFFSETS,
    REPAIR,
    Segment,
    applied_content,
    may_hold,
)
from cdc_lakehouse.pipeline import feed_tables
from cdc_lakehouse.pipeline.holds import Holds, find_holds, hold_reason, unapproved, waiting_reason
from cdc_lakehouse.pipeline.progress import Progress
from cdc_lakehouse.pipeline.run import FeedRun
from cdc_lakehouse.pipeline.synthetic import SyntheticWriter

# What is new for each table: the part of the feed that a run must apply to it.


@dataclass(frozen=True)
class TableChanges:
    """What one run must apply to one table. Timestamps are commit-ts (TSO).

    applied_ts, checkpoint_ts: events with applied_ts < commit_ts <= checkpoint_ts are new.
    redecoded: segments decoded after the table had passed their events, or decoded again; all keys that they contain
      are recomputed from the full event history. earlier: the snapshots of `events` with what the table has applied of
      such segments.
    rebuild: whether the whole table is recomputed because its columns were not what they were assumed to be, or because
      one of the earlier snapshots no longer exists. recompute: whether it is because a person requested it.
    keys_may_collide: whether keys that differ in the source can be equal in the lake (zero dates that became NULL)."""

    table: update_tasks.FeedTable
    state: TableState | None
    applied_ts: int
    checkpoint_ts: int
    rebuild: bool = False
    redecoded: tuple[Segment, ...] = ()
    earlier: frozenset[int] = frozenset()
    recompute: bool = False
    keys_may_collide: bool = False
    number: int = 0

    @property
    def life(self) -> Incarnation:
        return self.table.life

    @property
    def applied_version(self) -> int:
        """The number of the version that the rows in the lake were written under."""
        return max(sum(version.commit_ts <= self.applied_ts for version in self.life.versions) - 1, 0)

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


class News:
    """What is new between the last cut and a checkpoint-ts: which tables the new segments and the new history can
    concern. `misfits` are the open rows of the quarantine that their tables cannot take; `everywhere` is whether any
    table can have changes."""

    def __init__(self, run: FeedRun, checkpoint_ts: int) -> None:
        self.run, self.checkpoint_ts = run, checkpoint_ts
        self.misfits = [row for row in run.quarantine.open() if row.error_class == BAD_VALUE]
        has_ddl = len(run.history.history.versions) != run.last_cut.versions
        self.everywhere = has_ddl or run.settings != run.last_cut.settings

    @functools.cached_property
    def recent(self) -> Set[TableName] | None:
        """The tables that the new segments can concern; None for any."""
        cut = self.run.last_cut
        concerned = (pc.field("batch") > cut.batch) & (IS_REPLACED | (pc.field("events") > 0))
        if self.checkpoint_ts > cut.checkpoint_ts:
            # Segments that were decoded before and exceeded the checkpoint at that time.
            began = pc.field("min_commit_ts") <= self.checkpoint_ts
            concerned = concerned | ((pc.field("max_commit_ts") > cut.checkpoint_ts) & began)
        rows = self.run.segments.rows.filter((pc.field("state") == DECODED) & concerned)
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
        unusable = () if self.run.feed.policy.quarantine == "skip" else self.misfits
        own = {row.segment for row in unusable if TableName(row.database or "", row.table or "") in life.names}
        passed_by = passed & pc.field("segment").isin(pa.array(sorted(own), pa.string()))
        return self.run.segments.select((pc.field("state") == DECODED) & (late | passed_by))


def find_changed_tables(
    tables: CurrentTables, news: News, lives: Mapping[str, Incarnation], holds: Holds
) -> tuple[list[TableChanges], Holds]:
    """Return the changes of each table that has some and is not held, and holds for tables that turn out to be
    blocked."""
    run, history, cut = news.run, news.run.history.history, news.run.last_cut
    # The reasons of the tables whose rows did not fit in the last run, when nothing has changed since: they would not
    # fit now.
    refused: dict[str, str] = {}
    if not news.everywhere and (cut.checkpoint_ts, cut.batch) == (news.checkpoint_ts, run.segments.batch):
        names = {TableName(row.database or "", row.table or "") for row in news.misfits}
        known = history.incarnations()
        refused = {id: why for id, why in cut.held if (life := known.get(id)) and life.last.name in names}
    found: list[TableChanges] = []
    reasons: dict[str, str] = {}
    for id, life in lives.items():
        shown = run.shows(life)
        over = life.dropped_ts is not None and life.dropped_ts <= cut.checkpoint_ts
        if id in holds or (over and shown and (feed_tables.is_purged(run.feed, life) or not news.everywhere)):
            continue
        if id in refused:
            reasons[id] = refused[id]
            continue
        passed, batch = (cut.checkpoint_ts, cut.batch) if shown else (BEGINNING, 0)
        asked = life.last.name in run.rebuild
        has_ddl = any(version.commit_ts > passed and version.effect != "none" for version in life.versions)
        is_concerned = asked or news.everywhere or has_ddl
        is_concerned = is_concerned or news.recent is None or not news.recent.isdisjoint(life.names)
        if shown and not is_concerned:
            continue
        try:
            state = tables.find(life)
            if state is None and life.last.effect == "drop" and life.last.kind == LOAD:
                continue  # It never existed: a dump replaced it first.
            found.append(_changes(news, life, state, passed, batch, asked and life.dropped_ts is None))
        except Exception as error:  # noqa: BLE001 - One bad table never stops the others, whatever is wrong with it.
            reasons[id] = hold_reason(error, "be looked at", life.last.name)
    return found, reasons


def _changes(
    news: News, life: Incarnation, state: TableState | None, passed_ts: int, batch: int, recompute: bool
) -> TableChanges:
    feed, upto = news.run.feed, news.checkpoint_ts
    table = feed_tables.feed_table(feed, life)
    if not table.key:
        # It was dropped: others are held. The configuration may name the key of the table that has its name now.
        raise TableHeldError("none of its columns is known to be its key")
    if state is not None and (refusal := feed_tables.format_refusal(feed, life, state)) is not None:
        raise TableHeldError(refusal)
    if state is None or not state.schema_fingerprint:
        return TableChanges(table, state, BEGINNING, upto)
    applied, batch = max(state.applied_ts, passed_ts), max(state.applied_batch, batch)
    before = life.upto(state.applied_ts)
    # Whether the lake's table is not what its currently known history makes of it: other columns, or, by the
    # configuration, another key.
    rebuild = before is None
    if before is not None:
        key = tuple(lake_name(column) for column in feed_tables.key_columns(feed, before.last))
        values = feed_tables.value_format(feed, before.last.name)
        fingerprint = schema_fingerprint(before, values)
        rebuild = fingerprint != state.schema_fingerprint or bool(state.key is not None and key and key != state.key)
    void_for_all = max(table.void_upto_ts, life.versions[0].since)
    redecoded = () if rebuild or recompute else tuple(news.redecoded(life, applied, batch, void_for_all))
    contents = (applied_content(segment, batch) for segment in redecoded)
    earlier = frozenset(id for id in contents if id is not None)
    if earlier and not earlier <= news.run.appended().snapshots:
        rebuild, redecoded, earlier = True, (), frozenset()
    return TableChanges(table, state, applied, upto, rebuild, redecoded, earlier, recompute)


# Names.


class TableLocation(NamedTuple):
    """A table with its current and its wanted identifier."""

    life: Incarnation
    now: Identifier
    wanted: Identifier


def rename_to_source_names(
    tables: CurrentTables, locations: list[TableLocation], lives: Mapping[str, Incarnation]
) -> Holds:
    """Rename until each table has its wanted name; return holds for those that cannot get it, or whose rename fails.
    `lives` are all tables of the feed. Raises a fault of the engine: the next run continues."""
    moving = [table for table in locations if table.now != table.wanted]
    blocked: dict[str, str] = {}
    while moving:
        free = next((table for table in moving if tables.is_free(table.wanted)), None)
        table = free or moving[0]
        occupant = None if free else tables.at(table.wanted)
        own = None if free else next((each for each in moving if each.now == table.wanted), None)
        now, wanted = table.now, table.wanted
        if own is not None:
            # A cycle: one of them is parked.
            table, now, wanted = own, own.now, tables.parking_identifier(own.life, own.life.last.name)
        elif occupant is not None and occupant.dropped_ts is not None and occupant.incarnation in lives:
            # It was dropped in the source, or renamed to a name that is not taken, and kept here; its name is needed
            # again.
            life = lives[occupant.incarnation]
            now, wanted = table.wanted, tables.parking_identifier(life, occupant.name)
            if life.dropped_ts != occupant.dropped_ts:
                wanted = tables.left_identifier(occupant.name, occupant.dropped_ts)
        elif free is None:
            whose = "a table that is not the feed's, or cannot be read" if occupant is None else "a table that is held"
            blocked[table.life.id] = f"its name {table.wanted} is that of {whose}"
            moving.remove(table)
            continue
        try:
            # A table may be the first to move into its database.
            tables.lake.ensure_namespace(wanted.namespace)
            tables.lake.catalog.rename_table(now.parts, wanted.parts)
        except Exception as error:  # noqa: BLE001 - One bad table never stops the others; the next run tries again.
            blocked[table.life.id] = hold_reason(error, f"be renamed from {now} to {wanted}", table.life.last.name)
            moving.remove(table)
            continue
        if own is not None:
            moving[moving.index(own)] = own._replace(now=wanted)
        elif free is not None:
            moving.remove(free)
    return blocked


# The update of one table: planned before the job that computes it, committed after it.


@dataclass
class _Turn:
    """One table's turn. `_plan` sets the work of the tasks (`update`), the table's current `state`, the schema changes
    (`plan`), and the `format_version` that it will have; `transaction` is open when the schema changes: tasks write
    with the field ids that it assigned. `updated` is what the job made of it. `fault` is the engine's, which says
    nothing about the table; `failure` is the reason to hold it."""

    changes: TableChanges
    updated: update_tasks.UpdatedTable
    failure: str | None = None
    fault: CdcError | None = None
    update: update_tasks.TableUpdate = field(init=False)
    state: TableState = field(init=False)
    plan: Plan = field(init=False)
    transaction: TableTransaction | None = None
    tags: TagChanges = field(default_factory=dict)
    format_version: int = 0

    @property
    def goes_on(self) -> bool:
        return self.failure is None and self.fault is None and not self.updated.collides


def _plan(run: FeedRun, tables: CurrentTables, counts: feed_tables.EventEstimates, turn: _Turn) -> None:
    """Plan the update of one table; create it when it does not exist yet. Raises `TableHeldError` when the table is
    blocked."""
    changes = turn.changes
    feed, source = run.feed, changes.table
    state = turn.state = changes.state or _create(tables, run.iceberg, changes)
    table = tables.lake.existing(state.identifier)
    if (None if (now := table.current_snapshot()) is None else now.snapshot_id) != state.snapshot_id:
        raise TransientError("another writer has changed the table", advice="run again")
    wanted = feed.format_version_of(changes.life.last.name.database, changes.life.last.name.table)
    turn.format_version = max(wanted, state.format_version)
    columns = lake_columns(changes.life.last.carried, source.values)
    if changes.rebuild:
        # The columns were not what they were assumed to be: none of them is kept.
        columns = [replace(column, initial=None) for column in columns]
        plan = plan_evolution((), columns, state.order, leftover=[column.name for column in state.columns])
    else:
        all_new, defaults = changes.replaces_all_rows, turn.format_version >= FIRST_WITH_VECTORS
        converted = frozenset[int]() if all_new else source.converted_since(changes.applied_version)
        plan = plan_evolution(state.columns, columns, state.order, converted, defaults=defaults)
    turn.plan, schema, is_upgraded = plan, table.schema(), state.format_version < turn.format_version
    if plan.steps or is_upgraded:
        turn.transaction = run.iceberg.transaction(state.identifier, state.snapshot_id)
        evolved = turn.transaction.evolve(plan.steps, turn.format_version if is_upgraded else None)
        schema = Schema.model_validate_json(evolved)
    stays = bool(state.row_count) and not changes.replaces_all_rows
    stored = update_tasks.StoredTable()
    if stays:
        own = {f"c{column.id}": column.name for column in state.columns}
        ids = [table.schema().find_field(own[of]).field_id for of in (f"c{c.id}" for c in source.key) if of in own]
        stored = update_tasks.StoredTable(tuple(live_files(table, ids)), table.schema(), own, changes.applied_version)
    # When a person discarded rows, tasks write what they can: whether the table continues without the rows is decided
    # once all of them are known.
    skips_rejected = feed.policy.quarantine == "skip" or run.quarantine.has_discarded(changes.life.names)
    applied, upto = synthetic_stage(changes.applied_ts), synthetic_stage(changes.checkpoint_ts)
    events, inserts = counts.of(changes.life.names, above=changes.reads_new_events)
    turn.update = update_tasks.TableUpdate(
        changes.number,
        source,
        table.location(),
        schema,
        properties=update_tasks.file_properties(table.properties),
        emptied=source.emptied(BEGINNING if changes.reads_all_events else changes.applied_ts),
        emptied_now=() if changes.replaces_all_rows else source.emptied(changes.applied_ts),
        skips_rejected=skips_rejected,
        stored=stored,
        recomputed_above=applied if changes.recomputes_keys else None,
        redecoded=frozenset(segment.segment for segment in changes.redecoded),
        tells_collisions=changes.reads_new_events,
        spans=source.spans(changes.number, BEGINNING if changes.reads_all_events else applied, upto),
        events=events,
        inserts=inserts,
        rewrites=bool(plan.rewritten) and stays,
    )
    if table.current_snapshot() is not None:
        # A table that was held is in an earlier cut than the last.
        shown = shown_state(table, {row.snapshot_id for row in run.last_cut_rows}) or shown_state(
            table, {row.snapshot_id for name in changes.life.names for row in run.checkpoints.rows_of(name)}
        )
        turn.tags = plan_tags(tags_of(table), shown, changes.checkpoint_ts, tables.lake.config.cuts)


def _commit(run: FeedRun, batch: int, turn: _Turn) -> None:
    """Commit schema, rows and the applied position together, up to `batch`; commit nothing for a table that does not
    change. Raises `TransientError` when files do not hold the rows that they should."""
    changes, state, update, updated = turn.changes, turn.state, turn.update, turn.updated
    fingerprint = schema_fingerprint(changes.life, changes.table.values)
    stays = not (changes.replaces_all_rows or update.rewrites)
    deletes = bool(updated.deleted) if stays else bool(state.row_count)
    same = changes.state is not None and fingerprint == changes.state.schema_fingerprint
    same = same and (state.dropped_ts is None) == (changes.life.dropped_ts is None)
    changes_rows = bool(updated.files or deletes or turn.plan.steps)
    if same and not (changes_rows or state.format_version < turn.format_version):
        return
    # The files hold the right number of rows. Otherwise they are unused.
    written, counts, removed = _rows_of(updated.files), updated.counts, sum(map(len, updated.deleted.values()))
    lost = written != counts.rows or counts.rows > counts.keys - counts.deletes
    if lost or (update.rewrites and _rows_of(updated.rewritten) != state.row_count - removed):
        raise TransientError("the files that were written do not hold the rows that they should", advice="run again")
    properties: dict[str, str | None] = {
        names.DATABASE: changes.life.last.name.database,
        names.TABLE: changes.life.last.name.table,
        names.APPLIED_TS: str(changes.checkpoint_ts),
        names.APPLIED_BATCH: str(batch),
        names.LINEAGE: fingerprint,
        names.KEY: json.dumps([lake_name(column) for column in changes.table.key], ensure_ascii=False),
        names.COLUMNS: column_names({column.id: lake_name(column) for column in update.target.columns}),
    }
    summary = {names.CHECKPOINT_TS: str(changes.checkpoint_ts), names.BATCH: str(batch)}
    if changes_rows:
        # It belongs to the newest snapshot: an upgrade alone makes none.
        any_row = changes.replaces_all_rows or update.emptied_now
        properties[names.KEYS_TOUCHED] = "" if any_row else str(updated.counts.keys)
    if changes.life.dropped_ts is not None:
        properties[DROPPED_TS] = str(changes.life.dropped_ts)
    elif state.dropped_ts is not None:
        properties[DROPPED_TS] = None  # A table that was renamed to a name that is not taken can return.
    if stays and changes_rows and not updated.rewritten:
        # To be compared with what Iceberg says that the commit did.
        summary |= {names.ROWS_WRITTEN: str(updated.counts.rows), names.ROWS_REMOVED: str(removed)}
    if turn.format_version < FIRST_WITH_VECTORS or state.counts_rows:
        live = written + _rows_of(updated.rewritten)
        if stays:
            live += sum(file.live_rows for file in update.stored.files) - removed
        summary[names.ROW_COUNT] = str(live)
    transaction = turn.transaction or run.iceberg.transaction(state.identifier, state.snapshot_id)
    delete_files, replaced = (), ()
    if stays and updated.deleted:
        io = load_file_io(dict(run.lake.catalog.properties), update.location)
        where = io, update.location, update.properties, turn.format_version
        delete_files, replaced = delete_rows(*where, update.stored.files, updated.deleted)
    transaction.commit(
        data_files=[*updated.files, *updated.rewritten],
        delete_files=delete_files,
        replaced_deletes=replaced,
        replace_all=not stays and bool(state.row_count),
        # A snapshot is read with the schema that it was made under.
        mark=bool(turn.plan.steps) and state.snapshot_id is not None,
        properties=properties,
        summary=summary,
        tags=turn.tags,
    )


def _rows_of(data_files: Sequence[str]) -> int:
    return sum(json.loads(file)["record-count"] for file in data_files)


def _create(tables: CurrentTables, iceberg: IcebergJavaApi, changes: TableChanges) -> TableState:
    """Create an empty table with the columns of the target, under a parking name while another table has its name.
    Raises `ConcurrentRunError` when another run has created it meanwhile: both would share a directory of files."""
    name = changes.life.last.name
    another_run = ConcurrentRunError(f"another run has made the table {name}", advice="run again")
    if tables.find(changes.life) is not None:
        raise another_run
    wanted = tables.identifier(name)
    tables.lake.ensure_namespace(wanted.namespace)
    columns = lake_columns(changes.life.last.carried, changes.table.values)
    identifier = wanted if tables.is_free(wanted) else tables.parking_identifier(changes.life, name)
    location, own = tables.location(changes.life, name), column_names({each.id: each.name for each in columns})
    properties = {**tables.first_properties(changes.life), names.COLUMNS: own}
    iceberg.create(identifier, changes.table.schema, location, properties)
    made = tables.find(changes.life)
    if made is None or made.identifier != identifier:
        # The other run has renamed its own in the meantime: this one would stay beside it.
        tables.lake.catalog.drop_table(identifier.parts)
        raise another_run
    return made


# The step.

_AT_ONCE: Final = 2
"""The number of tables that are planned or committed at the same time."""
_TRIES: Final = 3
"""The number of times a table is updated whose files another writer rewrites meanwhile, or at which the engine
fails."""


class AppliedTable(NamedTuple):
    """One table's part of a run: its state, the counts of what was written, and whether the whole table was recomputed
    from all events."""

    life: Incarnation
    state: TableState
    counts: update_tasks.RowCounts
    rebuilt: bool


@dataclass(frozen=True)
class Applied:
    """The result of the step. lives: the taken tables of the feed as of the checkpoint. tables: those that this run
    published. held: the reason by incarnation (or by name, when there is none) for held tables. left: the tables that
    were renamed to a name that the feed does not take. waiting: those with changes that the run was told not to
    apply."""

    checkpoint_ts: int
    lives: Mapping[str, Incarnation]
    tables: tuple[AppliedTable, ...]
    held: Mapping[str, str]
    left: Mapping[str, Incarnation] = field(default_factory=dict[str, Incarnation])
    waiting: tuple[TableName, ...] = ()


def apply(run: FeedRun, upto: int, only: Collection[TableName] | None = None) -> Applied:
    """Bring every table that has changes and is not held to the checkpoint; with `only`, none but these."""
    feed, history, cut = run.feed, run.history.history, run.last_cut
    known = {id: life for id, whole in history.incarnations().items() if (life := whole.upto(upto)) is not None}
    lives = {id: life for id, life in known.items() if feed_tables.is_taken(feed.tables, life)}
    left_at = {id: at for id, life in known.items() if (at := feed_tables.left_ts(feed.tables, life)) is not None}
    left, counts = {id: known[id] for id in left_at}, feed_tables.EventEstimates(run.segments, cut.checkpoint_ts)
    holds = find_holds(run, known, upto)
    if upto == BEGINNING:
        return Applied(upto, lives, (), holds, left)
    tables = CurrentTables(run.lake, feed)
    # Tables that wait for a person to approve a rewrite of their rows, and those that cannot be read.
    unready: dict[str, str] = {}
    for id, life in ((id, life) for id, life in lives.items() if id not in holds):
        # A person asked to recompute it.
        if life.last.name in run.rebuild and life.dropped_ts is None and (gone := tables.drop_unreadable(life)):
            run.log.warning("table %s cannot be read: it is taken out of the catalog, and made anew", gone)
        try:
            if versions := unapproved(feed, run.decisions, life, tables.find):
                unready[id] = waiting_reason(life, versions)
        except UnreadableTableError as error:
            unready[id] = str(error)
    holds = unready | holds
    synthetic = SyntheticWriter(run)
    synthetic.write_repairs()
    holds = synthetic.write_moved_rows(lives, holds) | holds
    changed, refused = find_changed_tables(tables, News(run, upto), lives, holds)
    waiting = tuple(each.life.last.name for each in changed if only is not None and each.life.last.name not in only)
    wanted = [each for each in changed if each.life.last.name not in waiting]
    changed = [replace(each, number=number) for number, each in enumerate(wanted)]
    done: list[_Turn] = []
    holds = refused | holds
    if changed:
        run.log.info("%s with changes", plural(len(changed), "table"))
        run.events.ensure()
        of_dump: dict[TableName, int] = {}
        if run.typed and (others := run.segments.decoded_beside(DUMP)) is not None:
            # The number of rows of each table whose decoded events are all of the dump.
            decoded = run.segments.rows.filter((pc.field("state") == DECODED) & (pc.field("kind") == DUMP))
            counted = decoded.group_by(["database", "table"]).aggregate([("events", "sum")]).to_pylist()
            rows = {TableName(row["database"], row["table"]): row["events_sum"] for row in counted}
            of_dump = {name: count for name, count in rows.items() if name not in others}
        rest, tries = list(changed), _TRIES
        failed: Holds = {}
        while rest:
            turns, tries = _try(run, tables, rest, counts, of_dump, synthetic), max(tries - 1, 0)
            rest = [again for turn in turns if (again := _again(tables, turn, tries)) is not None]
            numbers = {each.number for each in rest}
            over = [turn for turn in turns if turn.changes.number not in numbers]
            done += [turn for turn in over if turn.goes_on]
            failed |= {turn.changes.life.id: turn.failure for turn in over if turn.failure is not None}
            if rest:
                run.log.info("tables to be updated again: %d", len(rest))
        holds = failed | holds
    # Held tables that were dropped meanwhile stay unchanged, and are no longer held.
    dropped = {id: life for id, life in lives.items() if id in holds and life.dropped_ts is not None}
    gone = [(life, life.dropped_ts, holds[id]) for id, life in dropped.items()]
    # To readers, those are dropped that were renamed since the last cut to a name that is not taken.
    marked = cut.checkpoint_ts if run.settings == cut.settings else BEGINNING
    for id in [id for id, at in left_at.items() if at > marked or id in cut.held_incarnations]:
        why = f"it was renamed to {left[id].last.name}, which the configuration does not take, and stays as it is"
        gone.append((left[id], left_at[id], why))
    holds = {id: reason for id, reason in holds.items() if id not in dropped}
    unmarked: dict[str, str] = {}
    for life, commit_ts, reason in gone:
        try:
            state = tables.find(life)
            if state is not None and state.dropped_ts is None:
                run.log.warning("table %s stays in the lake, marked as dropped: %s", state.name, reason)
                transaction = run.iceberg.transaction(state.identifier, state.snapshot_id)
                transaction.commit(properties={DROPPED_TS: str(commit_ts)})
        except Exception as error:  # noqa: BLE001 - One bad table never stops the others, whatever is wrong with it.
            unmarked[life.id] = hold_reason(error, "be marked as dropped", life.last.name)
    holds = unmarked | holds
    locations: list[TableLocation] = []
    for life, now in ((turn.changes.life, turn.state.identifier) for turn in done):
        home = tables.identifier(life.last.name)
        # A dropped table keeps its identifier until its name is needed; once it has made way for another, it does not
        # move back, even if the previous run ended between the two steps.
        parked = tables.parking_identifier(life, life.last.name)
        stays = life.dropped_ts is not None and (now in (home, parked) or not tables.is_free(home))
        locations.append(TableLocation(life, now, now if stays else home))
    blocked, applied = rename_to_source_names(tables, locations, lives | left), list[AppliedTable]()
    for turn in done:
        life = turn.changes.life
        try:
            state = tables.find(life)
            if state is None:
                raise UnreadableTableError(f"the table {life.last.name} no longer exists", advice="run again")
        except UnreadableTableError as error:
            blocked = {life.id: str(error)} | blocked
            continue
        if life.id not in blocked:
            applied.append(AppliedTable(life, state, turn.updated.counts, turn.changes.is_rebuilt))
    return Applied(upto, lives, tuple(applied), blocked | holds, left, waiting)


def _try(
    run: FeedRun, tables: CurrentTables, changed: Sequence[TableChanges], counts: feed_tables.EventEstimates,
    of_dump: Mapping[TableName, int], synthetic: SyntheticWriter,
) -> list[_Turn]:  # fmt: skip
    """Plan the updates of tables, carry them out in one job, and commit each that succeeds. `of_dump`: the rows of
    tables that were typed with a dump."""
    updated, why = update_tasks.UpdatedTable, "it was not updated"
    turns = [_Turn(each, updated(each.number, each.life.last.name, failure=why)) for each in changed]
    run.require_lease()
    # Made before there are threads: it is the run's first write, and what fails with it is of no table.
    _, io, batch = run.iceberg, run.lake.catalog.properties, run.segments.batch

    # New tables are made in order: two of them may want one name.
    plan = functools.partial(_plan, run, tables, counts)
    _each(run.log, turns, plan, 1 if any(turn.changes.state is None for turn in turns) else _AT_ONCE)
    planned = [turn for turn in turns if turn.goes_on]
    if updates := [turn.update for turn in planned]:
        # In the current state, and from before segments were decoded again.
        earlier = {id for turn in planned for id in turn.changes.earlier}
        reader = run.events.reader(*commit_ts_range([span for each in updates for span in each.spans]), earlier)
        typed, run.typed = update_tasks.typed_beforehand(io, run.typed, updates, of_dump), []
        rest = [each for each in updates if each.table_no not in typed]
        found = typed | update_tasks.update_in_job(lambda: run.spark, io, rest, reader)
        for turn in planned:
            turn.updated = found.get(turn.changes.number, turn.updated)
    # Which tables cannot be committed: one with unusable rows can be when the policy skips them, or a person discarded
    # each of them. Rows that their tables cannot take are quarantined, before anything is committed: a row that its
    # table skips must not be lost when the run ends. Earlier ones that are taken now or no longer exist are resolved.
    rejected, skips = [*synthetic.rejected], run.feed.policy.quarantine == "skip"
    is_discarded = discards(run.quarantine.rows)
    for turn in [turn for turn in planned if turn.goes_on]:
        made, name = turn.updated, turn.changes.life.last.name
        if made.failure is not None:
            turn.failure = made.failure
            run.log.error("table %s could not be updated: %s", name, turn.failure)
        elif made.rejected:
            rejected += made.rejected
            count, first = plural(sum(row.count for row in made.rejected), "row"), made.rejected[0]
            reason = f"values of {count} do not fit the table's columns, the first at {first.segment} line {first.line}"
            reason += f": {made.misfit}" if made.misfit else ""
            if skips or all(is_discarded(row) for row in made.rejected):
                run.log.warning("table %s continues without rows: %s", name, reason)
            else:
                turn.failure = reason
    sound = [turn for turn in turns if turn.goes_on]
    by_name = {turn.changes.life.last.name: turn for turn in sound}
    is_of_move = synthetic.reads()

    def tried_again(row: Quarantined) -> bool:
        turn = by_name.get(TableName(row.database or "", row.table or ""))
        if row.error_class != BAD_VALUE or turn is None:
            return False
        # A table that continues without its bad rows has skipped them.
        redecoded = row.segment in {segment.segment for segment in turn.changes.redecoded}
        if turn.changes.is_rebuilt and not is_of_move(row):
            return True
        return redecoded or not (skips or row.state == "discarded")

    run.quarantine.replace(tried_again, rejected, run.clock())
    run.require_lease()
    _each(run.log, sound, functools.partial(_commit, run, batch), _AT_ONCE, "tables are committed")
    return turns


def _again(tables: CurrentTables, turn: _Turn, tries: int) -> TableChanges | None:
    """Return what to apply to a table that is updated again, with its state: where its keys may collide, where it has
    failed and another writer has replaced its files by others with the same rows, and where the engine has failed.
    Raises the engine's error when no `tries` are left or the table has changed: the next run continues from what is
    committed, and no table is held."""
    changes, before, now = turn.changes, turn.changes.state, None
    if turn.goes_on:
        return None
    if turn.failure is None and turn.fault is None:
        return replace(changes, keys_may_collide=True)
    with contextlib.suppress(UnreadableTableError):
        now = tables.find(changes.life) if tries else None
    if turn.fault is None:
        is_same = before is not None and now is not None and replace(now, snapshot_id=before.snapshot_id) == before
        return replace(changes, state=now) if is_same and now != before else None
    if tries and (now == before or (before is None and now is not None and not now.schema_fingerprint)):
        return replace(changes, state=now)
    raise turn.fault


def _each(
    log: logging.Logger, turns: Sequence[_Turn], work: Callable[[_Turn], None], at_once: int, what: str = ""
) -> None:
    """Do the work for each table, for some at once, and log `what` is done; those at which it fails say why. Raises the
    engine's error when it occurs at more tables in a row than are worked on at once: others would fail too."""
    in_a_row, progress = 0, Progress(log, what, len(turns)) if what else None
    with ThreadPoolExecutor(at_once) as pool:
        try:
            for turn, future in [(turn, pool.submit(work, turn)) for turn in turns]:
                life = turn.changes.life
                try:
                    future.result()
                    in_a_row = 0
                    if progress is not None:
                        progress.add()
                except Exception as error:  # One bad table never stops the others, whatever is wrong with it.
                    turn.fault = engine_fault(error)
                    if turn.fault is None:
                        turn.failure = hold_reason(error, "be written", life.last.name)
                        log.warning("table %s: %s", life.last.name, turn.failure, exc_info=error)
                        continue
                    log.warning("while table %s was written: %s", life.last.name, turn.fault)
                    in_a_row += 1
                    if in_a_row > at_once:
                        raise turn.fault from error
        finally:
            pool.shutdown(cancel_futures=True)
