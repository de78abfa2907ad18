"""Every name that MySQL takes for a column works, through rows, keys and DDL."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from cdc_lakehouse.changelog.schema import SourceColumn, TableName
from cdc_lakehouse.sample import sink_writer
from cdc_lakehouse.sample.sink_writer import SampleRowChange, SinkWriter, Table
from tests.kit.csv_sinks import csv
from tests.kit.hand_sinks import ADD_COLUMN, ADD_KEY, CREATE, CSV, ID, MODIFY, T0, HandSink, integer
from tests.kit.lakes import TestLake
from tests.lake import NOON

pytestmark = pytest.mark.spark

NAMES = [
    "cdc:x", "_file", "_pos", "_row_id", "_partition", "_spec_id", "_deleted", "_last_updated_sequence_number",
    "_COMMIT_TS", "_commit_ts_", "a.b", "a`b", 'say "x"', "it's", "sp ace", "名", "n" * 64, "select", "%s", "{}", "\\",
    "synthetic", "image", "table_no", "key", "line", "segment",
]  # fmt: skip


_ENCODE = {"csv": csv, "canal-json": sink_writer.canal_json}


@pytest.mark.parametrize(
    ("name", "protocol", "format_version"),
    [("all", "csv", 3), ("_commit_ts", "csv", 3), ("all", "canal-json", 3), ("all", "csv", 2)],
)
def test_columns_of_any_name(name: str, protocol: str, format_version: int, new_lake: Callable[..., TestLake]) -> None:
    names = NAMES if name == "all" else [name]
    lake = new_lake(source=CSV if protocol == "csv" else {"protocol": protocol}, format_version=format_version)
    sink = HandSink(lake.sink)
    files = SinkWriter(lake.sink, _ENCODE[protocol], "csv" if protocol == "csv" else "json")
    columns: tuple[SourceColumn, ...] = (ID, *(integer(each) for each in names))
    sink.schema("t", 1, *columns, action=CREATE, query="CREATE TABLE `t` (`id` BIGINT PRIMARY KEY)")

    def put(version: int, shown: tuple[SourceColumn, ...], *changes: tuple[Any, ...]) -> None:
        """Rows as (kind, at, id, value of all the other columns, their value before of an update)."""
        table = Table(TableName("d", "t"), T0 + version, shown)
        for kind, at, id, *values in changes:
            row, *old = (
                {**dict.fromkeys(column.name for column in shown), "id": str(id), **dict.fromkeys(names, str(value))}
                for value in values
            )
            files.write([SampleRowChange(kind, table, T0 + at, row, *old)])
        files.flush(NOON)

    put(1, columns, ("INSERT", 2, 1, 10), ("INSERT", 2, 2, 20), ("INSERT", 2, 3, 30))
    sink.checkpoint(3)
    lake.go_through()
    put(1, columns, ("UPDATE", 4, 1, 11, 10), ("DELETE", 5, 2, 20))
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
    put(11, keyed, ("DELETE", 12, 3, 30))
    sink.checkpoint(13)
    lake.go_through()
    assert lake.rows("t") == [(1, *[11] * len(names), None)]
