"""Events that the source never sent, which the run writes before tables are updated: rows that a DDL moved, and repairs
of rows that `verify` found to differ.

As events, in segments of their own, they are folded, decoded again and rebuilt like all others: later changes of the
log override them, and a table that is recomputed from its events keeps them.

A DDL moves rows without row changes: EXCHANGE PARTITION swaps rows of two tables, a change of the key changes which
columns identify the live rows, and RECOVER and FLASHBACK bring back the rows from before a DROP or TRUNCATE. Their
events have the DDL's commit-ts and the version that it made, and are written again when something from before the DDL
was. The rows are those that the table's events leave, as in the update of a table, written as the source would have
written them. Repairs come after all other events of the cut's checkpoint-ts.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from cdc_lakehouse import duckdb_sql as sql
from cdc_lakehouse.changelog.history import History, Incarnation
from cdc_lakehouse.changelog.positions import BEGINNING, row_stage, synthetic_stage
from cdc_lakehouse.changelog.schema import TableName, TableVersion
from cdc_lakehouse.config import FeedConfig
from cdc_lakehouse.decoders.arrow import pc
from cdc_lakehouse.decoders.event_schema import SYNTHETIC, SYNTHETIC_EVENTS, image_text, row_images
from cdc_lakehouse.decoders.problems import BAD_VALUE, Rejected
from cdc_lakehouse.errors import CdcError, PermanentError, TableHeldError, TransientError
from cdc_lakehouse.lake.current.keyed_events import commit_ts_range, work_by_key
from cdc_lakehouse.lake.current.tables import schema_fingerprint
from cdc_lakehouse.lake.current.typed_rows import PartitionRows, Target
from cdc_lakehouse.lake.current.update_tasks import FeedTable, TableUpdate, UpdatedTable, folded_texts
from cdc_lakehouse.lake.faults import run_isolated
from cdc_lakehouse.lake.files import delete_unused
from cdc_lakehouse.lake.tables.events import EventWriter
from cdc_lakehouse.lake.tables.quarantine import Quarantined, discards
from cdc_lakehouse.lake.tables.segments import (
    LANDED,
    MOVED_ROWS,
    MOVED_ROWS_PREFIX,
    REPAIR,
    Segment,
    earlier_state,
    may_hold,
    replayed_segment,
)
from cdc_lakehouse.pipeline import feed_tables
from cdc_lakehouse.pipeline.holds import OF_QUARANTINED, Holds, ddl_advice, hold_reason
from cdc_lakehouse.pipeline.run import FeedRun

_LINE_BITS: Final = 33
"""The number of bits for the line numbers of one task."""
_ROWS_OF_A_BATCH: Final = 1000


def _events(
    version: TableVersion, commit_ts: int, segment: str, first: int, ops: pa.Array, images: Mapping[str, Any]
) -> pa.RecordBatch:
    """Return events with the columns of `SYNTHETIC_EVENTS`, numbered from `first` on. `images` by column."""
    count = len(ops)
    values = {
        "schema_name": version.name.database, "table_name": version.name.table, "table_version": version.commit_ts,
        "commit_ts": commit_ts, "segment": segment, SYNTHETIC: True,
    }  # fmt: skip
    columns = {
        **{name: pa.repeat(value, count) for name, value in values.items()},
        **images,
        "op": ops,
        "line": pa.array(np.arange(first, first + count), pa.int64()),
    }
    nothing = pa.nulls(count)
    arrays = [columns.get(field.name, nothing).cast(field.type) for field in SYNTHETIC_EVENTS]
    return pa.RecordBatch.from_arrays(arrays, schema=SYNTHETIC_EVENTS)


_DRIVER_EVENTS: Final = 50_000
"""The most events, of all tables of a DDL that moves rows, that are read in the driver: a job takes longer than its
work."""
_TASK_EVENTS: Final = 500_000
"""About as many go to one task otherwise."""


@dataclass(frozen=True)
class _Table(FeedTable):
    """One table's part of a move of rows: its `life` up to `upto_ts`, and the version that the DDL made, its last one
    or the first one of the table that gets the rows."""

    version: TableVersion
    upto_ts: int

    @property
    def segment(self) -> str:
        return f"{MOVED_ROWS_PREFIX}{self.version.commit_ts}/{self.version.incarnation}"

    @property
    def target(self) -> Target:
        return Target(self.version.carried, self.life.versions, self.values)


_RowMove = tuple[_Table, ...]
"""The rows that one DDL moves: one table whose key changes or whose rows come back, or the partitioned and the plain
table of an exchange."""


def _fingerprint(feed: FeedConfig, move: _RowMove) -> str:
    """Return a digest of what the rows depend on other than the events."""
    columns = [[column.id for column in (*table.key, *table.version.carried)] for table in move]
    inputs = [(schema_fingerprint(t.life, t.values), ids, t.void_upto_ts) for t, ids in zip(move, columns, strict=True)]
    return hashlib.sha256(repr((feed.policy.quarantine, inputs)).encode()).hexdigest()[:16]


def _moves(feed: FeedConfig, lives: Mapping[str, Incarnation]) -> tuple[list[_RowMove], Holds]:
    """Return the moves of rows in the history, and holds for tables that exchange rows with one that is not taken."""
    found: list[_RowMove] = []
    holds: dict[str, str] = {}
    for life in lives.values():
        found += [(_table(feed, life, version),) for version in feed_tables.key_changes(feed, life)]
        for version in life.versions:
            swap, restored = version.swap, version.restored
            others = {swap.partitioned, swap.plain} if swap else {restored.incarnation} if restored else set[str]()
            if not others <= lives.keys():
                why = "the other table is not one that the configuration takes: let tables.include name it, too"
                holds[life.id] = f"{version.query}: {why}"
                continue
            if restored is not None:
                # The table whose rows come back, as it was before the DROP or TRUNCATE.
                upto = lives[restored.incarnation].upto(restored.ended_ts)
                assert upto is not None
                before = Incarnation(upto.id, upto.versions[:-1])
                table, values = feed_tables.feed_table(feed, before), feed_tables.value_format(feed, version.name)
                key = table.key or feed_tables.key_columns(feed, version)
                ended = _Table(before, key, values, table.void_upto_ts, version, restored.ended_ts)
                rekeyed = [(_table(feed, ended.life, each),) for each in feed_tables.key_changes(feed, ended.life)]
                found += [move for move in rekeyed if move not in found]
                found.append((ended,))
            if swap is not None and swap.partitioned == life.id:
                plain = lives[swap.plain]
                other = next(v for v in plain.versions if v.swap == swap and v.commit_ts == version.commit_ts)
                found.append((_table(feed, life, version), _table(feed, plain, other)))
    return found, holds


def _table(feed: FeedConfig, life: Incarnation, version: TableVersion) -> _Table:
    upto = life.upto(version.commit_ts)
    assert upto is not None
    key, at = feed_tables.key_before_version(feed, life, version), version.commit_ts
    # The table's earlier moves of rows replace everything before them.
    void = [v.commit_ts for v in feed_tables.key_changes(feed, upto) if v.commit_ts < at]
    return _Table(upto, key, feed_tables.value_format(feed, version.name), max([upto.emptied_ts, *void]), version, at)


class SyntheticWriter:
    """Writes synthetic events, with their segments. `rejected`: the events that moves of this run cannot use."""

    def __init__(self, run: FeedRun) -> None:
        self._run, self.rejected = run, list[Rejected]()
        self._moves: Sequence[_RowMove] = ()

    def write_repairs(self) -> None:
        """Write the run's repairs, and finish those of a run that ended between its commits: a repair that is not in
        `events` by then is not made."""
        run = self._run
        repairs, run.repairs = run.repairs, ()
        for segments in run.segments.undecoded(REPAIR).values():
            run.events.mark_decoded(segments, run.clock())
        if not repairs:
            return
        run.events.ensure()
        batch, history = run.segments.batch + 1, run.history.history
        versions = [version_at(history, repair.incarnation, repair.checkpoint_ts) for repair in repairs]
        landed = [
            self._segment(
                # Sorted in the order in which they are made: see `changelog.positions`.
                f"//repair/{repair.checkpoint_ts}/{batch:010d}/{repair.incarnation}", version.name,
                kind=REPAIR, table_version=repair.checkpoint_ts, requested_by=repair.requested_by,
            )
            for repair, version in zip(repairs, versions, strict=True)
        ]  # fmt: skip
        run.segments.land(landed)

        def batches() -> Iterator[pa.RecordBatch]:
            for repair, version, segment in zip(repairs, versions, landed, strict=True):
                for start in range(0, len(repair.rows), _ROWS_OF_A_BATCH):
                    rows = repair.rows[start : start + _ROWS_OF_A_BATCH]
                    texts = pa.array([image_text(row.image) for row in rows], pa.string())
                    ops = pa.array([row.op for row in rows])
                    is_delete = pc.equal(ops, "D")
                    images = {"before": pc.if_else(is_delete, texts, None), "after": pc.if_else(is_delete, None, texts)}
                    yield _events(version, repair.checkpoint_ts, segment.segment, start + 1, ops, images)

        self._commit(run.events.writer().write(batches()), landed)
        for repair in repairs:
            run.log.info("wrote the repair of %d rows of %s", len(repair.rows), repair.name)

    def write_moved_rows(self, lives: Mapping[str, Incarnation], holds: Holds) -> Holds:
        """Bring all synthetic events up to date. Return holds for the tables whose moved rows cannot be written."""
        run = self._run
        moves, found = _moves(run.feed, lives)
        self._moves = moves
        for move in sorted(moves, key=lambda move: move[0].version.commit_ts):
            made = move[0].version
            waiting = next((table for table in move if table.life.id in holds | found), None)
            try:
                if waiting is not None and waiting.version.restored is not None:
                    was, reason = waiting.life.last.name, (found | holds)[waiting.life.id]
                    why = f"the table {was} whose rows come back is held: {reason}. {ddl_advice(waiting.version.name)}"
                elif waiting is not None:
                    why = f"table {waiting.version.name} is held, and has to continue first"
                elif self._is_current(move):
                    continue
                elif failed := run_isolated(lambda: run.spark, [move], lambda moves: self._carry_out(*moves)):
                    why = f"the rows that the statement moves cannot be written: {failed[0]}. The next run tries again"
                else:
                    continue
            except (TransientError, OSError):
                raise  # Events are read and written, which belong to more than one table.
            except Exception as error:  # One bad table never stops the others, whatever is wrong with it.
                why = hold_reason(error, "have the rows that the statement moves", made.name)
                run.log.warning("%s: %s", made.query, why, exc_info=error)
            found = {table.version.incarnation: f"{table.version.query}: {why}" for table in move} | found
        # Synthetic events of DDL that is no longer in the history or the configuration.
        wanted = {table.segment for move in moves for table in move}
        obsolete = [row for row in run.segments.select(pc.field("kind") == MOVED_ROWS) if row.segment not in wanted]
        if over := [row for row in obsolete if row.fingerprint is not None or row.state == LANDED]:
            batch, appended, now = run.segments.batch + 1, run.appended(), run.clock()
            new = [replace(replayed_segment(row, batch, appended, now), fingerprint=None) for row in over]
            run.segments.land(new)
            self._commit((), new)
        return found

    def _is_current(self, move: _RowMove) -> bool:
        segments, fingerprint = self._run.segments, _fingerprint(self._run.feed, move)
        known = segments.find(table.segment for table in move)
        done = [known.get(table.segment) for table in move]
        if any(row is None or row.state == LANDED or row.fingerprint != fingerprint for row in done):
            return False
        batch = min(row.batch for row in done if row is not None)
        names = [name for table in move for name in table.life.names]
        lowest = pc.field("min_commit_ts")
        before = (lowest <= move[0].version.commit_ts) | (lowest.is_null() & ~pc.field("replaces").is_null())
        # The commit-ts of a later move is known even when it moved no row.
        before = before & ~((pc.field("kind") == MOVED_ROWS) & (pc.field("table_version") >= move[0].version.commit_ts))
        return not segments.rows.filter((pc.field("batch") > batch) & before & may_hold(names)).num_rows

    def _carry_out(self, move: _RowMove) -> None:
        run, made_by = self._run, move[0].version
        run.events.ensure()
        for table in move:
            self._require_known_rows(table)
        of_tables = (table.spans(number, BEGINNING, row_stage(table.upto_ts)) for number, table in enumerate(move))
        spans = [*itertools.chain.from_iterable(of_tables)]
        writer = run.events.writer()
        names = {name for table in move for name in table.life.names}
        count, _ = feed_tables.EventEstimates(run.segments).of(names)
        spark, tasks = None, 1
        if spans and count > _DRIVER_EVENTS:
            spark = run.spark
            tasks = max(spark.sparkContext.defaultParallelism, count // _TASK_EVENTS)
        skips = run.feed.policy.quarantine == "skip"
        # When a person discarded rows, tasks write what they can, as for updates of tables.
        writes_parts = skips or run.quarantine.has_discarded(names)
        plans = [[_MovedRows(move, writer, task, writes_parts)] for task in range(tasks)]
        places = dict.fromkeys(range(len(move)), (0, tasks))
        reader = run.events.reader(*commit_ts_range(spans))
        made = work_by_key(spark, reader, spans, places, plans, lambda own, part: [each.written(part) for each in own])
        files = [file for each in made for file in each.files]
        tables = [UpdatedTable(number, table.life.last.name) for number, table in enumerate(move)]
        for part in (part for each in made for part in each.tables):
            tables[part.table_no].add(part)
        # Quarantined before anything is committed.
        rejected = [row for table in tables for row in table.rejected]
        self.rejected += rejected
        segments, failure = self._segments_of_misfits(), next((e.failure for e in made if e.failure is not None), None)
        run.quarantine.replace(
            lambda row: failure is None and _reads(move, row, segments, whole=True), rejected, run.clock()
        )
        # What a table leaves out by its policy, or because a person gave it up, does not move either.
        is_left_out = discards(run.quarantine.rows)
        holding = [] if skips else [row for row in rejected if not is_left_out(row)]
        if failure is None and holding:
            first, advice = holding[0], f"{OF_QUARANTINED}. {ddl_advice(made_by.name)}"
            why = f"rows before it cannot be used, the first at {first.segment} line {first.line}: {first.message}"
            failure = TableHeldError(why, advice=advice)
        if failure is not None:
            delete_unused(writer.table.io, files)
            raise failure
        if rejected:
            count, place = sum(row.count for row in rejected), f"{rejected[0].segment} line {rejected[0].line}"
            run.log.warning("%s: %d rows do not move, the first at %s", made_by.query, count, place)
        now, known = run.clock(), run.segments.find(table.segment for table in move)
        fingerprint, appended = _fingerprint(run.feed, move), run.appended()
        before = {name: earlier_state(segment, appended) for name, segment in known.items()}
        landed = [
            self._segment(
                table.segment, table.version.name, kind=MOVED_ROWS, table_version=table.version.commit_ts,
                fingerprint=fingerprint, **before.get(table.segment, {}),
            )
            for table in move
        ]  # fmt: skip
        run.segments.land(landed)
        self._commit(files, landed)
        moved = " and ".join(str(table.version.name) for table in move)
        run.log.info("wrote moved rows of %s in %s", moved, run.clock() - now)

    def reads(self) -> Callable[[Quarantined], bool]:
        """Return a predicate of rows that could not be used: whether a move may read it, and the update of its table
        does not."""
        segments = self._segments_of_misfits()
        return lambda row: any(_reads(move, row, segments) for move in self._moves)

    def _segments_of_misfits(self) -> dict[str, Segment]:
        rows = self._run.quarantine.rows
        return self._run.segments.find({row.segment for row in rows if row.error_class == BAD_VALUE})

    def _require_known_rows(self, table: _Table) -> None:
        """Raises `TableHeldError` for rows that were written while the table had no key: nothing tells them apart."""
        if self._run.feed.settings_of(table.version.name.database, table.version.name.table).primary_key is not None:
            return
        for version, upto in table.life.spans():
            above = max(version.since, table.void_upto_ts)
            if version.key or upto is None or above >= upto:
                continue
            name, events = version.name, self._run.events.reader(above + 1, upto)
            columns = ("schema_name", "table_name", "commit_ts", SYNTHETIC)
            own = (pc.field("schema_name") == name.database) & (pc.field("table_name") == name.table)
            # Synthetic events at the time of the statement come after it: among them are those of an earlier run.
            before = (pc.field("commit_ts") < upto) | ((pc.field("commit_ts") == upto) & ~pc.field(SYNTHETIC))
            read = events.read({(name.database, name.table)}, above + 1, upto, columns)
            if any(rows.filter(own & (pc.field("commit_ts") > above) & before).num_rows for rows in read):
                raise TableHeldError(
                    "rows were written while the table had no key",
                    advice=f'set tables.settings."{name}".primary_key in the configuration',
                )

    def _commit(self, data_files: Sequence[str], segments: Sequence[Segment]) -> None:
        """Append and count the events of landed segments, as for those of the source."""
        self._run.events.commit(data_files, segments)
        self._run.events.mark_decoded(segments, self._run.clock())

    def _segment(self, segment: str, name: TableName, **others: Any) -> Segment:
        return Segment(
            segment=segment, database=name.database, table=name.table, size=0, batch=self._run.segments.batch + 1,
            state=LANDED, landed_at=self._run.clock(), **others,
        )  # fmt: skip


def _reads(move: _RowMove, row: Quarantined, segments: Mapping[str, Segment], *, whole: bool = False) -> bool:
    """Whether a move reads some of the segment (`whole`: all of it) of a row that could not be used, and the update of
    the row's table does not. Updates read what tables exchange, too."""
    segment, name = segments.get(row.segment), TableName(row.database or "", row.table or "")
    if move[0].version.swap or segment is None or segment.min_commit_ts is None or segment.max_commit_ts is None:
        return False
    stage = synthetic_stage if segment.kind in (MOVED_ROWS, REPAIR) else row_stage
    lowest, highest = stage(segment.min_commit_ts), stage(segment.max_commit_ts)
    return row.error_class == BAD_VALUE and any(
        name in table.life.names
        and row_stage(table.void_upto_ts) < highest
        and (highest if whole else lowest) <= row_stage(table.upto_ts)
        for table in move
    )


class _Made(NamedTuple):
    """What a task made: data files, what it could not use of each table's events, and why it cannot go on."""

    files: list[str]
    tables: list[UpdatedTable]
    failure: CdcError | None


@dataclass(frozen=True)
class _MovedRows:
    """What one task does for a move: it makes and writes the events of the rows of its keys, INSERTs into the table
    that they enter and DELETEs from the one that they leave. `task` numbers what is written for one DDL.
    `writes_parts`: whether it writes where it cannot use all events."""

    move: _RowMove
    writer: EventWriter
    task: int
    writes_parts: bool

    def written(self, events: pa.Table) -> _Made:
        rows: list[pa.Table] = []
        tables: list[UpdatedTable] = []
        try:
            for number, table in enumerate(self.move):
                own, where = events.filter(pc.field("table_no") == number), self.writer.table
                fold = TableUpdate(number, table, where.location, emptied=table.emptied(BEGINNING))
                values, texts, updated = folded_texts(fold, where.io, own)
                tables.append(updated)
                rows.append(self._images(values, texts, number))
        except TransientError:
            raise
        except CdcError as error:  # The driver removes what other tasks have written.
            return _Made([], tables, error)
        goes_on = self.writes_parts or not any(table.rejections for table in tables)
        return _Made(self.writer.write(self._events(rows)) if goes_on else [], tables, None)

    def _images(self, values: pa.Table, texts: pa.Table, number: int) -> pa.Table:
        """Return of each row its image in the table that it leaves (`before`) and in the one that it enters (`after`),
        and whether it is in the exchanged partition (`exchanged`)."""
        table, other = self.move[number], self.move[-1 - number]
        swap, scheme = table.version.swap, self.move[0].version.partitioning
        columns, count = table.target.columns, values.num_rows
        if not count:
            return pa.table({"before": [], "after": [], "exchanged": pa.array([], pa.bool_())})
        exchanged = pa.repeat(False, count)
        if swap is not None and scheme is not None:
            # Rows of the plain table (1) are tested, too, because WITHOUT VALIDATION the source does not: later
            # statements would empty the partition of them, and not of rows that its definition names.
            partition = PartitionRows(scheme, (swap.partition,), table.target)
            condition = partition.condition(lambda column: f"c{column.id}")
            tested = values.select([f"c{each.id}" for each in partition.columns])
            exchanged = sql.query(f"SELECT {condition} AS exchanged FROM tested", tested=tested).column("exchanged")
            answers, name = {*exchanged.unique().to_pylist()}, table.version.name
            if number and answers - {True}:
                why = f"rows of {name} are not, or not for certain, in the range or list of partition {swap.partition}"
                raise TableHeldError(why, advice=ddl_advice(self.move[0].version.name))
            if None in answers:
                raise TableHeldError(partition.doubt, advice=ddl_advice(name))
        own = [texts.column(f"c{column.id}").combine_chunks() for column in columns]
        before, after = (
            row_images([column.name for column in of.version.carried], own, count) for of in (table, other)
        )
        return pa.table({"before": before, "after": after, "exchanged": exchanged})

    def _events(self, rows: Sequence[pa.Table]) -> Iterator[pa.RecordBatch]:
        into, exchanged = self.move[0], rows[0].filter(rows[0].column("exchanged"))
        parts = [("I", into, rows[0])]
        if len(self.move) == 2:
            plain = self.move[1]
            parts = [("D", into, exchanged), ("I", into, rows[1]), ("D", plain, rows[1]), ("I", plain, exchanged)]
        for number, (op, table, moved) in enumerate(parts, self.task * len(parts)):
            first = (number << _LINE_BITS) + 1
            for batch in moved.to_batches():
                images = {"before": batch.column("before")} if op == "D" else {"after": batch.column("after")}
                ops = pa.repeat(op, batch.num_rows)
                yield _events(table.version, table.version.commit_ts, table.segment, first, ops, images)
                first += batch.num_rows


class NotRepairableError(PermanentError, advice="load the table again (`cdc-lakehouse load`)"):
    """Events cannot repair the table."""


def version_at(history: History, incarnation: str, checkpoint_ts: int) -> TableVersion:
    """Return the version of a table at a cut. Raises `NotRepairableError`."""
    whole = history.incarnations().get(incarnation)
    life = None if whole is None else whole.upto(checkpoint_ts)
    if life is None:
        raise NotRepairableError("the schema history does not know it any more", advice="verify again")
    return life.last
