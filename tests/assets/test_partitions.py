"""Partitions are the source's date directories."""

from __future__ import annotations

import datetime

import dagster as dg
import pytest

from cdc_lakehouse.config import FeedConfig
from cdc_lakehouse.definitions import build_definitions
from cdc_lakehouse.errors import ConfigurationError
from tests.kit import scripted_lake as script
from tests.kit.clock import clock_at
from tests.kit.dagster_feed import keys, partitions_of, run_partitions
from tests.kit.golden_pages import logged
from tests.kit.hand_sinks import HandSink
from tests.kit.lakes import TestLake

NOW = datetime.datetime(2026, 6, 30, 23, 59, tzinfo=datetime.UTC)


def feed(separator: str, start: str = "2026-05-17", zone: str = "UTC") -> FeedConfig:
    source = {"type": "storage_sink", "uri": "file:///s", "protocol": "canal-json", "date_separator": separator}
    source["time_zone"] = zone
    return FeedConfig.model_validate({"name": "f", "source": source, "start_date": start})


@pytest.mark.parametrize(
    ("separator", "first", "last"),
    [("year", "2026", "2026"), ("month", "2026-05", "2026-06"), ("day", "2026-05-17", "2026-06-30")],
)
def test_partitions_are_those_since_the_start_date(separator: str, first: str, last: str) -> None:
    definition = partitions_of(feed(separator))
    assert definition is not None
    found = list(definition.get_partition_keys(current_time=NOW))
    assert (found[0], found[-1]) == (first, last) and found == sorted(set(found))


SHANGHAI = "Asia/Shanghai"


@pytest.mark.parametrize(
    ("separator", "zone", "dates", "wanted"),
    [
        ("day", "UTC", ["2026-06-02", "2026-06-01", "2026-06-02"], ["2026-06-01", "2026-06-02"]),
        ("day", "UTC", [], ["2026-06-30"]),
        ("day", "UTC", ["2026-05-16", "2026-06-01"], ["2026-06-01"]),
        ("day", "UTC", ["2026-05-16", "2026", "2026-13-01"], ["2026-06-30"]),
        ("month", "UTC", ["2026-06", "2026-05"], ["2026-05", "2026-06"]),
        ("year", "UTC", [], ["2026"]),
        # The source's wall clock can be a day ahead of UTC.
        ("day", SHANGHAI, ["2026-07-01", "2026-07-02"], ["2026-07-01"]),
        ("day", SHANGHAI, [], ["2026-07-01"]),
    ],
)
def test_partitions_of_a_run_are_its_dates_or_the_current_one(
    separator: str, zone: str, dates: list[str], wanted: list[str]
) -> None:
    assert run_partitions(feed(separator, zone=zone), dates, NOW) == wanted


def test_source_without_dates_or_with_a_later_start_has_none() -> None:
    assert partitions_of(feed("none")) is None and run_partitions(feed("none"), [], NOW) == []
    with pytest.raises(ConfigurationError, match="start_date of the feed f is in the future"):
        run_partitions(feed("day", "2999-01-01"), ["2026-06-01"], NOW)


def test_partitions_start_date_long_before_files_begin_with_them(
    lake: TestLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run logs two events for each date that has passed: they must not be those of decades without files."""
    lake.configure(start_date="2000-01-01")
    monkeypatch.setenv("CDC_LAKEHOUSE_CONFIG", str(lake.config_path))
    HandSink(lake.sink).checkpoint(0)
    dates = ("1999-12-31", "2026-06-27", "not a date")
    script.land(lake, *(script.segment(f"d/t/1/{date}/CDC1.json", feed_date=date, events=1) for date in dates))
    script.publish(lake, at=script.before(NOW, 0))
    definitions = build_definitions(lake.config)
    loaded = definitions.resolve_asset_graph().get(keys.raw_key(lake.name)).partitions_def
    assert isinstance(loaded, dg.TimeWindowPartitionsDefinition)
    assert loaded.start.date() == datetime.date(2026, 6, 27)
    with dg.DagsterInstance.ephemeral() as instance, clock_at(lambda: NOW):
        done = definitions.resolve_job_def(f"{lake.name}_new").execute_in_process(instance=instance)
        assert done.success
        materialized, _ = logged(instance.all_logs(done.run_id))
    passed = {str(each["partition"]) for each in materialized if each["partition"] is not None}
    assert passed == {"2026-06-27", "2026-06-28", "2026-06-29", "2026-06-30"}, "and the current one"


@pytest.mark.parametrize(
    ("zone", "name"), [("+08:00", "Etc/GMT-8"), ("-03:30", "Etc/GMT+3"), ("+05:30", "Etc/GMT-6"), ("-00:00", "UTC")]
)
def test_offset_is_a_time_zone(zone: str, name: str) -> None:
    definition = partitions_of(feed("day", zone=zone))
    assert definition is not None and definition.timezone == name
