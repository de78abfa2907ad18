"""Let one run of a feed work at a time, and find runs whose process is gone.

The pool of a feed (`assets.pool_of`) keeps the daemon's runs apart. Whatever starts a run, the run first takes the
feed's lease in the lake (`lake.tables.lease`). A run that Dagster considers running and that has no lease was killed,
and must not block the feed.
"""

from __future__ import annotations

import datetime
from typing import Final

import dagster as dg
from dagster._core.execution.backfill import BulkActionsFilter, BulkActionStatus

from cdc_lakehouse.assets import keys
from cdc_lakehouse.changelog.positions import utc_now
from cdc_lakehouse.errors import ConcurrentRunError
from cdc_lakehouse.lake.catalog import Lake
from cdc_lakehouse.lake.tables.lease import Lease, last_holder, take_when_free

FEED_TAG: Final = "cdc/feed"
FAILURE_TAG: Final = "cdc/failure"
"""On a failed run: `transient` when a retry may succeed, else `permanent`."""

_UNFINISHED: Final = [
    dg.DagsterRunStatus.QUEUED,
    dg.DagsterRunStatus.NOT_STARTED,
    dg.DagsterRunStatus.STARTING,
    dg.DagsterRunStatus.STARTED,
    dg.DagsterRunStatus.CANCELING,
]
# A run has no lease from its creation until its first op.
_STARTUP: Final = datetime.timedelta(minutes=5)

# A run also has no lease between its last op and the end that Dagster records.
_ENDING: Final = datetime.timedelta(minutes=1)

_MAINTENANCE: Final = datetime.timedelta(minutes=4)
"""How long a run waits for maintenance: it must hold the feed before it is considered dead at its start."""

_leases: dict[tuple[str, str], Lease] = {}
"""Leases of this process, by warehouse and feed."""


def take_lease(instance: dg.DagsterInstance, lake: Lake, feed: str, run_id: str) -> Lease:
    """Take the feed's lease for a run of this process, which waits for maintenance. Raises `ConcurrentRunError` when
    another run holds it."""
    place = lake.config.warehouse, feed
    lease = _leases.get(place)
    if lease is not None and lease.run == run_id:
        return lease
    if lease is not None:
        other = instance.get_run_by_id(lease.run)
        if other is not None and not other.is_finished:
            raise ConcurrentRunError(f"run {lease.run} of the feed is not finished", feed=feed, advice="wait")
        _leases.pop(place).release()
    lease = take_when_free(lake, feed, run_id, utc_now, _MAINTENANCE, lambda holder: holder.is_maintenance)
    _leases[place] = lease
    return lease


def release_leases() -> None:
    """Release the leases of this process."""
    while _leases:
        _leases.popitem()[1].release()


def tag_run(instance: dg.DagsterInstance, feed: str, run_id: str) -> None:
    """Tag a run with its feed. A run of assets that was started in the UI has no tag."""
    instance.add_run_tags(run_id, {FEED_TAG: feed})


def find_unfinished(instance: dg.DagsterInstance, lake: Lake, feed: str, now: datetime.datetime) -> str | None:
    """Return a sentence on the feed's run that is in progress; None when there is none. Runs of the instance that have
    died are reported as failed."""
    unfinished = instance.get_run_records(dg.RunsFilter(statuses=_UNFINISHED))
    records = [record for record in unfinished if _is_of(record.dagster_run, feed)]
    last = last_holder(lake, feed)
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
            instance.add_run_tags(run.run_id, {FAILURE_TAG: "transient"})
    # A run waits for maintenance itself.
    if holder is None or holder.is_maintenance or _is_finished(instance, holder.run):
        return None
    return f"{holder} of the feed is not finished"


def find_backfill(instance: dg.DagsterInstance, feed: str) -> str | None:
    """Return a sentence on the unfinished backfill of the feed's assets; None when there is none. Between two of its
    runs a backfill has no run."""
    for backfill in instance.get_backfills(filters=BulkActionsFilter(statuses=[BulkActionStatus.REQUESTED])):
        if any(keys.belongs_to_feed(feed, key) for key in backfill.asset_selection or ()):
            return f"backfill {backfill.backfill_id} of the feed is not finished"
    return None


def _is_of(run: dg.DagsterRun, feed: str) -> bool:
    # Maintenance takes the lease itself, for one table at a time.
    others = (keys.maintenance_key(feed), keys.compaction_key(feed))
    chosen = (key for key in run.asset_selection or () if key not in others)
    return run.tags.get(FEED_TAG) == feed or any(keys.belongs_to_feed(feed, key) for key in chosen)


def _is_finished(instance: dg.DagsterInstance, run_id: str) -> bool:
    run = instance.get_run_by_id(run_id)
    return run is not None and run.is_finished
