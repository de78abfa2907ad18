"""Write rows that a DDL moved as synthetic events with its commit-ts, before tables are updated. The source sends none.

For EXCHANGE PARTITION these are the rows of both tables that swap places; for a change of the key, all rows that are
live then; for RECOVER and FLASHBACK, the rows that the table had before its DROP or TRUNCATE. They are a segment of
their own, which is rewritten when something from before the DDL was."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from cdc_lakehouse.changelog.history import Incarnation
from cdc_lakehouse.changelog.positions import row_stage
from cdc_lakehouse.changelog.schema import Column, RestoredRows, TableVersion
from cdc_lakehouse.decoders.arrow import pc
from cdc_lakehouse.decoders.event_schema import SYNTHETIC, SYNTHETIC_EVENTS, spark_columns
from cdc_lakehouse.decoders.task_errors import errors_of_tasks
from cdc_lakehouse.errors import TableHeldError, TransientError
from cdc_lakehouse.lake.current.key_texts import TableKey
from cdc_lakehouse.lake.current.keyed_events import KeyedSpan, commit_ts_range
from cdc_lakehouse.lake.current.moved_rows import LiveRows, SyntheticEvents, read_rows_at, rows_at
from cdc_lakehouse.lake.current.partition_filter import PartitionRows
from cdc_lakehouse.lake.current.tables import schema_fingerprint
from cdc_lakehouse.lake.current.typed_rows import Target
from cdc_lakehouse.lake.isolation import run_isolated
from cdc_lakehouse.lake.tables.segments import (
    LANDED,
    MOVED_ROWS,
    MOVED_ROWS_PREFIX,
    Segment,
    may_hold,
    replaced_contents,
    replayed_segment,
)
from cdc_lakehouse.pipeline.holds import Holds, ddl_advice, hold_reason
from cdc_lakehouse.pipeline.row_keys import key_before_version, key_changes, key_columns
from cdc_lakehouse.pipeline.run import FeedRun
from cdc_lakehouse.pipeline.table_changes import EventEstimates, emptied_partitions, keyed_spans

_DRIVER_EVENTS: Final = 50_000
"""The most events, of all tables of a DDL that moves rows, that are read in the driver."""


@dataclass(frozen=True)
class _Table:
    """One table's part of a move of rows: its `life` up to `upto_ts`, and the version that the DDL made, its last one
    or the first one of the table that gets the rows."""

    life: Incarnation
    key: tuple[Column, ...]
    void_upto_ts: int
    version: TableVersion
    upto_ts: int

    @property
    def segment(self) -> str:
        return f"{MOVED_ROWS_PREFIX}{self.version.commit_ts}/{self.version.incarnation}"

    @property
    def columns(self) -> tuple[Column, ...]:
        return (*self.key, *self.version.carried)

    @property
    def target(self) -> Target:
        return Target(self.version.carried, dict(enumerate(self.life.versions)))


@dataclass(frozen=True)
class _RowMove:
    """The rows that one DDL moves: one table whose key changes or whose rows come back, or the partitioned and the
    plain table of an exchange."""

    tables: tuple[_Table, ...]

    @property
    def commit_ts(self) -> int:
        return self.tables[0].version.commit_ts

    def fingerprint(self, run: FeedRun) -> str:
        """Return a digest of what the rows depend on other than the events."""
        inputs = [
            (schema_fingerprint(t.life, run.value_format(t.version)), [c.id for c in t.columns], t.void_upto_ts)
            for t in self.tables
        ]
        return hashlib.sha256(repr(inputs).encode()).hexdigest()[:16]


def write_moved_rows(run: FeedRun, lives: Mapping[str, Incarnation], holds: Holds) -> Holds:
    """Bring all synthetic events up to date. Return holds for the tables whose moved rows cannot be written."""
    moves, found = _moves(run, lives)
    for move in sorted(moves, key=lambda move: move.commit_ts):
        waiting = next((table for table in move.tables if table.life.id in holds | found), None)
        if waiting is not None and waiting.version.restored is not None:
            was, reason = waiting.life.last.name, (holds | found).reasons[waiting.life.id]
            why = f"the table {was} whose rows come back is held: {reason}. {ddl_advice(waiting.version.name)}"
        elif waiting is not None:
            why = f"table {waiting.version.name} is held, and has to go on first"
        elif (failed := _write(run, move)) is not None:
            why = failed
        else:
            continue
        found |= Holds({table.version.incarnation: f"{table.version.query}: {why}" for table in move.tables})
    _delete_obsolete(run, {table.segment for move in moves for table in move.tables})
    return found


def _write(run: FeedRun, move: _RowMove) -> str | None:
    """Write the rows of a move, unless they are current; return the reason when that fails. Raises `TransientError`:
    events are written, which belong to more than one table."""
    try:
        if not _is_current(run, move):
            failed = run_isolated(run.spark, [move], lambda moves: _carry_out(run, *moves))
            if failed:
                return f"the rows that the statement moves cannot be written: {failed[0]}. The next run tries again"
    except TransientError:
        raise
    except Exception as error:  # One bad table never stops the others, whatever is wrong with it.
        version = move.tables[0].version
        reason = hold_reason(error, "have the rows that the statement moves", version.name)
        run.log.warning("%s: %s", version.query, reason, exc_info=error)
        return reason
    return None


def _moves(run: FeedRun, lives: Mapping[str, Incarnation]) -> tuple[list[_RowMove], Holds]:
    found: list[_RowMove] = []
    holds: dict[str, str] = {}
    for life in lives.values():
        found += [_RowMove((_table(run, life, version),)) for version in key_changes(run.feed, life)]
        for version in life.versions:
            swap, restored = version.swap, version.restored
            others = {swap.partitioned, swap.plain} if swap else {restored.incarnation} if restored else set[str]()
            if not others <= lives.keys():
                why = "the other table is not one that the configuration takes: let tables.include name it, too"
                holds[life.id] = f"{version.query}: {why}"
                continue
            if restored is not None:
                ended = _ended_table(run, lives[restored.incarnation], version, restored)
                rekeyed = [_RowMove((_table(run, ended.life, each),)) for each in key_changes(run.feed, ended.life)]
                found += [move for move in rekeyed if move not in found]
                found.append(_RowMove((ended,)))
            if swap is None or swap.partitioned != life.id:
                continue
            plain = lives[swap.plain]
            other = next(each for each in plain.versions if each.swap == swap and each.commit_ts == version.commit_ts)
            found.append(_RowMove((_table(run, life, version), _table(run, plain, other))))
    return found, Holds(holds)


def _table(run: FeedRun, life: Incarnation, version: TableVersion) -> _Table:
    upto = life.upto(version.commit_ts)
    assert upto is not None
    key = key_before_version(run.feed, life, version)
    # The table's earlier moves of rows replace everything before them.
    void = [v.commit_ts for v in key_changes(run.feed, upto) if v.commit_ts < version.commit_ts]
    return _Table(upto, key, max([upto.emptied_ts, *void]), version, version.commit_ts)


def _ended_table(run: FeedRun, life: Incarnation, version: TableVersion, restored: RestoredRows) -> _Table:
    """Return the table whose rows come back, as it was before the DROP or TRUNCATE."""
    upto = life.upto(restored.ended_ts)
    assert upto is not None
    before = Incarnation(life.id, upto.versions[:-1])
    void = max([before.emptied_ts, *(change.commit_ts for change in key_changes(run.feed, before))])
    key = key_columns(run.feed, before.last) or key_columns(run.feed, version)
    return _Table(before, key, void, version, restored.ended_ts)


def _is_current(run: FeedRun, move: _RowMove) -> bool:
    fingerprint = move.fingerprint(run)
    known = run.segments.find(table.segment for table in move.tables)
    done = [known.get(table.segment) for table in move.tables]
    for row in done:
        if row is not None and row.state == LANDED and row.batch in run.events.appended.unmarked:
            # A run ended between its commit and this.
            run.mark_decoded([each for each in done if each is not None])
            return _is_current(run, move)
        if row is None or row.state == LANDED or row.fingerprint != fingerprint:
            return False
    batch = min(row.batch for row in done if row is not None)
    names = [name for table in move.tables for name in table.life.names]
    lowest = pc.field("min_commit_ts")
    before = (lowest <= move.commit_ts) | (lowest.is_null() & ~pc.field("replaces").is_null())
    # The commit-ts of a later move is known even when it moved no row.
    before = before & ~((pc.field("kind") == MOVED_ROWS) & (pc.field("table_version") >= move.commit_ts))
    return not run.segments.rows.filter((pc.field("batch") > batch) & before & may_hold(names)).num_rows


def _carry_out(run: FeedRun, move: _RowMove) -> None:
    run.events.ensure()
    for table in move.tables:
        _require_known_rows(run, table)
    tables = move.tables
    spans = [
        span
        for number, table in enumerate(tables)
        for key in [TableKey.of(table.key, table.life.versions, run.value_format(table.version))]
        for span in keyed_spans(table.life, key, number, row_stage(table.void_upto_ts), row_stage(table.upto_ts))
    ]
    readers = _readers(run, move)
    with errors_of_tasks():
        if EventEstimates(run).of_names({name for table in tables for name in table.life.names}) <= _DRIVER_EVENTS:
            _write_in_driver(run, move, spans, readers)
        else:
            _write_in_tasks(run, move, spans, readers)


def _write_in_driver(run: FeedRun, move: _RowMove, spans: Sequence[KeyedSpan], readers: Sequence[LiveRows]) -> None:
    """Write the events of small tables in this process: a job takes longer than its work."""
    rows = read_rows_at(run.events.reader(*commit_ts_range(spans)), spans, readers) if spans else []
    for number, each in enumerate(rows):
        if pc.any(each.column("partial")).as_py():
            raise _partial_rows(move)
        _require_partition(move, readers[number], number, {*each.column("exchanged").unique().to_pylist()})
    written = [each for number, made in _parts(move) for each in made(rows[number].to_batches())] if rows else []
    _commit(run, move, run.events.write(written))


def _partial_rows(move: _RowMove) -> TableHeldError:
    return TableHeldError(
        "the log lacks columns of the rows before it, or a value cannot be converted as the source does it",
        advice=ddl_advice(move.tables[0].version.name),
    )


def _require_partition(move: _RowMove, reader: LiveRows, number: int, exchanged: set[bool | None]) -> None:
    """Raises `TableHeldError` where it is uncertain which rows of the partitioned table (0) are exchanged, and where
    rows of the plain one may not fit into the partition: later statements would empty it of them, and not of rows that
    its definition names."""
    partition, name = reader.exchanged, move.tables[number].version.name
    if partition is None:
        return
    if number and exchanged - {True}:
        why = f"rows of {name} are not, or not for certain, in the range or list of partition {partition.names[0]}"
        raise TableHeldError(why, advice=ddl_advice(move.tables[0].version.name))
    if None in exchanged:
        raise TableHeldError(partition.doubt, advice=ddl_advice(name))


def _write_in_tasks(run: FeedRun, move: _RowMove, spans: Sequence[KeyedSpan], readers: Sequence[LiveRows]) -> None:
    events = run.events.reader(*commit_ts_range(spans))
    own = [[span for span in spans if span.table_no == number] for number in range(len(readers))]
    rows = [rows_at(run.spark, events, spans, reader) for spans, reader in zip(own, readers, strict=True)]
    for frame in rows:
        frame.persist()
    try:
        for number, frame in enumerate(rows):
            if frame.where("partial").limit(1).count():
                raise _partial_rows(move)
            exchanged = {row["exchanged"] for row in frame.select("exchanged").distinct().collect()}
            _require_partition(move, readers[number], number, exchanged)
        columns = spark_columns(SYNTHETIC_EVENTS)
        events = [rows[number].mapInArrow(made, columns) for number, made in _parts(move)]
        _commit(run, move, run.events.write_in_tasks(functools.reduce(DataFrame.unionAll, events)))
    finally:
        for frame in rows:
            frame.unpersist()


def _readers(run: FeedRun, move: _RowMove) -> list[LiveRows]:
    """Return the readers of the tables' rows. In an exchange, the rows of each table go to the other, and those of the
    plain table are tested, too: WITHOUT VALIDATION, the source does not."""
    readers: list[LiveRows] = []
    for table, other in zip(move.tables, [each.version for each in reversed(move.tables)], strict=True):
        swap, exchanged = table.version.swap, None
        if swap is not None:
            scheme = move.tables[0].version.partitioning
            assert scheme is not None, table.version.name
            exchanged = PartitionRows(scheme, (swap.partition,), table.target)
        emptied = emptied_partitions(table.life, table.void_upto_ts)
        goes_to = None if len(move.tables) == 1 else other
        value_format = run.value_format(table.version)
        readers.append(LiveRows(len(table.key), table.target, goes_to, emptied, exchanged, value_format))
    return readers


def _parts(move: _RowMove) -> list[tuple[int, SyntheticEvents]]:
    """Return the events to write, by the number of the table whose rows they are made from."""
    if len(move.tables) == 1:
        (table,) = move.tables
        return [(0, SyntheticEvents("I", table.version, table.segment, 0))]
    partitioned, plain = move.tables
    return [
        (0, SyntheticEvents("D", partitioned.version, partitioned.segment, 0, only_exchanged=True)),
        (1, SyntheticEvents("I", partitioned.version, partitioned.segment, 1)),
        (1, SyntheticEvents("D", plain.version, plain.segment, 2)),
        (0, SyntheticEvents("I", plain.version, plain.segment, 3, only_exchanged=True)),
    ]


def _require_known_rows(run: FeedRun, table: _Table) -> None:
    """Raises `TableHeldError` for rows that were written while the table had no key: they cannot be distinguished."""
    if run.feed.settings_of(table.version.name.database, table.version.name.table).primary_key is not None:
        return
    events = run.events.frame()
    for span in table.life.spans():
        above, upto = max(span.above, table.void_upto_ts), span.upto
        if span.version.key or upto is None or above >= upto:
            continue
        name = span.name
        own = (F.col("schema_name") == name.database) & (F.col("table_name") == name.table)
        # Synthetic events at the time of the statement come after it: among them are those of an earlier run.
        before = (F.col("commit_ts") < upto) | ((F.col("commit_ts") == upto) & ~F.coalesce(SYNTHETIC, F.lit(False)))
        if events.where(own & (F.col("commit_ts") > above) & before).limit(1).count():
            raise TableHeldError(
                "rows were written while the table had no key",
                advice=f'set tables.settings."{name}".primary_key in the configuration',
            )


def _commit(run: FeedRun, move: _RowMove, data_files: Sequence[str]) -> None:
    """Land, append and count the events, as for a segment of the source."""
    now = run.clock()
    new = _landed(run, move)
    run.events.commit(data_files, new)
    run.mark_decoded(new)
    names = " and ".join(str(table.version.name) for table in move.tables)
    run.log.info("wrote moved rows of %s in %s", names, run.clock() - now)


def _landed(run: FeedRun, move: _RowMove) -> list[Segment]:
    """Return the landed segments of a move: those of a run that ended right after landing them, or new ones."""
    fingerprint, newest = move.fingerprint(run), run.segments.batch
    known = run.segments.find(table.segment for table in move.tables)
    waiting = [s for s in known.values() if (s.state, s.fingerprint, s.batch) == (LANDED, fingerprint, newest)]
    if len(waiting) == len(move.tables):
        return waiting
    new = [_segment(run, table, known.get(table.segment), fingerprint, newest + 1) for table in move.tables]
    run.segments.land(new)
    return new


def _segment(run: FeedRun, table: _Table, known: Segment | None, fingerprint: str, batch: int) -> Segment:
    name = table.version.name
    return Segment(
        segment=table.segment,
        kind=MOVED_ROWS,
        database=name.database,
        table=name.table,
        table_version=table.version.commit_ts,
        size=0,
        fingerprint=fingerprint,
        batch=batch,
        state=LANDED,
        landed_at=run.clock(),
        replaces=None if known is None else replaced_contents(known, run.appended()),
    )


def _delete_obsolete(run: FeedRun, wanted: set[str]) -> None:
    """Remove the synthetic events of DDL that is no longer in the history or the configuration."""
    rows = run.segments.select(pc.field("kind") == MOVED_ROWS)
    obsolete = [row for row in rows if row.segment not in wanted]
    over = [row for row in obsolete if row.fingerprint is not None or row.state == LANDED]
    if not over:
        return
    batch = run.segments.batch + 1
    appended = run.appended()
    new = [replace(replayed_segment(row, batch, appended, run.clock()), fingerprint=None) for row in over]
    run.segments.land(new)
    run.events.commit((), new)
    run.mark_decoded(new)
