"""Apply one DDL to the tables that exist: the versions of tables that it makes, and their effect.

This is the common path of all sources. Where the source lists the columns after a statement (schema files), these
decide and the statement only explains them; where it gives the statement alone (topics, Canal servers), `ddl.apply`
computes the columns. Everything else is the same for both.

A version has the kind of its DDL: that of the clauses, or where they are not known of the number (TiDB's
`model.ActionType`) that schema files give it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from cdc_lakehouse.changelog.ddl import apply, partitions
from cdc_lakehouse.changelog.ddl import clauses as ddl
from cdc_lakehouse.changelog.ddl.statements import VERSIONED
from cdc_lakehouse.changelog.defaults import of_schema_file
from cdc_lakehouse.changelog.mysql_types import BLOBS, INTEGERS, LABELS, TEXTS, type_text
from cdc_lakehouse.changelog.schema import (
    Effect,
    PartitionExchange,
    RestoredRows,
    SchemaChange,
    SourceColumn,
    TableName,
    TableVersion,
)
from cdc_lakehouse.errors import DdlError

NOT_UNDERSTOOD: Final = "not_understood"
"""The kind of a statement on a known table that cannot be parsed, and of rows that contradict the known columns."""
OTHER: Final = "other"
"""The kind of a statement that changes no table."""
LOAD: Final = "load"
"""The kind of a loaded dump, which is no DDL: its rows are all that the table held at that time."""
SEEN, CREATE_DATABASE, CREATE_TABLE, TRUNCATE_TABLE, RENAME_TABLE = 0, 1, 3, 11, 14
"""Numbers of TiDB. `SEEN` is no DDL: the columns of a table at a version, as after a restart."""
KINDS: Final = {
    SEEN: "seen", CREATE_DATABASE: "create_database", 2: "drop_database", CREATE_TABLE: "create_table",
    4: "drop_table", 5: "add_column", 6: "drop_column", 7: "add_index", 8: "drop_index", 9: "foreign_key",
    10: "foreign_key", TRUNCATE_TABLE: "truncate_table", 12: "modify_column", 13: "auto_increment",
    RENAME_TABLE: "rename_table", 15: "alter_default", 16: "auto_increment", 17: "comment", 18: "rename_index",
    19: "add_partition", 20: "drop_partition", 21: "create_view", 22: "charset", 23: "truncate_partition",
    24: "drop_view", 25: "flashback_recover", 26: "alter_database", 32: "add_primary_key", 33: "drop_primary_key",
    42: "exchange_partition", 60: "create_table", 61: "multi_schema_change", 62: "flashback", 63: "recover_database",
    64: "reorganize_partition", 71: "reorganize_partition", 72: "reorganize_partition",
}  # fmt: skip


def kind_of_action(action: int) -> str:
    """Return the kind for TiDB's number."""
    return KINDS.get(action, f"action_{action}")


def kind_of_statement(clauses: Sequence[ddl.Clause]) -> str:
    """Return the kind of a statement: that of its clauses where they agree, else "multi_schema_change"."""
    kinds = {clause.kind for clause in clauses}
    return kinds.pop() if len(kinds) == 1 else "multi_schema_change"


class LiveTables(dict[TableName, TableVersion]):
    """The tables that exist at a point of the history, by name, and those before them that can come back."""

    def __init__(self) -> None:
        super().__init__()
        self._alike: dict[TableName, list[TableName]] = {}
        """The names of the tables by their folded names."""
        self.vacated: dict[TableName, int] = {}
        """The commit-ts at which each name was last given up."""
        self._births: dict[TableName, tuple[int | None, int]] = {}
        """By first name, the commit-ts of the last load, and how many incarnations began since."""
        self.lives: dict[str, list[TableVersion]] = {}
        """The versions of each incarnation."""
        self._ended: dict[TableName, list[TableVersion]] = {}
        """By folded name, the versions that took all rows of a table away."""
        self._restored = set[RestoredRows | None]()
        self._dropped: dict[str, int] = {}
        """The commit-ts at which each database, by its name in lower case, was last dropped."""

    def in_database(self, database: str) -> list[TableVersion]:
        return [self[name] for name in sorted(self, key=str) if name.database == database]

    def named_in(self, change: SchemaChange) -> list[TableVersion]:
        """Return the tables whose names occur in a statement, which need not be understood: with their databases, or
        where they are in the change's own, which it may not give."""

        def occurs(name: str) -> bool:
            word = re.escape(name.replace("`", "``"))
            return re.search(rf"(?<![\w$-]){word}(?![\w$-])", change.query, re.IGNORECASE) is not None

        tables = [self[name] for name in sorted(self, key=str) if occurs(name.table)]
        own = change.database
        return [each for each in tables if not own or each.name.database == own or occurs(each.name.database)]

    def next_incarnation(self, name: TableName, *, loaded_ts: int | None = None) -> str:
        """Return the id of the next incarnation, numbered by its first name: it is the same whenever the history is
        computed. After a dump's position the numbers begin again at 1, because changes of the log from before it may be
        found after it."""
        since, births = self._births.get(name, (None, 0)) if loaded_ts is None else (loaded_ts, 0)
        return f"{name.identity}{'' if since is None else f'@{since}'}#{births + 1}"

    def record(self, version: TableVersion) -> None:
        if not version.incarnation:
            if version.kind == "drop_database":
                self._dropped[version.name.database.lower()] = version.commit_ts
            return
        if version.incarnation not in self.lives:
            since, births = self._births.get(version.name, (None, 0))
            self._births[version.name] = (version.commit_ts, 1) if version.kind == LOAD else (since, births + 1)
        self.lives.setdefault(version.incarnation, []).append(version)
        self._restored.add(version.restored)
        if version.effect == "drop" or (version.effect == "empty" and version.kind == "truncate_table"):
            self._ended.setdefault(version.name.folded, []).append(version)
        for name in (version.previous_name, version.name if version.effect == "drop" else None):
            if name is not None and name in self and self[name].incarnation == version.incarnation:
                del self[name]
                self._alike[name.folded].remove(name)
                self.vacated[name] = version.commit_ts
        if version.effect != "drop":
            if version.name not in self:
                self._alike.setdefault(version.name.folded, []).append(version.name)
            self[version.name] = version

    def restored_from(self, incarnation: str) -> Sequence[TableVersion]:
        """Return the versions of what a table was before it came back; none where it did not."""
        restored = self.lives[incarnation][0].restored
        return () if restored is None else self.lives[restored.incarnation]

    def ended(self, name: TableName, *, by_job: bool = False, with_database: bool = False) -> TableVersion | None:
        """Return the DROP or TRUNCATE whose table a RECOVER of that name brings back: TiDB takes the last one. None
        where that is not certain. The number of a job can be that of any of them."""
        found = [each for each in self._ended.get(name.folded, ()) if (each.kind == "drop_database") == with_database]
        free = [each for each in found if RestoredRows(each.incarnation, each.commit_ts) not in self._restored]
        if not free or (len(free) > 1 if by_job else free[-1] is not found[-1]):
            return None
        return free[-1] if free[-1].kind in ("drop_table", "drop_database", "truncate_table") else None

    def ended_with(self, database: str) -> list[TableVersion]:
        """Return the tables that the last DROP of a database dropped, and that are not back."""
        names = [name for name in sorted(self._ended, key=str) if name.database == database.lower()]
        dropped = [each for name in names if (each := self.ended(name, with_database=True))]
        return [each for each in dropped if each.commit_ts == self._dropped.get(database.lower())]

    def rename_source(self, change: SchemaChange) -> TableName | None:
        """Return the old name in a RENAME's statement; None when it has none."""
        for clause in change.clauses or ():
            if isinstance(clause, ddl.RenameTable) and clause.new_name.name.lower() == change.table.lower():
                return self.resolve(clause.table, change)
        return None

    def resolve(self, name: ddl.TableRef, change: SchemaChange, besides: TableName | None = None) -> TableName:
        """Return the full name of a table in a statement that also names `besides`: that of the live table that it
        means, else as the statement has it."""
        means = self.candidates(name, change, besides)
        return means[0] if len(means) == 1 else full_name(name, change)

    def candidates(
        self, name: ddl.TableRef, change: SchemaChange, besides: TableName | None = None
    ) -> Sequence[TableName]:
        """Return the live tables that a name in a statement can mean: the one of exactly that name, else those whose
        names differ in letter case alone. A name without a database belongs to the session's, which schema files do not
        record: it is the file's database, or one that has such a table."""
        typed = TableName(change.database if name.database is None else name.database, name.name)
        spelled = next((each for each in (typed, full_name(name, change)) if each in self), typed)
        found = [live for live in self.alike(spelled) if live != besides]
        if found or name.database is not None:
            return found
        # Where a RENAME gives a table without a database a name in the change's database, this is not the session's:
        # Canal names the new table there.
        moves = any(
            isinstance(clause, ddl.RenameTable)
            and clause.table.database is None
            and (clause.new_name.database or "").lower() == change.database.lower()
            for clause in change.clauses or ()
        )
        if change.kind == "text" and change.database and not moves:
            return found
        table = name.name.lower()
        elsewhere = [live for live in self if live.table.lower() == table and live != besides]
        return [live for live in elsewhere if live.table == name.name] or elsewhere

    def alike(self, name: TableName) -> Sequence[TableName]:
        """Return the live table of a name, else those whose names differ from it in letter case alone."""
        return [name] if name in self else self._alike.get(name.folded, ())

    def databases(self, name: str) -> list[str]:
        """Return the databases with live tables that a name in a statement can mean."""
        known = {live.database for live in self if live.database.lower() == name.lower()}
        return [name] if name in known else sorted(known)


def full_name(name: ddl.TableRef, change: SchemaChange) -> TableName:
    """Return a name in a statement with its database, spelled as the message spells it: statements have names as they
    were typed."""
    typed = TableName(change.database if name.database is None else name.database, name.name)
    return change.name if typed.folded == change.name.folded else typed


_NOT_DROPPED: Final = "which rows come back is not known: the log does not say what dropped the table"
_OTHER_COLUMNS: Final = "the table comes back with other columns than it had"
_OF_QUERY: Final = "the statement takes columns and rows from a query, which are not in the log"
_OLDER: Final = "the table is known from here on: rows that it had before, and that do not change, are not in it"


@dataclass(frozen=True, slots=True)
class TableChange:
    """A change as it affects one table. `columns` are the columns after it, as the source lists them; None where the
    clauses alone say which they are. `clauses` is None where the statement cannot be parsed."""

    source: SchemaChange
    name: TableName
    kind: str
    columns: tuple[SourceColumn, ...] | None = ()
    clauses: Sequence[ddl.Clause] | None = ()

    @property
    def table_clauses(self) -> Sequence[ddl.Clause]:
        """The clauses, with those of a CREATE TABLE in its place."""
        parts = (each.clauses if isinstance(each, ddl.CreateTable) else (each,) for each in self.clauses or ())
        return [clause for part in parts for clause in part]


def create(change: TableChange, live: LiveTables) -> Iterator[TableVersion]:
    definition = next((each for each in change.clauses or () if isinstance(each, ddl.CreateTable)), None)
    model = None if definition is None else definition.like
    like = None if model is None else live.get(live.resolve(model, change.source))
    if (previous := live.get(change.name)) is not None:
        note = "the table was created again, though no statement in the log drops the earlier one"
        yield next_version(previous, change, "drop", note=note)
    if model is None or like is not None or change.columns is not None:  # Else its first row shows the columns.
        yield first_version(change, live, change.source.commit_ts, change.source.not_parsed, like)


def first_known(change: TableChange, live: LiveTables) -> TableVersion:
    """Return the first version of a table that is older than the feed. The name has been its own since the last table
    of that name gave it up."""
    first = first_version(replace(change, columns=change.columns or ()), live, live.vacated.get(change.name, 0), _OLDER)
    return replace(first, partitioning=None)


def first_version(
    change: TableChange, live: LiveTables, since: int, note: str | None, like: TableVersion | None = None
) -> TableVersion:
    """Return the first version of an incarnation, created LIKE another table."""
    is_load = change.kind == LOAD
    incarnation = live.next_incarnation(change.name, loaded_ts=change.source.commit_ts if is_load else None)
    new = plain_version(change.source, "create", change.kind)
    if like is not None:
        # It has no rows yet, and the source numbers its columns anew.
        columns = tuple(replace(each, initial=None, source_id=None) for each in like.columns)
        new = next_version(like, change, "create", columns=columns, foreign_keys=())
    new = replace(new, name=change.name, incarnation=incarnation, since=since)
    table = apply.table_after(new, change.table_clauses, change.columns, is_new=True)
    has_query = any(isinstance(each, ddl.CreateTable) and each.has_query for each in change.clauses or ())
    hold = VERSIONED[1] if table.versioned else _OF_QUERY if has_query else None
    charset = table.charset if change.columns is None or is_load else new.charset
    return replace(table, effect="create" if hold is None else "hold", note=note, hold=hold, charset=charset)


def rename(change: TableChange, live: LiveTables, source: TableName | None) -> Iterator[TableVersion]:
    """Move a table to the name of the change. Where the statement does not say which table that was (a `source` of
    None), the table of the new name is held, and each that it names."""
    previous = None if source is None else live.get(source)
    if previous is None:
        same = live.get(change.name)
        reason = join_notes(f"the statement does not say which table became {change.name}", change.source.not_parsed)
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
        yield replace(unknown, hold=join_notes(_NOT_DROPPED, change.source.not_parsed))
        return
    life = live.lives[ended.incarnation]
    life, hold, shown = life[: life.index(ended)], None, replace(change, clauses=())
    types = {column.id: column.type for column in life[-1].columns}
    # TiDB can bring a table back with columns that were dropped before it. A statement alone shows none.
    for version in reversed(life if change.columns else life[-1:]):
        after = alter(version, shown) if change.columns else next_version(version, change, "none")
        same = [(column.id, column.type) for column in after.columns] == [(c.id, c.type) for c in version.columns]
        if same and all(types.get(column.id, column.type) == column.type for column in after.columns):
            break
    else:
        after, hold = alter(life[-1], shown), _OTHER_COLUMNS
    notes: list[str] = []
    for column in after.columns:
        if hold is None and life[-1].column(column.id) is None:
            if not column.nullable and column.initial is None:
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


def alter(previous: TableVersion, change: TableChange) -> TableVersion:
    table = apply.table_after(
        previous,
        change.table_clauses,
        change.columns,
        is_understood=change.clauses is not None,
        drops_key=change.kind == "drop_primary_key",
    )
    charset = table.charset if change.columns is None else previous.charset
    reason = change.source.not_parsed
    mattered = reason if table.columns != previous.columns else None
    version = next_version(table, change, table.effect, note=join_notes(table.note, mattered), charset=charset)
    if table.hold is not None:
        return replace(version, hold=table.hold if reason is None else f"{table.hold}: {reason}")
    if version.key != previous.key and version.key:
        before = ", ".join(previous.key_names) or "nothing"
        note = f"rows are identified by {', '.join(version.key_names)} from here on, before by {before}"
        return replace(version, effect="rewrite", note=join_notes(note, version.note))
    return version


def _unknown_partition(table: TableVersion, names: Sequence[str]) -> str | None:
    """Return why the rows of some partitions cannot be told from others; None where they can."""
    if table.partitioning is None:
        return f"the partitions of table {table.name} are not known: it is older than the feed"
    try:
        for name in names:
            partitions.rows_of(table.partitioning, name)
    except DdlError as error:
        return str(error)
    return None


def plain_version(change: SchemaChange, effect: Effect, kind: str) -> TableVersion:
    """Return a version that belongs to no table: for a DDL of a database or a view."""
    name, ts = TableName(change.database, "" if change.kind in ("text", "repeated") else change.table), change.commit_ts
    return TableVersion(ts, name, "", kind, effect, change.query, change.origin, since=ts)


def held_version(previous: TableVersion, change: TableChange, reason: str | None) -> TableVersion:
    return next_version(previous, change, "hold", hold=reason or "the statement cannot be carried out")


def next_version(previous: TableVersion, change: TableChange, effect: Effect, **changed: Any) -> TableVersion:
    """Return the next version: like the previous one except for the `changed` fields."""
    own = {name: getattr(change.source, name) for name in ("commit_ts", "query", "origin")}
    own |= dict.fromkeys(("swap", "restored", "previous_name", "note", "hold"))
    own |= {"since": change.source.commit_ts, "kind": change.kind, "effect": effect, "emptied": (), **changed}
    return replace(previous, **own)


def join_notes(*notes: str | None) -> str | None:
    return "; ".join(note for note in notes if note) or None


_ROWS_ARE_BACK: Final = "rows are again as they were at another time, which the log does not say"
_COLUMNS_ARE_BACK: Final = "the table came back with columns that were dropped before ({}): older rows may have values"
_VIEWS: Final = frozenset({"create_view", "drop_view"})
# Messages do not distinguish integers, texts and bytes precisely, and show types that they do not know as text.
_FAMILIES: Final = (INTEGERS | {"decimal", "year", "bit"}, TEXTS | LABELS | {"json", "time"}, BLOBS)


def kind_of(change: SchemaChange) -> str:
    """Return the kind of a change: that of its clauses, or of TiDB's number where there are none."""
    if change.kind in ("columns", "row"):
        return kind_of_action(SEEN)
    if change.kind == "load":
        return LOAD
    if change.clauses:
        return kind_of_statement(change.clauses)
    return NOT_UNDERSTOOD if change.action is None else kind_of_action(change.action)


def _tables_of(clause: ddl.Clause) -> tuple[ddl.TableRef, ...]:
    """Return the existing tables that a clause changes, the one that it is about first."""
    match clause:
        case ddl.ExchangePartition(table, _, other):
            return table, other
        case ddl.Flashback(_, _, tables):
            return tables
        case ddl.OtherClause(_, _, None) | ddl.CreateTable() | ddl.RecoverTable() | ddl.OfDatabase():
            return ()
        case _:
            return () if clause.table is None else (clause.table,)


def versions_of(change: SchemaChange, live: LiveTables) -> Iterator[TableVersion]:
    """Yield the versions that a change makes, in order. The caller must record each of them in `live` before it asks
    for the next one: a statement can rename a table twice."""
    match change.kind:
        case "row":
            yield from _of_row(change, live)
        case "contradiction":
            if (previous := live.get(change.name)) is not None:
                yield held_version(previous, TableChange(change, change.name, NOT_UNDERSTOOD), change.fault)
        case "repeated":
            yield plain_version(change, "none", OTHER)
        case "text":
            yield from _of_text(change, live)
        case "load":
            yield from _of_load(change, live)
        case "statement" | "columns":
            yield from _in_doubt(change, live)
            yield from _of_columns(change, live)


def _in_doubt(change: SchemaChange, live: LiveTables) -> Iterator[TableVersion]:
    """Hold the tables of which a name in the statement can mean any. The rest of the statement is carried out."""
    reasons: dict[TableName, str] = {}
    for clause in change.clauses or ():
        names = _tables_of(clause)
        # A schema file is of its table, whose name it has.
        own = change.kind == "statement" and not isinstance(clause, ddl.RenameTable)
        for name in names[1:] if own else names:
            tables = live.candidates(name, change, change.name if own else None)
            if len(tables) > 1:
                reason = f"the statement names {name}, which can be {' or '.join(map(str, tables))}"
                reasons |= dict.fromkeys(tables, reason)
    kind = kind_of(change)
    for name, reason in reasons.items():
        if (table := live.get(name)) is not None:
            yield held_version(table, TableChange(change, name, kind), reason)


def _of_columns(change: SchemaChange, live: LiveTables) -> Iterable[TableVersion]:
    """Apply a statement with the columns of one table after it, or these columns alone."""
    clauses, kind = change.clauses, kind_of(change)
    for clause in clauses or ():
        if isinstance(clause, ddl.Flashback) or (clause.kind == "recover_database" and not change.table):
            return list(_restore(change, live, clause, kind)) or [plain_version(change, "none", kind)]
    if not change.table:
        unknown = clauses is None and (kind not in KINDS.values() or kind == "recover_database")
        return _not_understood(change, live, change.not_parsed) if unknown else _of_database(change, live, kind)
    if kind in _VIEWS:
        return [plain_version(change, "none", kind)]
    of_table = TableChange(change, change.name, kind, tuple(map(of_schema_file, change.columns)), clauses)
    previous = live.get(change.name)
    match kind:
        case "create_table":
            return create(of_table, live)
        case "rename_table":
            return rename(of_table, live, live.rename_source(change))
        case "drop_table":
            # A table that is older than the feed and had no row in it: nothing to drop.
            known = previous is not None
            return [next_version(previous, of_table, "drop") if known else plain_version(change, "none", kind)]
        case "flashback_recover" | "recover_database":
            return _restore(change, live, next(iter(clauses or ()), None), kind, of_table)
        case _ if previous is None:
            return [first_known(of_table, live)]
        case _:
            return _change_known(previous, of_table, live)


def _change_known(previous: TableVersion, change: TableChange, live: LiveTables) -> list[TableVersion]:
    """Apply a change to a table that continues to exist."""
    match change.kind:
        case "exchange_partition":
            found = next((clause for clause in change.clauses or () if isinstance(clause, ddl.ExchangePartition)), None)
            if found is None:
                reason = f"the statement does not say which rows change places: {change.source.not_parsed}"
                return [held_version(previous, change, reason)]
            other = live.get(live.resolve(found.other, change.source, besides=previous.name))
            if other is None or other.incarnation == previous.incarnation:
                reason = f"the rows of table {found.other.name} are not in the log: it is older than the feed"
                return [held_version(previous, change, reason)]
            reason = _unknown_partition(previous, [found.partition])
            names, of_other = ([column.name.lower() for column in each.carried] for each in (previous, other))
            if reason is None and names != of_other:
                reason = f"tables {previous.name} and {other.name} do not have the same columns"
            if reason is not None:
                return [held_version(table, change, reason) for table in (previous, other)]
            swap = PartitionExchange(previous.incarnation, found.partition, other.incarnation)
            return [next_version(table, change, "swap", swap=swap) for table in (previous, other)]
        case "truncate_table":
            return [next_version(previous, change, "empty")]
        case "drop_partition" | "truncate_partition":
            changes = [clause for clause in change.clauses or () if isinstance(clause, ddl.ChangePartitions)]
            names = changes[-1].names if changes else ()
            if names is None:
                return [next_version(previous, change, "empty")]
            unsaid = None if names else f"the statement does not say which partitions: {change.source.not_parsed}"
            if reason := unsaid or _unknown_partition(previous, names):
                return [held_version(previous, change, reason)]
            scheme = partitions.after(previous.partitioning, changes)
            return [next_version(previous, change, "empty", emptied=names, partitioning=scheme)]
        case _ if change.clauses is None and change.kind not in KINDS.values():
            return [held_version(previous, change, change.source.not_parsed)]
        case _:
            return [alter(previous, change)]


def _of_database(change: SchemaChange, live: LiveTables, kind: str) -> Iterator[TableVersion]:
    match kind:
        case "create_database":
            yield plain_version(change, "create", kind)
        case "drop_database":
            yield plain_version(change, "drop", kind)
            databases = live.databases(change.database)
            for table in [table for database in databases for table in live.in_database(database)]:
                of_table = TableChange(change, table.name, kind)
                reason = f"the statement names {change.database}, which can be {' or '.join(databases)}"
                one = len(databases) == 1
                yield next_version(table, of_table, "drop") if one else held_version(table, of_table, reason)
        case _:
            yield plain_version(change, "none", kind)


def _of_text(change: SchemaChange, live: LiveTables) -> Iterator[TableVersion]:
    """Apply the clauses of a statement's text to the tables that are known. Others become known by their next rows."""
    if (clauses := change.clauses) is None:
        yield from _not_understood(change, live, change.not_parsed)
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
            yield from _change_known(previous, TableChange(change, table, kind_of_statement(own), None, own), live)
    for clause in clauses:
        for version in _of_clause(change, live, clause):
            made |= bool(version.incarnation) or version.previous_name is None
            yield version
    if made:
        return
    # The statement met no known table. Where the message names one, and the text another, what happened to it cannot be
    # known.
    kind = kind_of_statement(clauses) if clauses else OTHER
    named, names = change.name, [name for each in clauses for name in _tables_of(each)]
    known = None if any(isinstance(clause, ddl.CreateTable) for clause in clauses) else live.get(named)
    others = [str(name) for name in names if live.resolve(name, change) != named]
    if known is None:
        if not any(isinstance(clause, ddl.RenameTable) for clause in clauses):
            yield plain_version(change, "none", kind)
    elif others:
        reason = f"the statement changes {', '.join(others)}, and the message names this table"
        yield held_version(known, TableChange(change, named, kind), reason)
    else:
        yield next_version(known, TableChange(change, named, kind), "none")


def _not_understood(change: SchemaChange, live: LiveTables, reason: str | None) -> Iterable[TableVersion]:
    """Hold what a statement that cannot be parsed may have changed: the table that the log names with it, else those
    that its text names. Without one, the version belongs to no table and has the reason: it is a fault of the feed."""
    known = live.get(change.name)
    tables = live.named_in(change) if known is None else [known]
    held = [held_version(each, TableChange(change, each.name, NOT_UNDERSTOOD, clauses=None), reason) for each in tables]
    plain = plain_version(change, "none", NOT_UNDERSTOOD)
    return held or [replace(plain, name=change.name, note=reason)]


def _of_clause(change: SchemaChange, live: LiveTables, clause: ddl.Clause) -> Iterable[TableVersion]:
    """Apply a clause that is not part of an ALTER TABLE."""
    kind = clause.kind
    match clause:
        case ddl.CreateTable(table):
            name = full_name(table, change)
            exists = clause.if_not_exists and live.alike(name)
            is_made = name.database and not exists
            return create(TableChange(change, name, kind, None, [clause]), live) if is_made else []
        case ddl.DropTable(table) | ddl.TruncateTable(table):
            previous = live.get(name := live.resolve(table, change))
            effect: Effect = "drop" if isinstance(clause, ddl.DropTable) else "empty"
            return [] if previous is None else [next_version(previous, TableChange(change, name, kind), effect)]
        case ddl.RenameTable(table, new_name):
            source, target = live.resolve(table, change), full_name(new_name, change)
            if source == target:  # The message has the old name.
                target = TableName(new_name.database or change.database, new_name.name)
            if source == target or (live.get(source) is None and live.get(target) is None):
                # Its rows may have been left out under the old name.
                return [replace(plain_version(change, "none", kind), name=target, previous_name=source)]
            return rename(TableChange(change, target, kind), live, source)
        case ddl.OfDatabase("create_database" | "drop_database", name):
            return _of_database(replace(change, database=name, table=""), live, kind)
        case ddl.RecoverTable() | ddl.OfDatabase("recover_database") | ddl.Flashback():
            return _restore(change, live, clause, kind)
        case _:
            return []


def _restore(
    change: SchemaChange, live: LiveTables, clause: ddl.Clause | None, kind: str, of_table: TableChange | None = None
) -> Iterator[TableVersion]:
    """Bring tables back that were dropped or truncated, as TiDB can; hold those whose rows are of an earlier time.
    `of_table` is what is known of the one that is back, where its columns are."""
    named = change.name
    match clause:
        case ddl.RecoverTable(None) if not change.table:
            yield from _not_understood(change, live, "the statement names a job, and the log does not say its table")
        case ddl.RecoverTable(table, new_name):
            name = named if table is None else full_name(table, change)
            ended = live.ended(name, by_job=table is None)
            name = name if ended is None else ended.name
            name = name if new_name is None else full_name(ddl.TableRef(name.database, new_name), change)
            yield from recover(of_table or TableChange(change, name, kind), live, ended)
        case ddl.OfDatabase(_, database) if of_table is not None:
            yield from recover(of_table, live, live.ended(TableName(database, named.table), with_database=True))
        case ddl.OfDatabase(_, database, new_name):
            yield plain_version(replace(change, database=new_name or database, table=""), "create", kind)
            for ended in live.ended_with(database):
                of_table = TableChange(change, replace(ended.name, database=new_name or ended.name.database), kind)
                yield from recover(of_table, live, ended)
        case ddl.Flashback(scope, database, tables):
            names = [live.resolve(table, change) for table in tables]
            names += [each.name for one in live.databases(database or "") for each in live.in_database(one)]
            names = sorted(live, key=str) if scope == "cluster" else names or [named]
            for version in [known for name in names if (known := live.get(name))]:
                yield held_version(version, TableChange(change, version.name, kind), _ROWS_ARE_BACK)
        case _:
            yield from () if of_table is None else recover(of_table, live, None)


def _of_row(change: SchemaChange, live: LiveTables) -> Iterator[TableVersion]:
    """Apply the columns of a row: those of a table that is not known yet, or new ones of a table that is."""
    of_table = TableChange(change, change.name, kind_of(change), change.columns)
    if (previous := live.get(change.name)) is None:
        yield first_known(of_table, live)
        return
    for column in change.columns:
        own = previous.named(column.name)
        if own is None or column.type.name in (own.type.name, "longtext"):
            continue
        if not any(own.type.name in family and column.type.name in family for family in _FAMILIES):
            odd = f"rows have column {column.name} as {type_text(column.type)}, and no statement in the log changes it"
            not_understood = replace(of_table, kind=NOT_UNDERSTOOD)
            yield held_version(previous, not_understood, f"{odd} from {type_text(own.type)}")
            return
    new = tuple(replace(column, nullable=True) for column in change.columns if previous.named(column.name) is None)
    if not new:
        return
    after = alter(previous, replace(of_table, columns=(*previous.source_columns, *new)))
    known = {column.name.lower() for each in live.restored_from(previous.incarnation) for column in each.columns}
    back = ", ".join(column.name for column in new if column.name.lower() in known)
    yield replace(after, effect="hold", hold=_COLUMNS_ARE_BACK.format(back), note=None) if back else after


def _of_load(change: SchemaChange, live: LiveTables) -> Iterator[TableVersion]:
    """Begin a table again as it is in a dump: everything in the log before it is in the dump's rows or was deleted. The
    table's name is that of the change, because the dump's statement has no database."""
    clause = next((each for each in change.clauses or () if isinstance(each, ddl.CreateTable)), None)
    if clause is None:
        return
    after = apply.altered(None, clause.clauses)
    virtual = {column.name.lower() for column in change.columns}
    columns = tuple(replace(c, virtual="configured") if c.name.lower() in virtual else c for c in after.columns)
    of_table = TableChange(change, change.name, LOAD, columns, (clause,))
    if (previous := live.get(change.name)) is not None:
        yield next_version(previous, of_table, "drop", note="from here on its rows are those of the dump")
    yield first_version(of_table, live, change.commit_ts, join_notes(*after.notes))
