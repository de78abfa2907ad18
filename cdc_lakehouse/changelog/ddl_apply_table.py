"""A table put together from its columns and keys: CREATE TABLE, and the end of ALTER TABLE."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from cdc_lakehouse.changelog.charsets import charset_named
from cdc_lakehouse.changelog.ddl.clauses import CreateTable, CreateTableAsSelect, Key
from cdc_lakehouse.changelog.ddl.definitions import ColumnDefinition
from cdc_lakehouse.changelog.ddl_apply_columns import Drafted, check_definition, drafted, with_reads
from cdc_lakehouse.changelog.ddl_apply_keys import checked_keys, kept_keys, with_new_keys
from cdc_lakehouse.changelog.ddl_column_types import check_row
from cdc_lakehouse.changelog.ddl_schema import TableColumn, TableKey, TableSchema
from cdc_lakehouse.errors import DdlError

_MOST_COLUMNS: Final = 4096


def created(clause: CreateTable, charset: str, columns: Sequence[ColumnDefinition] | None = None) -> TableSchema:
    """The table of a CREATE TABLE in a database of that character set; `columns` in another order than it says."""
    own = charset_named(clause.charset, clause.collation) or charset
    found = [drafted(column, number, own) for number, column in enumerate(columns or clause.columns, start=1)]
    return assembled(found, (), {}, clause.keys, own, len(found) + 1)


def check(clause: CreateTable, charset: str) -> None:
    """What the server refuses even where there is such a table already: all but defaults that do not fit."""
    own = charset_named(clause.charset, clause.collation) or charset
    for column in clause.columns:
        check_definition(column, own)
    created(clause, charset, [replace(column, default=None) for column in clause.columns])


def created_from_query(clause: CreateTableAsSelect, charset: str) -> TableSchema:
    """The table of a CREATE TABLE … SELECT whose columns are all defined in the statement."""
    definition = clause.definition
    if clause.selected is None or not definition.columns:
        raise DdlError("the columns of a query are not in the statement: only its definitions are known")
    selected = [name.lower() for name in clause.selected]
    defined = {column.name.lower(): column for column in definition.columns}
    unknown = [name for name in clause.selected if name.lower() not in defined]
    if unknown:
        raise DdlError(f"the query adds columns whose types are not in the statement: {', '.join(unknown)}")
    # Those that the query does not fill come first, the others in its order (MySQL, "CREATE TABLE ... SELECT").
    first = [column for column in definition.columns if column.name.lower() not in selected]
    return created(definition, charset, [*first, *(defined[name] for name in selected)])


def assembled(
    columns: Sequence[Drafted],
    keys: Sequence[TableKey],
    before: Mapping[int, TableColumn],
    new_keys: Sequence[Key],
    charset: str,
    next_id: int,
) -> TableSchema:
    """The table of those columns, with what is left of its keys and the new ones; `before` are its columns when the
    keys were made. Raises DdlError for what a server refuses."""
    if not 1 <= len(columns) <= _MOST_COLUMNS:
        raise DdlError(f"a table has 1 to {_MOST_COLUMNS} columns, not {len(columns)}")
    _check_names(each.column.name for each in columns)
    found = with_reads(columns)
    kept = kept_keys(keys, before, found)
    found, ordered = checked_keys(with_new_keys(kept, new_keys, found), found)
    check_row([(each.column.type, each.column.nullable) for each in found if not each.column.virtual])
    return TableSchema(tuple(each.column for each in found), ordered, charset, next_id)


def _check_names(names: Iterable[str]) -> None:
    seen: set[str] = set()
    for name in names:
        if name.lower() in seen:
            raise DdlError(f"there are two columns {name}")
        seen.add(name.lower())
