"""What a run sees of the sink: what is new beyond the frontier that the last run left, or all of it."""

from __future__ import annotations

import datetime
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from cdc_lakehouse.config import FeedConfig
from cdc_lakehouse.lake.tables.segments import index_gaps
from cdc_lakehouse.pipeline.missing_files import MISSING_FILE, UNREADABLE_DIRECTORY, missing_tails, promised_time
from cdc_lakehouse.pipeline.run import FeedRun
from cdc_lakehouse.sources.sink.incremental_listing import list_new
from cdc_lakehouse.sources.sink.listing_state import Circumstances, Frontier, advance
from cdc_lakehouse.sources.sink.paths import Listing, SinkLayout, list_sink, schema_file_at

WATCHED_LIMIT: Final = 500
"""Directories that are listed whole beside the way: with more of them the whole sink is listed instead."""


@dataclass(frozen=True)
class Sight:
    """A listing, and the last files that should be in it and are not (sentences by path). `older` is the frontier that
    it began at, None when the whole sink was listed."""

    listing: Listing
    missing: Mapping[str, str]
    older: Frontier | None


def settings_of(feed: FeedConfig) -> str:
    """A digest of the settings that a frontier depends on. The number is raised when a frontier means another thing."""
    told = (1, feed.storage_sink.uri, SinkLayout.of(feed.storage_sink), feed.tables.include, feed.tables.exclude)
    return hashlib.sha256(repr(told).encode()).hexdigest()[:12]


def see(run: FeedRun, checkpoint_ts: int) -> Sight:
    """List the sink. The checkpoint-ts must have been read before."""
    layout = SinkLayout.of(run.feed.storage_sink)
    frontier = run.frontiers.last()
    watched = _watched(run)
    reason = _reason_for_all(run, frontier, watched)
    if frontier is not None and reason is None:
        listing = list_new(run.store, layout, frontier, watched)
        missing = missing_tails(run, listing, checkpoint_ts)
        told = {row.segment for row in run.quarantine.open() if row.error_class == MISSING_FILE}
        if missing.keys() <= told:
            return Sight(listing, missing, frontier)
        reason = "an index file names a data file that is not where it is expected"
    run.log.info("listing the whole sink: %s", reason)
    listing = list_sink(run.store, layout)
    return Sight(listing, missing_tails(run, listing, checkpoint_ts), None)


def remember(run: FeedRun, sight: Sight, checkpoint_ts: int, *, unclear: bool) -> None:
    """Leave the frontier for the next run. What it lies beyond must have landed."""
    promised = promised_time(checkpoint_ts)
    given = Circumstances(
        SinkLayout.of(run.feed.storage_sink),
        settings_of(run.feed),
        run.clock(),
        _last_ddl(run),
        # Whether their last files are there is known when the checkpoint has passed them.
        frozenset(index.directory for index in sight.listing.indexes if index.modified >= promised),
        unclear,
    )
    last = run.frontiers.last()
    frontier = advance(sight.older, sight.listing, given)
    if last is None or frontier.adds_to(last) or (sight.older is None and _is_old(run, last)):
        run.frontiers.write(frontier)


def _reason_for_all(run: FeedRun, frontier: Frontier | None, watched: frozenset[str]) -> str | None:
    if frontier is None:
        return "it is the first time"
    if frontier.settings != settings_of(run.feed):
        return "the settings of the source or of its tables have changed"
    if run.dates:
        return "dates are decoded again"
    if frontier.unclear:
        return "it held files that nothing could be made of"
    if any(row.error_class == UNREADABLE_DIRECTORY for row in run.quarantine.open()):
        return "parts of it could not be listed"
    if _is_old(run, frontier):
        return f"it was not for {run.feed.storage_sink.full_listing_hours} hours"
    if len(watched) > WATCHED_LIMIT:
        return f"{len(watched)} directories have missing or quarantined files"
    return None


def _is_old(run: FeedRun, frontier: Frontier) -> bool:
    return run.clock() - frontier.whole_at >= datetime.timedelta(hours=run.feed.storage_sink.full_listing_hours)


def _watched(run: FeedRun) -> frozenset[str]:
    """Directories in which files are expected that are not new by their number: those that would close a gap, and
    mended ones in the place of those that could not be used."""
    gaps = {gap.directory for gap in index_gaps(run.segments.rows)}
    rows = run.quarantine.open()
    known = run.segments.known(row.segment for row in rows)
    files = {row.segment for row in rows if row.error_class == MISSING_FILE} | known
    return frozenset(gaps | {file.rpartition("/")[0] for file in files})


def _last_ddl(run: FeedRun) -> dict[str, int]:
    """By directory, as recorded by earlier runs: the sink was listed after all of it."""
    found: dict[str, int] = {}
    for origin, change in run.history.changes.items():
        if change.action and (place := schema_file_at(origin)) is not None:
            directory, version = place
            found[directory] = max(found.get(directory, 0), version)
    return found
