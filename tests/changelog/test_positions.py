from __future__ import annotations

import datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdc_lakehouse.changelog.positions import (
    AHEAD_MS,
    BEGINNING,
    END_TS,
    commit_time,
    end_ts_at,
    is_commit_ts,
    is_time_ms,
    lag_seconds,
    physical_ms,
    tso,
)

UTC = datetime.UTC
EPOCH = datetime.datetime(1970, 1, 1, tzinfo=UTC)
MOMENTS = st.integers(0, 10**12 * 32).map(lambda ms: EPOCH + datetime.timedelta(milliseconds=ms))


def test_the_timestamp_of_tidbs_manual() -> None:
    """Of `TIDB_PARSE_TSO(443852055297916932)`, which the manual prints in its own zone."""
    zone = datetime.timezone(datetime.timedelta(hours=2))
    assert commit_time(443852055297916932) == datetime.datetime(2023, 8, 27, 20, 33, 41, 687000, zone)
    assert physical_ms(443852055297916932) == 1693161221687


@given(MOMENTS, st.integers(0, (1 << 18) - 1))
def test_a_moment_goes_there_and_back(moment: datetime.datetime, logical: int) -> None:
    assert commit_time(tso(moment, logical)) == moment
    assert tso(moment, logical) % (1 << 18) == logical


@given(MOMENTS, MOMENTS, st.integers(0, (1 << 18) - 1), st.integers(0, (1 << 18) - 1))
def test_timestamps_are_in_the_order_of_time(a: datetime.datetime, b: datetime.datetime, m: int, n: int) -> None:
    assert (tso(a, m) < tso(b, n)) == ((a, m) < (b, n))
    assert BEGINNING <= tso(a, m) < 1 << 63


@pytest.mark.parametrize("hours", [-11, 0, 8])
def test_the_zone_of_a_moment_does_not_matter(hours: int) -> None:
    moment = datetime.datetime(2026, 6, 1, 12, tzinfo=UTC)
    assert tso(moment.astimezone(datetime.timezone(datetime.timedelta(hours=hours)))) == tso(moment)


@pytest.mark.parametrize(("seconds", "lag"), [(90.5, 90.5), (0, 0), (-5, 0)])
def test_lag(seconds: float, lag: float) -> None:
    now = datetime.datetime(2026, 6, 1, 12, tzinfo=UTC)
    assert lag_seconds(tso(now), now + datetime.timedelta(seconds=seconds)) == pytest.approx(lag)


def test_where_the_times_end_that_a_source_can_have_when_it_is_read() -> None:
    moment = datetime.datetime(2026, 6, 1, 12, 0, 0, 123_456, tzinfo=UTC)
    end = end_ts_at(moment)
    assert is_commit_ts(end - 1, end) and not is_commit_ts(end, end)
    assert (physical_ms(end - 1), physical_ms(end)) == (physical_ms(tso(moment)) + AHEAD_MS, physical_ms(end - 1) + 1)
    assert end_ts_at(datetime.datetime(2099, 12, 31, 12, tzinfo=UTC)) == END_TS


def test_which_times_of_a_source_can_be_times() -> None:
    assert tso(datetime.datetime(2100, 1, 1, tzinfo=UTC)) == END_TS
    assert [is_time_ms(each) for each in (-1, 0, physical_ms(END_TS) - 1, physical_ms(END_TS), 1 << 63)] == [
        False, True, True, False, False,
    ]  # fmt: skip
    assert [is_commit_ts(each) for each in (-1, BEGINNING, 1, END_TS - 1, END_TS, 1 << 61)] == [
        False, False, True, True, False, False,
    ]  # fmt: skip
