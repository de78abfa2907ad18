"""A tick of a feed's sensor: what is new in the source is one run, everything else is a reason."""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from pathlib import Path

import dagster as dg
import pytest
from dagster._core.execution.backfill import BulkActionStatus, PartitionBackfill

from cdc_lakehouse.definitions import build_definitions
from tests.kit.clock import clock_at
from tests.kit.dagster_feed import FAILURE_TAG, asked, empty_instance, keys, skipped, started, tick
from tests.kit.kafka import MemoryTopic
from tests.kit.lakes import TestLake
from tests.pipeline import T0, Sink, lake_in
from tests.sources.canal.binlogs import binlog_of
from tests.sources.canal.servers import HandMadeCanal, closed_port, serving

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


def test_request_fits_the_loaded_job(lake: TestLake, sink: Sink) -> None:
    """Dagster checks a request's tags and partitions when it evaluates the tick of the loaded definitions."""
    repository = build_definitions(lake.config).get_repository_def()
    sensor = repository.get_sensor_def(f"{lake.name}_checkpoint")
    with dg.build_sensor_context(instance=empty_instance(), repository_def=repository) as context:
        (request,) = sensor.evaluate_tick(context).run_requests or []
    assert request.run_key == f"{lake.name}:{T0 + 10}"
    assert request.job_name == f"{lake.name}_new" and sensor.default_status == dg.DefaultSensorStatus.RUNNING


# --- Runs that are under way, and runs that failed ---


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
