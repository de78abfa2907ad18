"""Times of the source's clock that can be none: the message is bad, and the feed's clock stays."""

from __future__ import annotations

import json
from typing import Any

import pytest

from cdc_lakehouse.changelog.events import Origin
from cdc_lakehouse.changelog.positions import END_MS, LOGICAL_BITS
from cdc_lakehouse.decoders.formats import canal_entries
from cdc_lakehouse.decoders.topic_order import PartitionSummary
from cdc_lakehouse.sources.canal.wire import entries_pb2 as wire
from tests.kit.decoding import Reading

NOW = 1_780_000_000_000
NONE = [-1, END_MS, NOW * 1000, 1 << 62]


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


# --- More than a day beyond the time at which the message was read ---

DAY = 24 * 60 * 60 * 1000
LATE = NOW + DAY + 1


def flat(time_ms: int, format_name: str = "canal-json", *, time: str = "es") -> bytes:
    """A message that is as usual, of which `time` says when it was. Other names make it one that each decoder reads."""
    message: dict[str, Any] = {"database": "d", "table": "t", "type": "INSERT", "data": [{"id": "1"}]}
    message |= {"pkNames": ["id"], "mysqlType": {"id": "int"}, "sqlType": {"id": 4}, "isDdl": False, "old": None}
    own = {"_tidb": {"commitTs": time_ms << LOGICAL_BITS}} if format_name == "ticdc-canal-json" else {time: time_ms}
    return json.dumps(message | own).encode()


def mark(time_ms: int) -> bytes:
    return json.dumps({"type": "TIDB_WATERMARK", "_tidb": {"watermarkTs": time_ms << LOGICAL_BITS}}).encode()


@pytest.mark.parametrize("by_columns", [True, False])
@pytest.mark.parametrize("format_name", ["canal-json", "dts-canal-json", "ticdc-canal-json"])
def test_a_time_far_beyond_that_of_reading_is_bad(format_name: str, by_columns: bool) -> None:
    reading = Reading(format_name, by_columns=by_columns)
    reading.landed_ms = NOW
    times = [NOW + DAY, LATE, *NONE, 10**30, NOW]
    reading.read([[flat(at, format_name) for at in times]])
    (summary,) = reading.summaries.values()
    late, *impossible = summary.bad["s"]
    assert [(bad.line, bad.database, bad.table) for bad in (late, *impossible)] == [(n, "d", "t") for n in range(1, 7)]
    assert "more than a day after it was read" in late.message and "quarantine replay" in late.message
    assert len(reading.events) == 2
    assert summary.last_ts >> LOGICAL_BITS == NOW + DAY


@pytest.mark.parametrize("by_columns", [True, False])
def test_where_the_clock_of_the_reader_is_behind_the_records_time_counts(by_columns: bool) -> None:
    reading = Reading("ticdc-canal-json", by_columns=by_columns)
    reading.landed_ms, reading.record_ms = 0, NOW
    reading.read([[flat(at, "ticdc-canal-json") for at in (NOW, LATE)]], [2])
    assert (len(reading.events), reading.bad) == (1, 1)


def test_the_time_of_a_record_of_a_canal_server_is_its_entrys_own() -> None:
    header = wire.Header(schema_name="d", table_name="t", execute_time=LATE)
    reading = Reading("canal-entries")
    reading.landed_ms, reading.record_ms, reading.has_record_times = NOW, LATE, False
    reading.read([[wire.Entry(header=header, entry_type=wire.TRANSACTION_END).SerializeToString()]], [1])
    assert reading.bad == 1


def test_a_watermark_far_beyond_is_bad_and_rows_behind_it_are_taken() -> None:
    reading = Reading("ticdc-canal-json")
    reading.landed_ms = NOW
    reading.read([[mark(NOW - 5), mark(LATE), flat(NOW, "ticdc-canal-json")]], [3])
    (summary,) = reading.summaries.values()
    assert summary.watermark == NOW - 5 << LOGICAL_BITS
    assert [each.error_class for each in summary.bad["s"]] == ["BadWatermark"]
    assert (len(reading.events), reading.bad) == (1, 1)


def test_a_records_time_far_beyond_is_not_the_clock_of_messages_without_one() -> None:
    reading = Reading("canal-json")
    reading.landed_ms, reading.record_ms = NOW, LATE
    reading.read([[flat(NOW, time="other")]], [1])
    assert [event["commit_ts"] for event in reading.events] == [1]
