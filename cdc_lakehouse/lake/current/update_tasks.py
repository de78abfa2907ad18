"""The job that updates the current-state tables of a run, one for all of them, and its tasks: type rows, write them to
a data file, and find the positions of the rows that they replace.

Spark groups the events by table (`keyed_events`). A task works on columns, in DuckDB and Arrow. Nothing is committed
here: files of a failed task are never read."""

from __future__ import annotations

import functools
import itertools
import math
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
from pyiceberg.io import load_file_io
from pyiceberg.schema import Schema
from pyiceberg.types import FloatType, ListType, LongType, NestedField, PrimitiveType
from pyroaring import BitMap64

from cdc_lakehouse import duckdb_sql as sql
from cdc_lakehouse.changelog.history import Incarnation
from cdc_lakehouse.changelog.mysql_types import ColumnType, converts
from cdc_lakehouse.changelog.positions import row_stage
from cdc_lakehouse.changelog.schema import Column, TableName
from cdc_lakehouse.decoders.arrow import pc, where
from cdc_lakehouse.decoders.problems import BAD_VALUE, Rejected
from cdc_lakehouse.decoders.tasks import run_tasks
from cdc_lakehouse.errors import CdcError, TableHeldError, TransientError, in_one_line
from cdc_lakehouse.lake.current import keyed_events, typed_rows, value_parsing
from cdc_lakehouse.lake.current.keyed_events import KEYED_EVENTS, KeyedSpan, KeyPart, key_texts
from cdc_lakehouse.lake.current.tables import iceberg_name
from cdc_lakehouse.lake.current.typed_rows import (
    COMMIT_TS,
    PartitionRows,
    Target,
    TypedRows,
    any_of,
    lake_columns,
    lake_name,
)
from cdc_lakehouse.lake.current.value_parsing import ValueFormat, convert_through
from cdc_lakehouse.lake.faults import described, engine_fault, run_isolated
from cdc_lakehouse.lake.files import (
    POSITION,
    ROW_GROUP_BYTES,
    DataFileWriter,
    Range,
    StoredFile,
    delete_unused,
    new_path,
    read_rows,
    write_file,
)
from cdc_lakehouse.lake.tables.events import EventReader

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from cdc_lakehouse.lake.tables.events import SegmentFile

    _Spark = Callable[[], SparkSession]

REJECTED_LISTED: Final = 1000
"""The number of unusable rows of an update that are listed one by one; further ones are counted by segment."""

_BATCH_ROWS: Final = 131_072
_DOES_NOT_FIT: Final = (
    "the row does not fit the table's columns: a value that is not of its type, a column that is not known, or one "
    "that is missing (virtual generated columns can be named in virtual_columns)"
)
_NO_ROOM: Final = (
    "memory ran out while the table was updated. The next run tries again; where it comes again, its values or its "
    "changes of one run are too large for this machine"
)


class RowCounts(NamedTuple):
    """The counts of a table or a part of it: rows written, changed keys, keys without a row afterwards, zero dates that
    became NULL, and keys whose latest event is unusable: they keep an older state."""

    rows: int = 0
    keys: int = 0
    deletes: int = 0
    zero_dates: int = 0
    older: int = 0


@dataclass
class UpdatedTable:
    """What came of a table, or of the part of it that a task updates.

    files, rewritten: data files of new and of rewritten rows as JSON for Iceberg's `ContentFileParser`. deleted: the
      positions of deleted and replaced rows, by the path of their file.
    rejections: rows that cannot be used, as in `summarized`. failure: why the table cannot be updated.
    collides: keys of it may be one in the lake; nothing was written, because all of its events have to be read.
    keys: the different numbers of the keys of a part's events, packed, where these were not divided by key.
    """

    table_no: int
    name: TableName
    files: list[str] = field(default_factory=list[str])
    rewritten: list[str] = field(default_factory=list[str])
    deleted: dict[str, BitMap64] = field(default_factory=dict[str, BitMap64])
    counts: RowCounts = field(default_factory=RowCounts)
    rejections: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    failure: str | None = None
    collides: bool = False
    keys: Any = None

    def add(self, part: UpdatedTable) -> None:
        self.files += part.files
        self.rewritten += part.rewritten
        self.deleted = _union(self.deleted, part.deleted)
        self.counts = RowCounts(*map(operator.add, self.counts, part.counts))
        self.rejections += part.rejections
        self.failure = part.failure or self.failure
        self.collides = self.collides or part.collides

    @property
    def misfit(self) -> str | None:
        """What does not fit in an unusable row."""
        return next((why for row in summarized(self.rejections) if (why := row["why"])), None)

    @functools.cached_property
    def rejected(self) -> tuple[Rejected, ...]:
        """The rows that could not be used."""
        found: list[Rejected] = []
        for row in summarized(self.rejections):
            # The first of the uncounted rows keeps its line, even though the next run may leave out others.
            count, why = row["count"], row["why"]
            more = f" (and {count - 1} further rows of the segment, not listed one by one)" if count > 1 else ""
            message = f"{_DOES_NOT_FIT}{f': {why}' if why else ''}{more}"
            of_table = row["after"].encode(), self.name.database, self.name.table
            found.append(Rejected(row["segment"], row["line"], BAD_VALUE, message, *of_table, count))
        return tuple(found)


@dataclass(frozen=True)
class FeedTable:
    """A table of a feed up to a commit-ts, where its life ends, and how its events become rows: the columns that
    identify these, and how values are read. Events up to `void_upto_ts` are ignored (TRUNCATE, rows with a new key)."""

    life: Incarnation
    key: tuple[Column, ...]
    values: ValueFormat
    void_upto_ts: int

    @property
    def target(self) -> Target:
        return Target(self.life.last.carried, self.life.versions, self.values)

    @functools.cached_property
    def key_parts(self) -> tuple[KeyPart, ...]:
        return tuple(KeyPart.of(column, self.life.versions, self.values) for column in self.key)

    @property
    def schema(self) -> Schema:
        """The schema of its table where that is made now; the catalog gives elements of lists other ids."""
        columns, fields = lake_columns(self.life.last.carried, self.values), list[NestedField]()
        for n, column in enumerate(columns, 1):
            vector = ListType(len(columns) + n + 1, FloatType(), element_required=False)
            kind = vector if column.type == "list<float>" else PrimitiveType.model_validate(column.type)
            fields.append(NestedField(n, column.name, kind))
        return Schema(*fields, NestedField(len(columns) + 1, COMMIT_TS, LongType()))

    def spans(self, number: int, above_stage: int, upto_stage: int) -> tuple[KeyedSpan, ...]:
        """Return the spans of the events at stages in (above, upto]."""
        lowest = max(above_stage, row_stage(self.void_upto_ts))
        return (*KeyedSpan.of(self.life, lambda _: self.key_parts, number, lowest, upto_stage),)

    def emptied(self, after_ts: int) -> tuple[PartitionRows, ...]:
        """Return the partitions that were emptied after a commit-ts and that nothing later has made irrelevant."""
        found: list[PartitionRows] = []
        for position, version in enumerate(self.life.versions):
            if version.emptied and version.commit_ts > max(after_ts, self.void_upto_ts):
                before = self.life.versions[position - 1]
                assert before.partitioning is not None
                target = Target(before.carried, self.life.versions[:position], self.values)
                found.append(PartitionRows(before.partitioning, version.emptied, target))
        return tuple(found)

    def converted_since(self, applied: int) -> frozenset[int]:
        """Return the columns whose values in the lake change with the type after the version that was applied, by its
        number; of a column that is newer, after its first."""
        ids = [column.id for column in self.life.last.carried]
        since = {id: [each for number, each in self.target.types(id).items() if number >= applied] for id in ids}
        return frozenset(id for id, (*_, oldest) in since.items() if converts(oldest))


@dataclass(frozen=True)
class StoredTable:
    """A table when the update was planned: its files, its schema, and the name in it of each source column `c<id>`,
    which no name can be mistaken for. `version` is the number of the version that its rows were written under."""

    files: tuple[StoredFile, ...] = ()
    schema: Schema = field(default_factory=Schema, compare=False)  # An empty one equals none, not even another such.
    columns: Mapping[str, str] = field(default_factory=dict[str, str])
    version: int = 0


@dataclass(frozen=True)
class TableUpdate:
    """The update of one table, as its tasks need it.

    schema: the one to write. properties: those of the table that say how files are written.
    spans: where its events are, about `events` many. inserts: whether no UPDATE or DELETE is known among them.
    rewrites: whether existing rows must be rewritten.
    emptied, emptied_now: partitions whose DDL deletes new rows, and existing rows.
    skips_rejected: whether unusable rows are left out; otherwise they stop the update.
    stored: the rows that stay.
    recomputed_above: when all events of the table are read, the keys to recompute: those with an event above a stage,
      those with an event of one of the segments `redecoded`, now or before these were decoded again, and those that the
      lake cannot distinguish. None to update the keys of all events.
    tells_collisions: whether the update stops when keys that differ in the source may be equal in the lake (zero dates
      that became NULL).
    """

    table_no: int
    table: FeedTable
    location: str
    schema: Schema = field(default_factory=Schema)
    properties: Mapping[str, str] = field(default_factory=dict[str, str])
    emptied: tuple[PartitionRows, ...] = ()
    emptied_now: tuple[PartitionRows, ...] = ()
    skips_rejected: bool = True
    stored: StoredTable = field(default_factory=StoredTable)
    recomputed_above: int | None = None
    redecoded: frozenset[str] = frozenset()
    tells_collisions: bool = False
    spans: tuple[KeyedSpan, ...] = ()
    events: int = 0
    inserts: bool = False
    rewrites: bool = False

    @functools.cached_property
    def target(self) -> Target:
        return self.table.target

    @functools.cached_property
    def key(self) -> tuple[Column, ...]:
        """The columns of the key as their texts are read."""
        return tuple(part.read_as for part in self.table.key_parts)

    @property
    def name(self) -> TableName:
        return self.table.life.last.name

    def updated(self, failure: str | None = None) -> UpdatedTable:
        return UpdatedTable(self.table_no, self.name, failure=failure)

    def stored_value(self, column: Column, target: Target | None = None) -> str:
        """Return the value of a column in an existing row: the current one, or that of another target."""
        target = target or self.target
        if (value := f"c{column.id}") in self.stored.columns:
            types = target.types(column.id)[self.stored.version]
        else:
            value, types = target.default(column.id)
        return sql.cast(convert_through(value, types, target.value_format), target.value_format.type_of(column.type))


def file_properties(properties: Mapping[str, str]) -> dict[str, str]:
    """Return those of a table's properties that say how files are written."""
    return {name: each for name, each in properties.items() if name.startswith("write.")}


@dataclass(frozen=True)
class FileRewrite:
    """Rewrites the rows of one file, but for those at positions in `deleted`, with the current values of columns."""

    update: TableUpdate
    file: StoredFile
    deleted: BitMap64


def update_tables(
    properties: Mapping[str, str], plans: Sequence[TableUpdate | FileRewrite], changes: pa.Table, *, by_key: bool = True
) -> Iterator[UpdatedTable]:
    """Carry out a task's plans with its keyed events (`KEYED_EVENTS`), all of their keys or not (`by_key`).
    `properties` are those of PyIceberg's FileIO."""
    import duckdb  # noqa: PLC0415 - An update has queries.

    for plan in plans:
        update = plan.update if isinstance(plan, FileRewrite) else plan
        task, found = _Task(update, properties), update.updated()
        try:
            if isinstance(plan, FileRewrite):
                task.rewrite(plan.file, plan.deleted, found)
            else:
                task.update(where(changes, changes.column("table_no").to_numpy() == update.table_no), found)
        except FileNotFoundError as error:
            found = update.updated(f"a file of the table is not there: {error}")
        except (MemoryError, duckdb.OutOfMemoryException) as error:
            # It may be what this table holds, and it may pass.
            found = update.updated(f"{_NO_ROOM}: {in_one_line(error)}")
        except Exception as error:  # One bad table never stops the others, whatever is wrong with it.
            fault = error if isinstance(error, TransientError) else engine_fault(error)
            if fault is not None:
                fault.table = fault.table or str(update.name)
                raise fault from error
            known = isinstance(error, CdcError)
            found = update.updated(str(error) if known else f"the table could not be written: {described(error)}")
        found.keys = None if by_key or found.keys is None else keyed_events.packed(found.keys)
        yield found


def update_by_share(
    properties: Mapping[str, str], tables: Sequence[TableUpdate], share: EventReader
) -> Iterator[UpdatedTable]:
    """Carry out the updates of some tables with the events of a share, as if no other share had one of their keys."""
    spans = [replace(span, version=of.target.versions[span.version_no]) for of in tables for span in of.spans]
    for events in keyed_events.together(keyed_events.read_keyed_events(share, spans), 6 * ROW_GROUP_BYTES):
        own = pc.unique(events.column("table_no")).to_pylist()
        yield from update_tables(properties, [t for t in tables if t.table_no in own], events, by_key=False)


def parts_apart(properties: Mapping[str, str], parts: Sequence[UpdatedTable]) -> list[UpdatedTable]:
    """Return the parts of tables of which no two parts have a key of the same number; delete the files of others."""
    keys: dict[int, list[Any]] = {}
    # What failed may have keys of another part.
    unknown = {part.table_no for part in parts if part.keys is None and part.failure is not None}
    for part in parts:
        own = keys.setdefault(part.table_no, [np.zeros(0, np.uint64)])
        own += [] if part.keys is None else [keyed_events.unpacked(part.keys)]
        part.keys = None
    # Each part's are in order: a stable sort only merges them.
    ordered = {table: np.sort(np.concatenate(own), kind="stable") for table, own in keys.items()}
    apart = {table for table, all_keys in ordered.items() if (all_keys[1:] != all_keys[:-1]).all()} - unknown
    delete_unused(properties, [file for part in parts if part.table_no not in apart for file in part.files])
    return [part for part in parts if part.table_no in apart]


def typed_beforehand(
    properties: Mapping[str, str],
    typed: Iterable[tuple[TableUpdate, UpdatedTable]],
    updates: Sequence[TableUpdate],
    rows: Mapping[TableName, int],
) -> dict[int, UpdatedTable]:
    """Return what came of tables by the parts that were typed before the `updates` were planned, each with the update
    that was expected: of tables as expected, with so many `rows`, each of another key. Files of others are deleted."""
    made: dict[str, list[tuple[TableUpdate, UpdatedTable]]] = {}
    for expected, part in typed:
        made.setdefault(expected.location, []).append((expected, part))
    whole: list[UpdatedTable] = []
    for update in updates:
        own = made.get(update.location, [])
        as_planned = {
            name: getattr(update, name) for name in ("table_no", "skips_rejected", "spans", "events", "inserts")
        }
        is_expected = all(part.keys is not None and replace(was, **as_planned) == update for was, part in own)
        if is_expected and rows.get(update.target.versions[0].name) == sum(part.counts.rows for _, part in own):
            whole += [replace(part, table_no=update.table_no) for _, part in own]
            made.pop(update.location, None)
    delete_unused(properties, [file for own in made.values() for _, part in own for file in part.files])
    found = {update.table_no: update.updated() for update in updates}
    apart = parts_apart(properties, whole)
    for part in apart:
        found[part.table_no].add(part)
    return {part.table_no: found[part.table_no] for part in apart}


class TypingTask:
    """Types the rows of new tables, `updates` by (database, table), in one of the `tasks` that decode a dump, from the
    texts in hand: they need not be read again from `events`. A table in which anything is unusual, or for which memory
    runs out, is given up, as is one beyond the task's share of `room`, the number of rows whose keys are compared."""

    def __init__(
        self, updates: Mapping[tuple[str, str], TableUpdate], properties: Mapping[str, str], room: int, tasks: int
    ) -> None:
        self._updates, self._properties, self._room = updates, properties, room // tasks
        self._waiting, self._bytes = list[tuple[TableUpdate, pa.Table]](), 0
        self._parts: list[UpdatedTable] = []
        self._given_up = set[int]()

    def add(self, file: SegmentFile, decoded: pa.RecordBatch) -> None:
        update = self._updates.get((file.context.database, file.context.table))
        if update is None or update.table_no in self._given_up:
            return
        self._room -= decoded.num_rows
        if self._room < 0:
            self._give_up(update)
        else:
            rows = keyed_events.keyed_texts(decoded, update.table_no, [column.name for column in update.key])
            of, last = self._waiting[-1] if self._waiting else (update, rows)
            if of is not update or last.schema != rows.schema or self._bytes >= 2 * ROW_GROUP_BYTES:
                self.parts()
            self._waiting.append((update, rows))
            self._bytes += rows.nbytes

    def parts(self) -> list[UpdatedTable]:
        """Write the rows that wait; return all parts of tables. One that was given up has a part without `keys`."""
        waiting, self._waiting, self._bytes = self._waiting, [], 0
        if waiting and (update := waiting[0][0]).table_no not in self._given_up:
            events = pa.concat_tables([rows for _, rows in waiting])
            (part,) = update_tables(self._properties, [update], events, by_key=False)
            self._parts.append(part)
            if part.counts.rows != events.num_rows:
                self._give_up(update)
        return self._parts

    def _give_up(self, update: TableUpdate) -> None:
        own = [part for part in self._parts if part.table_no == update.table_no]
        delete_unused(self._properties, [file for part in own for file in part.files])
        self._parts = [part for part in self._parts if part.table_no != update.table_no] + [update.updated()]
        self._given_up.add(update.table_no)

    def discard(self) -> None:
        """Delete what was written: the task fails."""
        delete_unused(self._properties, [file for part in self._parts for file in part.files])


def folded_rows(
    update: TableUpdate, properties: Mapping[str, str], events: pa.Table
) -> tuple[pa.Table, tuple[Rejected, ...]]:
    """Return the rows that keyed events leave in a table without stored rows, with the table's columns and
    `_commit_ts` (columns of no rows may have no type), and the events that cannot be used. Nothing is written."""
    task, found = _Task(update, properties), update.updated()
    return task.table(each.typed for each in task.decided(events, found)[0]), found.rejected


def folded_texts(
    update: TableUpdate, properties: Mapping[str, str], events: pa.Table
) -> tuple[pa.Table, pa.Table, UpdatedTable]:
    """Return the rows of `folded_rows` as values and as texts, each `c<id>`, and the events that cannot be used. A text
    is the source's own, or where a later type of the column changed the value, as the source would write it."""
    task, found = _Task(update, properties), update.updated()
    typed = [each.typed for each in task.decided(events, found)[0]]
    values, texts = [each.values for each in typed], [*map(task.texts, typed)]
    return *(pa.concat_tables(each, promote_options="default") for each in (values, texts)), found


class _Decided(NamedTuple):
    """The latest events of keys, positions of their existing rows by file, their new rows, and how many have none."""

    latest: pa.Table
    replaced: dict[str, BitMap64]
    typed: TypedRows
    deletes: int


_OF_REJECTED: Final = ["key", "segment", "line", "image", "version_no"]


class _Task:
    def __init__(self, update: TableUpdate, properties: Mapping[str, str]) -> None:
        self._update = update
        self._io = load_file_io(dict(properties), update.location)

    def update(self, events: pa.Table, found: UpdatedTable) -> None:
        """Update the table with the task's keyed events of it."""
        update = self._update
        # The condition that a part of a key (columns of `key_texts`) is NULL in the lake and not in the source.
        collision = any_of(
            f"({text} IS NOT NULL AND {value_parsing.value(text, column.type, update.target.value_format)} IS NULL)"
            for text, column in ((f"t{n}", column) for n, column in enumerate(update.key))
            if value_parsing.may_collide(column.type, update.target.value_format)
        )
        if update.recomputed_above is not None:
            events = self._of_recomputed(events, collision)
        elif update.tells_collisions and collision != "false" and events.num_rows:
            query = f"SELECT bool_or({collision}) AS found FROM keyed"
            if sql.query(query, keyed=self._with_key_texts(events)).column("found")[0].as_py():
                found.collides = True
                return
        done, older = self.decided(events, found)
        if found.rejections and not update.skips_rejected:
            return
        rows = self.table(each.typed for each in done)
        if rows.num_rows:
            some = sql.by_name(rows.slice(0, 4096))
            plain = [name for name, each in some.items() if each.type.num_fields or len(each.unique()) * 2 > len(each)]
            path = new_path(update.location, update.properties, ".parquet")
            found.files.append(write_file(self._io, path, update.schema, rows, update.properties, plain))
        keys = pa.concat_tables([each.latest for each in done])
        zeros = sum(pc.sum(each.typed.values.column("zero_dates")).as_py() or 0 for each in done)
        found.counts = RowCounts(rows.num_rows, keys.num_rows, sum(each.deletes for each in done), zeros, older)
        found.deleted = functools.reduce(_union, (each.replaced for each in done), self._emptied())

    def texts(self, typed: TypedRows) -> pa.Table:
        """Return the texts of rows, as `folded_texts`."""
        update, columns = self._update, self._update.target.columns
        last, target = typed.events.take(pa.array(typed.places)), typed_rows.text_target(update.target)
        # The same events make the same rows in the same order.
        kept = typed_rows.typed_rows(typed.events, last, target).values
        own, values = sql.by_name(kept.sort_by("row").take(typed.values.column("row"))), sql.by_name(typed.values)
        texts = {f"c{column.id}": own[f"c{column.id}"].cast(pa.string()) for column in columns}
        changed = [column for column in columns if texts[f"c{column.id}"].null_count]
        expressions = [value_parsing.text("value", column.type, update.target.value_format) for column in changed]
        statements = [
            (f"SELECT {expression} AS text FROM stacked", values[f"c{column.id}"])
            for column, expression in zip(changed, expressions, strict=True)
        ]
        for column, each in zip(changed, sql.over_columns(statements), strict=True):
            texts[f"c{column.id}"] = pc.coalesce(texts[f"c{column.id}"], each.column("text"))
        return pa.table(texts)

    def table(self, typed: Iterable[TypedRows]) -> pa.Table:
        """Return typed rows with the columns of the table."""
        parts: list[pa.Table] = []
        for each in typed:
            values = sql.by_name(each.values)
            columns = {lake_name(column): values[f"c{column.id}"] for column in self._update.target.columns}
            parts.append(pa.table({**columns, COMMIT_TS: each.of_events(["commit_ts"]).column("commit_ts")}))
        # Columns of no rows have no type.
        return pa.concat_tables(parts, promote_options="default")

    def decided(self, events: pa.Table, found: UpdatedTable) -> tuple[list[_Decided], int]:
        """Return the keys that usable events change, and how many keys have unusable ones, which are added to what is
        found. These are no changes: the usable events of a key decide; where there is none, its row stays as it is."""
        update, of_keys = self._update, typed_rows.events_of_keys
        done, rejected, older = list[_Decided](), list[dict[str, Any]](), 0
        while True:
            is_latest, numbers = keyed_events.latest_changes(events, update.key, str(update.name))
            found.keys = numbers if found.keys is None else found.keys
            latest = where(events, is_latest)
            upserts = where(latest, latest.column("upsert").to_numpy())
            replaced = self._positions(latest)
            typed = self._typed(events, upserts, replaced)
            fault = typed.values.column("fault")
            deletes = latest.num_rows - len(typed.places)
            if not pc.any(fault).as_py():
                done.append(_Decided(latest, replaced, typed, deletes))
                break
            last = replace(typed, values=typed.values.filter(fault)).of_events(_OF_REJECTED)
            older = older or last.num_rows
            usable = replace(typed, values=typed.values.filter(pc.invert(fault)))
            latest = of_keys(latest, last, "ANTI")
            done.append(_Decided(latest, self._positions(latest), usable, deletes))
            events = of_keys(events, last)
            bad = typed_rows.unusable_events(events, update.target)
            # Where each event of a key fits by itself, the last one is what makes no row of them.
            bad = pa.concat_tables([bad.select(_OF_REJECTED), of_keys(last, bad, "ANTI")])
            rejected += bad.to_pylist()
            if not update.skips_rejected:
                break
            events = of_keys(events, bad, "ANTI", ("key", "segment", "line"))
        rejected.sort(key=lambda row: (row["segment"], row["line"]))
        for row in rejected[:1]:  # One reason is shown.
            row["why"] = typed_rows.misfit(row["image"], row["version_no"], update.target)
        found.rejections += summarized(
            {"segment": row["segment"], "line": row["line"], "after": row["image"], "count": 1, "why": row.get("why")}
            for row in rejected
        )
        return done, older

    def _of_recomputed(self, events: pa.Table, collision: str) -> pa.Table:
        """Return the events of the keys that are recomputed, after a delete of each key's earlier row."""
        update, before_all = self._update, keyed_events.BEFORE_ALL
        query = (
            f"SELECT place, row_number() OVER (PARTITION BY key ORDER BY place) = 1 AS first FROM keyed SEMI JOIN "
            f"(SELECT key FROM keyed WHERE stage > {update.recomputed_above} OR stage = {before_all} OR {collision} "
            "OR segment IN (SELECT segment FROM segments)) AS wanted USING (key) ORDER BY place"
        )
        places = pa.array(np.arange(events.num_rows), pa.int64())
        found = sql.query(
            query,
            keyed=self._with_key_texts(events).append_column("place", places),
            segments=pa.table({"segment": pa.array(sorted(update.redecoded), pa.string())}),
        )
        own = events.take(found.column("place"))
        return pa.concat_tables([keyed_events.key_deletes(own.filter(found.column("first"))), own])

    def _with_key_texts(self, events: pa.Table) -> pa.Table:
        texts = key_texts(events.column("key"), len(self._update.key))
        return pa.table({**texts, **{name: events.column(name) for name in ("key", "stage", "segment")}})

    def _typed(self, events: pa.Table, upserts: pa.Table, replaced: Mapping[str, BitMap64]) -> TypedRows:
        """Return the rows that keyed events leave, without those of partitions that were emptied later. `replaced` are
        the positions of existing rows of the keys.

        An event whose value cannot be read stays where the columns that decide are among the table's: it is rejected
        afterwards. Raises `TableHeldError` and `DdlError` where it is uncertain which rows were removed."""
        target, base = self._update.target, functools.partial(self._based, replaced) if replaced else None
        read_later = {column.id for column in target.columns}
        for each in self._update.emptied:
            earlier = where(upserts, upserts.column("version_no").to_numpy() < len(each.target.versions))
            if not earlier.num_rows:
                continue
            rows = typed_rows.typed_rows(events, earlier, replace(each.target, columns=each.columns), base)
            is_read_later = read_later.issuperset(column.id for column in each.columns)
            if not is_read_later and pc.any(rows.values.column("fault")).as_py():
                columns, names = ", ".join(column.name for column in each.columns), ", ".join(each.names)
                raise TableHeldError(
                    f"a value of {columns} cannot be read, which says whether a row was in partition {names}",
                    advice="load it again from a dump that was made after the statement",
                )
            condition = each.condition(lambda column: f"c{column.id}")
            query = f"SELECT {sql.when('fault', 'false', condition)} AS gone FROM typed"
            gone = each.known(sql.query(query, typed=rows.values).column("gone"))
            if gone.any():
                upserts = typed_rows.events_of_keys(upserts, where(rows.of_events(["key"]), gone), "ANTI")
        return typed_rows.typed_rows(events, upserts, target, base)

    def _based(self, replaced: Mapping[str, BitMap64], folds: pa.Table, target: Target) -> pa.Table:
        """Add the existing rows of the keys, at the positions `replaced`, to folds, as `rows_of_fold` reads them."""
        update, base = self._update, self._stored_values(replaced, target)
        parts = [
            f"{value_parsing.value(f'folds.k{n}', key.type, update.target.value_format)} IS NOT DISTINCT FROM base.s{n}"
            for n, key in enumerate(update.key)
        ]
        keys = [f"s{n}" for n in range(len(update.key))]
        # Indices are joined, not values: DuckDB cannot join long ones.
        found = sql.query(
            f"SELECT folds.row, place FROM folds LEFT JOIN base ON NOT whole AND {' AND '.join(parts)} ORDER BY ALL",
            folds=folds.select(["row", "whole", *(f"k{n}" for n in range(len(update.key)))]),
            base=base.select(keys).append_column("place", pa.array(np.arange(base.num_rows), pa.int64())),
        )
        place = found.column("place")
        rows = folds.take(found.column("row")).append_column("based", place.is_valid())
        before = base.drop_columns(keys).take(place)
        return pa.table([*rows.columns, *before.columns], [*rows.column_names, *before.column_names])

    def _emptied(self) -> dict[str, BitMap64]:
        """Return the positions of existing rows of emptied partitions, by the path of their file."""
        update, stored = self._update, self._update.stored
        if not (stored.files and update.emptied_now):
            return {}
        condition, columns = "false", list[Column]()
        for each in reversed(update.emptied_now):
            values = {column: update.stored_value(column, each.target) for column in each.columns}
            columns += values
            gone = each.condition(values.__getitem__)
            # A later statement finds the rows that this one leaves.
            condition = sql.when(gone, "true", sql.when(f"NOT {gone}", condition))
        query = f"SELECT file_no, position, {condition} AS gone FROM stored"
        found = self._of_stored(query, columns)
        return self._grouped(where(found, update.emptied_now[0].known(found.column("gone"))))

    def _positions(self, events: pa.Table) -> dict[str, BitMap64]:
        """Return the positions of existing rows with the key of one of the events, by the path of their file."""
        update = self._update
        if not (update.stored.files and events.num_rows):
            return {}
        texts = key_texts(events.column("key"), len(update.key))
        parts = [
            f"{value_parsing.value(text, column.type, update.target.value_format)} AS k{n}"
            for n, (text, column) in enumerate(zip(texts, update.key, strict=True))
        ]
        keys = sql.query(f"SELECT {', '.join(parts)} FROM texts", texts=pa.table(texts))
        conditions: list[str] = []
        # The ends of the parts of the keys, where the files hold the same values.
        between: dict[str, Range] = {}
        for n, column in enumerate(update.key):
            collides = value_parsing.may_collide(column.type, update.target.value_format)
            operator = "IS NOT DISTINCT FROM" if collides else "="
            conditions.append(f"{update.stored_value(column)} {operator} keys.k{n}")
            part, name = keys.column(f"k{n}"), update.stored.columns.get(f"c{column.id}")
            comparable = pa.types.is_integer(part.type) or pa.types.is_string(part.type)
            if name is not None and comparable and not part.null_count:
                is_same = len(update.target.types(column.id)[update.stored.version]) == 1
                between |= {name: tuple(pc.min_max(part).as_py().values())} if is_same else {}
        query = f"SELECT file_no, position FROM stored SEMI JOIN keys ON {' AND '.join(conditions)}"
        return self._grouped(self._of_stored(query, update.key, between, keys=keys))

    def _stored_values(self, positions: Mapping[str, BitMap64], target: Target) -> pa.Table:
        """Read rows at positions of files, by the path of the file: `b<id>`, the target's value of each column, and
        `s<n>`, the current value of each part of the key."""
        update, stored = self._update, self._update.stored
        values = {f"b{column.id}": column for column in target.columns}
        keys = [f"{update.stored_value(column)} AS s{n}" for n, column in enumerate(update.key)]
        found: list[pa.Table] = []
        for file in stored.files:
            if file.path in positions:
                wanted = np.array(positions[file.path].to_array(), dtype=np.int64)
                for rows in self._read(file, stored.columns):
                    own = where(rows, np.isin(rows.column(POSITION).to_numpy(), wanted))
                    if own.num_rows:
                        parts = sql.query(f"SELECT {', '.join(keys)} FROM stored", stored=own)
                        current = self._values(own, values, target)
                        found.append(pa.table([*current.columns, *parts.columns], [*values, *parts.column_names]))
        return pa.concat_tables(found)

    def _values(self, rows: pa.Table, wanted: Mapping[str, Column], target: Target) -> pa.Table:
        """Return the target's values of columns in existing rows, by name."""
        update, stored = self._update, self._update.stored
        given = sql.by_name(rows)
        current: dict[str, Any] = {}
        changed: dict[str, tuple[str, Any, Sequence[ColumnType]]] = {}
        for name, column in wanted.items():
            if (of := f"c{column.id}") in stored.columns:
                current[name] = given[of]
                # A partition that was emptied long ago has an older target than the rows.
                types = target.types(column.id).get(stored.version, (column.type,))
                type_now = iceberg_name(stored.schema.find_field(stored.columns[of]).field_type)
                if len(types) > 1 or type_now != update.target.value_format.type_of(column.type):
                    changed[name] = "value", current[name], types
        values = typed_rows.converted([*changed.values()], update.target.value_format)
        current |= dict(zip(changed, values, strict=True))
        others = [column for name, column in wanted.items() if name not in current]
        defaults = typed_rows.default_values(others, None, target, rows.num_rows)
        return pa.table({name: current.get(name, defaults.get(column.id)) for name, column in wanted.items()})

    def _of_stored(
        self, query: str, columns: Sequence[Column], between: Mapping[str, Range] | None = None, **relations: Any
    ) -> pa.Table:
        """Query `stored`, live rows of files: `file_no`, `position`, columns; most rows not `between` are skipped."""
        stored = self._update.stored
        wanted = {of: stored.columns[of] for column in columns if (of := f"c{column.id}") in stored.columns}

        def batches() -> Iterator[pa.RecordBatch]:
            for place, file in enumerate(stored.files):
                for rows in self._read(file, wanted, between):
                    numbered = rows.append_column("file_no", pa.array(np.full(rows.num_rows, place), pa.int64()))
                    yield from numbered.to_batches(_BATCH_ROWS)

        read = batches()
        if (first := next(read, None)) is None:
            return pa.schema([("file_no", pa.int64()), (POSITION, pa.int64()), ("gone", pa.bool_())]).empty_table()
        rows = pa.RecordBatchReader.from_batches(first.schema, itertools.chain([first], read))
        return sql.query(query, stored=rows, **relations)

    def _read(
        self, file: StoredFile, columns: Mapping[str, str], between: Mapping[str, Range] | None = None
    ) -> Iterator[pa.Table]:
        """Read the live rows of a file with columns, by the names that they get, and `position`."""
        for rows in read_rows(self._io, file, self._update.stored.schema, [*columns.values()], between):
            yield rows.rename_columns([*columns, POSITION])

    def _grouped(self, found: pa.Table) -> dict[str, BitMap64]:
        stored = self._update.stored
        files, positions = found.column("file_no").to_numpy(), found.column("position").to_numpy()
        return {
            stored.files[number].path: BitMap64(positions[files == number].tolist())
            for number in np.unique(files).tolist()
        }

    def rewrite(self, file: StoredFile, deleted: BitMap64, found: UpdatedTable) -> None:
        """Write the file's remaining rows with the current values of their columns."""
        update, stored = self._update, self._update.stored
        wanted = {lake_name(column): column for column in update.target.columns}
        own, names = {*stored.columns.values()}, {field.field_id: field.name for field in update.schema.fields}
        others = [each for each in stored.schema.fields if each.field_id in names and each.name not in own]
        kept = {f"f{id}": name for each in others if (name := names[id := each.field_id]) not in wanted}
        columns = {**stored.columns, **{f"f{each.field_id}": each.name for each in others}}
        gone = np.array(deleted.to_array(), dtype=np.int64)
        written: DataFileWriter | None = None
        for rows in self._read(file, columns):
            live = rows.filter(pa.array(~np.isin(rows.column("position").to_numpy(), gone)))
            if live.num_rows:
                path = new_path(update.location, update.properties, ".parquet")
                written = written or DataFileWriter(self._io, path, update.schema, update.properties)
                values = self._values(live, wanted, update.target)
                unchanged = live.select([*kept]).columns
                written.add(pa.table([*values.columns, *unchanged], [*wanted, *kept.values()]))
        if written is not None:
            found.rewritten.append(written.close())


def summarized(rejected: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """List the first rows one by one, and of further ones only the first of each segment, with the number that it
    stands for. A row has segment, line, after, count and why; a count above 1 is of one that stands for others."""
    found: list[dict[str, Any]] = []
    beyond: dict[str, dict[str, Any]] = {}
    for row in sorted(rejected, key=lambda row: (row["segment"], row["line"])):
        if len(found) < REJECTED_LISTED and row["count"] == 1 and not beyond:
            found.append(row)
        elif row["segment"] in beyond:
            beyond[row["segment"]]["count"] += row["count"]
        else:
            beyond[row["segment"]] = {**row}
    return [*found, *beyond.values()]


def _union(first: dict[str, BitMap64], second: Mapping[str, BitMap64]) -> dict[str, BitMap64]:
    return {**first, **{path: first.get(path, BitMap64()) | positions for path, positions in second.items()}}


_TASK_EVENTS: Final = 500_000
"""The approximate number of a table's events for one task."""
_SMALL_TASK_EVENTS: Final = 50_000
"""A table with fewer events is never split."""
COMPARED_EVENTS: Final = 25_000_000
"""The number of events up to which the driver compares numbers of all their keys, which take 8 bytes each."""
_TABLE_WEIGHT: Final = 2000
"""The cost of a table for a task, as a number of events."""
_DRIVER_TASKS: Final = 1
"""The number of tasks whose work the driver does: one takes as long elsewhere, and a job a third of a second."""

_SPARK_FAILS: Final = (
    "Spark or its memory fails when this table alone is updated. The next run tries again; where it fails again, see "
    "the log of Spark, and whether its workers have memory for the largest values of the table"
)


def update_in_job(
    spark: _Spark, properties: Mapping[str, str], tables: Sequence[TableUpdate], reader: EventReader
) -> dict[int, UpdatedTable]:
    """Update tables with the events that the reader has; return what was made of each, by its number. `properties` are
    those of PyIceberg's FileIO for the warehouse.

    A table at which Spark fails has a `failure`, and the others go on. Raise what tasks raise of the project's errors,
    and Spark's own where no table is to blame.
    """
    found: dict[int, UpdatedTable] = {}
    failed = run_isolated(spark, tables, lambda part: found.update(_updated_in_job(spark, properties, part, reader)))
    for index, reason in failed.items():
        found[tables[index].table_no] = tables[index].updated(f"{_SPARK_FAILS} ({reason})")
    return found


def _updated_in_job(
    spark: _Spark, properties: Mapping[str, str], tables: Sequence[TableUpdate], reader: EventReader
) -> dict[int, UpdatedTable]:
    found = {table.table_no: table.updated() for table in tables}
    is_little = sum(table.events + _TABLE_WEIGHT for table in tables) <= _SMALL_TASK_EVENTS
    parallelism = 1 if is_little else spark().sparkContext.defaultParallelism
    left, (places, tasks), parts = tables, _places(tables, parallelism), list[UpdatedTable]()
    large = [
        table for table in tables if table.inserts and table.recomputed_above is None and places[table.table_no][1] > 1
    ]  # fmt: skip
    while sum(table.events for table in large) > COMPARED_EVENTS:
        large.remove(max(large, key=lambda table: table.events))
    if large:
        work = functools.partial(update_by_share, properties, large)
        parts = parts_apart(properties, run_tasks(spark(), keyed_events.shares_of(spark(), reader), work))
        left = [t for t in tables if t.table_no not in {part.table_no for part in parts}]
        places, tasks = _places(left, parallelism)
    spans = [span for table in left for span in table.spans]
    redecoded = {name for table in left for name in table.redecoded}
    if left:
        plans: list[list[TableUpdate | FileRewrite]] = [[] for _ in range(tasks)]
        for table in left:
            first, buckets = places[table.table_no]
            for task in range(first, first + buckets):
                plans[task].append(table)
        session = None if tasks <= _DRIVER_TASKS else spark()
        work = functools.partial(update_tables, properties)
        parts += keyed_events.work_by_key(session, reader, spans, places, plans, work, redecoded)
    for part in parts:
        found[part.table_no].add(part)
    rewrites = [
        FileRewrite(table, file, updated.deleted.get(file.path, BitMap64()))
        for table in tables
        for updated in [found[table.table_no]]
        if table.rewrites
        if updated.failure is None and not updated.collides
        for file in table.stored.files
    ]
    session = None if len(rewrites) <= _DRIVER_TASKS else spark()
    nothing = KEYED_EVENTS.empty_table()
    for part in run_tasks(session, rewrites, lambda rewrite: update_tables(properties, [rewrite], nothing)):
        found[part.table_no].add(part)
    return found


def _places(tables: Sequence[TableUpdate], parallelism: int) -> tuple[dict[int, tuple[int, int]], int]:
    """Return for each table the number of its first task and the number of its tasks, and the number of all tasks.
    Large tables have their own tasks, small ones share one."""
    places: dict[int, tuple[int, int]] = {}
    tasks = 0
    small: list[TableUpdate] = []
    for table in tables:
        buckets = max(math.ceil(table.events / _TASK_EVENTS), min(parallelism, table.events // _SMALL_TASK_EVENTS))
        if buckets > 1:
            places[table.table_no] = (tasks, buckets)
            tasks += buckets
        else:
            small.append(table)
    share = max(_SMALL_TASK_EVENTS, sum(table.events + _TABLE_WEIGHT for table in small) / parallelism)
    filled = share
    for table in small:
        if filled >= share:
            tasks, filled = tasks + 1, 0
        places[table.table_no] = (tasks - 1, 1)
        filled += table.events + _TABLE_WEIGHT
    return places, tasks
