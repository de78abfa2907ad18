"""What a run costs from its process on: Spark's start and a few changes, with the archive of classes and without.

python -m benchmarks.start
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

from benchmarks.__main__ import CACHE
from benchmarks.change_log import Workload, change_log
from benchmarks.lakehouse import Feed, lake_config, sink_source
from benchmarks.many_tables import cpu_seconds
from cdc_lakehouse.lake import spark
from cdc_lakehouse.lake.class_archive import class_archive

_ROUNDS: Final = 5
_WITHOUT: Final = "--without"


def _one() -> None:
    """In a process of its own: a run of 1,000 inserts, the seconds and the CPU seconds of it up to here."""
    if _WITHOUT in sys.argv:
        spark.options_to_use_it = str
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
        _print(json.dumps([started, cpu_started, time.monotonic() - began, cpu_seconds() - cpu]))


def _print(line: str) -> None:
    sys.stdout.write(line + "\n")


def main() -> None:
    if not class_archive().is_file():
        sys.exit("there is no archive of classes: run `python -m cdc_lakehouse.lake.spark --archive-classes` first")
    found: dict[str, list[list[float]]] = {"without": [], "with": []}
    for _ in range(_ROUNDS):
        for name, options in (("without", [_WITHOUT]), ("with", [])):
            command = [sys.executable, "-m", "benchmarks.start", "--one", *options]
            done = subprocess.run(command, check=True, capture_output=True, text=True)
            found[name].append(json.loads(done.stdout.splitlines()[-1]))
    _print("| archive of classes | session, s | its CPU, s | run of 1,000 changes and all, s | its CPU, s |")
    _print("|---|--:|--:|--:|--:|")
    for name, rounds in found.items():
        middle = [sorted(values)[_ROUNDS // 2] for values in zip(*rounds, strict=True)]
        _print(f"| {name} | " + " | ".join(f"{value:.1f}" for value in middle) + " |")


if __name__ == "__main__":
    _one() if "--one" in sys.argv else main()
