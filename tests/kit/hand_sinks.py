"""Sinks written by hand, a file at a time, and by the options that differ from TiCDC's own."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from cdc_lakehouse.changelog.mysql_types import ColumnType
from cdc_lakehouse.changelog.schema import SchemaChange, SourceColumn
from cdc_lakehouse.config import DateSeparator, Protocol, StorageSinkSource
from cdc_lakehouse.sample.sink_writer import SinkWriter, schema_file, write_atomically
from cdc_lakehouse.sources.sink import listing

CSV = {"protocol": "csv", "csv": {"include-commit-ts": True}}
"""The source's options for what is written here."""
DAY = "2026-06-10"
T0 = 466_000_000_000_000_000
CREATE, DROP, ADD_COLUMN, DROP_COLUMN, TRUNCATE, MODIFY, RENAME = 3, 4, 5, 6, 11, 12, 14
EXCHANGE, MULTI = 42, 61

ID = SourceColumn("id", ColumnType.of("BIGINT", length=20), nullable=False, primary_key=True)


def integer(name: str) -> SourceColumn:
    return SourceColumn(name, ColumnType.of("INT", length=11))


def text(name: str) -> SourceColumn:
    return SourceColumn(name, ColumnType.of("VARCHAR", length=50))


COLUMNS = (ID, integer("v"), text("s"))


def row(op: str, table: str, at: int, *values: str, extra: Sequence[str] = ()) -> str:
    """A csv row; the values stand as they are given."""
    return ",".join([f'"{op}"', f'"{table}"', '"d"', str(T0 + at), *extra, *values])


@dataclass
class HandSink:
    """Tables of database `d`, in csv. `at` counts commit-ts from `T0`. `directory` is the table's, where it is not that
    of its name."""

    root: Path

    def schema(
        self, table: str, at: int, *columns: SourceColumn, action: int = 0, query: str = "", directory: str = ""
    ) -> None:
        change = SchemaChange(T0 + at, "d", table, action, query, columns, "")
        path, content = schema_file(change)
        self.write(path.replace(f"d/{table}/", f"{directory or f'd/{table}'}/"), content)

    def create(self, *tables: str, at: int = 1) -> None:
        for table in tables:
            self.schema(table, at, *COLUMNS, action=CREATE, query=f"CREATE TABLE `{table}` (`id` BIGINT PRIMARY KEY)")

    def begin(self, *tables: str, rows: int = 1) -> None:
        """Tables of versions 1, 2, … with rows `(n, n)`, the first at two after its version."""
        for at, table in enumerate(tables, 1):
            self.create(table, at=at)
            self.put(table, at, *[("I", at + 2 * n, n, n) for n in range(1, rows + 1)])
        self.checkpoint(9)

    def put(self, table: str, version: int, *changes: tuple[Any, ...], index: int = 1, date: str = DAY) -> Path:
        """Changes as (op, at, values of all columns but `s`, which says what and when)."""
        lines = [row(op, table, at, *map(str, values), f'"{table}{at}"') for op, at, *values in changes]
        return self.rows(f"d/{table}", version, *lines, index=index, date=date)

    def rows(self, directory: str, version: int, *lines: str, index: int = 1, date: str = DAY) -> Path:
        return self.write(f"{directory}/{T0 + version}/{date}/CDC{index:020d}.csv", "".join(f"{x}\r\n" for x in lines))

    def checkpoint(self, at: int) -> None:
        SinkWriter(self.root).checkpoint(T0 + at)

    def write(self, path: str, content: str) -> Path:
        write_atomically(self.root / path, content)
        return self.root / path


PARTITIONED = (
    "CREATE TABLE `p` (`id` BIGINT PRIMARY KEY, `v` INT, `s` VARCHAR(50)) PARTITION BY RANGE (`id`) "
    "(PARTITION p0 VALUES LESS THAN (10), PARTITION p1 VALUES LESS THAN MAXVALUE)"
)


def layout_with(
    separator: DateSeparator = "day", protocol: Protocol = "canal-json", *, table_ids: bool = False
) -> StorageSinkSource:
    given = {"uri": "s3://sink", "date_separator": separator, "protocol": protocol, "use_table_id_as_path": table_ids}
    csv = {"csv": {"include-commit-ts": True}} if protocol == "csv" else {}
    return StorageSinkSource.model_validate({"type": "storage_sink", "time_zone": "UTC", **given, **csv})


def look_closely(patch: pytest.MonkeyPatch, objects: int) -> None:
    """A listing takes so many objects to save a request: with none no table is small."""
    patch.setattr(listing, "REQUEST", objects)
