"""One run of a feed at a time: runs that have died do not keep it waiting, and those that live do."""

from __future__ import annotations

import datetime
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from pyiceberg.exceptions import CommitStateUnknownException

from cdc_lakehouse.errors import CatalogUnreachableError, ConcurrentRunError
from tests.kit import leases
from tests.kit.clock import clock_at
from tests.kit.dagster_feed import FAILURE_TAG, asked, release_leases, skipped, started, take_lease, tick
from tests.kit.lakes import TestLake
from tests.kit.leases import LEASE, MAINTENANCE, holder_of, later, lease_of, now, table_of, take_elsewhere
from tests.kit.other_writer import expire_all
from tests.kit.waiting import until
from tests.pipeline import Sink


@pytest.fixture
def instance(tmp_path: Path) -> Iterator[dg.DagsterInstance]:
    with dg.DagsterInstance.ephemeral(tempdir=str(tmp_path)) as instance:
        yield instance
    release_leases()


@pytest.fixture(autouse=True)
def sink(lake: TestLake) -> Sink:
    return Sink(lake.sink, "t", checkpoint=10)


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


def test_run_with_the_lease_is_waited_for(instance: dg.DagsterInstance, lake: TestLake) -> None:
    run_id = started(instance, lake.name).run_id
    lease = lease_of(lake, run_id)
    lease.take()
    assert waits(lake, instance) == f"run {run_id} of the feed is not finished"
    with pytest.raises(ConcurrentRunError, match=run_id):
        take_lease(instance, lake.lake, lake.name, "mine")
    lease.release()
    assert waits(lake, instance) is not None, "Dagster is told of its end a moment later"
    assert waits(lake, instance, 61) is None
    take_lease(instance, lake.lake, lake.name, "mine").require()


def test_killed_process_has_no_lease(instance: dg.DagsterInstance, lake: TestLake) -> None:
    assert take_elsewhere(lake, "killed") == "taken\n"
    assert waits(lake, instance) is None
    take_lease(instance, lake.lake, lake.name, "mine")
    assert "run mine on" in take_elsewhere(lake, "next")


def test_lost_machine_has_the_lease_until_it_ends(instance: dg.DagsterInstance, lake: TestLake) -> None:
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


def test_lease_that_cannot_be_released_ends(lake: TestLake, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_run_waits_for_maintenance_and_lives(instance: dg.DagsterInstance, lake: TestLake) -> None:
    run = started(instance, lake.name).run_id
    take_lease(instance, lake.lake, lake.name, run)
    release_leases()
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
    take_lease(instance, lake.lake, lake.name, "next")
    giving_back.join()
    holder = holder_of(lake)
    assert holder is not None and holder.run == "next"
    with pytest.raises(ConcurrentRunError, match="run next"):
        leases.take_when_free(lake.lake, lake.name, f"{MAINTENANCE}2", now, datetime.timedelta(0))
