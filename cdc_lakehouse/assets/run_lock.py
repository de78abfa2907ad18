"""One run of a feed at a time, and runs whose process is gone.

The pool of a feed (see `feed_assets.pool_of`) keeps the daemon's runs apart. A run's process also holds a lock file
while it lives: a run that Dagster takes for running though nobody holds the lock has been killed, and must not keep the
feed waiting for ever.
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
"""Of a run that failed: `transient` when trying again may work, else `permanent`."""

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


def take_feed(instance: dg.DagsterInstance, feed: str, run_id: str) -> None:
    """Hold the feed for a run, until this process ends. Raises `ConcurrentRunError` when another run has it."""
    path = _lock_path(instance, feed)
    if path in _locks:
        file, holder = _locks[path]
        other = None if holder == run_id else instance.get_run_by_id(holder)
        if other is not None and not other.is_finished:
            raise ConcurrentRunError(f"run {holder} of the feed is not finished", feed=feed, advice="wait")
    else:
        file = path.open("w")
        if not _locked(file):
            file.close()
            raise ConcurrentRunError("another process runs the feed", feed=feed, advice="wait")
    _locks[path] = (file, run_id)


def note_run(instance: dg.DagsterInstance, feed: str, run_id: str) -> None:
    """Say in the run's tags whose run it is and where it runs; a run that was started in the UI has no tags of ours."""
    instance.add_run_tags(run_id, {FEED_TAG: feed, HOST_TAG: socket.gethostname()})


def unfinished_run(instance: dg.DagsterInstance, feed: str) -> dg.DagsterRun | None:
    """A run of the feed that is under way. Those whose process is gone are reported as failed on the way."""
    records = instance.get_run_records(dg.RunsFilter(tags={FEED_TAG: feed}, statuses=_UNFINISHED))
    for record in records:
        run = record.dagster_run
        if not _is_dead(instance, feed, record):
            return run
        instance.report_run_failed(run, "The process of the run is gone.")
        instance.add_run_tags(run.run_id, {FAILURE_TAG: "transient"})
    return None


def _is_dead(instance: dg.DagsterInstance, feed: str, record: dg.RunRecord) -> bool:
    run = record.dagster_run
    age = datetime.datetime.now(datetime.UTC) - record.create_timestamp.replace(tzinfo=datetime.UTC)
    host = run.tags.get(HOST_TAG)
    if run.status == dg.DagsterRunStatus.QUEUED or (host is not None and host != socket.gethostname()):
        return False
    if host is None and age < _STARTUP:
        return False
    return _is_free(instance, feed)


def _is_free(instance: dg.DagsterInstance, feed: str) -> bool:
    with _lock_path(instance, feed).open("w") as file:
        return _locked(file)


def _locked(file: IO[str]) -> bool:
    """Whether the lock could be had; it goes when the file is closed."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _lock_path(instance: dg.DagsterInstance, feed: str) -> Path:
    directory = Path(instance.root_directory) / "cdc_locks"
    directory.mkdir(parents=True, exist_ok=True)
    return directory / f"{feed}.lock"
