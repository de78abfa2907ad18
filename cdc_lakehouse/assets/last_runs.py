"""The last runs of a feed that ended by themselves, as recorded by Dagster."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import dagster as dg
from dagster import DagsterEventType
from dagster_shared.error import SerializableErrorInfo

from cdc_lakehouse.assets.leases import FAILURE_TAG, FEED_TAG
from cdc_lakehouse.errors import CdcError

_ENDED: Final = [dg.DagsterRunStatus.SUCCESS, dg.DagsterRunStatus.FAILURE]
ATTEMPT_TAG: Final = "cdc/attempt"
"""On a run that is a retry: its number, from 1."""
_KILLED: Final = "transient"
"""The kind of failure of a run that Dagster itself found dead, and that could not record it."""
_FIRST_WAIT_SECONDS: Final = 60
_LONGEST_WAIT_SECONDS: Final = 3600
OWN_JOBS: Final = ("maintenance", "compaction", "verify")
"""Jobs of a feed whose runs do not have the tag of runs that bring it up to date."""


@dataclass(frozen=True, slots=True)
class LastRun:
    """The last run of a job. job: `""` for runs that bring the feed's tables up to date. ended_at: seconds since 1970.
    seconds: its duration, None for one that never began. error: one line, None for a run that succeeded. next_try_at:
    when the feed's sensor retries a failed run, in seconds since 1970; None when it does not."""

    run_id: str
    job: str
    ended_at: float
    seconds: float | None
    error: str | None
    next_try_at: float | None = None


def last_runs(instance: dg.DagsterInstance, feed: str) -> Iterator[LastRun]:
    """Yield the last run that brought the feed up to date, and the last ones of its other jobs, if any. Runs that were
    cancelled or are in progress are skipped."""
    wanted = {"": dg.RunsFilter(tags={FEED_TAG: feed}, statuses=_ENDED)}
    wanted |= {f"{feed}_{job}": dg.RunsFilter(job_name=f"{feed}_{job}", statuses=_ENDED) for job in OWN_JOBS}
    for job, runs in wanted.items():
        for record in instance.get_run_records(runs, limit=1):
            run, ended = record.dagster_run, record.end_time or record.update_timestamp.timestamp()
            failed = run.status == dg.DagsterRunStatus.FAILURE
            seconds = None if record.start_time is None else ended - record.start_time
            error = _error(instance, run.run_id) if failed else None
            # The sensor asks for runs that bring the feed up to date; the others have their schedules.
            yield LastRun(run.run_id, job, ended, seconds, error, None if job else retry_at(run, ended))


def retry_at(run: dg.DagsterRun, ended_at: float) -> float | None:
    """Return when the sensor of a feed retries a run that ended at `ended_at`, both in seconds since 1970: after a
    transient failure, and after a run that was cancelled. The wait doubles with each attempt. None for any other
    run."""
    cancelled = run.status == dg.DagsterRunStatus.CANCELED
    failed = run.status == dg.DagsterRunStatus.FAILURE
    if not cancelled and not (failed and run.tags.get(FAILURE_TAG, _KILLED) == _KILLED):
        return None
    return ended_at + min(_FIRST_WAIT_SECONDS * 2 ** attempt_of(run), _LONGEST_WAIT_SECONDS)


def attempt_of(run: dg.DagsterRun) -> int:
    """Return the number of a run's attempt: 0 for the first, which is no retry."""
    return int(run.tags.get(ATTEMPT_TAG, "0"))


def root_error(error: SerializableErrorInfo) -> SerializableErrorInfo:
    """Return the project's own error among an error and its causes, or else the innermost one."""
    own = class_names(CdcError)
    while error.cause is not None and error.cls_name not in own:
        error = error.cause
    return error


def error_text(error: SerializableErrorInfo) -> str:
    """Return the message of an error in a run. The project's own errors say all without the name of their class."""
    own = f"{error.cls_name}: "
    text = error.message.strip()
    return text.partition(own)[2] if error.cls_name in class_names(CdcError) and own in text else text


def _error(instance: dg.DagsterInstance, run_id: str) -> str:
    """Return the project's own error, or else the innermost one, of the first failed step; without a failed step,
    Dagster's message."""
    for record in instance.get_records_for_run(run_id, of_type=DagsterEventType.STEP_FAILURE, limit=1).records:
        event = record.event_log_entry.dagster_event
        found = None if event is None else event.step_failure_data.error
        if found is not None:
            return _first_line(error_text(root_error(found)))
    for record in instance.get_records_for_run(run_id, of_type=DagsterEventType.RUN_FAILURE, limit=1).records:
        event = record.event_log_entry.dagster_event
        if event is not None and event.message:
            return _first_line(event.message)
    return "see its log"


def _first_line(text: str) -> str:
    return text.strip().partition("\n")[0]


def class_names(error: type[CdcError]) -> set[str]:
    """Return the names of an error's class and of those below it: names are all that Dagster keeps of errors."""
    return {error.__name__, *(name for each in error.__subclasses__() for name in class_names(each))}
