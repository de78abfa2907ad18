"""Peak memory of a measured part, sampled: the driver's heap, and the resident memory of both processes; and the CPU's
time.

Resident memory is known where there is a /proc.
"""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Final, Self

from pyspark.sql import SparkSession

_PAUSE_SECONDS: Final = 0.1
_MIB: Final = 1 << 20
_TICKS: Final = os.sysconf("SC_CLK_TCK")


@dataclass
class Peaks:
    """In MiB. `heap` counts garbage that has not been collected; `python` is this process, with DuckDB in it."""

    heap: int = 0
    jvm: int = 0
    python: int = 0

    def raise_to(self, other: Peaks) -> None:
        for field in fields(self):
            setattr(self, field.name, max(getattr(self, field.name), getattr(other, field.name)))


class Watch:
    """Samples from `with` to its end."""

    def __init__(self, spark: SparkSession) -> None:
        context: Any = spark.sparkContext
        self._runtime = context._jvm.java.lang.Runtime.getRuntime()
        self._jvm_pid: int = context._gateway.proc.pid
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)
        self.peaks = Peaks()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()

    def _sample(self) -> None:
        while True:
            heap = (self._runtime.totalMemory() - self._runtime.freeMemory()) // _MIB
            self.peaks.raise_to(Peaks(heap, _resident(self._jvm_pid), _resident(os.getpid())))
            if self._done.wait(_PAUSE_SECONDS):
                return


def _resident(pid: int) -> int:
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1])
    except OSError:
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE") // _MIB


def cpu_seconds() -> float:
    """Of this process and all below it that live."""
    parents: dict[int, tuple[int, int]] = {}
    for place in Path("/proc").iterdir():
        if place.name.isdigit():
            try:
                about = (place / "stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
            except OSError:
                continue  # It has ended.
            parents[int(place.name)] = int(about[1]), int(about[11]) + int(about[12])
    wanted, ticks = [os.getpid()], 0
    while wanted:
        number = wanted.pop()
        ticks += parents.get(number, (0, 0))[1]
        wanted += [child for child, (parent, _) in parents.items() if parent == number]
    return ticks / _TICKS
