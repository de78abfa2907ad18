"""Apply a statement to one table: its next version, or the first one of another incarnation."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from cdc_lakehouse.changelog import ddl_kinds, partitions
from cdc_lakehouse.changelog.column_matching import (
    MatchedColumns,
    first_columns,
    foreign_keys_after,
    handle_key,
    match_columns,
    unique_keys_after,
    unlogged,
)
from cdc_lakehouse.changelog.ddl import clauses as ddl
from cdc_lakehouse.changelog.ddl.clauses import Partitioning
from cdc_lakehouse.changelog.ddl.options import VERSIONED
from cdc_lakehouse.changelog.live_tables import LiveTables
from cdc_lakehouse.changelog.mysql_types import type_change
from cdc_lakehouse.changelog.schema import (
    Column,
    Effect,
    PartitionExchange,
    RestoredRows,
    SchemaChange,
    SourceColumn,
    TableName,
    TableUniqueKey,
    TableVersion,
)
from cdc_lakehouse.errors import DdlError

_NOT_DROPPED: Final = "which rows come back is not known: the log does not say what dropped the table"
_OTHER_COLUMNS: Final = "the table comes back with other columns than it had"
_OLDER: Final = "the table is older than the feed: rows that were not changed since are not in it"


@dataclass(frozen=True, slots=True)
class TableChange:
    """A change as it affects one table. `columns` are the columns after it; `clauses` is None where the statement
    cannot be parsed, for the given `reason`."""

    source: SchemaChange
    name: TableName
    kind: str
    columns: tuple[SourceColumn, ...] = ()
    clauses: Sequence[ddl.Clause] | None = ()
    reason: str | None = None
    charset: str | None = None
    notes: tuple[str, ...] = ()


def create(change: TableChange, live: LiveTables) -> Iterator[TableVersion]:
    previous = live.get(change.name)
    if previous is not None:
        yield replaced(previous, change)
    like = None
    unique_keys: tuple[TableUniqueKey, ...] = ()
    partitioning = None
    for clause in change.clauses or ():
        if isinstance(clause, ddl.CreateTableLike):
            like = live.get(live.resolve(clause.source, change.source))
        if isinstance(clause, ddl.CreateTable):
            partitioning = clause.partitioning
    matched = first_columns(change.columns, change.clauses or (), like.columns if like else ())
    if like is not None:
        unique_keys, partitioning = _keys_like(like, matched.columns), like.partitioning
    unique_keys = unique_keys_after(unique_keys, matched.columns, change.clauses or ())
    note = join_notes(change.reason, *change.notes)
    versioned = like is not None and like.versioned
    yield first_version(change, live, matched, unique_keys, change.source.commit_ts, note, partitioning, versioned)


def _keys_like(like: TableVersion, columns: Sequence[Column]) -> tuple[TableUniqueKey, ...]:
    """Return the unique keys of another table, over columns of the same names."""
    ids = {column.name.lower(): column.id for column in columns}
    names = {column.id: column.name.lower() for column in like.columns}
    return tuple(
        TableUniqueKey(key.name, tuple(ids[names[id]] for id in key.columns))
        for key in like.unique_keys
        if all(names[id] in ids for id in key.columns)
    )


def replaced(previous: TableVersion, change: TableChange) -> TableVersion:
    note = "the table was created again, though no statement in the log drops the earlier one"
    return next_version(previous, change, "drop", note=note)


def first_known(change: TableChange, live: LiveTables) -> TableVersion:
    """Return the first version of a table that is older than the feed. The name has been its own since the last table
    of that name gave it up."""
    matched = first_columns(change.columns, change.clauses or ())
    unique_keys = unique_keys_after((), matched.columns, change.clauses or ())
    return first_version(change, live, matched, unique_keys, live.vacated(change.name), _OLDER)


def first_version(
    change: TableChange,
    live: LiveTables,
    matched: MatchedColumns,
    unique_keys: tuple[TableUniqueKey, ...],
    since: int,
    note: str | None,
    partitioning: Partitioning | None = None,
    versioned: bool = False,
) -> TableVersion:
    """Return the first version of an incarnation."""
    versioned |= any(isinstance(clause, ddl.CreateTable) and clause.versioned for clause in change.clauses or ())
    primary_key = _primary(change.columns, matched.columns)
    return TableVersion(
        commit_ts=change.source.commit_ts,
        name=change.name,
        incarnation=live.next_incarnation(
            change.name, loaded_ts=change.source.commit_ts if change.kind == ddl_kinds.LOAD else None
        ),
        kind=change.kind,
        effect="hold" if versioned else "create",
        hold=VERSIONED[1] if versioned else None,
        versioned=versioned,
        query=change.source.query,
        origin=change.source.origin,
        columns=matched.columns,
        key=handle_key(primary_key, unique_keys, matched.columns),
        unique_keys=unique_keys,
        next_id=matched.next_id,
        partitioning=partitioning,
        since=since,
        note=note,
        primary_key=primary_key,
        charset=change.charset,
        foreign_keys=foreign_keys_after((), change.name.table, change.clauses or ()),
    )


def rename(change: TableChange, live: LiveTables, source: TableName | None) -> Iterator[TableVersion]:
    """Move a table to the name of the change. Where the statement does not say which table that was (a `source` of
    None), the table of the new name is held, and each that it names."""
    previous = None if source is None else live.get(source)
    if previous is None:
        same = live.get(change.name)
        reason = join_notes(f"the statement does not say which table became {change.name}", change.reason)
        if source is None:
            yield from (held_version(each, change, reason) for each in live.named_in(change.source) if each != same)
        if same is not None:
            yield held_version(same, change, reason)
        else:
            # Keep the old name: later reads about it are then recognised as late.
            first = replace(first_known(replace(change, clauses=()), live), previous_name=source)
            yield first if source is not None else replace(first, effect="hold", note=None, hold=reason)
        return
    if (occupant := live.get(change.name)) is not None and occupant.incarnation != previous.incarnation:
        note = f"its name was given to {source}, though no statement in the log drops or renames it"
        yield next_version(occupant, change, "drop", note=note)
    # Keep the columns: a RENAME changes none, and TiCDC leaves the key out of the file of an intermediate name.
    yield next_version(previous, change, "move", name=change.name, previous_name=previous.name)


def recover(change: TableChange, live: LiveTables, ended: TableVersion | None) -> Iterator[TableVersion]:
    """Begin a table with the rows that another one had when it `ended`; None where it is not known which one that was.
    The new one has the columns of a version before that, with their ids."""
    occupant = live.get(change.name)
    if occupant is not None and occupant.restored is not None and occupant.commit_ts == change.source.commit_ts:
        return  # The file of its database has brought it back.
    if occupant is not None:
        yield held_version(occupant, change, "a table of its name comes back, and no statement in the log drops it")
        return
    if ended is None:
        unknown = replace(first_known(replace(change, clauses=()), live), effect="hold", note=None)
        yield replace(unknown, hold=join_notes(_NOT_DROPPED, change.reason))
        return
    life = live.before(ended)
    after = next(_versions_shown(life, change), None)
    hold = _OTHER_COLUMNS if after is None else None
    after = alter(life[-1], replace(change, clauses=())) if after is None else after
    notes: list[str] = []
    for column in after.columns:
        if hold is None and life[-1].column(column.id) is None:
            if not column.nullable and column.initial.text is None:
                hold = f"column {column.name} is back, and rows that were written without it have no value in the log"
            else:
                notes.append(f"column {column.name} is back: rows that were written without it have its default")
    yield replace(
        after,
        name=change.name,
        incarnation=live.next_incarnation(change.name),
        effect="create" if hold is None else "hold",
        next_id=max(after.next_id, ended.next_id),
        restored=RestoredRows(ended.incarnation, ended.commit_ts),
        note=join_notes(*notes, _OLDER if life[0].note == _OLDER else None),
        hold=hold,
    )


def _versions_shown(life: Sequence[TableVersion], change: TableChange) -> Iterator[TableVersion]:
    """Yield the versions with the columns after a change, from the last one on: TiDB can bring a table back with
    columns that were dropped before it. A statement alone shows none."""
    types = {column.id: column.type for column in life[-1].columns}
    for version in reversed(life if change.columns else life[-1:]):
        shown = replace(change, clauses=())
        after = alter(version, shown) if change.columns else next_version(version, change, "none")
        same = [(column.id, column.type) for column in after.columns] == [(c.id, c.type) for c in version.columns]
        if same and all(types.get(column.id, column.type) == column.type for column in after.columns):
            yield after


def alter(previous: TableVersion, change: TableChange) -> TableVersion:
    clauses = change.clauses or ()
    matched = match_columns(previous.columns, previous.next_id, change.columns, change.clauses)
    if change.clauses is None and matched.hold is not None:
        return held_version(previous, change, f"{matched.hold}: {change.reason}")
    unique_keys = unique_keys_after(previous.unique_keys, matched.columns, clauses)
    primary_key = _primary_key_after(previous, change, matched.columns)
    versioned = [each.versioned for each in clauses if isinstance(each, ddl.UnloggedRows)]
    mattered = change.reason if matched.columns != previous.columns else None
    version = next_version(
        previous,
        change,
        _effect(previous.columns, matched),
        columns=matched.columns,
        key=handle_key(primary_key, unique_keys, matched.columns),
        unique_keys=unique_keys,
        next_id=matched.next_id,
        partitioning=partitions.after(previous.partitioning, clauses),
        note=join_notes(*matched.notes, *change.notes, mattered),
        primary_key=primary_key,
        charset=change.charset or previous.charset,
        versioned=[previous.versioned, *(each for each in versioned if each is not None)][-1],
        foreign_keys=foreign_keys_after(previous.foreign_keys, previous.name.table, clauses),
    )
    if hold := matched.hold or unlogged(previous.columns, matched.columns, clauses):
        return replace(version, effect="hold", hold=hold)
    if version.key != previous.key and version.key:
        return replace(version, effect="rewrite", note=join_notes(_rekeyed(previous, version), version.note))
    return version


def _rekeyed(previous: TableVersion, version: TableVersion) -> str:
    before = ", ".join(previous.key_names)
    return f"rows are identified by {', '.join(version.key_names)} from here on, before by {before or 'nothing'}"


def exchange(previous: TableVersion, change: TableChange, live: LiveTables) -> list[TableVersion]:
    found = next((clause for clause in change.clauses or () if isinstance(clause, ddl.ExchangePartition)), None)
    if found is None:
        return [held_version(previous, change, f"the statement does not say which rows change places: {change.reason}")]
    other = live.get(live.resolve(found.other, change.source, besides=previous.name))
    if other is None or other.incarnation == previous.incarnation:
        reason = f"the rows of table {found.other.name} are not in the log: it is older than the feed"
        return [held_version(previous, change, reason)]
    reason = _no_swap(previous, other, found.partition)
    if reason is not None:
        return [held_version(table, change, reason) for table in (previous, other)]
    swap = PartitionExchange(previous.incarnation, found.partition, other.incarnation)
    return [next_version(table, change, "swap", swap=swap) for table in (previous, other)]


def _no_swap(partitioned: TableVersion, plain: TableVersion, partition: str) -> str | None:
    """Return the reason why the rows cannot be exchanged; None when they can."""
    if partitioned.partitioning is None:
        return f"the partitions of table {partitioned.name} are not known: it is older than the feed"
    if [column.name.lower() for column in partitioned.carried] != [column.name.lower() for column in plain.carried]:
        return f"tables {partitioned.name} and {plain.name} do not have the same columns"
    try:
        partitions.rows_of(partitioned.partitioning, partition)
    except DdlError as error:
        return str(error)
    return None


def empty_partitions(previous: TableVersion, change: TableChange) -> TableVersion:
    names: tuple[str, ...] | None = ()
    for clause in change.clauses or ():
        if isinstance(clause, ddl.DropPartitions | ddl.TruncatePartitions):
            names = clause.names
    if names is None:
        return next_version(previous, change, "empty")
    if not names:
        return held_version(previous, change, f"the statement does not say which partitions: {change.reason}")
    if previous.partitioning is None:
        return held_version(previous, change, "the table's partitions are not known: it is older than the feed")
    try:
        for name in names:
            partitions.rows_of(previous.partitioning, name)
    except DdlError as error:
        return held_version(previous, change, str(error))
    scheme = partitions.after(previous.partitioning, change.clauses or ())
    return next_version(previous, change, "empty", emptied=names, partitioning=scheme)


def _effect(previous: Sequence[Column], matched: MatchedColumns) -> Effect:
    old = {column.id: column for column in previous}
    kept = [(old[column.id], column) for column in matched.columns if column.id in old]
    changes = [type_change(before.type, after.type) for before, after in kept]
    if "convert" in changes:
        return "rewrite"
    same_names = [column.name for column in previous] == [column.name for column in matched.columns]
    same_ids = [column.id for column in previous] == [column.id for column in matched.columns]
    return "none" if same_ids and same_names and "widen" not in changes else "evolve"


def _primary_key_after(previous: TableVersion, change: TableChange, columns: Sequence[Column]) -> tuple[int, ...]:
    """Return the primary key after a change. Some schema files leave it out: it is gone only where the statement drops
    it."""
    shown = _primary(change.columns, columns)
    if shown or _drops_primary_key(change):
        return shown
    present = {column.id for column in columns}
    return tuple(id for id in previous.primary_key if id in present)


def _drops_primary_key(change: TableChange) -> bool:
    return change.kind == "drop_primary_key" or any(
        isinstance(clause, ddl.DropPrimaryKey)
        or (isinstance(clause, ddl.DropIndex | ddl.DropConstraint) and clause.drops_primary_key)
        for clause in change.clauses or ()
    )


def _primary(shown: Sequence[SourceColumn], columns: Sequence[Column]) -> tuple[int, ...]:
    flagged = {column.name for column in shown if column.primary_key}
    return tuple(column.id for column in columns if column.name in flagged)


# --- Versions ---


def plain_version(change: SchemaChange, effect: Effect, kind: str) -> TableVersion:
    """Return a version that belongs to no table: for a DDL of a database or a view."""
    return TableVersion(
        commit_ts=change.commit_ts,
        name=TableName(change.database, "" if change.kind in ("text", "repeated") else change.table),
        incarnation="",
        kind=kind,
        effect=effect,
        query=change.query,
        origin=change.origin,
        since=change.commit_ts,
    )


def held_version(previous: TableVersion, change: TableChange, reason: str | None) -> TableVersion:
    return next_version(previous, change, "hold", hold=reason or "the statement cannot be carried out")


def next_version(previous: TableVersion, change: TableChange, effect: Effect, **changed: Any) -> TableVersion:
    """Return the next version: like the previous one except for the `changed` fields."""
    own = dict.fromkeys(("swap", "restored", "previous_name", "note", "hold")) | {"emptied": (), **changed}
    return replace(
        previous,
        commit_ts=change.source.commit_ts,
        since=change.source.commit_ts,
        kind=change.kind,
        effect=effect,
        query=change.source.query,
        origin=change.source.origin,
        **own,
    )


def join_notes(*notes: str | None) -> str | None:
    return "; ".join(note for note in notes if note) or None
