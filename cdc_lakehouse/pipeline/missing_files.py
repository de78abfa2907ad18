"""Parts of the source that a listing could not see: directories that cannot be read, last files that are missing, and
index files that do not name the last file.

Each is a quarantine row until a later listing sees it, so that its table is held by the same rule as for a bad line."""

from __future__ import annotations

import datetime
import functools
from collections.abc import Mapping, Set
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final

from cdc_lakehouse.changelog.positions import commit_time
from cdc_lakehouse.decoders.problems import MISSING_FILE, UNREADABLE_DIRECTORY, UNREADABLE_INDEX, Rejected
from cdc_lakehouse.errors import ObjectMissingError, SourceError
from cdc_lakehouse.pipeline.context import FeedContext
from cdc_lakehouse.pipeline.sink_schemas import SchemaFiles
from cdc_lakehouse.sources.sink.incremental_listing import AT_ONCE
from cdc_lakehouse.sources.sink.paths import IndexFile, Listing, read_index

# The possible difference between the clocks of the database and of the store.
_CLOCKS: Final = datetime.timedelta(minutes=5)


@dataclass(frozen=True)
class LastFiles:
    """What index files say about last data files. `missing` are files that should exist and do not, `unreadable` are
    index files that name none (sentences by path). `judged` are all index files for which that is known, including
    those that no longer exist."""

    missing: Mapping[str, str]
    unreadable: Mapping[str, str]
    judged: Set[str]


def quarantine_missing(run: FeedContext, listing: Listing, last: LastFiles, schemas: SchemaFiles) -> None:
    """Reconcile the quarantine with what could not be listed, and with what index files say. The listing may only cover
    what is new: where directories could not be listed before, it is complete."""

    def rejected(error_class: str, found: Mapping[str, str]) -> list[Rejected]:
        return [
            Rejected(path, None, error_class, message, None, *schemas.name_at(path)) for path, message in found.items()
        ]

    unlisted = {each.path: f"the directory cannot be listed: {each.reason}" for each in listing.unreadable}
    missed = {row.segment for row in run.quarantine.unresolved() if row.error_class == MISSING_FILE}
    found = run.segments.known(missed) | {file.path for file in listing.data}
    run.quarantine.replace(
        lambda row: (
            row.error_class == UNREADABLE_DIRECTORY
            or (row.error_class == UNREADABLE_INDEX and row.segment in last.judged)
            or (row.error_class == MISSING_FILE and row.segment in found)
        ),
        [
            *rejected(UNREADABLE_DIRECTORY, unlisted),
            *rejected(UNREADABLE_INDEX, last.unreadable),
            *rejected(MISSING_FILE, last.missing),
        ],
        run.clock(),
    )


def covered_before(checkpoint_ts: int) -> datetime.datetime:
    """Return the time such that all events in files written before it, by the store's clock, are at or below the
    checkpoint-ts."""
    return commit_time(checkpoint_ts) - _CLOCKS


def check_last_files(run: FeedContext, listing: Listing, checkpoint_ts: int) -> LastFiles:
    """See which last data files should be there and are not: a hole in the numbers does not show them.

    Some versions of TiCDC write the index file before the data file that it names, so a missing file may still be
    written, unless the checkpoint is later than the index file: it guarantees all events of that time. Each index file
    is read once, when the checkpoint passes it; one that names no file is read until it does or is gone."""
    passed, covered = covered_before(run.last_cut.checkpoint_ts), covered_before(checkpoint_ts)
    rows = [row for row in run.quarantine.unresolved() if row.error_class == UNREADABLE_INDEX]
    before = {row.segment for row in rows}
    indexes = [
        index
        for index in listing.indexes
        if index.modified < covered and (passed <= index.modified or index.path in before)
    ]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        named = dict(zip(indexes, pool.map(functools.partial(_named_by, run), indexes), strict=True))
    last = {path: index for index, (path, _) in named.items() if path is not None}
    seen = {*run.segments.known(last), *(file.path for file in listing.data)}
    listed = {index.path for index in listing.indexes}
    # The directories of the open ones are listed completely.
    gone = {row.segment for row in rows if row.state == "open" and row.segment not in listed}
    return LastFiles(
        missing={
            path: f"the data file is missing: {index.path} names it as the last, and the checkpoint-ts covers it"
            for path, index in last.items()
            if path not in seen
        },
        unreadable={index.path: reason for index, (_, reason) in named.items() if reason is not None},
        judged={*(index.path for index in indexes), *(path for path in gone if _is_gone(run, path))},
    )


def _named_by(run: FeedContext, index: IndexFile) -> tuple[str | None, str | None]:
    """Return the last file, or why it is unknown; neither when the index file has disappeared since it was listed."""
    try:
        return read_index(run.store, index), None
    except ObjectMissingError:
        return None, None
    except SourceError as error:
        if error.segment is None:
            raise  # The whole store cannot be read.
        run.log.warning("%s", error)
        return None, f"whether the last data file is there is not known: {error.advised}"


def _is_gone(run: FeedContext, path: str) -> bool:
    """Whether the file is missing, and not only in a directory that could not be listed."""
    try:
        run.store.head(path, 1)
    except ObjectMissingError:
        return True
    except SourceError:
        pass
    return False
