"""`python -m benchmarks.maintenance`: what many runs of small changes leave, with maintenance every so often.

One warm session, one table. A pass is what a run does, step by step, without Dagster. Maintenance is told that cuts are
outdated at once, so that storage shows what it can take away."""

from __future__ import annotations

import datetime
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import click

from benchmarks import sbtest
from benchmarks.__main__ import CACHE
from benchmarks.lakehouse import lake_config, sink_source
from benchmarks.many_tables import Log
from cdc_lakehouse.config import FeedConfig, LakeConfig
from cdc_lakehouse.lake.catalog import Lake
from cdc_lakehouse.lake.spark import build_session
from cdc_lakehouse.lake.table_health import TableHealth, table_health
from cdc_lakehouse.pipeline.context import utc_now
from cdc_lakehouse.pipeline.maintenance import Maintenance
from cdc_lakehouse.pipeline.run import FeedRun
from cdc_lakehouse.pipeline.steps import run_all

_COUNT: Final = click.IntRange(min=1)
_READS: Final = 5


@click.command()
@click.option("--rows", type=_COUNT, default=20_000, show_default=True, help="Of the table.")
@click.option("--changes", type=_COUNT, default=20, show_default=True, help="In each pass.")
@click.option("--passes", type=_COUNT, default=1000, show_default=True)
@click.option("--every", type=_COUNT, default=50, show_default=True, help="Passes from one maintenance to the next.")
@click.option("--cores", type=_COUNT, default=2, show_default=True, help="Spark's task slots.")
def main(rows: int, changes: int, passes: int, every: int, cores: int) -> None:
    """Measure reads and storage over many small passes with maintenance."""
    CACHE.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="maintenance-", dir=CACHE) as scratch:
        _measure(Path(scratch), rows, changes, passes, every, cores)


def _measure(directory: Path, rows: int, changes: int, passes: int, every: int, cores: int) -> None:
    config = lake_config(directory, cores, 2)
    log = Log(directory / "sink", 1, rows)
    feed = FeedConfig.model_validate(
        {
            "name": "worn",
            "source": sink_source(directory / "sink", "canal-json"),
            "namespace": "worn__{database}",
            "start_date": sbtest.FILL_DAY.date(),
            "maintenance": {"keep_cut_hours": 1},
        }
    )
    spark = build_session(config)
    click.echo("| passes | a pass, s | | read, s | files | deleted | snapshots | warehouse, MB | maintenance, s |")
    click.echo(f"|{'--:|' * 2}---|{'--:|' * 6}")
    try:
        log.write(rows)
        run_all(FeedRun(feed, Lake(config), lambda: spark))
        for number in range(every, passes + 1, every):
            took = [_timed(lambda: _pass(log, changes, feed, config, lambda: spark)) for _ in range(every)]
            _say(number, statistics.median(took), "before", config, directory, None)
            maintenance = Maintenance(feed, Lake(config), lambda: spark, clock=_in_two_days)
            seconds = _timed(maintenance.maintain)
            _say(number, statistics.median(took), "after", config, directory, seconds)
    finally:
        spark.stop()


def _pass(log: Log, changes: int, feed: FeedConfig, config: LakeConfig, spark: Callable[[], Any]) -> None:
    log.write(changes)
    held = run_all(FeedRun(feed, Lake(config), spark)).published.cut.held
    if held:
        raise click.ClickException(f"held: {held}")


def _in_two_days() -> datetime.datetime:
    return utc_now() + datetime.timedelta(days=2)


def _timed(action: Callable[[], object]) -> float:
    start = time.perf_counter()
    action()
    return time.perf_counter() - start


def _say(number: int, took: float, when: str, config: LakeConfig, directory: Path, seconds: float | None) -> None:
    table = Lake(config).catalog.load_table(("worn__many", "t0"))
    read = statistics.median(_timed(lambda: table.scan().to_arrow()) for _ in range(_READS))
    health: TableHealth = table_health(table)
    size = sum(path.stat().st_size for path in (directory / "warehouse").rglob("*") if path.is_file()) / 1e6
    figures = f"{read:.3f} | {health.files} | {health.delete_ratio:.1%} | {health.snapshots} | {size:.1f}"
    click.echo(f"| {number} | {took:.2f} | {when} | {figures} | {'' if seconds is None else f'{seconds:.1f}'} |")


if __name__ == "__main__":
    main()
