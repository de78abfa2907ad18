"""One DDL, applied to what is live: the versions of tables that it makes, and their effect.

All sources go through here. Where the source shows the columns after a statement (schema files), these are the
authority and the statement only explains them; where it gives the statement alone (topics, Canal servers), `ddl.apply`
says what the columns are then. All else is the same for both.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from cdc_lakehouse.changelog import ddl_kinds, partitions
from cdc_lakehouse.changelog.column_matching import (
    MatchedColumns,
    clauses_of,
    first_columns,
    handle_key,
    match_columns,
    unique_keys_after,
)
from cdc_lakehouse.changelog.ddl import apply
from cdc_lakehouse.changelog.ddl import clauses as ddl
from cdc_lakehouse.changelog.ddl.definitions import Partitioning
from cdc_lakehouse.changelog.mysql_types import BLOBS, INTEGERS, TEXTS, ColumnType, type_change, type_text
from cdc_lakehouse.changelog.schema import (
    Column,
    Effect,
    SchemaChange,
    SourceColumn,
    Swap,
    TableName,
    TableVersion,
    UniqueKey,
)
from cdc_lakehouse.errors import DdlError

_OLDER: Final = "the table is older than the feed: rows that were not changed since are not in it"
_ROWS_ARE_BACK: Final = "rows of before are back, which are not in the log again"
_VIEWS: Final = frozenset({"create_view", "drop_view"})
_CREATES: Final = ddl.CreateTable | ddl.CreateTableLike | ddl.CreateTableAsSelect


class Live:
    """The tables that exist at a point of the history, and when a name was last given up."""

    def __init__(self) -> None:
        self._tables: dict[TableName, TableVersion] = {}
        self._vacated: dict[TableName, int] = {}
        self._births: dict[TableName, int] = {}
        self._loaded: dict[TableName, int] = {}
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

    def next_incarnation(self, name: TableName, *, loaded_ts: int | None = None) -> str:
        """Numbered under the name that it is born with: the same however often the history is worked out again. With a
        dump's position the numbers begin anew, for what the log has from before it may come to light after it."""
        since = self._loaded.get(name) if loaded_ts is None else loaded_ts
        number = self._births.get(name, 0) + 1 if loaded_ts is None else 1
        return f"{name.identity}{'' if since is None else f'@{since}'}#{number}"

    def record(self, version: TableVersion) -> None:
        if not version.incarnation:
            return
        if version.incarnation not in self._known:
            if version.kind == ddl_kinds.LOAD:
                self._loaded[version.name], self._births[version.name] = version.commit_ts, 0
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
                return self.resolve(clause.table, change)
        return None

    def resolve(self, name: ddl.TableName, change: SchemaChange) -> TableName:
        """The name of a table that a statement names. One without a database is of the session's, which schema files do
        not say: of the file's, or of the only one that has such a table."""
        if name.database is not None:
            return TableName(name.database, name.name)
        own = TableName(change.database, name.name)
        if change.kind == "text" and change.database:
            return own
        others = [live for live in self._tables if live.table == name.name]
        return others[0] if own not in self._tables and len(others) == 1 else own

    def _holds(self, name: TableName, incarnation: str) -> bool:
        live = self._tables.get(name)
        return live is not None and live.incarnation == incarnation


@dataclass(frozen=True, slots=True)
class _TableChange:
    """A change as it is of one table: `columns` are those after it, `clauses` None where the statement is not
    understood, for that `reason`."""

    source: SchemaChange
    name: TableName
    kind: str
    columns: tuple[SourceColumn, ...] = ()
    clauses: Sequence[ddl.Clause] | None = ()
    reason: str | None = None
    charset: str | None = None
    notes: tuple[str, ...] = ()


def kind_of(change: SchemaChange) -> str:
    """The kind of a change: that of its clauses, or of TiDB's number where there are none."""
    if change.kind in ("columns", "row"):
        return ddl_kinds.kind_of(ddl_kinds.SEEN)
    if change.kind == "load":
        return ddl_kinds.LOAD
    clauses, _ = clauses_of(change)
    if clauses:
        return ddl_kinds.kind_of_statement(clauses)
    return ddl_kinds.NOT_UNDERSTOOD if change.action is None else ddl_kinds.kind_of(change.action)


def versions_of(change: SchemaChange, live: Live) -> Iterator[TableVersion]:
    """The versions that a change makes, in order. `live` must hold each of them before the next one is asked for: a
    statement can rename a table twice."""
    name = TableName(change.database, change.table)
    match change.kind:
        case "row":
            yield from _of_row(change, live)
        case "contradiction":
            previous = live.get(name)
            if previous is not None:
                yield _held(previous, _TableChange(change, name, ddl_kinds.NOT_UNDERSTOOD), change.fault)
        case "repeated":
            yield _plain(change, "none", ddl_kinds.OTHER)
        case "text":
            yield from _of_text(change, live)
        case "load":
            yield from _of_load(change, live)
        case "statement" | "columns":
            yield from _of_columns(change, live)


# --- What each kind of source gives ---


def _of_columns(change: SchemaChange, live: Live) -> Iterable[TableVersion]:
    """A statement with the columns of one table after it, or these alone."""
    clauses, reason = clauses_of(change)
    kind = kind_of(change)
    shown = kind if change.action is None else ddl_kinds.kind_of(change.action)
    if not change.table:
        return _of_database(change, live, kind, shown)
    if kind in _VIEWS:
        return [_plain(change, "none", shown)]
    name = TableName(change.database, change.table)
    of_table = _TableChange(change, name, shown, change.columns, clauses, reason)
    previous = live.get(name)
    match kind:
        case "create_table":
            return _create(of_table, live)
        case "rename_table":
            return _rename(of_table, live, live.rename_source(change))
        case "drop_table":
            # A table that is older than the feed and never had a row in it: nothing to drop.
            return [_plain(change, "none", shown) if previous is None else _next(previous, of_table, "drop")]
        case _ if previous is None:
            return [_first_known(of_table, live)]
        case _:
            return _change_known(previous, of_table, kind, live)


def _change_known(previous: TableVersion, change: _TableChange, kind: str, live: Live) -> list[TableVersion]:
    """What a statement with the columns after it makes of a table that stays."""
    match kind:
        case "exchange_partition":
            return _exchange(previous, change, live)
        case "truncate_table":
            return [_next(previous, change, "empty")]
        case "drop_partition" | "truncate_partition":
            return [_empty_partitions(previous, change)]
        case _ if any(isinstance(clause, ddl.Flashback) for clause in change.clauses or ()):
            return [_held(previous, change, _ROWS_ARE_BACK)]
        case _:
            return [_alter(previous, change)]


def _of_database(change: SchemaChange, live: Live, kind: str, shown: str) -> Iterator[TableVersion]:
    match kind:
        case "create_database":
            yield _plain(change, "create", shown)
        case "drop_database":
            yield _plain(change, "drop", shown)
            for table in live.in_database(change.database):
                yield _next(table, _TableChange(change, table.name, shown), "drop")
        case _:
            yield _plain(change, "none", shown)


def _of_text(change: SchemaChange, live: Live) -> Iterator[TableVersion]:
    """A statement alone: what its clauses make of the tables that are known. Of a table that is not known the next row
    tells. A statement that is not understood holds the table that the log names with it: it may be another one now."""
    clauses, reason = clauses_of(change)
    named = TableName(change.database, change.table)
    if clauses is None:
        if (known := live.get(named)) is not None:
            yield _held(known, _TableChange(change, named, ddl_kinds.NOT_UNDERSTOOD, clauses=None), reason)
        else:
            yield _plain(change, "none", ddl_kinds.OTHER)
        return
    made = False
    for table, own in _by_table(change, live, clauses).items():
        if (previous := live.get(table)) is not None:
            made = True
            of_table = _TableChange(change, table, ddl_kinds.kind_of_statement(own), clauses=own)
            yield from _alter_by_text(previous, of_table, live)
    for clause in clauses:
        for version in _of_clause(change, live, clause):
            made = True
            yield version
    if not made:
        kind = ddl_kinds.kind_of_statement(clauses) if clauses else ddl_kinds.OTHER
        known = None if any(isinstance(clause, _CREATES) for clause in clauses) else live.get(named)
        yield _plain(change, "none", kind) if known is None else _next(known, _TableChange(change, named, kind), "none")


def _by_table(
    change: SchemaChange, live: Live, clauses: Sequence[ddl.Clause]
) -> dict[TableName, list[ddl.TableClause]]:
    found: dict[TableName, list[ddl.TableClause]] = {}
    for clause in clauses:
        if isinstance(clause, ddl.TableClause) and clause.table is not None:
            found.setdefault(live.resolve(clause.table, change), []).append(clause)
    return found


def _alter_by_text(previous: TableVersion, change: _TableChange, live: Live) -> Iterable[TableVersion]:
    match change.kind:
        case "exchange_partition":
            return _exchange(previous, change, live)
        case "drop_partition" | "truncate_partition":
            return [_empty_partitions(previous, change)]
        case _:
            after = apply.altered(previous, change.clauses or ())
            return [_alter(previous, replace(change, columns=after.columns, charset=after.charset, notes=after.notes))]


def _of_clause(change: SchemaChange, live: Live, clause: ddl.Clause) -> Iterable[TableVersion]:
    """What a clause makes that is not of an ALTER TABLE."""
    kind = ddl_kinds.kind_of_statement([clause])
    match clause:
        case ddl.CreateTable() | ddl.CreateTableLike() | ddl.CreateTableAsSelect():
            return _create_by_text(change, live, clause)
        case ddl.DropTable(table, _, False):
            return _drop_all(change, live, [live.resolve(table, change)], kind)
        case ddl.TruncateTable(table):
            previous = live.get(name := live.resolve(table, change))
            return [] if previous is None else [_next(previous, _TableChange(change, name, kind), "empty")]
        case ddl.RenameTable(table, new_name):
            source, target = live.resolve(table, change), live.resolve(new_name, change)
            if source == target or (live.get(source) is None and live.get(target) is None):
                return []
            return _rename(_TableChange(change, target, kind), live, source)
        case ddl.CreateDatabase(name) | ddl.DropDatabase(name):
            return _of_database(replace(change, database=name, table=""), live, kind, kind)
        case ddl.Flashback(_, database, tables):
            names = [live.resolve(table, change) for table in tables]
            names += [each.name for each in live.in_database(database or "")]
            held = [each for name in names or [TableName(change.database, change.table)] if (each := live.get(name))]
            return [_held(each, _TableChange(change, each.name, kind), _ROWS_ARE_BACK) for each in held]
        case _:
            return []


def _drop_all(change: SchemaChange, live: Live, names: Iterable[TableName], kind: str) -> Iterator[TableVersion]:
    for name in names:
        if (previous := live.get(name)) is not None:
            yield _next(previous, _TableChange(change, name, kind), "drop")


def _create_by_text(
    change: SchemaChange, live: Live, clause: ddl.CreateTable | ddl.CreateTableLike | ddl.CreateTableAsSelect
) -> Iterable[TableVersion]:
    name = live.resolve(clause.table, change)
    definition = clause.definition if isinstance(clause, ddl.CreateTableAsSelect) else clause
    if clause.temporary or (definition.if_not_exists and live.get(name) is not None):
        return []
    of_table = _TableChange(change, name, ddl_kinds.kind_of_statement([clause]), clauses=[clause])
    try:
        match clause:
            case ddl.CreateTable():
                after = apply.created(clause)
            case ddl.CreateTableAsSelect():
                after = apply.created_from_query(clause)
                of_table = replace(of_table, clauses=[clause.definition])
            case ddl.CreateTableLike():
                model = live.get(live.resolve(clause.source, change))
                if model is None:
                    raise DdlError(f"table {clause.source} is not known")
                after = apply.AppliedColumns(apply.columns_of(model), model.charset)
    except DdlError:
        # The first row tells what the new table is.
        previous = live.get(name)
        return [] if previous is None else [_replaced(previous, of_table)]
    return _create(replace(of_table, columns=after.columns, charset=after.charset), live)


def _of_row(change: SchemaChange, live: Live) -> Iterator[TableVersion]:
    """The columns of a row: a table's that is not known, or news of one that is."""
    name = TableName(change.database, change.table)
    of_table = _TableChange(change, name, kind_of(change), change.columns)
    previous = live.get(of_table.name)
    if previous is None:
        yield _first_known(of_table, live)
        return
    for column in change.columns:
        own = previous.named(column.name)
        if own is not None and not _same_family(own.type, column.type):
            odd = f"rows have column {column.name} as {type_text(column.type)}, and no statement in the log changes it"
            not_understood = replace(of_table, kind=ddl_kinds.NOT_UNDERSTOOD)
            yield _held(previous, not_understood, f"{odd} from {type_text(own.type)}")
            return
    new = tuple(replace(column, nullable=True) for column in change.columns if previous.named(column.name) is None)
    if new:
        yield _alter(previous, replace(of_table, columns=(*apply.columns_of(previous), *new), charset=previous.charset))


def _of_load(change: SchemaChange, live: Live) -> Iterator[TableVersion]:
    """A table as a dump has it, of which it begins anew: what the log had of it before is in the dump's rows, or was
    gone. What the dump calls it counts, for its statement says no database."""
    clauses, _ = clauses_of(change)
    clause = next((each for each in clauses or () if isinstance(each, ddl.CreateTable)), None)
    if clause is None:
        return
    after = apply.created(clause)
    virtual = {column.name.lower() for column in change.columns}
    columns = tuple(
        replace(each, virtual="configured") if each.name.lower() in virtual else each for each in after.columns
    )
    name = TableName(change.database, change.table)
    of_table = _TableChange(change, name, ddl_kinds.LOAD, columns, (clause,), None, after.charset, after.notes)
    if (previous := live.get(name)) is not None:
        yield _next(previous, of_table, "drop", note="from here on its rows are those of the dump")
    matched = first_columns(columns, (clause,))
    unique_keys = unique_keys_after((), matched.columns, (clause,))
    note = _joined(*after.notes)
    yield _born(of_table, live, matched, unique_keys, change.commit_ts, note, clause.partitioning)


def _same_family(known: ColumnType, shown: ColumnType) -> bool:
    """Whether a row can show a column of that type so. Messages are loose with integers, texts and bytes, and show what
    they do not know as text."""
    for family in (INTEGERS, TEXTS | {"json", "enum", "set", "time"}, BLOBS):
        if known.name in family and shown.name in family:
            return True
    numbers = INTEGERS | {"decimal", "year", "bit"}
    return known.name == shown.name or (known.name in numbers and shown.name in numbers) or shown.name == "longtext"


# --- What becomes of a table ---


def _create(change: _TableChange, live: Live) -> Iterator[TableVersion]:
    previous = live.get(change.name)
    if previous is not None:
        yield _replaced(previous, change)
    like = None
    unique_keys: tuple[UniqueKey, ...] = ()
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
    note = _joined(change.reason, *change.notes)
    yield _born(change, live, matched, unique_keys, change.source.commit_ts, note, partitioning)


def _keys_like(like: TableVersion, columns: Sequence[Column]) -> tuple[UniqueKey, ...]:
    """The unique keys of another table, over columns of the same names."""
    ids = {column.name.lower(): column.id for column in columns}
    names = {column.id: column.name.lower() for column in like.columns}
    return tuple(
        UniqueKey(key.name, tuple(ids[names[id]] for id in key.columns))
        for key in like.unique_keys
        if all(names[id] in ids for id in key.columns)
    )


def _replaced(previous: TableVersion, change: _TableChange) -> TableVersion:
    note = "the table was created again, though no statement in the log drops the earlier one"
    return _next(previous, change, "drop", note=note)


def _first_known(change: _TableChange, live: Live) -> TableVersion:
    """A table that is older than the feed. Its name was its own since the last table of that name gave it up."""
    matched = first_columns(change.columns, change.clauses or ())
    unique_keys = unique_keys_after((), matched.columns, change.clauses or ())
    return _born(change, live, matched, unique_keys, live.vacated(change.name), _OLDER)


def _born(
    change: _TableChange,
    live: Live,
    matched: MatchedColumns,
    unique_keys: tuple[UniqueKey, ...],
    since: int,
    note: str | None,
    partitioning: Partitioning | None = None,
) -> TableVersion:
    """The first version of an incarnation."""
    primary_key = _primary(change.columns, matched.columns)
    return TableVersion(
        commit_ts=change.source.commit_ts,
        name=change.name,
        incarnation=live.next_incarnation(
            change.name, loaded_ts=change.source.commit_ts if change.kind == ddl_kinds.LOAD else None
        ),
        kind=change.kind,
        effect="create",
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
    )


def _rename(change: _TableChange, live: Live, source: TableName | None) -> Iterator[TableVersion]:
    previous = None if source is None else live.get(source)
    if previous is None:
        if (same := live.get(change.name)) is not None:
            yield _held(same, change, f"the statement does not say which table became {change.name}")
        else:
            # With the old name: what may yet be read of it is then known to come late.
            yield replace(_first_known(replace(change, clauses=()), live), previous_name=source)
        return
    if (occupant := live.get(change.name)) is not None and occupant.incarnation != previous.incarnation:
        note = f"its name was given to {source}, though no statement in the log drops or renames it"
        yield _next(occupant, change, "drop", note=note)
    # The columns stay: a RENAME changes none, and TiCDC leaves the key out of the file of a name in between.
    yield _next(previous, change, "move", name=change.name, previous_name=previous.name)


def _alter(previous: TableVersion, change: _TableChange) -> TableVersion:
    clauses = change.clauses or ()
    matched = match_columns(previous.columns, previous.next_id, change.columns, change.clauses)
    if matched.hold is not None:
        return _held(previous, change, f"{matched.hold}: {change.reason}")
    unique_keys = unique_keys_after(previous.unique_keys, matched.columns, clauses)
    primary_key = _primary_key_after(previous, change, matched.columns)
    mattered = change.reason if matched.columns != previous.columns else None
    version = _next(
        previous,
        change,
        _effect(previous.columns, matched),
        columns=matched.columns,
        key=handle_key(primary_key, unique_keys, matched.columns),
        unique_keys=unique_keys,
        next_id=matched.next_id,
        partitioning=partitions.after(previous.partitioning, clauses),
        note=_joined(*matched.notes, *change.notes, mattered),
        primary_key=primary_key,
        charset=change.charset or previous.charset,
    )
    if version.key != previous.key and version.key:
        return replace(version, effect="rewrite", note=_joined(_rekeyed(previous, version), version.note))
    return version


def _rekeyed(previous: TableVersion, version: TableVersion) -> str:
    before = ", ".join(previous.key_names)
    return f"rows are identified by {', '.join(version.key_names)} from here on, before by {before or 'nothing'}"


def _exchange(previous: TableVersion, change: _TableChange, live: Live) -> list[TableVersion]:
    found = next((clause for clause in change.clauses or () if isinstance(clause, ddl.ExchangePartition)), None)
    if found is None:
        return [_held(previous, change, f"the statement does not say which rows change places: {change.reason}")]
    other = live.get(live.resolve(found.other, change.source))
    if other is None:
        reason = f"the rows of table {found.other.name} are not in the log: it is older than the feed"
        return [_held(previous, change, reason)]
    reason = _no_swap(previous, other, found.partition)
    if reason is not None:
        return [_held(table, change, reason) for table in (previous, other)]
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


def _empty_partitions(previous: TableVersion, change: _TableChange) -> TableVersion:
    names: tuple[str, ...] | None = ()
    for clause in change.clauses or ():
        if isinstance(clause, ddl.DropPartitions | ddl.TruncatePartitions):
            names = clause.names
    if names is None:
        return _next(previous, change, "empty")
    if not names:
        return _held(previous, change, f"the statement does not say which partitions: {change.reason}")
    if previous.partitioning is None:
        return _held(previous, change, "the table's partitions are not known: it is older than the feed")
    try:
        for name in names:
            partitions.rows_of(previous.partitioning, name)
    except DdlError as error:
        return _held(previous, change, str(error))
    scheme = partitions.after(previous.partitioning, change.clauses or ())
    return _next(previous, change, "empty", emptied=names, partitioning=scheme)


def _effect(previous: Sequence[Column], matched: MatchedColumns) -> Effect:
    old = {column.id: column for column in previous}
    kept = [(old[column.id], column) for column in matched.columns if column.id in old]
    changes = [type_change(before.type, after.type) for before, after in kept]
    if "convert" in changes:
        return "rewrite"
    same_names = [column.name for column in previous] == [column.name for column in matched.columns]
    same_ids = [column.id for column in previous] == [column.id for column in matched.columns]
    return "none" if same_ids and same_names and "widen" not in changes else "evolve"


def _primary_key_after(previous: TableVersion, change: _TableChange, columns: Sequence[Column]) -> tuple[int, ...]:
    """Some schema files leave the primary key out: it is gone only where the statement drops it."""
    shown = _primary(change.columns, columns)
    if shown or _drops_primary_key(change):
        return shown
    present = {column.id for column in columns}
    return tuple(id for id in previous.primary_key if id in present)


def _drops_primary_key(change: _TableChange) -> bool:
    for clause in change.clauses or ():
        match clause:
            case ddl.DropPrimaryKey():
                return True
            case ddl.DropIndex() | ddl.DropConstraint() if clause.drops_primary_key:
                return True
            case _:
                pass
    return change.kind == "drop_primary_key"


def _primary(shown: Sequence[SourceColumn], columns: Sequence[Column]) -> tuple[int, ...]:
    flagged = {column.name for column in shown if column.primary_key}
    return tuple(column.id for column in columns if column.name in flagged)


# --- Versions ---


def _plain(change: SchemaChange, effect: Effect, kind: str) -> TableVersion:
    """A version of nothing: a DDL of a database or a view."""
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


def _held(previous: TableVersion, change: _TableChange, reason: str | None) -> TableVersion:
    return _next(previous, change, "hold", hold=reason or "the statement cannot be carried out")


def _next(previous: TableVersion, change: _TableChange, effect: Effect, **changed: Any) -> TableVersion:
    """The version that follows: as the one before, but for what is `changed`."""
    own = {"emptied": (), "swap": None, "previous_name": None, "note": None, "hold": None, **changed}
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


def _joined(*notes: str | None) -> str | None:
    return "; ".join(note for note in notes if note) or None
