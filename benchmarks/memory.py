"""Peak memory of a measured part, sampled: the driver's heap, and the resident memory of both processes; and the CPU's
time.

Resident memory is known where there is a /proc.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
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
    return sum(int(about[11]) + int(about[12]) for _, about in _processes()) / _TICKS


def read_bytes() -> int:
    """What this process and all below it that live have read from files, those that the system kept in memory too."""
    return sum(int((place / "io").read_text(encoding="ascii").split()[1]) for place, _ in _processes())


def _processes() -> Iterator[tuple[Path, list[str]]]:
    """This process and all below it: the folder of each in /proc, and what its `stat` says behind the name."""
    found: dict[int, tuple[Path, list[str]]] = {}
    for place in Path("/proc").iterdir():
        if place.name.isdigit():
            try:
                about = (place / "stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
            except OSError:
                continue  # It has ended.
            found[int(place.name)] = place, about
    wanted = [os.getpid()]
    while wanted:
        number = wanted.pop()
        if number in found:
            yield found[number]
        wanted += [child for child, (_, about) in found.items() if int(about[1]) == number]
