"""Convert texts of events to typed rows of a current-state table, in DuckDB's SQL.

Each column is converted on its own, and columns of the same types in one query (`sql.over_columns`): the work is linear
in columns.

An event's values are mapped by the columns of its own version: name → id → the current column. Between the two lie the
type changes after the event, or, for a column that was added after it, the default that ALTER TABLE gave to older rows.

Columns here have short names, never the source's: `t3` is the text of column 3 (its id), `n3` the number of that
text's types, `c3` its current value in the table."""

from __future__ import annotations

import datetime
import decimal
import functools
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from cdc_lakehouse import duckdb_sql as sql
from cdc_lakehouse.changelog import schema
from cdc_lakehouse.changelog.defaults import UTC
from cdc_lakehouse.changelog.mysql_types import BLOBS, ColumnType, type_text
from cdc_lakehouse.changelog.schema import TableVersion
from cdc_lakehouse.decoders.arrow import pc
from cdc_lakehouse.decoders.event_schema import image_of
from cdc_lakehouse.errors import DdlError
from cdc_lakehouse.lake.current import value_parsing
from cdc_lakehouse.lake.current.conversions import conversions, convert_through
from cdc_lakehouse.lake.current.keyed_events import LARGE_IMAGE
from cdc_lakehouse.lake.current.schema_plan import LakeColumn
from cdc_lakehouse.lake.current.value_parsing import ValueFormat

COMMIT_TS: Final = "_commit_ts"
"""The column that the lake adds to a current-state table."""

_FEW_IMAGES: Final = 256
_NO_TEXT: Final = pa.scalar(None, pa.string())
_ONE_ROW: Final = pa.nulls(1, pa.int32())
_EXACT: Final = decimal.Context(prec=76)


@dataclass(frozen=True, slots=True)
class Target:
    """The table to write: its current columns in the source, and the versions of its life by number."""

    columns: tuple[schema.Column, ...]
    versions: Mapping[int, TableVersion]

    def types_since(self, column_id: int, since: TableVersion | None) -> list[ColumnType]:
        """Return the types of a column from a version (or from when it was added) to now."""
        types: list[ColumnType] = []
        begun = since is None
        for version in self.versions.values():
            begun = begun or version == since
            column = version.column(column_id)
            if begun and column is not None and (not types or types[-1] != column.type):
                types.append(column.type)
        return types


def lake_name(column: schema.Column) -> str:
    """Return the name of a source column in the lake: `_commit_ts`, in any case, is the lake's own column, so a source
    column of that name becomes `_commit_ts_`, and `_commit_ts_` becomes `_commit_ts__`."""
    return f"{column.name}_" if column.name.lower().rstrip("_") == COMMIT_TS else column.name


def lake_columns(columns: Sequence[schema.Column], value_format: ValueFormat) -> list[LakeColumn]:
    """Convert the source's columns to the lake's."""
    return [
        LakeColumn(column.id, lake_name(column), value_format.type_of(column.type), initial_value(column, value_format))
        for column in columns
    ]


def rows_of_version(
    connection: Any,
    version: TableVersion,
    target: Target,
    types: Mapping[int, Sequence[ColumnType]],
    texts: Mapping[str, Any],
    row: Any,
    value_format: ValueFormat,
) -> pa.Table:
    """Return the typed rows of events of one version.

    types: of each of the target's columns in the version, by id: its types from that version to now.

    texts: `t<id>` (string) for each column that the version's events carry. row: the numbers of the rows (bigint).

    The result has `row`, `c<id>` for each column of the table, `fault` (BOOLEAN, a text cannot be read), and
    `zero_dates` (INTEGER, the number of zero dates that became NULL).
    """
    read = [column for column in target.columns if f"t{column.id}" in texts]
    values, fault, zeros = _read([(texts[f"t{c.id}"], types[c.id]) for c in read], len(row), connection, value_format)
    columns = dict(zip((column.id for column in read), values, strict=True))
    # The values of other columns are the same in all rows.
    others = [column for column in target.columns if column.id not in columns]
    columns |= default_values(connection, others, version, target, len(row), value_format)
    return _table(row, target, columns, fault, zeros)


def rows_of_fold(connection: Any, folds: pa.Table, target: Target, value_format: ValueFormat) -> pa.Table:
    """Return the typed rows of folded events (see `partial_rows`), whose texts are of several versions.

    folds: for each column of the table `t<id>` (string); `n<id>` (int), the index of the text's types among the
    distinct values of `types_by_version`, NULL when no event carries the column; and `u<id>` (bool), whether the row
    was inserted under a version without the column. Also `row`, and where some rows existed before `based` (bool),
    whether `b<id>` holds the row's earlier values, which have the columns' current types.

    The result is that of `rows_of_version`. A column whose value is unknown is a fault: it is never guessed.
    """
    given = sql.by_name(folds)
    ways = {c.id: [*dict.fromkeys(types_by_version(c, target).values())] for c in target.columns}
    texts = [
        (text if len(each) == 1 else pc.if_else(pc.equal(given[f"n{id}"], number), text, _NO_TEXT), types)
        for id, each in ways.items()
        for text in [given[f"t{id}"]]
        for number, types in enumerate(each)
    ]
    values, fault, zeros = _read(texts, folds.num_rows, connection, value_format)
    unborn = [column for column in target.columns if pc.any(given[f"u{column.id}"]).as_py()]
    defaults = default_values(connection, unborn, None, target, folds.num_rows, value_format)
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


def _table(
    row: Any, target: Target, columns: Mapping[int, Any], fault: np.ndarray[Any, Any], zeros: np.ndarray[Any, Any]
) -> pa.Table:
    values = {f"c{column.id}": columns[column.id] for column in target.columns}
    return pa.table({"row": row, **values, "fault": pa.array(fault), "zero_dates": pa.array(zeros)})


def _read(
    texts: Sequence[tuple[Any, Sequence[ColumnType]]], count: int, connection: Any, value_format: ValueFormat
) -> tuple[list[Any], np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Read texts, (column, its types from then to now), of `count` rows as values of the last type. Return also whether
    a text of a row cannot be read, and how many of a row are zero dates that became NULL."""
    statements = [_reading(tuple(types), value_format) for _, types in texts]
    read = sql.over_columns(
        connection, [(each, text) for each, (text, _) in zip(statements, texts, strict=True) if each is not None]
    )
    rest = iter(read)
    fault, zeros = np.zeros(count, np.bool_), np.zeros(count, np.int32)
    for each in read:
        if "fault" in each.column_names:
            fault |= each.column("fault").to_numpy()
        if "zero" in each.column_names:
            zeros += each.column("zero").to_numpy()
    columns = [
        text if each is None else next(rest).column("value") for each, (text, _) in zip(statements, texts, strict=True)
    ]
    return columns, fault, zeros


@functools.lru_cache(maxsize=4096)
def _reading(types: tuple[ColumnType, ...], value_format: ValueFormat) -> str | None:
    """Return the statement (see `sql.over_columns`) that reads texts of the first type as values of the last; None
    where the values are the texts."""
    value, last = value_parsing.value("value", types[0], value_format), value_format.type_of(types[-1])
    if value == "value" and len(types) == 1:
        return None
    relation, result, lost, zeros = conversions(f"(SELECT value, {value} AS v0 FROM stacked)", types, value_format)
    faults = [value_parsing.parse_failed("value", "v0", types[0], value_format), *lost]
    zero = value_parsing.zero_date("value", "v0", types[0], value_format)
    shown = [f"{sql.cast(result, last)} AS value", f"{any_of(faults)} AS fault"]
    if zero is not None or zeros:
        shown.append(f"{any_of([*([] if zero is None else [zero]), *zeros])} AS zero")
    return f"SELECT {', '.join(shown)} FROM {relation}"


def misfit(connection: Any, image: str | None, number: int, target: Target, value_format: ValueFormat) -> str | None:
    """Return what of an image does not fit the columns of its version (`number`); None where nothing is found."""
    texts, version = image_of(image), target.versions[number]
    known = {column.name for column in version.columns}
    if unknown := [name for name in texts if name not in known]:
        return f"column {unknown[0]} is not known"
    for column in version.carried:
        if column.name in texts:
            types = target.types_since(column.id, version)
            if (
                types
                and _read([(pa.array([texts[column.name]], pa.string()), types)], 1, connection, value_format)[1][0]
            ):
                return f"the value of column {column.name}"
    missing = [column.name for column in version.carried if column.name not in texts]
    return f"column {missing[0]} is missing" if missing else None


def converted(
    connection: Any, columns: Sequence[tuple[Any, Sequence[ColumnType]]], value_format: ValueFormat
) -> list[Any]:
    """Convert values, (column, its types), to the last of their types. Raises `DdlError` for a value that cannot be
    converted."""
    statements: list[tuple[str, Any]] = []
    for values, types in columns:
        relation, result, lost, _ = conversions("(SELECT value AS v0 FROM stacked)", types, value_format)
        value = sql.cast(result, value_format.type_of(types[-1]))
        statements.append((f"SELECT {value} AS value, {any_of(lost)} AS fault FROM {relation}", values))
    found = sql.over_columns(connection, statements)
    for (_, types), rows in zip(columns, found, strict=True):
        if pc.any(rows.column("fault")).as_py():
            names = " to ".join(dict.fromkeys(type_text(each) for each in types))
            raise DdlError(
                f"a value cannot be converted from {names} as the source does it",
                advice="load the table again from a dump made after the statement",
            )
    return [rows.column("value") for rows in found]


def default_values(
    connection: Any,
    columns: Sequence[schema.Column],
    version: TableVersion | None,
    target: Target,
    count: int,
    value_format: ValueFormat,
) -> dict[int, Any]:
    """Return by id, `count` times, the current values of columns that rows of a version do not carry: NULL for a
    virtual generated column, otherwise the default in rows that are older than the column."""
    values: list[str] = []
    types: list[Sequence[ColumnType]] = []
    for column in columns:
        is_older = version is None or version.column(column.id) is None
        types.append(target.types_since(column.id, None) if is_older else [column.type])
        values.append(
            _default(column, target, value_format)
            if is_older
            else sql.cast(sql.NULL, value_format.type_of(column.type))
        )
    read = sql.over_columns(connection, [(f"SELECT {value} AS value FROM stacked", _ONE_ROW) for value in values])
    firsts = [each.column("value") for each in read]
    found = converted(connection, [*zip(firsts, types, strict=True)], value_format)
    return {column.id: pa.repeat(each[0], count) for column, each in zip(columns, found, strict=True)}


def types_by_version(column: schema.Column, target: Target) -> dict[int, tuple[ColumnType, ...]]:
    """Return the types that a column's texts pass through, by the number of the texts' version: from the type in that
    version to the current one. Versions without the column are missing."""
    found: dict[int, tuple[ColumnType, ...]] = {}
    types: tuple[ColumnType, ...] = ()
    for number, version in reversed([*target.versions.items()]):
        own = version.column(column.id)
        if own is not None:
            if types[:1] != (own.type,):
                types = own.type, *types
            found[number] = types
    return found


def default_value(column: schema.Column, target: Target, value_format: ValueFormat) -> str:
    """Return the value in rows that are older than the column: its default when it was added, converted through its
    later types."""
    literal = _default(column, target, value_format)
    value = convert_through(literal, target.types_since(column.id, None), value_format)
    return sql.cast(value, value_format.type_of(column.type))


def _default(column: schema.Column, target: Target, value_format: ValueFormat) -> str:
    first = next(own for version in target.versions.values() if (own := version.column(column.id)))
    return sql.literal(initial_value(first, value_format), value_format.type_of(first.type))


def initial_value(column: schema.Column, value_format: ValueFormat) -> Any:
    """Return a column's initial default as a Python value of its Iceberg type; None for NULL, and for a default that
    has no value of that type (a zero date, by policy)."""
    text, target = column.initial.text, value_format.type_of(column.type)
    if text is None or target == "list<float>":
        return None
    if column.type.name in BLOBS:
        return text.encode("latin-1")
    try:
        return _parsed(text, column.type, target, value_format)
    except (ValueError, decimal.InvalidOperation):
        return None


def _parsed(text: str, column: ColumnType, target: str, value_format: ValueFormat) -> Any:
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
        case _ if column.name == "timestamp" and text.endswith(UTC):
            local = datetime.datetime.fromisoformat(text).astimezone(value_format.zone_info)
            shown = local.replace(tzinfo=None).isoformat(" ", "microseconds")
            return shown[: 20 + column.fraction].removesuffix(".")
        case _:
            return text


def any_of(conditions: Iterable[str]) -> str:
    """Return the condition that one of the conditions is true; false when there are none, or when none is known to be
    true."""
    found = [condition for condition in conditions if condition != "false"]
    return f"coalesce(list_bool_or([{', '.join(found)}]), false)" if found else "false"


class RowImages(NamedTuple):
    """Row images of one version: `t<id>` (string), the text of each wanted column; `strange` (bool), whether an image
    has a column that the version does not have, or the same one twice; `absent` (bool), whether it omits a column."""

    texts: dict[str, Any]
    strange: Any
    absent: Any


def row_images(connection: Any, events: pa.Table, version: TableVersion, wanted: set[int]) -> RowImages:
    """Split the images in keyed events (see `keyed_events`) of a version into columns. `wanted` are ids of columns."""
    images = events.column("image")
    names = {column.name for column in version.carried}
    # MySQL's own binlog has values of virtual generated columns, which other sources omit.
    known = {column.name for column in version.columns}
    read = {f"t{column.id}": column.name for column in version.carried if column.id in wanted}
    # DuckDB plans a member of a structure in the time that Python takes for hundreds, and its structures cannot have a
    # member without a name.
    by_columns = len(images) > _FEW_IMAGES and images.nbytes <= LARGE_IMAGE * len(images) and "" not in read.values()
    if by_columns and _are_usual(connection, images, names, known):
        no = pa.repeat(False, len(images))
        return RowImages(_members(connection, images, read), no, no)
    members = [json.loads(image or "{}", object_pairs_hook=list) for image in images.to_pylist()]
    rows = [dict(each) for each in members]
    strange = [not known >= row.keys() or len(row) < len(each) for row, each in zip(rows, members, strict=True)]
    return RowImages(
        {text: pa.array([row.get(name) for row in rows], pa.string()) for text, name in read.items()},
        pa.array(strange, pa.bool_()),
        pa.array([not row.keys() >= names for row in rows], pa.bool_()),
    )


def _are_usual(connection: Any, images: pa.ChunkedArray, names: set[str], known: set[str]) -> bool:
    """Whether all images have each of the names once, and apart from these only known names."""
    if images.null_count:
        return False
    found = _query(connection, "SELECT DISTINCT json_keys(image) AS names FROM images", images).column("names")
    return all(names <= set(each) <= known and len(each) == len(set(each)) for each in found.to_pylist())


def _members(connection: Any, images: pa.ChunkedArray, read: Mapping[str, str]) -> dict[str, Any]:
    if not read:
        return {}
    structure = sql.text_literal(json.dumps(dict.fromkeys(read.values(), "VARCHAR"), ensure_ascii=False))
    found = _query(connection, f"SELECT json_transform(image, {structure}) AS members FROM images", images)
    members = [chunk.flatten() for chunk in found.column("members").chunks]
    return {text: pa.chunked_array([each[n] for each in members], pa.string()) for n, text in enumerate(read)}


def _query(connection: Any, query: str, images: pa.ChunkedArray) -> pa.Table:
    return sql.query(connection, query, images=pa.table({"image": images}))
