"""`python -m benchmarks.growth`: what a run reads of what earlier ones have left, without a JVM.

A feed of topics after many runs, a sink after many restarts of its changefeed, and one after many files: the seconds
of CPU that it takes to read their state, and the growth of the process meanwhile. Each is measured in a process of its
own."""

from __future__ import annotations

import datetime
import multiprocessing
import multiprocessing.connection
import resource
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import click
import pyarrow as pa

from benchmarks.lakehouse import lake_config
from cdc_lakehouse.changelog.mysql_types import ColumnType
from cdc_lakehouse.changelog.schema import SchemaChange, SourceColumn
from cdc_lakehouse.lake.catalog import Lake
from cdc_lakehouse.lake.tables import schema_history, segments, source_metadata
from cdc_lakehouse.lake.tables.schema_history import SchemaHistory
from cdc_lakehouse.lake.tables.segments import Segments, index_gaps
from cdc_lakehouse.lake.tables.small_table import SmallTable
from cdc_lakehouse.lake.tables.source_metadata import Signals

_NOW: Final = datetime.datetime(2026, 6, 1, tzinfo=datetime.UTC)
_COLUMNS: Final = 30


@click.command()
@click.option("--runs", default="1,100,1000,10000", show_default=True, help="Runs of a feed of topics.")
@click.option("--partitions", default=32, show_default=True, help="Partitions that each of them has read.")
@click.option("--restarts", default="0,10,50", show_default=True, help="Restarts of a changefeed of a sink.")
@click.option("--tables", default=100, show_default=True, help="Tables that it has, of 30 columns each.")
@click.option("--files", default="1000,100000,500000", show_default=True, help="Files of a sink.")
def main(runs: str, partitions: int, restarts: str, tables: int, files: str) -> None:
    """Measure how the state that a run reads grows with runs, restarts and files."""
    click.echo("| state | size | rows | CPU seconds to read | MiB |\n|---|--:|--:|--:|--:|")
    for name, sizes, fill, read in (
        (f"positions of {partitions} partitions", runs, lambda lake, n: _fill_signals(lake, n, partitions), _signals),
        (f"versions of {tables} tables", restarts, lambda lake, n: _fill_history(lake, n, tables), _history),
        ("files", files, _fill_segments, _segments),
    ):
        for size in map(int, sizes.split(",")):
            with tempfile.TemporaryDirectory() as directory:
                fill(Lake(lake_config(Path(directory), 2, 1)), size)
                rows, seconds, mib = _measured(read, directory)
            click.echo(f"| {name} | {size:,} | {rows:,} | {seconds:.2f} | {mib:,} |")


def _measured(read: Callable[[Lake], int], directory: str) -> tuple[int, float, int]:
    """Return the rows, the seconds of CPU, and the MiB by which the peak of a process grew."""
    here, there = multiprocessing.get_context("fork").Pipe()
    process = multiprocessing.get_context("fork").Process(target=_measure, args=(read, directory, there))
    process.start()
    found: tuple[int, float, int] = here.recv()
    process.join()
    return found


def _measure(read: Callable[[Lake], int], directory: str, results: multiprocessing.connection.Connection) -> None:
    lake = Lake(lake_config(Path(directory), 2, 1))
    lake.catalog.list_namespaces()
    before, begun = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
    rows = read(lake)
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    results.send((rows, time.process_time() - begun, grown // 1024))


def _fill_signals(lake: Lake, runs: int, partitions: int) -> None:
    count = runs * partitions
    columns = {
        "batch": [n // partitions + 1 for n in range(count)],
        "kind": ["position"] * count,
        "topic": ["shop"] * count,
        "partition": [n % partitions for n in range(count)],
        "commit_ts": list(range(count)),
        "watermark": list(range(count)),
    }
    schema = source_metadata.SCHEMA
    missing = {field.name: pa.nulls(count, field.type) for field in schema if field.name not in columns}
    table = pa.Table.from_pydict({**missing, **columns}, schema=schema)
    SmallTable(lake, "f", "signals", schema).write(table)


def _signals(lake: Lake) -> int:
    signals = Signals(lake, "f")
    for asked in (signals.last_ts, signals.positions_before):
        asked(1 << 60)
    assert signals.positions()
    return len(signals.position_rows)


def _fill_history(lake: Lake, restarts: int, tables: int) -> None:
    type = ColumnType.of("bigint")
    columns = tuple(SourceColumn(f"c{n}", type, nullable=n > 0, primary_key=n == 0) for n in range(_COLUMNS))
    for restart in range(restarts + 1):
        ts, kind = 10 + restart, "columns" if restart else "statement"
        SchemaHistory(lake, "f").record(
            [
                SchemaChange(ts, "d", f"t{n}", 0 if restart else 3, "", columns, f"d/t{n}/schema_{ts}", kind=kind)
                for n in range(tables)
            ],
            _NOW,
        )


def _history(lake: Lake) -> int:
    history = SchemaHistory(lake, "f")
    assert history.history.incarnations()
    assert history.changes
    return SmallTable(lake, "f", "schema_history", schema_history.SCHEMA).scan(["number"]).num_rows


def _fill_segments(lake: Lake, files: int) -> None:
    columns = {
        "segment": [f"d/t/1/2026-06-01/{n // 1000}/CDC{n % 1000 + 1:020d}.json" for n in range(files)],
        "kind": ["file"] * files, "database": ["d"] * files, "table": ["t"] * files, "table_version": [1] * files,
        "feed_date": ["2026-06-01"] * files, "file_index": [n % 1000 + 1 for n in range(files)], "size": [1] * files,
        "batch": [1] * files, "state": ["decoded"] * files, "landed_at": [_NOW] * files,
    }  # fmt: skip
    schema = segments.SCHEMA
    missing = {field.name: pa.nulls(files, field.type) for field in schema if field.name not in columns}
    SmallTable(lake, "f", "segments", schema).write(pa.Table.from_pydict({**missing, **columns}, schema=schema))


def _segments(lake: Lake) -> int:
    rows = Segments(lake, "f").rows
    index_gaps(rows)
    return rows.num_rows


if __name__ == "__main__":
    main()
