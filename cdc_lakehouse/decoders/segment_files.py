"""What a decoder is given, and what it gives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from cdc_lakehouse.decoders.csv_rows import Layout
from pyspark.sql import DataFrame

from cdc_lakehouse.config import StorageConfig, StorageSinkSource

_BYTES_PER_TASK: Final = 256 * 1024 * 1024
"""Of the source: one task writes one data file of events for each date."""


@dataclass(frozen=True, slots=True)
class SegmentFile:
    path: str
    size: int
    etag: str


@dataclass(frozen=True)
class SegmentFiles:
    """Segments of one source, below `uri`. With csv `layouts` says what the values of each file's rows are."""

    uri: str
    storage: StorageConfig
    source: StorageSinkSource
    files: tuple[SegmentFile, ...]
    layouts: Mapping[str, Layout] = field(default_factory=dict[str, Layout])

    @property
    def paths(self) -> list[str]:
        return [file.path for file in self.files]


@dataclass(frozen=True)
class Decoded:
    """Events (see the package's docstring), and the segment of each `file`."""

    events: DataFrame
    segments: Mapping[str, str]


def in_tasks(files: Sequence[SegmentFile], parallelism: int) -> list[tuple[SegmentFile, ...]]:
    """The files in the order of their paths (by table and date), shared out evenly by size, none of them split."""
    total = sum(file.size for file in files)
    wanted = min(len(files), max(parallelism, -(-total // _BYTES_PER_TASK)))
    tasks: list[list[SegmentFile]] = [[] for _ in range(wanted)]
    passed = 0
    for number, file in enumerate(sorted(files, key=lambda file: file.path)):
        # Where the middle of the file lies; files without a byte count as well.
        place = (passed + file.size / 2) / total if total else number / len(files)
        tasks[min(int(place * wanted), wanted - 1)].append(file)
        passed += file.size
    return [tuple(task) for task in tasks if task]
