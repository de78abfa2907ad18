"""Messages of topics as rows: the dates of timestamps in a zone, and bytes that stay what they are."""

from __future__ import annotations

import datetime
import zoneinfo
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from cdc_lakehouse.config import DateSeparator
from cdc_lakehouse.lake.tables.records import RecordRows
from cdc_lakehouse.sources.record_log import LogPartition, Messages, OffsetRange

ZONES = [
    "UTC",
    "+08:00",
    "Asia/Shanghai",
    "America/St_Johns",
    "America/Havana",
    "Africa/Monrovia",
    "Pacific/Kiritimati",
]
LAST_MS = 253_402_300_799_999

times = st.integers(0, 4 * 10**12) | st.integers(0, LAST_MS)


def messages(timestamps: list[tuple[int, int]], **columns: Any) -> Messages:
    count = len(timestamps)
    keys, values, headers = (columns.get(name, [None] * count) for name in ("keys", "values", "headers"))
    where = OffsetRange(LogPartition("orders", 3), 100, 100 + count, 1)
    return Messages(where, list(range(100, 100 + count)), timestamps, keys, values, headers, 0)


def rows(what: Messages, zone: str = "UTC", separator: DateSeparator = "day") -> list[dict[str, Any]]:
    found = []
    for date, batch in RecordRows(zone, separator, 7).of(what):
        assert set(batch.column("feed_date").to_pylist()) == {date}
        found += batch.to_pylist()
    return sorted(found, key=lambda row: row["offset"])


@given(st.lists(times, min_size=1, max_size=20), st.sampled_from(ZONES))
@example([562_130_000_000, 562_130_070_000, 562_133_700_000], "America/St_Johns")  # Set back at 00:01, 1987-10-25.
@example([63_593_070_000, 63_593_069_999], "Africa/Monrovia")  # 44:30 minutes off UTC, up to 1972-01-07.
def test_dates_are_those_of_the_zone(moments: list[int], zone: str) -> None:
    seen = rows(messages([(1, moment) for moment in moments]), zone)
    for moment, row in zip(moments, seen, strict=True):
        if moment >= LAST_MS - 365 * 86_400_000:
            continue
        local = datetime.datetime.fromtimestamp(moment // 1000, zoneinfo.ZoneInfo(zone.replace("+08:00", "Etc/GMT-8")))
        assert row["feed_date"] == f"{local:%Y}".zfill(4) + f"{local:-%m-%d}"
        assert row["timestamp"] == datetime.datetime.fromtimestamp(moment // 1000, datetime.UTC).replace(
            microsecond=moment % 1000 * 1000
        )


@pytest.mark.parametrize(
    ("separator", "date"), [("none", None), ("year", "2026"), ("month", "2026-03"), ("day", "2026-03-01")]
)
def test_what_a_feed_date_is_of_a_date(separator: DateSeparator, date: str | None) -> None:
    at = int(datetime.datetime(2026, 2, 28, 16, 0, tzinfo=datetime.UTC).timestamp() * 1000)
    assert [row["feed_date"] for row in rows(messages([(1, at)]), "Asia/Shanghai", separator)] == [date]


@pytest.mark.parametrize("timestamp", [(0, -1), (0, 0), (1, -1), (1, LAST_MS + 1), (2, 2**63 - 1)])
def test_a_timestamp_that_is_none_or_beyond_the_calendar(timestamp: tuple[int, int]) -> None:
    known, odd = rows(messages([(1, 1000), timestamp]))
    assert (known["feed_date"], odd["feed_date"], odd["timestamp"]) == ("1970-01-01", None, None)
    kinds = {0: None, 1: "CreateTime", 2: "LogAppendTime"}
    assert (known["timestamp_type"], odd["timestamp_type"]) == ("CreateTime", kinds[timestamp[0]])
