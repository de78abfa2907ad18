"""The schema history of a feed: the DDL of all tables in one order, and the table of each name at any time.

A table is an *incarnation* from its CREATE to its DROP. A rename gives it another name, a TRUNCATE keeps it, a CREATE
after a DROP makes a new one under the old name. An event belongs to the incarnation that had its table's name at the
event's commit-ts, and its values to the columns of the version that was valid then. At equal commit-ts row changes come
before the DDL.

This relies on these facts about TiCDC's schema files: a RENAME's file is under the new name and only its statement has
the old one; a multi-table RENAME has one file for each pair, all with one version and in no order; DROP DATABASE has
one file and none for its tables; CREATE VIEW and a restart describe every table again, with the same columns (Type 0),
which makes no version here; the first file of a table that is older than the feed may come long after later versions of
other tables.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from cdc_lakehouse.changelog.positions import BEGINNING
from cdc_lakehouse.changelog.schema import SchemaChange, TableName, TableVersion
from cdc_lakehouse.changelog.versions import LOAD, LiveTables, kind_of, versions_of

_OF_OTHER_TABLES: Final = frozenset({"rename_table", "exchange_partition", "flashback_recover", "recover_database"})


@dataclass(frozen=True, slots=True)
class Span:
    """Events of `name` with commit-ts in (`above`, `upto`] belong to `version`; `upto` is None for the current
    version."""

    version: TableVersion
    name: TableName
    above: int
    upto: int | None


@dataclass(frozen=True)
class Incarnation:
    """The versions of one table, in order, from its CREATE to its DROP."""

    id: str
    versions: tuple[TableVersion, ...]

    @property
    def last(self) -> TableVersion:
        return self.versions[-1]

    @property
    def dropped_ts(self) -> int | None:
        return self.last.commit_ts if self.last.effect == "drop" else None

    @property
    def is_replaced_by_dump(self) -> bool:
        """Whether it ended because a dump of the table was loaded."""
        return self.last.effect == "drop" and self.last.kind == LOAD

    @property
    def emptied_ts(self) -> int:
        """The commit-ts at which the whole table was last truncated; 0 when it never was."""
        return max((v.commit_ts for v in self.versions if v.effect == "empty" and not v.emptied), default=BEGINNING)

    @property
    def names(self) -> tuple[TableName, ...]:
        """All names of the table, the latest first."""
        return tuple(dict.fromkeys(version.name for version in reversed(self.versions)))

    def before(self, version: TableVersion) -> TableVersion | None:
        """Return the version before one of the incarnation's versions; None for the first."""
        place = self.versions.index(version)
        return self.versions[place - 1] if place else None

    def spans(self) -> Iterator[Span]:
        for version, following in itertools.pairwise((*self.versions, None)):
            assert version is not None
            if version.effect != "drop":
                yield Span(version, version.name, version.since, None if following is None else following.commit_ts)

    def between(self, above: int, upto: int) -> tuple[TableVersion, ...]:
        """Return the versions that began in (`above`, `upto`]."""
        return tuple(version for version in self.versions if above < version.commit_ts <= upto)

    def upto(self, commit_ts: int) -> Incarnation | None:
        """Return the incarnation with its versions up to `commit_ts`; None when it began later."""
        versions = tuple(v for v in self.versions if v.commit_ts <= commit_ts)
        return Incarnation(self.id, versions) if versions else None


class History:
    """The versions of all tables of a feed, in order, and the tables that exist after the last one."""

    def __init__(self, versions: Iterable[TableVersion] = ()) -> None:
        self._versions: list[TableVersion] = []
        self._live = LiveTables()
        self._latest: dict[TableName, int] = {}
        self.repeats: dict[str, tuple[int, TableVersion]] = {}
        """By origin, the changes that only describe a table again: their commit-ts, and the version that they describe.
        TiCDC writes one of every table at each restart of a changefeed."""
        for version in versions:
            self._record(version)

    @property
    def versions(self) -> Sequence[TableVersion]:
        return self._versions

    def described(self) -> dict[tuple[TableName, int], TableVersion]:
        """Return the version that each change of a table describes, by the table's name and the change's commit-ts."""
        found = {(version.name, version.commit_ts): version for version in self._versions}
        return {(version.name, ts): version for ts, version in self.repeats.values()} | found

    def incarnations(self) -> dict[str, Incarnation]:
        lives: dict[str, list[TableVersion]] = {}
        for version in self._versions:
            if version.incarnation:
                lives.setdefault(version.incarnation, []).append(version)
        return {
            id: Incarnation(id, tuple(sorted(life, key=lambda version: version.commit_ts)))
            for id, life in lives.items()
        }

    def is_late(self, change: SchemaChange) -> bool:
        """Whether a change comes before a recorded change that it may affect."""
        whole = self._latest.get(TableName(change.database, "").folded, 0)
        own = self._latest.get(TableName(change.database, change.table).folded, 0)
        database = None if change.table else change.database.lower()
        of_tables = [ts for name, ts in self._latest.items() if name.database == database]
        # Such a statement concerns tables that the change itself does not name.
        of_two_tables = kind_of(change) in _OF_OTHER_TABLES or "like" in change.query.lower()
        speaks_of_others = change.kind == "text" or of_two_tables
        anywhere = max(self._latest.values(), default=0) if speaks_of_others else 0
        return change.commit_ts < max(whole, own, anywhere, *of_tables)

    def apply(self, changes: Iterable[SchemaChange]) -> list[TableVersion]:
        """Record changes, which need not be in order; return the versions that they made."""
        made: list[TableVersion] = []
        ordered = sorted(changes, key=_place)
        for _, group in itertools.groupby(ordered, key=lambda change: change.commit_ts):
            for change in in_order(list(group), self._live):
                for version in versions_of(change, self._live):
                    known = self._live.get(version.name)
                    if change.kind == "columns" and known is not None and _is_same(known, version):
                        self.repeat(change.origin, change.commit_ts, known)
                        continue
                    self._record(version)
                    made.append(version)
        return made

    def repeat(self, origin: str, commit_ts: int, version: TableVersion) -> None:
        self.repeats[origin] = commit_ts, version
        name = version.name.folded
        self._latest[name] = max(commit_ts, self._latest.get(name, 0))

    def _record(self, version: TableVersion) -> None:
        self._versions.append(version)
        self._live.record(version)
        of_before = self._live.restored_from(version.incarnation) if version.restored else ()
        for name in (version.name, version.previous_name, *(each.name for each in of_before)):
            if name is not None:
                name = name.folded
                self._latest[name] = max(version.commit_ts, self._latest.get(name, 0))


def _is_same(known: TableVersion, version: TableVersion) -> bool:
    """Whether a version only says again how a table is. That of a table which is held is one of its own."""
    moves = ("emptied", "swap", "restored", "previous_name")
    of_change = ("commit_ts", "since", "kind", "effect", "query", "origin", *moves)
    same = replace(known, note=None, **{field: getattr(version, field) for field in of_change})
    return version == same and version.effect == "none" and known.hold is None


def place_of(origin: str) -> tuple[str | int, ...]:
    """Return an origin as a sort key, in which numbers, such as offsets, are in numeric order."""
    return tuple(int(part) if n % 2 else part for n, part in enumerate(re.split("([0-9]+)", origin)))


def _place(change: SchemaChange) -> tuple[Any, ...]:
    """Return the sort key of a change. Rows after a statement show its result, and so does a dump; statements from a
    log of text are in the order in which they were read."""
    rank = {"row": 1, "contradiction": 2, "load": 3}.get(change.kind, 0)
    is_text = change.kind in ("text", "repeated")
    return change.commit_ts, rank, *((place_of(change.origin),) if is_text else (change.database, change.table))


def in_order(changes: list[SchemaChange], live: LiveTables) -> list[SchemaChange]:
    """Changes of one commit-ts in the order they were carried out.

    An EXCHANGE comes after the columns of the other table, which have the same commit-ts. A pair of a multi-table
    RENAME can be executed when its source exists and its target does not. A source that is unknown is a table older
    than the feed.
    """
    changes = sorted(changes, key=lambda change: change.kind == "statement" and kind_of(change) == "exchange_partition")
    renames = [
        change for change in changes if change.kind in ("statement", "text") and kind_of(change) == "rename_table"
    ]
    if len(renames) < 2:
        return changes
    waiting = [(live.rename_source(change), change) for change in renames]
    names = live.names()
    targets = {name.folded: name for name in (TableName(change.database, change.table) for change in renames)}
    waiting = [
        (source if source is None or source in names else targets.get(source.folded, source), change)
        for source, change in waiting
    ]
    # A source that is unknown, and that no pair renames to, is older than the feed.
    names |= {source for source, _ in waiting if source is not None and source.folded not in targets}
    ordered: list[SchemaChange] = []
    while waiting:
        ready = next(
            (pair for pair in waiting if pair[0] in names and TableName(pair[1].database, pair[1].table) not in names),
            waiting[0],  # No pair can go: as they come; the history will say what does not fit.
        )
        waiting.remove(ready)
        source, change = ready
        if source is not None:
            names.discard(source)
        names.add(TableName(change.database, change.table))
        ordered.append(change)
    return [change for change in changes if change not in renames] + ordered
