"""`python -m benchmarks.start`: what a run costs from its process on, Spark's start and a few changes, with the archive
of classes and without."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

import click

from benchmarks.__main__ import CACHE
from benchmarks.change_log import Workload, change_log
from benchmarks.lakehouse import Feed, lake_config, sink_source
from benchmarks.memory import cpu_seconds
from cdc_lakehouse.lake import spark
from cdc_lakehouse.lake.spark import ARCHIVE_COMMAND, class_archive

_ROUNDS: Final = 5
_WITHOUT: Final = "--without"


def _one() -> None:
    """In a process of its own: a run of 1,000 inserts, the seconds and the CPU seconds of it up to here."""
    if _WITHOUT in sys.argv:
        spark.class_archive = Path
    began, cpu = time.monotonic(), cpu_seconds()
    with tempfile.TemporaryDirectory() as directory:
        config = lake_config(Path(directory), 2, 2)
        session = spark.build_session(config)
        started, cpu_started = time.monotonic() - began, cpu_seconds() - cpu
        log = change_log(Workload(1000, 300, 1, 1, "canal-json"), CACHE)
        stage = log.stages[0]
        log.lay(stage, Path(directory, "sink"))
        feed = Feed(config, session, "start", sink_source(Path(directory, "sink"), log.protocol))
        feed.decode(stage)
        feed.publish(stage)
        click.echo(json.dumps([started, cpu_started, time.monotonic() - began, cpu_seconds() - cpu]))


def main() -> None:
    if not class_archive().is_file():
        sys.exit(f"there is no archive of classes: run `{ARCHIVE_COMMAND}` first")
    found: dict[str, list[list[float]]] = {"without": [], "with": []}
    for _ in range(_ROUNDS):
        for name, options in (("without", [_WITHOUT]), ("with", [])):
            command = [sys.executable, "-m", "benchmarks.start", "--one", *options]
            done = subprocess.run(command, check=True, capture_output=True, text=True)
            found[name].append(json.loads(done.stdout.splitlines()[-1]))
    click.echo("| archive of classes | session, s | its CPU, s | run of 1,000 changes and all, s | its CPU, s |")
    click.echo("|---|--:|--:|--:|--:|")
    for name, rounds in found.items():
        middle = [sorted(values)[_ROUNDS // 2] for values in zip(*rounds, strict=True)]
        click.echo(f"| {name} | " + " | ".join(f"{value:.1f}" for value in middle) + " |")


if __name__ == "__main__":
    _one() if "--one" in sys.argv else main()
