"""ALTER TABLE: its clauses in order (MySQL reference manual, "ALTER TABLE Statement"; and TiDB's own clauses).

To add a clause that changes no row, add its first words to `_NO_EFFECT`, with the reason; one that changes rows as
neither the log nor the statement says, with `_unlogged`. Else write a function that takes the cursor (after the words)
and the table, and add it to `_CLAUSES`. A statement with any other clause is not understood.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeGuard

from cdc_lakehouse.changelog.ddl import clauses as ddl
from cdc_lakehouse.changelog.ddl.columns import read_column, read_definition, read_position
from cdc_lakehouse.changelog.ddl.cursor import Cursor
from cdc_lakehouse.changelog.ddl.keys import added, read_key_element
from cdc_lakehouse.changelog.ddl.literals import read_default
from cdc_lakehouse.changelog.ddl.options import UNVERSIONED, VERSIONED, read_conversion, read_option
from cdc_lakehouse.changelog.ddl.partitions import PARTITION_CLAUSES, UNLOGGED_FILES


def read_alter_ignore(cursor: Cursor) -> ddl.Clauses:
    """Read the rest of a statement after ALTER IGNORE TABLE (MariaDB, and MySQL before 5.7.4), which leaves out the
    rows that a new key or partition does not take, and cuts values that a new type does not hold."""
    clauses = read_alter_table(cursor)
    return (*clauses, *(ddl.UnloggedRows(each.table, each.kind, _IGNORED) for each in clauses if _fits_rows(each)))


def _fits_rows(clause: ddl.Clause) -> TypeGuard[_Fitting]:
    return isinstance(clause, _Fitting) and (not isinstance(clause, ddl.AddColumn) or _is_key(clause.column))


def _is_key(column: ddl.ColumnDefinition) -> bool:
    return column.unique or column.primary_key


def read_alter_table(cursor: Cursor) -> ddl.Clauses:
    """Read the rest of a statement after ALTER TABLE; empty where it changes nothing (only ALGORITHM, LOCK ...)."""
    cursor.if_exists()
    table = cursor.table_name()
    if cursor.accept("WAIT"):  # MariaDB
        cursor.integer()
    else:
        cursor.accept("NOWAIT")
    if _at_statement_end(cursor):
        return ()
    clauses = [*_read_clauses(cursor, table)]
    # Partition clauses and placement of a partition need no comma before them.
    while not _at_statement_end(cursor):
        if not (cursor.accept(",") or cursor.at("PARTITION") or cursor.at("REMOVE", "PARTITIONING")):
            raise cursor.expected("a comma or the end")
        clauses += _read_clauses(cursor, table)
    return tuple(clauses)


def _at_statement_end(cursor: Cursor) -> bool:
    return cursor.at_end or cursor.at(";")


def _read_clauses(cursor: Cursor, table: ddl.TableRef) -> ddl.Clauses:
    """Read the clauses between two commas."""
    options = tuple(iter(lambda: read_option(cursor, table), None))
    if options:
        return options
    read = cursor.accept_longest(_CLAUSES)
    if read is None:
        raise cursor.expected("an ALTER TABLE clause")
    return read(cursor, table)


# --- ADD, DROP ---


def _add(cursor: Cursor, table: ddl.TableRef) -> ddl.Clauses:
    element = read_key_element(cursor)
    if element is not None:
        return (added(cursor, table, element),)
    if cursor.accept("STATS_EXTENDED"):  # TiDB
        cursor.if_not_exists()
        cursor.name("extended statistics")
        cursor.expect_any(("CARDINALITY", "DEPENDENCY", "CORRELATION"), "a kind of statistics")
        cursor.skip_clause()
        return (cursor.no_effect(table, "table_option"),)
    cursor.accept("COLUMN")
    if_not_exists = cursor.if_not_exists()

    def read_element() -> ddl.Clause:
        cursor.clause_start = cursor.position
        element = read_key_element(cursor)
        if element is not None:
            return added(cursor, table, element)
        return ddl.AddColumn(table, read_column(cursor), None, if_not_exists)

    if cursor.at("("):
        return cursor.enclosed(read_element)
    column = read_column(cursor)
    return (ddl.AddColumn(table, column, read_position(cursor), if_not_exists),)


def _drop(cursor: Cursor, table: ddl.TableRef) -> ddl.Clauses:
    cursor.accept("COLUMN")
    if_exists = cursor.if_exists()
    name = cursor.column_name()
    cursor.accept_any(("RESTRICT", "CASCADE"))
    return (ddl.DropColumn(table, name, if_exists),)


def _drop_index(cursor: Cursor, table: ddl.TableRef) -> ddl.Clauses:
    if_exists = cursor.if_exists()
    return (ddl.DropIndex(table, cursor.name("an index"), if_exists),)


def _drop_foreign_key(cursor: Cursor, table: ddl.TableRef) -> ddl.Clauses:
    cursor.if_exists()
    return (ddl.DropForeignKey(table, cursor.name("a foreign key")),)


def _drop_constraint(cursor: Cursor, table: ddl.TableRef) -> ddl.Clauses:
    cursor.if_exists()
    return (ddl.DropConstraint(table, cursor.name("a constraint")),)


# --- CHANGE, MODIFY, ALTER, RENAME ---


def _change(cursor: Cursor, table: ddl.TableRef) -> ddl.Clauses:
    cursor.accept("COLUMN")
    if_exists = cursor.if_exists()
    name = cursor.column_name()
    column = read_column(cursor)
    return (ddl.ChangeColumn(table, name, column, read_position(cursor), if_exists),)


def _modify(cursor: Cursor, table: ddl.TableRef) -> ddl.Clauses:
    cursor.accept("COLUMN")
    if_exists = cursor.if_exists()
    column = read_definition(cursor, cursor.column_name())
    return (ddl.ModifyColumn(table, column, read_position(cursor), if_exists),)


def _alter_column(cursor: Cursor, table: ddl.TableRef) -> ddl.Clauses:
    cursor.accept("COLUMN")
    cursor.if_exists()
    name = cursor.column_name()
    if cursor.accept("DROP", "DEFAULT"):
        return (ddl.DropColumnDefault(table, name),)
    cursor.expect("SET")
    if cursor.accept_any(("VISIBLE", "INVISIBLE")):
        return (cursor.no_effect(table, "alter_default"),)
    cursor.expect("DEFAULT")
    return (ddl.SetColumnDefault(table, name, read_default(cursor)),)


def _rename_table(cursor: Cursor, table: ddl.TableRef) -> ddl.Clauses:
    cursor.accept_any(("TO", "AS", "="))
    return (ddl.RenameTable(table, cursor.table_name()),)


def _rename_column(cursor: Cursor, table: ddl.TableRef) -> ddl.Clauses:
    if_exists = cursor.if_exists()
    name = cursor.column_name()
    cursor.expect("TO")
    return (ddl.RenameColumn(table, name, cursor.column_name(), if_exists),)


def _rename_index(cursor: Cursor, table: ddl.TableRef) -> ddl.Clauses:
    cursor.if_exists()
    name = cursor.name("an index")
    cursor.expect("TO")
    return (ddl.RenameIndex(table, name, cursor.name("an index")),)


# --- What changes no row ---


def _no_effect(kind: ddl.NoEffectKind) -> Callable[[Cursor, ddl.TableRef], tuple[ddl.NoEffect]]:
    def read(cursor: Cursor, table: ddl.TableRef) -> tuple[ddl.NoEffect]:
        cursor.skip_clause()
        return (cursor.no_effect(table, kind),)

    return read


def _unlogged(reason: str) -> Callable[[Cursor, ddl.TableRef], ddl.Clauses]:
    def read(cursor: Cursor, table: ddl.TableRef) -> ddl.Clauses:
        cursor.skip_clause()
        return (ddl.UnloggedRows(table, "partition_maintenance", reason),)

    return read


def _execution(cursor: Cursor, _: ddl.TableRef) -> ddl.Clauses:
    """Skip ALGORITHM, LOCK and VALIDATION, which say how the statement runs. They are no clauses."""
    cursor.skip_clause()
    return ()


def _order_by(cursor: Cursor, table: ddl.TableRef) -> ddl.Clauses:
    def skip_column() -> None:
        cursor.column_name()
        cursor.accept_any(("ASC", "DESC"))

    cursor.listed(skip_column)
    return (cursor.no_effect(table, "table_option"),)


def _drop_statistics(cursor: Cursor, table: ddl.TableRef) -> ddl.Clauses:
    """Read DROP STATS_EXTENDED (TiDB's extended statistics). Without a name after it, STATS_EXTENDED would be a
    column."""
    cursor.if_exists()
    cursor.name("extended statistics")
    return (cursor.no_effect(table, "table_option"),)


def _alter_partition(cursor: Cursor, table: ddl.TableRef) -> ddl.Clauses:
    """Read ALTER PARTITION of TiDB 5.0, which later versions no longer have."""
    cursor.name("a partition")
    cursor.expect_any(("ADD", "ALTER", "DROP"), "ADD, ALTER or DROP")
    cursor.expect("PLACEMENT", "POLICY")
    cursor.skip_clause()
    return (cursor.no_effect(table, "placement_tiflash_ttl_etc"),)


_NO_EFFECT: Final[dict[ddl.NoEffectKind, tuple[str, ...]]] = {
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
}  # fmt: skip
_IGNORED: Final = "it removes or cuts the rows that do not fit, and the log does not say which"
_Fitting = (
    ddl.AddColumn | ddl.AddPartitions | ddl.AddPrimaryKey | ddl.AddUniqueKey | ddl.ChangeColumn
    | ddl.CoalescePartitions | ddl.ExchangePartition | ddl.ModifyColumn | ddl.PartitionBy | ddl.ReorganizePartitions
    | ddl.SetTableCharset
)  # fmt: skip
_CLAUSES: Final[dict[tuple[str, ...], Callable[[Cursor, ddl.TableRef], ddl.Clauses]]] = {
    **{tuple(words.split()): _no_effect(kind) for kind, rows in _NO_EFFECT.items() for words in rows},
    **{(verb, "TABLESPACE"): _unlogged(reason) for verb, reason in UNLOGGED_FILES.items()},
    **PARTITION_CLAUSES,
    ("ADD",): _add,
    ("ADD", "SYSTEM", "VERSIONING"): lambda _, table: (ddl.UnloggedRows(table, *VERSIONED),),
    ("DROP", "SYSTEM", "VERSIONING"): lambda _, table: (ddl.UnloggedRows(table, *UNVERSIONED),),
    ("ALGORITHM",): _execution,
    ("ALTER",): _alter_column,
    ("ALTER", "PARTITION"): _alter_partition,
    ("CHANGE",): _change,
    ("CONVERT",): lambda cursor, table: (read_conversion(cursor, table),),
    ("DROP",): _drop,
    ("DROP", "CONSTRAINT"): _drop_constraint,
    ("DROP", "FOREIGN", "KEY"): _drop_foreign_key,
    ("DROP", "INDEX"): _drop_index,
    ("DROP", "KEY"): _drop_index,
    ("DROP", "PRIMARY", "KEY"): lambda _, table: (ddl.DropPrimaryKey(table),),
    ("DROP", "STATS_EXTENDED"): _drop_statistics,
    ("LOCK",): _execution,
    ("MODIFY",): _modify,
    ("ORDER", "BY"): _order_by,
    ("RENAME",): _rename_table,
    ("RENAME", "COLUMN"): _rename_column,
    ("RENAME", "INDEX"): _rename_index,
    ("RENAME", "KEY"): _rename_index,
    ("WITH", "VALIDATION"): _execution,
    ("WITHOUT", "VALIDATION"): _execution,
}
