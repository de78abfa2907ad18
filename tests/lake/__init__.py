"""Tests of the lake that need no JVM: what PyIceberg reads and writes, on a real SQLite catalog."""

from __future__ import annotations

import datetime
from typing import Any

from cdc_lakehouse.changelog.mysql_types import ColumnType
from cdc_lakehouse.changelog.schema import SchemaChange, SourceColumn
from cdc_lakehouse.lake.tables.segments import Segment

NOON = datetime.datetime(2026, 6, 1, 12, tzinfo=datetime.UTC)
LATER = NOON + datetime.timedelta(hours=1)

ID = SourceColumn("id", ColumnType.of("BIGINT", length=20), nullable=False, primary_key=True)
CREATE, DROP, ADD_COLUMN, TRUNCATE, RENAME, DROP_DATABASE = 3, 4, 5, 11, 14, 2


def text(name: str) -> SourceColumn:
    return SourceColumn(name, ColumnType.of("VARCHAR", length=20))


def segment(path: str, batch: int = 1, state: str = "landed", **more: Any) -> Segment:
    """A segment by its path: `database/table/version/file`."""
    database, table, version, *_ = path.split("/")
    fields: dict[str, Any] = {
        "physical_partition": None,
        "feed_date": None,
        "dispatcher": None,
        "file_index": 1,
        "size": 10,
        "etag": "e",
        "modified_at": NOON,
        "landed_at": NOON,
        **more,
    }
    return Segment(
        segment=path, kind="file", database=database, table=table, table_version=int(version), batch=batch, state=state,
        **fields,
    )  # fmt: skip


def change(commit_ts: int, table: str, action: int, query: str = "", *columns: SourceColumn) -> SchemaChange:
    """A DDL in database `d`; without columns those of a table with only a key."""
    shown = columns or ((ID,) if table else ())
    return SchemaChange(commit_ts, "d", table, action, query, shown, f"d/{table}/meta/schema_{commit_ts}_{table}.json")
