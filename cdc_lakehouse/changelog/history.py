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

Topics and Canal servers have no schema files: their DDL is text alone (`schema_changes`). A statement is one change,
without columns: `versions` applies it to the tables. A table whose CREATE is not in the log is known from its first row
on: its columns are those of the row, its types those of the message. Such *observed columns* also reveal a column that
no statement adds.
"""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from cdc_lakehouse.changelog.ddl.statements import parse_type
from cdc_lakehouse.changelog.mysql_types import ColumnType
from cdc_lakehouse.changelog.positions import BEGINNING
from cdc_lakehouse.changelog.schema import SchemaChange, SourceColumn, TableName, TableVersion
from cdc_lakehouse.changelog.versions import LiveTables, kind_of, versions_of
from cdc_lakehouse.errors import DdlError

# TiCDC sends only the name of these types: use types that hold any of their values without loss.
_WIDEST: Final = {"decimal": (65, 30), "bit": (64, None)}
_ANY: Final = {
    **{name: ColumnType(name, length=255) for name in ("varchar", "varbinary")},
    **{name: ColumnType(name) for name in ("binary", "enum", "set", "vector")},
}
_ADVICE: Final = (
    "what reads the log was behind with a statement and has named older values by newer columns; with Canal, switch on "
    "its table history (canal.instance.tsdb), and load the table again"
)
_OF_OTHER_TABLES: Final = ("rename_table", "exchange_partition", "flashback_recover", "recover_database")


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

    def spans(self) -> Iterator[tuple[TableVersion, int | None]]:
        """Yield the versions with rows: events of a version's name belong to it above its `since`, and up to the
        commit-ts with it; None for the current one."""
        for version, following in zip(self.versions, (*self.versions[1:], None), strict=True):
            if version.effect != "drop":
                yield version, None if following is None else following.commit_ts

    def upto(self, commit_ts: int) -> Incarnation | None:
        """Return the incarnation with its versions up to `commit_ts`; None when it began later."""
        versions = tuple(v for v in self.versions if v.commit_ts <= commit_ts)
        return Incarnation(self.id, versions) if versions else None


class History:
    """The versions of all tables of a feed, in order, and the tables that exist after the last one."""

    def __init__(self, versions: Iterable[TableVersion] = ()) -> None:
        self.versions: list[TableVersion] = []
        self.live = LiveTables()
        self._latest: dict[TableName, int] = {}
        self.repeats: dict[str, tuple[int, TableVersion]] = {}
        """By origin, the changes that only describe a table again: their commit-ts, and the version that they describe.
        TiCDC writes one of every table at each restart of a changefeed."""
        for version in versions:
            self._record(version)

    def described(self) -> dict[tuple[TableName, int], TableVersion]:
        """Return the version that each change of a table describes, by the table's name and the change's commit-ts."""
        found = {(version.name, version.commit_ts): version for version in self.versions}
        return {(version.name, ts): version for ts, version in self.repeats.values()} | found

    def incarnations(self) -> dict[str, Incarnation]:
        return {
            id: Incarnation(id, tuple(sorted(life, key=lambda version: version.commit_ts)))
            for id, life in self.live.lives.items()
        }

    def is_late(self, change: SchemaChange) -> bool:
        """Whether a change comes before a recorded change that it may affect."""
        names: Iterable[TableName] = (TableName(change.database, "").folded, change.name.folded)
        if change.kind == "text" or kind_of(change) in _OF_OTHER_TABLES or "like" in change.query.lower():
            names = self._latest  # It can concern tables that the change itself does not name.
        elif not change.table:
            names = [name for name in self._latest if name.database == change.database.lower()]
        return change.commit_ts < max((self._latest.get(name, 0) for name in names), default=0)

    def apply(self, changes: Iterable[SchemaChange]) -> list[TableVersion]:
        """Record changes, which need not be in order; return the versions that they made."""
        made: list[TableVersion] = []
        ordered = sorted(changes, key=_place)
        for _, group in itertools.groupby(ordered, key=lambda change: change.commit_ts):
            for change in in_order(list(group), self.live):
                made += self.carry_out(change)
        return made

    def carry_out(self, change: SchemaChange) -> list[TableVersion]:
        """Record a change that comes after all others; return the versions that it made."""
        made: list[TableVersion] = []
        for version in versions_of(change, self.live):
            known = self.live.get(version.name)
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
        self.versions.append(version)
        self.live.record(version)
        of_before = self.live.restored_from(version.incarnation) if version.restored else ()
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
    renames = [each for each in changes if each.kind in ("statement", "text") and kind_of(each) == "rename_table"]
    if len(renames) < 2:
        return changes
    names: set[TableName | None] = {*live}
    targets = {change.name.folded: change.name for change in renames}
    waiting = [
        (source if source is None or source in names else targets.get(source.folded, source), change)
        for source, change in zip(map(live.rename_source, renames), renames, strict=True)
    ]
    # A source that is unknown, and that no pair renames to, is older than the feed.
    names |= {source for source, _ in waiting if source is not None and source.folded not in targets}
    ordered: list[SchemaChange] = []
    while waiting:
        ready = next(
            (pair for pair in waiting if pair[0] in names and pair[1].name not in names),
            waiting[0],  # No pair can go: as they come; the history will say what does not fit.
        )
        waiting.remove(ready)
        source, change = ready
        names.discard(source)
        names.add(change.name)
        ordered.append(change)
    return [change for change in changes if change not in renames] + ordered


@dataclass(frozen=True, slots=True)
class LogEntry:
    """What the log says of tables at `commit_ts`: the `text` of a statement, or without one the columns of the first
    row that has them, names with their types from the message, which may be empty, and its `key`, None where the
    message gives none. `database` is the session's of a statement, `table` the one that the message names, both may be
    empty; `origin` is the position of the message, `time_ms` the time of a statement's execution at the source
    (milliseconds since 1970, UTC), or None."""

    commit_ts: int
    database: str
    table: str
    origin: str
    text: str | None = None
    time_ms: int | None = None
    columns: tuple[tuple[str, str], ...] = ()
    key: tuple[str, ...] | None = None


def schema_changes(
    log: Iterable[LogEntry], *, escapes: bool, types: Mapping[str, Mapping[str, str]] | None = None,
    in_table_order: bool = False, history: History | None = None,
) -> list[SchemaChange]:  # fmt: skip
    """Return the changes of a log, in order; for rows only those that change what is known. An empty `history` has the
    versions that they make afterwards.

    A row comes before a statement of the same time. A repeated statement counts once: TiCDC may send it to every
    partition of a topic, and again after a changefeed restarts. `escapes` says whether strings of the statements have
    backslash escapes; `types` are the configured types of columns, by `database.table`. `in_table_order` says that rows
    have their columns in the table's order: a row in another order holds its table.
    """
    history = History() if history is None else history
    live = history.live
    changes: list[SchemaChange] = []
    carried_out: set[tuple[str, str, int]] = set()
    shown: set[TableName] = set()
    """The names of tables that rows have shown."""

    def carry_out(change: SchemaChange) -> None:
        if history.carry_out(change) or change.kind != "row":
            changes.append(change)

    def read_statements(entries: Iterable[LogEntry]) -> None:
        """Read the statements of one commit-ts. TiCDC sends each pair of a RENAME as a statement, perhaps to several
        topics."""
        times = {
            SchemaChange(
                each.commit_ts, each.database, each.table, None, each.text or "", (), f"{each.origin}#0", escapes,
                kind="text",
            ): each.time_ms
            for each in entries
        }  # fmt: skip
        for change in in_order(list(times), live):
            time_ms = times[change]
            # The writer of a topic sends statements again after a failure. One that has been executed cannot be
            # executed again.
            same = None if time_ms is None else (change.database, change.query, time_ms)
            is_done = same in carried_out and any(
                version.effect == "hold" or (version.effect == "create" and live.alike(version.name))
                for version in list(versions_of(change, live))
            )
            carried_out.update(() if same is None else (same,))
            carry_out(replace(change, kind="repeated") if is_done else change)

    def read_columns(entry: LogEntry) -> None:
        """Read the columns of a row, which belongs to the version whose commit-ts is below its own."""
        name, ts = TableName(entry.database, entry.table), entry.commit_ts - 1
        if name not in shown and name == name.folded:
            # With lower_case_table_names a server keeps names in lower case, which rows show, and logs statements as
            # they were typed: the table that was created under another spelling is this one.
            typed = [each for each in live.alike(name) if each not in shown and each != name]
            if len(typed) == 1:
                text, origin = f"RENAME TABLE {typed[0].quoted} TO {name.quoted}", f"{entry.origin}#name"
                carry_out(SchemaChange(ts, name.database, name.table, None, text, (), origin, kind="text"))
        shown.add(name)
        known = live.get(name)
        configured: Mapping[str, str] = (types or {}).get(f"{entry.database}.{entry.table}", {})
        by_name = {column.lower(): text for column, text in configured.items()}
        of_row = {column: by_name.get(column.lower(), text) for column, text in entry.columns}
        if known is None:  # The row of a known table decides which columns exist: a configured one may be dropped.
            seen = {column.lower() for column in of_row}
            of_row |= {column: text for column, text in configured.items() if column.lower() not in seen}
        key = {column.lower() for column in entry.key or ()}
        columns = tuple(
            SourceColumn(column, message_type(text), column.lower() not in key, column.lower() in key)
            for column, text in of_row.items()
        )
        change = SchemaChange(ts, entry.database, entry.table, None, "", columns, entry.origin, escapes, kind="row")
        carry_out(change)
        if known is None or not in_table_order:
            return
        own, there = [column.name.lower() for column in known.columns], {column.lower() for column, _ in entry.columns}
        row = [column for column, _ in entry.columns if column.lower() in own]
        if [column.lower() for column in row] != [column for column in own if column in there]:
            order = f"{', '.join(row)}, and the table has {', '.join(column.name for column in known.columns)}"
            fault, origin = f"rows have the columns in the order {order}: {_ADVICE}", f"{entry.origin}#order"
            carry_out(replace(change, columns=(), origin=origin, fault=fault, kind="contradiction"))

    ordered = sorted(log, key=lambda entry: (entry.commit_ts, entry.text is not None, place_of(entry.origin)))
    for _, entries in itertools.groupby(_with_later_types(ordered), key=lambda entry: entry.commit_ts):
        statements: dict[tuple[str, str, str], LogEntry] = {}
        for entry in entries:
            if entry.text is None:
                read_columns(entry)
            else:
                statements.setdefault((entry.database, entry.table, entry.text), entry)
        read_statements(statements.values())
    return changes


def renamed_from(name: TableName, text: str) -> TableName | None:
    """Return the old name of a table that a statement (of TiCDC) renames to `name`; None where it renames none to
    it."""
    change = SchemaChange(0, name.database, name.table, None, text, (), "", False, kind="text")
    return LiveTables().rename_source(change)


def _with_later_types(ordered: Sequence[LogEntry]) -> Sequence[LogEntry]:
    """Add the types that only later rows show: until then a column's values are NULL, which do not show its type."""
    shown: dict[tuple[str, str, str], str] = {}
    typed: list[LogEntry] = []
    for entry in reversed(ordered):
        if entry.columns:
            places = [(entry.database, entry.table, name.lower()) for name, _ in entry.columns]
            shown |= {place: text for place, (_, text) in zip(places, entry.columns, strict=True) if text}
            columns = zip(places, entry.columns, strict=True)
            entry = replace(entry, columns=tuple((name, text or shown.get(at, "")) for at, (name, text) in columns))
        typed.append(entry)
    return typed[::-1]


@functools.lru_cache(maxsize=4096)
def message_type(text: str) -> ColumnType:
    """Return the type that a message gives: `int unsigned`, `varchar(20)`, `enum('a','b')`, or only a name. A type that
    is unknown or absent is kept as text."""
    folded = text.strip().lower()
    if folded in _ANY:
        return _ANY[folded]
    try:
        shown = parse_type(text)
    except DdlError:
        return ColumnType("longtext")
    if shown.length is None and shown.name in _WIDEST:
        length, scale = _WIDEST[shown.name]
        return replace(shown, length=length, scale=scale)
    return shown
