"""Another writer of a lake, such as the optimizer of a managed catalog, which compacts and expires any table."""

import datetime

from pyiceberg.table import Table
from pyspark.sql import SparkSession

from cdc_lakehouse.lake.names import CATALOG, Identifier


def rewrite(table: Table) -> None:
    """Write the rows of a table of format version 2 into new files, and let all earlier snapshots expire."""
    table.overwrite(table.scan().to_arrow())
    expire_all(table)


def expire_all(table: Table) -> None:
    """Let all snapshots expire but the current one and those that branches and tags name."""
    kept = {ref.snapshot_id for ref in table.metadata.refs.values()}
    old = [each.snapshot_id for each in table.snapshots() if each.snapshot_id not in kept]
    if old:
        table.maintenance.expire_snapshots().by_ids(old).commit()


def optimize(session: SparkSession, identifier: Identifier, *, expires: bool = True) -> None:
    """Compact a table's files and manifests by Iceberg's procedures, and expire all but the newest snapshot."""
    values = {"table": identifier.sql, "now": datetime.datetime.now(datetime.UTC)}
    calls = ["rewrite_data_files(table => :table, options => map('rewrite-all', 'true'))",
             "rewrite_manifests(table => :table)"]  # fmt: skip
    calls += ["expire_snapshots(table => :table, older_than => :now, retain_last => 1)"] if expires else []
    for call in calls:
        session.sql(f"CALL {CATALOG}.system.{call}", args=values)
