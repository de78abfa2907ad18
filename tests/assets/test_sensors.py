"""When a feed's sensor asks for a run: what is new in the source is one run, all else is a reason. A feed has one run
at a time: runs that have died do not keep it waiting, and those that live do."""

from __future__ import annotations

import datetime
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from dagster._core.execution.backfill import BulkActionStatus, PartitionBackfill
from pyiceberg.exceptions import CommitStateUnknownException

from cdc_lakehouse.definitions import build_definitions
from cdc_lakehouse.errors import CatalogUnreachableError, ConcurrentRunError
from tests.kit import leases
from tests.kit.dagster_feed import FAILURE_TAG, asked, empty_instance, keys, skipped, started, take_feed, tick
from tests.kit.kafka import MemoryTopic
from tests.kit.lakes import TestLake
from tests.kit.leases import LEASE, MAINTENANCE, holder_of, later, lease_of, now, table_of, take_elsewhere
from tests.kit.other_writer import expire_all
from tests.kit.waiting import clock_at, until
from tests.pipeline import T0, Sink, lake_in
from tests.sources.canal.servers import HandMadeCanal, binlog_of, closed_port, serving

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
    for key, waits in ((other, False), (keys.raw_key(lake.feed), True)):
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


# --- Leases ---


def waits(lake: TestLake, instance: dg.DagsterInstance, after: float = 0) -> str | None:
    """What the feed waits for, so many seconds from now; None where it asks for a run."""
    with clock_at(lambda: later(after)):
        result = tick(lake, instance=instance)
    if isinstance(result, dg.SkipReason):
        return skipped(result)
    assert asked(result).tags["cdc/feed"] == lake.name
    return None


def run_of(instance: dg.DagsterInstance, run_id: str) -> dg.DagsterRun:
    run = instance.get_run_by_id(run_id)
    assert run is not None
    return run


def test_run_with_the_lease_is_waited_for(instance: dg.DagsterInstance, lake: TestLake, sink: Sink) -> None:
    run_id = started(instance, lake.name).run_id
    lease = lease_of(lake, run_id)
    lease.take()
    assert waits(lake, instance) == f"run {run_id} of the feed is not finished"
    with pytest.raises(ConcurrentRunError, match=run_id):
        take_feed(lake.lake, lake.name, "mine")
    lease.release()
    assert waits(lake, instance) is not None, "Dagster is told of its end a moment later"
    assert waits(lake, instance, 61) is None
    mine = take_feed(lake.lake, lake.name, "mine")
    mine.require()
    mine.release()


def test_killed_process_has_no_lease(instance: dg.DagsterInstance, lake: TestLake, sink: Sink) -> None:
    assert take_elsewhere(lake, "killed") == "taken\n"
    assert waits(lake, instance) is None
    mine = take_feed(lake.lake, lake.name, "mine")
    assert "run mine on" in take_elsewhere(lake, "next")
    mine.release()


def test_lost_machine_has_the_lease_until_it_ends(instance: dg.DagsterInstance, lake: TestLake, sink: Sink) -> None:
    run_id = started(instance, lake.name).run_id
    leases.take_on_a_lost_machine(lake, run_id)
    assert waits(lake, instance) is not None
    with pytest.raises(ConcurrentRunError, match=run_id):
        lease_of(lake, "mine").take()
    after = LEASE.total_seconds() + 1
    assert waits(lake, instance, after) is None
    run = run_of(instance, run_id)
    assert (run.status, run.tags[FAILURE_TAG]) == (dg.DagsterRunStatus.FAILURE, "transient")
    mine = lease_of(lake, "mine", lambda: later(after))
    mine.take()
    mine.release()


def test_lease_continues_after_another_writers_maintenance(lake: TestLake) -> None:
    lease = lease_of(lake, "run")
    with leases.renewed_soon():
        lease.take()
        table = table_of(lake)
        table.append(table.scan().to_arrow())
        expire_all(table)
        for _ in range(2):
            before = holder_of(lake)
            assert before is not None
            until(lambda: (after := holder_of(lake)) is not None and after.expires_at > before.expires_at)  # noqa: B023
            lease.require()
    table.refresh().append(table.scan().to_arrow())
    lease.release()
    assert holder_of(lake) is None


def test_renewal_whose_answer_is_lost_is_known(lake: TestLake, monkeypatch: pytest.MonkeyPatch) -> None:
    lease, answered = lease_of(lake, "run"), list[object]()
    commit = lake.lake.catalog.commit_table

    def loses_an_answer(*what: Any) -> object:
        answered.append(commit(*what))
        if len(answered) == 2:
            raise CommitStateUnknownException("504")
        return answered[-1]

    monkeypatch.setattr(lake.lake.catalog, "commit_table", loses_an_answer)
    with leases.renewed_soon():
        lease.take()
        until(lambda: len(answered) > 1)
        lease.release()
    assert holder_of(lake) is None


def test_lease_that_cannot_be_released_ends(lake: TestLake, sink: Sink, monkeypatch: pytest.MonkeyPatch) -> None:
    lease = lease_of(lake, "run")
    lease.take()

    def is_locked(*_: object) -> None:
        raise CatalogUnreachableError("locked")

    with monkeypatch.context() as patch:
        patch.setattr(lake.lake.catalog, "commit_table", is_locked)
        lease.release()
    assert waits(lake, dg.DagsterInstance.ephemeral()) is not None, "it has it until then"


def test_table_is_found_that_changes_while_it_is_read(lake: TestLake, monkeypatch: pytest.MonkeyPatch) -> None:
    lease, others = lease_of(lake, "run"), iter([1, 2])
    lease.take()
    catalog: Any = lake.lake.catalog
    read = catalog._convert_orm_to_iceberg

    def reads_late(row: object) -> object:
        """The catalog has named a file, which the second of these commits deletes."""
        for _ in others:
            other.append(other.scan().to_arrow())
        return read(row)

    other = leases.loaded_elsewhere(lake)
    monkeypatch.setattr(catalog, "_convert_orm_to_iceberg", reads_late)
    holder = holder_of(lake)
    assert holder is not None and holder.run == "run" and not list(others)
    lease.release()


def test_lease_released_by_a_clock_ahead_is_free(lake: TestLake) -> None:
    other = lease_of(lake, "r1", lambda: later(3600))
    other.take()
    assert holder_of(lake) is not None
    other.release()
    assert holder_of(lake) is None
    own = lease_of(lake, "r2")
    own.take()
    own.release()


def test_run_waits_for_maintenance_and_lives(instance: dg.DagsterInstance, lake: TestLake, sink: Sink) -> None:
    run = started(instance, lake.name).run_id
    take_feed(lake.lake, lake.name, run).release()
    maintenance = lease_of(lake, f"{MAINTENANCE}1")
    maintenance.take()
    # The run has given its lease back, and Dagster has not recorded its end.
    assert waits(lake, instance) is not None
    assert run_of(instance, run).status == dg.DagsterRunStatus.STARTED
    instance.report_run_failed(run_of(instance, run))
    with clock_at(lambda: later(120)):
        assert asked(tick(lake, instance=instance)), "the next run waits itself"
    giving_back = threading.Timer(1, maintenance.release)
    giving_back.start()
    following = take_feed(lake.lake, lake.name, "next")
    giving_back.join()
    holder = holder_of(lake)
    assert holder is not None and holder.run == "next"
    with pytest.raises(ConcurrentRunError, match="run next"):
        leases.take_when_free(lake.lake, lake.name, f"{MAINTENANCE}2", now, datetime.timedelta(0))
    following.release()
