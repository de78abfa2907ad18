"""A listing of the sink from its frontier: it finds what is new, without listing everything that is known.

It has two rules. In every directory above data files the names of subdirectories are listed, and unknown ones are
listed completely: databases, tables, versions, partitions, dates. A known data directory is listed from its last but
one file on, which shows new files, and a last file that was rewritten after a crash. It is listed completely where that
is not enough: files of several dispatchers (a new one may sort before all others), a last file that no longer exists,
and an index file that has changed without a newer file (numbers of another width, or a directory that was started
again).

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

A complete listing of the sink, which is made regularly (`source.full_listing_hours`), finds all four.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Final

from cdc_lakehouse.errors import SourceError, SourceUnreachableError
from cdc_lakehouse.sources.object_store import ObjectStore, StoredObject, UnreadableDirectory
from cdc_lakehouse.sources.sink.listing_state import FileSequence, Frontier, KnownTable
from cdc_lakehouse.sources.sink.paths import Listing, SinkLayout, classify

AT_ONCE: Final = 16
"""The number of concurrent requests."""
REQUEST: Final = 50
"""The number of objects that may be listed to save one request."""

_DATES: Final = {
    "none": re.compile(r"(?!)"), "year": re.compile(r"\d{4}"), "month": re.compile(r"\d{4}-\d{2}"),
    "day": re.compile(r"\d{4}-\d{2}-\d{2}"),
}  # fmt: skip
_AFTER_DIGITS: Final = ":"

_Found = list[StoredObject | UnreadableDirectory]


@dataclass(frozen=True, slots=True)
class _Result:
    """The objects that a step found, and the steps that follow from it."""

    found: _Found
    steps: Sequence[Callable[[], _Result]] = ()


_Step = Callable[[], _Result]
"""A step makes one request, rarely two."""


def list_new(store: ObjectStore, layout: SinkLayout, frontier: Frontier, watched: Iterable[str] = ()) -> Listing:
    """List what the sink holds beyond its frontier, some of the known files, all schema files, and all of the watched
    directories.

    Raises `SourceUnreachableError` when the sink cannot be listed, and `SourceError` when it was written with another
    layout.
    """
    walk = _Walk(store, layout, frontier)
    steps: list[_Step] = [partial(walk.above_tables, ""), *(partial(walk.whole, f"{path}/") for path in set(watched))]
    objects: dict[str, StoredObject | UnreadableDirectory] = {}
    with ThreadPoolExecutor(AT_ONCE) as pool:
        # One level after the other: the directories are only a few levels deep.
        while steps:
            results = list(pool.map(_take, steps))
            steps = [step for result in results for step in result.steps]
            objects.update((found.path, found) for result in results for found in result.found)
    return classify(objects.values(), layout, frontier.by_directory)


def _take(step: _Step) -> _Result:
    return step()


class _Walk:
    """The steps of a listing."""

    def __init__(self, store: ObjectStore, layout: SinkLayout, frontier: Frontier) -> None:
        self._store = store
        self._layout = layout
        self._frontier = frontier
        self._above = {
            "/".join(parts[:depth])
            for table in frontier.tables
            for parts in [table.directory.split("/")]
            for depth in range(1, len(parts))
        }

    def whole(self, prefix: str, after: str | None = None) -> _Result:
        return _Result(list(self._store.list(prefix, after)))

    def above_tables(self, prefix: str) -> _Result:
        """List the root, a database, or a part of the name of a table such as `a/b`."""
        names, unreadable = self._names(prefix)
        return _Result(unreadable, [self._child(f"{prefix}{name}") for name in names])

    def _child(self, path: str) -> _Step:
        table = self._frontier.by_directory.get(path)
        if table is None and path in self._above:
            return partial(self.above_tables, f"{path}/")
        # Tables that lie below another one (`t/7` below `t`) are not known there, and are therefore listed completely.
        if table is None or table.irregular or _is_small(table):
            return partial(self.whole, f"{path}/")
        return partial(self.table, table)

    def table(self, table: KnownTable) -> _Result:
        prefix = f"{table.directory}/"
        names, unreadable = self._names(prefix)
        steps: list[_Step] = []
        if table.directory.endswith("/meta") or table.directory == "meta":
            # The schema files of the table's database are next to the table's own directories.
            steps.append(partial(self.whole, prefix, f"{prefix}{_AFTER_DIGITS}"))
            names = [name for name in names if name < _AFTER_DIGITS]
        for name in names:
            if name in table.places:
                steps.append(partial(self.place, table, name))
            elif not table.is_closed_version(name):
                steps.append(partial(self.whole, f"{prefix}{name}/"))
        return _Result(unreadable, steps)

    def place(self, table: KnownTable, place: str) -> _Result:
        """List a version, or a partition of one."""
        below = [known for known in table.places if known.startswith(f"{place}/")]
        if self._layout.separator == "none" and _sequences(table, place):
            return _Result(self.data(table, place).found, [partial(self.place, table, path) for path in below])
        names, unreadable = self._names(f"{table.directory}/{place}/")
        dates: list[str] = []
        steps: list[_Step] = []
        for name in names:
            path = f"{place}/{name}"
            if path in below:
                steps.append(partial(self.place, table, path))
            elif not _DATES[self._layout.separator].fullmatch(name):
                steps.append(partial(self.whole, f"{table.directory}/{path}/"))
            elif not self._frontier.is_closed_date(name) or _sequences(table, path):
                dates.append(path)
        if dates and not below and _known(table, dates) <= REQUEST * (len(dates) - 1):
            prefix = f"{table.directory}/{place}/"
            return _Result(unreadable, [*steps, partial(self.whole, prefix, f"{table.directory}/{min(dates)}")])
        return _Result(unreadable, [*steps, *(partial(self.data, table, date) for date in dates)])

    def data(self, table: KnownTable, place: str) -> _Result:
        """List a directory of data files and their index files."""
        prefix = f"{table.directory}/{place}/"
        known = _sequences(table, place)
        if len(known) != 1 or known[0].dispatcher is not None or not known[0].previous:
            return self.whole(prefix)
        found = list(self._store.list(prefix, f"{prefix}{known[0].previous}"))
        return self.whole(prefix) if _is_doubtful(found, prefix, known[0]) else _Result(found)

    def _names(self, prefix: str) -> tuple[list[str], _Found]:
        try:
            return list(self._store.directories(prefix)), []
        except SourceError as error:
            if not prefix:
                raise SourceUnreachableError(error.message, advice=error.advice) from error
            if error.segment is None:
                raise  # Of the store, not of a directory.
            return [], [UnreadableDirectory(prefix.rstrip("/"), error.message)]


def _sequences(table: KnownTable, place: str) -> list[FileSequence]:
    return [sequence for sequence in table.sequences if sequence.place == place]


def _known(table: KnownTable, places: Iterable[str]) -> int:
    """Return the number of known files in directories."""
    wanted = set(places)
    return sum(sequence.files for sequence in table.sequences if sequence.place in wanted)


def _is_small(table: KnownTable) -> bool:
    """Whether listing the whole table costs no more than the requests that look for what is new in it."""
    requests = 2 + len(table.places) + len({sequence.place for sequence in table.sequences})
    return table.files <= REQUEST * (requests - 1)


def _is_doubtful(found: _Found, prefix: str, known: FileSequence) -> bool:
    """Whether a directory's listing from the last but one file on is inconclusive about earlier files: then a listing
    of the whole directory is due."""
    etags = {listed.path: listed.etag for listed in found if isinstance(listed, StoredObject)}
    last = f"{prefix}{known.last}"
    if last not in etags:
        return True
    index = f"{prefix}meta/"
    changed = etags.get(f"{index}CDC.index", known.index_etag) != known.index_etag
    newer = etags[last] != known.etag or any(path > last and not path.startswith(index) for path in etags)
    return changed and not newer
