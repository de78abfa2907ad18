"""One run of a feed at a time, and runs whose process is gone.

The pool of a feed (`assets.pool_of`) keeps the daemon's runs apart. The process of a run also holds a lock file while
it lives. A run that Dagster takes for running though nobody holds the lock was killed, and must not block the feed.
"""

from __future__ import annotations

import datetime
import fcntl
import socket
from pathlib import Path
from typing import IO, Final

import dagster as dg

from cdc_lakehouse.errors import ConcurrentRunError

FEED_TAG: Final = "cdc/feed"
HOST_TAG: Final = "cdc/host"
FAILURE_TAG: Final = "cdc/failure"
"""On a run that failed: `transient` when another try may succeed, else `permanent`."""

_UNFINISHED: Final = [
    dg.DagsterRunStatus.QUEUED,
    dg.DagsterRunStatus.NOT_STARTED,
    dg.DagsterRunStatus.STARTING,
    dg.DagsterRunStatus.STARTED,
    dg.DagsterRunStatus.CANCELING,
]
# From its creation until its first op a run holds no lock.
_STARTUP: Final = datetime.timedelta(minutes=5)

_locks: dict[Path, tuple[IO[str], str]] = {}
"""Locks of this process, with the run that each is held for. They end with the process."""


def acquire_feed_lock(instance: dg.DagsterInstance, feed: str, run_id: str) -> None:
    """Hold the feed for a run until this process ends. Raises `ConcurrentRunError` when another run has it."""
    path = _lock_path(instance, feed)
    if path in _locks:
        file, holder = _locks[path]
        other = None if holder == run_id else instance.get_run_by_id(holder)
        if other is not None and not other.is_finished:
            raise ConcurrentRunError(f"run {holder} of the feed is not finished", feed=feed, advice="wait")
    else:
        file = path.open("w")
        if not _lock(file):
            file.close()
            raise ConcurrentRunError("another process runs the feed", feed=feed, advice="wait")
    _locks[path] = (file, run_id)


def tag_run(instance: dg.DagsterInstance, feed: str, run_id: str) -> None:
    """Tag a run with its feed and its host. A run that was started in the UI has neither."""
    instance.add_run_tags(run_id, {FEED_TAG: feed, HOST_TAG: socket.gethostname()})


def active_run(instance: dg.DagsterInstance, feed: str, now: datetime.datetime) -> dg.DagsterRun | None:
    """A run of the feed that is under way. Runs whose process is gone are reported as failed."""
    records = instance.get_run_records(dg.RunsFilter(tags={FEED_TAG: feed}, statuses=_UNFINISHED))
    for record in records:
        run = record.dagster_run
        if not _is_dead(instance, feed, record, now):
            return run
        instance.report_run_failed(run, "The process of the run is gone.")
        instance.add_run_tags(run.run_id, {FAILURE_TAG: "transient"})
    return None


def _is_dead(instance: dg.DagsterInstance, feed: str, record: dg.RunRecord, now: datetime.datetime) -> bool:
    run, host = record.dagster_run, record.dagster_run.tags.get(HOST_TAG)
    if run.status == dg.DagsterRunStatus.QUEUED or (host is not None and host != socket.gethostname()):
        return False
    if host is None and now - record.create_timestamp.replace(tzinfo=datetime.UTC) < _STARTUP:
        return False
    with _lock_path(instance, feed).open("w") as file:
        return _lock(file)


def _lock(file: IO[str]) -> bool:
    """Lock a file until it is closed; False when another process has it."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _lock_path(instance: dg.DagsterInstance, feed: str) -> Path:
    directory = Path(instance.root_directory) / "cdc_locks"
    directory.mkdir(parents=True, exist_ok=True)
    return directory / f"{feed}.lock"
