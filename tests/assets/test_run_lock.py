"""Runs whose process is gone do not keep a feed waiting, and those that live do."""

from __future__ import annotations

import datetime
import fcntl
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from cdc_lakehouse.assets.run_lock import FAILURE_TAG, FEED_TAG, HOST_TAG, acquire_feed_lock, active_run
from cdc_lakehouse.assets.sensors import ATTEMPT_TAG, retry_decision
from cdc_lakehouse.errors import ConcurrentRunError

FEED = "shop"
HERE = {FEED_TAG: FEED, HOST_TAG: socket.gethostname()}


@pytest.fixture
def instance(tmp_path: Path) -> Iterator[dg.DagsterInstance]:
    with dg.DagsterInstance.ephemeral(tempdir=str(tmp_path)) as instance:
        yield instance


def started(instance: dg.DagsterInstance, tags: dict[str, str], status: dg.DagsterRunStatus | None = None) -> str:
    status = status or dg.DagsterRunStatus.STARTED
    return instance.create_run_for_job(dg.job(name="a")(lambda: None), tags=tags, status=status).run_id


def run_of(instance: dg.DagsterInstance, run_id: str) -> dg.DagsterRun:
    run = instance.get_run_by_id(run_id)
    assert run is not None
    return run


def now() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC)


def locked_elsewhere(instance: dg.DagsterInstance) -> Any:
    path = Path(instance.root_directory) / "cdc_locks" / f"{FEED}.lock"
    path.parent.mkdir(exist_ok=True)
    file = path.open("w")
    fcntl.flock(file, fcntl.LOCK_EX)
    return file


def test_a_run_without_a_process_is_reported_as_failed(instance: dg.DagsterInstance) -> None:
    run_id = started(instance, HERE)
    assert active_run(instance, FEED, now()) is None
    run = run_of(instance, run_id)
    assert (run.status, run.tags[FAILURE_TAG]) == (dg.DagsterRunStatus.FAILURE, "transient")


def test_a_run_whose_process_holds_the_feed_is_waited_for(instance: dg.DagsterInstance) -> None:
    run_id = started(instance, HERE)
    with locked_elsewhere(instance):
        found = active_run(instance, FEED, now())
        assert found is not None and found.run_id == run_id
        with pytest.raises(ConcurrentRunError, match="another process"):
            acquire_feed_lock(instance, FEED, "mine")
    assert active_run(instance, FEED, now()) is None


@pytest.mark.parametrize(
    ("tags", "status"),
    [
        ({HOST_TAG: "another machine"}, dg.DagsterRunStatus.STARTED),
        ({}, dg.DagsterRunStatus.STARTED),
        ({}, dg.DagsterRunStatus.NOT_STARTED),
    ],
    ids=["on another machine", "just started", "not started yet"],
)
def test_what_cannot_be_told_from_here_is_waited_for_but_not_another_feeds(
    instance: dg.DagsterInstance, tags: dict[str, str], status: dg.DagsterRunStatus
) -> None:
    started(instance, {**tags, FEED_TAG: "other"}, status)
    assert active_run(instance, FEED, now()) is None
    run_id = started(instance, {**tags, FEED_TAG: FEED}, status)
    found = active_run(instance, FEED, now())
    assert found is not None and found.run_id == run_id


def test_a_run_that_never_said_where_it_is_is_dead_after_the_time_of_a_start(instance: dg.DagsterInstance) -> None:
    started(instance, {FEED_TAG: FEED})
    assert active_run(instance, FEED, now() + datetime.timedelta(minutes=4)) is not None
    assert active_run(instance, FEED, now() + datetime.timedelta(minutes=6)) is None


def test_a_process_takes_a_feed_for_one_run_after_the_other(instance: dg.DagsterInstance) -> None:
    first, second = started(instance, HERE), started(instance, HERE)
    acquire_feed_lock(instance, FEED, first)
    acquire_feed_lock(instance, FEED, first)
    with pytest.raises(ConcurrentRunError, match=first):
        acquire_feed_lock(instance, FEED, second)
    instance.report_run_failed(run_of(instance, first))
    acquire_feed_lock(instance, FEED, second)


@pytest.mark.parametrize(
    ("kind", "attempt", "after_seconds", "expected"),
    [
        ("transient", 0, 61, 1),
        ("transient", 0, 30, None),
        ("transient", 2, 230, None),
        ("transient", 2, 241, 3),
        ("transient", 30, 3601, 31),
        ("permanent", 0, 9999, None),
    ],
)
def test_what_may_pass_is_tried_again_after_longer_and_longer(
    instance: dg.DagsterInstance, kind: str, attempt: int, after_seconds: int, expected: int | None
) -> None:
    run_id = started(instance, {**HERE, FAILURE_TAG: kind, ATTEMPT_TAG: str(attempt)})
    instance.report_run_failed(run_of(instance, run_id))
    (record,) = instance.get_run_records()
    assert record.end_time is not None
    later = datetime.datetime.fromtimestamp(record.end_time + after_seconds, datetime.UTC)
    decision = retry_decision(record, FEED, "10", later)
    if expected is None:
        assert decision is None or decision.run_key is None
    else:
        assert decision is not None and (decision.run_key, decision.attempt) == (f"{FEED}:10:{run_id}", expected)


def test_a_run_that_did_not_fail_is_not_tried_again(instance: dg.DagsterInstance) -> None:
    assert retry_decision(None, FEED, "10", now()) is None
    started(instance, HERE, dg.DagsterRunStatus.CANCELED)
    (record,) = instance.get_run_records()
    assert retry_decision(record, FEED, "10", now()) is None
