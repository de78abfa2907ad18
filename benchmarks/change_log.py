"""The workload as a TiCDC storage sink in two stages, kept from run to run.

{directory}/inserts/…    a whole sink: the table's schema file, a day of INSERTs, `metadata`
{directory}/changes/…    what the next day adds to it: data files, their index file, a newer `metadata`
"""

from __future__ import annotations

import json
import os
import shutil
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Final

from benchmarks import sbtest
from cdc_lakehouse.changelog.positions import commit_time
from cdc_lakehouse.config import Protocol
from cdc_lakehouse.sample.sink_writer import LINE_END, SampleRowChange, SinkWriter, canal_json
from tests.kit.changefeed import csv

MIB: Final = 1 << 20
_FORMAT: Final = 1
"""Raised when the same arguments would give other files."""


@dataclass(frozen=True)
class Workload:
    inserts: int
    changes: int
    file_mib: int
    seed: int
    protocol: Protocol = "canal-json"

    @property
    def directory_name(self) -> str:
        kind = "" if self.protocol == "canal-json" else f"{self.protocol}-"
        return f"sbtest-{kind}{_FORMAT}-{self.inserts}-{self.changes}-{self.file_mib}-{self.seed}"


@dataclass(frozen=True)
class Stage:
    """What a stage adds to the sink, and what the table then holds."""

    name: str
    events: dict[str, int]
    rows: int
    bytes: int

    @property
    def total(self) -> int:
        return sum(self.events.values())


@dataclass(frozen=True)
class ChangeLog:
    directory: Path
    stages: tuple[Stage, ...]
    protocol: Protocol

    def lay(self, stage: Stage, sink: Path) -> None:
        """Bring a sink to a stage: the files are links, which cost neither time nor space."""
        shutil.copytree(self.directory / stage.name, sink, copy_function=_link, dirs_exist_ok=True)

    def read_through(self) -> None:
        read_through(sorted(self.directory.rglob("CDC*[0-9].*")))


def read_through(paths: Iterable[Path]) -> None:
    """So that whoever is measured first does not wait for the disk."""
    for path in paths:
        with path.open("rb") as file:
            while file.read(8 * MIB):
                pass


def change_log(workload: Workload, cache: Path) -> ChangeLog:
    """The change log of a workload, from the cache where it has been made before."""
    directory = cache / workload.directory_name
    if not directory.exists():
        part = directory.with_name(f"{directory.name}.part")
        shutil.rmtree(part, ignore_errors=True)
        _write(workload, part)
        part.rename(directory)
    stages = json.loads((directory / "stages.json").read_text(encoding="utf-8"))
    return ChangeLog(directory, tuple(Stage(**stage) for stage in stages), workload.protocol)


def change_logs(workload: Workload, warm_up: int, cache: Path) -> tuple[ChangeLog, ChangeLog]:
    """The change log of a workload, and a smaller one of so many rows for a pass before it, which is not measured."""
    cache.mkdir(parents=True, exist_ok=True)
    small = replace(workload, inserts=warm_up, changes=max(1, warm_up // 3))
    return change_log(workload, cache), change_log(small, cache)


def _write(workload: Workload, directory: Path) -> None:
    table = sbtest.Sbtest(workload.seed)
    limit = workload.file_mib * MIB
    inserts = _Writer(directory / "inserts", limit, workload.protocol)
    inserts.sink.write_ddl(sbtest.create_table(), sbtest.FILL_DAY)
    stages = [
        inserts.write(table, table.fill(workload.inserts)),
        _Writer(directory / "changes", limit, workload.protocol).write(table, table.mix(workload.changes)),
    ]
    text = json.dumps([asdict(stage) for stage in stages])
    (directory / "stages.json").write_text(text, encoding="utf-8")


class _Writer:
    """Writes one stage, cutting its files at about `limit` bytes."""

    def __init__(self, directory: Path, limit: int, protocol: Protocol) -> None:
        self.directory = directory
        self._encode, extension = (csv, "csv") if protocol == "csv" else (canal_json, "json")
        self.sink = SinkWriter(directory, self._encode, extension)
        self._limit = limit
        self._lengths: dict[str, int] = {}

    def write(self, table: sbtest.Sbtest, changes: Iterable[SampleRowChange]) -> Stage:
        events: Counter[str] = Counter()
        size = 0
        for change in changes:
            events[change.kind[0]] += 1
            size += self._length(change)
            self.sink.write([change])
            if size >= self._limit:
                self.sink.flush(commit_time(table.last_ts))
                size = 0
        self.sink.flush(commit_time(table.last_ts))
        self.sink.checkpoint(table.last_ts)
        written = sum(path.stat().st_size for path in self.directory.rglob("CDC*[0-9].*"))
        return Stage(self.directory.name, dict(events), table.rows, written)

    def _length(self, change: SampleRowChange) -> int:
        """Of the change's line, near enough: lines of a kind differ by some digits only."""
        if change.kind not in self._lengths:
            self._lengths[change.kind] = len(self._encode(change, sbtest.FILL_DAY) + LINE_END)
        return self._lengths[change.kind]


def _link(source: str, target: str) -> None:
    Path(target).unlink(missing_ok=True)
    os.link(source, target)
