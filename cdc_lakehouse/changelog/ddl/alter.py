"""ALTER TABLE: its specifications in order (MySQL reference manual, "ALTER TABLE Statement"; TiDB's own).

To add one: a function of the cursor (after the words) and the table, and its row in one of the tables at
the end.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, assert_never

from cdc_lakehouse.changelog.ddl.alter_partitions import PARTITION_SPECS, read_add_partition
from cdc_lakehouse.changelog.ddl.clauses import (
    AddColumn,
    AddIndex,
    AddPrimaryKey,
    AddUniqueKey,
    AlterIndex,
    ChangeColumn,
    Clause,
    ConstraintChange,
    DropColumn,
    DropColumnDefault,
    DropIndex,
    DropPrimaryKey,
    ForeignKeyChange,
    IndexKey,
    ModifyColumn,
    Placement,
    PrimaryKey,
    RenameColumn,
    RenameIndex,
    RenameTable,
    SetColumnDefault,
    SetColumnVisibility,
    TableName,
    TableOption,
    UniqueKey,
)
from cdc_lakehouse.changelog.ddl.columns import read_column, read_definition, read_position
from cdc_lakehouse.changelog.ddl.cursor import Cursor
from cdc_lakehouse.changelog.ddl.keys import Check, ForeignKey, KeyElement, read_key_element
from cdc_lakehouse.changelog.ddl.literals import read_default
from cdc_lakehouse.changelog.ddl.options import read_conversion, read_options

Spec = Callable[[Cursor, TableName], tuple[Clause, ...]]

_MOST_WORDS: Final = 3


def read_alter_table(cursor: Cursor) -> tuple[Clause, ...]:
    """What follows ALTER TABLE, to the end; empty where that changes nothing (only ALGORITHM, LOCK ...)."""
    cursor.if_exists()
    table = cursor.table_name()
    if cursor.accept("WAIT"):  # MariaDB
        cursor.integer()
    else:
        cursor.accept("NOWAIT")
    if _at_statement_end(cursor):
        return ()
    clauses = [*_read_spec(cursor, table)]
    # Partition clauses and placement of a partition need no comma before them.
    while not _at_statement_end(cursor):
        if not (cursor.accept(",") or cursor.at("PARTITION") or cursor.at("REMOVE", "PARTITIONING")):
            raise cursor.expected("a comma or the end")
        clauses += _read_spec(cursor, table)
    return tuple(clauses)


def _at_statement_end(cursor: Cursor) -> bool:
    return cursor.at_end or cursor.at(";")


def _read_spec(cursor: Cursor, table: TableName) -> tuple[Clause, ...]:
    options = read_options(cursor, table)
    if options:
        return options
    for count in range(_MOST_WORDS, 0, -1):
        words = cursor.words(count)
        if words in _SPECS:
            cursor.expect(*words)
            return _SPECS[words](cursor, table)
    raise cursor.expected("an ALTER TABLE clause")


# --- ADD ---


def _add(cursor: Cursor, table: TableName) -> tuple[Clause, ...]:
    if cursor.accept("PARTITION"):
        return read_add_partition(cursor, table)
    element = read_key_element(cursor)
    if element is not None:
        return (add_key(table, element),)
    if cursor.accept("STATS_EXTENDED"):
        return _add_statistics(cursor, table)
    if cursor.accept("PLACEMENT", "POLICY"):
        return _placement_rule(cursor, table)
    return _add_column(cursor, table)


def _add_column(cursor: Cursor, table: TableName) -> tuple[Clause, ...]:
    cursor.accept("COLUMN")
    if_not_exists = cursor.if_not_exists()

    def read_element() -> Clause:
        element = read_key_element(cursor)
        if element is not None:
            return add_key(table, element)
        return AddColumn(table, read_column(cursor), None, if_not_exists)

    if cursor.at("("):
        return cursor.enclosed(read_element)
    column = read_column(cursor)
    return (AddColumn(table, column, read_position(cursor), if_not_exists),)


def _add_statistics(cursor: Cursor, table: TableName) -> tuple[Clause, ...]:
    """TiDB: [IF NOT EXISTS] name, kind, columns."""
    cursor.if_not_exists()
    cursor.name("extended statistics")
    cursor.expect_any(("CARDINALITY", "DEPENDENCY", "CORRELATION"), "a kind of statistics")
    cursor.enclosed(cursor.column_name)
    return (TableOption(table, "stats_extended"),)


def add_key(table: TableName, element: KeyElement) -> Clause:
    """The clause that adds a key, an index or a constraint."""
    match element:
        case PrimaryKey():
            return AddPrimaryKey(table, element)
        case UniqueKey():
            return AddUniqueKey(table, element)
        case IndexKey():
            return AddIndex(table, element)
        case ForeignKey():
            return ForeignKeyChange(table, "add", element.name)
        case Check():
            return ConstraintChange(table, "add", element.name)
        case _:
            assert_never(element)


# --- DROP ---


def _drop(cursor: Cursor, table: TableName) -> tuple[Clause, ...]:
    cursor.accept("COLUMN")
    if_exists = cursor.if_exists()
    name = cursor.column_name()
    cursor.accept_any(("RESTRICT", "CASCADE"))
    return (DropColumn(table, name, if_exists),)


def _drop_primary_key(_: Cursor, table: TableName) -> tuple[Clause, ...]:
    return (DropPrimaryKey(table),)


def _drop_index(cursor: Cursor, table: TableName) -> tuple[Clause, ...]:
    if_exists = cursor.if_exists()
    return (DropIndex(table, cursor.name("an index"), if_exists),)


def _drop_foreign_key(cursor: Cursor, table: TableName) -> tuple[Clause, ...]:
    cursor.if_exists()
    return (ForeignKeyChange(table, "drop", cursor.name("a foreign key")),)


def _drop_constraint(cursor: Cursor, table: TableName) -> tuple[Clause, ...]:
    cursor.if_exists()
    return (ConstraintChange(table, "drop", cursor.name("a constraint")),)


def _drop_statistics(cursor: Cursor, table: TableName) -> tuple[Clause, ...]:
    cursor.if_exists()
    cursor.name("extended statistics")
    return (TableOption(table, "stats_extended"),)


# --- CHANGE, MODIFY, ALTER, RENAME ---


def _change(cursor: Cursor, table: TableName) -> tuple[Clause, ...]:
    cursor.accept("COLUMN")
    if_exists = cursor.if_exists()
    name = cursor.column_name()
    column = read_column(cursor)
    return (ChangeColumn(table, name, column, read_position(cursor), if_exists),)


def _modify(cursor: Cursor, table: TableName) -> tuple[Clause, ...]:
    cursor.accept("COLUMN")
    if_exists = cursor.if_exists()
    column = read_definition(cursor, cursor.column_name())
    return (ModifyColumn(table, column, read_position(cursor), if_exists),)


def _alter_column(cursor: Cursor, table: TableName) -> tuple[Clause, ...]:
    cursor.accept("COLUMN")
    cursor.if_exists()
    name = cursor.column_name()
    if cursor.accept("DROP", "DEFAULT"):
        return (DropColumnDefault(table, name),)
    cursor.expect("SET")
    if word := cursor.accept_any(("VISIBLE", "INVISIBLE")):
        return (SetColumnVisibility(table, name, word == "VISIBLE"),)
    cursor.expect("DEFAULT")
    return (SetColumnDefault(table, name, read_default(cursor)),)


def _alter_index(cursor: Cursor, table: TableName) -> tuple[Clause, ...]:
    cursor.if_exists()
    name = cursor.name("an index")
    cursor.accept("NOT")
    cursor.expect_any(("VISIBLE", "INVISIBLE", "IGNORED"), "VISIBLE or INVISIBLE")
    return (AlterIndex(table, name),)


def _alter_constraint(cursor: Cursor, table: TableName) -> tuple[Clause, ...]:
    name = cursor.name("a constraint")
    cursor.accept("NOT")
    cursor.expect("ENFORCED")
    return (ConstraintChange(table, "alter", name),)


def _rename_table(cursor: Cursor, table: TableName) -> tuple[Clause, ...]:
    cursor.accept_any(("TO", "AS", "="))
    return (RenameTable(table, cursor.table_name(), altering=True),)


def _rename_column(cursor: Cursor, table: TableName) -> tuple[Clause, ...]:
    if_exists = cursor.if_exists()
    name = cursor.column_name()
    cursor.expect("TO")
    return (RenameColumn(table, name, cursor.column_name(), if_exists),)


def _rename_index(cursor: Cursor, table: TableName) -> tuple[Clause, ...]:
    cursor.if_exists()
    name = cursor.name("an index")
    cursor.expect("TO")
    return (RenameIndex(table, name, cursor.name("an index")),)


# --- Clauses without an effect on columns or rows ---


def _execution(cursor: Cursor, _: TableName) -> tuple[Clause, ...]:
    """ALGORITHM and LOCK say how the statement runs: no clause."""
    cursor.accept("=")
    cursor.word_or_string("a value")
    return ()


def _nothing(_: Cursor, __: TableName) -> tuple[Clause, ...]:
    return ()


def _convert(cursor: Cursor, table: TableName) -> tuple[Clause, ...]:
    return (read_conversion(cursor, table),)


def _order_by(cursor: Cursor, table: TableName) -> tuple[Clause, ...]:
    def read_column_order() -> None:
        cursor.column_name()
        cursor.accept_any(("ASC", "DESC"))

    cursor.listed(read_column_order)
    return (TableOption(table, "order by"),)


def _set_tiflash(cursor: Cursor, table: TableName) -> tuple[Clause, ...]:
    cursor.accept("HYPO")
    cursor.expect("TIFLASH", "REPLICA")
    cursor.integer()
    if cursor.accept("LOCATION", "LABELS"):
        cursor.string()
        # A comma can also come before the next clause.
        while cursor.next_token.kind == "string" and cursor.accept(","):
            cursor.string()
    return (Placement(table, "tiflash replica"),)


def _remove_ttl(_: Cursor, table: TableName) -> tuple[Clause, ...]:
    return (Placement(table, "ttl"),)


def _compact(cursor: Cursor, table: TableName) -> tuple[Clause, ...]:
    if cursor.accept("PARTITION"):
        cursor.listed(cursor.name)
    cursor.accept("TIFLASH", "REPLICA")
    return (Placement(table, "compact"),)


def _placement_rule(cursor: Cursor, table: TableName) -> tuple[Clause, ...]:
    """The rest of ADD, ALTER or DROP PLACEMENT POLICY of TiDB 5.0, which later versions have no more."""
    while cursor.accept_any(("CONSTRAINTS", "REPLICAS", "ROLE")):
        cursor.accept("=")
        cursor.word_or_string("a value")
    return (Placement(table, "placement policy"),)


def _alter_partition(cursor: Cursor, table: TableName) -> tuple[Clause, ...]:
    cursor.name("a partition")
    cursor.expect_any(("ADD", "ALTER", "DROP"), "ADD, ALTER or DROP")
    cursor.expect("PLACEMENT", "POLICY")
    return _placement_rule(cursor, table)


def _option(name: str) -> Spec:
    return lambda _, table: (TableOption(table, name),)


def _placed(name: str) -> Spec:
    return lambda _, table: (Placement(table, name),)


_SPECS: Final[dict[tuple[str, ...], Spec]] = {
    **PARTITION_SPECS,
    ("ADD",): _add,
    ("ALGORITHM",): _execution,
    ("ALTER",): _alter_column,
    ("ALTER", "CHECK"): _alter_constraint,
    ("ALTER", "CONSTRAINT"): _alter_constraint,
    ("ALTER", "INDEX"): _alter_index,
    ("ALTER", "KEY"): _alter_index,
    ("ALTER", "PARTITION"): _alter_partition,
    ("ALTER", "PLACEMENT", "POLICY"): _placement_rule,
    ("CACHE",): _placed("cache"),
    ("CHANGE",): _change,
    ("COMPACT",): _compact,
    ("CONVERT",): _convert,
    ("DISABLE", "KEYS"): _option("keys"),
    ("DROP",): _drop,
    ("DROP", "CHECK"): _drop_constraint,
    ("DROP", "CONSTRAINT"): _drop_constraint,
    ("DROP", "FOREIGN", "KEY"): _drop_foreign_key,
    ("DROP", "INDEX"): _drop_index,
    ("DROP", "KEY"): _drop_index,
    ("DROP", "PLACEMENT", "POLICY"): _placement_rule,
    ("DROP", "PRIMARY", "KEY"): _drop_primary_key,
    ("DROP", "STATS_EXTENDED"): _drop_statistics,
    ("ENABLE", "KEYS"): _option("keys"),
    ("FORCE",): _option("force"),
    ("LOCK",): _execution,
    ("MODIFY",): _modify,
    ("NOCACHE",): _placed("cache"),
    ("ORDER", "BY"): _order_by,
    ("READ", "ONLY"): _option("read"),
    ("READ", "WRITE"): _option("read"),
    ("REMOVE", "TTL"): _remove_ttl,
    ("RENAME",): _rename_table,
    ("RENAME", "COLUMN"): _rename_column,
    ("RENAME", "INDEX"): _rename_index,
    ("RENAME", "KEY"): _rename_index,
    ("SECONDARY_LOAD",): _option("secondary_load"),
    ("SECONDARY_UNLOAD",): _option("secondary_unload"),
    ("SET",): _set_tiflash,
    ("WITH", "VALIDATION"): _nothing,
    ("WITHOUT", "VALIDATION"): _nothing,
}
