"""`python -m benchmarks.scaling`: what 1,000 updates of rows anywhere in a table cost, by the table's rows.

The rows are narrow and are written as data files at once, without a change log: with their keys in order, as a load of
a dump writes them, or with keys of the whole table in each file, the worst that changes of many days can do. Then
a feed's runs update rows at random, step by step, without Dagster. CPU and bytes read are those of this process, of the
JVM and of Python's workers together."""

from __future__ import annotations

import os
import random
import shutil
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final, Literal

import click
import numpy as np
import pyarrow as pa
from pyspark.sql import SparkSession

from benchmarks import sbtest
from benchmarks.__main__ import CACHE
from benchmarks.lakehouse import lake_config, sink_source
from benchmarks.memory import cpu_seconds, read_bytes
from cdc_lakehouse.changelog.positions import LOGICAL_BITS, commit_time, tso
from cdc_lakehouse.config import FeedConfig, LakeConfig
from cdc_lakehouse.lake.catalog import Lake
from cdc_lakehouse.lake.files import DataFileWriter, live_files
from cdc_lakehouse.lake.iceberg_java import IcebergJavaApi
from cdc_lakehouse.lake.names import Identifier
from cdc_lakehouse.lake.spark import build_session, open_catalog
from cdc_lakehouse.pipeline.run import FeedRun
from cdc_lakehouse.pipeline.steps import Steps
from cdc_lakehouse.sample.sink_writer import Row, SampleRowChange, SinkWriter, Table, canal_json

_COUNT: Final = click.IntRange(min=1)
_NAME: Final = Identifier("scaling__sbtest", "sbtest1")
_FILE_ROWS: Final = 5_000_000
_GROUP_ROWS: Final = 1_000_000
_WARM_UP_ROWS: Final = 100_000
ORDERS: Final = ("in order", "anywhere")


class LargeTable:
    """A feed with one table of so many rows, whose ids are those from 0."""

    def __init__(self, directory: Path, config: LakeConfig, spark: SparkSession, rows: int, order: str) -> None:
        self._lake, self._spark, self._rows = Lake(config), spark, rows
        self._random = random.Random(rows)
        self._sink = SinkWriter(directory / "sink", canal_json)
        self._ts = tso(sbtest.FILL_DAY)
        self._table = Table(sbtest.NAME, self._ts, sbtest.COLUMNS)
        self._feed = FeedConfig.model_validate(
            {
                "name": "scaling",
                "source": sink_source(directory / "sink", "canal-json"),
                "namespace": "scaling__{database}",
                "start_date": sbtest.FILL_DAY.date(),
            }
        )
        self._sink.write_ddl(sbtest.create_table(), sbtest.FILL_DAY)
        self._write("INSERT", [0])
        self.run()
        self._fill(order)

    def update(self, changes: int) -> None:
        """Write so many updates of rows to the sink."""
        self._write("UPDATE", self._random.sample(range(self._rows), changes))

    def run(self) -> None:
        if held := Steps(FeedRun(self._feed, self._lake, lambda: self._spark)).published.cut.held:
            raise click.ClickException(f"held: {held}")

    def check(self, changes: int) -> None:
        """Raise when the table has not the rows that it had, or more than what was changed is in new files."""
        table = self._lake.load(_NAME)
        assert table is not None
        files = live_files(table)
        deleted = sum(file.deleted_rows for file in files)
        if sum(file.live_rows for file in files) != self._rows or not changes - changes // 10 <= deleted <= changes:
            raise click.ClickException(f"{self._rows} rows, {changes} updated, and {deleted} deleted in their files")

    def _write(self, kind: Literal["INSERT", "UPDATE"], ids: list[int]) -> None:
        for id in ids:
            self._ts += 1 << LOGICAL_BITS
            row: Row = {"id": str(id), "k": str(self._random.randrange(1 << 20)), "c": "c", "pad": ""}
            old = row if kind == "UPDATE" else None
            self._sink.write([SampleRowChange(kind, self._table, self._ts, row, old)])
        self._sink.flush(commit_time(self._ts))
        self._sink.checkpoint(self._ts)

    def _fill(self, order: str) -> None:
        table = self._lake.load(_NAME)
        assert table is not None
        # A prime number that divides no count of rows here: each id once, those of a file all over the table.
        step, files = 1 if order == "in order" else 982_451_653, list[str]()
        for first in range(1, self._rows, _FILE_ROWS):
            path = f"{table.location()}/data/filled-{first}.parquet"
            writer = DataFileWriter(table.io, path, table.schema(), table.properties, plain=["id"])
            for start in range(first, min(self._rows, first + _FILE_ROWS), _GROUP_ROWS):
                numbers = np.arange(start, min(self._rows, first + _FILE_ROWS, start + _GROUP_ROWS), dtype=np.int64)
                ids = numbers * step % self._rows
                writer.write(
                    pa.table(
                        {
                            "id": ids,
                            "k": (ids % 1000).astype(np.int32),
                            "c": pa.repeat(pa.scalar("c"), len(ids)),
                            "pad": pa.repeat(pa.scalar(""), len(ids)),
                            "_commit_ts": pa.repeat(pa.scalar(self._ts), len(ids)),
                        }
                    )
                )
            files.append(writer.close())
        snapshot = table.current_snapshot()
        assert snapshot is not None
        iceberg = IcebergJavaApi(lambda: open_catalog(self._lake.config, self._lake.storage))
        iceberg.transaction(_NAME, snapshot.snapshot_id).commit(data_files=files)


def _measured(cores: int, sizes: tuple[int, ...], changes: int, passes: int) -> Iterator[str]:
    for order in ORDERS:
        for rows in sizes:
            with tempfile.TemporaryDirectory(prefix="scaling-", dir=CACHE) as scratch:
                config = lake_config(Path(scratch), cores, 2)
                spark = build_session(config)
                try:
                    table = LargeTable(Path(scratch), config, spark, rows, order)
                    found: list[tuple[float, float, int]] = []
                    for _ in range(1 + passes):
                        table.update(changes)
                        os.sync()
                        read, cpu, begun = read_bytes(), cpu_seconds(), time.perf_counter()
                        table.run()
                        found.append((time.perf_counter() - begun, cpu_seconds() - cpu, read_bytes() - read))
                    table.check(changes * len(found))
                    size = sum(file.stat().st_size for file in Path(scratch).rglob("filled-*"))
                finally:
                    spark.stop()
            seconds, cpu, read = (statistics.median(values) for values in zip(*found[1:], strict=True))
            yield f"| {rows:,} | {order} | {size >> 20:,} | {seconds:.2f} | {cpu:.2f} | {int(read) >> 20:,} |"


@click.command()
@click.option("--rows", type=_COUNT, multiple=True, default=(1_000_000, 10_000_000, 100_000_000), show_default=True)
@click.option("--changes", type=_COUNT, default=1000, show_default=True, help="Of each pass.")
@click.option("--passes", type=_COUNT, default=3, show_default=True, help="That are counted, after one that is not.")
@click.option("--cores", type=_COUNT, default=2, show_default=True, help="Spark's task slots.")
def main(rows: tuple[int, ...], changes: int, passes: int, cores: int) -> None:
    """Measure updates of rows anywhere in tables of so many ROWS."""
    CACHE.mkdir(parents=True, exist_ok=True)
    if shutil.disk_usage(CACHE).free < max(rows) * 20:
        raise click.ClickException(f"{CACHE} has no room for {max(rows):,} rows")
    click.echo("| rows | keys | MiB | s | CPU s | MiB read |")
    click.echo(f"|--:|---|{'--:|' * 4}")
    list(_measured(cores, (_WARM_UP_ROWS,), changes, passes))
    for line in _measured(cores, rows, changes, passes):
        click.echo(line)


if __name__ == "__main__":
    main()
