"""The tables that exist at a point of the history."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from cdc_lakehouse.changelog import ddl_kinds
from cdc_lakehouse.changelog.column_matching import clauses_of
from cdc_lakehouse.changelog.ddl import clauses as ddl
from cdc_lakehouse.changelog.schema import RestoredRows, SchemaChange, TableName, TableVersion

_TRUNCATES: Final = ddl_kinds.KINDS[ddl_kinds.TRUNCATE_TABLE]
_DROPS_ALL: Final = ddl_kinds.KINDS[ddl_kinds.DROP_DATABASE]
_RECOVERABLE: Final = frozenset({ddl_kinds.KINDS[ddl_kinds.DROP_TABLE], _DROPS_ALL, _TRUNCATES})
"""The kinds of statements after which TiDB can bring a table back."""


class LiveTables:
    """The tables that exist at a point of the history, and the commit-ts at which each name was last given up."""

    def __init__(self) -> None:
        self._tables: dict[TableName, TableVersion] = {}
        self._alike: dict[TableName, list[TableName]] = {}
        """The names of the tables by their folded names."""
        self._vacated: dict[TableName, int] = {}
        self._births: dict[TableName, int] = {}
        self._loaded: dict[TableName, int] = {}
        self._lives: dict[str, list[TableVersion]] = {}
        """The versions of each incarnation."""
        self._ended: dict[TableName, list[TableVersion]] = {}
        """By folded name, the versions that took all rows of a table away."""
        self._restored: set[RestoredRows] = set()
        self._dropped: dict[str, int] = {}
        """The commit-ts at which each database, by its name in lower case, was last dropped."""

    def get(self, name: TableName) -> TableVersion | None:
        return self._tables.get(name)

    def names(self) -> set[TableName]:
        return set(self._tables)

    def in_database(self, database: str) -> list[TableVersion]:
        return [self._tables[name] for name in sorted(self._tables, key=str) if name.database == database]

    def named_in(self, change: SchemaChange) -> list[TableVersion]:
        """Return the tables whose names occur in a statement, which need not be understood: with their databases, or
        where they are in the change's own, which it may not give."""

        def occurs(name: str) -> bool:
            word = re.escape(name.replace("`", "``"))
            return re.search(rf"(?<![\w$-]){word}(?![\w$-])", change.query, re.IGNORECASE) is not None

        tables = [self._tables[name] for name in sorted(self._tables, key=str) if occurs(name.table)]
        return [
            each
            for each in tables
            if each.name.database == change.database or not change.database or occurs(each.name.database)
        ]

    def vacated(self, name: TableName) -> int:
        """Return the commit-ts at which the name was last given up; 0 when it never was."""
        return self._vacated.get(name, 0)

    def next_incarnation(self, name: TableName, *, loaded_ts: int | None = None) -> str:
        """Return the id of the next incarnation, numbered by its first name: it is the same whenever the history is
        computed. After a dump's position the numbers begin again at 1, because changes of the log from before it may be
        found after it."""
        since = self._loaded.get(name) if loaded_ts is None else loaded_ts
        number = self._births.get(name, 0) + 1 if loaded_ts is None else 1
        return f"{name.identity}{'' if since is None else f'@{since}'}#{number}"

    def record(self, version: TableVersion) -> None:
        if not version.incarnation:
            if version.kind == _DROPS_ALL:
                self._dropped[version.name.database.lower()] = version.commit_ts
            return
        if version.incarnation not in self._lives:
            if version.kind == ddl_kinds.LOAD:
                self._loaded[version.name], self._births[version.name] = version.commit_ts, 0
            self._births[version.name] = self._births.get(version.name, 0) + 1
        self._record_end(version)
        for name in (version.previous_name, version.name if version.effect == "drop" else None):
            if name in self._tables and self._tables[name].incarnation == version.incarnation:
                del self._tables[name]
                self._alike[name.folded].remove(name)
                self._vacated[name] = version.commit_ts
        if version.effect != "drop":
            if version.name not in self._tables:
                self._alike.setdefault(version.name.folded, []).append(version.name)
            self._tables[version.name] = version

    # --- Tables that can come back ---

    def _record_end(self, version: TableVersion) -> None:
        self._lives.setdefault(version.incarnation, []).append(version)
        if version.effect == "drop" or (version.effect == "empty" and version.kind == _TRUNCATES):
            self._ended.setdefault(version.name.folded, []).append(version)
        if version.restored is not None:
            self._restored.add(version.restored)

    def before(self, ended: TableVersion) -> Sequence[TableVersion]:
        """Return the versions of a table before the one with which it ended."""
        life = self._lives[ended.incarnation]
        return life[: life.index(ended)]

    def restored_from(self, incarnation: str) -> Sequence[TableVersion]:
        """Return the versions of what a table was before it came back; none where it did not."""
        restored = self._lives[incarnation][0].restored
        return () if restored is None else self._lives[restored.incarnation]

    def ended(self, name: TableName, *, by_job: bool = False, with_database: bool = False) -> TableVersion | None:
        """Return the DROP or TRUNCATE whose table a RECOVER of that name brings back: TiDB takes the last one. None
        where that is not certain. The number of a job can be that of any of them."""
        found = [each for each in self._ended.get(name.folded, ()) if (each.kind == _DROPS_ALL) == with_database]
        free = [each for each in found if RestoredRows(each.incarnation, each.commit_ts) not in self._restored]
        if not free or (len(free) > 1 if by_job else free[-1] is not found[-1]):
            return None
        return free[-1] if free[-1].kind in _RECOVERABLE else None

    def ended_with(self, database: str) -> list[TableVersion]:
        """Return the tables that the last DROP of a database dropped, and that are not back."""
        names = [name for name in sorted(self._ended, key=str) if name.database == database.lower()]
        dropped = [each for name in names if (each := self.ended(name, with_database=True))]
        return [each for each in dropped if each.commit_ts == self._dropped.get(database.lower())]

    # --- Names in statements ---

    def rename_source(self, change: SchemaChange) -> TableName | None:
        """Return the old name in a RENAME's statement; None when it has none."""
        clauses, _ = clauses_of(change)
        for clause in clauses or ():
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
        spelled = next((each for each in (typed, full_name(name, change)) if each in self._tables), typed)
        found = [live for live in self.alike(spelled) if live != besides]
        if found or name.database is not None or (change.kind == "text" and change.database and not moves(change)):
            return found
        table = name.name.lower()
        elsewhere = [live for live in self._tables if live.table.lower() == table and live != besides]
        return [live for live in elsewhere if live.table == name.name] or elsewhere

    def alike(self, name: TableName) -> Sequence[TableName]:
        """Return the live table of a name, else those whose names differ from it in letter case alone."""
        return [name] if name in self._tables else self._alike.get(name.folded, ())

    def databases(self, name: str) -> list[str]:
        """Return the databases with live tables that a name in a statement can mean."""
        known = {live.database for live in self._tables if live.database.lower() == name.lower()}
        return [name] if name in known else sorted(known)


def moves(change: SchemaChange) -> bool:
    """Whether a statement gives a table without its database a new name in the change's database: Canal names the new
    table there, and the session's database is not known."""
    clauses, _ = clauses_of(change)
    return any(
        isinstance(clause, ddl.RenameTable)
        and clause.table.database is None
        and (clause.new_name.database or "").lower() == change.database.lower()
        for clause in clauses or ()
    )


def full_name(name: ddl.TableRef, change: SchemaChange) -> TableName:
    """Return a name in a statement with its database, spelled as the message spells it: statements have names as they
    were typed."""
    typed = TableName(change.database if name.database is None else name.database, name.name)
    named = TableName(change.database, change.table)
    return named if typed.folded == named.folded else typed
