"""The frontier of a sink: where files may still appear, and what was known of those places at the last listing.

It holds the directories of tables and, for each, only the data directories that may still gain files, so it stays small
however many files there are. `incremental_listing` lists a sink from it, and explains why nothing is missed.
"""

from __future__ import annotations

import datetime
import functools
import hashlib
import json
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from cdc_lakehouse.changelog.positions import commit_time
from cdc_lakehouse.changelog.schema import TableName
from cdc_lakehouse.config import DateSeparator, FeedConfig
from cdc_lakehouse.sources.sink.paths import DataFile, IndexFile, Listing, SinkLayout, may_be_table

_DATE_FORMATS: Final[dict[DateSeparator, str]] = {"day": "%Y-%m-%d", "month": "%Y-%m"}
"""Separators for which old dates are left out. A year looks like a physical partition, and years are few."""
_ZONES: Final = datetime.timedelta(days=2)
"""Servers may be in time zones that are up to 26 hours apart: that is two dates."""
_FEWEST_DAYS: Final = 1.5


def settings_digest(feed: FeedConfig, names: Iterable[TableName] = ()) -> str:
    """Return a digest of the settings that a frontier depends on, with the names that the feed processes besides those
    of the settings. The number is raised when the meaning of a frontier changes."""
    source = feed.storage_sink
    layout = [source.date_separator, source.protocol, source.use_table_id_as_path]
    settings = [2, source.uri, *layout, feed.tables.include, feed.tables.exclude]
    others = sorted(name.identity for name in names)
    return "-".join(_digest(part) for part in (settings, others) if part)


def is_of_settings(frontier: Frontier, feed: FeedConfig) -> bool:
    """Whether a frontier matches the feed's settings, whatever further names the feed processed."""
    return frontier.settings.partition("-")[0] == settings_digest(feed)


def _digest(values: Sequence[Any]) -> str:
    """Return a digest of texts, flags and numbers only: it does not depend on the names of classes and fields."""
    return hashlib.sha256(json.dumps(values).encode()).hexdigest()[:12]


@dataclass(frozen=True, slots=True)
class FileSequence:
    """The numbered files of one directory (and dispatcher). `place` is the directory, relative to its table's. `last`
    and `previous` are the names of the last two files in byte order, empty where there is none; the etags are those of
    the last file and of the index file."""

    place: str
    dispatcher: str | None
    files: int
    last: str
    previous: str
    etag: str
    index_etag: str | None


@dataclass(frozen=True, slots=True)
class KnownTable:
    """A table's directory. `files` counts its data files; `places` are the directories of its versions and partitions.
    Versions below `oldest_version` gain no new files. An irregular table is always listed completely."""

    directory: str
    files: int
    oldest_version: int
    irregular: bool
    places: tuple[str, ...]
    sequences: tuple[FileSequence, ...]

    def is_closed_version(self, version: str) -> bool:
        """Whether a directory is a version before the last DDL, which gains no files. Timestamps have the same length
        until 2090; a shorter name may be another table (`t/7` below `t`)."""
        oldest = str(self.oldest_version)
        return version.isdecimal() and len(version) == len(oldest) and version < oldest


@dataclass(frozen=True)
class Frontier:
    """The state of a sink after a listing. `oldest_date` is the first date whose directories may gain files, None where
    that is not known. `settings` is the digest of the settings that the sink was read with, `whole_at` the time of its
    last complete listing. With `unclear` there are files that could not be classified."""

    tables: tuple[KnownTable, ...]
    oldest_date: str | None
    settings: str
    whole_at: datetime.datetime
    unclear: bool = False

    @functools.cached_property
    def by_directory(self) -> Mapping[str, KnownTable]:
        """The tables by their directories."""
        return {table.directory: table for table in self.tables}

    @functools.cached_property
    def _sequences(self) -> Mapping[tuple[str, str, str | None], FileSequence]:
        return {(t.directory, s.place, s.dispatcher): s for t in self.tables for s in t.sequences}

    def is_new(self, file: DataFile) -> bool:
        """Whether a listed file did not exist before, or not in this form, as far as the frontier shows it: files
        before it count as known."""
        table = self.by_directory.get(file.directory)
        if table is None:
            return True
        place, name = _place_and_name(file)
        known = self._sequences.get((file.directory, place, file.dispatcher))
        if known is not None:
            return name > known.last or (name == known.last and file.etag != known.etag)
        return not (table.is_closed_version(place.partition("/")[0]) or self.is_closed_date(file.feed_date))

    def is_closed_date(self, date: str | None) -> bool:
        """Whether the directories of a date gain no more files."""
        return date is not None and self.oldest_date is not None and date < self.oldest_date

    def adds_to(self, older: Frontier | None) -> bool:
        """Whether it has more information than an older frontier, and so is worth a commit. With less it only saves the
        next listing some requests."""
        if older is None or (self.settings, self.unclear) != (older.settings, older.unclear):
            return True
        return any(_adds(table, older.by_directory.get(table.directory)) for table in self.tables)


@dataclass(frozen=True)
class ListingContext:
    """The inputs of a frontier besides the listing. `ddl` has, by table directory, the version of the last DDL that was
    known before the sink was listed; `kept` are data directories to list again, whatever their age."""

    layout: SinkLayout
    settings: str
    now: datetime.datetime
    ddl: Mapping[str, int]
    kept: frozenset[str] = frozenset()
    unclear: bool = False


def next_frontier(older: Frontier | None, listing: Listing, given: ListingContext) -> Frontier:
    """Return the frontier after a listing from an older one or, with None, of the whole sink."""
    oldest_date = _oldest_date(listing.data, given)
    if older is not None and older.oldest_date is not None:
        oldest_date = max(older.oldest_date, oldest_date or "")
    known: Mapping[str, KnownTable] = {} if older is None else older.by_directory
    files: dict[str, dict[tuple[str, str | None], list[DataFile]]] = defaultdict(lambda: defaultdict(list))
    for file in listing.data:
        files[file.directory][_place_and_name(file)[0], file.dispatcher].append(file)
    indexes = {(index.directory, index.dispatcher): index for index in listing.indexes}
    irregular = {schema.directory for schema in listing.schemas if schema.checksum is None}
    named = {schema.directory for schema in listing.schemas if may_be_table(schema.directory, given.layout)}
    for index in listing.indexes:
        # For a directory whose only file is missing there is nothing else to remember.
        if index.directory in given.kept and (owner := _owner(index.directory, {*known, *files, *named})) is not None:
            _ = files[owner][index.directory.removeprefix(f"{owner}/"), index.dispatcher]
    tables: list[KnownTable] = []
    for directory in sorted({*known, *files, *named}):
        table = known.get(directory) or KnownTable(directory, 0, 0, False, (), ())
        table = _with_new_files(table, files[directory], indexes, older)
        table = replace(table, irregular=table.irregular or directory in irregular)
        tables.append(_without_closed_places(table, given, oldest_date))
    whole_at = given.now if older is None else older.whole_at
    return Frontier(tuple(tables), oldest_date, given.settings, whole_at, given.unclear)


def _place_and_name(file: DataFile) -> tuple[str, str]:
    """Return the directory of a data file, relative to its table's, and the file's name."""
    place, _, name = file.path.removeprefix(f"{file.directory}/").rpartition("/")
    return place, name


def _owner(directory: str, tables: Collection[str]) -> str | None:
    parts = directory.split("/")
    found = ("/".join(parts[:depth]) for depth in range(len(parts) - 1, 0, -1))
    return next((table for table in found if table in tables), None)


def _with_new_files(
    table: KnownTable,
    files: Mapping[tuple[str, str | None], list[DataFile]],
    indexes: Mapping[tuple[str, str | None], IndexFile],
    older: Frontier | None,
) -> KnownTable:
    sequences = {(sequence.place, sequence.dispatcher): sequence for sequence in table.sequences}
    places = set(table.places)
    count = table.files
    for (place, dispatcher), listed in files.items():
        before = sequences.get((place, dispatcher)) or FileSequence(place, dispatcher, 0, "", "", "", None)
        after = _extended(before, listed, indexes.get((f"{table.directory}/{place}", dispatcher)))
        sequences[place, dispatcher] = after
        # Files of places that were dropped from the frontier are counted already.
        if older is None or before.files or not listed or older.is_new(listed[0]):
            count += after.files - before.files
        places.add(place.partition("/")[0])
        if listed and listed[0].physical_partition is not None:
            places.add("/".join(place.split("/")[:2]))
    in_order = sorted(sequences.values(), key=lambda sequence: (sequence.place, sequence.dispatcher or ""))
    return replace(table, files=max(count, 0), places=tuple(sorted(places)), sequences=tuple(in_order))


def _extended(before: FileSequence, listed: Iterable[DataFile], index: IndexFile | None) -> FileSequence:
    etags = {_place_and_name(file)[1]: file.etag for file in listed}
    names = set(etags)
    files = len(names)
    if before.last in names:
        names |= {before.previous} - {""}
        files = max(files, before.files + sum(name > before.last for name in names))
    # Else the directory was listed completely, because its last file no longer exists.
    *_, previous, last = ["", "", *sorted(names)]
    index_etag = before.index_etag if index is None else index.etag
    return FileSequence(before.place, before.dispatcher, files, last, previous, etags.get(last, ""), index_etag)


def _without_closed_places(table: KnownTable, given: ListingContext, oldest_date: str | None) -> KnownTable:
    """Return the table without the directories that gain no more files."""
    table = replace(table, oldest_version=max(table.oldest_version, given.ddl.get(table.directory, 0)))

    def stays(sequence: FileSequence) -> bool:
        if f"{table.directory}/{sequence.place}" in given.kept:
            return True
        version, date = sequence.place.partition("/")[0], sequence.place.rpartition("/")[2]
        old = given.layout.separator in _DATE_FORMATS and oldest_date is not None and date < oldest_date
        return not (old or table.is_closed_version(version))

    sequences = tuple(filter(stays, table.sequences))
    versions = {sequence.place.partition("/")[0] for sequence in sequences}
    places = [(place, place.partition("/")[0]) for place in table.places]
    stay = tuple(place for place, version in places if version in versions or not table.is_closed_version(version))
    return replace(table, places=stay, sequences=sequences)


def _oldest_date(files: Iterable[DataFile], given: ListingContext) -> str | None:
    """The first date whose directories may gain files, None where that is not known.

    A date is the wall clock's at the flush, so a directory is complete once there is one that is later by more than
    time zones differ. A date ahead of this machine's own clock is not trusted: it may have to be withdrawn.
    """
    form = _DATE_FORMATS.get(given.layout.separator)
    if form is None:
        return None
    today = given.now.astimezone(datetime.UTC).strftime(form)
    for date in sorted({file.feed_date for file in files if file.feed_date is not None}, reverse=True):
        try:
            newest = datetime.datetime.strptime(min(date, today), form).replace(tzinfo=datetime.UTC)
        except ValueError:
            continue  # Digits that are no date.
        return (newest - _ZONES).strftime(form)
    return None


def _adds(table: KnownTable, known: KnownTable | None) -> bool:
    if known is None or (table.irregular, table.files) != (known.irregular, known.files):
        return True
    return not (set(table.places) <= set(known.places) and set(table.sequences) <= set(known.sequences))


def may_have_expired(feed: FeedConfig, since: datetime.datetime, checkpoint_ts: int) -> bool:
    """Whether files that were written after a time can have expired: TiCDC removes those of a date once the
    checkpoint-ts is `file-expiration-days` later. Where that is not known, a feed that runs once a day is not late."""
    days = feed.storage_sink.file_expiration_days or _FEWEST_DAYS
    return commit_time(checkpoint_ts) - since >= datetime.timedelta(days)
