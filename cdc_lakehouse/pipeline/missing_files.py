"""Parts of the source that a listing could not see: directories that cannot be read, last files that are missing,
index files that do not name the last file, and files that expired before they were read.

Each is a quarantine row until a later listing sees it, so that its table is held by the same rule as for a bad line."""

from __future__ import annotations

import datetime
import functools
from collections.abc import Iterator, Mapping, Sequence, Set
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from cdc_lakehouse.changelog.history import Incarnation
from cdc_lakehouse.changelog.positions import BEGINNING, commit_time
from cdc_lakehouse.changelog.schema import TableName
from cdc_lakehouse.decoders.arrow import pc
from cdc_lakehouse.decoders.problems import (
    EXPIRED_FILES,
    MISSING_FILE,
    UNREADABLE_DIRECTORY,
    UNREADABLE_INDEX,
    Rejected,
)
from cdc_lakehouse.errors import ObjectMissingError, SourceError
from cdc_lakehouse.lake.tables.quarantine import Quarantined
from cdc_lakehouse.lake.tables.segments import FILE, SUMMARY
from cdc_lakehouse.pipeline.context import FeedContext
from cdc_lakehouse.pipeline.sink_schemas import SchemaFiles
from cdc_lakehouse.pipeline.taken_tables import TakenNames, is_taken
from cdc_lakehouse.sources.sink.incremental_listing import AT_ONCE
from cdc_lakehouse.sources.sink.listing_state import may_have_expired, settings_digest
from cdc_lakehouse.sources.sink.paths import DataFile, IndexFile, Listing, read_index

# The possible difference between the clocks of the database and of the store.
_CLOCKS: Final = datetime.timedelta(minutes=5)
_WEST: Final = datetime.timedelta(hours=12)
"""How far the date of a sink may be behind the date in UTC."""


@dataclass(frozen=True)
class LastFiles:
    """What index files say about last data files. `missing` are files that should exist and do not, `unreadable` are
    index files that name none (sentences by path). `judged` are all index files for which that is known, including
    those that no longer exist."""

    missing: Mapping[str, str]
    unreadable: Mapping[str, str]
    judged: Set[str]


@dataclass(frozen=True, slots=True)
class _Times:
    """When the first and the last of a table's files were written."""

    oldest: datetime.datetime
    newest: datetime.datetime


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


def _read_until(run: FeedContext) -> datetime.datetime | None:
    """Return the time such that no file of the sink that was written before it is unread; None for a feed that has read
    nothing. It is the date of the last file that landed, or the time of the last cut: a file that was not there when
    its checkpoint-ts was read is younger."""
    cut = run.last_cut.checkpoint_ts
    known = [commit_time(cut) - _WEST] if cut != BEGINNING else []
    return max([*known, *(each.newest for each in _landed(run).values())], default=None)


def quarantine_expired(
    run: FeedContext,
    files: Sequence[DataFile],
    schemas: SchemaFiles,
    taken: TakenNames,
    checkpoint_ts: int,
    *,
    whole: bool,
) -> None:
    """Quarantine the tables of which files may have expired before they were read, and resolve those that are complete
    again. Only a listing of the whole sink shows which, against what had landed before it: this is committed before
    new segments land."""
    ends = (life.upto(checkpoint_ts) for life in schemas.history.incarnations().values())
    lives = [life for life in ends if life is not None and life.dropped_ts is None]

    def is_complete(row: Quarantined) -> bool:
        since, until = map(datetime.datetime.fromisoformat, row.segment.rpartition("/")[2].split(".."))
        of_table = [life for life in lives if TableName(row.database or "", row.table or "") in life.names]
        names = {name for life in of_table if _began(life) < until for name in life.names}
        # Files expire in the order of their dates: with one that old all later ones are there.
        return not names or any(_written(f.feed_date, f.modified) <= since and _name(f) in names for f in files)

    found = list(_expired(run, files, lives, taken, checkpoint_ts)) if whole else []
    run.quarantine.replace(lambda row: row.error_class == EXPIRED_FILES and is_complete(row), found, run.clock())


def _expired(
    run: FeedContext, files: Sequence[DataFile], lives: Sequence[Incarnation], taken: TakenNames, checkpoint_ts: int
) -> Iterator[Rejected]:
    landed, cut, read = _landed(run), run.last_cut, _read_until(run)
    if read is None:
        return
    # A sink that was copied elsewhere has new times, and the paths that have landed.
    kept = run.segments.rows.filter(pc.field("segment").isin(pa.array([file.path for file in files], pa.string())))
    times = [(file.feed_date, file.modified) for file in files]
    times += [tuple(pc.min(kept[name]).as_py() for name in ("feed_date", "modified_at"))] if len(kept) else []
    until = min((_written(*time) for time in times), default=commit_time(checkpoint_ts))
    if not (run.feed.storage_sink.file_expiration_days or any(each.oldest < until for each in landed.values())):
        return  # Nothing shows that files expire.
    frontier = run.frontiers.last()
    same = frontier is not None and frontier.settings == settings_digest(run.feed, taken.earlier)
    in_cut = {TableName(row.database, row.table) for row in run.last_cut_rows}
    for life in lives:
        # A table that was left out was read up to its own last file.
        is_new = life.versions[0].commit_ts > cut.checkpoint_ts
        was_read = same or is_new or life.id in cut.held_incarnations or not in_cut.isdisjoint(life.names)
        own = [landed[name].newest for name in life.names if name in landed]
        since = max([_began(life), *([read] if was_read else own)])
        if until > since and may_have_expired(run.feed, since + _WEST, checkpoint_ts) and is_taken(taken.tables, life):
            name = life.last.name
            yield Rejected(
                f"{name.database}/{name.table}/{since.isoformat()}..{until.isoformat()}",
                None,
                EXPIRED_FILES,
                f"data files that were written from {since:%Y-%m-%d %H:%M} to {until:%Y-%m-%d %H:%M} UTC may have been "
                "removed from the sink before they were read; whether the table changed in that time is not known",
                None,
                name.database,
                name.table,
            )


def _landed(run: FeedContext) -> dict[TableName, _Times]:
    """Return the times of the files that have landed, by the table that their paths name."""
    rows = run.segments.rows.filter(pc.field("kind").isin([FILE, SUMMARY]) & pc.field("table").is_valid())
    ends = [(column, end) for column in ("feed_date", "modified_at") for end in ("min", "max")]
    return {
        TableName(row["database"], row["table"]): _Times(
            _written(row["feed_date_min"], row["modified_at_min"]),
            _written(row["feed_date_max"], row["modified_at_max"]),
        )
        for row in rows.group_by(["database", "table"]).aggregate(ends).to_pylist()
    }


def _written(feed_date: str | None, modified: datetime.datetime | None) -> datetime.datetime:
    """Return a time in the order in which files were written, which is that in which they expire: the beginning of
    their date, or where they have none the store's time."""
    try:
        return datetime.datetime.fromisoformat(feed_date or "").replace(tzinfo=datetime.UTC)
    except ValueError:
        return modified or commit_time(BEGINNING)


def _began(life: Incarnation) -> datetime.datetime:
    """Return the time of a table's CREATE, load or last TRUNCATE: files that were written before do not matter."""
    return commit_time(max(life.versions[0].commit_ts, life.emptied_ts)) - _WEST


def _name(file: DataFile) -> TableName:
    return TableName(file.database, file.table)
