"""What statements make of a schema, as MySQL 8.0 carries them out in its default SQL mode.

    >>> schema = Schema().with_database(Database("d"))
    >>> schema = apply(schema, parse("CREATE TABLE d.t (a INT)"))
    >>> apply(schema, parse("ALTER TABLE d.t ADD b INT FIRST")).table(TableName("d", "t")).columns[0].name
    'b'

A statement is applied as a whole or, with a DdlError, not at all. Not looked at are rows (a key that they would break),
the limits of storage engines, foreign keys, partitions, types within expressions, and the queries of views.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import assert_never

from cdc_lakehouse.changelog.charsets import SERVER_DEFAULT, charset_named
from cdc_lakehouse.changelog.ddl import clauses as ddl
from cdc_lakehouse.changelog.ddl.definitions import TableName
from cdc_lakehouse.changelog.ddl.parser import parse
from cdc_lakehouse.changelog.ddl_apply_alter import altered
from cdc_lakehouse.changelog.ddl_apply_columns import check_name
from cdc_lakehouse.changelog.ddl_apply_table import check, created, created_from_query
from cdc_lakehouse.changelog.ddl_schema import Database, Schema, TableSchema
from cdc_lakehouse.errors import DdlError

__all__ = ["Database", "Schema", "TableName", "apply", "parse"]


def apply(schema: Schema, statement: Sequence[ddl.Clause]) -> Schema:
    """The schema after a statement, given by all of its clauses. Raises DdlError where the server would refuse it."""
    _check_dropped_once(schema, statement)
    alterations = [clause for clause in statement if isinstance(clause, ddl.TableClause) and clause.table is not None]
    others = [clause for clause in statement if not isinstance(clause, ddl.TableClause)]
    if alterations:
        schema = _altered(schema, alterations)
    if any(isinstance(clause, ddl.RenameTable) and clause.altering for clause in others):
        # ALTER TABLE renames last, wherever that stands, and only to the last of the names.
        others = others[-1:]
    for clause in others:
        schema = _applied(schema, clause)
    return schema


def _applied(schema: Schema, clause: ddl.StatementClause) -> Schema:
    match clause:
        case ddl.CreateTable() | ddl.CreateTableLike() | ddl.CreateTableAsSelect():
            return _created(schema, clause)
        case ddl.DropTable():
            return _dropped(schema, clause)
        case ddl.RenameTable():
            return _renamed(schema, clause)
        case ddl.TruncateTable(table):
            if schema.qualified(table) not in schema.temporary:
                schema.table(table)
            return schema
        case ddl.CreateDatabase() | ddl.DropDatabase() | ddl.AlterDatabase() | ddl.UseDatabase():
            return _of_database(schema, clause)
        case ddl.RecoverTable() | ddl.Flashback():
            raise DdlError("what was dropped before is not kept: a table that is recovered cannot be told")
        case _:
            assert_never(clause)


# --- Tables ---


def _created(schema: Schema, clause: ddl.CreateTable | ddl.CreateTableLike | ddl.CreateTableAsSelect) -> Schema:
    name = schema.qualified(clause.table)
    database = schema.database(name.database)
    check_name(name.name, "table")
    lenient = clause.definition.if_not_exists if isinstance(clause, ddl.CreateTableAsSelect) else clause.if_not_exists
    if isinstance(clause, ddl.CreateTableLike):
        _check_source(schema, clause)
    if clause.temporary:
        if name in schema.temporary and not lenient:
            raise DdlError(f"table {name} exists already")
        return replace(schema, temporary=schema.temporary | {name})
    if database.holds(name.name):
        if not lenient:
            raise DdlError(f"table {name} exists already")
        if isinstance(clause, ddl.CreateTable):
            check(clause, database.charset)
        return schema
    match clause:
        case ddl.CreateTable():
            table = created(clause, database.charset)
        case ddl.CreateTableLike():
            table = _renumbered(schema.table(clause.source))
        case ddl.CreateTableAsSelect():
            table = created_from_query(clause, database.charset)
        case _:
            assert_never(clause)
    return schema.with_table(name, table)


def _check_source(schema: Schema, clause: ddl.CreateTableLike) -> None:
    source = schema.qualified(clause.source)
    if source in schema.temporary:
        raise DdlError(f"the columns of temporary tables are not kept, as those of {source}")
    if source == schema.qualified(clause.table):
        raise DdlError(f"table {source} cannot be made like itself")
    schema.table(source)


def _renumbered(table: TableSchema) -> TableSchema:
    """A table like that one, its columns with ids of their own."""
    ids = {column.id: number for number, column in enumerate(table.columns, start=1)}
    keys = tuple(
        replace(
            key,
            parts=tuple(replace(part, column=None if part.column is None else ids[part.column]) for part in key.parts),
        )
        for key in table.keys
    )
    columns = tuple(replace(column, id=ids[column.id]) for column in table.columns)
    return replace(table, columns=columns, keys=keys, next_id=len(columns) + 1)


def _check_dropped_once(schema: Schema, statement: Sequence[ddl.Clause]) -> None:
    names = [schema.qualified(clause.table) for clause in statement if isinstance(clause, ddl.DropTable)]
    if len(set(names)) < len(names):
        raise DdlError("a table is named twice in one DROP TABLE")


def _dropped(schema: Schema, clause: ddl.DropTable) -> Schema:
    name = schema.qualified(clause.table)
    if name in schema.temporary:
        return replace(schema, temporary=schema.temporary - {name})
    database = schema.databases.get(name.database or "")
    if clause.temporary or database is None or name.name not in database.tables:
        if clause.if_exists:
            return schema
        raise DdlError(f"table {name} does not exist and cannot be dropped")
    return schema.without_tables([name])


def _altered(schema: Schema, clauses: Sequence[ddl.TableClause]) -> Schema:
    name = next(schema.qualified(clause.table) for clause in clauses if clause.table is not None)
    if name in schema.temporary:
        return schema
    table = altered(schema.table(name), clauses, schema.database(name.database).charset)
    for clause in clauses:
        if isinstance(clause, ddl.ExchangePartition):
            schema.table(clause.other)
    return schema.with_table(name, table)


def _renamed(schema: Schema, clause: ddl.RenameTable) -> Schema:
    old, new = schema.qualified(clause.table), schema.qualified(clause.new_name)
    if clause.if_exists and not schema.holds(old):
        return schema
    source, target = schema.database(old.database), schema.database(new.database)
    check_name(new.name, "table")
    if clause.altering and new == old and old.name in source.tables:
        return schema
    if target.holds(new.name):
        raise DdlError(f"table {new} exists already")
    if old.name in source.views:
        if old.database != new.database:
            raise DdlError(f"view {old} cannot be moved to another database")
        return schema.with_views(source, source.views - {old.name} | {new.name})
    table = schema.table(old)
    return schema.without_tables([old]).with_table(new, table)


# --- Databases ---


def _of_database(
    schema: Schema, clause: ddl.CreateDatabase | ddl.DropDatabase | ddl.AlterDatabase | ddl.UseDatabase
) -> Schema:
    match clause:
        case ddl.CreateDatabase(name, lenient, charset, collation):
            check_name(name, "database")
            own = charset_named(charset, collation) or SERVER_DEFAULT
            if name not in schema.databases:
                return schema.with_database(Database(name, own))
            if not lenient:
                raise DdlError(f"database {name} exists already")
            return schema
        case ddl.DropDatabase(name, lenient):
            if name in schema.databases or not lenient:
                schema = schema.without_database(schema.database(name).name)
            return schema
        case ddl.AlterDatabase(name, charset, collation):
            database = schema.database(name or schema.session)
            own = charset_named(charset, collation)
            return schema.with_database(replace(database, charset=own or database.charset))
        case ddl.UseDatabase(name):
            return replace(schema.with_database(schema.database(name)), session=name)
        case _:
            assert_never(clause)
