"""Convert texts of events to typed rows of a current-state table, in DuckDB's SQL.

Each column is converted on its own, and columns of the same types in one query (`sql.over_columns`): the work is linear
in columns. An event's values are mapped by the columns of its own version: name → id → the current column. Between the
two lie the type changes after the event, or for a later column the default that ALTER TABLE gave to older rows.

An omitted column keeps its value, it does not become NULL. Where events omit some, the last event of a key is not
enough: all of the batch's events of the key are folded column by column, onto the row that the table has now.

Which rows are in a partition of the source is a condition on the version of its table that a DDL removed or exchanged
its rows under: a column that it was made by can be dropped or retyped later. A condition is NULL where the log does not
say enough: texts are compared by a collation of the source, and only what all usual collations agree on is certain.

Columns here have short names, never the source's: `t3` is the text of column 3 (its id), `n3` the number of that text's
version, `c3` its current value in the table.
"""

from __future__ import annotations

import bisect
import datetime
import decimal
import functools
import itertools
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Self

import numpy as np
import pyarrow as pa

from cdc_lakehouse import duckdb_sql as sql
from cdc_lakehouse.changelog.ddl.clauses import (
    BoundValue,
    BytesLiteral,
    DefaultValue,
    Expression,
    MaxValue,
    NullLiteral,
    NumberLiteral,
    Partitioning,
    TextLiteral,
)
from cdc_lakehouse.changelog.ddl.partitions import HashRows, ListRows, RangeRows, rows_of
from cdc_lakehouse.changelog.defaults import UTC
from cdc_lakehouse.changelog.mysql_types import BLOBS, INTEGERS, TEXTS, ColumnType, converts, promotable, type_text
from cdc_lakehouse.changelog.schema import Column, TableVersion
from cdc_lakehouse.decoders.arrow import Mask, pc, where
from cdc_lakehouse.decoders.event_schema import TEXT_OF, image_of
from cdc_lakehouse.duckdb_sql import cast, text_literal, when
from cdc_lakehouse.errors import DdlError, TableHeldError
from cdc_lakehouse.lake.current import value_parsing
from cdc_lakehouse.lake.current.keyed_events import image_texts
from cdc_lakehouse.lake.current.value_parsing import MOMENTS, ValueFormat, conversions
from cdc_lakehouse.lake.iceberg_java import SchemaOperation

# The plan of a table's schema. Columns are matched by the source's column id, so renames, swaps of names, and a dropped
# name that is added again with another type need no special case. It is executed in the transaction that writes the
# rows: readers see both or none.


@dataclass(frozen=True, slots=True)
class LakeColumn:
    """A column of a table: the source's column id, its name and Iceberg type, and its value in rows from before it."""

    id: int
    name: str
    type: str
    initial: Any = None


@dataclass(frozen=True, slots=True)
class Plan:
    """A plan of schema changes. `steps` are executed one after the other; the names in a step are those before it.
    `rewritten` are the columns whose values in existing rows must be rewritten: those whose values must be converted,
    which are dropped and added again, and new ones whose default the table's format cannot hold."""

    steps: tuple[tuple[SchemaOperation, ...], ...]
    rewritten: tuple[int, ...]


def plan_evolution(
    current: Sequence[LakeColumn],
    target: Sequence[LakeColumn],
    order: Sequence[str],
    converted: frozenset[int] = frozenset(),
    leftover: Sequence[str] = (),
    *,
    defaults: bool = True,
) -> Plan:
    """Plan the changes from the `current` columns to the `target` columns.

    `order` are the names of all columns of the table in order, including those that are not the source's; these are
    placed after the source's. `converted` are ids of columns whose values change even if the Iceberg type stays (a time
    with fewer digits). `leftover` are columns to drop in any case. `defaults` says whether the table's format has
    initial defaults.
    """
    have = {column.id: column for column in current}
    kept = [
        (old, column)
        for column in target
        if (old := have.get(column.id)) is not None and column.id not in converted
        if old.type == column.type or promotable(old.type, column.type)
    ]
    ids = {column.id for _, column in kept}
    # The default that a new column has in existing rows; those of a converted one get its values.
    new = {column: None if column.id in have else column.initial for column in target if column.id not in ids}
    dropped = [*leftover, *(column.name for column in current if column.id not in ids)]
    renames = {old.name: column.name for old, column in kept if old.name != column.name}
    changed = [
        *(SchemaOperation("drop", name) for name in dropped),
        *(SchemaOperation("widen", old.name, column.type) for old, column in kept if old.type != column.type),
        *(SchemaOperation("rename", name, new_name=new_name) for name, new_name in renames.items()),
    ]
    added = [
        SchemaOperation("add", column.name, column.type, default if defaults else None)
        for column, default in new.items()
    ]
    names = [renames.get(name, name) for name in order if name not in dropped] + [column.name for column in new]
    moves: list[SchemaOperation] = []
    for position, column in enumerate(target):
        if names[position] != column.name:
            after = target[position - 1].name if position else None
            moves.append(SchemaOperation("move", column.name, after=after))
            names.remove(column.name)
            names.insert(position, column.name)
    is_written = {column.id: column.id in have or not (defaults or each is None) for column, each in new.items()}
    steps = (tuple(step) for step in (changed, added, moves) if step)
    return Plan(tuple(steps), tuple(id for id, wanted in is_written.items() if wanted))


COMMIT_TS: Final = "_commit_ts"
"""The column that the lake adds to a current-state table."""

_FEW_IMAGES: Final = 256
_ONE_ROW: Final = pa.nulls(1, pa.int32())
_EXACT: Final = decimal.Context(prec=76)


@dataclass(frozen=True, slots=True)
class Target:
    """The table to write: its current columns in the source, the versions of its life, and how values are read."""

    columns: tuple[Column, ...]
    versions: tuple[TableVersion, ...]
    value_format: ValueFormat

    def types(self, column_id: int) -> dict[int, tuple[ColumnType, ...]]:
        """Return the types that a column's values pass through, by the number of the values' version: from the type in
        that version to the newest one. Versions without the column are missing."""
        found: dict[int, tuple[ColumnType, ...]] = {}
        types: tuple[ColumnType, ...] = ()
        for number, version in reversed([*enumerate(self.versions)]):
            if own := version.column(column_id):
                types = types if types[:1] == (own.type,) else (own.type, *types)
                found[number] = types
        return found

    def default(self, column_id: int) -> tuple[str, tuple[ColumnType, ...]]:
        """Return the literal of a column's value in rows older than the column, and the types it passes through."""
        *_, (number, types) = self.types(column_id).items()
        first, form = self.versions[number].column(column_id), self.value_format
        assert first is not None
        return sql.literal(initial_value(first, form), form.type_of(first.type)), types


def lake_name(column: Column) -> str:
    """Return the name of a source column in the lake: `_commit_ts`, in any case, is the lake's own column, so a source
    column of that name becomes `_commit_ts_`, and `_commit_ts_` becomes `_commit_ts__`."""
    return f"{column.name}_" if column.name.lower().rstrip("_") == COMMIT_TS else column.name


def lake_columns(columns: Sequence[Column], value_format: ValueFormat) -> list[LakeColumn]:
    """Convert the source's columns to the lake's."""
    return [
        LakeColumn(column.id, lake_name(column), value_format.type_of(column.type), initial_value(column, value_format))
        for column in columns
    ]


_TEXT: Final = ColumnType("longtext")


def text_target(target: Target) -> Target:
    """Return a target whose typed rows have the events' texts themselves: NULL where a later type of the column changes
    values, and for a column that the events lack."""
    types = {column.id: target.types(column.id) for column in target.columns}

    def as_text(column: Column, number: int | None = None) -> Column:
        changed = number is not None and column.id in types and converts(types[column.id][number])
        return replace(column, id=-column.id if changed else column.id, type=_TEXT, initial=None)

    versions = (
        replace(version, columns=tuple(as_text(column, number) for column in version.columns))
        for number, version in enumerate(target.versions)
    )
    return Target(tuple(map(as_text, target.columns)), tuple(versions), target.value_format)


def rows_of_fold(folds: pa.Table, target: Target) -> pa.Table:
    """Return the typed rows of folded events (see `fold_events`), whose texts are of several versions.

    folds: for each column of the table `t<id>` (string); `n<id>` (int), the number of the text's version, NULL when no
    event carries the column; and `u<id>` (bool), whether the row was there under a version without the column. Also
    `row`, and where some rows existed before `based` (bool), whether `b<id>` holds the row's earlier values, which have
    the columns' current types.

    The result is that of `_typed_images`. A column whose value is unknown is a fault: it is never guessed.
    """
    given = sql.by_name(folds)
    ways: dict[int, list[tuple[tuple[ColumnType, ...], Any]]] = {}
    for column in target.columns:
        same = itertools.groupby(target.types(column.id).items(), lambda item: item[1])
        ways[column.id] = [(types, pa.array([number for number, _ in each], pa.int32())) for types, each in same]
    texts: list[tuple[Any, Sequence[ColumnType]]] = []
    for id, each in ways.items():
        text, version = given[f"t{id}"], given[f"n{id}"]
        for types, numbers in each:
            texts.append((text if len(each) == 1 else pc.if_else(pc.is_in(version, numbers), text, None), types))
    values, fault, zeros = _read(texts, folds.num_rows, target.value_format)
    unborn = [column for column in target.columns if pc.any(given[f"u{column.id}"]).as_py()]
    defaults = default_values(unborn, None, target, folds.num_rows)
    known = given["based"] if "based" in given else pa.repeat(False, folds.num_rows)
    columns: dict[int, Any] = {}
    rest = iter(values)
    for id, each in ways.items():
        read = [next(rest) for _ in each]
        value = read[0] if len(read) == 1 else pc.coalesce(*read)
        omitted = pc.is_null(given[f"n{id}"])
        if pc.any(omitted).as_py():
            born = given[f"u{id}"]
            other = pc.if_else(born, defaults[id].cast(value.type), None) if id in defaults else None
            if "based" in given:
                other = pc.if_else(known, given[f"b{id}"].cast(value.type), other)
            value = value if other is None else pc.if_else(omitted, other, value)
            fault |= omitted.to_numpy(zero_copy_only=False) & ~pc.or_(known, born).to_numpy(zero_copy_only=False)
        columns[id] = value
    return _table(given["row"], target, columns, fault, zeros)


def _table(row: Any, target: Target, columns: Mapping[int, Any], fault: Mask, zeros: np.ndarray[Any, Any]) -> pa.Table:
    values = {f"c{column.id}": columns[column.id] for column in target.columns}
    return pa.table({"row": row, **values, "fault": pa.array(fault), "zero_dates": pa.array(zeros)})


def _read(
    texts: Sequence[tuple[Any, Sequence[ColumnType]]], count: int, value_format: ValueFormat
) -> tuple[list[Any], Mask, np.ndarray[Any, Any]]:
    """Read texts, (column, its types from then to now), of `count` rows as values of the last type. Return also whether
    a text of a row cannot be read, and how many of a row are zero dates that became NULL."""
    columns, statements = list[Any](), dict[int, str]()
    for place, (text, types) in enumerate(texts):
        columns.append(text if (numbers := integers(text, types, value_format)) is None else numbers)
        if numbers is None and (statement := _reading(tuple(types), value_format)):
            statements[place] = statement
    read = sql.over_columns([(each, columns[place]) for place, each in statements.items()])
    fault, zeros = np.zeros(count, np.bool_), np.zeros(count, np.int32)
    for place, rows in zip(statements, read, strict=True):
        columns[place] = rows.column("value")
        fault |= rows.column("fault").to_numpy()
        if "zero" in rows.column_names:
            zeros += rows.column("zero").to_numpy()
    return columns, fault, zeros


def integers(texts: Any, types: Sequence[ColumnType], value_format: ValueFormat) -> Any:
    """Return what `value_parsing.integers` does; None also for types that are no integers."""
    kind = {"int": pa.int32(), "long": pa.int64()}.get(value_format.type_of(types[-1]))
    return value_parsing.integers(texts, kind) if kind and len(types) == 1 else None


@functools.lru_cache(maxsize=4096)
def _reading(types: tuple[ColumnType, ...], value_format: ValueFormat) -> str | None:
    """Return the statement (see `sql.over_columns`) that reads texts of the first type as values of the last; None
    where the values are the texts."""
    value, last = value_parsing.value("value", types[0], value_format), value_format.type_of(types[-1])
    if value == "value" and len(types) == 1:
        return None
    relation, result, lost, zeros = conversions(f"(SELECT value, {value} AS v0 FROM stacked)", types, value_format)
    failed, zero = value_parsing.unread("value", "v0", types[0], value_format)
    shown = [f"{sql.cast(result, last)} AS value", f"{any_of([failed, *lost])} AS fault"]
    if zero is not None or zeros:
        shown.append(f"{any_of([*([] if zero is None else [zero]), *zeros])} AS zero")
    return f"SELECT {', '.join(shown)} FROM {relation}"


def misfit(image: str | None, number: int, target: Target) -> str | None:
    """Return what of an image does not fit the columns of its version (`number`); None where nothing is found."""
    texts, version = image_of(image), target.versions[number]
    known = {column.name for column in version.columns}
    if unknown := [name for name in texts if name not in known]:
        return f"column {unknown[0]} is not known"
    for column in version.carried:
        if column.name in texts:
            text = pa.array([texts[column.name]], pa.string())
            if _read([(text, target.types(column.id)[number])], 1, target.value_format)[1][0]:
                return f"the value of column {column.name}"
    missing = [column.name for column in version.carried if column.name not in texts]
    return f"column {missing[0]} is missing" if missing else None


def converted(columns: Sequence[tuple[str, Any, Sequence[ColumnType]]], value_format: ValueFormat) -> list[Any]:
    """Convert values, (expression over `value`, array, types), to the last type. Raises `DdlError` where it cannot."""
    statements: list[tuple[str, Any]] = []
    for expression, array, types in columns:
        relation, result, lost, _ = conversions(f"(SELECT {expression} AS v0 FROM stacked)", types, value_format)
        value = sql.cast(result, value_format.type_of(types[-1]))
        statements.append((f"SELECT {value} AS value, {any_of(lost)} AS fault FROM {relation}", array))
    found = sql.over_columns(statements)
    for (_, _, types), rows in zip(columns, found, strict=True):
        if pc.any(rows.column("fault")).as_py():
            names = " to ".join(dict.fromkeys(type_text(each) for each in types))
            raise DdlError(
                f"a value cannot be converted from {names} as the source does it",
                advice="load the table again from a dump made after the statement",
            )
    return [rows.column("value") for rows in found]


def default_values(
    columns: Sequence[Column], version: TableVersion | None, target: Target, count: int
) -> dict[int, Any]:
    """Return by id, `count` times, the current values of columns that rows of a version do not carry: NULL for a
    virtual generated column, otherwise the default in rows that are older than the column."""
    values: list[tuple[str, Any, Sequence[ColumnType]]] = []
    for column in columns:
        is_older = version is None or version.column(column.id) is None
        none = sql.cast(sql.NULL, target.value_format.type_of(column.type)), [column.type]
        literal, types = target.default(column.id) if is_older else none
        values.append((literal, _ONE_ROW, types))
    found = converted(values, target.value_format)
    return {column.id: pa.repeat(each[0], count) for column, each in zip(columns, found, strict=True)}


def initial_value(column: Column, value_format: ValueFormat) -> Any:
    """Return a column's initial default as a Python value of its Iceberg type; None for NULL, and for a default that
    has no value of that type (a zero date, by policy)."""
    text, target = column.initial, value_format.type_of(column.type)
    if text is None or target == "list<float>":
        return None
    if column.type.name in BLOBS:
        return text.encode("latin-1")
    try:
        match target.partition("(")[0]:
            case "int" | "long":
                return int(decimal.Decimal(text))
            case "decimal":
                scale = int(target.partition(",")[2].removesuffix(")"))
                return decimal.Decimal(text).quantize(decimal.Decimal(1).scaleb(-scale), decimal.ROUND_HALF_UP, _EXACT)
            case "float" | "double":
                return float(text)
            case "date":
                return datetime.date.fromisoformat(text[:10])
            case "timestamp":
                return datetime.datetime.fromisoformat(text)
            case "timestamptz":
                moment = datetime.datetime.fromisoformat(text)
                return moment if moment.tzinfo else moment.replace(tzinfo=value_format.zone_info)
            case _ if column.type.name == "timestamp" and text.endswith(UTC):
                local = datetime.datetime.fromisoformat(text).astimezone(value_format.zone_info)
                shown = local.replace(tzinfo=None).isoformat(" ", "microseconds")
                return shown[: 20 + column.type.fraction].removesuffix(".")
            case _:
                return text
    except (ValueError, decimal.InvalidOperation):
        return None


def any_of(conditions: Iterable[str]) -> str:
    """Return the condition that one of the conditions is true; false when none is, or none is known to be."""
    found = [condition for condition in conditions if condition != "false"]
    return f"coalesce(list_bool_or([{', '.join(found)}]), false)" if found else "false"


def row_images(events: pa.Table, version: TableVersion, wanted: set[int]) -> tuple[dict[str, Any], Any, Any]:
    """Split the images in keyed events (see `keyed_events`) of a version into columns. Return `t<id>` (string), the
    text of each column with one of the ids `wanted`; whether an image has a column that the version does not have, or
    the same one twice (bool); and whether it omits a column (bool)."""
    images = events.column("image")
    names = {column.name for column in version.carried}
    # MySQL's own binlog has values of virtual generated columns, which other sources omit.
    known = {column.name for column in version.columns}
    read = {f"t{column.id}": column.name for column in version.carried if column.id in wanted}
    given = {name.removeprefix(TEXT_OF): each for name, each in sql.by_name(events).items() if name.startswith(TEXT_OF)}
    found: dict[str, Any] | None = given if names and names <= given.keys() <= known else None
    # DuckDB plans a member of a structure in the time that Python takes for hundreds.
    if found is None and len(images) > _FEW_IMAGES:
        found = image_texts(images, names, known)
    if found is not None:
        no = pa.repeat(False, len(images))
        return {text: found[name] for text, name in read.items()}, no, no
    members = [json.loads(image or "{}", object_pairs_hook=list) for image in images.to_pylist()]
    rows = [dict(each) for each in members]
    strange = [not known >= row.keys() or len(row) < len(each) for row, each in zip(rows, members, strict=True)]
    return (
        {text: pa.array([row.get(name) for row in rows], pa.string()) for text, name in read.items()},
        pa.array(strange, pa.bool_()),
        pa.array([not row.keys() >= names for row in rows], pa.bool_()),
    )


@dataclass(slots=True)
class _Fold:
    """The fold of one key.

    last: index of the last event. upsert: whether it leaves a row. texts: by column id, the version number and the
    text. whole: whether an INSERT or DELETE is among the events, so that no values of an earlier row are kept. born:
    the version of that INSERT, otherwise of the first event with all columns. strange: whether an event has a column
    that its version does not know."""

    last: int = 0
    upsert: bool = False
    texts: dict[int, tuple[int, str | None]] = field(default_factory=dict[int, "tuple[int, str | None]"])
    whole: bool = False
    born: int | None = None
    strange: bool = False


def fold_events(events: pa.Table, target: Target) -> tuple[pa.Table, list[int], list[bool]]:
    """Fold the events of complete keys, with the columns of `keyed_events.KEYED_EVENTS`. Return a row for each key that
    is not deleted at the end: its number `row`, `t<id>`, `n<id>` and `u<id>` as `rows_of_fold` reads them, `k<n>` (the
    parts of the key) and `whole` (bool); then the index of its last event, and whether it is known to be a fault."""
    positions = zip(*(events.column(name).to_pylist() for name in ("stage", "upsert", "segment", "line")), strict=True)
    # The same order as in `keyed_events.latest_changes`.
    order = [
        (stage, segment if stage % 2 else None, upsert, segment, line) for stage, upsert, segment, line in positions
    ]
    keys, inserts = events.column("key").to_pylist(), events.column("is_insert").to_pylist()
    versions = events.column("version_no").to_pylist()
    images = events.column("image").to_pylist()
    ids = [{column.name: column.id for column in version.carried} for version in target.versions]
    known = [{column.name for column in version.columns} for version in target.versions]
    folds: dict[tuple[str, ...], _Fold] = {}
    for place in sorted(range(len(order)), key=order.__getitem__):
        fold = folds.setdefault(tuple(keys[place]), _Fold())
        if versions[place] is None:
            continue  # This is no event; it only marks the key to be examined.
        fold.last, number = place, versions[place]
        _, _, fold.upsert, _, _ = order[place]
        image = image_of(images[place]) if fold.upsert else {}
        texts = {ids[number][name]: (number, text) for name, text in image.items() if name in ids[number]}
        if not fold.upsert or inserts[place]:
            fold.whole, fold.born, fold.texts = True, number if fold.upsert else None, texts
            fold.strange = False
        else:
            fold.texts.update(texts)
            # Earlier events may be gone. The row was there, complete, under this version.
            if fold.born is None and len(texts) == len(ids[number]):
                fold.born = number
        fold.strange = fold.strange or not known[number].issuperset(image)
    live = {key: fold for key, fold in folds.items() if fold.upsert}
    last, strange = [fold.last for fold in live.values()], [fold.strange for fold in live.values()]
    columns: dict[str, Any] = {
        "row": pa.array(range(len(live)), pa.int64()),
        "whole": pa.array([fold.whole for fold in live.values()], pa.bool_()),
    }
    for position in range(len(next(iter(live), ()))):
        columns[f"k{position}"] = pa.array([key[position] for key in live], pa.string())
    nothing: tuple[None, None] = (None, None)
    for column in target.columns:
        said = [fold.texts.get(column.id, nothing) for fold in live.values()]
        types = target.types(column.id)
        columns[f"n{column.id}"] = pa.array([version for version, _ in said], pa.int32())
        unborn = [fold.born is not None and fold.born not in types for fold in live.values()]
        columns[f"u{column.id}"] = pa.array(unborn, pa.bool_())
        columns[f"t{column.id}"] = pa.array([text for _, text in said], pa.string())
    return pa.table(columns), last, strange


# --- Typed rows of the latest events ---


@dataclass(frozen=True)
class TypedRows:
    """Typed rows. `values` has the columns `row` (bigint), `c<id>` for each column, `fault` (bool) and `zero_dates`;
    `places` holds the index among `events` of a row's event at the row's number."""

    values: pa.Table
    events: pa.Table
    places: np.ndarray[Any, Any]

    def of_events(self, names: Sequence[str]) -> pa.Table:
        """Return columns of the rows' events."""
        return self.events.select(names).take(pa.array(self.places[self.values.column("row").to_numpy()]))


def typed_rows(
    events: pa.Table,
    upserts: pa.Table,
    target: Target,
    based: Callable[[pa.Table, Target], pa.Table] | None = None,
) -> TypedRows:
    """Return the rows that the latest events of keys (`upserts`) leave; where one omits columns, they are folded from
    all `events` of the keys. `based` adds existing rows to folds, as `rows_of_fold` reads them."""
    values = _typed_images(upserts, target)
    if values is not None:
        return TypedRows(values, upserts, np.arange(upserts.num_rows))
    events = events_of_keys(events, upserts)
    folds, last, known = fold_events(events, target)
    folds = folds if based is None else based(folds, target)
    values = pa.concat_tables([rows_of_fold(part, target) for part in sql.slices(folds)])
    strange = pa.chunked_array([pa.array(known, pa.bool_()).take(values.column("row").combine_chunks())])
    place, fault = values.schema.get_field_index("fault"), pc.or_(values.column("fault"), strange)
    return TypedRows(values.set_column(place, "fault", fault), events, np.array(last))


def events_of_keys(events: pa.Table, keys: pa.Table, join: str = "SEMI", by: Sequence[str] = ("key",)) -> pa.Table:
    """Return the events with one of the keys, or (`ANTI`) with none, in their order. The columns `by` are compared."""
    keyed = events.select([*by]).append_column("place", pa.array(np.arange(events.num_rows), pa.int64()))
    query = f"SELECT place FROM keyed {join} JOIN wanted USING ({', '.join(by)}) ORDER BY place"
    return events.take(sql.query(query, keyed=keyed, wanted=keys.select([*by])).column("place"))


def unusable_events(events: pa.Table, target: Target) -> pa.Table:
    """Return the events with an image that itself does not fit: a value that cannot be read, or a column that is not
    known. Columns that it omits are no fault of its own."""
    upserts = where(events, events.column("upsert").to_numpy() & events.column("version_no").is_valid().to_numpy())
    values = _typed_images(upserts, target, partial=True)
    return upserts if values is None else upserts.take(values.filter(values.column("fault")).column("row"))


def _typed_images(upserts: pa.Table, target: Target, *, partial: bool = False) -> pa.Table | None:
    """Return the rows of the events' images alone; None when some omit columns, unless they are wanted as well
    (`partial`), with NULL there. The result has `row` (bigint, the number of the event), `c<id>` for each column of the
    table, `fault` (BOOLEAN, a text cannot be read, or a column is not known), and `zero_dates` (INTEGER, the number of
    zero dates that became NULL)."""
    parts: list[pa.Table] = []
    rows = upserts.append_column("row", pa.array(np.arange(upserts.num_rows), pa.int64()))
    wanted = {column.id for column in target.columns}
    types = {column.id: target.types(column.id) for column in target.columns}
    for number in sorted(pc.unique(rows.column("version_no")).to_pylist()):
        version = target.versions[number]
        own = where(rows, rows.column("version_no").to_numpy() == number)
        for part in sql.slices(own):
            texts, strange, absent = row_images(part, version, wanted)
            if not partial and pc.any(absent).as_py():
                return None
            read = {id: (texts[f"t{id}"], each[number]) for id, each in types.items() if f"t{id}" in texts}
            values, fault, zeros = _read([*read.values()], part.num_rows, target.value_format)
            columns = dict(zip(read, values, strict=True))
            # The values of other columns are the same in all rows.
            others = [column for column in target.columns if column.id not in columns]
            columns |= default_values(others, version, target, part.num_rows)
            fault |= strange.to_numpy(zero_copy_only=False)
            parts.append(_table(part.column("row"), target, columns, fault, zeros))
    if parts:
        return pa.concat_tables(parts)
    nothing = [(f"c{column.id}", pa.null()) for column in target.columns]
    return pa.schema([("row", pa.int64()), *nothing, ("fault", pa.bool_()), ("zero_dates", pa.int32())]).empty_table()


_CALL: Final = re.compile(r"\s*(\w+)\s*\(\s*(?:`([^`]+)`|([^`()'\s]+)|(?:_\w+)?'([^']*)')\s*\)\s*")
_DAY_ZERO: Final = 719528
"""TO_DAYS('1970-01-01')."""

_NUMBERS: Final = INTEGERS | {"year", "bit"}
_TRUE: Final = "true"
_FALSE: Final = "false"

# MySQL's functions that a partitioning expression may use and that have one column as their argument: of a date, and of
# an exact number, for which MySQL returns an integer. For a BIGINT DuckDB's functions would return a DOUBLE.
_OF_DATES: Final = {
    **{name: f"{name}({{}})" for name in ("year", "month", "day", "dayofyear", "quarter", "hour", "minute", "second")},
    "dayofmonth": "day({})",
    "dayofweek": "dayofweek({}) + 1",  # 1 is a Sunday.
    "weekday": "isodow({}) - 1",  # 0 is a Monday.
    "to_days": f"CAST({{}} AS DATE) - DATE '1970-01-01' + {_DAY_ZERO}",
}
_OF_NUMBERS: Final = {
    "abs": "abs(CAST({} AS DECIMAL(38,18)))",
    "floor": "floor(TRY_CAST({} AS DECIMAL(38,18)))",
    "ceiling": "ceil(TRY_CAST({} AS DECIMAL(38,18)))",
    "ceil": "ceil(TRY_CAST({} AS DECIMAL(38,18)))",
}

# All usual collations compare ideographs by themselves. Other characters may be equal to further ones.
_COMPARABLE: Final = r"[ -~\x{4E00}-\x{9FA5}]*"
_ORDERED: Final = "[ -~]*"
# UCA has punctuation in this order, all of it before digits and letters.
_PUNCTUATION: Final = " _-,;:!?.'\"()[]{}@*/\\&#%`^+<=>|~$"
_RANKS: Final = "".join(map(chr, range(1, len(_PUNCTUATION) + 1)))


def _orders(text: str) -> list[str]:
    """Return what the orders of binary, *_bin, *_general_ci, *_unicode_ci and *_0900_* compare."""
    marks, padded = f"{text_literal(_PUNCTUATION)}, {text_literal(_RANKS)}", f"rtrim({text}, ' ')"
    return [text, padded, f"upper({padded})", *(f"translate(lower({each}), {marks})" for each in (padded, text))]


# What some collation takes for the same text: roman and Baltic ones do not tell i, j and y apart, or u, v and w.
_FOLDED: Final = "rtrim(translate(lower({}), 'jyvw', 'iiuu'), ' ')"


@dataclass(frozen=True)
class PartitionRows:
    """The rows of partitions that a DDL removed or exchanged. `target` has the table's columns and versions until then;
    its next version, by number, is the one that the DDL made."""

    scheme: Partitioning
    names: tuple[str, ...]
    target: Target

    @property
    def columns(self) -> tuple[Column, ...]:
        """The columns that decide. Raises `DdlError` when the partitioning expression is not supported."""
        own = {column.name.lower(): column for column in self.target.columns}
        names = self.scheme.columns or (_call(self.scheme)[1],)
        if missing := [name for name in names if name.lower() not in own]:
            raise DdlError(f"rows do not have column {missing[0]}, which the table is partitioned by")
        return tuple(own[name.lower()] for name in names)

    def condition(self, column: Callable[[Column], str]) -> str:
        """Return the condition that a row is in one of the partitions, NULL where that is uncertain. `column` returns
        the typed value of a column, an expression that is cheap to repeat. Raises `DdlError` when the partitioning
        expression or a bound is not supported."""
        values = [_Value.of(column(each), each.type, self.target.value_format) for each in self.columns]
        if not self.scheme.columns:
            values = [values[0].computed(self.scheme)]
        return f"({' OR '.join(_are_in(values, rows_of(self.scheme, name)) for name in self.names)})"

    def known(self, found: pa.ChunkedArray) -> np.ndarray[Any, Any]:
        """Return the results of `condition`. Raises `TableHeldError` where one is uncertain."""
        if found.null_count:
            raise TableHeldError(self.doubt, advice="load it again from a dump that was made after the statement")
        return found.to_numpy()

    @property
    def doubt(self) -> str:
        names, columns = ", ".join(self.names), ", ".join(column.name for column in self.columns)
        return (
            f"whether a row is in partition {names} depends on the collation of {columns}, which the log does not say"
        )


@dataclass(frozen=True)
class _Value:
    """A value that a table is partitioned by: its expression, and its type where it is a column."""

    value: str
    type: ColumnType | None
    value_format: ValueFormat

    @classmethod
    def of(cls, value: str, kind: ColumnType, value_format: ValueFormat) -> Self:
        if kind.name in MOMENTS and value_format.type_of(kind) == "string":
            value = value_parsing.value(value, kind, replace(value_format, zero_dates="null"))
        elif kind.name not in _NUMBERS | TEXTS | BLOBS | MOMENTS | {"decimal"}:
            raise DdlError(f"the order of the values of a {kind.name} is not known, which the table is partitioned by")
        return cls(value, kind, value_format)

    def computed(self, scheme: Partitioning) -> _Value:
        """Return the value of the partitioning expression."""
        (function, _), kind = _call(scheme), "" if self.type is None else self.type.name
        if function in _OF_NUMBERS and kind in INTEGERS | {"decimal"}:
            value = _OF_NUMBERS[function].format(self.value)
        elif function == "unix_timestamp" and kind == "timestamp":
            value = f"epoch_us({self.value}) // 1000000"
        elif function in _OF_DATES and kind in ("date", "datetime"):
            value = _OF_DATES[function].format(self.value)
        else:
            raise DdlError(
                f"the partitioning expression {scheme.expression} of a {kind} is not one that can be evaluated"
            )
        return replace(self, value=f"({value})", type=None)

    def equals(self, bound: BoundValue) -> str:
        """Return the condition that the value is the bound's; it is never NULL for a value that is NULL."""
        if isinstance(bound, NullLiteral):
            return f"{self.value} IS NULL"
        literal = self._literal(bound)
        if self.type is None or self.type.name not in TEXTS:
            return f"coalesce({self.value} = {literal}, false)"
        comparable = f"{sql.matches(self.value, _COMPARABLE)} AND {sql.matches(literal, _COMPARABLE)}"
        other = when(f"{comparable} AND {_FOLDED.format(self.value)} <> {_FOLDED.format(literal)}", _FALSE)
        return when(f"{self.value} IS NULL", _FALSE, when(f"{self.value} = {literal}", _TRUE, other))

    def is_below(self, bound: BoundValue) -> str:
        """Return the condition that the value is less than the bound; NULL is less than every value."""
        literal = self._literal(bound)
        if self.type is None or self.type.name not in TEXTS:
            return f"coalesce({self.value} < {literal}, true)"
        below = [f"{own} < {other}" for own, other in zip(_orders(self.value), _orders(literal), strict=True)]
        certain = when(" AND ".join(below), _TRUE, when(f"NOT ({' OR '.join(below)})", _FALSE))
        # Texts that differ only in case, or in spaces at the end, have another order in each kind of collation.
        same = f"lower(rtrim({self.value}, ' ')) = lower(rtrim({literal}, ' ')) AND {self.value} <> {literal}"
        ordered = f"{sql.matches(self.value, _ORDERED)} AND {sql.matches(literal, _ORDERED)} AND NOT ({same})"
        return when(f"{self.value} IS NULL", _TRUE, when(ordered, certain))

    def _literal(self, bound: BoundValue) -> str:
        """Return a bound as a literal of the column's type, or a number for a function's result."""
        kind, name = self.type, "" if self.type is None else self.type.name
        try:
            match bound:
                case TextLiteral(text) if name in TEXTS:
                    return text_literal(text)
                case TextLiteral(text) if kind is not None and name in BLOBS:
                    return value_parsing.padded(sql.bytes_literal(text.encode()), kind)
                case BytesLiteral(content) if kind is not None and name in BLOBS:
                    return value_parsing.padded(sql.bytes_literal(content), kind)
                case TextLiteral(text) | NumberLiteral(text) if name in ("date", "datetime"):
                    # Fails for a form that MySQL takes and Python does not.
                    return cast(text_literal(datetime.datetime.fromisoformat(text).isoformat(" ")), "timestamp")
                case TextLiteral(text) | NumberLiteral(text) if not name or name in _NUMBERS:
                    return str(int(text))
                case Expression(text) if not name or name in _NUMBERS:
                    return _evaluated(text, self.value_format.zone_info)
                case _:
                    pass
        except ValueError:
            pass
        raise DdlError(f"the partition bound {bound} is not one that can be evaluated")


def _are_in(values: Sequence[_Value], partition: RangeRows | ListRows | HashRows) -> str:
    """Return the condition that a row with these values is in a partition, NULL where that is uncertain."""
    match partition:
        case RangeRows(lower, upper):
            above = _TRUE if lower is None else f"NOT {_below(values, lower)}"
            return f"({above} AND {_TRUE if upper is None else _below(values, upper)})"
        case ListRows(rows, others):
            own, other = _among(values, rows), _among(values, others)
            if any(isinstance(row[0], DefaultValue) for row in rows):
                return f"(NOT {other} OR {own})"
            if any(isinstance(row[0], DefaultValue) for row in others):
                return when(other, _FALSE, own)
            # The server accepted each row: it is in this list where it can be in no other, and must be in one of them.
            alone = when(f"{own} IS NULL AND NOT {other}", _TRUE, when(f"{other} IS NULL AND NOT {own}", _FALSE))
            return when(own, _TRUE, when(other, _FALSE, alone))
        case HashRows(remainder, count):
            # MySQL and TiDB take the remainder of a signed number, also of a BIGINT UNSIGNED.
            number = cast(values[0].value, "decimal(38,0)")
            signed = when(f"{number} >= {2**63}", f"{number} - {2**64}", number)
            # For NULL, MySQL (sql/sql_partition.cc, `part_val_int`) takes the least number, TiDB (pkg/table/tables/
            # partition.go, `locateHashPartition`) partition 0.
            of_null = 2**63 % count if values[0].value_format.database == "mysql" else 0
            return f"coalesce(abs({signed} % {count}) = {remainder}, {str(remainder == of_null).lower()})"


def _call(scheme: Partitioning) -> tuple[str, str]:
    """Return the partitioning function, and the column that it is called with."""
    call = _CALL.fullmatch(scheme.expression)
    if call is None or call[4] is not None or call[1].lower() not in {*_OF_DATES, *_OF_NUMBERS, "unix_timestamp"}:
        raise DdlError(f"the partitioning expression {scheme.expression} is not one that can be evaluated")
    return call[1].lower(), call[2] or call[3]


def _below(values: Sequence[_Value], bound: tuple[BoundValue, ...]) -> str:
    """Compare tuples column by column."""
    condition = _FALSE
    for value, limit in reversed(list(zip(values, bound, strict=True))):
        if isinstance(limit, MaxValue):
            condition = _TRUE
        else:
            condition = f"({value.is_below(limit)} OR ({value.equals(limit)} AND {condition}))"
    return condition


def _among(values: Sequence[_Value], rows: Sequence[tuple[BoundValue, ...]]) -> str:
    """Return the condition that the values are one of the rows, without DEFAULT."""
    found = [
        f"({' AND '.join(value.equals(wanted) for value, wanted in zip(values, row, strict=True))})"
        for row in rows
        if not isinstance(row[0], DefaultValue)
    ]
    return f"({' OR '.join(found)})" if found else _FALSE


def _evaluated(text: str, zone: datetime.tzinfo) -> str:
    """Evaluate a bound that is a call on a literal, such as TO_DAYS('2024-01-01').

    MySQL ("UNIX_TIMESTAMP") and TiDB (pkg/ddl/partition.go, `getRangeValue`) evaluate UNIX_TIMESTAMP in the session's
    time zone when the partition is made. The log does not say that zone: it is taken to be the feed's."""
    call = _CALL.fullmatch(text)
    function = None if call is None or call[4] is None else call[1].lower()
    if call is None or (function not in _OF_DATES and function != "unix_timestamp"):
        raise DdlError(f"the partition bound {text} is not one that can be evaluated")
    moment = datetime.datetime.fromisoformat(call[4])
    if function != "unix_timestamp":
        return f"({_OF_DATES[function].format(cast(text_literal(moment.isoformat(' ')), 'timestamp'))})"
    moment = moment.replace(tzinfo=None)
    # Of a time that clocks of the zone show twice it is the first; one that they skip is the end of the skip.
    first, second = (int(moment.replace(tzinfo=zone, fold=fold).timestamp()) for fold in (0, 1))
    if first > second:  # The clocks are put forward between the two.
        between = range(second, first + 1)
        shown = functools.partial(datetime.datetime.fromtimestamp, tz=zone)
        first = between[bisect.bisect(between, moment, key=lambda at: shown(at).replace(tzinfo=None))]
    return str(first)
