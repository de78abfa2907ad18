"""A tick of the sensor on a real sink: a checkpoint that moved is one run, everything else is a reason."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from cdc_lakehouse.assets.jobs import build_job
from cdc_lakehouse.assets.sensors import build_sensor
from cdc_lakehouse.definitions import build_definitions
from cdc_lakehouse.errors import ConfigurationError, SourceError
from cdc_lakehouse.lake.tables.checkpoints import Cut
from cdc_lakehouse.lake.tables.segments import Segments
from cdc_lakehouse.pipeline import monitors
from cdc_lakehouse.sources.sink import incremental_listing
from tests.assets import empty_instance
from tests.kit.lakes import TestLake
from tests.pipeline import T0, Sink, lake_in
from tests.sources.changing_sink import CountingStore

START, END = "dagster/asset_partition_range_start", "dagster/asset_partition_range_end"


@pytest.fixture
def sink(lake: TestLake) -> Sink:
    sink = Sink(lake.sink)
    sink.create("t")
    sink.file("t", at=1, days=0)
    sink.file("t", at=2, days=2)
    sink.checkpoint(10)
    return sink


def tick(lake: TestLake, cursor: str | None = None, instance: dg.DagsterInstance | None = None) -> Any:
    sensor = build_sensor(lake.lake, lake.feed, build_job(lake.feed, []))
    with dg.build_sensor_context(instance=instance or empty_instance(), cursor=cursor) as context:
        return sensor(context)


def skipped(result: Any) -> str:
    assert isinstance(result, dg.SkipReason), result
    return str(result.skip_message)


def asked(result: Any) -> dg.RunRequest:
    assert isinstance(result, dg.SensorResult), result
    (request,) = result.run_requests or []
    return request


def test_a_checkpoint_that_moved_is_one_run_of_the_dates_with_new_files(lake: TestLake, sink: Sink) -> None:
    result = tick(lake)
    request = asked(result)
    assert (request.run_key, result.cursor) == (f"{lake.name}:{T0 + 10}", str(T0 + 10))
    assert request.tags["cdc/feed"] == lake.name and request.tags["cdc/trigger"] == "incremental"
    assert (request.tags[START], request.tags[END]) == ("2026-06-01", "2026-06-03")


def test_files_that_landed_are_not_new_until_they_change(lake: TestLake, sink: Sink) -> None:
    lake.run().source.land()
    path = sink.file("t", at=3, days=4)
    assert {asked(tick(lake)).tags[each] for each in (START, END)} == {"2026-06-05"}
    lake.run().source.land()
    (lake.sink / path.replace("2026-06-05", "2026-06-01")).write_text("{}\r\n")
    assert {asked(tick(lake)).tags[each] for each in (START, END)} == {"2026-06-01"}


def test_without_new_files_the_run_is_one_of_today(lake: TestLake) -> None:
    Sink(lake.sink).checkpoint(10)
    before = datetime.datetime.now(datetime.UTC).date().isoformat()
    tags = asked(tick(lake)).tags
    assert tags[START] == tags[END] and before <= tags[START] <= datetime.datetime.now(datetime.UTC).date().isoformat()


def test_files_of_tables_that_are_left_out_ask_for_nothing(tmp_path: Path) -> None:
    lake = lake_in(tmp_path, tables={"exclude": ["d.u"]})
    sink = Sink(lake.sink)
    for table, days in (("t", 0), ("u", 3)):
        sink.create(table)
        sink.file(table, days=days)
    sink.checkpoint(10)
    assert asked(tick(lake)).tags[END] == "2026-06-01"


@pytest.mark.parametrize("how", ["published", "asked for"])
def test_a_checkpoint_that_has_not_moved_is_skipped(lake: TestLake, sink: Sink, how: str) -> None:
    if how == "published":
        lake.run().checkpoints.publish(Cut(T0 + 10), [])
    assert "has not moved" in skipped(tick(lake, str(T0 + 10) if how == "asked for" else None))


@pytest.mark.parametrize("how", ["published", "asked for"])
def test_a_checkpoint_that_went_backwards_is_told_and_not_followed(lake: TestLake, sink: Sink, how: str) -> None:
    if how == "published":
        lake.run().checkpoints.publish(Cut(T0 + 11), [])
    reason = skipped(tick(lake, str(T0 + 11) if how == "asked for" else None))
    assert "backwards" in reason and str(T0 + 10) in reason and str(T0 + 11) in reason


def test_the_next_checkpoint_is_the_next_run(lake: TestLake, sink: Sink) -> None:
    first = tick(lake)
    sink.checkpoint(11)
    assert asked(tick(lake, first.cursor)).run_key == f"{lake.name}:{T0 + 11}"


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
    ("status", "waits"),
    [
        (dg.DagsterRunStatus.NOT_STARTED, True),
        (dg.DagsterRunStatus.STARTING, True),
        (dg.DagsterRunStatus.STARTED, True),
        (dg.DagsterRunStatus.CANCELING, True),
        (dg.DagsterRunStatus.SUCCESS, False),
        (dg.DagsterRunStatus.FAILURE, False),
        (dg.DagsterRunStatus.CANCELED, False),
    ],
)
def test_a_run_of_the_feed_that_is_not_finished_is_waited_for(
    lake: TestLake, sink: Sink, status: dg.DagsterRunStatus, waits: bool
) -> None:
    run_id = "0d6ab5b2-9f1e-4b1e-8a52-000000000001"
    with dg.DagsterInstance.ephemeral() as instance:
        instance.add_run(dg.DagsterRun("a_job", run_id=run_id, status=status, tags={"cdc/feed": lake.name}))
        result = tick(lake, instance=instance)
    assert (run_id in skipped(result)) if waits else asked(result)


def test_a_run_of_another_feed_is_not_waited_for(lake: TestLake, sink: Sink) -> None:
    with dg.DagsterInstance.ephemeral() as instance:
        instance.add_run(dg.DagsterRun("a_job", status=dg.DagsterRunStatus.STARTED, tags={"cdc/feed": "another"}))
        assert asked(tick(lake, instance=instance))


def test_a_wrong_separator_and_a_start_in_the_future_are_told(tmp_path: Path) -> None:
    for number, (settings, error, words) in enumerate(
        [
            ({"source": {"date_separator": "year"}}, SourceError, "date-separator day"),
            ({"start_date": "2999-01-01"}, ConfigurationError, "start_date"),
        ]
    ):
        lake = lake_in(tmp_path / str(number), **settings)
        sink = Sink(lake.sink)
        sink.create("t")
        sink.file("t")
        sink.checkpoint(10)
        with pytest.raises(error, match=words):
            tick(lake)


def test_the_run_that_is_asked_for_is_one_that_the_job_takes(lake: TestLake, sink: Sink) -> None:
    """Dagster checks a request's tags and partitions when it evaluates the tick of the loaded definitions."""
    repository = build_definitions(lake.config).get_repository_def()
    sensor = repository.get_sensor_def(f"{lake.name}_checkpoint")
    with dg.build_sensor_context(instance=empty_instance(), repository_def=repository) as context:
        (request,) = sensor.evaluate_tick(context).run_requests or []
    assert request.run_key == f"{lake.name}:{T0 + 10}"
    assert sensor.job_name == f"{lake.name}_feed" and sensor.default_status == dg.DefaultSensorStatus.RUNNING


def test_a_tick_reads_neither_the_known_segments_nor_the_known_files(
    lake: TestLake, sink: Sink, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake.run().source.land()
    monkeypatch.setattr(incremental_listing, "REQUEST", 0)
    monkeypatch.setattr(Segments, "rows", property(lambda _: pytest.fail("segments were read")))
    store = CountingStore(lake.sink)
    monkeypatch.setattr(monitors, "open_store", lambda *_: store)
    sink.file("t", at=3, days=4)
    assert {asked(tick(lake)).tags[each] for each in (START, END)} == {"2026-06-05"}
    assert ("", None) not in store.listed


def test_where_directories_are_called_by_ids_all_new_files_count(tmp_path: Path) -> None:
    lake = lake_in(tmp_path, tables={"include": ["d.*"]})
    source = lake.feed.storage_sink.model_copy(update={"use_table_id_as_path": True})
    feed = lake.feed.model_copy(update={"source": source})
    (lake.sink / "112" / "7" / "2026-06-01").mkdir(parents=True)
    (lake.sink / "112" / "7" / "2026-06-01" / "CDC000001.json").write_text("{}")
    (lake.sink / "112" / "meta").mkdir()
    (lake.sink / "112" / "meta" / "schema_7_0123456789.json").write_text("{}")
    assert monitors.open_monitor(lake.lake, feed).new_dates() == ["2026-06-01"]
