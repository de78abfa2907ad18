"""Convert texts of events to typed rows of a current-state table, in DuckDB's SQL.

An event's values are mapped by the columns of its own version: name → id → the current column. Between the two lie the
type changes after the event, or, for a column that was added after it, the default that ALTER TABLE gave to older rows.

Relations here use short names, never the source's: `t3` is the text of column 3 (its id), `n3` the number of the
version of that text, `v3` its value in that version, `c3` its current value in the table."""

from __future__ import annotations

import datetime
import decimal
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import msgspec
import pyarrow as pa

from cdc_lakehouse import duckdb_sql as sql
from cdc_lakehouse.changelog import schema
from cdc_lakehouse.changelog.defaults import UTC
from cdc_lakehouse.changelog.mysql_types import BLOBS, ColumnType
from cdc_lakehouse.changelog.schema import TableVersion
from cdc_lakehouse.lake.current import value_parsing
from cdc_lakehouse.lake.current.conversions import convert_through
from cdc_lakehouse.lake.current.schema_plan import LakeColumn
from cdc_lakehouse.lake.current.value_parsing import ValueFormat, duckdb_type

COMMIT_TS: Final = "_commit_ts"
"""The column that the lake adds to a current-state table."""

_LARGE_IMAGE: Final = 16 * 1024 * 1024
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


def values_of_version(
    number: int,
    target: Target,
    types: Mapping[int, Mapping[int, Sequence[ColumnType]]],
    value_format: ValueFormat,
    relation: str,
) -> str:
    """Return a query for the typed rows of events of one version.

    types: `types_by_version` of each of the target's columns, by its id.

    relation: `t<id>` (VARCHAR) for each column that the version's events carry, and `row` (BIGINT).

    The result has `row`, `c<id>` for each column of the table, `fault` (BOOLEAN, a text cannot be read), and
    `zero_dates` (INTEGER, the number of zero dates that became NULL).
    """
    version = target.versions[number]
    wanted = {column.id for column in target.columns}
    read = [column for column in version.carried if column.id in wanted]
    values = [f"{value_parsing.value(f't{c.id}', c.type, value_format)} AS v{c.id}" for c in read]
    faults = [value_parsing.parse_failed(f"t{c.id}", f"v{c.id}", c.type, value_format) for c in read]
    zeros = [value_parsing.zero_date(f"t{c.id}", f"v{c.id}", c.type, value_format) for c in read]
    columns = [
        f"{value_now(column, version, types[column.id].get(number, ()), target, value_format)} AS c{column.id}"
        for column in target.columns
    ]
    return (
        f"SELECT row, {', '.join([*columns, f'{any_of(faults)} AS fault', f'{_count(zeros)} AS zero_dates'])} "
        f"FROM (SELECT {', '.join(['*', *values])} FROM {relation})"
    )


def value_now(
    column: schema.Column,
    version: TableVersion,
    types: Sequence[ColumnType],
    target: Target,
    value_format: ValueFormat,
) -> str:
    """Return the current value of a column in a row of a version, over `v<id>`; `types` are its types since that
    version."""
    own = version.column(column.id)
    if own is None:
        return default_value(column, target, value_format)
    value = f"v{column.id}" if own.carried else f"CAST(NULL AS {duckdb_type(value_format.type_of(own.type))})"
    return _as_now(value, column, types, value_format)


def _as_now(value: str, column: schema.Column, types: Sequence[ColumnType], value_format: ValueFormat) -> str:
    converted = convert_through(value, types, value_format)
    return f"CAST({converted} AS {duckdb_type(value_format.type_of(column.type))})"


def values_of_fold(target: Target, value_format: ValueFormat, relation: str) -> str:
    """Return a query for the typed rows of folded events (see `partial_rows`), whose texts are of several versions.

    relation: for each column of the table `t<id>` (VARCHAR); `n<id>` (INTEGER), the index of the text's types among the
    distinct values of `types_by_version`, NULL when no event carries the column; `u<id>` (BOOLEAN), whether the row was
    inserted under a version without the column; and `b<id>`, of the column's current type, the earlier value. Also
    `based` (BOOLEAN), whether `b<id>` holds earlier values, and `row`.

    The result is that of `values_of_version`. A column whose value is unknown is a fault: it is never guessed.
    """
    values: list[str] = []
    columns: list[str] = []
    faults: list[str] = []
    zeros: list[str | None] = []
    for column in target.columns:
        text, chosen = f"t{column.id}", f"n{column.id}"
        said: list[str] = []
        for number, types in enumerate(dict.fromkeys(types_by_version(column, target).values())):
            read = f"v{column.id}_{number}"
            values.append(f"{value_parsing.value(text, types[0], value_format)} AS {read}")
            said.append(f"WHEN {chosen} = {number} THEN {_as_now(read, column, types, value_format)}")
            failed = value_parsing.parse_failed(text, read, types[0], value_format)
            faults.append(f"({chosen} = {number} AND {failed})")
            zero = value_parsing.zero_date(text, read, types[0], value_format)
            zeros.append(None if zero is None else f"({chosen} = {number} AND {zero})")
        unborn = f"u{column.id}"
        faults.append(f"({chosen} IS NULL AND NOT based AND NOT {unborn})")
        value = f"WHEN based THEN b{column.id} WHEN {unborn} THEN {default_value(column, target, value_format)}"
        columns.append(f"CASE {' '.join(said)} {value} END AS c{column.id}")
    return (
        f"SELECT row, {', '.join([*columns, f'{any_of(faults)} AS fault', f'{_count(zeros)} AS zero_dates'])} "
        f"FROM (SELECT {', '.join(['*', *values])} FROM {relation})"
    )


def folds_alone(target: Target, value_format: ValueFormat, folds: str) -> str:
    """Return the relation for `values_of_fold` from folds (`partial_rows.FoldedRows`) of rows that did not exist
    before."""
    nothing = [
        f"CAST({sql.NULL} AS {duckdb_type(value_format.type_of(column.type))}) AS b{column.id}"
        for column in target.columns
    ]
    return f"(SELECT {', '.join([f'{folds}.*', 'false AS based', *nothing])} FROM {folds})"


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
    first = next(own for version in target.versions.values() if (own := version.column(column.id)))
    literal = sql.literal(initial_value(first, value_format), value_format.type_of(first.type))
    return _as_now(literal, column, target.types_since(column.id, None), value_format)


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
    return f"coalesce({' OR '.join(found)}, false)" if found else "false"


def _count(conditions: Iterable[str | None]) -> str:
    found = [f"CAST(coalesce({condition}, false) AS INTEGER)" for condition in conditions if condition is not None]
    return " + ".join(found) or "0"


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
    # DuckDB's structures cannot have a member without a name, and a large image takes four times its size in memory.
    is_large = images.nbytes > _LARGE_IMAGE * len(images)
    if "" not in read.values() and not is_large and _are_usual(connection, images, names, known):
        no = pa.repeat(False, len(images))
        return RowImages(_members(connection, images, read), no, no)
    if is_large:
        counts = [len(json.loads(image or "{}", object_pairs_hook=list)) for image in images.to_pylist()]
    else:
        counted = "SELECT coalesce(len(json_keys(image)), 0) AS names FROM images"
        counts = _query(connection, counted, images).column("names").to_pylist()
    rows = [image_of(image) for image in images.to_pylist()]
    strange = [not known >= row.keys() or len(row) < count for row, count in zip(rows, counts, strict=True)]
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


def image_of(image: str | None) -> dict[str, str | None]:
    """Return the texts of an image, by column."""
    return {} if image is None else msgspec.json.decode(image)
