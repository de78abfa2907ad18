"""One DDL, applied to what is live: the versions of tables that it makes, and their effect."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from cdc_lakehouse.changelog import ddl_kinds, partitions
from cdc_lakehouse.changelog.column_matching import (
    Matched,
    clauses_of,
    first_columns,
    handle_key,
    match_columns,
    unique_keys_after,
)
from cdc_lakehouse.changelog.ddl import clauses as ddl
from cdc_lakehouse.changelog.ddl.definitions import Partitioning
from cdc_lakehouse.changelog.schema import (
    Column,
    Effect,
    SchemaChange,
    Swap,
    TableName,
    TableVersion,
    UniqueKey,
)
from cdc_lakehouse.changelog.type_changes import type_change
from cdc_lakehouse.errors import DdlError


class Live:
    """The tables that exist at a point of the history, and when a name was last given up."""

    def __init__(self) -> None:
        self._tables: dict[TableName, TableVersion] = {}
        self._vacated: dict[TableName, int] = {}
        self._births: dict[TableName, int] = {}
        self._known: set[str] = set()

    def get(self, name: TableName) -> TableVersion | None:
        return self._tables.get(name)

    def names(self) -> set[TableName]:
        return set(self._tables)

    def in_database(self, database: str) -> list[TableVersion]:
        return [version for name, version in sorted(self._tables.items(), key=str) if name.database == database]

    def vacated(self, name: TableName) -> int:
        """When the name was last given up; 0 when it never was."""
        return self._vacated.get(name, 0)

    def next_incarnation(self, name: TableName) -> str:
        """Numbered under the name that it is born with: the same however often the history is worked out again."""
        return f"{name.identity}#{self._births.get(name, 0) + 1}"

    def record(self, version: TableVersion) -> None:
        if not version.incarnation:
            return
        if version.incarnation not in self._known:
            self._births[version.name] = self._births.get(version.name, 0) + 1
            self._known.add(version.incarnation)
        for name in (version.previous_name, version.name if version.effect == "drop" else None):
            if name is not None and self._holds(name, version.incarnation):
                del self._tables[name]
                self._vacated[name] = version.commit_ts
        if version.effect != "drop":
            self._tables[version.name] = version

    def rename_source(self, change: SchemaChange) -> TableName | None:
        """The old name in a RENAME's statement; None when it does not say one."""
        clauses, _ = clauses_of(change)
        for clause in clauses or ():
            if isinstance(clause, ddl.RenameTable) and clause.new_name.name.lower() == change.table.lower():
                return self._resolve(clause.table, change)
        return None

    def like_source(self, clauses: Sequence[ddl.Clause], change: SchemaChange) -> TableVersion | None:
        for clause in clauses:
            if isinstance(clause, ddl.CreateTableLike):
                return self.resolve(clause.source, change)
        return None

    def resolve(self, name: ddl.TableName, change: SchemaChange) -> TableVersion | None:
        """The table that a statement names."""
        return self.get(self._resolve(name, change))

    def _resolve(self, name: ddl.TableName, change: SchemaChange) -> TableName:
        """A name without a database is of the session's, which the log does not say: of the file's, or of the only one
        that has such a table."""
        if name.database is not None:
            return TableName(name.database, name.name)
        own = TableName(change.database, name.name)
        others = [live for live in self._tables if live.table == name.name]
        return others[0] if own not in self._tables and len(others) == 1 else own

    def _holds(self, name: TableName, incarnation: str) -> bool:
        live = self._tables.get(name)
        return live is not None and live.incarnation == incarnation


def versions_of(change: SchemaChange, live: Live) -> list[TableVersion]:
    """The versions that a change makes, in order."""
    if not change.table:
        return _of_database(change, live)
    if change.action in ddl_kinds.VIEWS:
        return [_plain(change, "none")]
    name = TableName(change.database, change.table)
    clauses, reason = clauses_of(change)
    match change.action:
        case ddl_kinds.CREATE_TABLE:
            return _create(change, live, clauses, reason)
        case ddl_kinds.RENAME_TABLE:
            return _rename(change, live)
        case ddl_kinds.DROP_TABLE:
            previous = live.get(name)
            # A table that is older than the feed and never had a row in it: nothing to drop.
            return [_plain(change, "none") if previous is None else _next(previous, change, "drop")]
        case ddl_kinds.NOT_UNDERSTOOD:
            previous = live.get(name)
            hold = change.fault or reason or "the statement cannot be carried out"
            return [_plain(change, "none") if previous is None else _next(previous, change, "hold", hold=hold)]
        case _:
            previous = live.get(name)
            if previous is None:
                return [_first_sight(change, live, clauses)]
            if change.action == ddl_kinds.EXCHANGE_PARTITION:
                return _exchange(previous, change, live, clauses, reason)
            return [_alter(previous, change, clauses, reason)]


def _of_database(change: SchemaChange, live: Live) -> list[TableVersion]:
    match change.action:
        case ddl_kinds.CREATE_DATABASE:
            return [_plain(change, "create")]
        case ddl_kinds.DROP_DATABASE:
            dropped = [_next(table, change, "drop") for table in live.in_database(change.database)]
            return [_plain(change, "drop"), *dropped]
        case _:
            return [_plain(change, "none")]


def _create(
    change: SchemaChange, live: Live, clauses: Sequence[ddl.Clause] | None, reason: str | None
) -> list[TableVersion]:
    name = TableName(change.database, change.table)
    made: list[TableVersion] = []
    previous = live.get(name)
    if previous is not None:
        note = "the table was created again, though no statement in the log drops the earlier one"
        made.append(_next(previous, change, "drop", note=note))
    like = live.like_source(clauses or (), change)
    matched = first_columns(change, clauses or (), like.columns if like else ())
    unique_keys = like.unique_keys if like else ()
    partitioning = like.partitioning if like else None
    for clause in clauses or ():
        if isinstance(clause, ddl.CreateTable):
            partitioning = clause.partitioning
    unique_keys = unique_keys_after(unique_keys, matched.columns, clauses or ())
    made.append(_born(change, live, matched, unique_keys, change.commit_ts, _joined(reason), partitioning))
    return made


def _first_sight(change: SchemaChange, live: Live, clauses: Sequence[ddl.Clause] | None) -> TableVersion:
    """A table that is older than the feed. Its name was its own since the last table of that name gave it up."""
    matched = first_columns(change, clauses or ())
    unique_keys = unique_keys_after((), matched.columns, clauses or ())
    since = live.vacated(TableName(change.database, change.table))
    note = "the table is older than the feed: rows that were not changed since are not in it"
    return _born(change, live, matched, unique_keys, since, note)


def _born(
    change: SchemaChange,
    live: Live,
    matched: Matched,
    unique_keys: tuple[UniqueKey, ...],
    since: int,
    note: str | None,
    partitioning: Partitioning | None = None,
) -> TableVersion:
    """The first version of an incarnation."""
    name = TableName(change.database, change.table)
    return TableVersion(
        commit_ts=change.commit_ts,
        name=name,
        incarnation=live.next_incarnation(name),
        kind=ddl_kinds.kind_of(change.action),
        effect="create",
        query=change.query,
        origin=change.origin,
        columns=matched.columns,
        key=handle_key(_primary(change, matched.columns), unique_keys, matched.columns),
        unique_keys=unique_keys,
        next_id=matched.next_id,
        partitioning=partitioning,
        since=since,
        note=note,
    )


def _rename(change: SchemaChange, live: Live) -> list[TableVersion]:
    target = TableName(change.database, change.table)
    source = live.rename_source(change)
    previous = None if source is None else live.get(source)
    if previous is None:
        if (same := live.get(target)) is not None:
            reason = f"the statement does not say which table became {target}"
            return [_next(same, change, "hold", hold=reason)]
        # With the old name: what may yet be read of it is then known to come late.
        return [replace(_first_sight(change, live, ()), previous_name=source)]
    made: list[TableVersion] = []
    if (occupant := live.get(target)) is not None and occupant.incarnation != previous.incarnation:
        note = f"its name was given to {source}, though no statement in the log drops or renames it"
        made.append(_next(occupant, change, "drop", note=note))
    # The columns stay: a RENAME changes none, and TiCDC leaves the key out of the file of a name in between.
    made.append(_next(previous, change, "move", name=target, previous_name=previous.name))
    return made


def _alter(
    previous: TableVersion, change: SchemaChange, clauses: Sequence[ddl.Clause] | None, reason: str | None
) -> TableVersion:
    match change.action:
        case ddl_kinds.TRUNCATE_TABLE:
            return _next(previous, change, "empty")
        case ddl_kinds.DROP_PARTITION | ddl_kinds.TRUNCATE_PARTITION:
            return _empty_partitions(previous, change, clauses, reason)
        case _:
            pass
    matched = match_columns(previous.columns, previous.next_id, change, clauses)
    if matched.hold is not None:
        return _next(previous, change, "hold", hold=f"{matched.hold}: {reason}")
    unique_keys = unique_keys_after(previous.unique_keys, matched.columns, clauses or ())
    version = _next(
        previous,
        change,
        _effect(previous.columns, matched),
        columns=matched.columns,
        key=_key_after(previous, change, matched.columns, unique_keys),
        unique_keys=unique_keys,
        next_id=matched.next_id,
        partitioning=partitions.after(previous.partitioning, clauses or ()),
        note=_joined(*matched.notes, reason if reason and matched.columns != previous.columns else None),
    )
    if version.key != previous.key and version.key:
        return replace(version, effect="rewrite", note=_joined(_rekeyed(previous, version), version.note))
    return version


def _rekeyed(previous: TableVersion, version: TableVersion) -> str:
    before = ", ".join(previous.key_names)
    return f"rows are identified by {', '.join(version.key_names)} from here on, before by {before or 'nothing'}"


def _exchange(
    previous: TableVersion, change: SchemaChange, live: Live, clauses: Sequence[ddl.Clause] | None, reason: str | None
) -> list[TableVersion]:
    found = next((clause for clause in clauses or () if isinstance(clause, ddl.ExchangePartition)), None)
    if found is None:
        return [_next(previous, change, "hold", hold=f"the statement does not say which rows change places: {reason}")]
    other = live.resolve(found.other, change)
    if other is None:
        hold = f"the rows of table {found.other.name} are not in the log: it is older than the feed"
        return [_next(previous, change, "hold", hold=hold)]
    hold = _no_swap(previous, other, found.partition)
    if hold is not None:
        return [_next(table, change, "hold", hold=hold) for table in (previous, other)]
    swap = Swap(previous.incarnation, found.partition, other.incarnation)
    return [_next(table, change, "swap", swap=swap) for table in (previous, other)]


def _no_swap(partitioned: TableVersion, plain: TableVersion, partition: str) -> str | None:
    """Why the rows cannot change places; None when they can."""
    if partitioned.partitioning is None:
        return f"the partitions of table {partitioned.name} are not known: it is older than the feed"
    if [column.name.lower() for column in partitioned.carried] != [column.name.lower() for column in plain.carried]:
        return f"tables {partitioned.name} and {plain.name} do not have the same columns"
    try:
        partitions.rows_of(partitioned.partitioning, partition)
    except DdlError as error:
        return str(error)
    return None


def _empty_partitions(
    previous: TableVersion, change: SchemaChange, clauses: Sequence[ddl.Clause] | None, reason: str | None
) -> TableVersion:
    names: tuple[str, ...] | None = ()
    for clause in clauses or ():
        if isinstance(clause, ddl.DropPartitions | ddl.TruncatePartitions):
            names = clause.names
    if names is None:
        return _next(previous, change, "empty")
    if not names:
        return _next(previous, change, "hold", hold=f"the statement does not say which partitions: {reason}")
    if previous.partitioning is None:
        return _next(previous, change, "hold", hold="the table's partitions are not known: it is older than the feed")
    try:
        for name in names:
            partitions.rows_of(previous.partitioning, name)
    except DdlError as error:
        return _next(previous, change, "hold", hold=str(error))
    scheme = partitions.after(previous.partitioning, clauses or ())
    return _next(previous, change, "empty", emptied=names, partitioning=scheme)


def _effect(previous: Sequence[Column], matched: Matched) -> Effect:
    old = {column.id: column for column in previous}
    kept = [(old[column.id], column) for column in matched.columns if column.id in old]
    changes = [type_change(before.type, after.type) for before, after in kept]
    if "convert" in changes:
        return "rewrite"
    same_names = [column.name for column in previous] == [column.name for column in matched.columns]
    same_ids = [column.id for column in previous] == [column.id for column in matched.columns]
    return "none" if same_ids and same_names and "widen" not in changes else "evolve"


def _key_after(
    previous: TableVersion, change: SchemaChange, columns: Sequence[Column], unique_keys: Sequence[UniqueKey]
) -> tuple[int, ...]:
    shown = _primary(change, columns)
    had_primary = previous.key not in [unique.columns for unique in previous.unique_keys]
    if not shown and had_primary and previous.key and change.action != ddl_kinds.DROP_PRIMARY_KEY:
        present = {column.id for column in columns}
        return tuple(id for id in previous.key if id in present)
    return handle_key(shown, unique_keys, columns)


def _primary(change: SchemaChange, columns: Sequence[Column]) -> tuple[int, ...]:
    flagged = {column.name for column in change.columns if column.primary_key}
    return tuple(column.id for column in columns if column.name in flagged)


def _plain(change: SchemaChange, effect: Effect) -> TableVersion:
    """A version of nothing: a DDL of a database or a view."""
    return TableVersion(
        commit_ts=change.commit_ts,
        name=TableName(change.database, change.table),
        incarnation="",
        kind=ddl_kinds.kind_of(change.action),
        effect=effect,
        query=change.query,
        origin=change.origin,
        since=change.commit_ts,
    )


def _next(previous: TableVersion, change: SchemaChange, effect: Effect, **changed: Any) -> TableVersion:
    """The version that follows: as the one before, but for what is `changed`."""
    own = {"emptied": (), "swap": None, "previous_name": None, "note": None, "hold": None, **changed}
    return replace(
        previous,
        commit_ts=change.commit_ts,
        since=change.commit_ts,
        kind=ddl_kinds.kind_of(change.action),
        effect=effect,
        query=change.query,
        origin=change.origin,
        **own,
    )


def _joined(*notes: str | None) -> str | None:
    return "; ".join(note for note in notes if note) or None
