"""`python -m benchmarks.definitions`: what Dagster loads of a feed with many tables, and two ticks of its sensor that
find something new, in a new process each time. Imports are not counted."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

import click
import dagster as dg
import yaml

from benchmarks import sbtest
from benchmarks.__main__ import CACHE
from benchmarks.lakehouse import lake_config, sink_source
from benchmarks.many_tables import Log
from cdc_lakehouse.changelog import versions
from cdc_lakehouse.changelog.positions import utc_now
from cdc_lakehouse.changelog.schema import SchemaChange
from cdc_lakehouse.definitions import defs
from cdc_lakehouse.lake.catalog import Lake
from cdc_lakehouse.lake.tables.schema_history import SchemaHistory

_ROUNDS: Final = 5
_PARTS: Final = ("definitions", "first tick", "another tick")


def _one() -> None:
    """In a process of its own: the seconds of each part."""
    seconds, begun = list[float](), time.perf_counter()

    def lap() -> None:
        seconds.append(time.perf_counter() - begun - sum(seconds))

    repository = defs().get_repository_def()
    lap()
    (sensor,) = (each for each in repository.sensor_defs if each.name.startswith("many_"))
    instance = dg.DagsterInstance.ephemeral()
    begun = time.perf_counter() - sum(seconds)
    for _ in range(2):
        with dg.build_sensor_context(instance, repository_def=repository) as context:
            result = sensor.evaluate_tick(context)
        if not result.run_requests:
            raise click.ClickException(str(result.skip_message))
        lap()
    click.echo(json.dumps(seconds))


def _made(directory: Path, tables: int) -> Path:
    """A configuration with one feed, whose sink has a file of each table, and whose lake has seen all of them."""
    Log(directory / "sink", tables).write(1)
    lake = lake_config(directory, 2, 2)
    query = sbtest.create_statement(sbtest.NAME)
    seen = [
        SchemaChange(
            n, "many", f"t{n}", versions.CREATE_TABLE, query, sbtest.COLUMNS, f"many/t{n}/meta/schema_{n}.json"
        )
        for n in range(tables)
    ]
    SchemaHistory(Lake(lake), "many").record(seen, utc_now())
    feed = {
        "name": "many",
        "source": sink_source(directory / "sink", "canal-json"),
        "namespace": "many__{database}",
        "start_date": f"{sbtest.FILL_DAY:%Y-%m-%d}",
    }
    config = directory / "lakehouse.yaml"
    document = {"lake": lake.model_dump(mode="json", exclude_unset=True), "feeds": [feed]}
    config.write_text(yaml.safe_dump(document), encoding="utf-8")
    return config


@click.command()
@click.option("--tables", type=click.IntRange(min=1), default=1000, show_default=True)
def main(tables: int) -> None:
    """Measure what Dagster loads of a feed with many tables, and a tick of its sensor."""
    CACHE.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="definitions-", dir=CACHE) as scratch:
        config = _made(Path(scratch), tables)
        environment = {**os.environ, "CDC_LAKEHOUSE_CONFIG": str(config), "DAGSTER_HOME": scratch}
        command = [sys.executable, "-m", "benchmarks.definitions", "--one"]
        rounds = [
            json.loads(subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE).stdout)
            for _ in range(_ROUNDS)
        ]
    click.echo("| tables | " + " | ".join(f"{part}, s" for part in _PARTS) + " |")
    click.echo(f"|--:|{'--:|' * len(_PARTS)}")
    middle = [sorted(values)[_ROUNDS // 2] for values in zip(*rounds, strict=True)]
    click.echo(f"| {tables:,} | " + " | ".join(f"{value:.2f}" for value in middle) + " |")


if __name__ == "__main__":
    _one() if "--one" in sys.argv else main()
