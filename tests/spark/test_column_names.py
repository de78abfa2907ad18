"""Every name that MySQL takes for a column works, through rows, keys and DDL."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from cdc_lakehouse.changelog.schema import SourceColumn
from tests.kit.hand_sinks import ADD_COLUMN, ADD_KEY, CREATE, CSV, ID, MODIFY, HandSink, integer, row
from tests.kit.lakes import TestLake

pytestmark = pytest.mark.spark

NAMES = [
    "cdc:x", "_file", "_pos", "_row_id", "_partition", "_spec_id", "_deleted", "_last_updated_sequence_number",
    "_COMMIT_TS", "_commit_ts_", "a.b", "a`b", 'say "x"', "it's", "sp ace", "名", "n" * 64, "select", "%s", "{}", "\\",
    "synthetic", "image", "table_no", "key", "line", "segment",
]  # fmt: skip


@pytest.mark.parametrize("name", ["all", "_commit_ts"])
def test_columns_of_any_name(name: str, new_lake: Callable[..., TestLake]) -> None:
    names = NAMES if name == "all" else [name]
    lake = new_lake(source=CSV)
    sink = HandSink(lake.sink)
    columns: tuple[SourceColumn, ...] = (ID, *(integer(each) for each in names))
    sink.schema("t", 1, *columns, action=CREATE, query="CREATE TABLE `t` (`id` BIGINT PRIMARY KEY)")

    def put(index: int, version: int, *changes: tuple[str, int, int, int]) -> None:
        """Rows as (op, at, id, value of all the other columns)."""
        lines = [row(op, "t", at, str(id), *[str(value)] * len(names)) for op, at, id, value in changes]
        sink.rows("d/t", version, *lines, index=index)

    put(1, 1, ("I", 2, 1, 10), ("I", 2, 2, 20), ("I", 2, 3, 30))
    sink.checkpoint(3)
    lake.go_through()
    put(2, 1, ("U", 4, 1, 11), ("D", 5, 2, 20))
    sink.checkpoint(6)
    lake.go_through()
    assert lake.rows("t") == [(1, *[11] * len(names)), (3, *[30] * len(names))]

    # Another name, another column, and a key of all of them.
    renamed = (ID, integer("renamed"), *(integer(each) for each in names[1:]))
    was = names[0].replace("`", "``")
    sink.schema("t", 7, *renamed, action=MODIFY, query=f"ALTER TABLE `t` RENAME COLUMN `{was}` TO `renamed`")
    sink.schema("t", 8, *columns, action=MODIFY, query=f"ALTER TABLE `t` RENAME COLUMN `renamed` TO `{was}`")
    added = (*columns, integer("n"))
    sink.schema("t", 9, *added, action=ADD_COLUMN, query="ALTER TABLE `t` ADD COLUMN `n` INT")
    sink.checkpoint(10)
    lake.go_through()
    keyed = tuple(
        SourceColumn(each.name, each.type, nullable=False, primary_key=True) if each.name in names[:15] else each
        for each in (SourceColumn("id", ID.type), *added[1:])
    )
    quoted = ", ".join("`" + each.replace("`", "``") + "`" for each in names[:15])
    query = f"ALTER TABLE `t` DROP PRIMARY KEY, ADD PRIMARY KEY ({quoted})"
    sink.schema("t", 11, *keyed, action=ADD_KEY, query=query)
    sink.rows("d/t", 11, row("D", "t", 12, "3", *["30"] * len(names), "\\N"))
    sink.checkpoint(13)
    lake.go_through()
    assert lake.rows("t") == [(1, *[11] * len(names), None)]
