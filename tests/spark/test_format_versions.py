"""Tables of Iceberg's format version 2, for engines that cannot read 3: the same rows, with files of positions in place
of deletion vectors, and rows written again in place of defaults of columns. Scenarios are played so, too."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from cdc_lakehouse.adopt.plan import TablePlan, plan_ddl
from cdc_lakehouse.changelog.schema import SourceColumn
from cdc_lakehouse.lake.files import StoredPositions, dangling_deletes, live_files
from cdc_lakehouse.operate.maintenance import Maintenance
from cdc_lakehouse.operate.state import conservation, cut_tables, table_health
from tests.kit.hand_sinks import ADD_COLUMN, COLUMNS, CREATE, CSV, HandSink, integer, put, row
from tests.kit.lakes import TestLake, run_all
from tests.spark.test_maintenance import maintain

pytestmark = pytest.mark.spark

SEVEN = SourceColumn("n", integer("n").type, default="7")
WIDE = (*COLUMNS, SEVEN)


def check_counts(lake: TestLake) -> None:
    for of_cut, in_snapshot in cut_tables(lake.lake, lake.feed):
        assert of_cut.row_count == in_snapshot, of_cut
    for name, table in lake.tables().items():
        assert conservation(table).holds, (name, conservation(table))


def kinds(lake: TestLake, table: str) -> list[list[str]]:
    """The kinds of deletes of each data file of a table."""
    files = live_files(lake.tables()["d", table])
    return sorted([type(each).__name__ for each in file.deletes] for file in files)


def planned(lake: TestLake) -> dict[str, TablePlan]:
    return {each.table: each for each in plan_ddl(lake.run()).tables}


def small(new_lake: Callable[..., TestLake], **feed: Any) -> tuple[TestLake, HandSink]:
    """Tables `p` and `u` of version 2, each of two data files with deleted rows."""
    lake = new_lake(source=CSV, tables={"settings": {f"d.{table}": {"format_version": 2} for table in "pu"}}, **feed)
    sink = HandSink(lake.sink)
    for table in ("p", "u", "other"):
        sink.schema(table, 1, *COLUMNS, action=CREATE, query=f"CREATE TABLE `{table}` (`id` BIGINT PRIMARY KEY)")
        put(sink, table, 1, *(("I", 3, id, id) for id in range(1, 6)))
    sink.checkpoint(5)
    lake.go_through()
    for table in ("p", "u"):
        put(sink, table, 1, ("U", 12, 1, 10), ("D", 12, 2, 2), ("I", 12, 8, 8), index=2)
    sink.checkpoint(15)
    lake.go_through()
    for table in ("p", "u"):
        put(sink, table, 1, ("U", 22, 1, 11), ("D", 22, 3, 3), index=3)
    sink.checkpoint(25)
    lake.go_through()
    return lake, sink


SMALL = [(1, 11, "22"), (4, 4, "3"), (5, 5, "3"), (8, 8, "12")]


def rows(lake: TestLake, table: str) -> list[tuple[Any, ...]]:
    """With the time of the change alone in the text."""
    return [(id, v, s.removeprefix(table), *more) for id, v, s, *more in lake.rows(table)]


@pytest.mark.in_turn
@pytest.mark.usefixtures("no_orphans")
def test_a_table_is_upgraded_in_place_and_has_no_way_back(new_lake: Callable[..., TestLake]) -> None:
    lake, sink = small(new_lake)
    versions = {name: table.format_version for (_, name), table in lake.tables().items()}
    assert versions == {"p": 2, "u": 2, "other": 3}
    assert rows(lake, "p") == SMALL
    assert kinds(lake, "p") == [[], ["StoredPositions"], ["StoredPositions"]], "one file of positions a data file"

    # A statement and changes come with the upgrade of one table, the other one is upgraded alone.
    lake.configure(tables={})
    sink.schema("p", 30, *WIDE, action=ADD_COLUMN, query="ALTER TABLE `p` ADD COLUMN `n` INT DEFAULT 7")
    sink.rows("d/p", 30, row("D", "p", 32, "4", "4", '"p3"', "7"))
    sink.checkpoint(35)
    for table in ("d.p", "d.u"):
        assert "SET TBLPROPERTIES ('format-version'='3')" in planned(lake)[table].statements[0]
    before = {file.path for name in "pu" for file in live_files(lake.tables()["d", name])}
    snapshot = lake.tables()["d", "u"].metadata.current_snapshot_id
    lake.go_through()
    assert {table.format_version for table in lake.tables().values()} == {3}
    assert {file.path for name in "pu" for file in live_files(lake.tables()["d", name])} == before
    assert lake.tables()["d", "u"].metadata.current_snapshot_id == snapshot
    assert kinds(lake, "p") == [[], ["StoredPositions"], ["StoredVector"]], "a vector takes the earlier positions over"
    assert kinds(lake, "u") == [[], ["StoredPositions"], ["StoredPositions"]]
    assert rows(lake, "u") == SMALL
    left = [(*each, 7) for each in SMALL if each[0] != 4]
    assert rows(lake, "p") == left
    check_counts(lake)
    before_idle = lake.metadata()
    run_all(lake.run())
    assert lake.metadata() == before_idle

    # Spark writes files with deleted positions of version 2 anew, and what they leave is taken away.
    lake.configure(maintenance={"min_small_files": 2})
    maintain(lake, 2)
    check_counts(lake)
    for table, expected in (("p", left), ("u", SMALL)):
        assert rows(lake, table) == expected
        health = table_health(lake.tables()["d", table])
        assert (health.files, health.deleted_rows) == (1, 0)

    lake.configure(tables={"settings": {"d.p": {"format_version": 2}}})
    assert "Iceberg has no way back" in (planned(lake)["d.p"].hold or "")
    held = run_all(lake.run()).applied.held
    assert list(held) == ["d.p#1"]
    assert f"{lake.name}__d.p" in held["d.p#1"] and 'tables.settings."d.p".format_version' in held["d.p#1"]
    assert "cdc-lakehouse rebuild d.p" in held["d.p#1"]
    assert rows(lake, "p") == left, "it stays readable"
    lake.lake.catalog.drop_table((f"{lake.name}__d", "p"))
    lake.go_through()
    assert lake.tables()["d", "p"].format_version == 2
    assert rows(lake, "p") == left
    check_counts(lake)


@pytest.mark.in_turn
@pytest.mark.usefixtures("no_orphans")
def test_compaction_leaves_no_deletes(new_lake: Callable[..., TestLake], monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where it ended before it took them away: rows are counted without them, and the next one does it."""
    lake, sink = small(new_lake, maintenance={"min_small_files": 2})
    with monkeypatch.context() as patched:
        patched.setattr(Maintenance, "dangling", lambda self, target: ())
        maintain(lake, table="d.p")
    table = lake.tables()["d", "p"]
    assert len(live_files(table)) == 1 and dangling_deletes(table), "else this shows nothing"
    check_counts(lake)
    put(sink, "p", 1, ("D", 32, 4, 4), index=4)
    sink.checkpoint(35)
    lake.go_through()
    left = [each for each in SMALL if each[0] != 4]
    assert rows(lake, "p") == left
    check_counts(lake)
    assert {each["row_count"] for each in lake.machinery("checkpoints") if each["table"] == "p"} == {5, 4, 3}

    maintain(lake, 2)
    for name, expected in (("p", left), ("u", SMALL)):
        table = lake.tables()["d", name]
        assert rows(lake, name) == expected
        assert not dangling_deletes(table) and table_health(table).deleted_rows == 0
        assert not any(isinstance(each, StoredPositions) for file in live_files(table) for each in file.deletes)
    check_counts(lake)
