"""Measure how well a table can be read, by its files, deleted rows, manifests and snapshots. No JVM is started."""

from __future__ import annotations

import datetime
from collections import defaultdict
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, Final

from pyiceberg.table import Table

from cdc_lakehouse.lake.data_files import StoredFile, live_files
from cdc_lakehouse.lake.properties import COMPACTED_AT, summary_of

SMALL_SHARE: Final = 4
"""A file is small when it is smaller than the target size divided by this."""


@dataclass(frozen=True, slots=True)
class TableHealth:
    """The health of a table, from its metadata only.

    bytes: of data files and deletes. rows: in data files, including deleted rows. compacted_at: in UTC, None when
    maintenance never rewrote files."""

    files: int = 0
    bytes: int = 0
    rows: int = 0
    deleted_rows: int = 0
    snapshots: int = 0
    compacted_at: datetime.datetime | None = None

    @property
    def average_bytes(self) -> int:
        return self.bytes // self.files if self.files else 0

    @property
    def delete_ratio(self) -> float:
        return self.deleted_rows / self.rows if self.rows else 0.0


def health_document(health: TableHealth) -> dict[str, Any]:
    """Return a table's health as JSON documents contain it."""
    return {
        "files": health.files,
        "bytes": health.bytes,
        "average_bytes": health.average_bytes,
        "delete_ratio": round(health.delete_ratio, 4),
        "snapshots": health.snapshots,
        "compacted_at": None if health.compacted_at is None else health.compacted_at.isoformat(),
    }


def table_health(table: Table) -> TableHealth:
    totals = summary_of(table.current_snapshot())
    names = ("total-data-files", "total-files-size", "total-records", "total-position-deletes")
    at = table.properties.get(COMPACTED_AT)
    return TableHealth(
        *(int(totals.get(name, "0")) for name in names),
        snapshots=len(table.snapshots()),
        compacted_at=None if at is None else datetime.datetime.fromisoformat(at),
    )


@dataclass(frozen=True, slots=True)
class RewriteCandidates:
    """The number and the size of a table's files that should be rewritten."""

    files: int = 0
    bytes: int = 0


def rewrite_candidates(
    table: Table, target_bytes: int, min_small_files: int, max_delete_ratio: float
) -> RewriteCandidates:
    """Count the files with too many deleted rows, and the small files of partitions with too many of them: the files
    that Iceberg's `rewrite_data_files` rewrites with the corresponding options.

    target_bytes: a file is small below a quarter of it. min_small_files: in a partition. max_delete_ratio: deleted rows
    by rows of a file. Raises `StoredFormError` as `live_files` does."""
    health = table_health(table)
    if health.files < min_small_files and not health.deleted_rows:
        return RewriteCandidates()
    partitions: dict[Collection[str | None], list[StoredFile]] = defaultdict(list)
    found: list[StoredFile] = []
    for file in live_files(table, ()):
        if file.deletes and file.deleted_rows / file.record_count >= max_delete_ratio:
            found.append(file)
        elif file.size < target_bytes // SMALL_SHARE:
            partitions[file.partition].append(file)
    for small in partitions.values():
        if len(small) >= min_small_files:
            found += small
    return RewriteCandidates(len(found), sum(file.size for file in found))


def manifest_count(table: Table) -> int:
    snapshot = table.current_snapshot()
    return 0 if snapshot is None else len(snapshot.manifests(table.io))
