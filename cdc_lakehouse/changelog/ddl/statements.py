"""Parse DDL text of MySQL (5.7 to 8.4), MariaDB and TiDB into clauses. An unknown statement is an error.

    >>> [clause.kind for clause in parse("ALTER TABLE t DROP a, ADD INDEX (b)")]
    ['drop_column', 'add_index']

To add a clause that changes no row, add its first words to `_NO_EFFECT`, with the reason; one that changes rows as
neither the log nor the statement says, with `_skipped`. Else write a function that takes the cursor (after the words)
and the table, and add it to `_CLAUSES`. A statement with any other clause is not understood.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Final, Literal

from cdc_lakehouse.changelog.ddl import clauses as ddl
from cdc_lakehouse.changelog.ddl.definitions import (
    UNVERSIONED,
    VERSIONED,
    read_column,
    read_conversion,
    read_create_index,
    read_default,
    read_definition,
    read_key_element,
    read_option,
    read_position,
)
from cdc_lakehouse.changelog.ddl.lexer import Cursor
from cdc_lakehouse.changelog.ddl.partitions import PARTITION_CLAUSES, UNLOGGED_FILES, read_partition_by
from cdc_lakehouse.changelog.mysql_types import ColumnType

_QUERY_WORDS: Final = frozenset({"SELECT", "WITH", "VALUES", "TABLE", "("})


def _create_table(cursor: Cursor, *, temporary: bool = False) -> tuple[ddl.CreateTable]:
    """Read the rest of a statement after CREATE TABLE."""
    if_not_exists = cursor.accept("IF", "NOT", "EXISTS")
    table = cursor.table_name()
    in_parentheses = cursor.accept("(", "LIKE")
    if in_parentheses or cursor.accept("LIKE"):
        like = cursor.table_name()
        if in_parentheses:
            cursor.expect(")")
        return (ddl.CreateTable(table, like=like, if_not_exists=if_not_exists, temporary=temporary),)
    clauses: list[ddl.Clause] = []
    if cursor.at("(") and cursor.next_token.word not in _QUERY_WORDS:
        clauses += cursor.enclosed(lambda: read_key_element(cursor, table) or ddl.AddColumn(table, read_column(cursor)))
    if any(isinstance(clause, ddl.AddColumn) and clause.column.versioned for clause in clauses):
        clauses.append(ddl.OtherClause(table, *VERSIONED))
    while True:
        if cursor.accept("PARTITION", "BY"):
            clauses += read_partition_by(cursor, table)
        elif cursor.accept("ON", "COMMIT"):
            cursor.expect_any(("DELETE", "PRESERVE"), "DELETE or PRESERVE")
            cursor.expect("ROWS")
        # MySQL 8.0.21 logs CREATE TABLE ... SELECT with this option, and the rows as separate events.
        elif not cursor.accept("START", "TRANSACTION"):
            separated = cursor.accept(",")
            option = read_option(cursor, table)
            if option is None and separated:
                raise cursor.expected("a table option")
            if option is None:
                break
            clauses.append(option)
    handles_duplicates = cursor.accept_any(("IGNORE", "REPLACE")) is not None
    announced = cursor.accept("AS") or handles_duplicates
    has_query = cursor.token.word in _QUERY_WORDS
    if has_query:
        cursor.skip_rest()
    elif announced:
        raise cursor.expected("a query")
    return (ddl.CreateTable(table, tuple(clauses), None, has_query, if_not_exists, temporary),)


def _alter_table(cursor: Cursor) -> ddl.Clauses:
    """Read the rest of a statement after ALTER TABLE; empty where it changes nothing (only ALGORITHM, LOCK ...)."""
    cursor.accept("IF", "EXISTS")
    table = cursor.table_name()
    if cursor.accept("WAIT"):  # MariaDB
        cursor.integer()
    else:
        cursor.accept("NOWAIT")
    clauses: list[ddl.Clause] = []
    start = cursor.position
    while not cursor.at_statement_end:
        # Partition clauses and placement of a partition need no comma before them.
        needs_comma = cursor.position > start and not (cursor.at("PARTITION") or cursor.at("REMOVE", "PARTITIONING"))
        if needs_comma and not cursor.accept(","):
            raise cursor.expected("a comma or the end")
        options = tuple(iter(lambda: read_option(cursor, table), None))
        read = None if options else cursor.accept_longest(_CLAUSES)
        if read is None and not options:
            raise cursor.expected("an ALTER TABLE clause")
        clauses += options if read is None else read(cursor, table)
    return tuple(clauses)


_IGNORED: Final = "it removes or cuts the rows that do not fit, and the log does not say which"


def _alter_ignore(cursor: Cursor) -> ddl.Clauses:
    """Read the rest of a statement after ALTER IGNORE TABLE (MariaDB, and MySQL before 5.7.4), which leaves out the
    rows that a new key or partition does not take, and cuts values that a new type does not hold."""
    clauses = _alter_table(cursor)
    unlogged: list[ddl.Clause] = []
    for clause in clauses:
        match clause:
            case ddl.AddColumn(_, column) if not (column.unique or column.primary_key):
                pass
            case ddl.PartitionBy(_, None) | ddl.ChangePartitions(_, "drop_partition" | "truncate_partition"):
                pass
            case (
                ddl.AddColumn() | ddl.AddKey() | ddl.ChangePartitions() | ddl.ExchangePartition() | ddl.ModifyColumn()
                | ddl.PartitionBy() | ddl.SetTableCharset()
            ):  # fmt: skip
                unlogged.append(ddl.OtherClause(clause.table, clause.kind, _IGNORED))
            case _:
                pass
    return (*clauses, *unlogged)


def _add(cursor: Cursor, table: ddl.TableRef) -> ddl.Clauses:
    if element := read_key_element(cursor, table):
        return (element,)
    if cursor.accept("STATS_EXTENDED"):  # TiDB
        cursor.accept("IF", "NOT", "EXISTS")
        cursor.name("extended statistics")
        cursor.expect_any(("CARDINALITY", "DEPENDENCY", "CORRELATION"), "a kind of statistics")
        cursor.skip_clause()
        return (ddl.OtherClause(table, "table_option"),)
    cursor.accept("COLUMN")
    if_not_exists = cursor.accept("IF", "NOT", "EXISTS")
    if cursor.at("("):
        return cursor.enclosed(
            lambda: read_key_element(cursor, table) or ddl.AddColumn(table, read_column(cursor), None, if_not_exists)
        )
    column = read_column(cursor)
    return (ddl.AddColumn(table, column, read_position(cursor), if_not_exists),)


_DroppedKind = Literal["drop_index", "foreign_key", "check_constraint"]
_DROPPED: Final[dict[tuple[str, ...], tuple[_DroppedKind, str]]] = {
    ("CONSTRAINT",): ("check_constraint", "a constraint"), ("FOREIGN", "KEY"): ("foreign_key", "a foreign key"),
    ("INDEX",): ("drop_index", "an index"), ("KEY",): ("drop_index", "an index"),
}  # fmt: skip


def _drop(cursor: Cursor, table: ddl.TableRef) -> ddl.Clauses:
    if cursor.accept("PRIMARY", "KEY"):
        return (ddl.DropKey(table, "drop_primary_key", "PRIMARY"),)
    if dropped := cursor.accept_longest(_DROPPED):
        kind, what = dropped
        cursor.accept("IF", "EXISTS")
        return (ddl.DropKey(table, kind, cursor.name(what)),)
    if cursor.accept("STATS_EXTENDED"):  # TiDB. Without a name after it, it would be a column.
        cursor.accept("IF", "EXISTS")
        cursor.name("extended statistics")
        return (ddl.OtherClause(table, "table_option"),)
    cursor.accept("COLUMN")
    if_exists = cursor.accept("IF", "EXISTS")
    name = cursor.column_name()
    cursor.accept_any(("RESTRICT", "CASCADE"))
    return (ddl.DropColumn(table, name, if_exists),)


def _modify(cursor: Cursor, table: ddl.TableRef, *, changes: bool) -> ddl.Clauses:
    """Read MODIFY or, where the name is one that `changes`, CHANGE."""
    cursor.accept("COLUMN")
    if_exists = cursor.accept("IF", "EXISTS")
    name = cursor.column_name()
    column = read_column(cursor) if changes else read_definition(cursor, name)
    return (ddl.ModifyColumn(table, name, column, read_position(cursor), if_exists),)


def _alter(cursor: Cursor, table: ddl.TableRef) -> ddl.Clauses:
    if cursor.accept("PARTITION"):  # of TiDB 5.0, which later versions no longer have
        cursor.name("a partition")
        cursor.expect_any(("ADD", "ALTER", "DROP"), "ADD, ALTER or DROP")
        cursor.expect("PLACEMENT", "POLICY")
        cursor.skip_clause()
        return (ddl.OtherClause(table, "placement_tiflash_ttl_etc"),)
    cursor.accept("COLUMN")
    cursor.accept("IF", "EXISTS")
    name = cursor.column_name()
    if cursor.accept("DROP", "DEFAULT"):
        return (ddl.SetColumnDefault(table, name, None),)
    cursor.expect("SET")
    if cursor.accept_any(("VISIBLE", "INVISIBLE")):
        return (ddl.OtherClause(table, "alter_default"),)
    cursor.expect("DEFAULT")
    return (ddl.SetColumnDefault(table, name, read_default(cursor)),)


def _rename(cursor: Cursor, table: ddl.TableRef) -> ddl.Clauses:
    if cursor.accept("COLUMN"):
        if_exists = cursor.accept("IF", "EXISTS")
        name = cursor.column_name()
        cursor.expect("TO")
        return (ddl.RenameColumn(table, name, cursor.column_name(), if_exists),)
    if cursor.accept_any(("INDEX", "KEY")):
        cursor.accept("IF", "EXISTS")
        name = cursor.name("an index")
        cursor.expect("TO")
        return (ddl.RenameIndex(table, name, cursor.name("an index")),)
    cursor.accept_any(("TO", "AS", "="))
    return (ddl.RenameTable(table, cursor.table_name()),)


def _order_by(cursor: Cursor, table: ddl.TableRef) -> ddl.Clauses:
    cursor.listed(lambda: (cursor.column_name(), cursor.accept_any(("ASC", "DESC"))))
    return (ddl.OtherClause(table, "table_option"),)


def _skipped(kind: str | None, unlogged: str | None = None) -> Callable[[Cursor, ddl.TableRef], ddl.Clauses]:
    """Return the reader of a clause of that kind, and with the reason if it changes rows as the log does not say. What
    has no kind says how the statement runs, and is no clause."""

    def read(cursor: Cursor, table: ddl.TableRef) -> ddl.Clauses:
        cursor.skip_clause()
        return () if kind is None else (ddl.OtherClause(table, kind, unlogged),)

    return read


_NO_EFFECT: Final[dict[str | None, tuple[str, ...]]] = {
    # Whether the optimizer uses an index.
    "alter_index": ("ALTER INDEX", "ALTER KEY"),
    # A check refuses later rows; the server has tested those that are there, and changes none.
    "check_constraint": ("ALTER CHECK", "ALTER CONSTRAINT", "DROP CHECK", "DROP PERIOD FOR", "DROP PERIOD IF"),
    "placement_tiflash_ttl_etc": (
        # Where TiDB stores rows, and copies of them.
        "ADD PLACEMENT POLICY", "ALTER PLACEMENT POLICY", "CACHE", "COMPACT", "DROP PLACEMENT POLICY", "NOCACHE",
        "SET HYPO TIFLASH", "SET TIFLASH REPLICA",
        # Rows that expire are deleted by statements, which are in the log.
        "REMOVE TTL",
    ),
    "table_option": (
        # Indexes that are not unique are brought up to date later.
        "DISABLE KEYS", "ENABLE KEYS",
        # The same rows are written again.
        "FORCE",
        # Whether later statements may change rows.
        "READ ONLY", "READ WRITE",
        # A copy in another engine, which answers queries.
        "SECONDARY_LOAD", "SECONDARY_UNLOAD",
    ),
    None: ("ALGORITHM", "LOCK", "WITH VALIDATION", "WITHOUT VALIDATION"),
}  # fmt: skip
_CLAUSES: Final[dict[tuple[str, ...], Callable[[Cursor, ddl.TableRef], ddl.Clauses]]] = {
    **{tuple(words.split()): _skipped(kind) for kind, rows in _NO_EFFECT.items() for words in rows},
    **{(verb, "TABLESPACE"): _skipped("partition_maintenance", reason) for verb, reason in UNLOGGED_FILES.items()},
    **PARTITION_CLAUSES,
    ("ADD",): _add,
    ("ADD", "SYSTEM", "VERSIONING"): lambda _, table: (ddl.OtherClause(table, *VERSIONED),),
    ("DROP", "SYSTEM", "VERSIONING"): lambda _, table: (ddl.OtherClause(table, *UNVERSIONED),),
    ("ALTER",): _alter,
    ("CHANGE",): partial(_modify, changes=True),
    ("CONVERT",): read_conversion,
    ("DROP",): _drop,
    ("MODIFY",): partial(_modify, changes=False),
    ("ORDER", "BY"): _order_by,
    ("RENAME",): _rename,
}


Statement = Callable[[Cursor], ddl.Clauses]


def parse(statement: str, *, backslash_escapes: bool = True) -> ddl.Clauses:
    """Parse one statement into its clauses, in order; none where it changes nothing (`ALTER TABLE t LOCK = NONE`, or a
    comment alone).

    Double quotes enclose a name where only a name is possible (sql_mode ANSI_QUOTES), else a string. Without
    `backslash_escapes` a backslash in a string is one: with sql_mode NO_BACKSLASH_ESCAPES, and in statements that TiCDC
    prints anew. Raises DdlSyntaxError, and nothing else, for anything but exactly one known statement.
    """
    cursor = Cursor(statement, backslash_escapes=backslash_escapes)
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
    cursor = Cursor(text)
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


def _drop_tables(cursor: Cursor, *, temporary: bool = False) -> ddl.Clauses:
    cursor.accept("IF", "EXISTS")
    names = cursor.listed(cursor.table_name)
    cursor.accept_any(("RESTRICT", "CASCADE"))
    return tuple(ddl.DropTable(name, temporary) for name in names)


def _rename_tables(cursor: Cursor) -> ddl.Clauses:
    cursor.accept("IF", "EXISTS")

    def read_pair() -> ddl.RenameTable:
        name = cursor.table_name()
        cursor.expect("TO")
        return ddl.RenameTable(name, cursor.table_name())

    return cursor.listed(read_pair)


def _recover_table(cursor: Cursor) -> ddl.Clauses:
    """Read TiDB's RECOVER TABLE name [number], or BY JOB number."""
    if cursor.accept("BY", "JOB"):
        cursor.integer()
        return (ddl.RecoverTable(None),)
    table = cursor.table_name()
    if not cursor.at_statement_end:
        cursor.integer()
    return (ddl.RecoverTable(table),)


def _flashback(scope: Literal["cluster", "database", "table"], cursor: Cursor) -> ddl.Clauses:
    """Read TiDB's FLASHBACK of tables, a database or the cluster to a time, or of a table or a database [TO new
    name]."""
    tables: list[ddl.TableRef] = [*cursor.listed(cursor.table_name)] if scope == "table" else []
    database = cursor.name("a database") if scope == "database" else None
    to_time = cursor.accept("TO", "TIMESTAMP")
    if to_time:
        cursor.string()
    elif cursor.accept("TO", "TSO"):
        cursor.integer()
        to_time = True
    elif scope == "cluster" or len(tables) > 1:
        raise cursor.expected("TO TIMESTAMP or TO TSO")
    if to_time:
        return (ddl.Flashback(scope, database, tuple(tables)),)
    new_name = cursor.name() if cursor.accept("TO") else None
    if database is None:
        return (ddl.RecoverTable(tables[0], new_name),)
    return (ddl.OfDatabase("recover_database", database, new_name),)


def _drop_index(cursor: Cursor) -> ddl.Clauses:
    cursor.accept("IF", "EXISTS")
    name = cursor.name("an index")
    cursor.expect("ON")
    table = cursor.table_name()
    cursor.skip_clause()
    return (ddl.DropKey(table, "drop_index", name),)


def _create_database(cursor: Cursor) -> ddl.Clauses:
    cursor.accept("IF", "NOT", "EXISTS")
    name = cursor.name("a database")
    cursor.skip_until(())
    return (ddl.OfDatabase("create_database", name),)


def _drop_database(cursor: Cursor) -> ddl.Clauses:
    cursor.accept("IF", "EXISTS")
    return (ddl.OfDatabase("drop_database", cursor.name("a database")),)


def _create_view(cursor: Cursor) -> ddl.Clauses:
    """Read CREATE VIEW, or ALTER VIEW, which is the same as OR REPLACE."""
    cursor.accept("IF", "NOT", "EXISTS")
    cursor.table_name()
    if cursor.at("("):
        cursor.parenthesized()
    cursor.expect("AS")
    cursor.skip_rest()
    return (ddl.OtherClause(None, "create_view"),)


def _create(cursor: Cursor) -> ddl.Clauses:
    replaces = cursor.accept("OR", "REPLACE")
    _skip_definer(cursor)
    match clauses := _dispatch(cursor, _CREATE, "what is created"):
        case (ddl.CreateTable() as created,) if replaces:
            # MariaDB's OR REPLACE drops the existing table.
            return ddl.DropTable(created.table, created.temporary), created
        case _:
            return clauses


def _alter_object(cursor: Cursor) -> ddl.Clauses:
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


def _no_effect(kind: str, *, alone: bool = False) -> Statement:
    """Return the reader of a statement that affects no table's rows; `alone`: its first words can be all of it."""

    def read(cursor: Cursor) -> ddl.Clauses:
        cursor.skip_until(()) if alone else cursor.skip_rest()
        return (ddl.OtherClause(None, kind),)

    return read


def _routine(cursor: Cursor) -> ddl.Clauses:
    # The body is a program that contains semicolons.
    while not cursor.at_end:
        cursor.take()
    return (ddl.OtherClause(None, "other"),)


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
    ("UNIQUE", "INDEX"): partial(read_create_index, is_unique=True),
    **_rows(read_create_index, ("INDEX", "FULLTEXT INDEX", "SPATIAL INDEX", "VECTOR INDEX", "COLUMNAR INDEX")),
}  # fmt: skip

_ALTER: Final[dict[tuple[str, ...], Statement]] = {
    **_rows(_alter_table, ("TABLE", "ONLINE TABLE", "OFFLINE TABLE")),
    **_rows(_alter_ignore, ("IGNORE TABLE", "ONLINE IGNORE TABLE")),
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
    ("CREATE",): _create, ("ALTER",): _alter_object,
    ("DROP",): lambda cursor: _dispatch(cursor, _DROP, "what is dropped"),
    **_rows(lambda cursor: (ddl.TruncateTable(cursor.table_name()),), ("TRUNCATE", "TRUNCATE TABLE")),
    ("RENAME", "TABLE"): _rename_tables, ("RENAME", "TABLES"): _rename_tables,
    ("RECOVER", "TABLE"): _recover_table, ("FLASHBACK", "TABLE"): partial(_flashback, "table"),
    **_rows(partial(_flashback, "database"), ("FLASHBACK DATABASE", "FLASHBACK SCHEMA")),
    ("FLASHBACK", "CLUSTER"): partial(_flashback, "cluster"), **_rows(_other, _VERBS),
    ("USE",): lambda cursor: (ddl.OfDatabase("use_database", cursor.name("a database")),),
    **_rows(_no_effect("other", alone=True), ("BEGIN", "COMMIT", "ROLLBACK", "START TRANSACTION")),
}  # fmt: skip
