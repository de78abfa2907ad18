"""Runs that have died do not keep a feed waiting, and those that live do."""

from __future__ import annotations

import datetime
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import dagster as dg
import pytest
from dagster._core.execution.backfill import BulkActionStatus, PartitionBackfill

from cdc_lakehouse.assets import keys
from cdc_lakehouse.assets.last_runs import ATTEMPT_TAG
from cdc_lakehouse.assets.leases import (
    FAILURE_TAG,
    FEED_TAG,
    find_backfill,
    find_unfinished,
    release_leases,
    take_lease,
)
from cdc_lakehouse.assets.sensors import retry_decision
from cdc_lakehouse.errors import ConcurrentRunError
from cdc_lakehouse.lake.catalog import system_table
from cdc_lakehouse.lake.tables.lease import LEASE, MAINTENANCE, Holder, Lease, last_holder, take_when_free
from tests.kit.lakes import TestLake
from tests.kit.other_writer import expire_all

FEED = "shop"
HERE = {FEED_TAG: FEED}


@pytest.fixture
def instance(tmp_path: Path) -> Iterator[dg.DagsterInstance]:
    with dg.DagsterInstance.ephemeral(tempdir=str(tmp_path)) as instance:
        yield instance
    release_leases()


def started(instance: dg.DagsterInstance, tags: dict[str, str], status: dg.DagsterRunStatus | None = None) -> str:
    status = status or dg.DagsterRunStatus.STARTED
    return instance.create_run_for_job(dg.job(name="a")(lambda: None), tags=tags, status=status).run_id


def run_of(instance: dg.DagsterInstance, run_id: str) -> dg.DagsterRun:
    run = instance.get_run_by_id(run_id)
    assert run is not None
    return run


def now() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC)


def later(seconds: float) -> datetime.datetime:
    return now() + datetime.timedelta(seconds=seconds)


def holder_of(lake: TestLake) -> Holder | None:
    found = last_holder(lake.lake, FEED)
    return found if found is not None and found.is_alive(now()) else None


def in_another_process(lake: TestLake, run_id: str) -> str:
    """Take the lease in a process that then ends as one that is killed; gives what it printed."""
    code = """if True:
        import os, pathlib, sys
        from cdc_lakehouse import config
        from cdc_lakehouse.errors import CdcError
        from cdc_lakehouse.lake.catalog import Lake
        from cdc_lakehouse.lake.tables.lease import Lease
        from cdc_lakehouse.changelog.positions import utc_now
        found = config.load(pathlib.Path(sys.argv[1]))
        try:
            Lease(Lake(found.lake, found.storage), sys.argv[2], sys.argv[3], utc_now).take()
            print("taken", flush=True)
        except CdcError as error:
            print(error, flush=True)
        os._exit(9)
    """
    arguments = [sys.executable, "-c", code, str(lake.config_path), FEED, run_id]
    return subprocess.run(arguments, stdout=subprocess.PIPE, check=False, text=True).stdout


def test_a_run_without_a_lease_is_reported_as_failed(instance: dg.DagsterInstance, lake: TestLake) -> None:
    run_id = started(instance, HERE)
    assert find_unfinished(instance, lake.lake, FEED, now()) is not None, "it may be about to take one"
    assert find_unfinished(instance, lake.lake, FEED, later(301)) is None
    run = run_of(instance, run_id)
    assert (run.status, run.tags[FAILURE_TAG]) == (dg.DagsterRunStatus.FAILURE, "transient")


def test_a_run_that_has_the_lease_is_waited_for(instance: dg.DagsterInstance, lake: TestLake) -> None:
    run_id = started(instance, HERE)
    lease = Lease(lake.lake, FEED, run_id, now)
    lease.take()
    assert find_unfinished(instance, lake.lake, FEED, now()) == f"run {run_id} of the feed is not finished"
    with pytest.raises(ConcurrentRunError, match=run_id):
        take_lease(instance, lake.lake, FEED, "mine")
    lease.release()
    assert find_unfinished(instance, lake.lake, FEED, now()) is not None, "Dagster is told of its end a moment later"
    assert find_unfinished(instance, lake.lake, FEED, later(61)) is None
    take_lease(instance, lake.lake, FEED, "mine").require()


def test_a_run_that_another_instance_knows_is_waited_for(instance: dg.DagsterInstance, lake: TestLake) -> None:
    lease = Lease(lake.lake, FEED, "elsewhere", now)
    lease.take()
    unfinished = find_unfinished(instance, lake.lake, FEED, now())
    assert unfinished is not None and "elsewhere" in unfinished and socket.gethostname() in unfinished
    lease.release()
    assert find_unfinished(instance, lake.lake, FEED, now()) is None


def test_a_process_that_was_killed_has_no_lease(instance: dg.DagsterInstance, lake: TestLake) -> None:
    assert in_another_process(lake, "killed") == "taken\n"
    assert find_unfinished(instance, lake.lake, FEED, now()) is None
    take_lease(instance, lake.lake, FEED, "mine")
    assert "run mine on" in in_another_process(lake, "next")


def test_a_process_that_cannot_be_seen_has_the_lease_until_it_ends(
    instance: dg.DagsterInstance, lake: TestLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_id = started(instance, HERE)
    with monkeypatch.context() as elsewhere:
        elsewhere.setattr("cdc_lakehouse.lake.tables.lease.this_process", lambda: "boot/pid:[1]/1:1")
        lost = Lease(lake.lake, FEED, run_id, now)
        lost._released.set()  # A container that died renews nothing.
        lost.take()
    assert find_unfinished(instance, lake.lake, FEED, now()) is not None
    with pytest.raises(ConcurrentRunError, match=run_id):
        Lease(lake.lake, FEED, "mine", now).take()
    after = LEASE.total_seconds() + 1
    assert find_unfinished(instance, lake.lake, FEED, later(after)) is None
    assert run_of(instance, run_id).is_finished
    mine = Lease(lake.lake, FEED, "mine", lambda: later(after))
    mine.take()
    mine.release()


def test_a_lease_is_renewed(lake: TestLake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cdc_lakehouse.lake.tables.lease.LEASE", datetime.timedelta(seconds=2))
    lease = Lease(lake.lake, FEED, "long", now)
    lease.take()
    first = holder_of(lake)
    assert first is not None
    while now() < first.expires_at:
        lease.require()
    holder = holder_of(lake)
    assert holder is not None and holder.run == "long"
    lease.release()
    assert holder_of(lake) is None


def test_lease_continues_after_another_writers_maintenance(lake: TestLake) -> None:
    lease = Lease(lake.lake, FEED, "run", now)
    lease.take()
    table = lake.lake.load(system_table(FEED, "lease"))
    assert table is not None
    table.append(table.scan().to_arrow())
    expire_all(table)
    holder = holder_of(lake)
    assert holder is not None and holder.run == "run"
    lease._write(later(1000))
    lease.require()
    renewed = holder_of(lake)
    assert renewed is not None and renewed.expires_at > holder.expires_at
    table.refresh().append(table.scan().to_arrow())
    lease.release()
    assert holder_of(lake) is None


def test_a_run_whose_lease_is_another_runs_does_not_go_on(lake: TestLake, monkeypatch: pytest.MonkeyPatch) -> None:
    stopped = Lease(lake.lake, FEED, "stopped", now)
    stopped.take()
    other = Lease(lake.lake, FEED, "other", lambda: later(LEASE.total_seconds() + 1))
    other.take()
    monkeypatch.setattr("cdc_lakehouse.lake.tables.lease.LEASE", datetime.timedelta(0))
    with pytest.raises(ConcurrentRunError, match="not renewed in time"):
        Lease(lake.lake, "another", "late", now).require()
    stopped.release()  # It takes nothing from the other.
    holder = holder_of(lake)
    assert holder is not None and holder.run == "other"
    other.release()


def test_a_lease_that_was_given_back_by_a_clock_ahead_of_others_keeps_nobody(lake: TestLake) -> None:
    """Where the run was is a machine whose clock is an hour ahead."""
    other = Lease(lake.lake, FEED, "r1", lambda: later(3600))
    other.take()
    assert holder_of(lake) is not None
    other.release()
    assert holder_of(lake) is None
    own = Lease(lake.lake, FEED, "r2", now)
    own.take()
    own.release()


def test_of_two_that_begin_at_once_one_gets_the_feed(lake: TestLake) -> None:
    first, second = (Lease(lake.lake, FEED, run, now) for run in ("first", "second"))
    real = first._write

    def write(expires_at: datetime.datetime, *, released: bool = False) -> None:
        second.take()
        real(expires_at, released=released)

    first._write = write
    with pytest.raises(ConcurrentRunError, match="just begun"):
        first.take()
    holder = holder_of(lake)
    assert holder is not None and holder.run == "second"
    second.release()


@pytest.mark.parametrize(
    ("tags", "status"),
    [({}, dg.DagsterRunStatus.STARTED), ({}, dg.DagsterRunStatus.NOT_STARTED)],
    ids=["just started", "not started yet"],
)
def test_a_run_that_begins_is_waited_for_but_not_another_feeds(
    instance: dg.DagsterInstance, lake: TestLake, tags: dict[str, str], status: dg.DagsterRunStatus
) -> None:
    started(instance, {**tags, FEED_TAG: "other"}, status)
    assert find_unfinished(instance, lake.lake, FEED, now()) is None
    run_id = started(instance, {**tags, FEED_TAG: FEED}, status)
    assert find_unfinished(instance, lake.lake, FEED, now()) == f"run {run_id} of the feed is not finished"


def test_a_run_that_never_took_the_lease_is_dead_after_the_time_of_a_start(
    instance: dg.DagsterInstance, lake: TestLake
) -> None:
    started(instance, {FEED_TAG: FEED})
    assert find_unfinished(instance, lake.lake, FEED, later(4 * 60)) is not None
    assert find_unfinished(instance, lake.lake, FEED, later(6 * 60)) is None


def test_a_process_takes_a_feed_for_one_run_after_the_other(instance: dg.DagsterInstance, lake: TestLake) -> None:
    first, second = started(instance, HERE), started(instance, HERE)
    lease = take_lease(instance, lake.lake, FEED, first)
    assert take_lease(instance, lake.lake, FEED, first) is lease
    with pytest.raises(ConcurrentRunError, match=first):
        take_lease(instance, lake.lake, FEED, second)
    instance.report_run_failed(run_of(instance, first))
    assert take_lease(instance, lake.lake, FEED, second).run == second


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
    ],
)
def test_what_may_pass_is_tried_again_after_longer_and_longer(
    instance: dg.DagsterInstance, kind: str | None, attempt: int, after_seconds: int, expected: int | None
) -> None:
    failure = {} if kind is None else {FAILURE_TAG: kind}
    run_id = started(instance, {**HERE, **failure, ATTEMPT_TAG: str(attempt)})
    instance.report_run_failed(run_of(instance, run_id))
    (record,) = instance.get_run_records()
    assert record.end_time is not None
    later = datetime.datetime.fromtimestamp(record.end_time + after_seconds, datetime.UTC)
    decision = retry_decision(record, FEED, "10", later)
    if expected is None:
        assert decision is None or decision.run_key is None
    else:
        assert decision is not None and (decision.run_key, decision.attempt) == (f"{FEED}:10:{run_id}", expected)


@pytest.mark.parametrize("after_seconds", [30, 61])
def test_a_run_that_was_cancelled_is_tried_again(instance: dg.DagsterInstance, after_seconds: int) -> None:
    run_id = started(instance, HERE)
    instance.report_run_canceled(run_of(instance, run_id))
    (record,) = instance.get_run_records()
    assert record.end_time is not None
    later = datetime.datetime.fromtimestamp(record.end_time + after_seconds, datetime.UTC)
    decision = retry_decision(record, FEED, "10", later)
    assert decision is not None and "was cancelled" in decision.reason
    assert decision.run_key == (f"{FEED}:10:{run_id}" if after_seconds > 60 else None)


def test_a_run_that_did_not_fail_is_not_tried_again(instance: dg.DagsterInstance) -> None:
    assert retry_decision(None, FEED, "10", now()) is None
    run_id = started(instance, HERE)
    instance.report_dagster_event(dg.DagsterEvent(dg.DagsterEventType.PIPELINE_SUCCESS.value, "feed"), run_id=run_id)
    (record,) = instance.get_run_records()
    assert record.dagster_run.status == dg.DagsterRunStatus.SUCCESS
    assert retry_decision(record, FEED, "10", later(9999)) is None


def test_runs_of_assets_that_a_person_started_and_backfills_are_waited_for(
    instance: dg.DagsterInstance, lake: TestLake
) -> None:
    run_id = "0d6ab5b2-9f1e-4b1e-8a52-000000000002"
    for feed in ("other", FEED):
        assert find_unfinished(instance, lake.lake, FEED, now()) is None
        assert find_backfill(instance, FEED) is None
        selection = frozenset({dg.AssetKey([feed, "raw"])})
        status = dg.DagsterRunStatus.NOT_STARTED
        id = run_id if feed == FEED else run_id.replace("2", "3")
        instance.add_run(dg.DagsterRun("__ASSET_JOB", run_id=id, status=status, asset_selection=selection))
        backfill = PartitionBackfill(
            f"b{feed}", BulkActionStatus.REQUESTED, False, {}, 0.0, asset_selection=[*selection]
        )
        instance.add_backfill(backfill)
    assert run_id in str(find_unfinished(instance, lake.lake, FEED, now()))
    assert find_backfill(instance, FEED) == f"backfill b{FEED} of the feed is not finished"


def test_runs_and_backfills_are_a_feeds_where_its_keys_have_a_prefix_too(
    instance: dg.DagsterInstance, lake: TestLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(keys._prefixes, FEED, ("lake", "eu"))
    chosen, status = [keys.raw_key(FEED)], dg.DagsterRunStatus.NOT_STARTED
    assert chosen == [dg.AssetKey(["lake", "eu", FEED, "raw"])]
    run_id = "0d6ab5b2-9f1e-4b1e-8a52-000000000004"
    instance.add_run(dg.DagsterRun("__ASSET_JOB", run_id=run_id, status=status, asset_selection=frozenset(chosen)))
    instance.add_backfill(PartitionBackfill("b", BulkActionStatus.REQUESTED, False, {}, 0.0, asset_selection=chosen))
    assert run_id in str(find_unfinished(instance, lake.lake, FEED, now()))
    assert find_backfill(instance, FEED) == "backfill b of the feed is not finished"
    assert find_unfinished(instance, lake.lake, "eu", now()) is None and find_backfill(instance, "eu") is None


def test_a_run_waits_for_maintenance_and_is_no_dead_one_meanwhile(instance: dg.DagsterInstance, lake: TestLake) -> None:
    run = started(instance, HERE)
    take_lease(instance, lake.lake, FEED, run)
    release_leases()
    maintenance = Lease(lake.lake, FEED, f"{MAINTENANCE}1", now)
    maintenance.take()
    # The run has given its lease back and is not yet finished in Dagster's eyes.
    assert find_unfinished(instance, lake.lake, FEED, now()) is not None
    assert run_of(instance, run).status == dg.DagsterRunStatus.STARTED
    instance.report_run_failed(run_of(instance, run))
    assert find_unfinished(instance, lake.lake, FEED, now()) is None, "the next run waits itself"
    giving_back = threading.Timer(1, maintenance.release)
    giving_back.start()
    take_lease(instance, lake.lake, FEED, "next")
    giving_back.join()
    holder = holder_of(lake)
    assert holder is not None and holder.run == "next"
    patience = datetime.timedelta(0)
    with pytest.raises(ConcurrentRunError, match="run next"):
        take_when_free(lake.lake, FEED, f"{MAINTENANCE}2", now, patience)
