"""Small tables on a real catalog: what is written is read, and a lost race is seen."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyiceberg.expressions import AlwaysTrue

from cdc_lakehouse.errors import ConcurrentRunError
from cdc_lakehouse.lake.catalog import Lake
from cdc_lakehouse.lake.tables.small_table import SmallTable, among, equal
from tests.kit.lakes import lake_config

SCHEMA = pa.schema([pa.field("name", pa.string(), nullable=False), pa.field("size", pa.int64())])
ODD = [
    "",
    " ",
    "'",
    '"',
    "a'b",
    "\\",
    "\\'",
    "%",
    "_",
    "*",
    "None",
    "null",
    "true",
    "1",
    "it's; DROP TABLE x",
    "a\nb",
    "a\x00b",
    "é",
    "e\u0301",
    "订单/表 1/2026-06-01/CDC000001.json",
    "x" * 16,
    "x" * 16 + "y",
    "\U0010ffff" * 17,
    "A",
    "a",
]


@dataclass(frozen=True)
class Row:
    name: str
    size: int | None = None


@pytest.fixture
def table(tmp_path: Path) -> Callable[[], SmallTable]:
    """Each call is another run: its own catalog and its own sight of the one table."""
    return lambda: SmallTable(Lake(lake_config(tmp_path)), "f", "things", SCHEMA)


def names(table: SmallTable) -> list[str]:
    return sorted(row["name"] for row in table.read())


def test_a_table_that_is_not_there_is_empty_and_reading_does_not_make_it(table: Callable[[], SmallTable]) -> None:
    run = table()
    assert (run.read(), run.properties()) == ([], {})
    assert table().table is None


def test_rows_and_snapshot_properties_are_there_for_the_next_run(table: Callable[[], SmallTable]) -> None:
    table().write([Row("a", 1), Row("b")], properties={"cdc.batch": "7"})
    assert sorted(table().read(), key=lambda row: row["name"]) == [
        {"name": "a", "size": 1},
        {"name": "b", "size": None},
    ]
    assert table().properties()["cdc.batch"] == "7"


def test_one_object_sees_what_it_wrote_and_can_write_again(table: Callable[[], SmallTable]) -> None:
    run = table()
    for number in range(3):
        run.write([Row(str(number))], properties={"n": str(number)})
    assert names(run) == ["0", "1", "2"]
    assert run.properties()["n"] == "2"


@pytest.mark.parametrize("value", ODD)
def test_a_filter_finds_the_one_row_of_an_odd_value(odd_table: SmallTable, value: str) -> None:
    assert [row["name"] for row in odd_table.read(row_filter=equal("name", value))] == [value]
    assert [row["name"] for row in odd_table.read(row_filter=among("name", [value]))] == [value]


@pytest.fixture(scope="module")
def odd_table(tmp_path_factory: pytest.TempPathFactory) -> SmallTable:
    table = SmallTable(Lake(lake_config(tmp_path_factory.mktemp("odd"))), "f", "odd", SCHEMA)
    # Files of their own too: their bounds decide whether they are read at all.
    for part in (ODD[:3], ODD[3:12], ODD[12:20], *([value] for value in ODD[20:])):
        table.write([Row(value) for value in part])
    return table


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
def test_a_filter_by_a_number_is_exact(table: Callable[[], SmallTable], size: int) -> None:
    run = table()
    near = [number for number in (size - 1, size, size + 1) if -(2**63) <= number < 2**63]
    run.write([Row(str(number), number) for number in near])
    assert [row["size"] for row in run.read(row_filter=equal("size", size))] == [size]


def test_everything_can_be_replaced_by_nothing(table: Callable[[], SmallTable]) -> None:
    run = table()
    run.write([Row("a")])
    run.write([], replacing=AlwaysTrue(), properties={"why": "gone"})
    assert (run.read(), run.properties()["why"]) == ([], "gone")


@dataclass(frozen=True)
class NewerRow:
    kind: str
    name: str
    parts: list[dict[str, str | None]]


NEWER = pa.schema([
    pa.field("kind", pa.string(), nullable=False),
    pa.field("name", pa.string(), nullable=False),
    pa.field("parts", pa.list_(pa.struct([pa.field("a", pa.string()), pa.field("b", pa.string())]))),
])  # fmt: skip


@dataclass(frozen=True)
class OlderRow:
    name: str
    size: int
    parts: list[dict[str, str]]


OLDER = pa.schema([
    pa.field("name", pa.string(), nullable=False),
    pa.field("size", pa.int64(), nullable=False),
    pa.field("parts", pa.list_(pa.struct([pa.field("a", pa.string())]))),
])  # fmt: skip


@pytest.mark.parametrize("replacing", [None, "one"])
def test_a_table_of_older_code_is_read_and_gets_its_new_columns_with_the_first_rows(
    tmp_path: Path, replacing: str | None
) -> None:
    def older() -> SmallTable:
        return SmallTable(Lake(lake_config(tmp_path)), "f", "things", OLDER)

    def newer() -> SmallTable:
        return SmallTable(Lake(lake_config(tmp_path)), "f", "things", NEWER)

    older().write([OlderRow("one", 1, [{"a": "x"}]), OlderRow("two", 2, [])])
    before = older().table
    assert sorted(newer().read(), key=lambda row: row["name"]) == [
        {"kind": None, "name": "one", "parts": [{"a": "x"}]},
        {"kind": None, "name": "two", "parts": []},
    ]
    assert newer().scan().schema.names == NEWER.names
    assert newer().scan(row_filter=equal("name", "two")).to_pylist() == [{"kind": None, "name": "two", "parts": []}]
    assert older().table == before, "reading has changed the table"
    run = newer()
    rows = [NewerRow("new", "three", [{"a": "y", "b": "z"}]), NewerRow("new", "four", [{"a": None, "b": None}])]
    run.write(rows, replacing=equal("name", replacing) if replacing else None, properties={"n": "1"})
    expected = [
        {"kind": "new", "name": "four", "parts": [{"a": None, "b": None}]},
        *([] if replacing else [{"kind": None, "name": "one", "parts": [{"a": "x", "b": None}]}]),
        {"kind": "new", "name": "three", "parts": [{"a": "y", "b": "z"}]},
        {"kind": None, "name": "two", "parts": []},
    ]
    for reader in (run, newer()):
        assert sorted(reader.read(), key=lambda row: row["name"]) == expected
        assert reader.properties()["n"] == "1"
    newer().write([NewerRow("new", "five", [])])
    assert len(newer().read()) == len(expected) + 1


def test_writing_rows_of_the_same_columns_leaves_the_schema(table: Callable[[], SmallTable]) -> None:
    for name in "ab":
        table().write([Row(name)], replacing=equal("name", name))
    stored = table().table
    assert stored is not None
    assert len(stored.schemas()) == 1
    assert stored.schema().find_field("name").required


def test_a_writer_that_has_not_seen_the_others_rows_is_refused(table: Callable[[], SmallTable]) -> None:
    table().write([Row("first")])
    slow, quick = table(), table()
    assert names(slow) == names(quick) == ["first"]
    quick.write([Row("quick")])
    with pytest.raises(ConcurrentRunError, match="things"):
        slow.write([Row("slow")])
    assert names(table()) == ["first", "quick"]


def test_a_refused_replacement_takes_nothing_away(table: Callable[[], SmallTable]) -> None:
    table().write([Row("first")])
    slow, quick = table(), table()
    assert slow.read() == quick.read()
    quick.write([Row("quick")])
    with pytest.raises(ConcurrentRunError):
        slow.write([Row("slow")], replacing=AlwaysTrue())
    assert names(table()) == ["first", "quick"]


def test_a_writer_that_saw_no_table_is_refused_when_another_has_made_it(table: Callable[[], SmallTable]) -> None:
    slow, quick = table(), table()
    assert slow.read() == quick.read() == []
    quick.write([Row("quick")])
    with pytest.raises(ConcurrentRunError):
        slow.write([Row("slow")])


def test_of_writers_at_one_moment_one_wins(table: Callable[[], SmallTable]) -> None:
    table().write([Row("first")])
    runs = [table() for _ in range(4)]
    for run in runs:
        run.read()
    start = threading.Barrier(len(runs))
    outcomes: list[str | None] = [None] * len(runs)

    def write(number: int) -> None:
        start.wait()
        try:
            runs[number].write([Row(f"run{number}")])
            outcomes[number] = f"run{number}"
        except ConcurrentRunError:
            outcomes[number] = "refused"

    threads = [threading.Thread(target=write, args=(number,)) for number in range(len(runs))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    winners = [outcome for outcome in outcomes if outcome != "refused"]
    assert len(winners) == 1
    assert names(table()) == sorted(["first", *(name for name in winners if name)])
