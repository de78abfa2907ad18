"""Tests of the steps that need no JVM: sinks on a disk, a real catalog, and no Spark session to be had."""

import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.table import Table as IcebergTable

from cdc_lakehouse.changelog.schema import SchemaChange, SourceColumn, TableName
from cdc_lakehouse.lake.tables.segments import Appended
from cdc_lakehouse.sample.sink_writer import SampleRowChange, SinkWriter, Table
from tests.kit.lakes import TestLake
from tests.kit.scripted_lake import NOON as DAY
from tests.kit.scripted_lake import T0
from tests.lake import CREATE, ID


def lake_in(directory: Path, **feed: Any) -> TestLake:
    return TestLake(directory / "lake", directory / "feed", lambda: pytest.fail("no JVM is needed here"), **feed)


def kafka(form: str, *topics: str, **more: Any) -> dict[str, Any]:
    """The configuration of a source of topics without a broker."""
    return {"type": "kafka", "format": form, "bootstrap_servers": "k:9092", "topics": topics, **more}


def events_of(lake: TestLake, rows: pa.Table | None = None, appended: Appended | None = None) -> IcebergTable:
    """Makes the table `events` with these rows, after batches that were appended."""
    schema = pa.schema([("segment", pa.string())]) if rows is None else rows.schema
    properties = {} if appended is None else appended.as_properties()
    table = lake.lake.catalog.create_table((f"cdc_{lake.name}", "events"), schema, properties=properties)
    if rows is not None:
        table.append(rows)
    return table


class Sink:
    """A changefeed of tables in database `d`; `at` counts commit-ts from `T0`."""

    def __init__(self, directory: Path, *tables: str, checkpoint: int | None = None) -> None:
        self.directory = directory
        self.writer = SinkWriter(directory)
        for table in tables:
            self.create(table)
        if checkpoint is not None:
            self.checkpoint(checkpoint)

    def create(self, table: str, *, at: int = 0, columns: tuple[SourceColumn, ...] = (ID,)) -> None:
        query = f"CREATE TABLE `{table}` (`id` BIGINT PRIMARY KEY)"
        self.writer.write_ddl(SchemaChange(T0 + at, "d", table, CREATE, query, columns, ""), DAY)

    def file(self, table: str, *, at: int = 1, days: int = 0, version: int = 0) -> str:
        """One row, in a data file of its own; gives the file's path."""
        before = set(self.directory.rglob("CDC*.json"))
        source = Table(TableName("d", table), T0 + version, (ID,))
        self.writer.write([SampleRowChange("INSERT", source, T0 + at, {"id": str(at)})])
        self.writer.flush(DAY + datetime.timedelta(days=days))
        (new,) = set(self.directory.rglob("CDC*.json")) - before
        return str(new.relative_to(self.directory))

    def checkpoint(self, at: int) -> None:
        self.writer.checkpoint(T0 + at)
