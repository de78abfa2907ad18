"""Call Iceberg's own maintenance procedures through Spark. Nothing here decides what a table needs."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from typing import Any

from pyspark.sql import SparkSession

from cdc_lakehouse.lake.engine_faults import engine_errors
from cdc_lakehouse.lake.names import CATALOG, Identifier


class Procedures:
    """Iceberg's maintenance procedures. Each raises `TransientError` when Spark, the storage or another writer's commit
    prevents it: the table is then unchanged."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark

    def rewrite_data_files(self, table: Identifier, options: Mapping[str, int | float]) -> int:
        """Merge small files, and rewrite files with many deleted rows without these; return the number of rewritten
        files. `options` are those of the procedure."""
        listed = ", ".join(f"'{name}', '{value}'" for name, value in options.items())
        (row,) = self._call("rewrite_data_files", table, f"options => map({listed})")
        return int(row["rewritten_data_files_count"])

    def rewrite_manifests(self, table: Identifier) -> int:
        """Rewrite the table's manifests; return how many were rewritten."""
        (row,) = self._call("rewrite_manifests", table)
        return int(row["rewritten_manifests_count"])

    def remove_orphan_files(self, table: Identifier, older_than: datetime.datetime, *, dry_run: bool) -> int:
        """Remove files below the table's location that no snapshot references and that are older than `older_than`;
        return their number. `dry_run` only counts them."""
        arguments = f"older_than => :older_than, dry_run => {str(dry_run).lower()}, prefix_listing => true"
        return len(self._call("remove_orphan_files", table, arguments, older_than=older_than))

    def _call(self, procedure: str, table: Identifier, arguments: str = "", **values: Any) -> list[Any]:
        more = f", {arguments}" if arguments else ""
        statement = f"CALL {CATALOG}.system.{procedure}(table => :table{more})"
        with engine_errors():
            return self._spark.sql(statement, args={"table": table.sql, **values}).collect()
