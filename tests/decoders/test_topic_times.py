"""Times of the source's clock that can be none: the message is bad, and the feed's clock stays."""

from __future__ import annotations

import json

import pytest

from cdc_lakehouse.changelog.events import Origin
from cdc_lakehouse.changelog.positions import END_MS, LOGICAL_BITS
from cdc_lakehouse.decoders.messages import canal_entries
from cdc_lakehouse.decoders.partition_summary import PartitionSummary
from cdc_lakehouse.sources.canal.wire import entries_pb2 as wire
from tests.decoders.topic_reading import Reading

NOW = 1_780_000_000_000
NONE = [-1, END_MS, NOW * 1000, 1 << 62]


@pytest.mark.parametrize("time", [*NONE, 10**30])
@pytest.mark.parametrize("format_name", ["canal-json", "dts-canal-json"])
def test_of_messages_of_json(format_name: str, time: int) -> None:
    def message(es: int) -> bytes:
        return json.dumps({"database": "d", "table": "t", "type": "INSERT", "data": [{"id": "1"}], "es": es}).encode()

    reading = Reading(format_name)
    reading.read([[message(time), message(NOW)]], [2])
    assert [event["commit_ts"] for event in reading.events] == [NOW << LOGICAL_BITS]
    (summary,) = reading.summaries.values()
    (bad,) = summary.bad["s"]
    assert (bad.line, bad.database, bad.table) == (0, "d", "t")


@pytest.mark.parametrize("time", NONE)
def test_of_entries(time: int) -> None:
    header = wire.Header(schema_name="d", table_name="t", execute_time=time)
    entry = wire.Entry(header=header, entry_type=wire.TRANSACTION_END)
    with pytest.raises(canal_entries.MessageError, match="not between the years 1970 and 2100") as refused:
        canal_entries.decode_entry(entry.SerializeToString())
    assert refused.value.of == ("d", "t")


@pytest.mark.parametrize("time", NONE)
def test_a_records_time_that_can_be_none_is_not_used(time: int) -> None:
    summary = PartitionSummary(7, 7)
    assert [summary.commit_ts(Origin(), each) for each in (time, NOW)] == [8, NOW << LOGICAL_BITS]
