"""`python -m benchmarks`: make the workload where it is not there yet, measure, compare, report."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import Any, Final

import click

from benchmarks.change_log import Workload, change_logs
from benchmarks.lakehouse import lake_config
from benchmarks.passes import Bench, Part
from benchmarks.report import as_json, as_markdown
from cdc_lakehouse.config import Protocol
from cdc_lakehouse.lake.spark import build_session

CACHE: Final = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "cdc-lakehouse" / "benchmarks"
_COUNT: Final = click.IntRange(min=1)


@click.command()
@click.option("--inserts", type=_COUNT, default=1_000_000, show_default=True, help="Rows the table is filled with.")
@click.option("--changes", type=_COUNT, default=300_000, show_default=True, help="Changes on top of them.")
@click.option("--file-mib", type=_COUNT, default=64, show_default=True, help="Size at which the sink cuts its files.")
@click.option("--seed", type=int, default=1, show_default=True, help="Of the workload's values.")
@click.option(
    "--protocol", type=click.Choice(["canal-json", "csv"]), default="canal-json", show_default=True, help="The sink's."
)
@click.option("--repeats", type=_COUNT, default=3, show_default=True, help="Passes that are measured.")
@click.option("--cores", type=_COUNT, default=2, show_default=True, help="Spark's task slots and DuckDB's threads.")
@click.option("--memory-gib", type=_COUNT, default=2, show_default=True, help="The driver's heap and DuckDB's limit.")
@click.option("--warm-up", type=_COUNT, default=300_000, show_default=True, help="Rows of the pass before, unmeasured.")
@click.option(
    "--cache",
    type=click.Path(file_okay=False, path_type=Path),
    default=CACHE,
    help="Where workloads are kept and, for as long as it runs, the lake. [default: in the user's cache directory]",
)
@click.option("--json", "json_wanted", is_flag=True, help="JSON instead of a Markdown table.")
def main(cache: Path, json_wanted: bool, warm_up: int, **settings: Any) -> None:
    """Measure the main path on a sysbench table, beside DuckDB doing the same."""
    parts = _measure(cache.absolute(), warm_up, **settings)
    figures = as_json(parts, {**settings, "warm_up": warm_up})
    click.echo(json.dumps(figures, indent=2) if json_wanted else as_markdown(figures))


def _measure(
    cache: Path,
    warm_up: int,
    *,
    inserts: int,
    changes: int,
    file_mib: int,
    seed: int,
    protocol: Protocol,
    repeats: int,
    cores: int,
    memory_gib: int,
) -> list[Part]:
    workload = Workload(inserts, changes, file_mib, seed, protocol)
    log, small = change_logs(workload, warm_up, cache)
    _say(f"workload: {sum(stage.bytes for stage in log.stages) >> 20} MiB in {log.directory}")
    with tempfile.TemporaryDirectory(prefix="lake-", dir=cache) as scratch:
        lake = lake_config(Path(scratch), cores, memory_gib)
        spark = build_session(lake)
        try:
            bench = Bench(Path(scratch), lake, spark, cores, memory_gib)
            bench.measure(small, 1, lambda line: _say(f"warm-up: {line}"))
            return bench.measure(log, repeats, _say)
        finally:
            spark.stop()


def _say(line: str) -> None:
    click.echo(line, err=True)


if __name__ == "__main__":
    main()
