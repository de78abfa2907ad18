"""Partitions are the sink's date directories."""

from __future__ import annotations

import datetime
from types import SimpleNamespace
from typing import Any

import dagster as dg
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdc_lakehouse.assets.jobs import partition_tags
from cdc_lakehouse.assets.keys import partitions_of, raw_key, run_partitions
from cdc_lakehouse.assets.passed_dates import log_passed_dates
from cdc_lakehouse.changelog.positions import tso
from cdc_lakehouse.config import FeedConfig
from cdc_lakehouse.definitions import build_definitions
from cdc_lakehouse.errors import ConfigurationError
from cdc_lakehouse.lake.tables.checkpoints import Cut
from cdc_lakehouse.lake.tables.segments import Segment
from tests.kit.lakes import TestLake

START, END = "dagster/asset_partition_range_start", "dagster/asset_partition_range_end"
NOW = datetime.datetime(2026, 6, 30, 23, 59, tzinfo=datetime.UTC)


def feed(separator: str, start: str = "2026-05-17", zone: str = "UTC") -> FeedConfig:
    source = {"type": "storage_sink", "uri": "file:///s", "protocol": "canal-json", "date_separator": separator}
    source["time_zone"] = zone
    return FeedConfig.model_validate({"name": "f", "source": source, "start_date": start})


def keys(feed: FeedConfig) -> list[str]:
    definition = partitions_of(feed)
    assert definition is not None
    return list(definition.get_partition_keys(current_time=NOW))


def test_a_sink_without_dates_has_no_partitions() -> None:
    assert partitions_of(feed("none")) is None
    assert run_partitions(feed("none"), [], NOW) == [] and partition_tags([]) == {}


@pytest.mark.parametrize(
    ("separator", "first", "last"),
    [("year", "2026", "2026"), ("month", "2026-05", "2026-06"), ("day", "2026-05-17", "2026-06-30")],
)
def test_partitions_go_from_the_start_date_to_the_present_one(separator: str, first: str, last: str) -> None:
    found = keys(feed(separator))
    assert (found[0], found[-1]) == (first, last)
    assert found == sorted(set(found))


def test_a_date_begins_where_the_source_is() -> None:
    """Its directories have the date of the source's wall clock, which can be a day ahead of UTC."""
    shanghai = feed("day", zone="Asia/Shanghai")
    assert run_partitions(shanghai, ["2026-07-01", "2026-07-02"], NOW) == ["2026-07-01"]
    assert run_partitions(shanghai, [], NOW) == ["2026-07-01"]


@given(st.dates(datetime.date(2020, 1, 1), datetime.date(2026, 6, 30)))
def test_every_day_since_the_start_is_a_partition_as_its_directory_is_called(start: datetime.date) -> None:
    days = range((NOW.date() - start).days + 1)
    assert keys(feed("day", start.isoformat())) == [(start + datetime.timedelta(days=n)).isoformat() for n in days]


@pytest.mark.parametrize(
    ("separator", "dates", "wanted"),
    [
        ("day", ["2026-06-02", "2026-06-01", "2026-06-02"], ["2026-06-01", "2026-06-02"]),
        ("day", [], ["2026-06-30"]),
        ("day", ["2026-05-16", "2026-06-01"], ["2026-06-01"]),
        ("day", ["2026-05-16", "2026", "2026-13-01"], ["2026-06-30"]),
        ("month", ["2026-06", "2026-05"], ["2026-05", "2026-06"]),
        ("year", [], ["2026"]),
    ],
)
def test_a_runs_partitions_are_its_dates_that_are_partitions_else_the_present(
    separator: str, dates: list[str], wanted: list[str]
) -> None:
    assert run_partitions(feed(separator), dates, NOW) == wanted


def test_a_start_date_in_the_future_is_told() -> None:
    with pytest.raises(ConfigurationError, match="start_date of the feed f is in the future"):
        run_partitions(feed("day", "2999-01-01"), ["2026-06-01"], NOW)


def test_partitions_start_date_long_before_files_begin_with_them(lake: TestLake) -> None:
    """A run logs two events for each date that has passed: they must not be those of decades without files."""
    lake.configure(start_date="2000-01-01")
    files = [Segment(segment=f"d/t/1/{date}/CDC1.json", kind="file", feed_date=date, size=1, batch=1, state="decoded",
                     landed_at=NOW, events=1) for date in ("1999-12-31", "2026-06-27", "not a date")]  # fmt: skip
    lake.run().segments.land(files)
    run: Any = SimpleNamespace(run=lake.run(), published=SimpleNamespace(cut=Cut(tso(NOW))))
    logged: list[dg.AssetMaterialization] = []
    context: Any = SimpleNamespace(instance=dg.DagsterInstance.ephemeral(), log_event=logged.append)
    log_passed_dates(context, lake.feed, run)
    assert sorted({str(event.partition) for event in logged}) == ["2026-06-27", "2026-06-28", "2026-06-29"]
    assert len(logged) == 6
    loaded = build_definitions(lake.config).resolve_asset_graph().get(raw_key(lake.name)).partitions_def
    assert isinstance(loaded, dg.TimeWindowPartitionsDefinition)
    assert loaded.start.date() == datetime.date(2026, 6, 27)


def test_a_run_of_some_dates_is_a_range() -> None:
    assert partition_tags(["2026-06-05", "2026-06-01"]) == {START: "2026-06-01", END: "2026-06-05"}


@pytest.mark.parametrize(
    ("zone", "name"), [("+08:00", "Etc/GMT-8"), ("-03:30", "Etc/GMT+3"), ("+05:30", "Etc/GMT-6"), ("-00:00", "UTC")]
)
def test_an_offset_is_a_time_zone(zone: str, name: str) -> None:
    definition = partitions_of(feed("day", zone=zone))
    assert definition is not None and definition.timezone == name
