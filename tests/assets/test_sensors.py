"""A tick of the sensor on a sink: a checkpoint that moved is one run, everything else is a reason."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from cdc_lakehouse.definitions import build_definitions
from cdc_lakehouse.errors import ConfigurationError, SourceError
from cdc_lakehouse.lake.tables.checkpoints import Cut
from cdc_lakehouse.lake.tables.segments import Segments
from cdc_lakehouse.pipeline import monitors
from cdc_lakehouse.sources.sink import incremental_listing
from tests.assets import asked, dates, empty_instance, skipped, tick
from tests.kit.lakes import TestLake
from tests.pipeline import T0, Sink, lake_in
from tests.sources.changing_sink import CountingStore


@pytest.fixture
def sink(lake: TestLake) -> Sink:
    sink = Sink(lake.sink, "t", checkpoint=10)
    for at, days in ((1, 0), (2, 2)):
        sink.file("t", at=at, days=days)
    return sink


def test_a_checkpoint_that_moved_is_one_run_of_the_dates_with_new_files(lake: TestLake, sink: Sink) -> None:
    result = tick(lake)
    request = asked(result)
    assert (request.run_key, result.cursor) == (f"{lake.name}:{T0 + 10}", str(T0 + 10))
    assert request.tags == {"cdc/feed": lake.name, "dagster/priority": "-1"}
    assert dates(lake) == ["2026-06-01", "2026-06-03"]
    sink.checkpoint(11)
    assert asked(tick(lake, result.cursor)).run_key == f"{lake.name}:{T0 + 11}"


def test_files_that_landed_are_not_new_until_they_change(lake: TestLake, sink: Sink) -> None:
    lake.run().source.land()
    path = sink.file("t", at=3, days=4)
    assert dates(lake) == ["2026-06-05"]
    lake.run().source.land()
    (lake.sink / path.replace("2026-06-05", "2026-06-01")).write_text("{}\r\n")
    assert dates(lake) == ["2026-06-01"]


def test_without_new_files_the_run_is_one_of_today(lake: TestLake) -> None:
    Sink(lake.sink, checkpoint=10)
    before = datetime.datetime.now(datetime.UTC).date().isoformat()
    (date,) = dates(lake)
    assert before <= date <= datetime.datetime.now(datetime.UTC).date().isoformat()


def test_files_of_tables_that_are_left_out_ask_for_nothing(tmp_path: Path) -> None:
    lake = lake_in(tmp_path, tables={"exclude": ["d.u"]})
    sink = Sink(lake.sink, "t", "u", checkpoint=10)
    for table, days in (("t", 0), ("u", 3)):
        sink.file(table, days=days)
    assert dates(lake) == ["2026-06-01"]


@pytest.mark.parametrize("how", ["published", "asked for"])
@pytest.mark.parametrize(("at", "words"), [(10, ["has not moved"]), (11, ["backwards", str(T0 + 10), str(T0 + 11)])])
def test_a_checkpoint_that_has_not_moved_or_went_backwards_is_told_and_not_followed(
    lake: TestLake, sink: Sink, how: str, at: int, words: list[str]
) -> None:
    if how == "published":
        lake.run().checkpoints.publish(Cut(T0 + at), [])
    reason = skipped(tick(lake, str(T0 + at) if how == "asked for" else None))
    assert [each for each in words if each not in reason] == []


@pytest.mark.parametrize(
    ("content", "words"), [(None, "no metadata file"), ("{", "checkpoint-ts"), ('{"checkpoint-ts": -1}', "not a TSO")]
)
def test_a_checkpoint_that_cannot_be_read_is_told(lake: TestLake, sink: Sink, content: str | None, words: str) -> None:
    metadata = lake.sink / "metadata"
    metadata.unlink() if content is None else metadata.write_text(content)
    assert words in skipped(tick(lake))


def test_a_sink_that_is_not_there_is_told(lake: TestLake) -> None:
    assert "no metadata file" in skipped(tick(lake))


@pytest.mark.parametrize(
    ("status", "feed", "waits"),
    [
        (dg.DagsterRunStatus.NOT_STARTED, None, True),
        (dg.DagsterRunStatus.STARTING, None, True),
        (dg.DagsterRunStatus.STARTED, None, True),
        (dg.DagsterRunStatus.CANCELING, None, True),
        (dg.DagsterRunStatus.SUCCESS, None, False),
        (dg.DagsterRunStatus.FAILURE, None, False),
        (dg.DagsterRunStatus.CANCELED, None, False),
        (dg.DagsterRunStatus.STARTED, "another", False),
    ],
)
def test_a_run_of_the_feed_that_is_not_finished_is_waited_for(
    lake: TestLake, sink: Sink, status: dg.DagsterRunStatus, feed: str | None, waits: bool
) -> None:
    run_id = "0d6ab5b2-9f1e-4b1e-8a52-000000000001"
    with dg.DagsterInstance.ephemeral() as instance:
        instance.add_run(dg.DagsterRun("a_job", run_id=run_id, status=status, tags={"cdc/feed": feed or lake.name}))
        result = tick(lake, instance=instance)
    assert (run_id in skipped(result)) if waits else asked(result)


@pytest.mark.parametrize(
    ("settings", "error", "words"),
    [
        ({"source": {"date_separator": "year"}}, SourceError, "date-separator day"),
        ({"start_date": "2999-01-01"}, ConfigurationError, "start_date"),
    ],
)
def test_a_wrong_separator_and_a_start_in_the_future_are_told(
    tmp_path: Path, settings: dict[str, Any], error: type[Exception], words: str
) -> None:
    lake = lake_in(tmp_path, **settings)
    Sink(lake.sink, "t", checkpoint=10).file("t")
    with pytest.raises(error, match=words):
        dates(lake)


def test_the_run_that_is_asked_for_is_one_that_the_job_takes(lake: TestLake, sink: Sink) -> None:
    """Dagster checks a request's tags and partitions when it evaluates the tick of the loaded definitions."""
    repository = build_definitions(lake.config).get_repository_def()
    sensor = repository.get_sensor_def(f"{lake.name}_checkpoint")
    with dg.build_sensor_context(instance=empty_instance(), repository_def=repository) as context:
        (request,) = sensor.evaluate_tick(context).run_requests or []
    assert request.run_key == f"{lake.name}:{T0 + 10}"
    assert sensor.job_name == f"{lake.name}_new" and sensor.default_status == dg.DefaultSensorStatus.RUNNING


def test_a_tick_reads_neither_the_known_segments_nor_the_known_files(
    lake: TestLake, sink: Sink, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake.run().source.land()
    monkeypatch.setattr(incremental_listing, "REQUEST", 0)
    monkeypatch.setattr(Segments, "rows", property(lambda _: pytest.fail("segments were read")))
    store = CountingStore(lake.sink)
    monkeypatch.setattr(monitors, "open_store", lambda *_: store)
    sink.file("t", at=3, days=4)
    assert dates(lake) == ["2026-06-05"]
    assert ("", None) not in store.listed


def test_where_directories_are_called_by_ids_all_new_files_count(tmp_path: Path) -> None:
    lake = lake_in(tmp_path, tables={"include": ["d.*"]})
    source = lake.feed.storage_sink.model_copy(update={"use_table_id_as_path": True})
    feed = lake.feed.model_copy(update={"source": source})
    for path in ("112/7/2026-06-01/CDC000001.json", "112/meta/schema_7_0123456789.json"):
        (lake.sink / path).parent.mkdir(parents=True)
        (lake.sink / path).write_text("{}")
    assert monitors.open_monitor(lake.lake, feed).new_dates() == ["2026-06-01"]
