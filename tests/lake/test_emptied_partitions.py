"""The rows that an emptied partition takes with it are those that a real MySQL removed (`golden/partitions.jsonl`)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from cdc_lakehouse.changelog.schema import TableVersion
from cdc_lakehouse.decoders.event_schema import image_text
from cdc_lakehouse.errors import CdcError
from cdc_lakehouse.lake.current.keyed_events import KEYED_EVENTS
from cdc_lakehouse.lake.current.typed_rows import PartitionRows, Target, typed_rows, without_emptied
from cdc_lakehouse.lake.current.value_parsing import ValueFormat
from tests.changelog.server_tables import ProductTables
from tests.kit import golden
from tests.kit.duckdb_sql import connection


def test_emptied_partition_removes_the_rows_that_mysql_removes() -> None:
    """A table whose rows depend on a collation that is not known is held."""
    wrong, counts = list[Any](), Counter[str]()
    for question in golden.read("partitions"):
        rows = [dict(zip(("id", "c", "d"), row, strict=False)) for row in question["rows"]]
        try:
            gone = rows_of_partition(question["table"], question["partition"], rows, question.get("zone", "UTC"))
        except CdcError as error:
            counts["held"] += 1
            wrong += [] if "collation" in str(error) else [(question["table"], str(error))]
            continue
        counts["compared"] += 1
        if gone != set(question["gone"]):
            wrong.append((question["table"], question["partition"], sorted(gone ^ set(question["gone"]), key=int)))
    assert not wrong
    assert counts["compared"] > 0.5 * counts.total(), counts


def rows_of_partition(statement: str, name: str, rows: Sequence[dict[str, str | None]], zone: str) -> set[str]:
    """Return the ids of the rows (texts by column) that an emptied partition takes with it. Raises `CdcError` where
    the product would hold the table."""
    here = ProductTables("d")
    here.run(statement)
    (version,) = here.tables
    kept = without_emptied(connection(), _events(rows), [_partition(version, name)], *_reading(zone, _events(rows)))
    return {row["id"] or "" for row in rows} - {key for (key,) in kept.column("key").to_pylist()}


def _partition(version: TableVersion, name: str) -> PartitionRows:
    assert version.partitioning is not None
    return PartitionRows(version.partitioning, (name,), Target(version.carried, {0: version}))


def _reading(zone: str, events: pa.Table) -> tuple[ValueFormat, Any]:
    read = ValueFormat(zone, database="mysql")
    return read, lambda upserts, target: typed_rows(connection(), events, upserts, target, read)


def _events(rows: Sequence[dict[str, str | None]]) -> pa.Table:
    made = [
        {
            "table_no": 0, "key": [row["id"]], "stage": 2, "upsert": True, "is_insert": True, "version_no": 0,
            "commit_ts": 1, "image": image_text(row), "segment": "s", "line": number,
        }
        for number, row in enumerate(rows)
    ]  # fmt: skip
    return pa.Table.from_pylist(made, KEYED_EVENTS)
