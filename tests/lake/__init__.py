"""Tests of the lake that need no JVM: what PyIceberg reads and writes, on a real SQLite catalog."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa

from cdc_lakehouse.changelog.history import Incarnation
from cdc_lakehouse.changelog.mysql_types import ColumnType
from cdc_lakehouse.changelog.schema import SchemaChange, SourceColumn
from cdc_lakehouse.lake.catalog import Lake, system_table
from cdc_lakehouse.lake.current.tables import CurrentTables
from cdc_lakehouse.lake.names import Identifier
from cdc_lakehouse.lake.tables.segments import Segment
from tests.kit import scripted_lake
from tests.kit.lakes import TestLake, lake_config

T = TypeVar("T")
KEY_ALONE = pa.schema([pa.field("id", pa.int64())])

NOON = datetime.datetime(2026, 6, 1, 12, tzinfo=datetime.UTC)
LATER = NOON + datetime.timedelta(hours=1)

ID = SourceColumn("id", ColumnType.of("BIGINT", length=20), nullable=False, primary_key=True)
CREATE, DROP, ADD_COLUMN, TRUNCATE, RENAME, DROP_DATABASE = 3, 4, 5, 11, 14, 2


def moment(*parts: int) -> datetime.datetime:
    return datetime.datetime(*parts)  # type: ignore[arg-type]  # noqa: DTZ001


def utc(*parts: int) -> datetime.datetime:
    return datetime.datetime(*parts, tzinfo=datetime.UTC)  # type: ignore[misc]


def written(value: Any) -> str:
    """A value as a literal of Python."""
    if isinstance(value, datetime.datetime):
        parts = [*value.timetuple()[:6], value.microsecond]
        while len(parts) > 3 and not parts[-1]:
            parts.pop()
        return f"{'moment' if value.tzinfo is None else 'utc'}{tuple(parts)}"
    return repr(value).removeprefix("datetime.")


def text(name: str) -> SourceColumn:
    return SourceColumn(name, ColumnType.of("VARCHAR", length=20))


def segment(path: str, batch: int = 1, state: str = "landed", **more: Any) -> Segment:
    """A data file that has landed, by its path: `database/table/version/file`."""
    return scripted_lake.segment(path, batch=batch, state=state, **more)


def change(commit_ts: int, table: str, action: int, query: str = "", *columns: SourceColumn) -> SchemaChange:
    """A DDL in database `d`; without columns those of a table with only a key."""
    shown = columns or ((ID,) if table else ())
    return SchemaChange(commit_ts, "d", table, action, query, shown, f"d/{table}/meta/schema_{commit_ts}_{table}.json")


def runs(table: Callable[[Lake, str], T], directory: Path) -> Callable[[], T]:
    """Each call is another run, with a catalog of its own and nothing in memory."""
    return lambda: table(Lake(lake_config(directory)), "f")


def stored(directory: Path, name: str) -> Any:
    """One of the feed's own tables as a reader has it, None where it is not there."""
    return Lake(lake_config(directory)).load(system_table("f", name))


def make_current_table(
    lake: TestLake, life: Incarnation, where: Identifier, columns: pa.Schema = KEY_ALONE, **properties: str
) -> Any:
    """A current-state table as a run makes it, with further properties (`_` for `.`)."""
    own = CurrentTables(lake.lake, lake.feed).first_properties(life)
    more = {name.replace("_", "."): value for name, value in properties.items()}
    lake.lake.ensure_namespace(where.namespace)
    return lake.lake.catalog.create_table(where.parts, columns, properties={**own, "format-version": "2", **more})
