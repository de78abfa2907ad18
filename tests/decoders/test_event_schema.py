"""Whatever decodes them, events have the columns of `event_schema`."""

from __future__ import annotations

from typing import get_args

import pytest

from cdc_lakehouse import duckdb_sql
from cdc_lakehouse.config import CsvOptions, Protocol
from cdc_lakehouse.decoders.event_schema import DECODED, EVENTS, NEW_EVENTS, EventRows, image_text, spark_columns
from cdc_lakehouse.decoders.format import FileContext, Layout
from cdc_lakehouse.decoders.registry import FILE_FORMATS

CONTENTS = {
    "canal-json": b'{"database":"d","table":"t","type":"INSERT","data":[{"id":"1"}],"_tidb":{"commitTs":7}}',
    "csv": b'"I","t","d",7,"1"\r\n',
}


def test_events_that_are_collected() -> None:
    rows = EventRows()
    rows.add("2026-01-01", "d", "t", "U", 7, image_text({"a": "1"}), image_text({"a": "2", "b": None}), "s", 3)
    rows.add(None, "d", "t", "D", 8, image_text({}), image_text(None), "s", 4)
    batch = rows.take()
    batch.validate(full=True)
    assert batch.schema == NEW_EVENTS and len(rows) == 0
    assert batch.to_pylist() == [
        dict.fromkeys(NEW_EVENTS.names)
        | {"feed_date": date, "schema_name": "d", "table_name": "t", "table_version": 0}
        | {"op": op, "commit_ts": commit_ts, "before": before, "after": after, "segment": "s", "line": line}
        for date, op, commit_ts, before, after, line in (
            ("2026-01-01", "U", 7, '{"a":"1"}', '{"a":"2","b":null}', 3),
            (None, "D", 8, "{}", None, 4),
        )
    ]


def test_columns_as_spark_declares_them() -> None:
    assert spark_columns(EVENTS) == (
        "feed_date string, schema_name string, table_name string, table_version bigint, physical_partition bigint, "
        "op string, commit_ts bigint, commit_time timestamp, before string, after string, segment string, "
        "line bigint, synthetic boolean"
    )


@pytest.mark.parametrize("protocol", sorted(CONTENTS))
def test_events_of_files(protocol: str) -> None:
    options = CsvOptions.model_validate({"include-commit-ts": True})
    context = FileContext("d", "t", options, Layout(("id",)))
    file_format, content = FILE_FORMATS[protocol], CONTENTS[protocol]
    with duckdb_sql.database() as connection:
        (batch,) = file_format.decode(connection, [content] if file_format.in_parts else content, context)
    assert batch.schema == DECODED
    assert [*batch.to_pylist()[0].values()] == [1, "I", 7, None, '{"id":"1"}', None, None]


def test_each_protocol_has_its_row() -> None:
    assert {*FILE_FORMATS} == {*get_args(Protocol)} == {*CONTENTS}
    assert len({each.extension for each in FILE_FORMATS.values()}) == len(FILE_FORMATS)
