"""`python -m benchmarks.many_tables`: what a pass over many tables with a few changes each costs, and what it costs
after many passes.

One session, which is warm after the passes that are not counted. A pass is what a run does, step by step, without
Dagster. CPU is that of this process, of the JVM and of Python's workers together."""

from __future__ import annotations

import datetime
import statistics
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import click

from benchmarks import sbtest
from benchmarks.__main__ import CACHE
from benchmarks.lakehouse import lake_config, sink_source
from benchmarks.memory import cpu_seconds
from cdc_lakehouse.changelog import versions
from cdc_lakehouse.changelog.positions import LOGICAL_BITS, commit_time, tso
from cdc_lakehouse.changelog.schema import SchemaChange, TableName
from cdc_lakehouse.config import FeedConfig
from cdc_lakehouse.lake.catalog import Lake
from cdc_lakehouse.lake.spark import build_session
from cdc_lakehouse.pipeline.run import FeedRun
from cdc_lakehouse.pipeline.steps import Steps
from cdc_lakehouse.sample.sink_writer import Row, SampleRowChange, SinkWriter, Table, canal_json

_COUNT: Final = click.IntRange(min=1)
_ROWS: Final = 1000
"""Of each table, that its changes go over."""


class Log:
    """A sink of tables that all change a little from pass to pass."""

    def __init__(self, directory: Path, tables: int, rows: int = _ROWS) -> None:
        self.rows = rows
        self._writer = SinkWriter(directory, canal_json)
        self._ts = tso(sbtest.FILL_DAY)
        self._tables: list[Table] = []
        self._passes = 0
        for number in range(tables):
            name = TableName("many", f"t{number}")
            self._ts += 1 << LOGICAL_BITS
            query = sbtest.create_statement(name)
            change = SchemaChange(self._ts, name.database, name.table, versions.CREATE_TABLE, query, sbtest.COLUMNS, "")
            self._writer.write_ddl(change, sbtest.FILL_DAY)
            self._tables.append(Table(name, self._ts, sbtest.COLUMNS))

    def later(self, by: datetime.timedelta) -> None:
        """What is written next is so much later."""
        self._ts = tso(commit_time(self._ts) + by)

    def write(self, changes: int) -> None:
        """So many changes of each table: updates of rows from before, inserts where there are none."""
        self._passes += 1
        for table in self._tables:
            for number in range(changes):
                self._ts += 1 << LOGICAL_BITS
                id = (self._passes * changes + number) % self.rows
                row: Row = {"id": str(id), "k": str(self._passes), "c": "c" * 119, "pad": "p" * 59}
                kind, old = ("UPDATE", row) if self._passes > 1 else ("INSERT", None)
                self._writer.write([SampleRowChange(kind, table, self._ts, row, old)])
        self._writer.flush(commit_time(self._ts))
        self._writer.checkpoint(self._ts)


@dataclass(frozen=True)
class Pass:
    """Seconds of the steps: `decode` with landing, `apply` with publishing; CPU seconds of all."""

    decode: float
    apply: float
    cpu: float


@click.command()
@click.option("--tables", type=_COUNT, default=200, show_default=True)
@click.option("--changes", type=_COUNT, default=5, show_default=True, help="Of each table, in each pass.")
@click.option("--passes", type=_COUNT, default=10, show_default=True, help="That are counted.")
@click.option("--warm-up", type=_COUNT, default=3, show_default=True, help="Passes before, the first with all rows.")
@click.option("--cores", type=_COUNT, default=2, show_default=True, help="Spark's task slots.")
def main(tables: int, changes: int, passes: int, warm_up: int, cores: int) -> None:
    """Measure passes over many tables with a few changes each."""
    CACHE.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="many-", dir=CACHE) as scratch:
        found = list(_measured(Path(scratch), tables, changes, warm_up + passes, cores))[warm_up:]
    click.echo("| tables | changes | passes | decode, s | apply + publish, s | ms a table | CPU s a pass |")
    click.echo(f"|{'--:|' * 7}")
    some = max(1, passes // 10)
    for name, part in (("all", found), ("first tenth", found[:some]), ("last tenth", found[-some:])):
        decode, apply, cpu = (
            statistics.median(getattr(each, of) for each in part) for of in ("decode", "apply", "cpu")
        )
        figures = f"{decode:.2f} | {apply:.2f} | {apply / tables * 1000:.0f} | {cpu:.2f}"
        click.echo(f"| {tables} | {changes} | {name} of {passes} | {figures} |")


def _measured(directory: Path, tables: int, changes: int, passes: int, cores: int) -> Iterator[Pass]:
    config = lake_config(directory, cores, 2)
    sink = directory / "sink"
    log = Log(sink, tables)
    feed = FeedConfig.model_validate(
        {
            "name": "many",
            "source": sink_source(sink, "canal-json"),
            "namespace": "many__{database}",
            "start_date": sbtest.FILL_DAY.date(),
        }
    )
    spark = build_session(config)
    try:
        for number in range(passes):
            log.write(_ROWS if number == 0 else changes)
            before, start = cpu_seconds(), time.perf_counter()
            steps = Steps(FeedRun(feed, Lake(config), lambda: spark))
            _ = steps.decoded
            middle = time.perf_counter()
            held = steps.published.cut.held
            end = time.perf_counter()
            if held:
                raise click.ClickException(f"held: {held[:3]}")
            yield Pass(middle - start, end - middle, cpu_seconds() - before)
    finally:
        spark.stop()


if __name__ == "__main__":
    main()
