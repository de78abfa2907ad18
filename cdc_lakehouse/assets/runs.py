"""Let one run of a feed work at a time, and find runs whose process is gone.

The pool of a feed (`steps.pool_of`) keeps the daemon's runs apart. Whatever starts a run, the run first takes the
feed's lease in the lake (`lake.tables.lease`). A run that Dagster considers running and that has no lease was killed,
and must not block the feed.

No other module uses what is not of Dagster's public interface; `tests/assets/test_definitions.py` says what an
upgrade breaks of it.
"""

from __future__ import annotations

import contextlib
import datetime
import functools
import sqlite3
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import dagster as dg
from dagster import DagsterEventType
from dagster._core.events import StepMaterializationData
from dagster._core.execution.plan.objects import StepFailureData, StepSuccessData
from dagster._utils.error import serializable_error_info_from_exc_info

from cdc_lakehouse.assets import keys
from cdc_lakehouse.config import FeedConfig
from cdc_lakehouse.errors import CdcError, class_names
from cdc_lakehouse.lake.catalog import Lake
from cdc_lakehouse.lake.tables.lease import last_holder

FEED_TAG: Final = "cdc/feed"
FAILURE_TAG: Final = "cdc/failure"
"""On a failed run: `transient` when a retry may succeed, else `permanent`."""

_UNFINISHED: Final = [
    dg.DagsterRunStatus[name] for name in ("QUEUED", "NOT_STARTED", "STARTING", "STARTED", "CANCELING")
]
_STARTUP: Final = datetime.timedelta(minutes=5)  # A run has no lease from its creation until its first op.
# A run also has no lease between its last op and the end that Dagster records.
_ENDING: Final = datetime.timedelta(minutes=1)


def find_unfinished(instance: dg.DagsterInstance, lake: Lake, feed: FeedConfig, now: datetime.datetime) -> str | None:
    """Return a sentence on the feed's run in progress, None without one. Runs that have died are reported as failed."""
    unfinished = instance.get_run_records(dg.RunsFilter(statuses=_UNFINISHED))
    records = [record for record in unfinished if _is_of(record.dagster_run, feed)]
    last = last_holder(lake, feed.name)
    holder = last if last is not None and last.is_alive(now) else None
    ending = last is not None and last.released and now - last.expires_at < _ENDING
    for record in records:
        run = record.dagster_run
        had_lease = last is not None and run.run_id in (last.run, last.before)
        began = had_lease or now - record.create_timestamp.replace(tzinfo=datetime.UTC) > _STARTUP
        is_last = had_lease and (holder is not None or ending)
        if run.status == dg.DagsterRunStatus.QUEUED or is_last or not began:
            return f"run {run.run_id} of the feed is not finished"
        if not _is_finished(instance, run.run_id):
            instance.report_run_failed(run, "The process of the run is gone.")
            instance.add_run_tags(run.run_id, {FAILURE_TAG: run.tags.get(FAILURE_TAG, "transient")})
    # A run waits for maintenance itself.
    if holder is None or holder.is_maintenance or _is_finished(instance, holder.run):
        return None
    return f"{holder} of the feed is not finished"


def _is_of(run: dg.DagsterRun, feed: FeedConfig) -> bool:
    # Maintenance takes the lease itself, for one table at a time.
    others = (keys.maintenance_key(feed), keys.compaction_key(feed))
    chosen = (key for key in run.asset_selection or () if key not in others)
    return run.tags.get(FEED_TAG) == feed.name or any(keys.belongs_to_feed(feed, key) for key in chosen)


def _is_finished(instance: dg.DagsterInstance, run_id: str) -> bool:
    run = instance.get_run_by_id(run_id)
    return run is not None and run.is_finished


# The last runs of a feed that ended by themselves, as recorded by Dagster.

_ENDED: Final = [dg.DagsterRunStatus.SUCCESS, dg.DagsterRunStatus.FAILURE]
ATTEMPT_TAG: Final = "cdc/attempt"
"""On a run that is a retry: its number, from 1."""
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
    """Return when a feed's sensor retries a run that ended at `ended_at`, both in seconds since 1970: one that failed
    transiently or was cancelled. The wait doubles with each attempt. None for any other run."""
    # A run that Dagster itself found dead could not record its kind of failure.
    failed = run.status == dg.DagsterRunStatus.FAILURE and run.tags.get(FAILURE_TAG, "transient") == "transient"
    if not failed and run.status != dg.DagsterRunStatus.CANCELED:
        return None
    return ended_at + min(_FIRST_WAIT_SECONDS * 2 ** attempt_of(run), _LONGEST_WAIT_SECONDS)


def run_tags(feed: FeedConfig, attempt: int = 0) -> dict[str, str]:
    return {FEED_TAG: feed.name} | ({ATTEMPT_TAG: str(attempt)} if attempt else {})


def attempt_of(run: dg.DagsterRun) -> int:
    """Return the number of a run's attempt: 0 for the first, which is no retry."""
    return int(run.tags.get(ATTEMPT_TAG, "0"))


def _error(instance: dg.DagsterInstance, run_id: str) -> str:
    """Return the first line of the project's own error, without the name of its class, or else of the innermost one, of
    the first failed step; without a failed step, of Dagster's message."""
    own, said = class_names(CdcError), "see its log"
    if (error := step_failure(instance, run_id)) is not None:
        while error.cause is not None and error.cls_name not in own:
            error = error.cause
        interrupted, said = error.cls_name == "DagsterExecutionInterruptedError", error.message.strip()
        if interrupted or error.cls_name in own:
            said = "it was interrupted" if interrupted else said.partition(f"{error.cls_name}: ")[2] or said
    else:
        for record in instance.get_records_for_run(run_id, of_type=DagsterEventType.RUN_FAILURE, limit=1).records:
            event = record.event_log_entry.dagster_event
            said = (event is not None and event.message) or said
    return said.strip().partition("\n")[0]


# --- Private interfaces of Dagster ---


def code_server(origin: Any) -> Any:
    """Return a client of the server of a sensor's code location; None when a process has loaded the code itself."""
    return origin.create_client() if hasattr(origin, "create_client") else None


def requested_backfills(instance: dg.DagsterInstance) -> Any:
    """Return the backfills that are not finished, with `backfill_id` and `asset_selection`."""
    # It takes a tenth of the time of Dagster's import, and a command's run does not need it.
    from dagster._core.execution.backfill import BulkActionsFilter, BulkActionStatus  # noqa: PLC0415

    return instance.get_backfills(filters=BulkActionsFilter(statuses=[BulkActionStatus.REQUESTED]))


def failed_checks(
    instance: dg.DagsterInstance, keys: Collection[dg.AssetCheckKey]
) -> Mapping[dg.AssetCheckKey, dg.AssetCheckEvaluation]:
    """Return the last completed evaluations of checks that failed; a planned one may be in progress."""
    summaries = instance.event_log_storage.get_asset_check_summary_records(list(keys))
    records = {key: summary.last_completed_check_execution_record for key, summary in summaries.items()}
    found = {key: record.evaluation for key, record in records.items() if record is not None}
    return {key: evaluation for key, evaluation in found.items() if evaluation and not evaluation.passed}


def step_failure(instance: dg.DagsterInstance, run_id: str) -> Any:
    """Return the error of the first failed step of a run, if there is one: `cls_name`, `message`, and its `cause`."""
    for record in instance.get_records_for_run(run_id, of_type=DagsterEventType.STEP_FAILURE, limit=1).records:
        event = record.event_log_entry.dagster_event
        return None if event is None else event.step_failure_data.error
    return None


def delete_log_file(instance: dg.DagsterInstance, run_id: str) -> None:
    """Delete the file of SQLite's storage that each run has: 130 kB of it remain when its rows are deleted."""
    storage: Any = instance.event_log_storage
    # Checked by its method: importing the class takes a fifteenth of the time to load the definitions.
    if hasattr(storage, "path_for_shard"):
        Path(storage.path_for_shard(run_id)).unlink(missing_ok=True)


def make_log_file(instance: dg.DagsterInstance, run_id: str) -> None:
    """Make the file that SQLite's storage has for each run, in one transaction, with the tables of that of all runs.
    Dagster makes one table after the other: it does where this fails, as where another process makes the file."""
    storage: Any = instance.event_log_storage
    if hasattr(storage, "path_for_shard"):
        index, log = (sqlite3.connect(storage.path_for_shard(name)) for name in ("index", run_id))
        with contextlib.suppress(sqlite3.Error), contextlib.closing(index), contextlib.closing(log):
            tables = [sql for (sql,) in index.execute("SELECT sql FROM sqlite_schema WHERE sql > ''")]
            version = index.execute("SELECT version_num FROM alembic_version").fetchone()
            log.executescript(";".join(["PRAGMA journal_mode = WAL", "BEGIN", *tables]))
            log.execute("INSERT INTO alembic_version VALUES (?)", version)
            log.commit()
            storage._initialized_dbs |= {"index", run_id}


@contextlib.contextmanager
def stored_at_once(instance: dg.DagsterInstance) -> Iterator[None]:
    """Store all events of the block in one transaction of each database, where Dagster's storage is SQLite: one by one,
    each of them opens databases and waits for the disk more than ten times."""
    storage: Any = instance.event_log_storage
    with contextlib.ExitStack() as transactions:
        if hasattr(storage, "path_for_shard"):
            connect, lock = storage._connect, storage._db_lock
            transactions.callback(vars(storage).update, _connect=connect, _db_lock=lock)
            connected = lambda shard: contextlib.nullcontext(transactions.enter_context(connect(shard)))  # noqa: E731
            storage._connect, storage._db_lock = functools.cache(connected), contextlib.nullcontext()
        yield


def payload_of_event(event: Any) -> tuple[DagsterEventType, str, Any]:
    """Return the type, the message and the payload of the event that records a materialization or a check."""
    if isinstance(event, dg.AssetMaterialization):
        what = f"Materialized value {event.label}."
        return DagsterEventType.ASSET_MATERIALIZATION, what, StepMaterializationData(event)
    found = "passed" if event.passed else "did not pass"
    what = f"Asset check '{event.check_name}' on '{event.asset_key.to_user_string()}' {found}."
    return DagsterEventType.ASSET_CHECK_EVALUATION, what, event


def payload_of_failure(error: Exception) -> Any:
    trace: Any = error.__traceback__
    return StepFailureData(serializable_error_info_from_exc_info((type(error), error, trace)), None)


def payload_of_success(seconds: float) -> Any:
    return StepSuccessData(seconds * 1000)
