"""`python -m benchmarks.load`: what an initial load costs, beside DuckDB that reads the same files to Parquet.

The dump is sysbench's table as Dumpling writes it. The product makes events, the current table and the first cut of it;
DuckDB makes typed rows in zstd Parquet, and of csv alone, for it reads no statements. The session is warm: a small dump
was loaded before, and all files were read through once. CPU is that of this process, of the JVM and of Python's
workers together."""

from __future__ import annotations

import datetime
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import click
import duckdb

from benchmarks import sbtest
from benchmarks.__main__ import CACHE
from benchmarks.change_log import read_through
from benchmarks.lakehouse import lake_config, sink_source
from benchmarks.memory import cpu_seconds
from cdc_lakehouse.changelog.positions import tso
from cdc_lakehouse.config import FeedConfig
from cdc_lakehouse.lake.catalog import Lake
from cdc_lakehouse.lake.spark import build_session
from cdc_lakehouse.pipeline.run import FeedRun
from cdc_lakehouse.pipeline.steps import Steps
from cdc_lakehouse.sample.sink_writer import SinkWriter, canal_json

_WARM_ROWS: Final = 200_000
_AT: Final = tso(sbtest.CHANGE_DAY)
_TYPES: Final = "{'id': 'BIGINT', 'k': 'INTEGER', 'c': 'VARCHAR', 'pad': 'VARCHAR'}"
_QUERY: Final = """
COPY (
    SELECT * FROM read_csv({files}, columns = {types}, delim = ',', quote = '"', escape = '"', nullstr = '\\N',
        allow_quoted_nulls = false, header = true, auto_detect = false, new_line = '\\r\\n')
) TO {target} (FORMAT parquet, COMPRESSION zstd, COMPRESSION_LEVEL 1)
"""


def write_dump(root: Path, rows: int, form: str, file_rows: int) -> Path:
    """A dump in files of so many rows."""
    directory = root / f"dump-{form}-{rows}-{file_rows}"
    if (directory / "metadata").exists():
        return directory
    directory.mkdir(parents=True, exist_ok=True)
    name = f"{sbtest.NAME.database}.{sbtest.NAME.table}"
    create = sbtest.create_statement(sbtest.NAME)
    (directory / f"{name}-schema.sql").write_text(f"/*!40101 SET NAMES binary*/;\n{create};\n", encoding="utf-8")
    changes = sbtest.Sbtest(1).fill(rows)
    for number, first in enumerate(range(0, rows, file_rows)):
        count = min(file_rows, rows - first)
        found = [change.row for _, change in zip(range(count), changes, strict=False)]
        path = directory / f"{name}.{number:09d}.{form}"
        with path.open("w", encoding="utf-8", newline="") as file:
            if form == "csv":
                file.write('"id","k","c","pad"\r\n')
                file.writelines(f'{r["id"]},{r["k"]},"{r["c"]}","{r["pad"]}"\r\n' for r in found)
            else:
                file.write("/*!40101 SET NAMES binary*/;\n")
                for start in range(0, len(found), 4_000):
                    tuples = ",\n".join(
                        f"({r['id']},{r['k']},'{r['c']}','{r['pad']}')" for r in found[start : start + 4_000]
                    )
                    file.write(f"INSERT INTO `{sbtest.NAME.table}` VALUES\n{tuples};\n")
    status = f"SHOW MASTER STATUS:\n\tLog: tidb-binlog\n\tPos: {_AT}\n\tGTID:\n\n"
    text = f"Started dump at: 2026-01-16 00:00:00\n{status}Finished dump at: 2026-01-16 00:01:00\n"
    (directory / "metadata").write_text(text, encoding="utf-8")
    return directory


class _Lake:
    def __init__(self, directory: Path, cores: int, memory_gib: int) -> None:
        self.config = lake_config(directory, cores, memory_gib)
        self.spark = build_session(self.config)
        self._directory = directory
        self._number = 0

    def load(self, dump: Path, rows: int) -> float:
        """A feed of its own that begins with a dump; gives the seconds in which events were made."""
        self._number += 1
        sink = self._directory / f"sink-{self._number}"
        SinkWriter(sink, canal_json).checkpoint(_AT)
        source = {**sink_source(sink, "canal-json"), "initial": {"type": "dumpling", "uri": dump.as_uri()}}
        start = sbtest.FILL_DAY.date()
        feed = FeedConfig.model_validate(
            {"name": f"load{self._number}", "source": source, "namespace": "{feed}", "start_date": start}
        )
        steps = Steps(FeedRun(feed, Lake(self.config), lambda: self.spark))
        segments = steps.loaded.segments
        (row,) = steps.run.checkpoints.rows(_AT)
        if row.row_count != rows:
            raise click.ClickException(f"{row.row_count} rows are in the table, {rows} in the dump")
        decoded = max(each.decoded_at or each.landed_at for each in segments)
        return (decoded - min(each.landed_at for each in segments)) / datetime.timedelta(seconds=1)


@click.command(help=__doc__)
@click.option("--rows", default=1_000_000, show_default=True, type=click.IntRange(min=1))
@click.option("--file-rows", default=200_000, show_default=True, type=click.IntRange(min=1), help="Rows of a file.")
@click.option("--cores", default=os.cpu_count() or 1, show_default=True)
@click.option("--memory-gib", default=4, show_default=True)
@click.option("--repeats", default=3, show_default=True, type=click.IntRange(min=1), help="Passes that are measured.")
def main(rows: int, file_rows: int, cores: int, memory_gib: int, repeats: int) -> None:
    with tempfile.TemporaryDirectory(dir=CACHE) as temporary:
        directory = Path(temporary)
        lake = _Lake(directory, cores, memory_gib)
        dumps = {form: write_dump(CACHE, rows, form, file_rows) for form in ("csv", "sql")}
        for form in dumps:
            lake.load(write_dump(directory, _WARM_ROWS, form, file_rows), _WARM_ROWS)
        read_through(path for dump in dumps.values() for path in dump.iterdir())
        found: dict[str, list[tuple[float, float, float]]] = {"DuckDB, csv": [], **{form: [] for form in dumps}}
        for number in range(repeats):
            target = directory / f"duck-{number}.parquet"
            found["DuckDB, csv"].append(_timed(lambda target=target: _duck(dumps["csv"], target, cores)))
            for form, dump in dumps.items():
                found[form].append(_timed(lambda dump=dump: lake.load(dump, rows)))
            click.echo(f"pass {number + 1} of {repeats} measured", err=True)
    click.echo(f"{rows} rows in files of {file_rows}, {cores} cores, {repeats} passes\n")
    click.echo("| | wall s | CPU s | events made, s | ratio to DuckDB of events / of all |")
    click.echo("|---|--:|--:|--:|--:|")
    duck = statistics.median(wall for wall, _, _ in found["DuckDB, csv"])
    for what, passes in found.items():
        wall, cpu, events = (statistics.median(each) for each in zip(*passes, strict=True))
        ratios = f"{duck / events:.2f} / {duck / wall:.2f}" if what in dumps else ""
        click.echo(f"| {what} | {wall:.1f} | {cpu:.1f} | {events:.1f} | {ratios} |")


def _timed(work: Callable[[], float | None]) -> tuple[float, float, float]:
    """Wall seconds, CPU seconds, and the seconds that the work says, or all."""
    begin, cpu = time.monotonic(), cpu_seconds()
    said = work()
    wall = time.monotonic() - begin
    return wall, cpu_seconds() - cpu, wall if said is None else said


def _duck(dump: Path, target: Path, cores: int) -> None:
    with duckdb.connect(config={"threads": cores, "preserve_insertion_order": False}) as connection:
        files = [str(path) for path in sorted(dump.glob("*.csv"))]
        connection.execute(_QUERY.format(files=files, types=_TYPES, target=f"'{target}'"))


if __name__ == "__main__":
    main()
