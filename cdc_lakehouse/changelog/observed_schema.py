"""Schema changes of a log that has DDL as text alone: topics and Canal servers have no schema files.

Statements are carried out one after the other on what is known of the tables (`ddl_apply`), and what they leave is told
as schema files would tell it. A table whose CREATE is not in the log is known from its first row on: its columns are
those of the row, its types what the message says of them. Such a *sight* also brings a column that no statement adds.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from cdc_lakehouse.changelog import ddl_kinds
from cdc_lakehouse.changelog.ddl import clauses as ddl
from cdc_lakehouse.changelog.ddl.parser import parse
from cdc_lakehouse.changelog.ddl_apply import apply
from cdc_lakehouse.changelog.ddl_schema import Schema, TableColumn, TableKey, TableKeyPart, TableSchema
from cdc_lakehouse.changelog.message_types import message_type, same_kind
from cdc_lakehouse.changelog.schema import SchemaChange, SourceColumn
from cdc_lakehouse.errors import DdlError

_OF_NO_COLUMN: Final = (ddl.AddIndex, ddl.DropIndex, ddl.RenameIndex, ddl.DropConstraint, ddl.NoEffect)
_ACTIONS: Final = {kind: number for number, kind in reversed(ddl_kinds.KINDS.items())}


@dataclass(frozen=True, slots=True)
class Statement:
    """A DDL of the log. `database` is the session's, `table` what the message names, both may be empty; `origin` is the
    message's place, `time_ms` when the source executed it, None where that is not said."""

    commit_ts: int
    database: str
    table: str
    text: str
    origin: str
    time_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Sight:
    """The first row, at `commit_ts`, that has these columns: names with what the message says of their types, which may
    be nothing. `key` is None where it does not say one."""

    commit_ts: int
    database: str
    table: str
    columns: tuple[tuple[str, str], ...]
    key: tuple[str, ...] | None
    origin: str


class DdlLog:
    """`escapes` says whether strings of the statements have backslash escapes; `types` are those that the configuration
    gives to columns, by `database.table`."""

    def __init__(self, *, escapes: bool, types: Mapping[str, Mapping[str, str]] | None = None) -> None:
        self._escapes = escapes
        self._types = types or {}
        self._schema = Schema(assumed=True)
        self._carried_out: set[tuple[str, str, int | None]] = set()

    def changes(self, told: Iterable[Statement | Sight]) -> Iterator[SchemaChange]:
        """In order. A row comes before a statement of the same time. A statement counts once, however often it comes:
        TiCDC may send it to every partition of a topic, and again when a changefeed starts again."""
        ordered = sorted(told, key=lambda each: (each.commit_ts, isinstance(each, Statement), each.origin))
        done: set[tuple[int, str, str, str]] = set()
        for each in _typed(ordered):
            if isinstance(each, Sight):
                yield from self._of_sight(each)
                continue
            same = (each.commit_ts, each.database, each.table, each.text)
            if same not in done:
                done.add(same)
                yield from self._of_statement(each)

    def _of_statement(self, statement: Statement) -> Iterator[SchemaChange]:
        session = replace(self._schema, session=statement.database or None)
        clauses: Sequence[ddl.Clause] = ()
        try:
            clauses = parse(statement.text, backslash_escapes=self._escapes)
            after = apply(session, clauses)
        except DdlError as error:
            # What is known of a table's keys can be less than there are.
            harmless = bool(clauses) and all(isinstance(clause, _OF_NO_COLUMN) for clause in clauses)
            # What writes to a topic sends again what it has sent, after a fault of its own: columns are there by then.
            harmless = harmless or (statement.time_ms is not None and _same(statement) in self._carried_out)
            yield from self._not_carried_out(statement, None if harmless else str(error))
            return
        before, self._schema = self._schema, replace(after, session=None)
        self._carried_out.add(_same(statement))
        changes = list(self._told(statement, clauses, before, after))
        numbered = enumerate(changes or [self._change(statement, ddl_kinds.OTHER, statement.database, "")])
        for number, change in numbered:
            yield replace(change, origin=f"{change.origin}#{number}")

    def _not_carried_out(self, statement: Statement, fault: str | None) -> Iterator[SchemaChange]:
        """Of a table that is known it is not known any more what it is. Of others the next row tells."""
        database = self._schema.databases.get(statement.database)
        table = None if database is None else database.tables.get(statement.table)
        if table is None or fault is None:
            yield self._change(statement, ddl_kinds.OTHER, statement.database, "")
        else:
            change = self._change(statement, ddl_kinds.NOT_UNDERSTOOD, statement.database, statement.table, table)
            yield replace(change, fault=fault)

    def _told(
        self, statement: Statement, clauses: Sequence[ddl.Clause], before: Schema, after: Schema
    ) -> Iterator[SchemaChange]:
        altered: dict[ddl.TableName, list[ddl.Clause]] = {}
        for clause in clauses:
            if isinstance(clause, ddl.TableClause):
                if clause.table is not None:
                    altered.setdefault(after.qualified(clause.table), []).append(clause)
            elif (change := self._of_clause(statement, clause, before, after)) is not None:
                yield change
        for table, own in altered.items():
            if _holds(after, table):
                yield self._of_table(statement, _action(own), table, after)

    def _of_clause(
        self, statement: Statement, clause: ddl.StatementClause, before: Schema, after: Schema
    ) -> SchemaChange | None:
        match clause:
            case ddl.CreateDatabase(name) | ddl.DropDatabase(name) | ddl.AlterDatabase(name):
                return self._change(statement, _ACTIONS[clause.kind], name or statement.database, "")
            case ddl.CreateTable() | ddl.CreateTableLike() | ddl.CreateTableAsSelect():
                own = after.qualified(clause.table)
                made = not _holds(before, own) and _holds(after, own)
                return self._of_table(statement, ddl_kinds.CREATE_TABLE, own, after) if made else None
            case ddl.DropTable(table):
                own = after.qualified(table)
                gone = _holds(before, own) and not _holds(after, own)
                return self._of_table(statement, ddl_kinds.DROP_TABLE, own, before) if gone else None
            case ddl.RenameTable():
                return self._of_table(statement, ddl_kinds.RENAME_TABLE, after.qualified(clause.new_name), after)
            case ddl.TruncateTable(table):
                return self._of_table(statement, ddl_kinds.TRUNCATE_TABLE, after.qualified(table), after)
            case _:
                return None

    def _of_table(self, statement: Statement, action: int, name: ddl.TableName, schema: Schema) -> SchemaChange:
        database = schema.databases.get(name.database or "")
        table = None if database is None else database.tables.get(name.name)
        return self._change(statement, action, name.database or "", name.name, table)

    def _change(
        self, statement: Statement, action: int, database: str, table: str, schema: TableSchema | None = None
    ) -> SchemaChange:
        return SchemaChange(
            statement.commit_ts,
            database,
            table,
            action,
            statement.text,
            () if schema is None else _source_columns(schema),
            statement.origin,
            self._escapes,
        )

    def _of_sight(self, sight: Sight) -> Iterator[SchemaChange]:
        name = ddl.TableName(sight.database, sight.table)
        database = self._schema.databases.get(sight.database)
        known = None if database is None else database.tables.get(sight.table)
        configured = self._types.get(f"{sight.database}.{sight.table}", {})
        # Of a table that is known the row says what columns there are: a configured one may have been dropped.
        types = _configured(sight.columns, configured, all_of_them=known is None)
        if known is None:
            table = _seen(types, sight.key or ())
        else:
            table = _widened(known, types)
            if (odd := _contradiction(known, types)) is not None:
                yield replace(self._seen_change(sight, known), action=ddl_kinds.NOT_UNDERSTOOD, fault=odd)
                return
            if table is known:
                return
        self._schema = self._schema.with_table(name, table)
        yield self._seen_change(sight, table)

    def _seen_change(self, sight: Sight, table: TableSchema) -> SchemaChange:
        # A row is of the version above whose commit-ts it is.
        at = sight.commit_ts - 1
        return SchemaChange(
            at, sight.database, sight.table, ddl_kinds.SEEN, "", _source_columns(table), sight.origin, self._escapes
        )


def _same(statement: Statement) -> tuple[str, str, int | None]:
    return statement.database, statement.text, statement.time_ms


def _holds(schema: Schema, name: ddl.TableName) -> bool:
    database = schema.databases.get(name.database or "")
    return database is not None and name.name in database.tables


def _action(clauses: Sequence[ddl.Clause]) -> int:
    kinds = {clause.kind for clause in clauses}
    if len(kinds) > 1:
        return ddl_kinds.MULTI_SCHEMA_CHANGE
    (kind,) = kinds
    return _ACTIONS.get(kind, ddl_kinds.MULTI_SCHEMA_CHANGE)


def _source_columns(table: TableSchema) -> tuple[SourceColumn, ...]:
    key = next((key.columns for key in table.keys if key.kind == "primary"), ())
    return tuple(
        SourceColumn(column.name, column.type, column.nullable, column.id in key, column.default)
        for column in table.columns
    )


def _typed(ordered: Sequence[Statement | Sight]) -> Sequence[Statement | Sight]:
    """With the types that only later rows tell: until then a column's values are NULL, which do not tell its type."""
    told: dict[tuple[str, str, str], str] = {}
    typed: list[Statement | Sight] = []
    for each in reversed(ordered):
        if isinstance(each, Sight):
            places = [(each.database, each.table, name.lower()) for name, _ in each.columns]
            told |= {place: text for place, (_, text) in zip(places, each.columns, strict=True) if text}
            columns = tuple(
                (name, text or told.get(place, "")) for place, (name, text) in zip(places, each.columns, strict=True)
            )
            typed.append(each if columns == each.columns else replace(each, columns=columns))
        else:
            typed.append(each)
    return typed[::-1]


def _configured(
    columns: Iterable[tuple[str, str]], configured: Mapping[str, str], *, all_of_them: bool
) -> dict[str, str]:
    """Types by column, the configuration's where it has one; names may differ in case."""
    texts = {name.lower(): text for name, text in configured.items()}
    types = {name: texts.get(name.lower(), text) for name, text in columns}
    if not all_of_them:
        return types
    seen = {name.lower() for name in types}
    return types | {name: text for name, text in configured.items() if name.lower() not in seen}


def _seen(types: Mapping[str, str], key: Sequence[str]) -> TableSchema:
    folded = {name.lower() for name in key}
    columns = tuple(
        TableColumn(number, name, message_type(text), nullable=name.lower() not in folded)
        for number, (name, text) in enumerate(types.items(), start=1)
    )
    ids = {column.name.lower(): column.id for column in columns}
    parts = tuple(TableKeyPart(ids[name.lower()]) for name in key if name.lower() in ids)
    keys = (TableKey("PRIMARY", "primary", parts),) if parts else ()
    return TableSchema(columns, keys, next_id=len(columns) + 1)


def _widened(known: TableSchema, types: Mapping[str, str]) -> TableSchema:
    """With the columns that only the row has, at the end."""
    new = [(name, text) for name, text in types.items() if known.named(name) is None]
    if not new:
        return known
    added = tuple(
        TableColumn(known.next_id + number, name, message_type(text)) for number, (name, text) in enumerate(new)
    )
    return replace(known, columns=(*known.columns, *added), next_id=known.next_id + len(added))


def _contradiction(known: TableSchema, types: Mapping[str, str]) -> str | None:
    for name, text in types.items():
        column = known.named(name)
        if column is not None and text and not same_kind(column.type, message_type(text)):
            return f"rows have column {name} as {text}, and no statement in the log changes it from {column.type.name}"
    return None
