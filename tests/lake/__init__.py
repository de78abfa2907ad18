"""Tests of the lake that need no JVM: what PyIceberg reads and writes, on a real SQLite catalog."""

import datetime
import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from cdc_lakehouse.changelog.mysql_types import ColumnType
from cdc_lakehouse.changelog.schema import SourceColumn
from cdc_lakehouse.lake.catalog import Lake, system_table
from tests.kit import scripted_lake
from tests.kit.lakes import lake_config

T = TypeVar("T")

change, make_current_table = scripted_lake.change, scripted_lake.make_current_table
segment = functools.partial(scripted_lake.segment, state="landed")
ID, NOON = scripted_lake.KEY, scripted_lake.NOON
LATER = NOON + datetime.timedelta(hours=1)

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


def runs(table: Callable[[Lake, str], T], directory: Path) -> Callable[[], T]:
    """Each call is another run, with a catalog of its own and nothing in memory."""
    return lambda: table(Lake(lake_config(directory)), "f")


def stored(directory: Path, name: str) -> Any:
    """One of the feed's own tables as a reader has it, None where it is not there."""
    return Lake(lake_config(directory)).load(system_table("f", name))
