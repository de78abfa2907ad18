"""List the storage sink: only new files when the saved listing state allows it, otherwise all files."""

from __future__ import annotations

import datetime
from dataclasses import dataclass
from typing import Final

from cdc_lakehouse.changelog.positions import commit_time
from cdc_lakehouse.decoders.files.registry import layout_of
from cdc_lakehouse.decoders.problems import MISSING_FILE, UNREADABLE_DIRECTORY, UNREADABLE_INDEX
from cdc_lakehouse.lake.tables.segments import index_gaps
from cdc_lakehouse.pipeline.context import FeedContext
from cdc_lakehouse.pipeline.missing_files import LastFiles, check_last_files, covered_before
from cdc_lakehouse.pipeline.sink_schemas import SchemaFiles
from cdc_lakehouse.pipeline.taken_tables import TakenNames
from cdc_lakehouse.sources.sink.incremental_listing import list_new
from cdc_lakehouse.sources.sink.listing_state import (
    Frontier,
    ListingContext,
    is_of_settings,
    may_have_expired,
    next_frontier,
    settings_digest,
)
from cdc_lakehouse.sources.sink.paths import Listing, list_sink, schema_file_at

WATCHED_LIMIT: Final = 500
"""The most directories that are listed completely in addition: with more of them the whole sink is listed instead."""


@dataclass(frozen=True)
class SinkListing:
    """A listing with its schema files, the names that the feed takes according to these, and the results of its index
    files. `since` is the listing state that it began at, None when the whole sink was listed."""

    listing: Listing
    schemas: SchemaFiles
    taken: TakenNames
    last: LastFiles
    since: Frontier | None


def list_source(run: FeedContext, checkpoint_ts: int, shown_ts: int) -> SinkListing:
    """List the sink. The checkpoint-ts must have been read before; `shown_ts` is a TSO up to which the source may have
    gone."""
    layout = layout_of(run.feed.storage_sink)
    frontier = run.frontiers.last()
    watched = _watched(run)
    reason = _reason_for_all(run, frontier, watched, shown_ts)
    if frontier is not None and reason is None:
        found = _found(run, list_new(run.store, layout, frontier, watched), checkpoint_ts, frontier)
        known = {row.segment for row in run.quarantine.unresolved() if row.error_class == MISSING_FILE}
        if not found.last.missing.keys() <= known:
            reason = "an index file names a data file that is not where it is expected"
        elif frontier.settings != settings_digest(run.feed, found.taken.earlier):
            reason = "other names of tables are taken, for tables were renamed"
        else:
            return found
    run.log.info("listing the whole sink: %s", reason)
    return _found(run, list_sink(run.store, layout), checkpoint_ts, None)


def _found(run: FeedContext, listing: Listing, checkpoint_ts: int, since: Frontier | None) -> SinkListing:
    schemas = SchemaFiles(run.feed, run.store, run.history, listing.schemas)
    taken = TakenNames.of(run.feed.tables, schemas.history.incarnations().values(), run.last_cut.checkpoint_ts)
    return SinkListing(listing, schemas, taken, check_last_files(run, listing, checkpoint_ts), since)


def save_listing_state(run: FeedContext, found: SinkListing, checkpoint_ts: int, *, unclear: bool) -> None:
    """Save the listing state for the next run. Everything that the next run does not list again must have landed."""
    covered = covered_before(checkpoint_ts)
    given = ListingContext(
        layout_of(run.feed.storage_sink),
        settings_digest(run.feed, found.taken.earlier),
        run.clock(),
        _last_ddl(run),
        # Whether their last files exist is known once the checkpoint has passed them.
        frozenset(index.directory for index in found.listing.indexes if index.modified >= covered),
        unclear,
    )
    last = run.frontiers.last()
    frontier = next_frontier(found.since, found.listing, given)
    if last is None or frontier.adds_to(last) or (found.since is None and _is_old(run, last)):
        run.frontiers.write(frontier)


def _reason_for_all(run: FeedContext, frontier: Frontier | None, watched: frozenset[str], shown_ts: int) -> str | None:
    if frontier is None:
        return "it is the first time"
    if not is_of_settings(frontier, run.feed):
        return "the settings of the source or of its tables have changed"
    if run.dates:
        return "dates are decoded again"
    if frontier.unclear:
        return "it held files that nothing could be made of"
    if any(row.error_class == UNREADABLE_DIRECTORY for row in run.quarantine.unresolved()):
        return "parts of it could not be listed"
    if _is_old(run, frontier):
        return f"it was not for {run.feed.storage_sink.full_listing_hours} hours"
    read = commit_time(run.last_cut.checkpoint_ts)
    if run.last_cut.checkpoint_ts and may_have_expired(run.feed, read, shown_ts):
        return f"files may have expired since the last cut, of {read:%Y-%m-%d %H:%M} UTC"
    if len(watched) > WATCHED_LIMIT:
        return f"{len(watched)} directories have missing or quarantined files"
    return None


def _is_old(run: FeedContext, frontier: Frontier) -> bool:
    return run.clock() - frontier.whole_at >= datetime.timedelta(hours=run.feed.storage_sink.full_listing_hours)


def _watched(run: FeedContext) -> frozenset[str]:
    """Return directories in which files are expected that are not new by their number: those that would close a gap,
    repaired ones that replace unusable ones, and those whose index file names no last file."""
    gaps = {gap.directory for gap in index_gaps(run.segments.rows)}
    rows = run.quarantine.open()
    known = run.segments.known(row.segment for row in rows)
    files = {row.segment for row in rows if row.error_class == MISSING_FILE} | known
    indexes = {row.segment for row in rows if row.error_class == UNREADABLE_INDEX}
    return frozenset(
        gaps | {file.rpartition("/")[0] for file in files} | {index.rpartition("/meta/")[0] for index in indexes}
    )


def _last_ddl(run: FeedContext) -> dict[str, int]:
    """Return the last DDL by directory, as recorded by earlier runs: the sink was listed after all of it."""
    found: dict[str, int] = {}
    for origin, change in run.history.changes.items():
        if change.kind == "statement" and (place := schema_file_at(origin)) is not None:
            directory, version = place
            found[directory] = max(found.get(directory, 0), version)
    return found
