"""Parse DDL text of MySQL (5.7 to 8.4), MariaDB and TiDB into clauses.

    >>> parse("RENAME TABLE a TO b")[0].new_name
    TableRef(database=None, name='b')
    >>> parse_type("INT(10) UNSIGNED").unsigned
    True

There is no fallback: an unknown statement is an error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Final

from cdc_lakehouse.changelog.ddl import clauses as ddl
from cdc_lakehouse.changelog.ddl.alter import read_alter_ignore, read_alter_table
from cdc_lakehouse.changelog.ddl.columns import read_definition
from cdc_lakehouse.changelog.ddl.create import read_create_table
from cdc_lakehouse.changelog.ddl.cursor import Cursor
from cdc_lakehouse.changelog.ddl.keys import read_create_index
from cdc_lakehouse.changelog.ddl.tokens import DEFAULT_MODE, SqlMode
from cdc_lakehouse.changelog.mysql_types import ColumnType

Statement = Callable[[Cursor], ddl.Clauses]


def parse(statement: str, *, ansi_quotes: bool = False, backslash_escapes: bool = True) -> ddl.Clauses:
    """Parse one statement into its clauses, in order; none where it changes nothing (`ALTER TABLE t LOCK = NONE`, or a
    comment alone).

    `ansi_quotes` says that the source's sql_mode has ANSI_QUOTES: double quotes enclose names. (Where only a name is
    possible they always do.) `backslash_escapes` is False where it has NO_BACKSLASH_ESCAPES, and for statements that
    TiCDC re-prints: it does not escape the backslashes of strings. Raises DdlSyntaxError, and nothing else, for
    anything but exactly one known statement.
    """
    cursor = Cursor(statement, SqlMode(ansi_quotes, backslash_escapes))
    clauses = () if statement and cursor.at_end else _dispatch(cursor, _STATEMENTS, "a DDL statement")
    while cursor.accept(";"):
        pass
    if not cursor.at_end:
        raise cursor.expected("the end")
    return clauses


def parse_type(text: str) -> ColumnType:
    """Return the type of a column that is declared as `text`: `int unsigned`, `enum('a','b')`; attributes may follow
    it.

    Raises DdlSyntaxError.
    """
    cursor = Cursor(text, DEFAULT_MODE)
    column = read_definition(cursor, "")
    if not cursor.at_end:
        raise cursor.expected("the end")
    return column.type


def _dispatch(cursor: Cursor, statements: Mapping[tuple[str, ...], Statement], what: str) -> ddl.Clauses:
    """Call the function for the longest entry of `statements` that the next words match."""
    read = cursor.accept_longest(statements)
    if read is None:
        raise cursor.expected(what)
    return read(cursor)


# --- Tables ---


def _create_table(cursor: Cursor, *, temporary: bool = False) -> ddl.Clauses:
    return (read_create_table(cursor, temporary=temporary),)


def _drop_tables(cursor: Cursor, *, temporary: bool = False) -> ddl.Clauses:
    if_exists = cursor.if_exists()
    names = cursor.listed(cursor.table_name)
    cursor.accept_any(("RESTRICT", "CASCADE"))
    return tuple(ddl.DropTable(name, if_exists, temporary) for name in names)


def _truncate(cursor: Cursor) -> ddl.Clauses:
    cursor.accept("TABLE")
    return (ddl.TruncateTable(cursor.table_name()),)


def _rename_tables(cursor: Cursor) -> ddl.Clauses:
    if_exists = cursor.if_exists()

    def read_pair() -> ddl.RenameTable:
        name = cursor.table_name()
        cursor.expect("TO")
        return ddl.RenameTable(name, cursor.table_name(), if_exists)

    return cursor.listed(read_pair)


def _recover_table(cursor: Cursor) -> ddl.Clauses:
    """Read TiDB's RECOVER TABLE name [number], or BY JOB number."""
    if cursor.accept("BY", "JOB"):
        cursor.integer()
        return (ddl.RecoverTable(None),)
    table = cursor.table_name()
    if not (cursor.at_end or cursor.at(";")):
        cursor.integer()
    return (ddl.RecoverTable(table),)


def _flashback_table(cursor: Cursor) -> ddl.Clauses:
    """Read TiDB's FLASHBACK TABLE name [TO new name], or names TO TIMESTAMP or TSO."""
    table, *others = cursor.listed(cursor.table_name)
    if _accept_time(cursor):
        return (ddl.Flashback("table", tables=(table, *others)),)
    if others:
        raise cursor.expected("TO TIMESTAMP")
    return (ddl.RecoverTable(table, cursor.name() if cursor.accept("TO") else None),)


def _flashback_database(cursor: Cursor) -> ddl.Clauses:
    name = cursor.name("a database")
    if _accept_time(cursor):
        return (ddl.Flashback("database", name),)
    return (ddl.RecoverDatabase(name, cursor.name("a database") if cursor.accept("TO") else None),)


def _flashback_cluster(cursor: Cursor) -> ddl.Clauses:
    if not _accept_time(cursor):
        raise cursor.expected("TO TIMESTAMP or TO TSO")
    return (ddl.Flashback("cluster"),)


def _accept_time(cursor: Cursor) -> bool:
    if cursor.accept("TO", "TIMESTAMP"):
        cursor.string()
        return True
    if cursor.accept("TO", "TSO"):
        cursor.integer()
        return True
    return False


# --- Indexes ---


def _drop_index(cursor: Cursor) -> ddl.Clauses:
    if_exists = cursor.if_exists()
    name = cursor.name("an index")
    cursor.expect("ON")
    table = cursor.table_name()
    cursor.skip_clause()
    return (ddl.DropIndex(table, name, if_exists),)


# --- Databases and views ---


def _create_database(cursor: Cursor) -> ddl.Clauses:
    if_not_exists = cursor.if_not_exists()
    name = cursor.name("a database")
    return (ddl.CreateDatabase(name, if_not_exists, *_database_charset(cursor)),)


def _drop_database(cursor: Cursor) -> ddl.Clauses:
    if_exists = cursor.if_exists()
    return (ddl.DropDatabase(cursor.name("a database"), if_exists),)


def _database_charset(cursor: Cursor) -> tuple[str | None, str | None]:
    """Skip a database's options; return its character set and collation."""
    charset = collation = None
    while not (cursor.at_end or cursor.at(";")):
        if cursor.accept_charset():
            charset = cursor.charset_name()
        elif cursor.accept("COLLATE"):
            collation = cursor.charset_name()
        else:
            cursor.take()
    return charset, collation


def _use(cursor: Cursor) -> ddl.Clauses:
    return (ddl.UseDatabase(cursor.name("a database")),)


def _create_view(cursor: Cursor) -> ddl.Clauses:
    """Read CREATE VIEW, or ALTER VIEW, which is the same as OR REPLACE."""
    cursor.if_not_exists()
    cursor.table_name()
    if cursor.at("("):
        cursor.parenthesized()
    cursor.expect("AS")
    cursor.skip_rest()
    return (cursor.no_effect(None, "create_view"),)


# --- CREATE and ALTER, where a definer may follow ---


def _create(cursor: Cursor) -> ddl.Clauses:
    _skip_definer(cursor)
    index = read_create_index(cursor)
    return _dispatch(cursor, _CREATE, "what is created") if index is None else (index,)


def _create_or_replace(cursor: Cursor) -> ddl.Clauses:
    match _create(cursor):
        case (ddl.CreateTable() | ddl.CreateTableLike() | ddl.CreateTableAsSelect() as created,):
            # MariaDB's OR REPLACE drops the existing table.
            return ddl.DropTable(created.table, if_exists=True, temporary=created.temporary), created
        case clauses:
            return clauses


def _alter(cursor: Cursor) -> ddl.Clauses:
    _skip_definer(cursor)
    return _dispatch(cursor, _ALTER, "what is altered")


def _skip_definer(cursor: Cursor) -> None:
    """Skip ALGORITHM = ..., DEFINER = user, SQL SECURITY ..., in this order."""
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


# --- Statements that affect no table's rows: recognised by their first words ---


def _no_effect(kind: ddl.NoEffectKind, *, alone: bool = False) -> Statement:
    """Return the reader of a statement that affects no table's rows; `alone`: its first words can be all of it."""

    def read(cursor: Cursor) -> ddl.Clauses:
        cursor.skip_until(()) if alone else cursor.skip_rest()
        return (cursor.no_effect(None, kind),)

    return read


def _routine(cursor: Cursor) -> ddl.Clauses:
    # The body is a program that contains semicolons.
    while not cursor.at_end:
        cursor.take()
    return (cursor.no_effect(None, "other"),)


def _rows(read: Statement, words: Iterable[str]) -> dict[tuple[str, ...], Statement]:
    return {tuple(each.split()): read for each in words}


_ROUTINES: Final = ("PROCEDURE", "FUNCTION", "AGGREGATE FUNCTION", "TRIGGER", "EVENT", "LIBRARY")
_OBJECTS: Final = (
    "USER", "ROLE", "SERVER", "TABLESPACE", "UNDO TABLESPACE", "LOGFILE GROUP", "RESOURCE GROUP",
    "SPATIAL REFERENCE SYSTEM", "BINDING", "GLOBAL BINDING", "SESSION BINDING", "STATISTICS",
)  # fmt: skip
_VERBS: Final = (
    # Users, plugins, settings, locks, statistics and storage.
    "ADMIN", "ANALYZE", "FLUSH", "GRANT", "INSTALL", "KILL", "LOAD STATS", "LOCK", "OPTIMIZE", "RENAME USER",
    "REPAIR", "REVOKE", "SET", "SPLIT", "UNINSTALL", "UNLOCK",
    # They read, or run statements that are in the log by themselves.
    "CALL", "CHECK TABLE", "CHECKSUM", "DO",
    # Parts of transactions, whose rows are in the log by themselves.
    "RELEASE SAVEPOINT", "SAVEPOINT", "XA",
)  # fmt: skip

_other: Final = _no_effect("other")
_sequence: Final = _no_effect("sequence")
_policy: Final = _no_effect("placement_tiflash_ttl_etc")
_create_temporary: Final = partial(_create_table, temporary=True)
_drop_temporary: Final = partial(_drop_tables, temporary=True)

_CREATE: Final[dict[tuple[str, ...], Statement]] = {
    ("TABLE",): _create_table, ("TEMPORARY", "TABLE"): _create_temporary,
    ("GLOBAL", "TEMPORARY", "TABLE"): _create_temporary, ("DATABASE",): _create_database,
    ("SCHEMA",): _create_database, ("VIEW",): _create_view, ("SEQUENCE",): _sequence,
    ("PLACEMENT", "POLICY"): _policy, **_rows(_other, _OBJECTS), **_rows(_routine, _ROUTINES),
}  # fmt: skip

_ALTER: Final[dict[tuple[str, ...], Statement]] = {
    **_rows(read_alter_table, ("TABLE", "ONLINE TABLE", "OFFLINE TABLE")),
    **_rows(read_alter_ignore, ("IGNORE TABLE", "ONLINE IGNORE TABLE")),
    **_rows(_no_effect("alter_database"), ("DATABASE", "SCHEMA")), ("VIEW",): _create_view,
    ("SEQUENCE",): _sequence, ("PLACEMENT", "POLICY"): _policy, ("RANGE",): _policy,
    **_rows(_other, (*_OBJECTS, "INSTANCE")), **_rows(_routine, _ROUTINES),
}  # fmt: skip

_DROP: Final[dict[tuple[str, ...], Statement]] = {
    ("TABLE",): _drop_tables, ("TABLES",): _drop_tables,
    **_rows(_drop_temporary, ("TEMPORARY TABLE", "TEMPORARY TABLES", "GLOBAL TEMPORARY TABLE")),
    ("DATABASE",): _drop_database, ("SCHEMA",): _drop_database, ("VIEW",): _no_effect("drop_view"),
    ("INDEX",): _drop_index, ("SEQUENCE",): _sequence, ("PLACEMENT", "POLICY"): _policy,
    **_rows(_other, (*_OBJECTS, *_ROUTINES, "STATS")),
}  # fmt: skip

_STATEMENTS: Final[dict[tuple[str, ...], Statement]] = {
    ("CREATE",): _create, ("CREATE", "OR", "REPLACE"): _create_or_replace, ("ALTER",): _alter,
    ("DROP",): lambda cursor: _dispatch(cursor, _DROP, "what is dropped"),
    ("TRUNCATE",): _truncate, ("RENAME", "TABLE"): _rename_tables, ("RENAME", "TABLES"): _rename_tables,
    ("RECOVER", "TABLE"): _recover_table, ("FLASHBACK", "TABLE"): _flashback_table,
    ("FLASHBACK", "DATABASE"): _flashback_database, ("FLASHBACK", "SCHEMA"): _flashback_database,
    ("FLASHBACK", "CLUSTER"): _flashback_cluster, ("USE",): _use, **_rows(_other, _VERBS),
    **_rows(_no_effect("other", alone=True), ("BEGIN", "COMMIT", "ROLLBACK", "START TRANSACTION")),
}  # fmt: skip
