"""What a repair writes: texts as the feed's log has them, and nothing where that is not known."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cdc_lakehouse.changelog.mysql_types import ColumnType
from cdc_lakehouse.changelog.schema import SchemaChange, SourceColumn, TableName
from cdc_lakehouse.operate.verify import Difference, Differences, TableResult, plan_repair
from cdc_lakehouse.pipeline.synthetic import NotRepairableError
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
ZERO: dict[str, Any] = {"id": "1", "e": "", "s": "", "b": None, "t": "0000-00-00 00:00:00"}
WRITTEN = {"id": "1", "e": "2", "s": "5", "b": "\x00ÿ", "n": "257", "t": "2026-01-02 01:00:00",
           "t3": "2026-01-02 01:00:00.120", "dt": "2026-01-01 17:00:00"}  # fmt: skip
TWICE: dict[str, Any] = {"id": "1991-09-14 17:30:00.000000", "t3": "1991-09-14 16:30:00.120000"}
"""A moment that clocks of the feed's zone show for the second time, and another one."""
ONE = {"id": "1"}


def lacking(row: dict[str, Any]) -> Difference:
    return Difference("missing", {"id": row["id"]}, (), row, None, row)


@pytest.mark.parametrize(
    ("found", "key", "left_out", "written"),
    [
        (lacking(READ), "int", (), ("I", WRITTEN)),
        (Difference("different", ONE, ("e",), ZERO, READ, ZERO), "int", (), ("U", {**ZERO, "e": "0", "s": "0"})),
        (Difference("extra", {"id": "7"}, (), None, {"id": "7", "e": "a"}), "int", (), ("D", {"id": "7", "e": "1"})),
        # Columns that were not read keep their values.
        (Difference("different", ONE, ("e",), READ, READ, READ), "int", ("g",), ("U", WRITTEN)),
        (lacking(READ), "int", ("g",), "not all columns could be read"),
        (lacking(TWICE), "timestamp", (), ("I", {"id": "1991-09-14 17:30:00+00:00", "t3": "1991-09-15 01:30:00.120"})),
        (Difference("extra", ONE, (), None, ONE), "float", (), "id of its key is a float"),
        (Difference("extra", ONE, (), None, ONE), "double", (), "id of its key is a double"),
        (None, "int", (), "10,001 keys to repair; the limit is 10000"),
    ],
)
def test_repair_writes_values_as_the_log_has_them(
    tmp_path: Path, found: Difference | None, key: str, left_out: tuple[str, ...], written: Any
) -> None:
    id = SourceColumn("id", ColumnType.of(key), nullable=False, primary_key=True)
    columns = (id, *(SourceColumn(name, type) for name, type in TYPES.items() if name != "g" or left_out))
    run = lake_in(tmp_path, source={"time_zone": "Asia/Shanghai"}).run()
    run.history.record([SchemaChange(T0, "d", "t", CREATE, "CREATE TABLE t (id INT)", columns, "o")], NOON)
    (life,) = run.history.history.incarnations()
    counts: Any = {"extra": 10_001} if found is None else {"different": 1, "differences": (found,)}
    result = TableResult(
        TableName("d", "t"), "different", None, T0 + 5, life, left_out=dict.fromkeys(left_out, "not read"), **counts
    )
    if isinstance(written, str):
        with pytest.raises(NotRepairableError, match=written):
            plan_repair(run, result, "somebody")
        return
    repair = plan_repair(run, result, "somebody")
    assert [(row.op, row.image) for row in repair.rows] == [written]
    assert (repair.checkpoint_ts, repair.requested_by) == (T0 + 5, "somebody")


def test_row_that_the_lake_has_twice_is_not_deleted() -> None:
    """Of one that is right the source has a row."""
    differences = Differences([("id", TYPES["b"]), ("v", TYPES["b"])], 1, 9)
    differences.compare([("k", "1", "a")], [("k", "1", "a"), ("k", "1", "b")], None)
    differences.compare([], [("l", "2", "a")], None)
    assert [(each.kind, each.source, each.correct) for each in differences.shown] == [
        ("extra", None, {"id": "1", "v": "a"}),
        ("extra", None, None),
    ]
