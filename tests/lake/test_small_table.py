"""Small tables on a real catalog: what is written is read, and a lost race is seen."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyiceberg.expressions import AlwaysTrue
from pyiceberg.table import Table as IcebergTable

from cdc_lakehouse.errors import ConcurrentRunError
from cdc_lakehouse.lake.catalog import Lake
from cdc_lakehouse.lake.tables import small_table
from cdc_lakehouse.lake.tables.small_table import SmallTable, among, equal, missing, to_merge
from tests.kit.lakes import lake_config
from tests.kit.other_writer import rewrite

SCHEMA = pa.schema([pa.field("name", pa.string(), nullable=False), pa.field("size", pa.int64())])
ODD = [
    "", " ", "'", '"', "a'b", "\\", "\\'", "%", "_", "*", "None", "null", "true", "1", "it's; DROP TABLE x", "a\nb",
    "a\x00b", "é", "e\u0301", "订单/表 1/2026-06-01/CDC000001.json", "x" * 16, "x" * 16 + "y", "\U0010ffff" * 17, "A",
    "a",
]  # fmt: skip
Table = Callable[[], SmallTable]
"""Each call is another run: its own catalog and its own sight of the one table."""


@dataclass(frozen=True)
class Row:
    name: str
    size: int | None = None


@pytest.fixture
def table(tmp_path: Path) -> Table:
    return lambda: SmallTable(Lake(lake_config(tmp_path)), "f", "things", SCHEMA)


def rows(table: SmallTable) -> list[dict[str, Any]]:
    return sorted(table.read(), key=lambda row: row["name"])


def names(table: SmallTable) -> list[str]:
    return [row["name"] for row in rows(table)]


def test_a_table_that_is_not_there_is_empty_and_reading_does_not_make_it(table: Table) -> None:
    run = table()
    assert (run.read(), run.properties()) == ([], {})
    assert table().table is None


def test_rows_and_snapshot_properties_are_there_for_the_next_run(table: Table) -> None:
    table().write([Row("a", 1), Row("b")], properties={"cdc.batch": "7"})
    assert rows(table()) == [{"name": "a", "size": 1}, {"name": "b", "size": None}]
    assert table().properties()["cdc.batch"] == "7"


def test_one_object_sees_what_it_wrote_and_can_write_again(table: Table) -> None:
    run = table()
    for number in range(3):
        run.write([Row(str(number))], properties={"n": str(number)})
    assert names(run) == ["0", "1", "2"]
    assert run.properties()["n"] == "2"


@pytest.fixture(scope="module")
def odd_table(tmp_path_factory: pytest.TempPathFactory) -> SmallTable:
    table = SmallTable(Lake(lake_config(tmp_path_factory.mktemp("odd"))), "f", "odd", SCHEMA)
    # Files of their own too: their bounds decide whether they are read at all.
    for part in (ODD[:3], ODD[3:12], ODD[12:20], *([value] for value in ODD[20:])):
        table.write([Row(value) for value in part])
    return table


def test_a_filter_finds_the_one_row_of_an_odd_value(odd_table: SmallTable) -> None:
    for value in ODD:
        for condition in (equal("name", value), among("name", [value])):
            assert [row["name"] for row in odd_table.read(row_filter=condition)] == [value]


@settings(max_examples=20, deadline=None)
@given(wanted=st.sets(st.sampled_from(ODD)) | st.sets(st.text(max_size=20), max_size=5))
def test_among_takes_exactly_the_rows_that_it_names(odd_table: SmallTable, wanted: set[str]) -> None:
    found = [row["name"] for row in odd_table.read(row_filter=among("name", wanted))]
    assert sorted(found) == sorted(wanted & set(ODD))


@settings(max_examples=6, deadline=None)
@given(gone=st.sets(st.sampled_from(ODD), min_size=1))
def test_replacing_takes_the_named_rows_away_and_no_others(
    tmp_path_factory: pytest.TempPathFactory, gone: set[str]
) -> None:
    run = SmallTable(Lake(lake_config(tmp_path_factory.mktemp("replace"))), "f", "odd", SCHEMA)
    run.write([Row(value, 1) for value in ODD])
    run.write([Row(value, 2) for value in gone], replacing=among("name", gone))
    assert {row["name"]: row["size"] for row in run.read()} == {value: 1 + (value in gone) for value in ODD}
    assert len(run.read()) == len(ODD)


@pytest.mark.parametrize("size", [-(2**63), -1, 0, 2**53 + 1, 2**63 - 1])
def test_a_filter_by_a_number_is_exact(table: Table, size: int) -> None:
    run = table()
    near = [number for number in (size - 1, size, size + 1) if -(2**63) <= number < 2**63]
    run.write([Row(str(number), number) for number in near])
    assert [row["size"] for row in run.read(row_filter=equal("size", size))] == [size]


def test_everything_can_be_replaced_by_nothing(table: Table) -> None:
    run = table()
    run.write([Row("a")])
    run.write([], replacing=AlwaysTrue(), properties={"why": "gone"})
    assert (run.read(), run.properties()["why"]) == ([], "gone")


@dataclass(frozen=True)
class OlderRow:
    name: str
    size: int
    parts: list[dict[str, str]]


@dataclass(frozen=True)
class NewerRow:
    kind: str
    name: str
    parts: list[dict[str, str | None]]


def schema_of(required: list[str], *parts: str) -> pa.Schema:
    kinds = {"size": pa.int64()}
    structs = pa.list_(pa.struct([pa.field(name, pa.string()) for name in parts]))
    fields = [pa.field(name, kinds.get(name, pa.string()), nullable=False) for name in required]
    return pa.schema([*fields, pa.field("parts", structs)])


OLDER, NEWER = schema_of(["name", "size"], "a"), schema_of(["kind", "name"], "a", "b")


@pytest.mark.parametrize("replacing", [None, "one"])
def test_a_table_of_older_code_is_read_and_gets_its_new_columns_with_the_first_rows(
    tmp_path: Path, replacing: str | None
) -> None:
    def table(schema: pa.Schema) -> SmallTable:
        return SmallTable(Lake(lake_config(tmp_path)), "f", "things", schema)

    table(OLDER).write([OlderRow("one", 1, [{"a": "x"}]), OlderRow("two", 2, [])])
    before, two = table(OLDER).table, {"kind": None, "name": "two", "parts": []}
    assert rows(table(NEWER)) == [{"kind": None, "name": "one", "parts": [{"a": "x"}]}, two]
    assert table(NEWER).scan().schema.names == NEWER.names
    assert table(NEWER).scan(row_filter=equal("name", "two")).to_pylist() == [two]
    assert table(OLDER).table == before, "reading has changed the table"
    run = table(NEWER)
    new = [NewerRow("new", "three", [{"a": "y", "b": "z"}]), NewerRow("new", "four", [{"a": None, "b": None}])]
    run.write(new, replacing=equal("name", replacing) if replacing else None, properties={"n": "1"})
    expected = [
        {"kind": "new", "name": "four", "parts": [{"a": None, "b": None}]},
        *([] if replacing else [{"kind": None, "name": "one", "parts": [{"a": "x", "b": None}]}]),
        {"kind": "new", "name": "three", "parts": [{"a": "y", "b": "z"}]},
        two,
    ]
    for reader in (run, table(NEWER)):
        assert (rows(reader), reader.properties()["n"]) == (expected, "1")
    table(NEWER).write([NewerRow("new", "five", [])])
    assert len(table(NEWER).read()) == len(expected) + 1


def test_writing_rows_of_the_same_columns_leaves_the_schema(table: Table) -> None:
    for name in "ab":
        table().write([Row(name)], replacing=equal("name", name))
    stored = table().table
    assert stored is not None
    assert len(stored.schemas()) == 1
    assert stored.schema().find_field("name").required


@pytest.mark.parametrize("replacing", [None, AlwaysTrue()])
@pytest.mark.parametrize("there", [[], ["first"]])
def test_a_writer_that_has_not_seen_the_others_rows_is_refused_and_takes_nothing_away(
    table: Table, there: list[str], replacing: AlwaysTrue | None
) -> None:
    if there:
        table().write([Row(name) for name in there])
    slow, quick = table(), table()
    assert names(slow) == names(quick) == there
    quick.write([Row("quick")])
    with pytest.raises(ConcurrentRunError, match="things"):
        slow.write([Row("slow")], replacing=replacing)
    assert names(table()) == [*there, "quick"]


def test_of_writers_at_one_moment_one_wins(table: Table) -> None:
    table().write([Row("first")])
    runs = [table() for _ in range(4)]
    for run in runs:
        run.read()
    start = threading.Barrier(len(runs))

    def write(number: int) -> str | None:
        start.wait()
        try:
            runs[number].write([Row(f"run{number}")])
        except ConcurrentRunError:
            return None
        return f"run{number}"

    with ThreadPoolExecutor(len(runs)) as threads:
        winners = [name for name in threads.map(write, range(len(runs))) if name is not None]
    assert len(winners) == 1
    assert names(table()) == ["first", *winners]


# --- A table that is written often ---


def files(directory: Path) -> int:
    return sum(path.is_file() for path in (directory / "warehouse").rglob("*"))


def stored(table: Table) -> IcebergTable:
    found = table().table
    assert found is not None
    return found


def test_a_table_that_is_written_often_stays_small_and_keeps_its_rows(table: Table, tmp_path: Path) -> None:
    chance, expected, run = random.Random(1), dict[str, int](), table()
    for number in range(60):
        if chance.random() < 0.2:
            run = table()
        written = {str(chance.randrange(200)): number for _ in range(chance.randrange(4))}
        known = written.keys() & expected.keys()
        if number == 40:
            expected, known = {}, None
        replacing = AlwaysTrue() if known is None else among("name", known) if known else None
        run.write([Row(*each) for each in written.items()], replacing=replacing, properties={"n": str(number)})
        expected |= written
        found = run.scan()
        assert (len(found), dict(zip(*found.to_pydict().values(), strict=True))) == (len(expected), expected)
        assert run.properties()["n"] == str(number)
        iceberg = run.table
        assert iceberg is not None
        assert len(list(iceberg.scan().plan_files())) <= 10
        assert len(iceberg.snapshots()) < 32
        assert len(iceberg.snapshots()[-1].manifests(iceberg.io)) <= 10
        assert Path(iceberg.metadata_location.removeprefix("file://")).stat().st_size < 40_000
    assert files(tmp_path) < 200
    # Nothing is left that no snapshot needs, and nothing is gone that one needs.
    iceberg = stored(table)
    for snapshot in iceberg.snapshots():
        iceberg.scan(snapshot_id=snapshot.snapshot_id).to_arrow()
    in_use = set(iceberg.inspect.all_files().column("file_path").to_pylist())
    on_disk = {f"file://{path}" for path in (tmp_path / "warehouse").rglob("*.parquet")}
    assert {path.removeprefix("file://") for path in in_use} == {path.removeprefix("file://") for path in on_disk}


def test_what_is_replaced_again_and_again_leaves_nothing_behind(table: Table) -> None:
    for number in range(30):
        table().write([Row(str(number), number)], replacing=AlwaysTrue())
    now = stored(table)
    (manifest,) = [each for each in now.snapshots()[-1].manifests(now.io) if each.has_added_files()]
    assert len(now.snapshots()[-1].manifests(now.io)) <= 2, manifest
    assert [row["name"] for row in table().read()] == ["29"]


def test_what_is_replaced_in_a_file_of_many_rows_leaves_those_without_a_value(table: Table) -> None:
    run = table()
    run.write([Row("a", 1), Row("b"), Row("c", 3)])
    run.write([], replacing=equal("size", 1))
    assert names(run) == ["b", "c"]
    run.write([], replacing=missing("size"))
    assert names(table()) == ["c"]


def test_a_reader_goes_on_while_the_last_snapshots_are_written(table: Table) -> None:
    run, reader = table(), table()
    run.write([Row("a")])
    assert reader.table is not None
    for number in range(12):
        run.write([Row(str(number))])
    assert names(reader) == ["a"]


def test_a_writer_whose_snapshot_has_expired_is_refused(table: Table) -> None:
    run, slow = table(), table()
    run.write([Row("a")])
    assert slow.table is not None
    for number in range(18):
        run.write([Row("a", number)], replacing=AlwaysTrue())
    with pytest.raises(ConcurrentRunError, match="things"):
        slow.write([Row("slow")], replacing=equal("name", "a"))
    assert rows(table()) == [{"name": "a", "size": 17}]


def test_file_that_another_writer_has_removed_is_another_run(table: Table) -> None:
    table().write([Row("a")])
    reader = table()
    assert reader.table is not None
    (file,) = reader.table.inspect.all_files().column("file_path").to_pylist()
    rewrite(stored(table))
    Path(file.removeprefix("file://")).unlink()
    with pytest.raises(ConcurrentRunError, match="things"):
        reader.read()
    assert rows(table()) == [{"name": "a", "size": None}]


def test_a_lost_file_is_no_other_run(table: Table) -> None:
    table().write([Row("a")])
    (file,) = stored(table).inspect.all_files().column("file_path").to_pylist()
    Path(file.removeprefix("file://")).unlink()
    with pytest.raises(FileNotFoundError):
        table().write([], replacing=equal("name", "a"))


@pytest.mark.parametrize("fails", ["before", "after"])
def test_a_write_that_dies_at_its_commit_leaves_a_right_table(
    table: Table, monkeypatch: pytest.MonkeyPatch, fails: str
) -> None:
    run = table()
    monkeypatch.setattr(small_table, "_KEPT_SNAPSHOTS", 3)
    monkeypatch.setattr(small_table, "_LEAST_EXPIRED", 1)
    for number in range(9):
        run.write([Row(str(number))])
    known = set(names(run))
    with monkeypatch.context() as patched:

        def die(*_: object) -> None:
            raise KeyboardInterrupt

        patched.setattr(small_table, "_expire" if fails == "before" else "_delete_orphans", die)
        with pytest.raises(KeyboardInterrupt):
            table().write([Row("new")])
    assert set(names(table())) == known | ({"new"} if fails == "after" else set())
    table().write([Row("next")])
    assert "next" in names(table())


def test_a_row_is_rewritten_few_times() -> None:
    def file(rows: int) -> Any:
        return SimpleNamespace(file=SimpleNamespace(record_count=rows, file_size_in_bytes=rows * 100))

    live: list[Any] = []
    rewritten = 0
    for _ in range(10_000):
        merged = to_merge(live)
        size = sum(each.file.record_count for each in merged)
        rewritten += size
        live = [each for each in live if each not in merged] + ([file(size)] if merged else []) + [file(5)]
        assert len(live) <= 9
    assert sum(each.file.record_count for each in live) == 50_000
    assert rewritten < 25 * 50_000
