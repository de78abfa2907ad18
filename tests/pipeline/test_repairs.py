"""What a repair writes: texts as the feed's log has them, and nothing where that is not known."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cdc_lakehouse.changelog.mysql_types import ColumnType
from cdc_lakehouse.changelog.schema import SchemaChange, SourceColumn, TableName
from cdc_lakehouse.operate.repairs import plan_repair
from cdc_lakehouse.operate.row_differences import ComparedColumns, Difference, Differences
from cdc_lakehouse.operate.verify import TableResult
from cdc_lakehouse.pipeline.context import TableRepair
from cdc_lakehouse.pipeline.repairs import NotRepairableError
from tests.lake import CREATE, NOON
from tests.pipeline import T0, lake_in

TYPES = {
    "e": ColumnType.of("enum", elements=("a", "b")), "s": ColumnType.of("set", elements=("x", "y", "z")),
    "b": ColumnType.of("varbinary", length=9), "n": ColumnType.of("bit", length=9), "t": ColumnType.of("timestamp"),
    "t3": ColumnType.of("timestamp", scale=3), "dt": ColumnType.of("datetime"), "g": ColumnType.of("point"),
}  # fmt: skip
"""All but the key."""
READ: dict[str, Any] = {
    "id": "1", "e": "b", "s": "x,z", "b": b"\x00\xff", "n": "257", "t": "2026-01-01 17:00:00.000000",
    "t3": "2026-01-01 17:00:00.120000", "dt": "2026-01-01 17:00:00.000000",
}  # fmt: skip
"""A row as it was read to be compared; `g` is not."""


def repair(directory: Path, *found: Difference, left_out: tuple[str, ...] = (), key: str = "int") -> TableRepair:
    lake = lake_in(directory, source={"time_zone": "Asia/Shanghai"})
    id = SourceColumn("id", ColumnType.of(key), nullable=False, primary_key=True)
    columns = (id, *(SourceColumn(name, type) for name, type in TYPES.items() if name != "g" or left_out))
    run = lake.run()
    run.history.record([SchemaChange(T0, "d", "t", CREATE, "CREATE TABLE t (id INT)", columns, "o")], NOON)
    (life,) = run.history.history.incarnations()
    result = TableResult(
        TableName("d", "t"), "different", None, T0 + 5, life, different=len(found), differences=found,
        left_out=dict.fromkeys(left_out, "it is not read"),
    )  # fmt: skip
    return plan_repair(run, result, "somebody")


def test_values_are_written_as_the_log_has_them(tmp_path: Path) -> None:
    found = repair(tmp_path, Difference("missing", {"id": "1"}, (), READ, None, READ))
    (row,) = found.rows
    assert (row.op, found.checkpoint_ts, found.requested_by) == ("I", T0 + 5, "somebody")
    assert row.image == {
        "id": "1", "e": "2", "s": "5", "b": "\x00ÿ", "n": "257", "t": "2026-01-02 01:00:00",
        "t3": "2026-01-02 01:00:00.120", "dt": "2026-01-01 17:00:00",
    }  # fmt: skip


def test_dates_that_are_none_stay_and_null_is_null(tmp_path: Path) -> None:
    row = {"id": "1", "e": "", "s": "", "b": None, "t": "0000-00-00 00:00:00"}
    (found,) = repair(tmp_path, Difference("different", {"id": "1"}, ("e",), row, READ, row)).rows
    image = {"id": "1", "e": "0", "s": "0", "b": None, "t": "0000-00-00 00:00:00"}
    assert (found.op, found.image) == ("U", image)


def test_a_row_that_the_source_lacks_is_deleted(tmp_path: Path) -> None:
    (found,) = repair(tmp_path, Difference("extra", {"id": "7"}, (), None, {"id": "7", "e": "a"})).rows
    assert (found.op, found.image) == ("D", {"id": "7", "e": "1"})


def test_a_row_that_is_there_twice_is_not_deleted() -> None:
    """Of one that is right the source has a row."""
    differences = Differences(ComparedColumns(("id", "v"), (TYPES["b"], TYPES["b"]), 1), 9)
    differences.compare([("k", "1", "a")], [("k", "1", "a"), ("k", "1", "b")], None)
    differences.compare([], [("l", "2", "a")], None)
    assert [(each.kind, each.source, each.correct) for each in differences.shown] == [
        ("extra", None, {"id": "1", "v": "a"}),
        ("extra", None, None),
    ]


def test_columns_that_were_not_read_keep_their_values(tmp_path: Path) -> None:
    changed = Difference("different", {"id": "1"}, ("e",), READ, READ, READ)
    (found,) = repair(tmp_path / "1", changed, left_out=("g",)).rows
    assert found.op == "U" and "g" not in found.image
    with pytest.raises(NotRepairableError, match="not all columns could be read"):
        repair(tmp_path / "2", Difference("missing", {"id": "1"}, (), READ, None, READ), left_out=("g",))


def test_a_moment_that_clocks_show_for_the_second_time_is_in_utc(tmp_path: Path) -> None:
    row = {"id": "1991-09-14 17:30:00.000000", "t3": "1991-09-14 16:30:00.120000"}
    (found,) = repair(tmp_path, Difference("missing", row, (), row, None, row), key="timestamp").rows
    assert found.image == {"id": "1991-09-14 17:30:00+00:00", "t3": "1991-09-15 01:30:00.120"}


@pytest.mark.parametrize("key", ["float", "double"])
def test_a_key_that_is_not_exact_is_not_repaired(tmp_path: Path, key: str) -> None:
    with pytest.raises(NotRepairableError, match=f"id of its key is a {key}"):
        repair(tmp_path, Difference("extra", {"id": "1"}, (), None, {"id": "1"}), key=key)


def test_more_than_is_known_is_not_repaired(tmp_path: Path) -> None:
    run = lake_in(tmp_path).run()
    result = TableResult(TableName("d", "t"), "different", None, T0, "d.t#1", extra=10_001)
    with pytest.raises(NotRepairableError, match="10001 keys differ, and no more than 10000"):
        plan_repair(run, result, "somebody")
