"""Layouts that no data set has: directories called by table ids, labels that nothing says, files that expired."""

from __future__ import annotations

import shutil
from collections.abc import Callable

import pytest

from cdc_lakehouse.changelog.mysql_types import ColumnType
from cdc_lakehouse.changelog.schema import SourceColumn
from tests.kit.hand_sinks import ADD_COLUMN, CREATE, CSV, DAY, ID, RENAME, T0, TRUNCATE, HandSink, row, text
from tests.kit.lakes import TestLake, run_all

pytestmark = pytest.mark.spark

CREATE_A = "CREATE TABLE `a` (`id` BIGINT PRIMARY KEY, `s` VARCHAR(50))"


@pytest.mark.parametrize("stepwise", [True, False])
def test_directories_called_by_table_ids(stepwise: bool, new_lake: Callable[..., TestLake]) -> None:
    """A RENAME keeps the id, a TRUNCATE gives another, and two tables have the same name one after the other."""
    lake = new_lake(source={**CSV, "use_table_id_as_path": True}, tables={"include": ["d.*"]})
    sink = HandSink(lake.sink)

    def step(at: int) -> None:
        sink.checkpoint(at)
        if stepwise:
            lake.go_through()

    sink.schema("a", 1, ID, text("s"), action=CREATE, query=CREATE_A, directory="101")
    sink.rows("101", 1, row("I", "a", 2, "1", '"one"'), row("I", "a", 3, "2", '"two"'))
    step(5)
    sink.schema("b", 6, ID, text("s"), action=RENAME, query="RENAME TABLE `d`.`a` TO `d`.`b`", directory="101")
    sink.rows("101", 6, row("U", "b", 7, "1", '"uno"'))
    step(8)
    sink.schema("a", 9, ID, text("s"), action=CREATE, query=CREATE_A, directory="102")
    sink.rows("102", 9, row("I", "a", 10, "7", '"seven"'))
    step(11)
    sink.schema("b", 12, ID, text("s"), action=TRUNCATE, query="TRUNCATE TABLE `b`", directory="103")
    sink.rows("103", 12, row("I", "b", 13, "3", '"three"'))
    step(14)
    if not stepwise:
        lake.go_through()
    assert lake.rows("a") == [(7, "seven")]
    assert lake.rows("b") == [(3, "three")]
    assert {(s["database"], s["table"]) for s in lake.machinery("segments")} == {("d", "a"), ("d", "b")}


def test_files_wait_for_the_schema_file_that_says_their_table(new_lake: Callable[..., TestLake]) -> None:
    lake = new_lake(source={**CSV, "use_table_id_as_path": True})
    sink = HandSink(lake.sink)
    sink.rows("101", 1, row("I", "a", 2, "1", '"one"'))
    sink.checkpoint(5)
    done = lake.go_through()
    assert "wait for the schema file" in done.landed.faults[0] and "101/" in done.landed.faults[0]
    sink.schema("a", 1, ID, text("s"), directory="101")
    lake.go_through()
    assert lake.rows("a") == [(1, "one")]


def test_files_that_expire_after_they_landed_are_not_missed(new_lake: Callable[..., TestLake]) -> None:
    lake = new_lake(source=CSV)
    sink = HandSink(lake.sink)
    sink.schema("t", 1, ID, text("s"))
    for index in (1, 2, 3):
        sink.rows("d/t", 1, row("I", "t", 1 + index, str(index), '"x"'), index=index)
    sink.checkpoint(5)
    lake.go_through()
    for index in (1, 2):
        (lake.sink / f"d/t/{T0 + 1}/{DAY}/CDC{index:020d}.csv").unlink()
    sink.rows("d/t", 1, row("D", "t", 6, "1", '"x"'), index=4)
    sink.schema("t", 7, ID, text("s"), text("u"), action=ADD_COLUMN, query="ALTER TABLE `t` ADD COLUMN `u` VARCHAR(50)")
    sink.rows("d/t", 7, row("I", "t", 8, "4", '"x"', '"y"'), date="2026-06-11")
    shutil.rmtree(lake.sink / f"d/t/{T0 + 1}/{DAY}", ignore_errors=False)
    sink.checkpoint(9)
    lake.go_through()
    # The fourth file expired before it was seen: nothing can tell. What was seen is all there.
    assert lake.rows("t") == [(1, "x", None), (2, "x", None), (3, "x", None), (4, "x", "y")]


@pytest.mark.parametrize(
    ("separator", "dates"),
    [("none", ("", "")), ("year", ("/2025", "/2026")), ("month", ("/2025-12", "/2026-01")),
     ("day", ("/2025-12-31", "/2026-01-01"))],
)  # fmt: skip
def test_dates_partitions_and_dispatchers_in_one_sink(
    separator: str, dates: tuple[str, str], new_lake: Callable[..., TestLake]
) -> None:
    """Numbers of six digits, two physical partitions, and two dispatchers whose files overlap in time; index files are
    lost."""
    lake = new_lake(source={**CSV, "date_separator": separator})
    sink = HandSink(lake.sink)
    sink.schema("p", 1, ID, text("s"))
    sink.schema("t", 1, ID, text("s"))
    before, after = dates
    step = 1 if separator == "none" else 0
    # The row moves to another partition: both halves have one commit-ts, and the files are in no order.
    sink.write(f"d/p/{T0 + 1}/247{before}/CDC000001.csv", row("I", "p", 2, "1", '"a"') + "\r\n")
    sink.write(f"d/p/{T0 + 1}/248{after}/CDC000001.csv", row("I", "p", 5, "1", '"b"') + "\r\n")
    sink.write(f"d/p/{T0 + 1}/247{after}/CDC{1 + step:06d}.csv", row("D", "p", 5, "1", '"a"') + "\r\n")
    for dispatcher, lines in {
        "76588717784795383582973671518555784591": [("I", 3, "1", '"x"'), ("U", 6, "1", '"y"')],
        "8": [("I", 4, "2", '"x"'), ("D", 7, "2", '"x"')],
    }.items():
        for number, ((op, at, *values), date) in enumerate(zip(lines, dates, strict=True)):
            index = 1 + number * step
            sink.write(f"d/t/{T0 + 1}{date}/CDC_{dispatcher}_{index:06d}.csv", row(op, "t", at, *values) + "\r\n")
    sink.checkpoint(9)
    lake.go_through()
    assert lake.rows("p") == [(1, "b")]
    assert lake.rows("t") == [(1, "y")]
    expected = {None} if separator == "none" else {date.removeprefix("/") for date in dates}
    assert {segment["feed_date"] for segment in lake.machinery("segments")} == expected


def test_files_of_a_directory_that_expired_before_they_were_seen_hold_the_table(
    new_lake: Callable[..., TestLake],
) -> None:
    lake = new_lake(source=CSV)
    sink = HandSink(lake.sink)
    sink.schema("t", 1, ID, text("s"))
    sink.rows("d/t", 1, row("I", "t", 3, "3", '"x"'), index=3)
    sink.checkpoint(5)
    done = run_all(lake.run())
    (reason,) = done.applied.held.values()
    assert "data files are missing" in reason and "has no file 1, 2" in reason

    lake = new_lake(source=CSV, policy={"index_gap": "skip"})
    HandSink(lake.sink).root.symlink_to(sink.root)
    lake.go_through()
    assert lake.rows("t") == [(3, "x")]


@pytest.mark.long
def test_a_value_of_64_mib(new_lake: Callable[..., TestLake]) -> None:
    """It comes between others, and is changed with them."""
    lake = new_lake(source=CSV)
    sink, large = HandSink(lake.sink), SourceColumn("s", ColumnType.of("LONGTEXT"))
    sink.schema("a", 1, ID, large, action=CREATE, query="CREATE TABLE `a` (`id` BIGINT PRIMARY KEY, `s` LONGTEXT)")
    for index, letter in enumerate("xy", start=1):
        lines = [row("I" if index == 1 else "U", "a", 10 * index + id, str(id), f'"{letter * size}"')
                 for id, size in ((1, 5), (2, 64 << 20), (3, 5))]  # fmt: skip
        sink.rows("d/a", 1, *lines, index=index)
        sink.checkpoint(10 * index + 5)
        lake.go_through()
        assert lake.rows("a") == [(1, letter * 5), (2, letter * (64 << 20)), (3, letter * 5)]
