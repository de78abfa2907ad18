"""DDL text of MySQL (5.7 to 8.4) and TiDB, as clauses.

    >>> parse("RENAME TABLE a TO b")[0].new_name
    TableName(database=None, name='b')

There is no fallback: what is not understood is an error. Only statements that no table's rows depend on
(users, routines and so on) are told by their first words alone.

To add a statement: a function of the cursor, after its words, and its row in one of the tables at the end.
To add a clause of ALTER TABLE, see `ddl_alter`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final

from cdc_lakehouse.changelog.ddl.alter import add_key, read_alter_table
from cdc_lakehouse.changelog.ddl.clauses import (
    AlterDatabase,
    Clause,
    CreateDatabase,
    CreateTable,
    CreateTableAsSelect,
    CreateTableLike,
    CreateView,
    DropDatabase,
    DropIndex,
    DropTable,
    DropView,
    Flashback,
    OtherStatement,
    Placement,
    RecoverTable,
    RenameTable,
    Sequence,
    TableName,
    TruncateTable,
    UseDatabase,
)
from cdc_lakehouse.changelog.ddl.columns import read_definition
from cdc_lakehouse.changelog.ddl.create import read_create_table
from cdc_lakehouse.changelog.ddl.cursor import Cursor
from cdc_lakehouse.changelog.ddl.keys import read_create_index, skip_index_options
from cdc_lakehouse.changelog.ddl.tokens import DEFAULT_MODE, SqlMode
from cdc_lakehouse.changelog.ddl.types import accept_charset, read_charset
from cdc_lakehouse.changelog.mysql_types import ColumnType

Clauses = tuple[Clause, ...]
Statement = Callable[[Cursor], Clauses]

_MOST_WORDS: Final = 3


def parse(statement: str, *, ansi_quotes: bool = False, backslash_escapes: bool = True) -> Clauses:
    """All clauses of one statement, in order; none where it changes nothing (`ALTER TABLE t LOCK = NONE`).

    `ansi_quotes` says that the source's sql_mode has ANSI_QUOTES: double quotes enclose names. (Where only a
    name can stand they do so in any case.) `backslash_escapes` is False where it has NO_BACKSLASH_ESCAPES,
    and for what TiCDC re-prints: it writes strings without escaping their backslashes. Raises
    DdlSyntaxError, and nothing else, for what is not one statement understood.
    """
    cursor = Cursor(statement, SqlMode(ansi_quotes, backslash_escapes))
    clauses = _dispatch(cursor, _STATEMENTS, "a DDL statement")
    while cursor.accept(";"):
        pass
    if not cursor.at_end:
        raise cursor.expected("the end")
    return clauses


def parse_type(text: str) -> ColumnType:
    """The type of a column that is declared as `text`: `int unsigned`, `enum('a','b')`; attributes may follow it.

    Raises DdlSyntaxError.
    """
    cursor = Cursor(text, DEFAULT_MODE)
    column = read_definition(cursor, "")
    if not cursor.at_end:
        raise cursor.expected("the end")
    return column.type


def _dispatch(cursor: Cursor, statements: Mapping[tuple[str, ...], Statement], what: str) -> Clauses:
    """Calls the function of the longest row that the next words match."""
    for count in range(_MOST_WORDS, 0, -1):
        words = cursor.words(count)
        if words in statements:
            cursor.expect(*words)
            return statements[words](cursor)
    raise cursor.expected(what)


# --- Tables ---


def _create_table(cursor: Cursor) -> Clauses:
    return (read_create_table(cursor, temporary=False),)


def _create_temporary_table(cursor: Cursor) -> Clauses:
    return (read_create_table(cursor, temporary=True),)


def _drop_table(cursor: Cursor) -> Clauses:
    return _drop_tables(cursor, temporary=False)


def _drop_temporary_table(cursor: Cursor) -> Clauses:
    return _drop_tables(cursor, temporary=True)


def _drop_tables(cursor: Cursor, *, temporary: bool) -> Clauses:
    if_exists = cursor.if_exists()
    names = cursor.listed(cursor.table_name)
    cursor.accept_any(("RESTRICT", "CASCADE"))
    return tuple(DropTable(name, if_exists, temporary) for name in names)


def _truncate(cursor: Cursor) -> Clauses:
    cursor.accept("TABLE")
    return (TruncateTable(cursor.table_name()),)


def _rename_tables(cursor: Cursor) -> Clauses:
    if_exists = cursor.if_exists()

    def read_pair() -> RenameTable:
        name = cursor.table_name()
        cursor.expect("TO")
        return RenameTable(name, cursor.table_name(), if_exists)

    return cursor.listed(read_pair)


def _recover_table(cursor: Cursor) -> Clauses:
    """TiDB: RECOVER TABLE name [number], or BY JOB number."""
    if cursor.accept("BY", "JOB"):
        cursor.integer()
        return (RecoverTable(None),)
    table = cursor.table_name()
    if not (cursor.at_end or cursor.at(";")):
        cursor.integer()
    return (RecoverTable(table),)


def _flashback_table(cursor: Cursor) -> Clauses:
    """TiDB: FLASHBACK TABLE name [TO new name], or names TO TIMESTAMP or TSO."""
    table, *others = cursor.listed(cursor.table_name)
    if _accept_time(cursor):
        return (Flashback("table", tables=(table, *others)),)
    if others:
        raise cursor.expected("TO TIMESTAMP")
    return (RecoverTable(table, cursor.name() if cursor.accept("TO") else None),)


def _flashback_database(cursor: Cursor) -> Clauses:
    name = cursor.name("a database")
    if not _accept_time(cursor) and cursor.accept("TO"):
        cursor.name("a database")
    return (Flashback("database", name),)


def _flashback_cluster(cursor: Cursor) -> Clauses:
    if not _accept_time(cursor):
        raise cursor.expected("TO TIMESTAMP or TO TSO")
    return (Flashback("cluster"),)


def _accept_time(cursor: Cursor) -> bool:
    if cursor.words(2) == ("TO", "TIMESTAMP"):
        cursor.expect("TO", "TIMESTAMP")
        cursor.string()
        return True
    if cursor.words(2) == ("TO", "TSO"):
        cursor.expect("TO", "TSO")
        cursor.integer()
        return True
    return False


# --- Indexes ---


def _drop_index(cursor: Cursor) -> Clauses:
    if_exists = cursor.if_exists()
    name = cursor.name("an index")
    cursor.expect("ON")
    table = cursor.table_name()
    skip_index_options(cursor)
    return (DropIndex(table, name, if_exists),)


# --- Databases and views ---


def _create_database(cursor: Cursor) -> Clauses:
    if_not_exists = cursor.if_not_exists()
    name = cursor.name("a database")
    return (CreateDatabase(name, if_not_exists, *_database_charset(cursor)),)


def _drop_database(cursor: Cursor) -> Clauses:
    if_exists = cursor.if_exists()
    return (DropDatabase(cursor.name("a database"), if_exists),)


def _alter_database(cursor: Cursor) -> Clauses:
    name = None if cursor.token.word in _DATABASE_OPTIONS else cursor.name("a database")
    if cursor.at_end:
        raise cursor.expected("more")
    return (AlterDatabase(name, *_database_charset(cursor)),)


def _database_charset(cursor: Cursor) -> tuple[str | None, str | None]:
    """Skips a database's options; its character set and collation."""
    charset = collation = None
    while not (cursor.at_end or cursor.at(";")):
        if accept_charset(cursor):
            cursor.accept("=")
            charset = read_charset(cursor)
        elif cursor.accept("COLLATE"):
            cursor.accept("=")
            collation = read_charset(cursor)
        else:
            cursor.take()
    return charset, collation


def _use(cursor: Cursor) -> Clauses:
    return (UseDatabase(cursor.name("a database")),)


def _create_view(cursor: Cursor) -> Clauses:
    cursor.if_not_exists()
    return (CreateView(_read_view(cursor)),)


def _alter_view(cursor: Cursor) -> Clauses:
    return (CreateView(_read_view(cursor), or_replace=True),)


def _read_view(cursor: Cursor) -> TableName:
    view = cursor.table_name()
    if cursor.at("("):
        cursor.parenthesized()
    cursor.expect("AS")
    cursor.skip_rest()
    return view


def _drop_view(cursor: Cursor) -> Clauses:
    if_exists = cursor.if_exists()
    views = cursor.listed(cursor.table_name)
    cursor.accept_any(("RESTRICT", "CASCADE"))
    return tuple(DropView(view, if_exists) for view in views)


# --- CREATE and ALTER of what may have a definer ---


def _create(cursor: Cursor) -> Clauses:
    _skip_definer(cursor)
    index = read_create_index(cursor)
    if index is not None:
        return (add_key(*index),)
    return _dispatch(cursor, _CREATE, "what is created")


def _create_or_replace(cursor: Cursor) -> Clauses:
    clauses: list[Clause] = []
    for clause in _create(cursor):
        match clause:
            case CreateView():
                clauses.append(replace(clause, or_replace=True))
            case CreateTable() | CreateTableLike() | CreateTableAsSelect():
                # MariaDB: it drops the table that there is.
                clauses += (DropTable(clause.table, if_exists=True, temporary=clause.temporary), clause)
            case _:
                clauses.append(clause)
    return tuple(clauses)


def _alter(cursor: Cursor) -> Clauses:
    _skip_definer(cursor)
    return _dispatch(cursor, _ALTER, "what is altered")


def _skip_definer(cursor: Cursor) -> None:
    """ALGORITHM = ..., DEFINER = user, SQL SECURITY ..., in this order."""
    if cursor.accept("ALGORITHM"):
        cursor.expect("=")
        cursor.name("an algorithm")
    if cursor.accept("DEFINER"):
        cursor.expect("=")
        cursor.word_or_string("a user")
        if cursor.accept("("):
            cursor.expect(")")
        if cursor.accept("@"):
            cursor.word_or_string("a host")
    if cursor.accept("SQL", "SECURITY"):
        cursor.expect_any(("DEFINER", "INVOKER"), "DEFINER or INVOKER")


# --- Statements told by their first words ---


def _sequence(action: str) -> Statement:
    def read(cursor: Cursor) -> Clauses:
        cursor.skip_rest()
        return (Sequence(action),)

    return read


def _policy(cursor: Cursor) -> Clauses:
    cursor.skip_rest()
    return (Placement(None, "placement policy"),)


def _other(words: str) -> Statement:
    def read(cursor: Cursor) -> Clauses:
        cursor.skip_until(())
        return (OtherStatement(words),)

    return read


def _routine(words: str) -> Statement:
    def read(cursor: Cursor) -> Clauses:
        # The body is a program, with semicolons of its own.
        while not cursor.at_end:
            cursor.take()
        return (OtherStatement(words),)

    return read


def _each(read: Callable[[str], Statement], verb: str, *objects: str) -> dict[tuple[str, ...], Statement]:
    return {tuple(words.split()): read(f"{verb} {words.lower()}") for words in objects}


_ROUTINES: Final = ("PROCEDURE", "FUNCTION", "AGGREGATE FUNCTION", "TRIGGER", "EVENT", "LIBRARY")
_OBJECTS: Final = (
    "USER", "ROLE", "SERVER", "TABLESPACE", "UNDO TABLESPACE", "LOGFILE GROUP", "RESOURCE GROUP",
    "SPATIAL REFERENCE SYSTEM", "BINDING", "GLOBAL BINDING", "SESSION BINDING", "STATISTICS",
)  # fmt: skip
_VERBS: Final = (
    "ADMIN", "ANALYZE", "FLUSH", "GRANT", "INSTALL", "LOCK", "OPTIMIZE", "RENAME USER", "REPAIR", "REVOKE",
    "SET", "SPLIT", "UNINSTALL", "UNLOCK",
)  # fmt: skip
_DATABASE_OPTIONS: Final = frozenset({
    "DEFAULT", "CHARACTER", "CHAR", "CHARSET", "COLLATE", "ENCRYPTION", "READ", "PLACEMENT", "COMMENT",
})  # fmt: skip

_CREATE: Final[dict[tuple[str, ...], Statement]] = {
    ("TABLE",): _create_table, ("TEMPORARY", "TABLE"): _create_temporary_table,
    ("GLOBAL", "TEMPORARY", "TABLE"): _create_temporary_table,
    ("DATABASE",): _create_database, ("SCHEMA",): _create_database, ("VIEW",): _create_view,
    ("SEQUENCE",): _sequence("create"), ("PLACEMENT", "POLICY"): _policy,
    **_each(_other, "create", *_OBJECTS), **_each(_routine, "create", *_ROUTINES),
}  # fmt: skip

_ALTER: Final[dict[tuple[str, ...], Statement]] = {
    ("TABLE",): read_alter_table, ("IGNORE", "TABLE"): read_alter_table,
    ("ONLINE", "TABLE"): read_alter_table, ("OFFLINE", "TABLE"): read_alter_table,
    ("ONLINE", "IGNORE", "TABLE"): read_alter_table, ("DATABASE",): _alter_database,
    ("SCHEMA",): _alter_database, ("VIEW",): _alter_view, ("SEQUENCE",): _sequence("alter"),
    ("PLACEMENT", "POLICY"): _policy, ("RANGE",): _policy, **_each(_other, "alter", *_OBJECTS, "INSTANCE"),
    **_each(_routine, "alter", *_ROUTINES),
}  # fmt: skip

_DROP: Final[dict[tuple[str, ...], Statement]] = {
    ("TABLE",): _drop_table, ("TABLES",): _drop_table, ("TEMPORARY", "TABLE"): _drop_temporary_table,
    ("TEMPORARY", "TABLES"): _drop_temporary_table, ("GLOBAL", "TEMPORARY", "TABLE"): _drop_temporary_table,
    ("DATABASE",): _drop_database, ("SCHEMA",): _drop_database, ("VIEW",): _drop_view,
    ("INDEX",): _drop_index, ("SEQUENCE",): _sequence("drop"), ("PLACEMENT", "POLICY"): _policy,
    **_each(_other, "drop", *_OBJECTS, *_ROUTINES, "STATS"),
}  # fmt: skip

_STATEMENTS: Final[dict[tuple[str, ...], Statement]] = {
    ("CREATE",): _create, ("CREATE", "OR", "REPLACE"): _create_or_replace, ("ALTER",): _alter,
    ("DROP",): lambda cursor: _dispatch(cursor, _DROP, "what is dropped"),
    ("TRUNCATE",): _truncate, ("RENAME", "TABLE"): _rename_tables, ("RENAME", "TABLES"): _rename_tables,
    ("RECOVER", "TABLE"): _recover_table, ("FLASHBACK", "TABLE"): _flashback_table,
    ("FLASHBACK", "DATABASE"): _flashback_database, ("FLASHBACK", "SCHEMA"): _flashback_database,
    ("FLASHBACK", "CLUSTER"): _flashback_cluster, ("USE",): _use,
    **{tuple(words.split()): _other(words.lower()) for words in _VERBS},
}  # fmt: skip
