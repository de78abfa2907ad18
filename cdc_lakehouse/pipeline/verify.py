"""Whether the tables of the last cut are those of the source database.

Both sides give a count and a checksum for each bucket of keys. Where a bucket's differ, its rows are read from both, in
one order, and compared value by value: only the rows of one key are in memory at a time.

TiDB is read as of the cut's TSO. MySQL is read now, and goes on meanwhile: keys that differ are looked at again, in
newer cuts, and one that was equal once is. A key is said to be changing where it differs in another way each time, or
where `events` has a change of it above the cut."""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Any, Final, Literal

from cdc_lakehouse.changelog.history import Incarnation
from cdc_lakehouse.changelog.mysql_types import ColumnType
from cdc_lakehouse.changelog.positions import BEGINNING
from cdc_lakehouse.changelog.row_texts import Form, form_of
from cdc_lakehouse.changelog.schema import Column, TableName, TableVersion, quoted
from cdc_lakehouse.config import VerifyConfig
from cdc_lakehouse.errors import CdcError, SourceError
from cdc_lakehouse.lake.current.changed_keys import KeyColumn, keys_changed_above
from cdc_lakehouse.lake.current.row_checksums import LakeRows, LakeValue
from cdc_lakehouse.lake.current.row_texts import value_text as lake_text
from cdc_lakehouse.lake.current.tables import CurrentTables, iceberg_name
from cdc_lakehouse.lake.current.value_parsing import ValueFormat
from cdc_lakehouse.lake.data_files import column as column_name
from cdc_lakehouse.lake.properties import FEED, INCARNATION
from cdc_lakehouse.lake.tables.checkpoints import CutRow
from cdc_lakehouse.pipeline.row_keys import key_columns
from cdc_lakehouse.pipeline.run import FeedRun
from cdc_lakehouse.sources.database.client import DatabaseColumn, SourceDatabase
from cdc_lakehouse.sources.database.row_texts import value_text as source_text
from cdc_lakehouse.sources.database.statements import ComparedColumn, ComparedTable

Kind = Literal["missing", "extra", "different"]
"""A row that the lake lacks, one that it has and the source has not, one that is in both with other values."""
Result = Literal["equal", "different", "unchecked"]
Values = Mapping[str, Any]
"""Texts by column; of binaries their bytes."""

_ROWS_OF_A_BUCKET: Final = 4000
_MOST_BUCKETS: Final = 1 << 20
_BUCKETS_OF_A_STATEMENT: Final = 5000
_MOST_KEYS: Final = 10_000
"""Keys that are looked at again: where more differ, it is not because of a few that change."""


@dataclass(frozen=True)
class Difference:
    """A key whose rows differ. `columns` are those that do. `source` and `lake` are the rows, None for none; more than
    the first keys' are not kept."""

    kind: Kind
    key: Values
    columns: tuple[str, ...] = ()
    source: Values | None = None
    lake: Values | None = None


@dataclass(frozen=True)
class TableResult:
    """Of one table. `reason` says why it could not be checked, `left_out` which columns are not compared and why.

    `buckets` differ in `different_buckets`. The counts of differing keys are whole, `differences` has the first of
    them. `changing` keys differ, and are being changed."""

    name: TableName
    result: Result
    reason: str | None = None
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
class FeedResult:
    """`checkpoint_ts` is that of the cut, None where none is published. `held` tables are not in it."""

    feed: str
    checkpoint_ts: int | None
    server: str | None
    tables: tuple[TableResult, ...]
    held: Mapping[str, str]
    error: str | None = None

    @property
    def result(self) -> Result:
        results = [table.result for table in self.tables]
        if "different" in results:
            return "different"
        unchecked = "unchecked" in results or self.error is not None or bool(self.held) or self.checkpoint_ts is None
        return "unchecked" if unchecked else "equal"


@dataclass(frozen=True)
class Looks:
    """How often keys that differ are looked at, with so many seconds between, and how many are shown of a table."""

    count: int = 3
    pause_seconds: float = 10
    shown: int = 10
    sleep: Callable[[float], None] = time.sleep


def verify_feed(
    open_run: Callable[[], FeedRun], config: VerifyConfig, wanted: Sequence[str], looks: Looks
) -> FeedResult:
    """Compare the tables of the last cut with the source's: those that are `wanted` (`database.table`), or all. A run
    sees the cut that was the last when it was opened."""
    run = open_run()
    cut = run.last_cut
    held = dict(cut.held)
    if cut.checkpoint_ts == BEGINNING:
        return FeedResult(run.feed.name, None, None, (), held, "no cut is published")
    rows = {TableName(row.database, row.table): row for row in run.checkpoints.rows(cut.checkpoint_ts)}
    taken = sorted((name for name in rows if run.feed.tables.takes(name.database, name.table)), key=str)
    names = [name for name in taken if not wanted or str(name) in wanted]
    if wanted:
        held = {life: why for life, why in held.items() if life.rpartition("#")[0] in wanted}
    try:
        with SourceDatabase(config) as database:
            tables = tuple(_verified(open_run, database, name, looks) for name in names)
            return FeedResult(run.feed.name, cut.checkpoint_ts, database.version, tables, held)
    except CdcError as error:
        return FeedResult(run.feed.name, cut.checkpoint_ts, None, (), held, str(error))


def _verified(open_run: Callable[[], FeedRun], database: SourceDatabase, name: TableName, looks: Looks) -> TableResult:
    try:
        return _Verification(open_run, database, name, looks).result()
    except CdcError as error:
        return TableResult(name, "unchecked", reason=str(error))


class _UncheckedError(SourceError):
    """The table cannot be compared."""


@dataclass(frozen=True)
class _Sides:
    """A table as it is looked at: how each side is read, as of a cut."""

    checkpoint_ts: int
    life: Incarnation
    source: ComparedTable
    lake: LakeRows
    names: tuple[str, ...]
    types: tuple[ColumnType, ...]
    key_columns: tuple[Column, ...]
    left_out: Mapping[str, str]

    @property
    def key_count(self) -> int:
        return self.lake.key_count


class _Verification:
    def __init__(
        self, open_run: Callable[[], FeedRun], database: SourceDatabase, name: TableName, looks: Looks
    ) -> None:
        self._open_run = open_run
        self._run = open_run()
        self._database = database
        self._name = name
        self._looks = looks
        self._buckets = 0

    def result(self) -> TableResult:
        with self._sides() as sides:
            lake = sides.lake.checksums()
            source = self._database.checksums(sides.source)
            differing = sorted(
                bucket for bucket in source.keys() | lake.keys() if source.get(bucket) != lake.get(bucket)
            )
            found = self._compare(sides, differing)
        seen = TableResult(
            self._name,
            "equal",
            source_rows=sum(rows for rows, _ in source.values()),
            lake_rows=sum(rows for rows, _ in lake.values()),
            buckets=self._buckets,
            different_buckets=len(differing),
            left_out=sides.left_out,
        )
        if found.keys and not self._database.is_tidb and found.total <= _MOST_KEYS:
            found = self._look_again(sides, differing, found)
        if not found.total:
            return replace(seen, changing=found.changing)
        return replace(
            seen,
            result="different",
            missing=found.counts["missing"],
            extra=found.counts["extra"],
            different=found.counts["different"],
            changing=found.changing,
            differences=tuple(found.shown),
        )

    def _look_again(self, sides: _Sides, buckets: Sequence[int], first: _Found) -> _Found:
        """The keys that differ each time in one way. Those that differ in several ways are counted as changing."""
        found, changing = first, set[str]()
        for _ in range(self._looks.count - 1):
            self._looks.sleep(self._looks.pause_seconds)
            self._run = self._open_run()
            with self._sides() as sides:
                again = self._compare(sides, buckets, among=found.keys.keys())
            changing = {key for key in again.keys if key in changing or again.keys[key] != found.keys[key]}
            found = again
            if not found.keys:
                return found
        if found.keys.keys() - changing:
            changing |= self._changed_above(sides, found.keys.keys())
        if changing:
            with self._sides() as sides:
                # Once more for the rows that are shown: those of keys that do not change.
                found = self._compare(sides, buckets, among=found.keys.keys() - changing)
        found.changing = len(changing)
        return found

    def _changed_above(self, sides: _Sides, keys: Iterable[str]) -> set[str]:
        value_format = self._run.value_format(sides.life.last)
        key = [
            KeyColumn(column.name, column.type, source_type, value.form)
            for column, source_type, value in zip(sides.key_columns, sides.types, sides.lake.columns, strict=False)
        ]
        names = [(name.database, name.table) for name in sides.life.names]
        wanted = set(keys)
        with contextlib.closing(
            keys_changed_above(self._run.lake, self._run.feed.name, names, sides.checkpoint_ts, key, value_format)
        ) as changed:
            return {key for key in changed if key in wanted}

    # --- How the table is read ---

    @contextlib.contextmanager
    def _sides(self) -> Iterator[_Sides]:
        """Both sides as of the last cut, the source for as long as the block lasts."""
        checkpoint_ts = self._run.last_cut.checkpoint_ts
        with self._database.as_of(checkpoint_ts):
            yield self._at(checkpoint_ts)

    def _at(self, checkpoint_ts: int) -> _Sides:
        row = self._cut_row(checkpoint_ts)
        life = self._life(checkpoint_ts)
        version = life.last
        value_format = self._run.value_format(version)
        identifier = CurrentTables(self._run.lake, self._run.feed).identifier(self._name)
        table = self._run.lake.load(identifier)
        if table is None or (table.properties.get(FEED), table.properties.get(INCARNATION)) != (
            self._run.feed.name,
            life.id,
        ):
            raise _UncheckedError(f"the lake has no table {identifier} of it")
        snapshot = None if row.snapshot_id is None else table.snapshot_by_id(row.snapshot_id)
        if snapshot is None and row.snapshot_id is not None:
            raise _UncheckedError("the snapshot of the cut has expired", advice="run the feed, then verify again")
        is_current = snapshot is None or snapshot.snapshot_id == table.metadata.current_snapshot_id
        # A change of the schema alone makes no snapshot.
        schema = table.schema() if is_current else table.schemas()[snapshot.schema_id or 0]
        if not self._buckets:
            rows = max(row.row_count, self._database.estimated_rows(self._name))
            self._buckets = min(max(1, math.ceil(rows / _ROWS_OF_A_BUCKET)), _MOST_BUCKETS)
        columns, left_out = self._compared(version)
        key = self._key(version, [own for own, _, _ in columns])
        columns.sort(key=lambda each: key.index(each[0]) if each[0] in key else len(key))
        fields = {each.name: each for each in schema.fields}
        missing = [own.name for own, _, _ in columns if own.name not in fields]
        if missing:
            raise _UncheckedError(f"the lake's table has no column {', '.join(missing)}")
        zero_dates = value_format.zero_dates
        source = ComparedTable(
            self._name,
            tuple(
                ComparedColumn(declared.name, source_text(quoted(declared.name), type, zero_dates=zero_dates), form)
                for _, (declared, type), form in columns
            ),
            len(key),
            self._buckets,
        )
        values = [
            self._lake_value(
                fields[own.name].field_id, type, iceberg_name(fields[own.name].field_type), form, value_format
            )
            for own, (_, type), form in columns
        ]
        lake = LakeRows(table, snapshot, schema, tuple(values), len(key), self._buckets)
        return _Sides(
            checkpoint_ts, life, source, lake,
            tuple(own.name for own, _, _ in columns), tuple(type for _, (_, type), _ in columns), tuple(key), left_out,
        )  # fmt: skip

    @staticmethod
    def _lake_value(field_id: int, type: ColumnType, iceberg: str, form: Form, value_format: ValueFormat) -> LakeValue:
        return LakeValue(field_id, lake_text(column_name(field_id), type, iceberg, value_format), form)

    def _cut_row(self, checkpoint_ts: int) -> CutRow:
        for row in self._run.checkpoints.rows(checkpoint_ts):
            if (row.database, row.table) == (self._name.database, self._name.table):
                return row
        raise _UncheckedError("it is not in the last cut any more")

    def _life(self, checkpoint_ts: int) -> Incarnation:
        lives = self._run.history.history.incarnations().values()
        found = [life for whole in lives if (life := whole.upto(checkpoint_ts)) and life.last.name == self._name]
        alive = [life for life in found if life.dropped_ts is None]
        if not alive:
            raise _UncheckedError("the schema history does not know it")
        return alive[-1]

    def _compared(
        self, version: TableVersion
    ) -> tuple[list[tuple[Column, tuple[DatabaseColumn, ColumnType], Form]], dict[str, str]]:
        """The columns that can be compared, in the lake and in the source, and why the others cannot."""
        declared = self._database.columns(self._name)
        if not declared:
            raise _UncheckedError("the source has no such table", advice="or the user may not SELECT from it")
        by_name = {each.name.lower(): each for each in declared}
        absent = [column.name for column in version.columns if column.name.lower() not in by_name]
        known = {column.name.lower() for column in version.columns}
        new = [each.name for each in declared if each.name.lower() not in known]
        if absent or new:
            parts = [
                f"{who} alone has {', '.join(names)}"
                for who, names in (("the lake", absent), ("the source", new))
                if names
            ]
            raise _UncheckedError(f"the columns differ: {'; '.join(parts)}", advice="is DDL on its way?")
        compared: list[tuple[Column, tuple[DatabaseColumn, ColumnType], Form]] = []
        left_out: dict[str, str] = {}
        for column in version.columns:
            found = by_name[column.name.lower()]
            form = None if found.type is None else form_of(found.type)
            if not column.carried or found.virtual:
                left_out[column.name] = "virtual: rows of the log do not have it"
            elif found.type is None or form is None:
                name = column.type.name if found.type is None else found.type.name
                left_out[column.name] = f"type {name}: no text of it is known to be the same on both sides"
            else:
                compared.append((column, (found, found.type), form))
        return compared, left_out

    def _key(self, version: TableVersion, compared: Sequence[Column]) -> list[Column]:
        key = list(key_columns(self._run.feed, version))
        if not key:
            raise _UncheckedError("it has no key", advice="set tables.settings.….primary_key")
        for column in key:
            if column not in compared:
                raise _UncheckedError(f"the column {column.name} of its key cannot be compared")
        return key

    # --- Comparing rows ---

    def _compare(self, sides: _Sides, buckets: Sequence[int], among: Iterable[str] | None = None) -> _Found:
        found = _Found(self._looks.shown)
        keys = None if among is None else set(among)
        for some in _parts(buckets, self._buckets):
            with (
                contextlib.closing(sides.lake.rows(some)) as lake,
                contextlib.closing(self._database.rows(sides.source, some)) as source,
            ):
                for digest, theirs, ours in _merged(source, lake):
                    if keys is None or digest in keys:
                        found.add(digest, sides, theirs, ours)
        return found


@dataclass
class _Found:
    """What differs: counts of keys by kind, a digest of what differs by the key's, and the first differences."""

    limit: int
    counts: dict[Kind, int] = field(default_factory=lambda: {"missing": 0, "extra": 0, "different": 0})
    keys: dict[str, bytes] = field(default_factory=dict[str, bytes])
    shown: list[Difference] = field(default_factory=list[Difference])
    changing: int = 0

    @property
    def total(self) -> int:
        return sum(self.counts.values())

    def add(self, digest: str, sides: _Sides, source: list[tuple[Any, ...]], lake: list[tuple[Any, ...]]) -> None:
        """Compare the rows of a key: one on each side, unless something is wrong."""
        for theirs in list(source):
            same = next((ours for ours in lake if not _differing(sides, theirs, ours)), None)
            if same is not None:
                source.remove(theirs)
                lake.remove(same)
        if not source and not lake:
            return
        kind: Kind = "different" if source and lake else "missing" if source else "extra"
        self.counts[kind] += 1
        if len(self.keys) <= _MOST_KEYS:
            self.keys[digest] = hashlib.md5(repr((source, lake)).encode(), usedforsecurity=False).digest()
        if len(self.shown) < self.limit:
            theirs, ours = (rows[0] if rows else None for rows in (source, lake))
            columns = _differing(sides, theirs, ours) if theirs is not None and ours is not None else ()
            known = theirs if theirs is not None else ours
            assert known is not None
            self.shown.append(
                Difference(
                    kind,
                    dict(zip(sides.names[: sides.key_count], known, strict=False)),
                    columns,
                    None if theirs is None else dict(zip(sides.names, theirs, strict=True)),
                    None if ours is None else dict(zip(sides.names, ours, strict=True)),
                )
            )


def _differing(sides: _Sides, source: Sequence[Any], lake: Sequence[Any]) -> tuple[str, ...]:
    return tuple(
        name
        for name, type, theirs, ours in zip(sides.names, sides.types, source, lake, strict=True)
        if theirs != ours and not (type.name == "json" and _same_json(theirs, ours))
    )


def _same_json(one: str | None, other: str | None) -> bool:
    """Whether two JSON texts are the same value: the order of members and the notation of numbers do not count."""
    if one is None or other is None:
        return False
    try:
        return _comparable(json.loads(one)) == _comparable(json.loads(other))
    except ValueError:
        return False


def _comparable(value: Any) -> Any:
    match value:
        case dict():
            return {name: _comparable(member) for name, member in value.items()}
        case list():
            return [_comparable(member) for member in value]
        case bool():
            return ("boolean", value)  # Python takes it for a number.
        case _:
            return value


def _merged(
    source: Iterator[tuple[Any, ...]], lake: Iterator[tuple[Any, ...]]
) -> Iterator[tuple[str, list[tuple[Any, ...]], list[tuple[Any, ...]]]]:
    """Rows of both sides, which are in the order of their first value: for each value of it the others of each side."""
    sides = [((key, [row[1:] for row in rows]) for key, rows in groupby(side, key=_first)) for side in (source, lake)]
    theirs, ours = (next(side, None) for side in sides)
    while theirs is not None or ours is not None:
        if ours is None or (theirs is not None and theirs[0] < ours[0]):
            assert theirs is not None
            yield theirs[0], theirs[1], []
            theirs = next(sides[0], None)
        elif theirs is None or ours[0] < theirs[0]:
            yield ours[0], [], ours[1]
            ours = next(sides[1], None)
        else:
            yield theirs[0], theirs[1], ours[1]
            theirs, ours = (next(side, None) for side in sides)


def _first(row: tuple[Any, ...]) -> str:
    return row[0]


def _parts(buckets: Sequence[int], count: int) -> Iterator[Sequence[int] | None]:
    """Buckets, so many as a statement can name; None for all of them at once."""
    if len(buckets) == count:
        if count:
            yield None
        return
    for start in range(0, len(buckets), _BUCKETS_OF_A_STATEMENT):
        yield buckets[start : start + _BUCKETS_OF_A_STATEMENT]
