"""The measured passes: each engine over both stages of a sink of its own, fresh each time."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Protocol

from pyspark.sql import SparkSession

from benchmarks.agreement import check_current, check_events
from benchmarks.change_log import ChangeLog, Stage
from benchmarks.duck import Files
from benchmarks.lakehouse import Feed, sink_source
from benchmarks.memory import Peaks, Watch, cpu_seconds
from cdc_lakehouse.config import LakeConfig

DECODE: Final = "decode + append"
WHOLE: Final = "files to current state"


class Engine(Protocol):
    def decode(self, stage: Stage) -> None: ...

    def publish(self, stage: Stage) -> None: ...


@dataclass
class Runs:
    """One part by one engine: a time for each repetition, that of its processors (the product's processes together),
    and the peaks over all of them."""

    seconds: list[float] = field(default_factory=list[float])
    cpu: list[float] = field(default_factory=list[float])
    peaks: Peaks = field(default_factory=Peaks)

    def add(self, seconds: float, cpu: float, *peaks: Peaks) -> None:
        self.seconds.append(seconds)
        self.cpu.append(cpu)
        for each in peaks:
            self.peaks.raise_to(each)


@dataclass
class Part:
    stage: Stage
    what: str
    ours: Runs = field(default_factory=Runs)
    duckdb: Runs = field(default_factory=Runs)


class Bench:
    """Passes in one session. `memory_gib` is the driver's heap, and DuckDB's limit."""

    def __init__(self, directory: Path, lake: LakeConfig, spark: SparkSession, cores: int, memory_gib: int) -> None:
        self._directory = directory
        self._lake = lake
        self._spark = spark
        self._cores = cores
        self._memory_gib = memory_gib
        self._passes = 0

    def measure(self, log: ChangeLog, repeats: int, say: Callable[[str], object]) -> list[Part]:
        """Both engines by turns. Raises `Disagreement` when any of the results is not what it must be."""
        parts = [Part(stage, what) for stage in log.stages for what in (DECODE, WHOLE)]
        log.read_through()
        done: list[tuple[Feed, Files]] = []
        for number in range(1, repeats + 1):
            feed, files = self._pass(log, parts)
            done.append((feed, files))
            say(f"pass {number} of {repeats} measured")
        # Afterwards, because reading the tables here would count as memory of what is measured next.
        for number, (feed, files) in enumerate(done, 1):
            _agree(log, feed, files)
            say(f"pass {number} of {repeats}: both hold the same rows")
        return parts

    def _pass(self, log: ChangeLog, parts: list[Part]) -> tuple[Feed, Files]:
        self._passes += 1
        name = f"bench_{self._passes}"
        sinks = [self._directory / "sinks" / f"{name}_{engine}" for engine in ("ours", "duckdb")]
        feed = Feed(self._lake, self._spark, name, sink_source(sinks[0], log.protocol))
        files = Files(self._directory / "duckdb" / name, sinks[1], self._cores, self._memory_gib, log.protocol)
        self._run(feed, log, sinks[0], [part.ours for part in parts])
        self._run(files, log, sinks[1], [part.duckdb for part in parts])
        files.close()
        return feed, files

    def _run(self, engine: Engine, log: ChangeLog, sink: Path, runs: list[Runs]) -> None:
        """`runs` are in the order of the parts: two for each stage."""
        for stage, decoding, whole in zip(log.stages, runs[::2], runs[1::2], strict=True):
            log.lay(stage, sink)
            os.sync()  # What was written before is not to be waited for in what is measured.
            decode, cpu, peaks = self._time(lambda stage=stage: engine.decode(stage))
            publish, more_cpu, more = self._time(lambda stage=stage: engine.publish(stage))
            decoding.add(decode, cpu, peaks)
            whole.add(decode + publish, cpu + more_cpu, peaks, more)

    def _time(self, action: Callable[[], None]) -> tuple[float, float, Peaks]:
        with Watch(self._spark) as watch:
            start, cpu = time.perf_counter(), cpu_seconds()
            action()
            seconds, cpu = time.perf_counter() - start, cpu_seconds() - cpu
        return seconds, cpu, watch.peaks


def _agree(log: ChangeLog, feed: Feed, files: Files) -> None:
    for number, stage in enumerate(log.stages):
        check_current(feed.current(number), files.current(number), stage.rows, f"the table after the {stage.name}")
    written = {op: sum(stage.events.get(op, 0) for stage in log.stages) for op in "IUD"}
    check_events(feed.events(), files.events(), written, "the events")
