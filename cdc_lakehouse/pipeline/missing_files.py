"""Parts of the source that a listing could not see: directories that cannot be read, and last files that are not there.

Each is a quarantine row until a later listing sees it, so that its table is held by the same rule as for a bad line."""

from __future__ import annotations

import datetime
import functools
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from cdc_lakehouse.changelog.positions import commit_time
from cdc_lakehouse.decoders.problems import MISSING_FILE, UNREADABLE_DIRECTORY, Rejected
from cdc_lakehouse.errors import SourceError
from cdc_lakehouse.pipeline.context import FeedContext
from cdc_lakehouse.pipeline.sink_schemas import SchemaFiles
from cdc_lakehouse.sources.sink.incremental_listing import AT_ONCE
from cdc_lakehouse.sources.sink.paths import IndexFile, Listing, read_index

# What the clocks of the database and of the store may differ by.
_CLOCKS: Final = datetime.timedelta(minutes=5)


def quarantine_missing(run: FeedContext, listing: Listing, missing: Mapping[str, str], schemas: SchemaFiles) -> None:
    """Reconcile the quarantine with what could not be listed, and with the last files that are `missing` (sentences by
    path). The listing may be one of what is new: where directories could not be listed before, it is one of all."""

    def rejected(error_class: str, path: str, message: str) -> Rejected:
        database, table = schemas.name_at(path)
        return Rejected(path, None, error_class, message, None, database, table)

    unreadable = [
        rejected(UNREADABLE_DIRECTORY, each.path, f"the directory cannot be listed: {each.reason}")
        for each in listing.unreadable
    ]
    lost = [rejected(MISSING_FILE, path, message) for path, message in missing.items()]
    missed = {row.segment for row in run.quarantine.unresolved() if row.error_class == MISSING_FILE}
    found = run.segments.known(missed) | {file.path for file in listing.data}
    run.quarantine.replace(
        lambda row: (
            row.error_class == UNREADABLE_DIRECTORY or (row.error_class == MISSING_FILE and row.segment in found)
        ),
        [*unreadable, *lost],
        run.clock(),
    )


def covered_before(checkpoint_ts: int) -> datetime.datetime:
    """All events of files that a store says were written before this time are at or below the checkpoint-ts."""
    return commit_time(checkpoint_ts) - _CLOCKS


def missing_last_files(run: FeedContext, listing: Listing, checkpoint_ts: int) -> dict[str, str]:
    """Last data files that should be there and are not: a hole in the numbers does not show them.

    Some versions of TiCDC write the index file before the data file that it names, so a file that is missing is one
    that may still come, unless the checkpoint is younger than the index file: it promises all events of that time.
    Each index file is read once, when the checkpoint passes it."""
    passed, covered = covered_before(run.last_cut.checkpoint_ts), covered_before(checkpoint_ts)
    indexes = [index for index in listing.indexes if passed <= index.modified < covered]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        last = dict(zip(pool.map(functools.partial(_named_by, run), indexes), indexes, strict=True))
    seen = {*run.segments.known(path for path in last if path is not None), *(file.path for file in listing.data)}
    return {
        path: f"the data file is missing: {index.path} names it as the last, and the checkpoint-ts covers it"
        for path, index in last.items()
        if path is not None and path not in seen
    }


def _named_by(run: FeedContext, index: IndexFile) -> str | None:
    try:
        return read_index(run.store, index)
    except SourceError as error:
        run.log.warning("%s", error)
        return None
