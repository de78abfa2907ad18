"""Iceberg's own procedures that keep a table small, through Spark. Nothing here decides what a table needs."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from typing import Any

from pyspark.sql import SparkSession

from cdc_lakehouse.lake.engine_faults import engine_errors
from cdc_lakehouse.lake.names import CATALOG, Identifier


class Procedures:
    """Each raises `TransientError` where Spark, the storage or another writer's commit is in the way: the table is then
    as it was."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark

    def rewrite_data_files(self, table: Identifier, options: Mapping[str, int | float]) -> int:
        """Merge small files, and write those with many deleted rows anew without them; gives how many there were.
        `options` are those of the procedure."""
        listed = ", ".join(f"'{name}', '{value}'" for name, value in options.items())
        (row,) = self._call("rewrite_data_files", table, f"options => map({listed})")
        return int(row["rewritten_data_files_count"])

    def rewrite_manifests(self, table: Identifier) -> int:
        """Gives how many manifests there were of those that are written anew."""
        (row,) = self._call("rewrite_manifests", table)
        return int(row["rewritten_manifests_count"])

    def remove_orphan_files(self, table: Identifier, older_than: datetime.datetime, *, dry_run: bool) -> int:
        """Remove files below the table's location that no snapshot names, and that are older than a moment; gives how
        many they are. `dry_run`: they stay."""
        arguments = f"older_than => :older_than, dry_run => {str(dry_run).lower()}, prefix_listing => true"
        return len(self._call("remove_orphan_files", table, arguments, older_than=older_than))

    def _call(self, procedure: str, table: Identifier, arguments: str = "", **values: Any) -> list[Any]:
        more = f", {arguments}" if arguments else ""
        statement = f"CALL {CATALOG}.system.{procedure}(table => :table{more})"
        with engine_errors():
            return self._spark.sql(statement, args={"table": table.sql, **values}).collect()
