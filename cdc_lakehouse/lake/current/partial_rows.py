"""Fold events that do not carry all columns: an omitted column keeps its value, it does not become NULL.

For the keys of such events the last event is not enough. All of the batch's events of a key are folded column by
column, onto the row that the table has now."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from cdc_lakehouse import duckdb_sql as sql
from cdc_lakehouse.decoders.arrow import pc, where
from cdc_lakehouse.decoders.event_schema import image_of
from cdc_lakehouse.lake.current.typed_rows import Target, row_images, rows_of_fold, rows_of_version, types_by_version
from cdc_lakehouse.lake.current.value_parsing import ValueFormat


@dataclass(slots=True)
class _Fold:
    """The fold of one key.

    last: index of the last event. upsert: whether it leaves a row. texts: by column id, the version number and the
    text. whole: whether an INSERT or DELETE is among the events, so that no values of an earlier row are kept. born:
    the version of that INSERT. strange: whether an event has a column that its version does not know."""

    last: int = 0
    upsert: bool = False
    texts: dict[int, tuple[int, str | None]] = field(default_factory=dict[int, "tuple[int, str | None]"])
    whole: bool = False
    born: int | None = None
    strange: bool = False


@dataclass(frozen=True)
class FoldedRows:
    """One row for each key that is not deleted at the end. `table` has the columns `row` (bigint, its number), for each
    column `t<id>` (string), `n<id>` (int) and `u<id>` (bool) as in `typed_rows.values_of_fold`, `k<n>` (string, the
    parts of the key) and `whole` (bool). `last` holds the indices of the last events, `strange` the faults that are
    already known."""

    table: pa.Table
    last: Sequence[int]
    strange: Sequence[bool]


def fold_events(events: pa.Table, target: Target) -> FoldedRows:
    """Fold the events of complete keys, with the columns of `keyed_events.KEYED_EVENTS`."""
    positions = zip(*(events.column(name).to_pylist() for name in ("stage", "upsert", "segment", "line")), strict=True)
    # The same order as in `latest_changes`.
    order = [
        (stage, segment if stage % 2 else None, upsert, segment, line) for stage, upsert, segment, line in positions
    ]
    keys, inserts = events.column("key").to_pylist(), events.column("is_insert").to_pylist()
    versions = events.column("version_no").to_pylist()
    images = events.column("image").to_pylist()
    ids = {n: {c.name: c.id for c in version.carried} for n, version in target.versions.items()}
    known = {n: {column.name for column in version.columns} for n, version in target.versions.items()}
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
        fold.strange = fold.strange or not known[number].issuperset(image)
    live = {key: fold for key, fold in folds.items() if fold.upsert}
    return FoldedRows(_table(live, target), [f.last for f in live.values()], [f.strange for f in live.values()])


def _table(folds: Mapping[tuple[str, ...], _Fold], target: Target) -> pa.Table:
    found = list(folds.values())
    nothing: tuple[None, None] = (None, None)
    columns: dict[str, Any] = {
        "row": pa.array(range(len(found)), pa.int64()),
        "whole": pa.array([fold.whole for fold in found], pa.bool_()),
    }
    for position in range(len(next(iter(folds), ()))):
        columns[f"k{position}"] = pa.array([key[position] for key in folds], pa.string())
    for column in target.columns:
        said = [fold.texts.get(column.id, nothing) for fold in found]
        types = types_by_version(column, target)
        numbers = {each: number for number, each in enumerate(dict.fromkeys(types.values()))}
        places = {version: numbers[each] for version, each in types.items()}
        columns[f"n{column.id}"] = pa.array(
            [None if version is None else places[version] for version, _ in said], pa.int32()
        )
        unborn = [fold.born is not None and fold.born not in places for fold in found]
        columns[f"u{column.id}"] = pa.array(unborn, pa.bool_())
        columns[f"t{column.id}"] = pa.array([text for _, text in said], pa.string())
    return pa.table(columns)


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
    connection: Any,
    events: pa.Table,
    upserts: pa.Table,
    target: Target,
    value_format: ValueFormat,
    based: Callable[[pa.Table, Target], pa.Table] | None = None,
) -> TypedRows:
    """Return the rows that the latest events of keys (`upserts`) leave; where one omits columns, they are folded from
    all `events` of the keys. `based` adds existing rows to folds, as `rows_of_fold` reads them."""
    values = _typed_images(connection, upserts, target, value_format)
    if values is not None:
        return TypedRows(values, upserts, np.arange(upserts.num_rows))
    events = events_of_keys(connection, events, upserts)
    folded = fold_events(events, target)
    folds = folded.table if based is None else based(folded.table, target)
    values = pa.concat_tables([rows_of_fold(connection, part, target, value_format) for part in sql.slices(folds)])
    strange = pa.array(folded.strange, pa.bool_()).take(values.column("row").combine_chunks())
    return TypedRows(_with_faults(values, pa.chunked_array([strange])), events, np.array(folded.last))


def events_of_keys(
    connection: Any, events: pa.Table, keys: pa.Table, join: str = "SEMI", by: Sequence[str] = ("key",)
) -> pa.Table:
    """Return the events with one of the keys, or (`ANTI`) with none of them, in their order. `by` are the columns that
    are compared."""
    keyed = events.select([*by]).append_column("place", pa.array(np.arange(events.num_rows), pa.int64()))
    query = f"SELECT place FROM keyed {join} JOIN wanted USING ({', '.join(by)}) ORDER BY place"
    return events.take(sql.query(connection, query, keyed=keyed, wanted=keys.select([*by])).column("place"))


def unusable_events(connection: Any, events: pa.Table, target: Target, value_format: ValueFormat) -> pa.Table:
    """Return the events with an image that itself does not fit: a value that cannot be read, or a column that is not
    known. Columns that it omits are no fault of its own."""
    upserts = where(events, events.column("upsert").to_numpy() & events.column("version_no").is_valid().to_numpy())
    values = _typed_images(connection, upserts, target, value_format, partial=True)
    return upserts if values is None else upserts.take(values.filter(values.column("fault")).column("row"))


def _typed_images(
    connection: Any, upserts: pa.Table, target: Target, value_format: ValueFormat, *, partial: bool = False
) -> pa.Table | None:
    """Return the rows of the events' images alone; None when some omit columns, unless they are wanted as well
    (`partial`), with NULL there."""
    parts: list[pa.Table] = []
    rows = upserts.append_column("row", pa.array(np.arange(upserts.num_rows), pa.int64()))
    wanted = {column.id for column in target.columns}
    types = {column.id: types_by_version(column, target) for column in target.columns}
    for number in sorted(pc.unique(rows.column("version_no")).to_pylist()):
        version = target.versions[number]
        own = where(rows, rows.column("version_no").to_numpy() == number)
        own_types = {id: each.get(number, ()) for id, each in types.items()}
        for part in sql.slices(own):
            images = row_images(connection, part, version, wanted)
            if not partial and pc.any(images.absent).as_py():
                return None
            row = part.column("row")
            values = rows_of_version(connection, version, target, own_types, images.texts, row, value_format)
            parts.append(_with_faults(values, images.strange))
    if parts:
        return pa.concat_tables(parts)
    nothing = [(f"c{column.id}", pa.null()) for column in target.columns]
    return pa.schema([("row", pa.int64()), *nothing, ("fault", pa.bool_()), ("zero_dates", pa.int32())]).empty_table()


def _with_faults(values: pa.Table, faults: Any) -> pa.Table:
    place = values.schema.get_field_index("fault")
    return values.set_column(place, "fault", pc.or_(values.column("fault"), faults))
