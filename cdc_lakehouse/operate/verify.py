"""Verify that the tables of the last cut equal those of the source database.

Both sides compute a count and a checksum for each bucket of keys. When a bucket's differ, its rows are read from both
sides in the same order and compared value by value: only the rows of one key are in memory at a time.

TiDB is read as of the cut's TSO. MySQL is read now, while changes continue: differing keys are compared again in newer
cuts, and a key that was equal once is equal. A key is reported as changing when it differs in another way each time, or
when `events` has a change of it above the cut.

In the lake, the columns of the cut's snapshot are read file by file and passed through DuckDB, which holds one number
for each bucket and sorts on disk.
"""

from __future__ import annotations

import contextlib
import hashlib
import heapq
import json
import math
import time
from collections.abc import Callable, Collection, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, Final, Literal, NamedTuple

import pyarrow as pa
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.types import NestedField

from cdc_lakehouse import duckdb_sql as sql
from cdc_lakehouse.changelog.history import Incarnation
from cdc_lakehouse.changelog.mysql_types import FLOATS, FORMS, ColumnType, Form
from cdc_lakehouse.changelog.positions import BEGINNING
from cdc_lakehouse.changelog.schema import Column, TableName, quoted
from cdc_lakehouse.config import VerifyConfig
from cdc_lakehouse.config.reporting import plural
from cdc_lakehouse.decoders.formats.dump import CellError, DumpColumn, DumpContext, SqlNumber
from cdc_lakehouse.errors import CdcError, PermanentError
from cdc_lakehouse.lake.current import value_parsing
from cdc_lakehouse.lake.current.keyed_events import keys_changed_above
from cdc_lakehouse.lake.current.tables import CurrentTables, iceberg_name
from cdc_lakehouse.lake.current.typed_rows import lake_name
from cdc_lakehouse.lake.files import live_files, read_rows
from cdc_lakehouse.lake.names import FEED, INCARNATION
from cdc_lakehouse.operate.state import held_by_name
from cdc_lakehouse.pipeline.feed_tables import key_columns, value_format
from cdc_lakehouse.pipeline.progress import Progress
from cdc_lakehouse.pipeline.run import FeedRun, RowRepair, TableRepair
from cdc_lakehouse.pipeline.synthetic import NotRepairableError, version_at
from cdc_lakehouse.sources import database as database_sql
from cdc_lakehouse.sources.database import SourceDatabase
from cdc_lakehouse.sources.dump.contents import InsertNotation

_ROWS: Final = "lake_rows"
_BATCH_ROWS: Final = 1000


class ComparedColumn(NamedTuple):
    """A compared column of the history, its type in the source, its form in a row's text, its field in the lake,
    and the expressions of its text in the source and in the lake."""

    own: Column
    type: ColumnType
    form: Form
    field: NestedField
    texts: tuple[str, str]


@dataclass(frozen=True)
class Side:
    """One side of a comparison: the source (0) or the lake (1), which is the `place` of its texts. `columns` are the
    compared ones, the `key_count` of the key first. `table` is the table's name in the side's SQL, `sql` the module
    that makes its expressions, and `query` yields the rows of a statement."""

    place: int
    sql: Any
    table: str
    query: Callable[[str], Generator[tuple[Any, ...]]]
    columns: Sequence[ComparedColumn]
    key_count: int
    buckets: int

    def checksums(self) -> dict[int, tuple[int, int]]:
        """Return the number of rows and the checksum of each bucket with rows."""
        row_hash = self.sql.number_of_digits(self._md5(self.columns), 16)
        hashes = f"SELECT {self._bucket} AS bucket, {row_hash} AS hash FROM {self.table}"
        found = self.query(f"SELECT bucket, COUNT(*), SUM(hash) FROM ({hashes}) AS hashes GROUP BY bucket")
        return {int(number): (int(rows), int(checksum)) for number, rows, checksum in found}

    def rows(self, buckets: Sequence[int] | None) -> Generator[tuple[Any, ...]]:
        """Yield the MD5 of the key's text and the texts of all columns, of the rows of some buckets or of all, ordered
        by the MD5. The texts of binaries are their bytes."""
        texts = ", ".join(
            [self._md5(self.columns[: self.key_count]), *(each.texts[self.place] for each in self.columns)]
        )
        some = "" if buckets is None else f" WHERE {self._bucket} IN ({', '.join(f'{bucket:d}' for bucket in buckets)})"
        return self.query(f"SELECT {texts} FROM {self.table}{some} ORDER BY 1")

    def _md5(self, columns: Sequence[ComparedColumn]) -> str:
        return f"MD5({self.sql.row_text([self.sql.in_row(each.texts[self.place], each.form) for each in columns])})"

    @property
    def _bucket(self) -> str:
        return f"{self.sql.number_of_digits(self._md5(self.columns[: self.key_count]), 8)} % {self.buckets:d}"


# How the rows of one key differ between the source and the lake, from rows of both in the same order.

Kind = Literal["missing", "extra", "different"]
"""A row that only the source has, one that only the lake has, or one with different values."""
Values = Mapping[str, Any]
"""Texts by column; for binaries, their bytes."""
Row = tuple[Any, ...]
"""The MD5 of the key's text, then a text for each column, those of the key first."""

_WIDTH: Final = 60
MOST_KEYS: Final = 10_000
"""The number of keys for which the way they differ is kept."""


@dataclass(frozen=True)
class Difference:
    """A key whose rows differ. `columns` are the ones that differ. `source` and `lake` are the rows, None when missing.
    `correct` is the source's row of the key, even when the lake has it and another one."""

    kind: Kind
    key: Values
    columns: tuple[str, ...] = ()
    source: Values | None = None
    lake: Values | None = None
    correct: Values | None = None

    def __str__(self) -> str:
        words = {"missing": "missing in the lake", "extra": "too many in the lake"}
        return f"{row_text(self.key)}: {words.get(self.kind) or ', '.join(self.columns) + ' differs'}"


def row_text(values: Values | None, only: Sequence[str] = ()) -> str:
    """Format the values of a row for people, or `only` those of some columns."""

    def shown(value: str | bytes | None) -> str:
        text = "NULL" if value is None else f"0x{value.hex()}" if isinstance(value, bytes) else repr(value)
        return text if len(text) <= _WIDTH else f"{text[: _WIDTH - 1]}…"

    return ", ".join(f"{name}={shown(value)}" for name, value in (values or {}).items() if not only or name in only)


@dataclass
class Differences:
    """The differences: counts of keys by kind; a digest of how they differ, by the MD5 of the key's text, for at most
    `MOST_KEYS` plus one; and the first `limit` of them in full. `columns` are those of rows, with their types in the
    source; the first `key_count` are the key's."""

    columns: Sequence[tuple[str, ColumnType]]
    key_count: int
    limit: int
    counts: dict[Kind, int] = field(default_factory=lambda: {"missing": 0, "extra": 0, "different": 0})
    keys: dict[str, bytes] = field(default_factory=dict[str, bytes])
    shown: list[Difference] = field(default_factory=list[Difference])

    @property
    def total(self) -> int:
        return sum(self.counts.values())

    def compare(self, source: Iterable[Row], lake: Iterable[Row], among: Collection[str] | None) -> None:
        """Compare the rows of both sides, which are sorted by MD5. `among` limits the keys that are compared."""
        sides = ((0, row) for row in source), ((1, row) for row in lake)
        for key, both in groupby(heapq.merge(*sides, key=lambda each: each[1][0]), key=lambda each: each[1][0]):
            if among is not None and key not in among:
                continue
            rows: tuple[list[Row], list[Row]] = ([], [])
            for side, row in both:
                rows[side].append(row)
            ours, theirs = rows[1], [*rows[0]]
            # There is one row on each side, unless something is wrong.
            for row in rows[0]:
                same = next((each for each in ours if not self._differing(row, each)), None)
                if same is not None:
                    theirs.remove(row)
                    ours.remove(same)
            if not (theirs or ours):
                continue
            kind: Kind = "different" if theirs and ours else "missing" if theirs else "extra"
            self.counts[kind] += 1
            if len(self.keys) <= MOST_KEYS:
                self.keys[key] = hashlib.md5(repr((theirs, ours)).encode(), usedforsecurity=False).digest()
            if len(self.shown) < self.limit:
                names, sides = [name for name, _ in self.columns], (theirs, ours, rows[0])
                first = [dict(zip(names, side[0][1:], strict=True)) if side else None for side in sides]
                own = first[0] or first[1] or {}
                columns = self._differing(theirs[0], ours[0]) if kind == "different" else ()
                of_key = {name: own[name] for name in names[: self.key_count]}
                self.shown.append(Difference(kind, of_key, columns, *first))

    def _differing(self, source: Row, lake: Row) -> tuple[str, ...]:
        columns = zip(self.columns, source[1:], lake[1:], strict=True)
        return tuple(name for (name, type), theirs, ours in columns if not _is_same(type, theirs, ours))


def _is_same(type: ColumnType, source: Any, lake: Any) -> bool:
    """Whether two texts are of the same value: of JSON the order of members and the notation of numbers are ignored."""
    if source == lake or type.name != "json" or None in (source, lake):
        return source == lake
    try:
        return _comparable(json.loads(source)) == _comparable(json.loads(lake))
    except ValueError:
        return False


def _comparable(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _comparable(member) for name, member in value.items()}
    if isinstance(value, list):
        return [*map(_comparable, value)]
    return ("boolean", value) if isinstance(value, bool) else value  # Python treats it as a number.


# How a table is read in the source and in the lake, to compare both as of a cut.

_ROWS_OF_A_BUCKET: Final = 4000
_MOST_BUCKETS: Final = 1 << 20


class NotComparableError(PermanentError, advice="run the feed, then verify again"):
    """The table cannot be compared in its current state."""


class ComparedTable(NamedTuple):
    """A table on both sides. `left_out` are the columns that are not compared, with the reasons."""

    life: Incarnation
    source: Side
    lake: Side
    left_out: Mapping[str, str]


def _compared_table(run: FeedRun, database: SourceDatabase, name: TableName, buckets: int | None) -> ComparedTable:
    """Return both sides of the table: in the last cut, and in the current state of the database. `buckets` is their
    number, None for one that suits the table's size. Raises `NotComparableError`."""
    checkpoint_ts = run.last_cut.checkpoint_ts
    row = next((each for each in run.last_cut_rows if TableName(each.database, each.table) == name), None)
    if row is None:
        raise NotComparableError("it is not in the last cut any more")
    lives = [life for each in run.history.history.incarnations().values() if (life := each.upto(checkpoint_ts))]
    alive = [life for life in lives if life.last.name == name and life.dropped_ts is None]
    if not alive:
        raise NotComparableError("the schema history does not know it")
    life, version = alive[-1], alive[-1].last
    tables = CurrentTables(run.lake, run.feed)
    table = tables.load(identifier := tables.identifier(name))
    if table is None or (table.properties.get(FEED), table.properties.get(INCARNATION)) != (run.feed.name, life.id):
        raise NotComparableError(f"the lake has no table {identifier} of it")
    snapshot = None if row.snapshot_id is None else table.snapshot_by_id(row.snapshot_id)
    if row.snapshot_id is not None and snapshot is None:
        raise NotComparableError("the snapshot of the cut has expired")
    schema = table.schema()
    # A change of only the schema makes no snapshot: the current snapshot is read with the table's current schema.
    is_current = snapshot is None or snapshot.snapshot_id == table.metadata.current_snapshot_id
    if snapshot is not None and snapshot.schema_id is not None and not is_current:
        schema = table.schemas()[snapshot.schema_id]
    if buckets is None:
        rows = max(row.row_count, database.estimated_rows(name))
        buckets = min(max(1, math.ceil(rows / _ROWS_OF_A_BUCKET)), _MOST_BUCKETS)
    declared = {each.name.lower(): each for each in database.columns(name)}
    if not declared:
        raise NotComparableError("the source has no such table", advice="or the user may not SELECT from it")
    known = {column.name.lower(): column.name for column in version.columns}
    in_lake = [each for lower, each in known.items() if lower not in declared]
    in_source = [each.name for lower, each in declared.items() if lower not in known]
    if in_lake or in_source:
        sides = (("the lake", in_lake), ("the source", in_source))
        alone = "; ".join(f"{side} alone has {', '.join(names)}" for side, names in sides if names)
        raise NotComparableError(f"the columns differ: {alone}", advice="DDL may be on its way: verify again later")
    form_of_log, fields = value_format(run.feed, name), {field.name: field for field in schema.fields}
    compared, left_out, missing = dict[int, ComparedColumn](), dict[str, str](), list[str]()
    for column in version.columns:
        found, field = declared[column.name.lower()], fields.get(lake_name(column))
        form = None if found.type is None else FORMS.get(found.type.name)
        if not column.carried or found.virtual:
            left_out[column.name] = "virtual: rows of the log do not have it"
        elif found.type is None or form is None:
            kind = column.type.name if found.type is None else found.type.name
            left_out[column.name] = f"type {kind}: no text of it is known that is the same on both sides"
        elif field is None:
            missing.append(lake_name(column))
        else:
            text = database_sql.value_text(quoted(found.name), found.type, zero_dates=form_of_log.zero_dates)
            value = value_parsing.value_text(
                f"f{field.field_id}", found.type, iceberg_name(field.field_type), form_of_log
            )
            compared[column.id] = ComparedColumn(column, found.type, form, field, (text, value))
    if not (key := key_columns(run.feed, version)):
        raise NotComparableError("it has no key", advice="set primary_key in its tables.settings")
    if unfit := [column.name for column in key if column.name in left_out]:
        raise NotComparableError(f"{', '.join(unfit)} of its key cannot be compared", advice="compare it by hand")
    if missing:
        raise NotComparableError(f"the lake's table has no column {', '.join(missing)}")
    columns = [*(compared.pop(column.id) for column in key), *compared.values()]

    def query_lake(statement: str) -> Generator[tuple[Any, ...]]:
        """Yield the rows of a statement over those of the snapshot, by the name `_ROWS`."""
        read = [column.field for column in columns]
        types = [schema_to_pyarrow(each.field_type, include_field_ids=False) for each in read]
        arrow = pa.schema([(f"f{each.field_id}", type) for each, type in zip(read, types, strict=True)])
        batches = (
            batch
            for file in (live_files(table, (), snapshot=snapshot) if snapshot is not None else ())
            for rows in read_rows(table.io, file, schema, [each.name for each in read])
            for batch in rows.select([*range(len(read))]).rename_columns(arrow.names).cast(arrow).to_batches()
        )
        reader = pa.RecordBatchReader.from_batches(arrow, batches)
        with sql.database() as connection:
            connection.register(_ROWS, reader)
            try:
                found = connection.execute(statement)
                while rows := found.fetchmany(_BATCH_ROWS):
                    yield from rows
            except Exception:  # Where it is closed before its end, the database is closed too.
                connection.unregister(_ROWS)
                raise
            connection.unregister(_ROWS)

    source = Side(0, database_sql, name.quoted, database.stream, columns, len(key), buckets)
    return ComparedTable(life, source, Side(1, value_parsing, _ROWS, query_lake, columns, len(key), buckets), left_out)


Result = Literal["equal", "different", "unchecked"]

_BUCKETS_OF_A_STATEMENT: Final = 5000  # It can name so many.


@dataclass(frozen=True)
class TableResult:
    """The result for one table. `reason` says why it could not be checked, `left_out` which columns are not compared
    and why.

    The differences are of the cut at `checkpoint_ts` and the table's `incarnation`, None when it could not be checked.
    `different_buckets` of the `buckets` differ. The counts of differing keys are complete, `differences` has the first
    of them. `changing` keys differ and are being changed."""

    name: TableName
    result: Result
    reason: str | None = None
    checkpoint_ts: int | None = None
    incarnation: str | None = None
    source_rows: int | None = None
    lake_rows: int | None = None
    buckets: int = 0
    different_buckets: int = 0
    missing: int = 0
    extra: int = 0
    different: int = 0
    changing: int = 0
    differences: tuple[Difference, ...] = ()
    left_out: Mapping[str, str] = field(default_factory=dict[str, str])

    @property
    def differing_keys(self) -> int:
        return self.missing + self.extra + self.different


@dataclass(frozen=True)
class VerifyResult:
    """The result for one feed. `checkpoint_ts` is the cut's, None when none is published. `server` is the database's
    version. `held` tables are not in the cut. `error` says why nothing could be checked."""

    feed: str
    checkpoint_ts: int | None
    server: str | None
    tables: tuple[TableResult, ...]
    held: Mapping[TableName, str]
    error: str | None = None

    @property
    def result(self) -> Result:
        results = {table.result for table in self.tables}
        if "different" in results:
            return "different"
        return "unchecked" if "unchecked" in results or self.error is not None or self.held else "equal"


def verify_feed(
    open_run: Callable[[], FeedRun], config: VerifyConfig, wanted: Collection[str] = (), **options: Any
) -> VerifyResult:
    """Compare the tables of the last cut with the source's: those that are `wanted` (`database.table`), or all, with
    the options of `_verified`. A run sees the cut that was the last when it was opened."""
    run = open_run()
    feed, cut = run.feed, run.last_cut
    found = held_by_name(cut.held, run.history.history.incarnations())
    held = {table: why for table, why in found.items() if not wanted or str(table) in wanted}
    if cut.checkpoint_ts == BEGINNING:
        return VerifyResult(feed.name, None, None, (), held, "no cut is published")
    rows = run.checkpoints.rows(cut.checkpoint_ts)
    taken = {TableName(row.database, row.table) for row in rows if feed.tables.takes(row.database, row.table)}
    names = sorted((name for name in taken - found.keys() if not wanted or str(name) in wanted), key=str)
    tables: list[TableResult] = []
    try:
        with SourceDatabase(config) as database:
            progress = Progress(run.log, "tables are compared", len(names))
            for name in names:
                try:
                    tables.append(_verified(open_run, database, name, **options))
                except CdcError as error:
                    tables.append(TableResult(name, "unchecked", reason=str(error)))
                progress.add()
            return VerifyResult(feed.name, cut.checkpoint_ts, database.version, tuple(tables), held)
    except CdcError as error:
        return VerifyResult(feed.name, cut.checkpoint_ts, None, (), held, error.coded)


def _verified(
    open_run: Callable[[], FeedRun], database: SourceDatabase, name: TableName, *, attempts: int = 3,
    pause_seconds: float = 10, shown: int = 10, sleep: Callable[[float], None] = time.sleep,
) -> TableResult:  # fmt: skip
    """Compare a table, its differing keys as often as that, with a pause in between. So many of them are shown."""
    run, buckets, opened = open_run(), None, list[int]()
    theirs, ours = dict[int, tuple[int, int]](), dict[int, tuple[int, int]]()

    def compare(among: Collection[str] | None = None) -> tuple[ComparedTable, Differences]:
        """Compare the table as of the last cut, in the buckets whose checksums differ; later only keys `among` them."""
        nonlocal theirs, ours, opened
        with database.as_of(run.last_cut.checkpoint_ts):
            table = _compared_table(run, database, name, buckets)
            if among is None:
                ours, theirs = table.lake.checksums(), table.source.checksums()
                opened = sorted(each for each in theirs.keys() | ours.keys() if theirs.get(each) != ours.get(each))
            columns = [(column.own.name, column.type) for column in table.source.columns]
            found, step = Differences(columns, table.source.key_count, shown), _BUCKETS_OF_A_STATEMENT
            is_all = len(opened) == table.source.buckets
            for some in [None] if is_all else [opened[start : start + step] for start in range(0, len(opened), step)]:
                in_lake, in_source = table.lake.rows(some), table.source.rows(some)
                with contextlib.closing(in_lake), contextlib.closing(in_source):
                    found.compare(in_source, in_lake, among)
            return table, found

    table, found = compare()
    buckets, changing = table.source.buckets, set[str]()
    if found.total and found.total <= MOST_KEYS and not database.is_tidb:
        # Differing keys are compared again: what counts differs each time in the same way.
        for _ in range(attempts - 1):
            sleep(pause_seconds)
            run = open_run()
            table, repeated = compare(found.keys.keys())
            changing |= {key for key, how in repeated.keys.items() if how != found.keys[key]}
            changing &= repeated.keys.keys()
            found = repeated
            if not found.keys:
                break
        if steady := found.keys.keys() - changing:
            names = [(each.database, each.table) for each in table.life.names]
            key = [(column.own, column.type) for column in table.source.columns[: table.source.key_count]]
            values, above = value_format(run.feed, table.life.last.name), run.last_cut.checkpoint_ts
            changing |= steady.intersection(keys_changed_above(run.lake, run.feed.name, names, above, key, values))
        if changing:
            # Once more for what is counted and shown: only the keys that do not change.
            table, found = compare(found.keys.keys() - changing)
    return TableResult(
        name,
        "different" if found.total else "equal",
        checkpoint_ts=run.last_cut.checkpoint_ts,
        incarnation=table.life.id,
        source_rows=sum(rows for rows, _ in theirs.values()),
        lake_rows=sum(rows for rows, _ in ours.values()),
        buckets=buckets,
        different_buckets=len(opened),
        changing=len(changing),
        differences=tuple(found.shown),
        left_out=table.left_out,
        **found.counts,
    )


# The plan of a repair: values of compared rows as texts in the form of the feed's events.

_MOMENTS: Final = frozenset({"datetime", "timestamp"})


def plan_repair(run: FeedRun, found: TableResult, requested_by: str) -> TableRepair:
    """Plan the repair of a table that differs, of which all differences must be known. Raises `NotRepairableError`."""
    if found.checkpoint_ts is None or found.incarnation is None:
        raise NotRepairableError("it was not compared", advice="fix what was in the way, then verify again")
    if len(found.differences) < found.differing_keys:
        raise NotRepairableError(f"{plural(found.differing_keys, 'key')} to repair; the limit is {MOST_KEYS}")
    version = version_at(run.history.history, found.incarnation, found.checkpoint_ts)
    types = {column.name: column.type for column in version.columns}
    key, form = key_columns(run.feed, version), value_format(run.feed, version.name)
    for name, kind in ((column.name, column.type.name) for column in key):
        # It may be read with fewer digits than the log has, or the lake only has its text.
        if kind in FLOATS or (kind == "timestamp" and form.zero_dates == "string"):
            raise NotRepairableError(f"{name} of its key is a {kind}: how the log writes it is not known")
    place = version.name.database, version.name.table, version.commit_ts
    labels = form.labels or form.labels_uncertain
    context = DumpContext(
        *place, InsertNotation(tuple(types)), types, labels=labels, binary=form.binary, zone="UTC", feed_zone=form.zone
    )
    notations = {name: DumpColumn(name, type, context) for name, type in types.items()}

    def text_of(name: str, value: str | bytes | None) -> str | None:
        if value is None:
            return None
        if isinstance(value, str):
            if types[name].name in _MOMENTS:
                # Use as many digits as the column has.
                whole, _, fraction = value.partition(".")
                value = ".".join(filter(None, (whole, fraction[: types[name].fraction])))
            value = SqlNumber(value.encode()) if types[name].name == "bit" else value.encode()
        try:
            return notations[name].text(value)
        except CellError:
            raise NotRepairableError(f"a value of column {name} has no text in the feed's events") from None

    # Rows of the source may have been read without columns that those of the lake have.
    is_whole = not any(column.carried and column.name in found.left_out for column in version.columns)
    if not is_whole and any(each.kind == "missing" for each in found.differences):
        raise NotRepairableError("the lake lacks rows of which not all columns could be read")
    values = [each.correct or each.lake or each.key for each in found.differences]
    images = [{name: text_of(name, value) for name, value in row.items()} for row in values]
    for name, column in notations.items():
        texts = column.in_feed_zone(pa.array([image.get(name) for image in images], pa.string())).to_pylist()
        for image, text in zip(images, texts, strict=True):
            image |= {name: text} if name in image else {}
    if any(image[column.name] is None for image in images for column in key):
        raise NotRepairableError("a part of a key is no value in the lake (a zero date)")
    rows: list[RowRepair] = []
    for each, image in zip(found.differences, images, strict=True):
        written = "I" if each.kind == "missing" else "U"
        rows.append(RowRepair("D" if each.correct is None else written, image))
    return TableRepair(found.name, found.incarnation, found.checkpoint_ts, tuple(rows), requested_by)
