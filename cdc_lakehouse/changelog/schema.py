"""Table versions and schema changes: frozen values; and how the columns of two versions differ."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Literal

from cdc_lakehouse.changelog.ddl.clauses import Clauses, ForeignKey, Partitioning
from cdc_lakehouse.changelog.ddl.statements import parse
from cdc_lakehouse.changelog.mysql_types import ColumnType, type_text
from cdc_lakehouse.errors import DdlError

Effect = Literal["none", "evolve", "rewrite", "empty", "swap", "move", "create", "drop", "hold"]
"""The effect of a DDL on the Iceberg table (DESIGN §7); `hold` means that it cannot be applied."""


@dataclass(frozen=True, slots=True)
class SourceColumn:
    """A column as the source describes it.

    `default` is the source's text of the default; `source_id` is the source's own id of the column, where it has one.
    `virtual` marks a generated column that rows never have, and says how that is known, because the source does not say
    it: from the configuration, or from rows that were seen.
    """

    name: str
    type: ColumnType
    nullable: bool = True
    primary_key: bool = False
    default: str | None = None
    source_id: int | None = None
    virtual: Literal["configured", "seen"] | None = None


ChangeKind = Literal["statement", "text", "columns", "row", "contradiction", "repeated", "load"]


@dataclass(frozen=True, slots=True)
class SchemaChange:
    """One DDL, or one description of a table's columns, as the source gives it.

    `kind` is one of: a `statement` with the columns of one table after it; the `text` of a statement alone; the
    `columns` of a table that did not change, as a schema file lists them after a restart; the columns of a `row`, which
    may be fewer than the table's; a `contradiction` between rows and statements, with its `fault`; a text `repeated` by
    whatever delivers the log, which is not applied twice; a `load`, whose query is the CREATE TABLE of a dump that has
    the table's rows as of its commit-ts, and whose columns are those that rows do not have according to the
    configuration.

    `table` is empty for a statement on a database, and where the log does not name one. `action` is TiDB's ActionType,
    None where the source has none. `origin` is the place where it was read. `backslash_escapes` says whether strings of
    the query have them: TiCDC prints backslashes as they are.
    """

    commit_ts: int
    database: str
    table: str
    action: int | None
    query: str
    columns: tuple[SourceColumn, ...]
    origin: str
    backslash_escapes: bool = False
    fault: str | None = None
    kind: ChangeKind = "statement"

    @property
    def name(self) -> TableName:
        return TableName(self.database, self.table)

    @property
    def clauses(self) -> Clauses | None:
        """The statement's clauses, none without a statement; None where it cannot be parsed."""
        return _parsed(self.query, self.backslash_escapes)[0]

    @property
    def not_parsed(self) -> str | None:
        """Why the statement cannot be parsed."""
        return _parsed(self.query, self.backslash_escapes)[1]


@functools.lru_cache(maxsize=4096)
def _parsed(query: str, backslash_escapes: bool) -> tuple[Clauses | None, str | None]:
    try:
        return (parse(query, backslash_escapes=backslash_escapes) if query.strip() else ()), None
    except DdlError as error:
        return None, str(error)


@dataclass(frozen=True, slots=True)
class Column:
    """A column with an identity: `id` stays the same through renames and type changes, within one incarnation.

    `initial` is its value in rows that are older than it, in the notation of row values, None for NULL. `carried` is
    False for a column that row events never have (a virtual generated column). `default` is the text of the default
    that its last definition gives to new rows, as the source prints it; `comment` is its comment, where a statement of
    the log has it. `computed_as` is the expression of a stored generated column, as `ColumnDefinition.stored_as` has
    it, where a statement of the log has it.
    """

    id: int
    name: str
    type: ColumnType
    nullable: bool = True
    initial: str | None = None
    source_id: int | None = None
    carried: bool = True
    default: str | None = None
    comment: str | None = None
    computed_as: str | None = None


@dataclass(frozen=True, slots=True)
class TableUniqueKey:
    name: str
    columns: tuple[int, ...]
    """Ids of the columns."""


def quoted(name: str) -> str:
    """Quote a name with backquotes, as MySQL's statements do."""
    return "`" + name.replace("`", "``") + "`"


@dataclass(frozen=True, slots=True)
class TableName:
    """A table of the source, by its names there."""

    database: str
    table: str

    def __str__(self) -> str:
        return f"{self.database}.{self.table}"

    @property
    def quoted(self) -> str:
        """The table's quoted name, as in a MySQL statement."""
        return f"{quoted(self.database)}.{quoted(self.table)}"

    @property
    def folded(self) -> TableName:
        """The name as servers compare it that ignore letter case (TiDB, MySQL with lower_case_table_names)."""
        return TableName(self.database.lower(), self.table.lower())

    @property
    def identity(self) -> str:
        """As `str`, but with the dots and percent signs of the database escaped, so that different names stay
        different."""
        return f"{self.database.replace('%', '%25').replace('.', '%2E')}.{self.table}"

    @classmethod
    def of_identity(cls, identity: str) -> TableName:
        database, _, table = identity.partition(".")
        return cls(database.replace("%2E", ".").replace("%25", "%"), table)


@dataclass(frozen=True, slots=True)
class PartitionExchange:
    """An EXCHANGE PARTITION: the rows of `partition` of one table and all rows of a plain one are exchanged. Both
    tables get a version with it."""

    partitioned: str
    """The incarnation of the partitioned table."""
    partition: str
    plain: str
    """The incarnation of the plain table."""


@dataclass(frozen=True, slots=True)
class RestoredRows:
    """The rows that a RECOVER or FLASHBACK brings back: those of an incarnation before its DROP or TRUNCATE."""

    incarnation: str
    ended_ts: int
    """The commit-ts of the DROP or TRUNCATE."""


@dataclass(frozen=True)
class TableVersion:
    """One row of a table's history: the table as it is after a change, and the change.

    `incarnation` identifies the table from its CREATE to its DROP through all renames; it is empty for a change that
    does not concern a table (but a database, a view). `key` holds the ids of the columns that identify a row, those of
    `primary_key`, else of a unique key; it is empty where the source declares none. `charset` is the default character
    set of the table's columns, None where the log does not give it. `emptied` names the partitions that the change
    emptied, `swap` the rows that were exchanged, `restored` those with which the table begins. The version is valid
    above the commit-ts `since`: its own, or less for the first row of a table that is older than the feed. `versioned`
    says that MariaDB keeps the table's history. `foreign_keys` have their names in lower case; that of a key without
    one is `_ibfk_<n>`, without the table's name, which MySQL puts before it and keeps up to date. `note` is a warning
    for the user, `hold` the reason why the table cannot be updated.
    """

    commit_ts: int
    name: TableName
    incarnation: str
    kind: str
    effect: Effect
    query: str
    origin: str
    columns: tuple[Column, ...] = ()
    key: tuple[int, ...] = ()
    unique_keys: tuple[TableUniqueKey, ...] = ()
    next_id: int = 1
    partitioning: Partitioning | None = None
    emptied: tuple[str, ...] = ()
    swap: PartitionExchange | None = None
    restored: RestoredRows | None = None
    previous_name: TableName | None = None
    since: int = 0
    note: str | None = None
    hold: str | None = None
    primary_key: tuple[int, ...] = ()
    charset: str | None = None
    foreign_keys: tuple[ForeignKey, ...] = ()
    versioned: bool = False

    @property
    def carried(self) -> tuple[Column, ...]:
        """The columns that rows have."""
        return tuple(column for column in self.columns if column.carried)

    @functools.cached_property
    def _by_id(self) -> dict[int, Column]:
        return {column.id: column for column in self.columns}

    def column(self, column_id: int) -> Column | None:
        return self._by_id.get(column_id)

    def named(self, name: str) -> Column | None:
        """Return the column of that name; MySQL compares column names without case."""
        folded = name.lower()
        return next((column for column in self.columns if column.name.lower() == folded), None)

    @property
    def source_columns(self) -> tuple[SourceColumn, ...]:
        """The columns as a schema file would list them."""
        return tuple(
            SourceColumn(each.name, each.type, each.nullable, each.id in self.primary_key, each.default, each.source_id)
            for each in self.columns
        )

    @property
    def key_names(self) -> tuple[str, ...]:
        return tuple(column.name for id in self.key if (column := self.column(id)))


def column_diff(before: TableVersion, after: TableVersion) -> list[str]:
    """Return the columns that differ as lines of a diff, `-` for a column before and `+` for one after: first those
    that were dropped, then the others in their new order; those that moved among the ones that stayed say so."""
    old = {column.id: _described(before, column) for column in before.columns}
    new = {column.id: _described(after, column) for column in after.columns}
    # The smallest set of ids that must have moved: the new order without its longest subsequence in the old order.
    place = {id: number for number, id in enumerate(id for id in old if id in new)}
    longest: list[list[int]] = [[]]
    for id in (id for id in new if id in old):
        fitting = [run for run in longest if not run or place[run[-1]] < place[id]]
        longest.append([*max(fitting, key=len), id])
    moved = place.keys() - max(longest, key=len)
    lines = [f"- {text}" for id, text in old.items() if id not in new]
    for id, text in new.items():
        if id in moved or old.get(id) != text:
            lines += [f"- {old[id]}"] if id in old else []
            lines.append(f"+ {text}{' (moved)' if id in moved else ''}")
    return lines


def _described(table: TableVersion, column: Column) -> str:
    nullable = "" if column.nullable else " NOT NULL"
    return f"{column.name} {type_text(column.type)}{nullable}{' KEY' if column.id in table.key else ''}"
