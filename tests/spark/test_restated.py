"""Rows that a DDL moves without row changes: exchanged partitions, changed keys. Files that are written again."""

from __future__ import annotations

import errno
from collections.abc import Callable
from typing import Any

import pytest

from cdc_lakehouse.changelog.mysql_types import ColumnType
from cdc_lakehouse.changelog.schema import SourceColumn, TableName
from cdc_lakehouse.errors import WarehouseFullError
from cdc_lakehouse.lake.check_queries import event_counts, uncounted_lines
from cdc_lakehouse.pipeline import moved_rows
from cdc_lakehouse.pipeline.steps import Steps
from tests.kit.hand_sinks import (
    ADD_KEY,
    COLUMNS,
    CREATE,
    CSV,
    DAY,
    DROP_COLUMN,
    DROP_KEY,
    DROP_PARTITION,
    EXCHANGE,
    ID,
    MODIFY,
    MULTI,
    PARTITIONED,
    REMOVE_PARTITIONING,
    T0,
    TRUNCATE,
    TRUNCATE_PARTITION,
    HandSink,
    integer,
    put,
    row,
    text,
)
from tests.kit.lakes import TestLake, run_all

pytestmark = pytest.mark.spark

SWAP = "ALTER TABLE `p` EXCHANGE PARTITION `p0` WITH TABLE `d`.`u`"


INT = ColumnType.of("INT", length=11)


def keyed(name: str, kind: ColumnType = INT) -> SourceColumn:
    return SourceColumn(name, kind, nullable=False, primary_key=True)


def plain(column: SourceColumn) -> SourceColumn:
    return SourceColumn(column.name, column.type, nullable=False)


def run(lake: TestLake, sink: HandSink, at: int) -> Steps:
    sink.checkpoint(at)
    return lake.go_through()


def two_tables(sink: HandSink) -> None:
    sink.schema("p", 1, *COLUMNS, action=CREATE, query=PARTITIONED)
    sink.schema("u", 2, *COLUMNS, action=CREATE, query="CREATE TABLE `u` LIKE `x`")
    put(sink, "p", 1, ("I", 3, "1", "1"), ("I", 4, "2", "2"), ("I", 5, "11", "3"))
    put(sink, "u", 2, ("I", 6, "1", "10"), ("I", 7, "3", "30"))


def swap(sink: HandSink) -> None:
    """And changes of rows in their new places, among them those that had come from the other table."""
    sink.schema("p", 20, *COLUMNS, action=EXCHANGE, query=SWAP)
    sink.schema("u", 20, *COLUMNS)
    put(sink, "p", 20, ("U", 21, "3", "31"), ("D", 22, "1", "10"), ("I", 23, "4", "4"))
    put(sink, "u", 20, ("U", 24, "2", "22"))


SWAPPED_P = [(3, 31, "p21"), (4, 4, "p23"), (11, 3, "p5")]
SWAPPED_U = [(1, 1, "p3"), (2, 22, "u24")]


@pytest.mark.parametrize("stops", [(30,), (9, 30), (19, 20, 21, 24)])
def test_an_exchange_moves_rows_between_tables(stops: tuple[int, ...], new_lake: Callable[..., TestLake]) -> None:
    lake = new_lake(source=CSV)
    sink = HandSink(lake.sink)
    two_tables(sink)
    swap(sink)
    for at in stops:
        run(lake, sink, at)
        if at == 20:
            assert lake.rows("p") == [(1, 10, "u6"), (3, 30, "u7"), (11, 3, "p5")]
            assert lake.rows("u") == [(1, 1, "p3"), (2, 2, "p4")]
    assert (lake.rows("p"), lake.rows("u")) == (SWAPPED_P, SWAPPED_U)
    before = lake.metadata()
    run(lake, sink, stops[-1])
    assert lake.metadata() == before


def test_rows_of_before_an_exchange_that_come_late_move_too(new_lake: Callable[..., TestLake]) -> None:
    lake = new_lake(source=CSV)
    sink = HandSink(lake.sink)
    two_tables(sink)
    swap(sink)
    run(lake, sink, 30)
    put(sink, "p", 1, ("I", 8, "5", "5"), ("D", 9, "2", "2"), index=2)
    put(sink, "u", 2, ("U", 9, "3", "33"), ("I", 9, "7", "7"), index=2)
    run(lake, sink, 31)
    assert lake.rows("p") == [(3, 31, "p21"), (4, 4, "p23"), (7, 7, "u9"), (11, 3, "p5")]
    assert lake.rows("u") == [(1, 1, "p3"), (2, 22, "u24"), (5, 5, "p8")]
    run_all(lake.run(dates=frozenset({DAY})))
    assert lake.rows("u") == [(1, 1, "p3"), (2, 22, "u24"), (5, 5, "p8")]
    assert all(row["feed_date"] is None for row in lake.machinery("segments") if row["kind"] == "moved_rows")


def test_exchanges_one_after_the_other(new_lake: Callable[..., TestLake]) -> None:
    """The second puts all back; a TRUNCATE of one table leaves what the other got from it."""
    lake = new_lake(source=CSV)
    sink = HandSink(lake.sink)
    two_tables(sink)
    sink.schema("p", 20, *COLUMNS, action=EXCHANGE, query=SWAP)
    sink.schema("u", 20, *COLUMNS)
    sink.schema("p", 21, *COLUMNS, action=EXCHANGE, query=SWAP)
    sink.schema("u", 21, *COLUMNS)
    run(lake, sink, 21)
    assert lake.rows("p") == [(1, 1, "p3"), (2, 2, "p4"), (11, 3, "p5")]
    assert lake.rows("u") == [(1, 10, "u6"), (3, 30, "u7")]
    sink.schema("p", 30, *COLUMNS, action=EXCHANGE, query=SWAP)
    sink.schema("u", 30, *COLUMNS)
    sink.schema("p", 31, *COLUMNS, action=TRUNCATE, query="TRUNCATE TABLE `p`")
    run(lake, sink, 31)
    assert (lake.rows("p"), lake.rows("u")) == ([], [(1, 1, "p3"), (2, 2, "p4")])


@pytest.mark.parametrize("action", ["drop", "convert"])
@pytest.mark.parametrize("stops", [(60,), (9, 21, 31, 60)])
def test_emptied_partition_is_evaluated_on_the_columns_of_then(
    action: str, stops: tuple[int, ...], new_lake: Callable[..., TestLake]
) -> None:
    """Here the partitioning is removed, then the column that the table was partitioned by dropped or converted."""
    lake = new_lake(source=CSV)
    sink = HandSink(lake.sink)
    columns = (ID, integer("r"), text("s"))
    create = PARTITIONED.replace("`v`", "`r`").replace("RANGE (`id`)", "RANGE (`r`)")
    sink.schema("p", 1, *columns, action=CREATE, query=create)
    put(sink, "p", 1, ("I", 3, "1", "9"), ("I", 4, "2", "10"), ("I", 5, "3", r"\N"))
    sink.schema("p", 20, *columns, action=TRUNCATE_PARTITION, query="ALTER TABLE `p` TRUNCATE PARTITION `p0`")
    put(sink, "p", 20, ("I", 21, "4", "5"))
    sink.schema("p", 30, *columns, action=REMOVE_PARTITIONING, query="ALTER TABLE `p` REMOVE PARTITIONING")
    if action == "drop":
        sink.schema("p", 40, ID, text("s"), action=DROP_COLUMN, query="ALTER TABLE `p` DROP COLUMN `r`")
        expected = [(2, "p4"), (4, "p21")]
    else:
        query = "ALTER TABLE `p` MODIFY COLUMN `r` VARCHAR(50)"
        sink.schema("p", 40, ID, text("r"), text("s"), action=MODIFY, query=query)
        expected = [(2, "10", "p4"), (4, "5", "p21")]
    for at in stops:
        run(lake, sink, at)
    assert lake.rows("p") == expected
    lake.go_through(dates=frozenset({DAY}))
    lake.go_through(rebuild=lake.names())
    assert lake.rows("p") == expected


def test_emptied_partition_is_evaluated_in_the_zone_of_the_feed(new_lake: Callable[..., TestLake]) -> None:
    lake = new_lake(source={**CSV, "time_zone": "Asia/Shanghai"})
    sink = HandSink(lake.sink)
    columns = (ID, SourceColumn("t", ColumnType.of("TIMESTAMP")))
    query = (
        "CREATE TABLE `p` (`id` BIGINT, `t` TIMESTAMP) PARTITION BY RANGE (UNIX_TIMESTAMP(`t`)) (PARTITION p0 "
        "VALUES LESS THAN (UNIX_TIMESTAMP('2024-01-01 00:00:00')), PARTITION p1 VALUES LESS THAN MAXVALUE)"
    )
    sink.schema("p", 1, *columns, action=CREATE, query=query)
    times = ["2023-12-31 23:59:59", "2024-01-01 00:00:00", "2024-01-01 04:00:00"]
    sink.rows("d/p", 1, *(row("I", "p", 3 + n, str(n), f'"{each}"') for n, each in enumerate(times)))
    sink.schema("p", 20, *columns, action=DROP_PARTITION, query="ALTER TABLE `p` DROP PARTITION `p0`")
    run(lake, sink, 30)
    assert [id for id, *_ in lake.rows("p")] == [1, 2]


def test_row_that_the_collation_places_holds_its_table(new_lake: Callable[..., TestLake]) -> None:
    lake = new_lake(source=CSV)
    sink = HandSink(lake.sink)
    columns = (ID, text("s"))
    lists = "(PARTITION e VALUES IN ('east'), PARTITION w VALUES IN ({}))"
    for name, others in (("p", "'west'"), ("u", "'EAST'")):
        create = f"CREATE TABLE `{name}` (`id` BIGINT, `s` VARCHAR(50)) PARTITION BY LIST COLUMNS (`s`) "
        sink.schema(name, 1, *columns, action=CREATE, query=create + lists.format(others))
        values = ["east", "East", "west" if name == "p" else "EAST"]
        sink.rows(f"d/{name}", 1, *(row("I", name, 3 + n, str(n), f'"{each}"') for n, each in enumerate(values)))
        query = f"ALTER TABLE `{name}` TRUNCATE PARTITION `e`"
        sink.schema(name, 20, *columns, action=TRUNCATE_PARTITION, query=query)
    sink.checkpoint(30)
    held = run_all(lake.run()).applied.held
    assert lake.rows("p") == [(2, "west")]
    assert list(held) == ["d.u#1"] and "collation" in held["d.u#1"]


def test_row_whose_partition_cannot_be_read_is_quarantined_as_any_other(new_lake: Callable[..., TestLake]) -> None:
    """A person can give it up, and the table goes on without it."""
    lake = new_lake(source=CSV)
    sink = HandSink(lake.sink)
    columns = (ID, integer("r"), text("s"))
    create = PARTITIONED.replace("`v`", "`r`").replace("RANGE (`id`)", "RANGE (`r`)")
    sink.schema("p", 1, *columns, action=CREATE, query=create)
    put(sink, "p", 1, ("I", 3, "1", "9"), ("I", 4, "2", "ten"), ("I", 5, "3", "11"))
    sink.schema("p", 20, *columns, action=TRUNCATE_PARTITION, query="ALTER TABLE `p` TRUNCATE PARTITION `p0`")
    sink.checkpoint(30)
    held = run_all(lake.run()).applied.held
    assert "the value of column r" in held["d.p#1"]
    lake.configure(policy={"quarantine": "skip"})
    lake.go_through()
    assert lake.rows("p") == [(3, 11, "p5")]


def test_exchange_of_rows_that_do_not_fit_holds_both_tables(new_lake: Callable[..., TestLake]) -> None:
    """As after WITHOUT VALIDATION: which rows a later statement empties the partition of is not what it names."""
    lake = new_lake(source=CSV)
    sink = HandSink(lake.sink)
    two_tables(sink)
    put(sink, "u", 2, ("I", 8, "50", "5"), index=2)
    sink.schema("p", 20, *COLUMNS, action=EXCHANGE, query=f"{SWAP} WITHOUT VALIDATION")
    sink.schema("u", 20, *COLUMNS)
    sink.schema("p", 30, *COLUMNS, action=TRUNCATE_PARTITION, query="ALTER TABLE `p` TRUNCATE PARTITION `p0`")
    sink.checkpoint(31)
    held = run_all(lake.run()).applied.held
    assert set(held) == {"d.p#1", "d.u#1"}
    assert "rows of d.u are not" in held["d.p#1"] and "load --table d.p" in held["d.p#1"]


def test_exchanges_that_move_no_row_are_carried_out_once_for_each_decoding(new_lake: Callable[..., TestLake]) -> None:
    lake = new_lake(source=CSV)
    sink = HandSink(lake.sink)
    sink.schema("p", 1, *COLUMNS, action=CREATE, query=PARTITIONED)
    sink.schema("u", 2, *COLUMNS, action=CREATE, query="CREATE TABLE `u` LIKE `x`")
    put(sink, "p", 1, ("I", 5, "11", "3"))
    for at in (20, 21):
        sink.schema("p", at, *COLUMNS, action=EXCHANGE, query=SWAP)
        sink.schema("u", at, *COLUMNS)
    run(lake, sink, 21)
    lake.go_through(dates=frozenset({DAY}))
    before = lake.metadata()
    run(lake, sink, 21)
    assert lake.metadata() == before
    assert (lake.rows("p"), lake.rows("u")) == ([(11, 3, "p5")], [])


def failing(error: Exception) -> Callable[..., Any]:
    def fail(*_: object) -> None:
        raise error

    return fail


def test_an_exchange_with_a_table_that_cannot_go_on_waits(
    new_lake: Callable[..., TestLake], monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = new_lake(source=CSV)
    sink = HandSink(lake.sink)
    two_tables(sink)
    sink.schema("o", 2, *COLUMNS, action=CREATE, query="CREATE TABLE `o` LIKE `x`")
    put(sink, "o", 2, ("I", 3, 1, 1))
    bad = sink.rows("d/u", 2, "garbage", index=2)
    swap(sink)
    sink.checkpoint(30)
    held = run_all(lake.run()).applied.held
    assert set(held) == {"d.p#1", "d.u#1"} and "d.u is held" in held["d.p#1"]
    bad.write_text(row("I", "u", 8, "8", "8", '"u8"') + "\r\n")
    with monkeypatch.context() as patch:
        patch.setattr(moved_rows, "_readers", failing(ValueError("no row")))
        held = run_all(lake.run()).applied.held
        assert set(held) == {"d.p#1", "d.u#1"} and all("ValueError no row" in reason for reason in held.values())
        assert lake.rows("o") == [(1, 1, "o3")]
        patch.setattr(moved_rows, "_readers", failing(MemoryError()))
        sink.checkpoint(31)
        held = run_all(lake.run()).applied.held
        assert set(held) == {"d.p#1", "d.u#1"} and all("cannot be written" in reason for reason in held.values())
        patch.setattr(moved_rows, "_readers", failing(OSError(errno.ENOSPC, "no room")))
        with pytest.raises(WarehouseFullError):
            run_all(lake.run())
    run(lake, sink, 31)
    assert (8, 8, "u8") in lake.rows("p")


@pytest.mark.parametrize(("left_out", "held"), [("d.u", "d.p#1"), ("d.p", "d.u#1")])
def test_a_table_that_the_feed_does_not_take_has_no_rows_to_give(
    left_out: str, held: str, new_lake: Callable[..., TestLake]
) -> None:
    lake = new_lake(source=CSV, tables={"exclude": [left_out]})
    sink = HandSink(lake.sink)
    two_tables(sink)
    swap(sink)
    sink.checkpoint(30)
    reasons = run_all(lake.run()).applied.held
    assert set(reasons) == {held} and "the configuration takes" in reasons[held]
    lake.configure(tables={})
    lake.go_through()
    assert (lake.rows("p"), lake.rows("u")) == (SWAPPED_P, SWAPPED_U)


# --- Keys ---


REKEY = "ALTER TABLE `t` DROP PRIMARY KEY, ADD PRIMARY KEY (`v`)"


def rekeyed(sink: HandSink) -> None:
    sink.schema("t", 1, keyed("id"), plain(integer("v")), text("s"), action=CREATE, query="CREATE TABLE `t` (`id` INT)")
    put(sink, "t", 1, ("I", 2, "1", "100"), ("I", 3, "2", "200"), ("I", 4, "3", "300"), ("D", 5, "3", "300"))
    sink.schema("t", 10, plain(integer("id")), keyed("v"), text("s"), action=MULTI, query=REKEY)
    put(sink, "t", 10, ("U", 11, "7", "100"), ("D", 12, "2", "200"), ("I", 13, "7", "300"))


@pytest.mark.parametrize("stops", [(20,), (5, 10, 12, 13)])
def test_a_changed_primary_key_tells_rows_from_then_on(
    stops: tuple[int, ...], new_lake: Callable[..., TestLake]
) -> None:
    lake = new_lake(source=CSV)
    sink = HandSink(lake.sink)
    rekeyed(sink)
    for at in stops:
        run(lake, sink, at)
        if at == 10:
            assert lake.rows("t") == [(1, 100, "t2"), (2, 200, "t3")]
    assert lake.rows("t") == [(7, 100, "t11"), (7, 300, "t13")]
    assert lake.tables()["d", "t"].properties["cdc.key"] == '["v"]'
    (told,) = [v for v in lake.machinery("schema_history") if v["commit_ts"] == T0 + 10]
    assert (told["effect"], told["primary_key"]) == ("rewrite", ["v"]) and "before by id" in told["note"]
    run_all(lake.run(dates=frozenset({DAY})))
    assert lake.rows("t") == [(7, 100, "t11"), (7, 300, "t13")]


def test_late_rows_of_before_a_changed_key(new_lake: Callable[..., TestLake]) -> None:
    lake = new_lake(source=CSV)
    sink = HandSink(lake.sink)
    rekeyed(sink)
    run(lake, sink, 20)
    put(sink, "t", 1, ("U", 6, "1", "150"), ("I", 7, "4", "400"), index=2)
    run(lake, sink, 21)
    # The update of v = 100 after the change makes that row, though none is there by then.
    assert lake.rows("t") == [(1, 150, "t6"), (4, 400, "t7"), (7, 100, "t11"), (7, 300, "t13")]


def test_a_key_in_two_statements(new_lake: Callable[..., TestLake]) -> None:
    lake = new_lake(source=CSV)
    sink = HandSink(lake.sink)
    sink.schema("t", 1, keyed("id"), plain(integer("v")), text("s"), action=CREATE, query="CREATE TABLE `t` (`id` INT)")
    put(sink, "t", 1, ("I", 2, "1", "100"), ("I", 3, "2", "200"))
    without = (plain(integer("id")), plain(integer("v")), text("s"))
    sink.schema("t", 10, *without, action=DROP_KEY, query="ALTER TABLE `t` DROP PRIMARY KEY")
    sink.checkpoint(10)
    assert "no primary key" in run_all(lake.run()).applied.held["d.t#1"]
    columns = (plain(integer("id")), keyed("v"), text("s"))
    sink.schema("t", 11, *columns, action=ADD_KEY, query="ALTER TABLE `t` ADD PRIMARY KEY (`v`)")
    put(sink, "t", 11, ("U", 12, "9", "100"))
    run(lake, sink, 20)
    assert lake.rows("t") == [(2, 200, "t3"), (9, 100, "t12")]


def test_rows_that_were_written_without_a_key_hold(new_lake: Callable[..., TestLake]) -> None:
    lake = new_lake(source=CSV)
    sink = HandSink(lake.sink)
    without = (plain(integer("id")), plain(integer("v")), text("s"))
    sink.schema("t", 1, *without, action=CREATE, query="CREATE TABLE `t` (`id` INT)")
    put(sink, "t", 1, ("I", 2, "1", "100"))
    columns = (plain(integer("id")), keyed("v"), text("s"))
    sink.schema("t", 11, *columns, action=ADD_KEY, query="ALTER TABLE `t` ADD PRIMARY KEY (`v`)")
    sink.checkpoint(20)
    reason = run_all(lake.run()).applied.held["d.t#1"]
    assert "while the table had no key" in reason and "primary_key" in reason
    sink.schema("t", 21, *columns, action=TRUNCATE, query="TRUNCATE TABLE `t`")
    put(sink, "t", 21, ("I", 22, "5", "500"))
    run(lake, sink, 30)
    assert lake.rows("t") == [(5, 500, "t22")]


KINDS: list[tuple[ColumnType, ColumnType, list[str], list[str], list[Any]]] = [
    (
        ColumnType.of("INT", length=11), ColumnType.of("VARCHAR", length=20),
        ["1", "20"], ['"1"', '"x"'], ["20", "x"],
    ),
    (
        ColumnType.of("VARCHAR", length=20), ColumnType.of("INT", length=11),
        ['"1"', '"020"'], ["1", "3"], [3, 20],
    ),
    (
        ColumnType.of("DECIMAL", length=10, scale=1), ColumnType.of("DECIMAL", length=12, scale=3),
        ["1.5", "2.0"], ["1.500", "3.000"], ["2.000", "3.000"],
    ),
    (
        ColumnType.of("DATETIME", scale=0), ColumnType.of("DATE"),
        ['"2026-01-02 00:00:00"', '"2026-01-03 00:00:00"'], ['"2026-01-02"', '"2026-01-04"'],
        ["2026-01-03", "2026-01-04"],
    ),
    (
        ColumnType.of("VARCHAR", length=20), ColumnType.of("CHAR", length=20),
        ['"a  "', '"b "'], ['"a"', '"c"'], ["b", "c"],
    ),
]  # fmt: skip


@pytest.mark.parametrize("stops", [(20,), (9, 20)])
def test_a_key_whose_type_converts(stops: tuple[int, ...], new_lake: Callable[..., TestLake]) -> None:
    """The first row is deleted and the second stays, both written as the old type; the third is of the new one."""
    lake = new_lake(source=CSV)
    sink = HandSink(lake.sink)
    for number, (old, new, before, after, _) in enumerate(KINDS):
        t = f"t{number}"
        sink.schema(t, 1, keyed("k", old), text("s"), action=CREATE, query=f"CREATE TABLE `{t}` (`k` INT)")
        sink.rows(f"d/{t}", 1, *(row("I", t, 2 + n, key, '"old"') for n, key in enumerate(before)))
        modify = f"ALTER TABLE `{t}` MODIFY COLUMN `k` INT"
        sink.schema(t, 10, keyed("k", new), text("s"), action=MODIFY, query=modify)
        sink.rows(f"d/{t}", 10, row("D", t, 11, after[0], '"old"'), row("I", t, 12, after[1], '"new"'))
    for at in stops:
        run(lake, sink, at)
    for number, (*_, left) in enumerate(KINDS):
        assert sorted(str(key) for key, _ in lake.rows(f"t{number}")) == sorted(str(value) for value in left)


def test_file_written_over_with_other_rows_keeps_both(new_lake: Callable[..., TestLake]) -> None:
    """A changefeed that begins its file numbers again: what was published stays, in the order of commit-ts."""
    lake = new_lake(source=CSV)
    sink = HandSink(lake.sink)
    sink.schema("u", 2, *COLUMNS, action=CREATE, query="CREATE TABLE `u` (`id` BIGINT PRIMARY KEY)")

    def check(expected: list[tuple[int, int]], *commit_ts: int) -> None:
        assert [row[:2] for row in lake.rows("u")] == expected
        events = lake.machinery("events")
        assert sorted(event["commit_ts"] - T0 for event in events) == sorted(commit_ts)
        (segment,) = lake.machinery("segments")
        assert (segment["events"], segment["lines"]) == (len(commit_ts), len(commit_ts) + (segment["others"] or 0))
        assert (segment["min_commit_ts"], segment["max_commit_ts"]) == (T0 + min(commit_ts), T0 + max(commit_ts))
        assert uncounted_lines(lake.lake, lake.name) == []
        counts = event_counts(lake.lake, lake.name)
        assert counts.of_segments == counts.in_table == len(commit_ts)

    put(sink, "u", 2, ("I", 4, 1, 1), ("I", 6, 2, 2), ("I", 8, 5, 5))
    run(lake, sink, 9)
    put(sink, "u", 2, ("U", 8, 5, 50), ("I", 12, 3, 3), ("U", 14, 1, 10))
    run(lake, sink, 20)
    written_over = [(1, 10), (2, 2), (3, 3), (5, 50)]
    check(written_over, 4, 6, 8, 12, 14)
    before = lake.metadata()
    run(lake, sink, 20)
    assert lake.metadata() == before
    lake.go_through(dates=frozenset({DAY}))
    check(written_over, 4, 6, 8, 12, 14)
    lake.go_through(rebuild=frozenset({TableName("d", "u")}))
    check(written_over, 4, 6, 8, 12, 14)
    # A file that is sent again with what it had, and more.
    put(sink, "u", 2, ("U", 8, 5, 50), ("I", 12, 3, 3), ("U", 14, 1, 10), ("D", 22, 2, 2))
    run(lake, sink, 30)
    check([(1, 10), (3, 3), (5, 50)], 4, 6, 8, 12, 14, 22)
