"""What a task makes of the keyed events of a table that has no rows yet."""

from __future__ import annotations

import datetime
import itertools
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final
from unittest.mock import patch

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.schema import Schema
from pyiceberg.types import BinaryType, DateType, IntegerType, LongType, NestedField, StringType
from pyroaring import BitMap64

from cdc_lakehouse import duckdb_sql
from cdc_lakehouse.changelog.mysql_types import ColumnType
from cdc_lakehouse.changelog.schema import Column, TableName, TableVersion
from cdc_lakehouse.decoders.event_schema import image_text
from cdc_lakehouse.lake.current import update_tasks
from cdc_lakehouse.lake.current.keyed_events import BEFORE_ALL, KEYED_EVENTS, EventShuffle
from cdc_lakehouse.lake.current.typed_rows import COMMIT_TS, Target
from cdc_lakehouse.lake.current.update_tasks import (
    FileRewrite,
    RecomputedKeys,
    StoredTable,
    TableUpdate,
    pickled,
    run_tasks,
    update_tables,
)
from cdc_lakehouse.lake.current.value_parsing import ValueFormat
from cdc_lakehouse.lake.files import StoredFile, write_file
from tests.kit.duckdb_sql import connection

BLOB: Final = ColumnType.of("longblob")
ID, V = Column(1, "id", ColumnType.of("int")), Column(2, "v", ColumnType.of("varchar", length=20))
VERSION: Final = TableVersion(1, TableName("d", "t"), "d.t#1", "create", "create", "", "", (ID, V))
SCHEMA: Final = Schema(
    NestedField(1, "id", IntegerType()), NestedField(2, "v", StringType()), NestedField(3, COMMIT_TS, LongType())
)


def keyed(op: str, commit_ts: int, image: dict[str, str | None] | None, key: str = "1") -> dict[str, Any]:
    return {
        "table_no": 0, "key": [key], "stage": 2 * commit_ts, "upsert": op != "D", "is_insert": op == "I",
        "version_no": 0, "commit_ts": commit_ts, "image": image_text(image), "segment": "s", "line": commit_ts,
    }  # fmt: skip


def blocks_of(event: dict[str, Any], directory: Path | None) -> pa.Table:
    shuffle = EventShuffle((), frozenset(), {0: (0, 1)}, None if directory is None else str(directory))
    return pa.Table.from_batches([shuffle.divided(connection(), pa.Table.from_pylist([event], KEYED_EVENTS))])


def update(
    directory: Path,
    *events: dict[str, Any],
    versions: Sequence[TableVersion] = (VERSION,),
    schema: Schema = SCHEMA,
    recomputed: RecomputedKeys | None = None,
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The rows that are written, and those that are rejected."""
    target = Target(versions[-1].columns, dict(enumerate(versions)))
    plan = TableUpdate(
        0, "d.t", target, (ID,), ValueFormat(), schema, f"file://{directory}", {}, None, (), (),
        skips_rejected=True, recomputed=recomputed,
    )  # fmt: skip
    directory.mkdir(exist_ok=True)
    planned = pa.Table.from_pylist([{"plan": pickled(plan)}])
    blocks = (blocks_of(event, place) for event, place in zip(events, itertools.cycle([None, directory]), strict=False))
    rows = pa.concat_tables([planned, *blocks], promote_options="default")
    batches = run_tasks({}, rows.combine_chunks().to_batches())
    results = [result for batch in batches for result in batch.to_pylist()]
    assert "failed" not in {result["kind"] for result in results}, results
    written = [row for path in directory.rglob("*.parquet") for row in pq.read_table(path).to_pylist()]
    rejected = [json.loads(result["text"]) for result in results if result["kind"] == "rejected"]
    return sorted(written, key=lambda row: row["id"]), rejected


@pytest.mark.parametrize(
    ("events", "expected"),
    [
        (
            [keyed("I", 1, {"id": "1", "v": "😀"}), keyed("I", 2, {"v": None, "id": "2"}, "2")],
            [(1, "😀", 1), (2, None, 2)],
        ),
        ([keyed("I", 1, {"id": "1", "v": "x"}), keyed("U", 2, {"id": "1", "v": "y"})], [(1, "y", 2)]),
        ([keyed("I", 1, {"id": "1", "v": "x"}), keyed("U", 2, {"id": "1"})], [(1, "x", 2)]),
        ([keyed("I", 1, {"id": "1", "v": "x"}), keyed("D", 2, None)], []),
    ],
    ids=["inserts", "an update", "an update that leaves a column out", "a delete"],
)
def test_rows_are_those_of_the_images(
    tmp_path: Path, events: list[dict[str, Any]], expected: list[tuple[int, str | None, int]]
) -> None:
    written, rejected = update(tmp_path, *events)
    assert [tuple(row.values()) for row in written] == expected and not rejected


@pytest.mark.parametrize(
    ("image", "why"),
    [
        ({"id": "1", "v": "x", "w": "ü"}, "column w is not known"),
        ({"id": "x", "v": "y"}, "the value of column id"),
        ({"id": "1"}, "column v is missing"),
    ],
)
def test_row_that_does_not_fit_is_reported_with_its_column(
    tmp_path: Path, image: dict[str, str | None], why: str
) -> None:
    written, rejected = update(tmp_path, keyed("U", 1, image), keyed("I", 2, {"id": "2", "v": "x"}, "2"))
    assert [row["id"] for row in written] == [2]
    assert rejected == [{"segment": "s", "line": 1, "after": image_text(image), "count": 1, "why": why}]


@pytest.mark.parametrize("image", [{"id": "1", "v": "z", "w": "ü"}, {"id": "x", "v": "z"}])
def test_key_of_skipped_events_keeps_its_last_good_row(tmp_path: Path, image: dict[str, str | None]) -> None:
    bad = [keyed("U", at, image) for at in (4, 3)]
    first: dict[str, str | None] = {"id": "1", "v": "x"}
    events = [*bad, keyed("U", 2, {**first, "v": "y"}), keyed("I", 1, first)]
    others = [keyed("I", 5, {**first, "id": "2"}, "2"), keyed("U", 6, image, "3")]
    written, rejected = update(tmp_path / "batch", *events, *others)
    assert [tuple(row.values()) for row in written] == [(1, "y", 2), (2, "x", 5)]
    assert len(rejected) == 3
    # In a later batch the row that is there stays; a delete that follows is a change.
    path, rows = str(tmp_path / "old.parquet"), pa.table({"id": [1], "v": ["y"], COMMIT_TS: [2]})
    text = json.loads(write_file(PyArrowFileIO(), path, SCHEMA, rows, {}))
    file = StoredFile(path, text["file-size-in-bytes"], 1)
    plan = TableUpdate(
        0, "d.t", Target(VERSION.columns, {0: VERSION}), (ID,), ValueFormat(), SCHEMA, f"file://{tmp_path}/new", {},
        StoredTable((file,), SCHEMA, {1: 1, 2: 2}, VERSION), (), (), skips_rejected=True,
    )  # fmt: skip
    for later, deleted in (bad, 0), ([*bad, keyed("D", 7, None)], 1):
        results = _carried_out([plan], later)
        counts = [json.loads(each["text"]) for each in results if each["kind"] == "counts"]
        assert sum(each["kind"] == "deleted" for each in results) == deleted
        assert [each["older"] for each in counts] == [1 - deleted]


def test_skipped_event_among_partial_ones_costs_no_other(tmp_path: Path) -> None:
    """The unusable event is the one that does not fit, not the last one of its key."""
    events = [
        keyed("I", 1, {"id": "1", "v": "x"}), keyed("U", 2, {"id": "1", "w": "ü"}), keyed("U", 3, {"id": "1"}),
    ]  # fmt: skip
    written, rejected = update(tmp_path, *events)
    assert [tuple(row.values()) for row in written] == [(1, "x", 3)]
    assert [row["line"] for row in rejected] == [2]


def test_skipped_events_of_one_key_are_looked_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[int] = []
    real = update_tasks.latest_changes
    monkeypatch.setattr(update_tasks, "latest_changes", lambda *given: looks.append(1) or real(*given))
    bad = [keyed("U", at, {"id": "1", "v": "x", "w": "ü"}) for at in range(2, 60)]
    written, rejected = update(tmp_path, keyed("I", 1, {"id": "1", "v": "x"}), *bad)
    assert [row["v"] for row in written] == ["x"] and sum(row["count"] for row in rejected) == 58
    assert len(looks) == 2


@pytest.mark.parametrize("known", [{"id": "1", "v": "x"}, {"id": "1"}])
def test_of_synthetic_events_the_segment_counts_first(tmp_path: Path, known: dict[str, str | None]) -> None:
    """A repair deletes what another segment of its commit-ts has, whether that has all columns; of row changes an
    upsert counts more than a delete."""

    def at(stage: int, op: str, segment: str, image: dict[str, str | None] | None) -> dict[str, Any]:
        return {**keyed(op, 1, image), "stage": stage, "segment": segment}

    whole: dict[str, str | None] = {"id": "1", "v": "y"}
    first = at(2, "I", "z", whole)
    moved, gone = at(3, "U", "//dump/1/f", known), at(3, "D", "//repair/1/2/t", None)
    assert update(tmp_path / "gone", gone, moved, first)[0] == []
    (row,), _ = update(tmp_path / "again", at(3, "I", "//repair/1/3/t", whole), gone, moved, first)
    assert row["v"] == "y"
    assert len(update(tmp_path / "changes", at(2, "D", "zz", None), first)[0]) == 1


def test_of_all_events_those_of_the_keys_that_are_concerned_count(tmp_path: Path) -> None:
    """A key with a new event, one of a segment that was decoded again, one that this segment had before, and no
    other."""

    def of(key: str, at: int, op: str = "I", **others: Any) -> dict[str, Any]:
        return {**keyed(op, at, None if op == "D" else {"id": key, "v": f"{key} at {at}"}, key), **others}

    earlier = {**dict.fromkeys(KEYED_EVENTS.names), "table_no": 0, "key": ["5"], "stage": BEFORE_ALL, "upsert": False}
    events = [
        of("1", 1), of("2", 1), of("2", 9, "U"), of("3", 1), of("3", 2, "U", segment="again"), of("4", 2),
        of("5", 1), earlier, of("6", 1), of("6", 9, "D"),
    ]  # fmt: skip
    written, rejected = update(tmp_path, *events, recomputed=RecomputedKeys(2 * 5, frozenset({"again"})))
    assert [row["v"] for row in written] == ["2 at 9", "3 at 2", "5 at 1"] and not rejected


def test_one_update_that_leaves_columns_out_after_many_versions_of_many_columns(tmp_path: Path) -> None:
    """Each of 400 versions gives one of 50 columns another type: a plan is as large as the types, and no larger."""
    columns = [ID, *(Column(n, f"c{n}", ColumnType.of("varchar", length=20)) for n in range(2, 51))]
    versions = [replace(VERSION, columns=tuple(columns))]
    for number in range(1, 400):
        place = 1 + number % 49
        columns[place] = replace(columns[place], type=ColumnType.of("varchar", length=20 + number))
        versions.append(replace(VERSION, commit_ts=number + 1, columns=tuple(columns)))
    strings = [NestedField(column.id, column.name, StringType()) for column in columns[1:]]
    schema = Schema(NestedField(1, "id", IntegerType()), *strings, NestedField(51, COMMIT_TS, LongType()))
    whole: dict[str, str | None] = {"id": "1", **{column.name: "x" for column in columns[1:]}}
    partial = {**keyed("U", 500, {"id": "1", "c7": "y"}), "version_no": 399}
    (row,), rejected = update(tmp_path, keyed("I", 1, whole), partial, versions=versions, schema=schema)
    assert row == {**whole, "id": 1, "c7": "y", COMMIT_TS: 500} and not rejected


def rewrite(directory: Path, rows: pa.Table, deleted: set[int]) -> list[dict[str, Any]]:
    """The results for a file of these rows, of which some go."""
    io, path = PyArrowFileIO(), str(directory / "old.parquet")
    text = json.loads(write_file(io, path, SCHEMA, rows, {}))
    file = StoredFile(path, text["file-size-in-bytes"], rows.num_rows)
    plan = TableUpdate(
        0, "d.t", Target(VERSION.columns, {0: VERSION}), (ID,), ValueFormat(), SCHEMA, f"file://{directory}/new", {},
        StoredTable((file,), SCHEMA, {1: 1, 2: 2}, VERSION), (), (), skips_rejected=False,
    )  # fmt: skip
    batches = update_tables({}, [FileRewrite(plan, file, BitMap64(deleted).serialize())], KEYED_EVENTS.empty_table())
    return [result for batch in batches for result in batch.to_pylist()]


@pytest.mark.parametrize("row_group", [1 << 20, 1 << 30])
def test_a_file_that_is_written_again_stays_one(tmp_path: Path, row_group: int) -> None:
    # More than are read at once.
    wide = [f"{number:02d}" * 500_000 for number in range(30)]
    rows = pa.table({"id": range(30), "v": wide, COMMIT_TS: [7] * 30})
    with patch.object(update_tasks, "ROW_GROUP_BYTES", row_group):
        (result,) = rewrite(tmp_path, rows, {0, 3, 29})
    assert result["kind"] == "file", result
    found = pq.read_table(json.loads(result["text"])["file-path"].removeprefix("file://"))
    assert found.to_pylist() == [row for row in rows.to_pylist() if row["id"] not in (0, 3, 29)]


def test_of_a_file_without_rows_nothing_is_written(tmp_path: Path) -> None:
    rows = pa.table({"id": [1, 2], "v": ["a", "b"], COMMIT_TS: [7, 7]})
    assert rewrite(tmp_path, rows, {0, 1}) == [] and not (tmp_path / "new").exists()


_WIDE: Final = replace(VERSION, columns=(ID, Column(2, "v", ColumnType.of("mediumtext")), Column(3, "b", BLOB)))
_WIDE_SCHEMA: Final = Schema(*SCHEMA.fields, NestedField(4, "b", BinaryType()))


def _with_room(monkeypatch: pytest.MonkeyPatch, memory: str) -> None:
    """Databases have so much memory: with all that they have by default, what goes beyond it takes seconds."""
    monkeypatch.setattr(duckdb_sql, "_MEMORY", memory)
    monkeypatch.setattr(duckdb_sql, "_idle", {})


def _plan(directory: Path, number: int = 0, stored: StoredTable | None = None) -> TableUpdate:
    return TableUpdate(
        number, "d.t", Target(_WIDE.columns, {0: _WIDE}), (ID,), ValueFormat(), _WIDE_SCHEMA, f"file://{directory}", {},
        stored, (), (), skips_rejected=False,
    )  # fmt: skip


def _wide_plan(directory: Path, columns: int) -> tuple[TableUpdate, dict[str, str | None]]:
    """A table with columns of three types, whose files have the row 1 of 2; and an image of one of its rows."""
    directory.mkdir()
    types = [
        (ID.type, IntegerType(), "7"),
        (V.type, StringType(), "ü"),
        (ColumnType.of("date"), DateType(), "2024-02-29"),
    ]
    given = [types[id % 3] for id in range(columns)]
    version = replace(VERSION, columns=(ID, *(Column(id, f"c{id}", each[0]) for id, each in enumerate(given[2:], 2))))
    fields = [NestedField(id, f"c{id}", each[1]) for id, each in enumerate(given[2:], 2)]
    table = Schema(NestedField(1, "id", IntegerType()), *fields, NestedField(columns, COMMIT_TS, LongType()))
    rows = pa.table({"id": [1, 2], **{field.name: pa.nulls(2) for field in fields}, COMMIT_TS: [1, 1]})
    path = str(directory / "old")
    size = json.loads(write_file(PyArrowFileIO(), path, table, rows, {}))["file-size-in-bytes"]
    stored = StoredTable(
        (StoredFile(path, size, 2),), table, {column.id: column.id for column in version.columns}, version
    )
    plan = TableUpdate(
        0, "d.t", Target(version.columns, {0: version}), (ID,), ValueFormat(), table, f"file://{directory}", {},
        stored, (), (), skips_rejected=False,
    )  # fmt: skip
    return plan, {"id": "1", **{field.name: each[2] for field, each in zip(fields, given[2:], strict=True)}}


def test_table_of_4096_columns_is_updated(tmp_path: Path) -> None:
    plan, image = _wide_plan(tmp_path / "t", 4097)
    partial = {"id": "2", "c4095": "5"}
    results = _carried_out([plan], [keyed("U", 2, image), keyed("U", 3, partial, "2")])
    assert [result["kind"] for result in results] == ["file", "counts", "deleted"], results
    first, second = _written(tmp_path)
    day = datetime.date(2024, 2, 29)
    assert [first[f"c{id}"] for id in range(2, 4097)] == [(7, "ü", day)[id % 3] for id in range(2, 4097)]
    assert {name: value for name, value in second.items() if value is not None} == {"id": 2, "c4095": 5, COMMIT_TS: 3}


@pytest.mark.parametrize("partial", [False, True])
def test_queries_do_not_grow_with_columns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, partial: bool) -> None:
    """DuckDB plans an expression in milliseconds."""
    planned: list[int] = []

    def counted(connection: Any, statement: str, **relations: Any) -> pa.Table:
        planned[-1] += len(statement)
        return query(connection, statement, **relations)

    query = duckdb_sql.query
    monkeypatch.setattr(duckdb_sql, "query", counted)
    for columns in (100, 1000):
        plan, image = _wide_plan(tmp_path / str(columns), columns)
        planned.append(0)
        changed = {"id": "1", "c3": "5"} if partial else image
        file, *_ = _carried_out(
            [plan, FileRewrite(plan, plan.stored.files[0], BitMap64().serialize())], [keyed("U", 2, changed)]
        )
        assert file["kind"] == "file", file
    few, many = planned
    assert 0 < many == few


def _carried_out(plans: Sequence[TableUpdate | FileRewrite], events: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    batches = update_tables({}, plans, pa.Table.from_pylist(events, KEYED_EVENTS))
    return [result for batch in batches for result in batch.to_pylist()]


def _written(directory: Path) -> list[dict[str, Any]]:
    (path,) = directory.rglob("*.parquet")
    return sorted(pq.read_table(path).to_pylist(), key=lambda row: row["id"])


@pytest.mark.slow
@pytest.mark.parametrize("lengths", [[26_000] * 2048, [10] * 3000 + [20_000_000] + [26_000] * 2048 + [10] * 3000])
def test_many_long_texts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lengths: list[int]) -> None:
    """As many rows as DuckDB works on at once: it cannot put texts of theirs on disk."""
    _with_room(monkeypatch, "190MB")
    images = [{"id": str(n), "v": chr(97 + n % 26) * length, "b": None} for n, length in enumerate(lengths)]
    events = [keyed("I", n + 1, image, str(n)) for n, image in enumerate(images)]
    results = _carried_out([_plan(tmp_path)], events)
    assert [result["kind"] for result in results] == ["file", "counts"], results
    rows = _written(tmp_path)
    assert [(str(row["id"]), row["v"]) for row in rows] == [(image["id"], image["v"]) for image in images]


def test_large_blobs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In canal-json a byte is a character."""
    _with_room(monkeypatch, "190MB")
    values = [bytes(range(256)) * (n << 14) + b"x" for n in range(4)]
    events = [
        keyed("I", n + 1, {"id": str(n), "v": "x", "b": value.decode("latin-1")}, str(n))
        for n, value in enumerate(values)
    ]
    _carried_out([_plan(tmp_path)], events)
    assert [row["b"] for row in _written(tmp_path)] == values


@pytest.mark.slow
@pytest.mark.parametrize("said", ["v", "b"])
def test_updates_that_leave_columns_out_of_rows_with_long_texts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: str
) -> None:
    _with_room(monkeypatch, "190MB")
    count, path = 2048, str(tmp_path / "old.parquet")
    rows = pa.table({"id": range(count), "v": ["x" * 40_000] * count, "b": [b"y"] * count, COMMIT_TS: [7] * count})
    text = json.loads(write_file(PyArrowFileIO(), path, _WIDE_SCHEMA, rows, {}))
    file = StoredFile(path, text["file-size-in-bytes"], count)
    plan = _plan(tmp_path / "new", stored=StoredTable((file,), _WIDE_SCHEMA, {1: 1, 2: 2, 3: 4}, _WIDE))
    now = "z" * (40_000 if said == "v" else 1)
    results = _carried_out([plan], [keyed("U", 8, {"id": str(n), said: now}, str(n)) for n in range(1, count)])
    assert [result["kind"] for result in results] == ["file", "counts", "deleted"], results
    assert [*BitMap64.deserialize(results[-1]["data"])] == [*range(1, count)]
    expected = {"v": now, "b": b"y"} if said == "v" else {"v": "x" * 40_000, "b": b"z"}
    assert _written(tmp_path / "new") == [{"id": n, COMMIT_TS: 8, **expected} for n in range(1, count)]


def test_a_table_that_has_no_room_leaves_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _with_room(monkeypatch, "30MB")
    plans = [_plan(tmp_path / name, number) for number, name in enumerate("abc")]
    events = [
        {**keyed("I", 1, {"id": str(n), "v": "x" * length, "b": None}, str(n)), "table_no": number}
        for number, (count, length) in enumerate([(1, 1), (600, 26_000), (1, 2)])
        for n in range(count)
    ]
    results = _carried_out(plans, events)
    assert {(r["table_no"], r["kind"]) for r in results if r["kind"] != "counts"} == {
        (0, "file"), (1, "failed"), (2, "file"),
    }  # fmt: skip
    (reason,) = (result["text"] for result in results if result["kind"] == "failed")
    assert reason.startswith("memory ran out while the table was updated. The next run tries again"), reason
    assert [row["v"] for row in _written(tmp_path / "c")] == ["xx"]


@pytest.mark.parametrize(
    ("lengths", "expected"),
    [
        ([], [0]),
        ([9, None, 9], [3]),
        ([10_000] * 5000, [1677, 1677, 1646]),
        ([100] * 3000 + [40_000_000, 0, 17_000_000] + [100] * 200_000, [3000, 1, 1, 1, 200_000]),
    ],
)
def test_rows_stay_together_where_a_query_has_room_for_them(lengths: list[int | None], expected: list[int]) -> None:
    texts = pa.array([None if length is None else "x" * length for length in lengths], pa.string())
    rows = pa.table({"n": pa.array(range(len(lengths))), "t": texts})
    found = [*duckdb_sql.slices(rows)]
    assert pa.concat_tables(found).equals(rows) and [part.num_rows for part in found] == expected
