"""Parts of the source that a listing could not see: directories that cannot be read, and last files that are not there.

Each is a quarantine row until a later listing sees it, so that its table is held by the same rule as for a bad line."""

from __future__ import annotations

import datetime
import functools
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from cdc_lakehouse.changelog.positions import commit_time
from cdc_lakehouse.errors import SourceError
from cdc_lakehouse.lake.tables.quarantine import Quarantined
from cdc_lakehouse.pipeline.run import FeedRun
from cdc_lakehouse.pipeline.schema_files import SchemaFiles
from cdc_lakehouse.sources.sink.incremental_listing import AT_ONCE
from cdc_lakehouse.sources.sink.paths import IndexFile, Listing, read_index

UNREADABLE_DIRECTORY: Final = "UnreadableDirectory"
MISSING_FILE: Final = "MissingFile"

# What the clocks of the database and of the store may differ by.
_CLOCKS: Final = datetime.timedelta(minutes=5)


def note_unseen(run: FeedRun, listing: Listing, missing: Mapping[str, str], schema_files: SchemaFiles) -> None:
    """Rows for what could not be listed, and for last files that are missing. The listing may be one of what is new:
    where directories could not be listed before, it is one of all."""
    unreadable = {
        directory.path: f"the directory cannot be listed: {directory.reason}" for directory in listing.unreadable
    }
    _note(run, schema_files, UNREADABLE_DIRECTORY, unreadable, gone=set(unreadable))
    missed = {row.segment for row in run.quarantine.open() if row.error_class == MISSING_FILE}
    still = missed - run.segments.known(missed) - {file.path for file in listing.data}
    _note(run, schema_files, MISSING_FILE, missing, gone=still | set(missing))


def promised_time(checkpoint_ts: int) -> datetime.datetime:
    """What a store says was written before this, the checkpoint-ts covers."""
    return commit_time(checkpoint_ts) - _CLOCKS


def missing_tails(run: FeedRun, listing: Listing, checkpoint_ts: int) -> dict[str, str]:
    """Last data files that should be there and are not: a hole in the numbers does not show them.

    Some versions of TiCDC write the index file before the data file that it names, so a file that is missing is one
    that may still come, unless the checkpoint is younger than the index file: it promises all events of that time.
    Each index file is read once, when the checkpoint passes it."""
    passed, promised = promised_time(run.last_cut.checkpoint_ts), promised_time(checkpoint_ts)
    indexes = [index for index in listing.indexes if passed <= index.modified < promised]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        last = dict(zip(pool.map(functools.partial(_named_by, run), indexes), indexes, strict=True))
    seen = {*run.segments.known(path for path in last if path is not None), *(file.path for file in listing.data)}
    return {
        path: f"the data file is missing: {index.path} names it as the last, and the checkpoint-ts covers it"
        for path, index in last.items()
        if path is not None and path not in seen
    }


def _named_by(run: FeedRun, index: IndexFile) -> str | None:
    try:
        return read_index(run.store, index)
    except SourceError as error:
        run.log.warning("%s", error)
        return None


def _note(run: FeedRun, schema_files: SchemaFiles, error_class: str, found: Mapping[str, str], gone: set[str]) -> None:
    """Rows for what was found; those of the class that are of nothing in `gone` are resolved."""
    now = run.clock()
    run.quarantine.resolve(lambda row: row.error_class == error_class and row.segment not in gone, "replayed", now)
    rows: list[Quarantined] = []
    for path, message in found.items():
        database, table = schema_files.name_at(path)
        rows.append(Quarantined(path, None, database, table, error_class, message, None, "open", now))
    run.quarantine.add(rows)
