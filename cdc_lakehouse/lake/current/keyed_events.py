"""Events with the key of the row that they change, read from the `events` table and grouped by task.

Nothing is looked up or grouped here. A task gets all events of its keys and finds the latest of each
(`latest_changes`).

Events of one key can write it in several ways: a dump `1.00` and Canal `1.0`, or two versions of a table the same label
of an ENUM as two numbers. Then the key's text is made from the value, under the event's own version. Keys whose types
have one text for each value keep the events' texts, which costs nothing. Collations are ignored here.

A job reads each file of events once. What a reader has for a task is a block: keyed events (`KEYED_EVENTS`) as an Arrow
stream, which Spark moves unchanged. Spark would convert rows to its own form and back to columns, which takes longer
than applying them.
"""

from __future__ import annotations

import contextlib
import functools
import json
import math
import os
import pickle
import tempfile
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self, TypeVar

import cramjam
import msgspec
import numpy as np
import pyarrow as pa

from cdc_lakehouse import duckdb_sql as sql
from cdc_lakehouse.changelog.history import Incarnation
from cdc_lakehouse.changelog.mysql_types import FLOATS, FORMS, INTEGERS, LABELS, TEXTS, ColumnType, type_change
from cdc_lakehouse.changelog.positions import END_TS, row_stage
from cdc_lakehouse.changelog.schema import Column, TableVersion
from cdc_lakehouse.decoders.arrow import Mask, pc, where
from cdc_lakehouse.decoders.event_schema import SYNTHETIC, TEXT_OF
from cdc_lakehouse.decoders.tasks import errors_to_driver, results_of
from cdc_lakehouse.duckdb_sql import cast, matches, query, text_literal, when
from cdc_lakehouse.errors import TableHeldError, TransientError
from cdc_lakehouse.lake.catalog import Lake
from cdc_lakehouse.lake.current import value_parsing
from cdc_lakehouse.lake.current.value_parsing import ValueFormat, in_row, row_text, value_text
from cdc_lakehouse.lake.tables.events import EventReader, event_reader

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TEXT: Final = "text"
"""The column over which the expressions of texts are written."""

_SEVERAL: Final = frozenset({"decimal", "float", "double", "bit", "year", "binary"})
_MOMENTS: Final = frozenset({"datetime", "timestamp"})
_LABEL: Final = ColumnType("varchar")


class KeyPart(NamedTuple):
    """A column of a table's current key. `value_format` is None where each value has one text, that of events."""

    column: Column
    value_format: ValueFormat | None = None

    @classmethod
    def of(cls, column: Column, versions: Iterable[TableVersion], value_format: ValueFormat) -> Self:
        """Return the part for events of some versions."""
        own = (version.column(column.id) for version in versions)
        types = {column.type, *(each.type for each in own if each is not None)}
        return cls(column, value_format if _have_several(types, value_format) else None)

    @property
    def read_as(self) -> Column:
        """The column as `value_parsing.value` reads the texts: ENUM and SET texts are labels."""
        is_label = self.value_format is not None and self.column.type.name in LABELS
        return replace(self.column, type=_LABEL) if is_label else self.column

    def within(self, version: TableVersion) -> tuple[str, str | None] | None:
        """Return the column's name in a version, and the expression of its text over `TEXT` of an event of the version,
        None where that is `TEXT` itself; None for a version that does not have the column."""
        own = version.column(self.column.id)
        if own is None:
            return None
        return own.name, None if self.value_format is None else _text(own.type, self.column.type, self.value_format)


def _have_several(types: Collection[ColumnType], value_format: ValueFormat) -> bool:
    if any(each.name in _SEVERAL or each.zerofill for each in types):
        return True
    if value_format.zero_dates != "string" and any(
        # A fraction is written with the version's number of digits, or with any number.
        each.name == "timestamp" or (each.name == "datetime" and each.fraction)
        for each in types
    ):
        return True
    if value_format.labels:
        return False
    labels = {each.elements for each in types if each.name in LABELS and each.elements}
    changed = len(labels) > 1 or any(each.name in TEXTS for each in types)
    return bool(labels) and (value_format.labels_uncertain or changed)


def _text(own: ColumnType, now: ColumnType, value_format: ValueFormat) -> str | None:
    if type_change(own, now) == "convert":
        return None  # Such a change recreates the table: earlier events are not read.
    if own.name in LABELS:
        # When a version does not have its labels, the current ones are used.
        own = own if own.elements else replace(own, elements=now.elements)
        return f"coalesce({value_parsing.value(TEXT, own, value_format)}, {TEXT})"
    target = value_format.type_of(now)
    if target == "string" and own.name != "decimal":
        return None
    if own.name == now.name == "binary" and value_format.binary == "characters":
        return f"rtrim({TEXT}, {text_literal(chr(0))})"
    value = cast(value_parsing.value(TEXT, own, value_format), target)
    if own.name in _MOMENTS:
        shown = value_text(value, own, target, value_format) + " || '+00:00'" * (own.name == "timestamp")
        # A zero date has no value, but can still have a fraction.
        return f"coalesce({shown}, regexp_replace({TEXT}, '\\.0+$', ''))"
    if own.name in FLOATS:
        value = f"{value} + 0"  # One of the two zeros has a minus sign.
    return f"coalesce({value_parsing.text(value, now, value_format)}, {TEXT})"


KEYED_EVENTS: Final = pa.schema([
    ("table_no", pa.int32()),
    ("key", pa.list_(pa.string())),
    ("stage", pa.int64()),
    ("upsert", pa.bool_()),
    ("is_insert", pa.bool_()),
    ("version_no", pa.int32()),
    ("commit_ts", pa.int64()),
    ("image", pa.string()),
    ("segment", pa.string()),
    ("line", pa.int64()),
])  # fmt: skip
"""The columns of keyed events: one row for each key that an event concerns.

`table_no` and `version_no` number the table and its version. `key` is the list of texts of the key's parts, one text
for each value (see `KeyPart`). (`stage`, `upsert`, `segment`, `line`) is the event's position in the order of the
feed (see `changelog.positions`). `upsert` says whether the event leaves a row, whose image (see
`decoders.event_schema`) is `image`; `is_insert` says that no values of an earlier row are kept."""

_RAW_IMAGE: Final = msgspec.json.Decoder(dict[str | None, msgspec.Raw])
LARGE_IMAGE: Final = 16 * 1024 * 1024
"""The size above which Python reads images: DuckDB takes several times an image's size in its memory."""
_INSERTS: Final = pa.array(["I", "R"])
BEFORE_ALL: Final = -1
"""The stage of a delete before all events."""


@dataclass(frozen=True, slots=True)
class KeyedSpan:
    """The events of a name at stages in (above, upto] (see `changelog.positions`): the numbers of their table and
    version, and the columns of the key with the expressions of their texts (`KeyPart.within`). With a `version` the
    texts in images of INSERTs are read with the key, as columns of `TEXT_OF`, where these have all of its columns."""

    table_no: int
    version_no: int
    database: str
    table: str
    above: int
    upto: int
    key: tuple[tuple[str, str | None], ...]
    version: TableVersion | None = None

    @classmethod
    def of(
        cls, life: Incarnation, key_of: Callable[[TableVersion], Iterable[KeyPart]], number: int, above: int, upto: int
    ) -> Iterator[Self]:
        """Yield the spans of a life's versions that have stages in (above, upto], each with a key. Events with a DDL's
        commit-ts belong to the version before it, synthetic ones to the version that it made."""
        for version, upto_ts in life.spans():
            begin = max(row_stage(version.since), above)
            end = upto if upto_ts is None else min(row_stage(upto_ts), upto)
            if begin < end:
                place, name = life.versions.index(version), version.name
                key = tuple(own for part in key_of(version) if (own := part.within(version)) is not None)
                yield cls(number, place, name.database, name.table, begin, end, key)


def commit_ts_range(spans: Sequence[KeyedSpan]) -> tuple[int, int]:
    """Return the least and the greatest commit-ts that events of spans can have; without spans an empty range."""
    least, greatest = min((span.above + 1 for span in spans), default=0), max((span.upto for span in spans), default=-1)
    return least // 2, greatest // 2


class KeyedSpans:
    """Makes keyed events of the events of some spans, in tasks. Spans of one name do not overlap. With `earlier_of` the
    events are those of before some segments were decoded again: only theirs count, and each as `key_deletes`."""

    def __init__(self, spans: Iterable[KeyedSpan], earlier_of: frozenset[str] | None = None) -> None:
        self._earlier_of = earlier_of
        self._by_name: dict[tuple[str, str], list[KeyedSpan]] = {}
        for span in sorted(spans, key=lambda span: span.above):
            self._by_name.setdefault((span.database, span.table), []).append(span)

    def keyed(self, events: pa.Table) -> pa.Table:
        """Return the events (columns of `CHANGE_COLUMNS`) that are in a span, with the columns of `KEYED_EVENTS`. An
        UPDATE that changes the key gives two rows: a delete of the old key, and an upsert of the new one."""
        if self._earlier_of is not None:
            own = pc.is_in(events.column("segment"), pa.array(sorted(self._earlier_of), pa.string()))
            events = events.filter(own)
        stages = events.column("commit_ts").to_numpy() * 2 + events.column(SYNTHETIC).to_numpy()
        # The spans for the names in the events, and for each event the index of its span, or -1.
        spans, span_of = list[KeyedSpan](), np.full(events.num_rows, -1)
        names, place = ["schema_name", "table_name"], pa.array(np.arange(events.num_rows))
        named = events.select(names).append_column("place", place)
        groups = named.group_by(names, use_threads=False).aggregate([("place", "list")])
        for database, table, places in zip(*groups.columns, strict=True):
            if own := self._by_name.get((database.as_py(), table.as_py())):
                rows, ends = places.values.to_numpy(), np.array([span.upto for span in own])
                number = np.searchsorted([span.above for span in own], stages[rows]) - 1
                inside = (number >= 0) & (stages[rows] <= ends[number])
                span_of[rows[inside]] = number[inside] + len(spans)
                spans += own
        within = span_of >= 0
        events, stages, span_of = where(events, within), stages[within], span_of[within]
        width = np.array([len(span.key) for span in spans], np.int64)[span_of]
        texts = _texts(events, [spans[number] for number in np.unique(span_of)])
        parts = _key_parts(events, spans, span_of, texts)
        columns = {
            "table_no": np.array([span.table_no for span in spans], np.int32)[span_of],
            "key": _lists(parts, "new", width),
            "stage": stages,
            "upsert": pc.not_equal(events.column("op"), "D"),
            "is_insert": pc.is_in(events.column("op"), _INSERTS),
            "version_no": np.array([span.version_no for span in spans], np.int32)[span_of],
            "commit_ts": events.column("commit_ts"),
            "image": events.column("after"),
            "segment": events.column("segment"),
            "line": events.column("line"),
        }
        now = pa.table(columns, KEYED_EVENTS)
        for name, each in texts.items():
            now = now.append_column(f"{TEXT_OF}{name}", each)
        olds = sum(name.startswith("old") for name in parts.column_names)
        differ = [f"new{n} IS DISTINCT FROM old{n}" for n in range(olds)]
        statement = f"SELECT {' OR '.join(differ)} AS moved FROM parts"
        if differ and (count := pc.sum(moved := query(statement, parts=parts).column("moved")).as_py()):
            same = sql.by_name(now.drop_columns(["key", "upsert", "image"]).filter(moved))
            key = _lists(parts.filter(moved), "old", width[moved.to_numpy()])
            now = pa.concat_tables([_keyed(count, {**same, "key": key}, {"upsert": False}), now])
        return now if self._earlier_of is None else key_deletes(now)


def _texts(events: pa.Table, spans: Sequence[KeyedSpan]) -> Mapping[str, Any]:
    """Return the texts in the images of events, all INSERTs of one version; empty for others."""
    version = spans[0].version if len(spans) == 1 else None
    if version is None or not pc.all(pc.is_in(events.column("op"), _INSERTS)).as_py():
        return {}
    names, known = ({column.name for column in columns} for columns in (version.carried, version.columns))
    has_key = names.issuperset(name for name, _ in spans[0].key)
    fits = len([*sql.slices(events.select(["after"]))]) == 1
    return (image_texts(events.column("after"), names, known) if has_key and fits else None) or {}


def _key_parts(
    events: pa.Table, spans: Sequence[KeyedSpan], span_of: np.ndarray[Any, Any], texts: Mapping[str, Any]
) -> pa.Table:
    """Return each event's key as columns `new<n>`, and the previous one as `old<n>` where an event can change it."""
    if texts:
        key = spans[span_of[0]].key
        return _of_values(pa.table({f"new{n}": texts[name] for n, (name, _) in enumerate(key)}), spans, span_of)
    numbers = range(max((len(span.key) for span in spans), default=0))
    if not numbers or not events.num_rows:
        return pa.table({})
    # Each event has its own paths: a batch may hold thousands of tables, and one query for each would cost too much.
    paths = {
        f"path{n}": pa.DictionaryArray.from_arrays(pa.array(span_of, pa.int32()), [_path(span, n) for span in spans])
        for n in numbers
    }
    updates = pc.equal(events.column("op"), "U")
    query, found = "keyed", [f"new{n}" for n in numbers]
    layers = [[f"json_extract_string(coalesce(after, before), path{n}) AS new{n}" for n in numbers]]
    if pc.any(pc.and_(updates, events.column("before").is_valid())).as_py():
        # Columns that the `before` image omits did not change.
        kept = "CASE WHEN json_exists(earlier, path{0}) THEN NULL ELSE new{0} END"
        layers += [
            ["CASE WHEN op = 'U' THEN before END AS earlier"],
            [f"json_extract_string(earlier, path{n}) AS said{n}" for n in numbers],
            [f"coalesce(said{n}, {kept.format(n)}) AS old{n}" for n in numbers],
        ]
        found += [f"old{n}" for n in numbers]
    for expressions in layers:
        query = f"(SELECT {', '.join(['*', *expressions])} FROM {query})"
    images = {name: events.column(name) for name in ("op", "before", "after")}
    statement = f"SELECT {', '.join(found)} FROM {query}"
    slices = sql.slices(pa.table({**images, **paths}))
    parts = pa.concat_tables(
        [
            _large_key_parts(each, len(numbers), found)
            if each.nbytes > LARGE_IMAGE * each.num_rows
            else sql.query(statement, keyed=each)
            for each in slices
        ]
    )
    return _of_values(parts, spans, span_of) if any(text for span in spans for _, text in span.key) else parts


def image_texts(images: pa.ChunkedArray, names: Set[str], known: Set[str]) -> dict[str, Any] | None:
    """Return the texts of members by name; None unless all images have each of the names once and no unknown ones.
    DuckDB reads no large images, and its structures cannot have a member without a name."""
    import duckdb  # noqa: PLC0415 - There is a connection, so it is imported.

    if images.null_count or not names or "" in names or images.nbytes > LARGE_IMAGE * len(images):
        return None
    structure = text_literal(json.dumps(dict.fromkeys(names, "VARCHAR"), ensure_ascii=False))

    def asked(expression: str, images: pa.ChunkedArray) -> pa.ChunkedArray:
        statement = f"SELECT {expression} AS found FROM images"
        return query(statement, images=pa.table({"image": images})).column("found")

    try:
        members = asked(f"json_transform_strict(image, {structure})", images)
    except duckdb.InvalidInputException:
        return None  # A name is missing, or comes twice.
    texts = {name: pc.struct_field(members, place) for place, name in enumerate(names)}
    # Texts without an escape and these names are all that an image of their length has room for.
    size: Any = len(json.dumps(dict.fromkeys(names), ensure_ascii=False, separators=(",", ":")).encode())
    for each in texts.values():
        size = pc.add(size, pc.fill_null(pc.subtract(pc.binary_length(each), len("null") - 2), 0))
    rest = images.filter(pc.not_equal(pc.binary_length(images), size))
    others = asked("DISTINCT json_keys(image)", rest).to_pylist() if len(rest) else []
    return texts if all(names <= set(each) <= known and len(each) == len(set(each)) for each in others) else None


def _large_key_parts(rows: pa.Table, count: int, names: Sequence[str]) -> pa.Table:
    """Return the columns `names` of `_key_parts` for rows with large images, which take several times their size in
    DuckDB's memory. `rows` has op, before, after and `path<n>`."""
    found: list[dict[str, str | None]] = []
    paths = zip(*(rows.column(f"path{n}").to_pylist() for n in range(count)), strict=True)
    images = (rows.column(name).to_pylist() for name in ("op", "before", "after"))
    for of_row, op, before, after in zip(paths, *images, strict=True):
        columns = [path and path[1:].replace("~1", "/").replace("~0", "~") for path in of_row]
        new = _members(before if after is None else after, columns)
        old = new | _members(before if op == "U" else None, columns)
        found.append(
            {f"{kind}{n}": texts.get(c) for kind, texts in (("new", new), ("old", old)) for n, c in enumerate(columns)}
        )
    return pa.Table.from_pylist(found, pa.schema([(name, pa.string()) for name in names]))


def _members(image: str | None, names: Sequence[str | None]) -> dict[str | None, str | None]:
    """Return the texts of members that an image has. The others are not decoded."""
    members = {} if image is None else _RAW_IMAGE.decode(image)
    return {name: msgspec.json.decode(members[name]) for name in names if name in members}


def _of_values(parts: pa.Table, spans: Sequence[KeyedSpan], span_of: np.ndarray[Any, Any]) -> pa.Table:
    """Replace the parts by the single text of each value."""
    columns = sql.by_name(parts)
    for name in parts.column_names:
        number = int(name.removeprefix("new").removeprefix("old"))
        texts = [span.key[number][1] if number < len(span.key) else None for span in spans]
        # Many spans share an expression, which is computed once.
        for expression in sorted({text for text in texts if text is not None}):
            own = pa.array(np.array([text == expression for text in texts])[span_of])
            said = pa.table({TEXT: columns[name].filter(own)})
            found = sql.query(f"SELECT {expression} AS found FROM said", said=said).column("found")
            columns[name] = pc.replace_with_mask(columns[name], own, found.combine_chunks())
    return pa.table(columns)


def _path(span: KeyedSpan, part: int) -> str | None:
    """Return the JSON pointer to a part of the key; None when the key has fewer parts."""
    if part >= len(span.key):
        return None
    return _pointer(span.key[part][0])


def _pointer(name: str) -> str:
    return "/" + name.replace("~", "~0").replace("/", "~1")


def _lists(parts: pa.Table, kind: str, width: np.ndarray[Any, Any]) -> pa.ListArray:
    """Return for each row the list of its parts, `width` long."""
    columns = [parts.column(name).combine_chunks() for name in parts.column_names if name.startswith(kind)]
    if not columns:
        columns = [pa.nulls(0, pa.string())]
    row, part = np.nonzero(np.arange(len(columns)) < width[:, None])
    values = pa.concat_arrays(columns).take(pa.array(part * len(width) + row))
    return pa.ListArray.from_arrays(pa.array(np.concatenate([[0], np.cumsum(width)]), pa.int32()), values)


def keyed_texts(decoded: pa.RecordBatch, table_no: int, key_columns: Sequence[str]) -> pa.Table:
    """Return rows of a dump as keyed events of a table's first version, with `TEXT_OF` instead of image and segment."""
    given, count = dict(zip(decoded.schema.names, decoded.columns, strict=True)), decoded.num_rows
    nothing = pa.nulls(count, pa.string())
    key = pa.table({f"new{n}": given.get(f"{TEXT_OF}{name}", nothing) for n, name in enumerate(key_columns)})
    columns = {
        "key": _lists(key, "new", np.full(count, len(key_columns))),
        "stage": pa.array(given["commit_ts"].to_numpy() * 2 + 1),
        **{name: given[name] for name in ("line", "commit_ts")},
    }
    same = {"table_no": table_no, "upsert": True, "is_insert": True, "version_no": 0, "segment": ""}
    texts = {name: each for name, each in given.items() if name.startswith(TEXT_OF)}
    return pa.table({**sql.by_name(_keyed(count, columns, same)), **texts})


def _keyed(count: int, columns: Mapping[str, Any], same: Mapping[str, Any]) -> pa.Table:
    """Return keyed events with these columns; others have the same value in all rows, by default NULL."""
    return pa.table(
        [
            columns[each.name] if each.name in columns else pa.repeat(pa.scalar(same.get(each.name), each.type), count)
            for each in KEYED_EVENTS
        ],
        KEYED_EVENTS,
    )


def key_deletes(keys: pa.Table) -> pa.Table:
    """Return for each row (table_no, key) a delete of the key before all events: a key without an event is deleted."""
    columns = {name: keys.column(name) for name in ("table_no", "key")}
    return _keyed(keys.num_rows, columns, {"stage": BEFORE_ALL, "upsert": False, "is_insert": False})


# Find the latest change of each key among the keyed events of a task (`KEYED_EVENTS`).


def key_texts(keys: Any, width: int) -> dict[str, Any]:
    """Split keys (an array of lists of strings) into columns `t<n>`."""
    return {f"t{n}": pc.list_element(keys, n) for n in range(width)}


def key_hashes(keyed: pa.Table) -> np.ndarray[Any, Any]:
    return query("SELECT hash(key) AS h FROM keyed", keyed=keyed.select(["key"])).column("h").to_numpy()


def _key_numbers(events: pa.Table, key: Sequence[Column]) -> np.ndarray[Any, Any]:
    """Return a number for each key, the same for the same key: integers themselves, which are mostly in order and which
    Arrow reads in a tenth of the time of a hash; hashes of other texts and keys."""
    if len(key) != 1 or key[0].type.name not in INTEGERS:
        return key_hashes(events)
    texts, is_unsigned = pc.list_element(events.column("key"), 0), key[0].type.unsigned
    numbers = value_parsing.integers(texts, pa.uint64() if is_unsigned else pa.int64())
    if numbers is not None:
        return numbers.to_numpy().view(np.uint64)
    own = when(matches(TEXT, "-?[0-9]+"), f"TRY_CAST({TEXT} AS {'UBIGINT' if is_unsigned else 'BIGINT'})")
    found = query(f"SELECT {own} AS own FROM said", said=pa.table({TEXT: texts})).column("own")
    numbers = pc.fill_null(found, 0).to_numpy().view(np.uint64)
    return np.where(found.is_valid().to_numpy(), numbers, key_hashes(events))


def packed(numbers: np.ndarray[Any, Any]) -> bytes:
    """Encode numbers that are in order, for `unpacked`: those that follow one another take hardly any room."""
    return bytes(cramjam.zstd.compress(np.diff(numbers, prepend=np.uint64(0)).tobytes(), 1))


def unpacked(content: bytes) -> np.ndarray[Any, Any]:
    return np.cumsum(np.frombuffer(bytes(cramjam.zstd.decompress(content)), np.uint64))


def latest_changes(events: pa.Table, key: Sequence[Column], table: str) -> tuple[Mask, np.ndarray[Any, Any]]:
    """Return which events are the latest, one for each key, and the different numbers of all keys, in order. Raises
    `TableHeldError` when an event lacks a part of its key."""
    if any(part.null_count for part in key_texts(events.column("key"), len(key)).values()):
        raise TableHeldError(
            "events lack a column of the table's key",
            table=table,
            advice="have the source write its binlog with binlog_row_image=FULL, then load the table again; where "
            "tables.settings has its primary_key, name columns there that every event has, those of DELETE included",
        )
    numbers = _key_numbers(events, key)
    if (numbers[1:] > numbers[:-1]).all():
        return np.ones(len(numbers), np.bool_), numbers
    ordered = np.sort(numbers)  # numpy's own `unique` takes many times as long.
    is_first = np.diff(ordered, prepend=ordered[:1] ^ 1) != 0
    # No other event has the key of one with a number of its own.
    places = np.flatnonzero(pc.is_in(pa.array(numbers), value_set=pa.array(ordered[~is_first])))
    is_latest = np.bincount(places, minlength=events.num_rows) == 0
    if not len(places):
        return is_latest, ordered
    rows = events.select(["key", "stage", "upsert", "segment", "line"]).take(pa.array(places))
    found = query(
        # Synthetic events are ordered by segment first.
        "SELECT place FROM keyed QUALIFY row_number() OVER (PARTITION BY key ORDER BY stage DESC, "
        "CASE WHEN stage % 2 <> 0 THEN segment END DESC, upsert DESC, segment DESC, line DESC) = 1",
        keyed=rows.append_column("place", pa.array(places)),
    )
    is_latest[found.column("place").to_numpy()] = True
    return is_latest, ordered[is_first]


# Read the keys that events above a commit-ts change, without a JVM.


def keys_changed_above(
    lake: Lake, feed: str, names: Sequence[tuple[str, str]], commit_ts: int, key: Sequence[tuple[Column, ColumnType]],
    value_format: ValueFormat,
) -> Iterator[str]:  # fmt: skip
    """Yield the MD5 of each key's text in events with a greater commit-ts, for a table by all its names (database,
    table). A key can occur several times. `key` are its columns in the log, with their types in the source."""
    reader = event_reader(lake, feed)
    if reader is None:
        return
    types = [column.type for column, _ in key]
    values = ", ".join(f"{value_parsing.value(f't{n}', kind, value_format)} AS v{n}" for n, kind in enumerate(types))
    parts = [
        in_row(value_text(f"v{n}", source_type, value_format.type_of(types[n]), value_format), form)
        for n, (_, source_type) in enumerate(key)
        if (form := FORMS.get(source_type.name)) is not None
    ]
    texts = ", ".join(f"key[{n}] AS t{n - 1}" for n in range(1, 1 + len(key)))
    statement = f"SELECT md5({row_text(parts)}) AS digest FROM (SELECT {values} FROM (SELECT {texts} FROM keyed))"
    between, columns = (row_stage(commit_ts + 1) - 1, row_stage(END_TS)), tuple((each.name, None) for each, _ in key)
    for events in read_keyed_events(reader, [KeyedSpan(0, 0, *name, *between, columns) for name in {*names}]):
        yield from query(statement, keyed=events.select(["key"])).column("digest").to_pylist()


class Block(NamedTuple):
    """Keyed events for a task, as an Arrow stream: the stream itself, or its file, offset and size in bytes."""

    events: bytes | None
    file: str = ""
    start: int = 0
    size: int = 0


_Plan = TypeVar("_Plan")
_Result = TypeVar("_Result")
Work = Callable[[Sequence[_Plan], pa.Table], Iterable[_Result]]
"""Takes the plans of a task and its events, with the columns of `KEYED_EVENTS`."""

_SHARE_BYTES: Final = 64 * 1024 * 1024
"""The size of the event files that one reading task gets."""
_BLOCK_BYTES: Final = 128 * 1024 * 1024
"""The size of keyed events before they are split among tasks: with many tasks, each gets a small part of it."""
LZ4: Final = pa.ipc.IpcWriteOptions(compression="lz4", use_threads=False)
_PLAIN: Final = pa.ipc.IpcWriteOptions(use_threads=False)


def read_keyed_events(
    reader: EventReader, spans: Sequence[KeyedSpan], decoded_again: Collection[str] = ()
) -> Iterator[pa.Table]:
    """The events of some spans, with the columns of `KEYED_EVENTS`, and as `key_deletes` the keys that events of the
    segments `decoded_again` had earlier. Raises `TransientError`, and errors of lack of memory unchanged: the values of
    one table can be the cause (see `lake.faults.run_isolated`)."""
    import duckdb  # noqa: PLC0415 - Where there are spans there is a query.

    if not spans:
        return
    names, between = {(span.database, span.table) for span in spans}, commit_ts_range(spans)
    earlier_of = frozenset(decoded_again)
    try:
        for each, only in ((reader, None), *((earlier, earlier_of) for earlier in reader.earlier)):
            keyed_spans = KeyedSpans(spans, only)
            for events in each.read(names, *between):
                yield keyed_spans.keyed(events)
    except (OSError, duckdb.IOException) as error:
        raise TransientError(f"files of events cannot be read: {error}", advice="run again") from error


def shares_of(spark: SparkSession, reader: EventReader) -> list[EventReader]:
    """Split a reader for tasks that each read some files."""
    files = [*reader.files, *(file for earlier in reader.earlier for file in earlier.files)]
    most = max(spark.sparkContext.defaultParallelism, math.ceil(sum(file.size for file in files) / _SHARE_BYTES))
    return reader.shares(max(1, min(most, len(files))))


def divided(keyed: pa.Table, places: Mapping[int, tuple[int, int]], directory: str | None) -> list[tuple[int, Block]]:
    """Split keyed events into blocks for tasks, by their number; events of one key go to one task. `places` maps a
    table's number to its first task and its number of tasks. Blocks go through files in `directory` when all tasks
    share one disk; otherwise through Spark, which takes five times as long. Raises `TransientError`."""
    numbers, place_of = np.unique(keyed.column("table_no").to_numpy(), return_inverse=True)
    tasks, buckets = np.array([places[number] for number in numbers], np.int64).reshape(-1, 2)[place_of].T
    if (buckets > 1).any():
        tasks = tasks + (key_hashes(keyed) % buckets.astype(np.uint64)).astype(np.int64)
    found, counts = np.unique(tasks, return_counts=True)
    if len(found) > 1:
        keyed = keyed.take(pa.array(np.argsort(tasks, kind="stable")))
    parts = [keyed.slice(stop - count, count) for stop, count in zip(np.cumsum(counts), counts, strict=True)]
    blocks: list[tuple[int, Block]] = []
    # One file: tasks times calls are too many for a disk.
    file = None if directory is None else str(Path(directory, uuid.uuid4().hex))
    with _local_disk(), contextlib.nullcontext() if file is None else pa.OSFile(file, "wb") as shared:
        for task, part in zip(found.tolist(), parts, strict=True):
            sink = shared or pa.BufferOutputStream()
            start = sink.tell()
            with pa.ipc.new_stream(sink, KEYED_EVENTS, options=_PLAIN if shared else LZ4) as stream:
                stream.write_table(part)
            place = Block(None, file, start, sink.tell() - start) if file else Block(sink.getvalue().to_pybytes())
            blocks.append((task, place))
    return blocks


def work_by_key(
    spark: SparkSession | None,
    reader: EventReader,
    spans: Sequence[KeyedSpan],
    places: Mapping[int, tuple[int, int]],
    plans: Sequence[Sequence[_Plan]],
    work: Work[_Plan, _Result],
    decoded_again: Collection[str] = (),
) -> list[_Result]:
    """Do work on the events of some spans, in tasks that get all events of their keys (`places` as in `divided`), or in
    this process without Spark; return what it yields. `plans` are those of each task."""
    if spark is None:
        events = [KEYED_EVENTS.empty_table(), *read_keyed_events(reader, spans, decoded_again)]
        return [*work([plan for own in plans for plan in own], pa.concat_tables(events))]
    pickled = [pickle.dumps(own) for own in plans]  # A task reads its own.
    shares = shares_of(spark, reader)
    # Through the disk that all tasks share; none when they run on several machines.
    is_local, found = (spark.sparkContext.master or "").startswith("local"), os.environ.get("SPARK_LOCAL_DIRS")
    disks = (found or spark.conf.get("spark.local.dir", None) or "").split(",")
    temporary = functools.partial(tempfile.TemporaryDirectory, prefix="cdc-lakehouse-events-", dir=disks[0] or None)
    with temporary() if is_local else contextlib.nullcontext() as directory:

        def read(number: int, _: object) -> Iterator[tuple[int, Block]]:
            with errors_to_driver():
                for keyed in together(read_keyed_events(shares[number], spans, decoded_again)):
                    yield from divided(keyed, places, directory)

        def of_task(number: int, blocks: Iterable[tuple[int, Block]]) -> Iterable[_Result]:
            return work_in_task(work, pickle.loads(pickled[number]), [block for _, block in blocks])

        blocks = spark.sparkContext.range(0, len(shares), 1, len(shares)).mapPartitionsWithIndex(read)
        return results_of(blocks.partitionBy(len(plans), int), of_task)


def work_in_task(work: Work[_Plan, _Result], plans: Sequence[_Plan], blocks: Sequence[Block]) -> Iterable[_Result]:
    """Do the work of one task with its blocks. Raises `TransientError` where these cannot be read."""
    sources: list[Any] = [block.events for block in blocks if block.events is not None]
    with _local_disk():
        for _, file, start, size in (block for block in blocks if block.events is None):
            with pa.OSFile(file) as source:
                source.seek(start)
                sources.append(source.read_buffer(size))
    events = (pa.ipc.open_stream(each).read_all() for each in sources)
    return work(plans, pa.concat_tables([KEYED_EVENTS.empty_table(), *events]))


def together(tables: Iterable[pa.Table], most: int = _BLOCK_BYTES) -> Iterator[pa.Table]:
    """Concatenate tables with the same columns, up to a size in bytes, which is that of keyed events."""
    waiting, size = dict[pa.Schema, list[pa.Table]](), 0
    for each in tables:
        waiting.setdefault(each.schema, []).append(each)
        size += each.select(KEYED_EVENTS.names).nbytes
        if size >= most:
            yield from map(pa.concat_tables, waiting.values())
            waiting, size = {}, 0
    yield from map(pa.concat_tables, waiting.values())


@contextlib.contextmanager
def _local_disk() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        advice = "make room there, or set spark.local.dir in lake.spark.conf to a larger disk"
        raise TransientError(f"Spark's local directory: {error}", advice=advice) from error
