"""Apply one DDL to the tables that exist: the versions of tables that it makes, and their effect.

This is the common path of all sources. Where the source lists the columns after a statement (schema files), these
decide and the statement only explains them; where it gives the statement alone (topics, Canal servers), `ddl.apply`
computes the columns. Everything else is the same for both.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Final

from cdc_lakehouse.changelog import ddl_kinds
from cdc_lakehouse.changelog.column_matching import clauses_of, first_columns, unique_keys_after
from cdc_lakehouse.changelog.ddl import apply
from cdc_lakehouse.changelog.ddl import clauses as ddl
from cdc_lakehouse.changelog.defaults import of_schema_file
from cdc_lakehouse.changelog.live_tables import LiveTables, full_name
from cdc_lakehouse.changelog.mysql_types import BLOBS, INTEGERS, TEXTS, ColumnType, type_text
from cdc_lakehouse.changelog.schema import SchemaChange, TableName, TableVersion
from cdc_lakehouse.changelog.table_versions import (
    TableChange,
    alter,
    create,
    empty_partitions,
    exchange,
    first_known,
    first_version,
    held_version,
    join_notes,
    next_version,
    plain_version,
    recover,
    rename,
    replaced,
)
from cdc_lakehouse.errors import DdlError

_ROWS_ARE_BACK: Final = "rows are again as they were at another time, which the log does not say"
_COLUMNS_ARE_BACK: Final = "the table came back with columns that were dropped before ({}): older rows may have values"
_VIEWS: Final = frozenset({"create_view", "drop_view"})
_CREATES: Final = ddl.CreateTable | ddl.CreateTableLike | ddl.CreateTableAsSelect


def kind_of(change: SchemaChange) -> str:
    """Return the kind of a change: that of its clauses, or of TiDB's number where there are none."""
    if change.kind in ("columns", "row"):
        return ddl_kinds.kind_of(ddl_kinds.SEEN)
    if change.kind == "load":
        return ddl_kinds.LOAD
    clauses, _ = clauses_of(change)
    if clauses:
        return ddl_kinds.kind_of_statement(clauses)
    return ddl_kinds.NOT_UNDERSTOOD if change.action is None else ddl_kinds.kind_of(change.action)


def versions_of(change: SchemaChange, live: LiveTables) -> Iterator[TableVersion]:
    """Yield the versions that a change makes, in order. The caller must record each of them in `live` before it asks
    for the next one: a statement can rename a table twice."""
    name = TableName(change.database, change.table)
    match change.kind:
        case "row":
            yield from _of_row(change, live)
        case "contradiction":
            previous = live.get(name)
            if previous is not None:
                yield held_version(previous, TableChange(change, name, ddl_kinds.NOT_UNDERSTOOD), change.fault)
        case "repeated":
            yield plain_version(change, "none", ddl_kinds.OTHER)
        case "text":
            yield from _of_text(change, live)
        case "load":
            yield from _of_load(change, live)
        case "statement" | "columns":
            yield from _in_doubt(change, live)
            yield from _of_columns(change, live)


def _in_doubt(change: SchemaChange, live: LiveTables) -> Iterator[TableVersion]:
    """Hold the tables of which a name in the statement can mean any. The rest of the statement is carried out."""
    clauses, _ = clauses_of(change)
    reasons: dict[TableName, str] = {}
    for clause in clauses or ():
        names = ddl.tables_of(clause)
        # A schema file is of its table, whose name it has.
        own = change.kind == "statement" and not isinstance(clause, ddl.RenameTable)
        for name in names[1:] if own else names:
            tables = live.candidates(name, change, TableName(change.database, change.table) if own else None)
            if len(tables) > 1:
                reasons |= dict.fromkeys(
                    tables, f"the statement names {name}, which can be {' or '.join(map(str, tables))}"
                )
    kind = kind_of(change)
    for name, reason in reasons.items():
        if (table := live.get(name)) is not None:
            yield held_version(table, TableChange(change, name, kind), reason)


# --- The changes of each kind of source ---


def _of_columns(change: SchemaChange, live: LiveTables) -> Iterable[TableVersion]:
    """Apply a statement with the columns of one table after it, or these columns alone."""
    clauses, reason = clauses_of(change)
    kind = kind_of(change)
    shown = kind if change.action is None else ddl_kinds.kind_of(change.action)
    for clause in clauses or ():
        if isinstance(clause, ddl.Flashback) or (isinstance(clause, ddl.RecoverDatabase) and not change.table):
            return list(_restore(change, live, clause, kind)) or [plain_version(change, "none", shown)]
    if not change.table:
        unknown = clauses is None and (kind not in ddl_kinds.KINDS.values() or kind == "recover_database")
        return _not_understood(change, live, reason) if unknown else _of_database(change, live, kind, shown)
    if kind in _VIEWS:
        return [plain_version(change, "none", shown)]
    name = TableName(change.database, change.table)
    of_table = TableChange(change, name, shown, tuple(map(of_schema_file, change.columns)), clauses, reason)
    previous = live.get(name)
    match kind:
        case "create_table":
            return create(of_table, live)
        case "rename_table":
            return rename(of_table, live, live.rename_source(change))
        case "drop_table":
            # A table that is older than the feed and had no row in it: nothing to drop.
            return [
                plain_version(change, "none", shown) if previous is None else next_version(previous, of_table, "drop")
            ]
        case "flashback_recover" | "recover_database":
            return _restore(change, live, next(iter(clauses or ()), None), shown, of_table)
        case _ if previous is None:
            return [first_known(of_table, live)]
        case _:
            return _change_known(previous, of_table, kind, live)


def _change_known(previous: TableVersion, change: TableChange, kind: str, live: LiveTables) -> list[TableVersion]:
    """Apply a change with the columns after it to a table that continues to exist."""
    match kind:
        case "exchange_partition":
            return exchange(previous, change, live)
        case "truncate_table":
            return [next_version(previous, change, "empty")]
        case "drop_partition" | "truncate_partition":
            return [empty_partitions(previous, change)]
        case _ if change.clauses is None and kind not in ddl_kinds.KINDS.values():
            return [held_version(previous, change, change.reason)]
        case _:
            return [alter(previous, change)]


def _of_database(change: SchemaChange, live: LiveTables, kind: str, shown: str) -> Iterator[TableVersion]:
    match kind:
        case "create_database":
            yield plain_version(change, "create", shown)
        case "drop_database":
            yield plain_version(change, "drop", shown)
            databases = live.databases(change.database)
            for table in [table for database in databases for table in live.in_database(database)]:
                of_table = TableChange(change, table.name, shown)
                if len(databases) == 1:
                    yield next_version(table, of_table, "drop")
                else:
                    reason = f"the statement names {change.database}, which can be {' or '.join(databases)}"
                    yield held_version(table, of_table, reason)
        case _:
            yield plain_version(change, "none", shown)


def _of_text(change: SchemaChange, live: LiveTables) -> Iterator[TableVersion]:
    """Apply the clauses of a statement's text to the tables that are known. A table that is not known becomes known by
    its next row."""
    clauses, reason = clauses_of(change)
    if clauses is None:
        yield from _not_understood(change, live, reason)
        return
    made = False
    for version in _in_doubt(change, live):
        made = True
        yield version
    by_table: dict[TableName, list[ddl.TableClause]] = {}
    for clause in clauses:
        if isinstance(clause, ddl.TableClause) and clause.table is not None:
            by_table.setdefault(live.resolve(clause.table, change), []).append(clause)
    for table, own in by_table.items():
        if (previous := live.get(table)) is not None:
            made = True
            after, kind = apply.altered(previous, own), ddl_kinds.kind_of_statement(own)
            of_table = TableChange(change, table, kind, after.columns, own, None, after.charset, after.notes)
            yield from _change_known(previous, of_table, kind, live)
    for clause in clauses:
        for version in _of_clause(change, live, clause):
            made = True
            yield version
    if not made:
        yield _of_no_table(change, live, clauses)


def _of_no_table(change: SchemaChange, live: LiveTables, clauses: Sequence[ddl.Clause]) -> TableVersion:
    """Return the version that a statement makes which met no known table. Where the message names a known one, and the
    text another, what happened to it cannot be known."""
    kind = ddl_kinds.kind_of_statement(clauses) if clauses else ddl_kinds.OTHER
    named = TableName(change.database, change.table)
    known = None if any(isinstance(clause, _CREATES) for clause in clauses) else live.get(named)
    if known is None:
        return plain_version(change, "none", kind)
    of_table = TableChange(change, named, kind)
    names = [name for clause in clauses for name in ddl.tables_of(clause)]
    others = ", ".join(str(name) for name in names if live.resolve(name, change) != named)
    if others:
        return held_version(known, of_table, f"the statement changes {others}, and the message names this table")
    return next_version(known, of_table, "none")


def _not_understood(change: SchemaChange, live: LiveTables, reason: str | None) -> Iterable[TableVersion]:
    """Hold what a statement that cannot be parsed may have changed: the table that the log names with it, else those
    that its text names. Without one, the version belongs to no table and has the reason: it is a fault of the feed."""
    known = live.get(TableName(change.database, change.table))
    tables = live.named_in(change) if known is None else [known]
    held = [
        held_version(each, TableChange(change, each.name, ddl_kinds.NOT_UNDERSTOOD, clauses=None), reason)
        for each in tables
    ]
    plain = plain_version(change, "none", ddl_kinds.NOT_UNDERSTOOD)
    return held or [replace(plain, name=TableName(change.database, change.table), note=reason)]


def _of_clause(change: SchemaChange, live: LiveTables, clause: ddl.Clause) -> Iterable[TableVersion]:
    """Apply a clause that is not part of an ALTER TABLE."""
    kind = ddl_kinds.kind_of_statement([clause])
    match clause:
        case ddl.CreateTable() | ddl.CreateTableLike() | ddl.CreateTableAsSelect():
            return _create_by_text(change, live, clause)
        case ddl.DropTable(table, _, False):
            previous = live.get(name := live.resolve(table, change))
            return [] if previous is None else [next_version(previous, TableChange(change, name, kind), "drop")]
        case ddl.TruncateTable(table):
            previous = live.get(name := live.resolve(table, change))
            return [] if previous is None else [next_version(previous, TableChange(change, name, kind), "empty")]
        case ddl.RenameTable(table, new_name):
            source, target = live.resolve(table, change), full_name(new_name, change)
            if source == target:  # The message has the old name.
                target = TableName(new_name.database or change.database, new_name.name)
            if source == target or (live.get(source) is None and live.get(target) is None):
                return []
            return rename(TableChange(change, target, kind), live, source)
        case ddl.CreateDatabase(name) | ddl.DropDatabase(name):
            return _of_database(replace(change, database=name, table=""), live, kind, kind)
        case ddl.RecoverTable() | ddl.RecoverDatabase() | ddl.Flashback():
            return _restore(change, live, clause, kind)
        case _:
            return []


def _restore(
    change: SchemaChange, live: LiveTables, clause: ddl.Clause | None, kind: str, of_table: TableChange | None = None
) -> Iterator[TableVersion]:
    """Bring tables back that were dropped or truncated, as TiDB can; hold those whose rows are of an earlier time.
    `of_table` is what is known of the one that is back, where its columns are."""
    named = TableName(change.database, change.table)
    match clause:
        case ddl.RecoverTable(None) if not change.table:
            yield from _not_understood(change, live, "the statement names a job, and the log does not say its table")
        case ddl.RecoverTable(table, new_name):
            name = named if table is None else full_name(table, change)
            ended = live.ended(name, by_job=table is None)
            name = name if ended is None else ended.name
            name = name if new_name is None else full_name(ddl.TableRef(name.database, new_name), change)
            yield from recover(of_table or TableChange(change, name, kind), live, ended)
        case ddl.RecoverDatabase(database) if of_table is not None:
            yield from recover(of_table, live, live.ended(TableName(database, named.table), with_database=True))
        case ddl.RecoverDatabase(database, new_name):
            yield plain_version(replace(change, database=new_name or database, table=""), "create", kind)
            for ended in live.ended_with(database):
                of_table = TableChange(change, replace(ended.name, database=new_name or ended.name.database), kind)
                yield from recover(of_table, live, ended)
        case ddl.Flashback(scope, database, tables):
            names = [live.resolve(table, change) for table in tables]
            names += [each.name for one in live.databases(database or "") for each in live.in_database(one)]
            names = sorted(live.names(), key=str) if scope == "cluster" else names or [named]
            for version in [known for name in names if (known := live.get(name))]:
                yield held_version(version, TableChange(change, version.name, kind), _ROWS_ARE_BACK)
        case _:
            yield from () if of_table is None else recover(of_table, live, None)


def _create_by_text(
    change: SchemaChange, live: LiveTables, clause: ddl.CreateTable | ddl.CreateTableLike | ddl.CreateTableAsSelect
) -> Iterable[TableVersion]:
    name = full_name(clause.table, change)
    definition = clause.definition if isinstance(clause, ddl.CreateTableAsSelect) else clause
    exists = definition.if_not_exists and live.alike(name)
    if clause.temporary or exists or not name.database:
        return []
    of_table = TableChange(change, name, ddl_kinds.kind_of_statement([clause]), clauses=[clause])
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
        # The first row shows the columns of the new table.
        previous = live.get(name)
        return [] if previous is None else [replaced(previous, of_table)]
    return create(replace(of_table, columns=after.columns, charset=after.charset), live)


def _of_row(change: SchemaChange, live: LiveTables) -> Iterator[TableVersion]:
    """Apply the columns of a row: those of a table that is not known yet, or new ones of a table that is."""
    name = TableName(change.database, change.table)
    of_table = TableChange(change, name, kind_of(change), change.columns)
    previous = live.get(of_table.name)
    if previous is None:
        yield first_known(of_table, live)
        return
    for column in change.columns:
        own = previous.named(column.name)
        if own is not None and not _same_family(own.type, column.type):
            odd = f"rows have column {column.name} as {type_text(column.type)}, and no statement in the log changes it"
            not_understood = replace(of_table, kind=ddl_kinds.NOT_UNDERSTOOD)
            yield held_version(previous, not_understood, f"{odd} from {type_text(own.type)}")
            return
    new = tuple(replace(column, nullable=True) for column in change.columns if previous.named(column.name) is None)
    if not new:
        return
    after = alter(previous, replace(of_table, columns=(*apply.columns_of(previous), *new), charset=previous.charset))
    known = {column.name.lower() for each in live.restored_from(previous.incarnation) for column in each.columns}
    back = ", ".join(column.name for column in new if column.name.lower() in known)
    yield replace(after, effect="hold", hold=_COLUMNS_ARE_BACK.format(back), note=None) if back else after


def _of_load(change: SchemaChange, live: LiveTables) -> Iterator[TableVersion]:
    """Begin a table again as it is in a dump: everything in the log before it is in the dump's rows or was deleted. The
    table's name is that of the change, because the dump's statement has no database."""
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
    of_table = TableChange(change, name, ddl_kinds.LOAD, columns, (clause,), None, after.charset, after.notes)
    if (previous := live.get(name)) is not None:
        yield next_version(previous, of_table, "drop", note="from here on its rows are those of the dump")
    matched = first_columns(columns, (clause,))
    unique_keys = unique_keys_after((), matched.columns, (clause,))
    note = join_notes(*after.notes)
    yield first_version(of_table, live, matched, unique_keys, change.commit_ts, note, clause.partitioning)


def _same_family(known: ColumnType, shown: ColumnType) -> bool:
    """Whether a row can show a column of the `known` type as `shown`. Messages do not distinguish integers, texts and
    bytes precisely, and show types that they do not know as text."""
    for family in (INTEGERS, TEXTS | {"json", "enum", "set", "time"}, BLOBS):
        if known.name in family and shown.name in family:
            return True
    numbers = INTEGERS | {"decimal", "year", "bit"}
    return known.name == shown.name or (known.name in numbers and shown.name in numbers) or shown.name == "longtext"
