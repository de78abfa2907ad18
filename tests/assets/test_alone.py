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

from cdc_lakehouse.assets.feed_sensor import ATTEMPT_TAG, try_again
from cdc_lakehouse.assets.run_lock import FAILURE_TAG, FEED_TAG, HOST_TAG, take_feed, unfinished_run
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


def locked_elsewhere(instance: dg.DagsterInstance) -> Any:
    path = Path(instance.root_directory) / "cdc_locks" / f"{FEED}.lock"
    path.parent.mkdir(exist_ok=True)
    file = path.open("w")
    fcntl.flock(file, fcntl.LOCK_EX)
    return file


def test_a_run_without_a_process_is_reported_as_failed(instance: dg.DagsterInstance) -> None:
    run_id = started(instance, HERE)
    assert unfinished_run(instance, FEED) is None
    run = instance.get_run_by_id(run_id)
    assert run is not None
    assert (run.status, run.tags[FAILURE_TAG]) == (dg.DagsterRunStatus.FAILURE, "transient")


def test_a_run_whose_process_holds_the_feed_is_waited_for(instance: dg.DagsterInstance) -> None:
    run_id = started(instance, HERE)
    with locked_elsewhere(instance):
        found = unfinished_run(instance, FEED)
        assert found is not None and found.run_id == run_id
        with pytest.raises(ConcurrentRunError, match="another process"):
            take_feed(instance, FEED, "mine")
    assert unfinished_run(instance, FEED) is None


@pytest.mark.parametrize(
    ("tags", "status"),
    [
        ({FEED_TAG: FEED, HOST_TAG: "another machine"}, dg.DagsterRunStatus.STARTED),
        ({FEED_TAG: FEED}, dg.DagsterRunStatus.STARTED),
        ({FEED_TAG: FEED}, dg.DagsterRunStatus.NOT_STARTED),
    ],
    ids=["on another machine", "just started", "not started yet"],
)
def test_what_cannot_be_told_from_here_is_waited_for(
    instance: dg.DagsterInstance, tags: dict[str, str], status: dg.DagsterRunStatus
) -> None:
    run_id = started(instance, tags, status)
    found = unfinished_run(instance, FEED)
    assert found is not None and found.run_id == run_id


def test_another_feeds_run_is_no_matter(instance: dg.DagsterInstance) -> None:
    started(instance, {FEED_TAG: "other", HOST_TAG: "another machine"})
    assert unfinished_run(instance, FEED) is None


def test_a_process_takes_a_feed_for_one_run_after_the_other(instance: dg.DagsterInstance) -> None:
    first, second = started(instance, HERE), started(instance, HERE)
    take_feed(instance, FEED, first)
    take_feed(instance, FEED, first)
    with pytest.raises(ConcurrentRunError, match=first):
        take_feed(instance, FEED, second)
    run = instance.get_run_by_id(first)
    assert run is not None
    instance.report_run_failed(run)
    take_feed(instance, FEED, second)


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
    run = instance.get_run_by_id(run_id)
    assert run is not None
    instance.report_run_failed(run)
    (record,) = instance.get_run_records()
    assert record.end_time is not None
    now = datetime.datetime.fromtimestamp(record.end_time + after_seconds, datetime.UTC)
    tick = try_again(record, FEED, 10, now)
    if expected is None:
        assert tick is None or tick.run_key is None
    else:
        assert tick is not None and (tick.run_key, tick.attempt) == (f"{FEED}:10:{run_id}", expected)


def test_a_run_that_did_not_fail_is_not_tried_again(instance: dg.DagsterInstance) -> None:
    assert try_again(None, FEED, 10, datetime.datetime.now(datetime.UTC)) is None
    started(instance, HERE, dg.DagsterRunStatus.CANCELED)
    (record,) = instance.get_run_records()
    assert try_again(record, FEED, 10, datetime.datetime.now(datetime.UTC)) is None
