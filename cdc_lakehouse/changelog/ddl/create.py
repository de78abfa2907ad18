"""CREATE TABLE: MySQL reference manual, "CREATE TABLE Statement", and its LIKE and SELECT forms."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from cdc_lakehouse.changelog.ddl.clauses import (
    ColumnDefinition,
    CreateTable,
    CreateTableAsSelect,
    CreateTableLike,
    IndexKey,
    Key,
    KeyPart,
    Partitioning,
    PrimaryKey,
    SetTableCharset,
    SetTableComment,
    TableName,
    UniqueKey,
)
from cdc_lakehouse.changelog.ddl.columns import read_column
from cdc_lakehouse.changelog.ddl.cursor import Cursor
from cdc_lakehouse.changelog.ddl.keys import Check, ForeignKey, read_key_element
from cdc_lakehouse.changelog.ddl.options import read_options
from cdc_lakehouse.changelog.ddl.partitions import read_partition_by
from cdc_lakehouse.changelog.ddl.queries import selected_names

CreatedTable = CreateTable | CreateTableLike | CreateTableAsSelect

_QUERY_WORDS: Final = frozenset({"SELECT", "WITH", "VALUES", "TABLE", "("})


@dataclass(slots=True)
class _Draft:
    """A table while its definition is read."""

    table: TableName
    if_not_exists: bool
    temporary: bool
    columns: list[ColumnDefinition] = field(default_factory=list[ColumnDefinition])
    primary_key: PrimaryKey | None = None
    unique_keys: list[UniqueKey] = field(default_factory=list[UniqueKey])
    partitioning: Partitioning | None = None
    charset: str | None = None
    comment: str | None = None
    collation: str | None = None
    keys: list[Key] = field(default_factory=list[Key])

    def add_column(self, column: ColumnDefinition) -> None:
        self.columns.append(column)
        if column.primary_key:
            self.add_key(PrimaryKey((KeyPart(column.name),)))
        if column.unique:
            self.add_key(UniqueKey(None, (KeyPart(column.name),)))

    def add_key(self, key: Key) -> None:
        self.keys.append(key)
        match key:
            case PrimaryKey():
                self.primary_key = key
            case UniqueKey():
                self.unique_keys.append(key)
            case IndexKey():
                pass  # It says nothing about rows.

    def created(self) -> CreateTable:
        return CreateTable(
            self.table, tuple(self.columns), self.primary_key, tuple(self.unique_keys), self.partitioning,
            self.if_not_exists, self.temporary, self.charset, self.comment,
            self.collation, tuple(self.keys),
        )  # fmt: skip


def read_create_table(cursor: Cursor, *, temporary: bool) -> CreatedTable:
    """What follows CREATE TABLE."""
    if_not_exists = cursor.if_not_exists()
    draft = _Draft(cursor.table_name(), if_not_exists, temporary)
    in_parentheses = cursor.accept("(", "LIKE")
    if in_parentheses or cursor.accept("LIKE"):
        like = CreateTableLike(draft.table, cursor.table_name(), if_not_exists, temporary)
        if in_parentheses:
            cursor.expect(")")
        return like
    if cursor.at("(") and cursor.next_token.word not in _QUERY_WORDS:
        cursor.enclosed(lambda: _read_element(cursor, draft))
    while _read_table_option(cursor, draft):
        pass
    start = cursor.position
    if _skip_query(cursor):
        return CreateTableAsSelect(draft.created(), selected_names(cursor, start))
    return draft.created()


def _read_element(cursor: Cursor, draft: _Draft) -> None:
    element = read_key_element(cursor)
    match element:
        case None:
            draft.add_column(read_column(cursor))
        case PrimaryKey() | UniqueKey() | IndexKey():
            draft.add_key(element)
        case ForeignKey() | Check():
            pass  # They say nothing about rows.


def _read_table_option(cursor: Cursor, draft: _Draft) -> bool:
    """One thing after the columns; False where there is none."""
    if cursor.accept("PARTITION", "BY"):
        draft.partitioning = read_partition_by(cursor)
        return True
    if cursor.accept("ON", "COMMIT"):
        cursor.expect_any(("DELETE", "PRESERVE"), "DELETE or PRESERVE")
        cursor.expect("ROWS")
        return True
    # MySQL 8.0.21 logs CREATE TABLE ... SELECT as this, with the rows as events of their own.
    if cursor.accept("START", "TRANSACTION"):
        return True
    separated = cursor.accept(",")
    options = read_options(cursor, draft.table)
    if separated and not options:
        raise cursor.expected("a table option")
    for option in options:
        match option:
            case SetTableCharset():
                draft.charset, draft.collation = option.charset or draft.charset, option.collation or draft.collation
            case SetTableComment():
                draft.comment = option.comment
            case _:
                pass
    return bool(options)


def _skip_query(cursor: Cursor) -> bool:
    """Skips [IGNORE|REPLACE] [AS] query."""
    handles_duplicates = cursor.accept_any(("IGNORE", "REPLACE")) is not None
    announced = cursor.accept("AS") or handles_duplicates
    if cursor.token.word in _QUERY_WORDS:
        cursor.skip_rest()
        return True
    if announced:
        raise cursor.expected("a query")
    return False
