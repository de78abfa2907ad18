"""A tick of a feed's sensor: what is new in the source is one run, everything else is a reason."""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from dagster._core.execution.backfill import BulkActionStatus, PartitionBackfill

from cdc_lakehouse.definitions import build_definitions
from cdc_lakehouse.errors import ConfigurationError, SourceError
from tests.boundaries.change_log import utc_now
from tests.kit import scripted_lake as script
from tests.kit.clock import clock_at
from tests.kit.dagster_feed import FAILURE_TAG, asked, dates, empty_instance, keys, skipped, started, tick
from tests.kit.kafka import MemoryTopic
from tests.kit.lakes import TestLake
from tests.pipeline import T0, Sink, lake_in
from tests.sources.canal.binlogs import binlog_of
from tests.sources.canal.hand_made import HandMadeCanal
from tests.sources.canal.servers import closed_port, serving

RUN = "0d6ab5b2-9f1e-4b1e-8a52-000000000001"
LOG = binlog_of([{"kind": "mysql", "rows": 5, "seconds": 1, "rotated": False}] * 4).entries


@pytest.fixture
def sink(lake: TestLake) -> Sink:
    sink = Sink(lake.sink, "t", checkpoint=10)
    for at, days in ((1, 0), (2, 2)):
        sink.file("t", at=at, days=days)
    return sink


@pytest.fixture
def instance(tmp_path: Path) -> Iterator[dg.DagsterInstance]:
    with dg.DagsterInstance.ephemeral(tempdir=str(tmp_path)) as instance:
        yield instance


# --- A sink ---


def test_moved_checkpoint_is_one_run(lake: TestLake, sink: Sink) -> None:
    result = tick(lake)
    request = asked(result)
    assert (request.run_key, result.cursor) == (f"{lake.name}:{T0 + 10}", str(T0 + 10))
    assert request.tags == {"cdc/feed": lake.name, "dagster/priority": "-1"}
    sink.checkpoint(11)
    assert asked(tick(lake, result.cursor)).run_key == f"{lake.name}:{T0 + 11}"


@pytest.mark.parametrize("how", ["published", "asked for"])
@pytest.mark.parametrize(("at", "words"), [(10, ["has not moved"]), (11, ["backwards", str(T0 + 10), str(T0 + 11)])])
def test_checkpoint_not_ahead_is_a_reason(lake: TestLake, sink: Sink, how: str, at: int, words: list[str]) -> None:
    if how == "published":
        script.publish(lake, at=T0 + at)
    reason = skipped(tick(lake, str(T0 + at) if how == "asked for" else None))
    assert [each for each in words if each not in reason] == []


@pytest.mark.parametrize(
    ("content", "words"), [(None, "no metadata file"), ("{", "checkpoint-ts"), ('{"checkpoint-ts": -1}', "not a TSO")]
)
def test_unreadable_checkpoint_is_a_reason(lake: TestLake, sink: Sink, content: str | None, words: str) -> None:
    metadata = lake.sink / "metadata"
    metadata.unlink() if content is None else metadata.write_text(content)
    assert words in skipped(tick(lake))


def test_dates_of_a_run_are_those_with_new_files(tmp_path: Path) -> None:
    lake = lake_in(tmp_path, tables={"exclude": ["d.u"]})
    sink = Sink(lake.sink, "t", "u", checkpoint=10)
    before = utc_now().date().isoformat()
    (current,) = dates(lake)
    assert before <= current <= utc_now().date().isoformat(), "without new files the current one"
    for table, at, days in (("t", 1, 0), ("t", 2, 2), ("u", 1, 3)):
        sink.file(table, at=at, days=days)
    assert dates(lake) == ["2026-06-01", "2026-06-03"]
    lake.run().source.land()
    path = sink.file("t", at=3, days=4)
    assert dates(lake) == ["2026-06-05"]
    lake.run().source.land()
    (lake.sink / path.replace("2026-06-05", "2026-06-01")).write_text("{}\r\n")
    assert dates(lake) == ["2026-06-01"], "a file that changed is new"


def test_dates_of_directories_named_by_table_id_are_found(tmp_path: Path) -> None:
    source = {"use_table_id_as_path": True}
    lake = lake_in(tmp_path, tables={"include": ["d.*"]}, source=source)
    for path in ("112/7/2026-06-01/CDC000001.json", "112/meta/schema_7_0123456789.json"):
        (lake.sink / path).parent.mkdir(parents=True)
        (lake.sink / path).write_text("{}")
    assert dates(lake) == ["2026-06-01"]


@pytest.mark.parametrize(
    ("settings", "error", "words"),
    [
        ({"source": {"date_separator": "year"}}, SourceError, "date-separator day"),
        ({"start_date": "2999-01-01"}, ConfigurationError, "start_date"),
    ],
)
def test_wrong_separator_and_future_start_are_refused(
    tmp_path: Path, settings: dict[str, Any], error: type[Exception], words: str
) -> None:
    lake = lake_in(tmp_path, **settings)
    Sink(lake.sink, "t", checkpoint=10).file("t")
    with pytest.raises(error, match=words):
        dates(lake)


def test_request_fits_the_loaded_job(lake: TestLake, sink: Sink) -> None:
    """Dagster checks a request's tags and partitions when it evaluates the tick of the loaded definitions."""
    repository = build_definitions(lake.config).get_repository_def()
    sensor = repository.get_sensor_def(f"{lake.name}_checkpoint")
    with dg.build_sensor_context(instance=empty_instance(), repository_def=repository) as context:
        (request,) = sensor.evaluate_tick(context).run_requests or []
    assert request.run_key == f"{lake.name}:{T0 + 10}"
    assert sensor.job_name == f"{lake.name}_new" and sensor.default_status == dg.DefaultSensorStatus.RUNNING


# --- Runs that are under way, and runs that failed ---


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
def test_unfinished_run_of_the_feed_is_waited_for(
    lake: TestLake, sink: Sink, instance: dg.DagsterInstance, status: Any, feed: str | None, waits: bool
) -> None:
    instance.add_run(dg.DagsterRun("a_job", run_id=RUN, status=status, tags={"cdc/feed": feed or lake.name}))
    result = tick(lake, instance=instance)
    assert (RUN in skipped(result)) if waits else asked(result)


def test_run_without_a_lease_is_dead_after_its_start(lake: TestLake, sink: Sink, instance: dg.DagsterInstance) -> None:
    run = started(instance, lake.name)
    for minutes, waits in ((4, True), (6, False)):
        with clock_at(lambda m=minutes: datetime.datetime.now(datetime.UTC) + datetime.timedelta(minutes=m)):
            result = tick(lake, instance=instance)
        assert (run.run_id in skipped(result)) if waits else asked(result)
    found = instance.get_run_by_id(run.run_id)
    assert found is not None and found.is_finished and found.tags[FAILURE_TAG] == "transient"


@pytest.mark.parametrize("prefix", [(), ("lake", "eu")])
def test_runs_of_people_and_backfills_are_waited_for(
    lake: TestLake, sink: Sink, instance: dg.DagsterInstance, prefix: tuple[str, ...]
) -> None:
    lake.configure(key_prefix=list(prefix))
    build_definitions(lake.config)
    other = dg.AssetKey([*prefix, "other", "raw"])
    for key, waits in ((other, False), (keys.raw_key(lake.name), True)):
        assert key.path[: len(prefix)] == list(prefix)
        id, status = RUN[:-1] + str(len(instance.get_runs())), dg.DagsterRunStatus.NOT_STARTED
        instance.add_run(dg.DagsterRun("__ASSET_JOB", run_id=id, status=status, asset_selection=frozenset({key})))
        assert (id in skipped(tick(lake, instance=instance))) if waits else asked(tick(lake, instance=instance))
        instance.delete_run(id)
        backfill = PartitionBackfill(f"b{waits}", BulkActionStatus.REQUESTED, False, {}, 0.0, asset_selection=[key])
        instance.add_backfill(backfill)
    assert skipped(tick(lake, instance=instance)) == "backfill bTrue of the feed is not finished"


@pytest.mark.parametrize(
    ("kind", "attempt", "after_seconds", "expected"),
    [
        ("transient", 0, 61, 1),
        ("transient", 0, 30, None),
        ("transient", 2, 230, None),
        ("transient", 2, 241, 3),
        ("transient", 30, 3601, 31),
        ("permanent", 0, 9999, None),
        (None, 0, 61, 1),  # Dagster itself found it dead.
        ("cancelled", 0, 30, None),
        ("cancelled", 0, 61, 1),
        ("success", 0, 9999, None),
    ],
)
def test_failed_run_is_retried_after_longer_and_longer(
    lake: TestLake, sink: Sink, instance: dg.DagsterInstance, kind: str | None, attempt: int, after_seconds: int,
    expected: int | None,
) -> None:  # fmt: skip
    tags = {"cdc/attempt": str(attempt)} | ({FAILURE_TAG: kind} if kind in ("transient", "permanent") else {})
    run = started(instance, lake.name, **tags)
    match kind:
        case "cancelled":
            instance.report_run_canceled(run)
        case "success":
            event = dg.DagsterEvent(dg.DagsterEventType.PIPELINE_SUCCESS.value, "feed")
            instance.report_dagster_event(event, run_id=run.run_id)
        case _:
            instance.report_run_failed(run)
    (record,) = instance.get_run_records()
    assert record.end_time is not None and record.dagster_run.is_finished
    later = datetime.datetime.fromtimestamp(record.end_time + after_seconds, datetime.UTC)
    with clock_at(lambda: later):
        result = tick(lake, str(T0 + 10), instance)
    if expected is None:
        reason = skipped(result)
        assert ("was cancelled" in reason) == (kind == "cancelled") and ("retried in" in reason) == (
            after_seconds < 240 and kind in ("transient", "cancelled")
        )
    else:
        request = asked(result)
        assert request.run_key == f"{lake.name}:{T0 + 10}:{run.run_id}"
        assert request.tags["cdc/attempt"] == str(expected)


# --- Topics and Canal servers ---


def test_offsets_that_have_not_landed_are_one_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = {"type": "kafka", "format": "canal-json", "bootstrap_servers": "127.0.0.1:1", "topics": ["t"]}
    lake = lake_in(tmp_path, source=source)
    assert [sensor.name for sensor in build_definitions(lake.config).sensors or ()] == [f"{lake.name}_offsets"]
    topic = MemoryTopic(monkeypatch)
    message = {"partition": 0, "key": None, "value": "{}", "timestamp": 0}
    topic.send([message] * 4)
    result = tick(lake)
    assert asked(result).run_key == f"{lake.name}:{result.cursor}"
    assert "was asked for" in skipped(tick(lake, result.cursor)) or "4 offsets" in skipped(tick(lake, result.cursor))
    topic.send([message])
    assert asked(tick(lake, result.cursor)).run_key != f"{lake.name}:{result.cursor}"


def canal_lake(directory: Path, address: str) -> TestLake:
    source = {"type": "canal", "addresses": [address], "destination": "example"}
    return lake_in(directory, source=source, start_date="2020-01-01")


def test_canal_entries_are_one_run_and_stay_there(tmp_path: Path, instance: dg.DagsterInstance) -> None:
    server = HandMadeCanal(list(LOG[:14]))
    with serving(server) as address:
        lake = canal_lake(tmp_path, address)
        run = started(instance, lake.name)
        assert run.run_id in skipped(tick(lake, instance=instance)) and server.connections == 0
        result = tick(lake)
        assert asked(result).run_key == f"{lake.name}:{result.cursor}"
        assert server.acked == 0
        assert "was asked for" in skipped(tick(lake, result.cursor))
        lake.run().source.land()
        assert "no entries wait" in skipped(tick(lake, result.cursor))
        server.entries = list(LOG)
        assert tick(lake, result.cursor).cursor != result.cursor
        # Landed, and not acknowledged: there is something to do all the same.
        lake.run().source.land()
        server.acked = 20
        assert asked(tick(lake, result.cursor))


def test_unreachable_canal_server_is_a_reason_and_loads(tmp_path: Path) -> None:
    lake = canal_lake(tmp_path, closed_port())
    assert "cannot be reached" in skipped(tick(lake))
    definitions = build_definitions(lake.config)
    assert [sensor.name for sensor in definitions.sensors or ()] == [f"{lake.name}_entries"]
    assert "text_undamaged" in {key.name for each in definitions.asset_checks or () for key in each.check_keys}
