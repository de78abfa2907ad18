"""Commits to `records`: files with the position behind them, on top of what a run has seen, or nothing."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Final

from pyiceberg.exceptions import CommitFailedException, TableAlreadyExistsError
from pyiceberg.manifest import DataFile
from pyiceberg.table import Table
from pyspark.sql import DataFrame, SparkSession

from cdc_lakehouse.errors import ConcurrentRunError
from cdc_lakehouse.lake.catalog import Lake
from cdc_lakehouse.lake.properties import OFFSETS, of_batch
from cdc_lakehouse.lake.tables.landed_offsets import LandedBatch, LandedState, records_table, state_of
from cdc_lakehouse.lake.tables.record_files import RecordTable
from cdc_lakehouse.lake.tables.record_rows import SCHEMA, SPEC

_TRIES: Final = 3
_PROPERTIES: Final = {
    "format-version": "2",
    "write.parquet.compression-codec": "zstd",
    "write.parquet.compression-level": "1",
    # Values are as good as never the same twice: looking for it costs time.
    "write.parquet.dict-size-bytes": str(64 << 10),
    # Minima and maxima of bytes can prune nothing.
    **{f"write.metadata.metrics.column.{column}": "none" for column in ("key", "value")},
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "20",
    # Every batch brings a manifest.
    "commit.manifest-merge.enabled": "true",
    # What another run has landed meanwhile must be seen.
    "commit.retry.num-retries": "0",
}


def records_frame(spark: SparkSession, feed: str) -> DataFrame:
    """All records of a feed."""
    return spark.read.format("iceberg").load(records_table(feed).sql)


class RecordCommits:
    def __init__(self, lake: Lake, feed: str) -> None:
        self._lake = lake
        self._feed = feed
        self.identifier = records_table(feed)

    def load(self) -> Table | None:
        return self._lake.load(self.identifier)

    def create(self) -> Table:
        """Raises `ConcurrentRunError` when another run has just done so."""
        self._lake.ensure_namespace(self.identifier.namespace)
        try:
            return self._lake.catalog.create_table(
                self.identifier.parts, SCHEMA, partition_spec=SPEC, properties=_PROPERTIES
            )
        except TableAlreadyExistsError:
            raise self.too_late() from None

    def commit(
        self,
        table: Table,
        before: LandedState,
        properties: Mapping[str, str],
        files: Sequence[DataFile],
        summary: Mapping[str, str],
    ) -> None:
        """All or nothing. Raises `ConcurrentRunError` when another run has landed something since `before`; the files
        are then taken away."""
        about = RecordTable.of(table, self._lake)
        for _ in range(_TRIES):
            try:
                with table.transaction() as transaction:
                    update = transaction.update_snapshot(snapshot_properties=dict(summary))
                    # Without a file too: that another run has landed something is seen by its snapshot.
                    with update.merge_append() as append:
                        for file in files:
                            append.append_data_file(file)
                    transaction.set_properties(dict(properties))
                return
            except CommitFailedException:
                # It may have been maintenance, which lands nothing.
                table = table.refresh()
                if state_of(table) != before:
                    break
        about.delete(files)
        raise self.too_late()

    def too_late(self) -> ConcurrentRunError:
        return ConcurrentRunError(
            f"another run has landed what this one was to land in {self.identifier}",
            feed=self._feed,
            advice="wait for it to end, then run again",
        )


def offsets_summary(batch: LandedBatch) -> dict[str, str]:
    offsets: dict[str, dict[int, list[int]]] = {}
    for each in batch.segments:
        whole = offsets.setdefault(each.partition.topic, {}).setdefault(each.partition.number, [each.start, 0])
        whole[1] = each.end
    return {**of_batch(batch.number), OFFSETS: json.dumps(offsets)}
