"""Schema changes of a log whose DDL is text alone: topics and Canal servers have no schema files.

A statement is one change, without columns: `versions` applies it to the tables. A table whose CREATE is not in the log
is known from its first row on: its columns are those of the row, its types those of the message. Such *observed
columns* also reveal a column that no statement adds.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from cdc_lakehouse.changelog.ddl.statements import parse_type
from cdc_lakehouse.changelog.history import in_order, place_of
from cdc_lakehouse.changelog.mysql_types import ColumnType
from cdc_lakehouse.changelog.schema import SchemaChange, SourceColumn, TableName, TableVersion
from cdc_lakehouse.changelog.versions import LiveTables, versions_of
from cdc_lakehouse.errors import DdlError

# TiCDC sends only the name of these types: use types that hold any of their values without loss.
_WIDEST: Final = {"decimal": (65, 30), "bit": (64, None)}
_ANY: Final = {
    "varchar": ColumnType("varchar", length=255),
    "varbinary": ColumnType("varbinary", length=255),
    "binary": ColumnType("binary"),
    "enum": ColumnType("enum"),
    "set": ColumnType("set"),
    "vector": ColumnType("vector"),
}
_ADVICE: Final = (
    "what reads the log was behind with a statement and has named older values by newer columns; with Canal, switch on "
    "its table history (canal.instance.tsdb), and load the table anew"
)


@dataclass(frozen=True, slots=True)
class Statement:
    """A DDL of the log. `database` is the session's, `table` the one that the message names, both may be empty;
    `origin` is the position of the message, `time_ms` the time of execution at the source (milliseconds since 1970,
    UTC), or None."""

    commit_ts: int
    database: str
    table: str
    text: str
    origin: str
    time_ms: int | None = None


@dataclass(frozen=True, slots=True)
class ObservedColumns:
    """The columns of the first row that has them, at `commit_ts`: names with their types from the message, which may be
    empty. `key` is None where the message gives none."""

    commit_ts: int
    database: str
    table: str
    columns: tuple[tuple[str, str], ...]
    key: tuple[str, ...] | None
    origin: str


def schema_changes(
    log: Iterable[Statement | ObservedColumns],
    *,
    escapes: bool,
    types: Mapping[str, Mapping[str, str]] | None = None,
    in_table_order: bool = False,
) -> Iterator[SchemaChange]:
    """Yield the changes of a log, in order; for rows only those that change what is known.

    A row comes before a statement of the same time. A repeated statement counts once: TiCDC may send it to every
    partition of a topic, and again after a changefeed restarts. `escapes` says whether strings of the statements have
    backslash escapes; `types` are the configured types of columns, by `database.table`. `in_table_order` says that rows
    have their columns in the table's order: a row in another order holds its table.
    """
    ordered = sorted(log, key=lambda entry: (entry.commit_ts, isinstance(entry, Statement), place_of(entry.origin)))
    reader = _Log(escapes, types or {}, in_table_order)
    for _, entries in itertools.groupby(_with_later_types(ordered), key=lambda entry: entry.commit_ts):
        statements: dict[tuple[str, str, str], Statement] = {}
        for entry in entries:
            if isinstance(entry, ObservedColumns):
                yield from reader.of_columns(entry)
            else:
                statements.setdefault((entry.database, entry.table, entry.text), entry)
        yield from reader.of_statements(statements.values())


def renamed_from(name: TableName, text: str) -> TableName | None:
    """Return the old name of a table that a statement (of TiCDC) renames to `name`; None where it renames none to
    it."""
    change = SchemaChange(0, name.database, name.table, None, text, (), "", False, kind="text")
    return LiveTables().rename_source(change)


class _Log:
    def __init__(self, escapes: bool, types: Mapping[str, Mapping[str, str]], in_table_order: bool) -> None:
        self._escapes = escapes
        self._types = types
        self._in_table_order = in_table_order
        self._live = LiveTables()
        self._carried_out: set[tuple[str, str, int]] = set()
        self._shown: set[TableName] = set()
        """The names of tables that rows have shown."""

    def of_statements(self, entries: Iterable[Statement]) -> Iterator[SchemaChange]:
        """Yield the changes of the statements of one commit-ts. TiCDC sends each pair of a RENAME as a statement,
        perhaps to several topics."""
        times = {
            SchemaChange(
                each.commit_ts, each.database, each.table, None, each.text, (), f"{each.origin}#0", self._escapes,
                kind="text",
            ): each.time_ms
            for each in entries
        }  # fmt: skip
        for change in in_order(list(times), self._live):
            yield self._of_statement(change, times[change])

    def _of_statement(self, change: SchemaChange, time_ms: int | None) -> SchemaChange:
        if time_ms is not None:
            # The writer of a topic sends statements again after a failure.
            same = (change.database, change.query, time_ms)
            if same in self._carried_out and self._is_done(change):
                change = replace(change, kind="repeated")
            self._carried_out.add(same)
        self._apply(change)
        return change

    def of_columns(self, entry: ObservedColumns) -> Iterator[SchemaChange]:
        yield from self._stored_name(entry)
        known = self._live.get(TableName(entry.database, entry.table))
        configured = self._types.get(f"{entry.database}.{entry.table}", {})
        # For a known table the row decides which columns exist: a configured one may have been dropped.
        types = _configured(entry.columns, configured, all_of_them=known is None)
        key = {name.lower() for name in entry.key or ()}
        columns = tuple(
            SourceColumn(name, message_type(text), name.lower() not in key, name.lower() in key)
            for name, text in types.items()
        )
        # A row belongs to the version whose commit-ts is below its own.
        change = SchemaChange(
            entry.commit_ts - 1, entry.database, entry.table, None, "", columns, entry.origin, self._escapes, kind="row"
        )
        if self._apply(change):
            yield change
        order = None if known is None or not self._in_table_order else _other_order(known, entry)
        if order is not None:
            fault = f"rows have the columns in the order {order}: {_ADVICE}"
            origin = f"{entry.origin}#order"
            yield replace(change, columns=(), origin=origin, fault=fault, kind="contradiction")

    def _stored_name(self, entry: ObservedColumns) -> Iterator[SchemaChange]:
        """Yield the RENAME of a table that a statement has created under another spelling: with lower_case_table_names
        a server keeps names in lower case, which rows show, and logs statements as they were typed."""
        name = TableName(entry.database, entry.table)
        if name not in self._shown and name == name.folded:
            typed = [live for live in self._live.alike(name) if live not in self._shown and live != name]
            if len(typed) == 1:
                text = f"RENAME TABLE {typed[0].quoted} TO {name.quoted}"
                origin = f"{entry.origin}#name"
                change = SchemaChange(
                    entry.commit_ts - 1, name.database, name.table, None, text, (), origin, kind="text"
                )
                self._apply(change)
                yield change
        self._shown.add(name)

    def _apply(self, change: SchemaChange) -> bool:
        """Apply the change; return whether it makes a version."""
        made = False
        for version in versions_of(change, self._live):
            self._live.record(version)
            made = True
        return made

    def _is_done(self, change: SchemaChange) -> bool:
        """Whether a statement that came before has already been executed: it cannot be executed again."""
        versions = list(versions_of(change, self._live))
        effects = {version.effect for version in versions}
        exists = any(version.effect == "create" and self._live.alike(version.name) for version in versions)
        return "hold" in effects or exists


def _other_order(table: TableVersion, entry: ObservedColumns) -> str | None:
    own = [column.name.lower() for column in table.columns]
    there = {name.lower() for name, _ in entry.columns}
    row = [name for name, _ in entry.columns if name.lower() in own]
    if [name.lower() for name in row] == [name for name in own if name in there]:
        return None
    return f"{', '.join(row)}, and the table has {', '.join(column.name for column in table.columns)}"


def _with_later_types(ordered: Sequence[Statement | ObservedColumns]) -> Sequence[Statement | ObservedColumns]:
    """Add the types that only later rows show: until then a column's values are NULL, which do not show its type."""
    shown: dict[tuple[str, str, str], str] = {}
    typed: list[Statement | ObservedColumns] = []
    for entry in reversed(ordered):
        if isinstance(entry, ObservedColumns):
            places = [(entry.database, entry.table, name.lower()) for name, _ in entry.columns]
            shown |= {place: text for place, (_, text) in zip(places, entry.columns, strict=True) if text}
            columns = tuple(
                (name, text or shown.get(place, "")) for place, (name, text) in zip(places, entry.columns, strict=True)
            )
            typed.append(entry if columns == entry.columns else replace(entry, columns=columns))
        else:
            typed.append(entry)
    return typed[::-1]


def _configured(
    columns: Iterable[tuple[str, str]], configured: Mapping[str, str], *, all_of_them: bool
) -> dict[str, str]:
    """Return types by column, the configured one where there is one; names may differ in case."""
    texts = {name.lower(): text for name, text in configured.items()}
    types = {name: texts.get(name.lower(), text) for name, text in columns}
    if not all_of_them:
        return types
    seen = {name.lower() for name in types}
    return types | {name: text for name, text in configured.items() if name.lower() not in seen}


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
