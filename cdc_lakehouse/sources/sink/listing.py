"""The frontier of a sink: where files may still appear, and what was known of those places at the last listing.

It holds the directories of tables and, for each, only the data directories that may still gain files, so it stays small
however many files there are.

A listing from it finds what is new by two rules. In every directory above data files the names of subdirectories are
listed, and unknown ones are listed completely: databases, tables, versions, partitions, dates. A known data directory
is listed from its last but one file on, which shows new files, and a last file that was rewritten after a crash. It is
listed completely where that is not enough: files of several dispatchers (a new one may sort before all others), a last
file that no longer exists, and an index file that has changed without a newer file (numbers of another width, or a
directory that was started again).

The checkpoint-ts is read before, so every file that it promises exists when the walk begins. A file that was not known
then is in an unknown directory, or after the last file of a known one, or in one of these places, which are not listed:

- In a version below the table's last DDL that was known before the walk. TiCDC writes the schema file of a DDL after
  all earlier rows of the table, of all its partitions and dispatchers, and from then on writes no smaller version. What
  still comes there are rows written before, again, after a restart. Versions that only a restart or a move made stay
  on the way, as other partitions and dispatchers of the table may go on in older ones.
- In a date that is older by more than zones differ than the newest one, which must not be ahead of this machine's
  clock. Dates are the wall clock's at the flush; to go back there a server's clock must be wrong by days.
- In a directory below one that holds data files itself, as versions without dates do: `enable-partition-separator` was
  switched on, and the changefeed went on in the same version. Names there cannot be asked for without a full read.
- Before the last but one file of a directory: a file that was put back or mended. Directories that have a gap or open
  quarantine rows are given as `watched` and listed whole; of others nothing is expected.

A complete listing of the sink, which is made regularly (`source.full_listing_hours`), finds all four."""

from __future__ import annotations

import datetime
import functools
import hashlib
import json
import re
from collections import Counter, defaultdict
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

from cdc_lakehouse.changelog.positions import commit_time
from cdc_lakehouse.changelog.schema import TableName
from cdc_lakehouse.config import DateSeparator, FeedConfig, StorageSinkSource
from cdc_lakehouse.errors import SourceError, SourceUnreachableError
from cdc_lakehouse.sources.object_store import ObjectStore, StoredObject, UnreadableDirectory
from cdc_lakehouse.sources.sink.paths import DATES, DataFile, Listing, above, classify, may_be_table

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
    # Of texts, flags and numbers only: it does not depend on the names of classes and fields.
    parts = (json.dumps(part).encode() for part in (settings, others) if part)
    return "-".join(hashlib.sha256(part).hexdigest()[:12] for part in parts)


def is_of_settings(frontier: Frontier, feed: FeedConfig) -> bool:
    """Whether a frontier matches the feed's settings, whatever further names the feed processed."""
    return frontier.settings.partition("-")[0] == settings_digest(feed)


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
        return date is not None and self.oldest_date is not None and date < self.oldest_date

    def adds_to(self, older: Frontier | None) -> bool:
        """Whether it has more information than an older frontier, and so is worth a commit. With less it only saves the
        next listing some requests."""
        if older is None or (self.settings, self.unclear) != (older.settings, older.unclear):
            return True
        for table in self.tables:
            known = older.by_directory.get(table.directory)
            if known is None or (table.irregular, table.files) != (known.irregular, known.files):
                return True
            if not (set(table.places) <= set(known.places) and set(table.sequences) <= set(known.sequences)):
                return True
        return False


def next_frontier(
    older: Frontier | None, listing: Listing, source: StorageSinkSource, settings: str, now: datetime.datetime,
    ddl: Mapping[str, int], *, kept: frozenset[str] = frozenset(), unclear: bool = False,
) -> Frontier:  # fmt: skip
    """Return the frontier after a listing from an older one or, with None, of the whole sink. `ddl` has, by table
    directory, the version of the last DDL that was known before the sink was listed; `kept` are data directories to
    list again, whatever their age."""
    older = older or Frontier((), None, settings, now)
    oldest_date = _oldest_date(listing.data, source.date_separator, now)
    if older.oldest_date is not None:
        oldest_date = max(older.oldest_date, oldest_date or "")
    known = older.by_directory
    files: dict[str, dict[tuple[str, str | None], list[DataFile]]] = defaultdict(lambda: defaultdict(list))
    for file in listing.data:
        files[file.directory][_place_and_name(file)[0], file.dispatcher].append(file)
    irregular = {schema.directory for schema in listing.schemas if schema.checksum is None}
    named = {schema.directory for schema in listing.schemas if may_be_table(schema.directory, source)}
    etags = {(index.directory, index.dispatcher): index.etag for index in listing.indexes}
    for directory, dispatcher in etags:
        # For a directory whose only file is missing there is nothing else to remember.
        owners = filter({*known, *files, *named}.__contains__, above(directory)) if directory in kept else iter(())
        if (owner := next(owners, None)) is not None:
            _ = files[owner][directory.removeprefix(f"{owner}/"), dispatcher]
    tables: list[KnownTable] = []
    for directory in sorted({*known, *files, *named}):
        table = known.get(directory) or KnownTable(directory, 0, 0, False, (), ())
        is_irregular = table.irregular or directory in irregular
        table = replace(table, irregular=is_irregular, oldest_version=max(table.oldest_version, ddl.get(directory, 0)))
        tables.append(_with_new_files(table, files[directory], etags, older, kept, oldest_date))
    return Frontier(tuple(tables), oldest_date, settings, older.whole_at, unclear)


def _place_and_name(file: DataFile) -> tuple[str, str]:
    place, _, name = file.path.removeprefix(f"{file.directory}/").rpartition("/")
    return place, name


def _with_new_files(
    table: KnownTable, files: Mapping[tuple[str, str | None], list[DataFile]],
    indexes: Mapping[tuple[str, str | None], str], older: Frontier, kept: frozenset[str], oldest_date: str | None,
) -> KnownTable:  # fmt: skip
    sequences = {(sequence.place, sequence.dispatcher): sequence for sequence in table.sequences}
    places = set(table.places)
    count = table.files
    for (place, dispatcher), listed in files.items():
        before = sequences.get((place, dispatcher)) or FileSequence(place, dispatcher, 0, "", "", "", None)
        etags = {_place_and_name(file)[1]: file.etag for file in listed}
        names, number = set(etags), len(etags)
        if before.last in names:
            names |= {before.previous} - {""}
            number = max(number, before.files + sum(name > before.last for name in names))
        # Else the directory was listed completely, because its last file no longer exists.
        *_, previous, last = ["", "", *sorted(names)]
        index = indexes.get((f"{table.directory}/{place}", dispatcher), before.index_etag)
        etag = etags.get(last, "")
        sequences[place, dispatcher] = FileSequence(place, dispatcher, number, last, previous, etag, index)
        # Files of places that were dropped from the frontier are counted already.
        if before.files or not listed or older.is_new(listed[0]):
            count += number - before.files
        places.add(place.partition("/")[0])
        if listed and listed[0].physical_partition is not None:
            places.add("/".join(place.split("/")[:2]))
    stay: list[FileSequence] = []
    for (place, _), sequence in sorted(sequences.items(), key=lambda item: (item[0][0], item[0][1] or "")):
        is_past = oldest_date is not None and place.rpartition("/")[2] < oldest_date
        if f"{table.directory}/{place}" in kept or not (is_past or table.is_closed_version(place.partition("/")[0])):
            stay.append(sequence)
    versions = {sequence.place.partition("/")[0] for sequence in stay}
    places = {each for each in places if (of := each.partition("/")[0]) in versions or not table.is_closed_version(of)}
    return replace(table, files=max(count, 0), places=tuple(sorted(places)), sequences=tuple(stay))


def _oldest_date(files: Iterable[DataFile], separator: DateSeparator, now: datetime.datetime) -> str | None:
    """The first date whose directories may gain files, None where that is not known. A date is the wall clock's at the
    flush, so a directory is complete once there is one that is later by more than time zones differ. A date ahead of
    this machine's own clock is not trusted: it may have to be withdrawn."""
    form = _DATE_FORMATS.get(separator)
    if form is None:
        return None
    today = now.astimezone(datetime.UTC).strftime(form)
    for date in sorted({file.feed_date for file in files if file.feed_date is not None}, reverse=True):
        try:
            newest = datetime.datetime.strptime(min(date, today), form).replace(tzinfo=datetime.UTC)
        except ValueError:
            continue  # Digits that are no date.
        return (newest - _ZONES).strftime(form)
    return None


def may_have_expired(feed: FeedConfig, since: datetime.datetime, checkpoint_ts: int) -> bool:
    """Whether files that were written after a time can have expired: TiCDC removes those of a date once the
    checkpoint-ts is `file-expiration-days` later. Where that is not known, a feed that runs once a day is not late."""
    days = feed.storage_sink.file_expiration_days or _FEWEST_DAYS
    return commit_time(checkpoint_ts) - since >= datetime.timedelta(days)


AT_ONCE: Final = 16
"""The number of concurrent requests."""
REQUEST: Final = 50
"""The number of objects that may be listed to save one request."""

_AFTER_DIGITS: Final = ":"

_Found = StoredObject | UnreadableDirectory
_Step = partial[Iterator[Any]]
"""Makes one request, rarely two, and gives the objects that it found and the steps that follow from it."""


def list_new(store: ObjectStore, source: StorageSinkSource, frontier: Frontier, watched: Iterable[str] = ()) -> Listing:
    """List what the sink holds beyond its frontier, some of the known files, all schema files, and all of the watched
    directories. Raises `SourceUnreachableError` when the sink cannot be listed, and `SourceError` when it was written
    with another layout."""
    walk, objects = _Walk(store, source, frontier), dict[str, _Found]()

    def take(step: _Step) -> list[_Found | _Step]:
        return list(step())

    steps: list[_Step] = [partial(walk.above_tables, ""), *(partial(walk.whole, f"{path}/") for path in set(watched))]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        # One level after the other: the directories are only a few levels deep.
        while steps:
            results = [each for found in pool.map(take, steps) for each in found]
            steps = [each for each in results if isinstance(each, partial)]
            objects.update((each.path, each) for each in results if not isinstance(each, partial))
    return classify(objects.values(), source, frontier.by_directory)


class _Walk:
    def __init__(self, store: ObjectStore, source: StorageSinkSource, frontier: Frontier) -> None:
        self._store, self._source, self._frontier = store, source, frontier
        self._above = {directory for table in frontier.tables for directory in above(table.directory)}

    def whole(self, prefix: str, after: str | None = None) -> Iterator[_Found]:
        return self._store.list(prefix, after)

    def above_tables(self, prefix: str) -> Iterator[_Found | _Step]:
        for name in (yield from self._names(prefix)):
            path = f"{prefix}{name}"
            table = self._frontier.by_directory.get(path)
            if table is None:
                # Tables that lie below another one (`t/7` below `t`) are not known there, and are listed completely.
                yield partial(self.above_tables if path in self._above else self.whole, f"{path}/")
                continue
            requests = 1 + len(table.places) + len({sequence.place for sequence in table.sequences})
            is_dear = table.files > REQUEST * requests and not table.irregular
            yield partial(self.table, table) if is_dear else partial(self.whole, f"{path}/")

    def table(self, table: KnownTable) -> Iterator[_Found | _Step]:
        prefix = f"{table.directory}/"
        names = yield from self._names(prefix)
        if table.directory.endswith("/meta") or table.directory == "meta":
            # The schema files of the table's database are next to the table's own directories.
            yield partial(self.whole, prefix, f"{prefix}{_AFTER_DIGITS}")
            names = [name for name in names if name < _AFTER_DIGITS]
        for name in names:
            if name in table.places:
                yield partial(self.place, table, name)
            elif not table.is_closed_version(name):
                yield partial(self.whole, f"{prefix}{name}/")

    def place(self, table: KnownTable, place: str) -> Iterator[_Found | _Step]:
        below = [known for known in table.places if known.startswith(f"{place}/")]
        files: Counter[str] = Counter()
        for sequence in table.sequences:
            files[sequence.place] += sequence.files
        if self._source.date_separator == "none" and place in files:
            yield from self.data(table, place)
            yield from (partial(self.place, table, path) for path in below)
            return
        prefix, dates = f"{table.directory}/{place}/", list[str]()
        for name in (yield from self._names(prefix)):
            path = f"{place}/{name}"
            if path in below:
                yield partial(self.place, table, path)
            elif not re.fullmatch(DATES[self._source.date_separator], name):
                yield partial(self.whole, f"{prefix}{name}/")
            elif not self._frontier.is_closed_date(name) or path in files:
                dates.append(path)
        if dates and not below and sum(files[date] for date in dates) <= REQUEST * (len(dates) - 1):
            yield partial(self.whole, prefix, f"{table.directory}/{min(dates)}")
        else:
            yield from (partial(self.data, table, date) for date in dates)

    def data(self, table: KnownTable, place: str) -> Iterator[_Found]:
        """List a directory of data files and their index files: from the last but one file on, unless that is
        inconclusive about earlier ones."""
        prefix = f"{table.directory}/{place}/"
        known = [sequence for sequence in table.sequences if sequence.place == place]
        if len(known) != 1 or known[0].dispatcher is not None or not known[0].previous:
            return self.whole(prefix)
        found = list(self._store.list(prefix, f"{prefix}{known[0].previous}"))
        etags = {listed.path: listed.etag for listed in found if isinstance(listed, StoredObject)}
        last, index, index_etag = f"{prefix}{known[0].last}", f"{prefix}meta/", known[0].index_etag
        if last not in etags:
            return self.whole(prefix)
        changed = etags.get(f"{index}CDC.index", index_etag) != index_etag
        newer = etags[last] != known[0].etag or any(path > last and not path.startswith(index) for path in etags)
        return self.whole(prefix) if changed and not newer else iter(found)

    def _names(self, prefix: str) -> Generator[UnreadableDirectory, None, Sequence[str]]:
        try:
            return self._store.directories(prefix)
        except SourceError as error:
            if not prefix:
                raise SourceUnreachableError(error.message, advice=error.advice) from error
            if error.segment is None:
                raise  # Of the store, not of a directory.
            yield UnreadableDirectory(prefix.rstrip("/"), error.message)
            return ()
