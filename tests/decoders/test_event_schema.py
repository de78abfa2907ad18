"""Whatever decodes them, events have the columns of `event_schema`."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from cdc_lakehouse.config import StorageConfig, StorageSinkSource
from cdc_lakehouse.decoders.event_schema import DECODED, EVENTS, NEW_EVENTS, EventRows, spark_columns
from cdc_lakehouse.decoders.files.csv_layout import Layout
from cdc_lakehouse.decoders.files.registry import DECODERS
from cdc_lakehouse.decoders.files.segment_files import SegmentFiles
from cdc_lakehouse.decoders.files.tasks import SegmentRef

CONTENTS = {
    "canal-json": b'{"database":"d","table":"t","type":"INSERT","data":[{"id":"1"}],"_tidb":{"commitTs":7}}',
    "csv": b'"I","t","d",7,"1"\r\n',
}


def test_events_that_are_collected() -> None:
    rows = EventRows()
    rows.add("2026-01-01", "d", "t", "U", 7, {"a": "1"}, {"a": "2", "b": None}, "s", 3)
    rows.add(None, "d", "t", "D", 8, {}, None, "s", 4)
    batch = rows.take()
    batch.validate(full=True)
    assert batch.schema == NEW_EVENTS and len(rows) == 0
    assert batch.to_pylist(maps_as_pydicts="strict") == [
        dict.fromkeys(NEW_EVENTS.names)
        | {"feed_date": date, "schema_name": "d", "table_name": "t", "table_version": 0}
        | {"op": op, "commit_ts": commit_ts, "before": before, "after": after, "segment": "s", "line": line}
        for date, op, commit_ts, before, after, line in (
            ("2026-01-01", "U", 7, {"a": "1"}, {"a": "2", "b": None}, 3),
            (None, "D", 8, {}, None, 4),
        )
    ]


def test_columns_as_spark_declares_them() -> None:
    assert spark_columns(EVENTS) == (
        "feed_date string, schema_name string, table_name string, table_version bigint, physical_partition bigint, "
        "op string, commit_ts bigint, commit_time timestamp, before map<string,string>, after map<string,string>, "
        "segment string, line bigint, synthetic boolean"
    )


@pytest.mark.spark
@pytest.mark.parametrize("protocol", sorted(CONTENTS))
def test_events_of_files(protocol: str, spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(CONTENTS[protocol])
    csv = {"csv": {"include-commit-ts": True}} if protocol == "csv" else {}
    source = {"type": "storage_sink", "uri": f"file://{tmp_path}", "protocol": protocol, **csv}
    files = SegmentFiles(
        f"file://{tmp_path}",
        StorageConfig.nothing(),
        StorageSinkSource.model_validate(source),
        (SegmentRef("f", len(CONTENTS[protocol]), None),),
        {"f": Layout(("id",))},
    )
    frame = DECODERS[protocol](spark, files).events
    assert ", ".join(f"{field.name} {field.dataType.simpleString()}" for field in frame.schema) == spark_columns(
        DECODED
    )
    (row,) = frame.drop("file", "value").collect()
    assert tuple(row) == (1, "d", "t", "I", 7, None, {"id": "1"}, None)
