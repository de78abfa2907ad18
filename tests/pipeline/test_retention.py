"""Messages of topics that are kept no longer. Files are in `tests/scenarios/retention.txt`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.table import Table

from cdc_lakehouse.decoders.topic_order import PartitionSummary
from cdc_lakehouse.lake.tables.records import RecordCommits, files_before, first_batch, remove_before, removed_upto
from cdc_lakehouse.pipeline.holds import find_holds
from tests.kit.lakes import TestLake
from tests.pipeline import DAY, lake_in


def records(lake: TestLake, *files: tuple[str, list[int]]) -> Table:
    """Files of a date with messages of these batches."""
    table = RecordCommits(lake.lake, lake.name).create()
    same = {"topic": "t", "partition": 0, "timestamp": DAY, "key": b"k", "value": b"v", "size": 2, "segment": "s"}
    for date, batches in files:
        rows = [{**same, "feed_date": date, "offset": batch * 10, "batch": batch} for batch in batches]
        table.append(pa.Table.from_pylist(rows, schema=schema_to_pyarrow(table.schema())))
    return table


@pytest.mark.parametrize(
    ("batch", "left", "upto"),
    [(1, [1, 1, 2, 3], ""), (2, [1, 2, 3], "2026-06-01"), (3, [3], "2026-06-01"), (4, [], "2026-06-02")],
)
def test_messages_are_removed_by_whole_files(lake: TestLake, batch: int, left: list[int], upto: str) -> None:
    table = records(lake, ("2026-06-01", [1]), ("2026-06-01", [1, 2]), ("2026-06-02", [3]))
    if files := files_before(table, batch):
        remove_before(table, batch, files)
    assert sorted(row["batch"] for row in lake.machinery("records")) == left
    assert (first_batch(lake.lake, lake.name), removed_upto(lake.lake, lake.name)) == (batch if files else 0, upto)


def test_excluded_table_whose_messages_were_removed_is_held(tmp_path: Path) -> None:
    source: dict[str, Any] = {
        "type": "kafka",
        "format": "canal-json",
        "bootstrap_servers": "127.0.0.1:1",
        "topics": ["x"],
    }
    lake = lake_in(tmp_path, source=source, tables={"exclude": ["d.z"]})
    # Batches of the topic: `z` is left out from 1 on, `a` from 2 on, `b` from 3 on.
    for batch, name in enumerate("zab", 1):
        lake.run().signals.write(batch, {("x", 0, batch): PartitionSummary(0, 0, left_out={("d", name)})})
    table = records(lake, ("2026-06-01", [2]))
    assert find_holds(lake.run(), {}, 1).reasons == {}
    remove_before(table, 3, files_before(table, 3))
    (held,) = find_holds(lake.run(), {}, 1).reasons.values()
    assert "no longer in `records`" in held
    lake.configure(tables={})
    assert len(find_holds(lake.run(), {}, 1).reasons) == 2
