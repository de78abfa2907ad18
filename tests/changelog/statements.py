"""What tests of the change log share: changes as a source tells them, in short, and what statements declare.

>>> change(7, "db.t", 3, "CREATE TABLE `db`.`t` …", "id:bigint:pk v:int name:varchar:!null:#12")
"""

from __future__ import annotations

from cdc_lakehouse.changelog.ddl.clauses import AddColumn, ColumnDefinition, CreateTable, Partitioning
from cdc_lakehouse.changelog.ddl.parser import parse
from cdc_lakehouse.changelog.history import History
from cdc_lakehouse.changelog.mysql_types import ColumnType
from cdc_lakehouse.changelog.schema import SchemaChange, SourceColumn

SEEN, CREATE, DROP, DROP_DATABASE, ADD, DROP_COLUMN, TRUNCATE, MODIFY, RENAME = 0, 3, 4, 2, 5, 6, 11, 12, 14


def columns(spec: str) -> tuple[SourceColumn, ...]:
    return tuple(_column(*words.split(":")) for words in spec.split())


def _column(name: str, kind: str = "int", *flags: str) -> SourceColumn:
    numbers = [int(flag[1:]) for flag in flags if flag.startswith("#")]
    return SourceColumn(
        name=name,
        type=ColumnType.of(kind.replace("_", " ")),
        nullable=not {"pk", "!null"} & set(flags),
        primary_key="pk" in flags,
        source_id=numbers[0] if numbers else None,
    )


def change(ts: int, name: str, action: int, query: str = "", spec: str = "") -> SchemaChange:
    """`name` is `database.table`, or a database alone."""
    database, _, table = name.partition(".")
    kind = "columns" if action == SEEN else "statement"
    return SchemaChange(ts, database, table, action, query, columns(spec), f"{name}@{ts}", kind=kind)


def history(*changes: SchemaChange) -> History:
    made = History()
    made.apply(changes)
    return made


def declared(text: str, *, backslash_escapes: bool = True) -> ColumnDefinition:
    """The column of `ADD COLUMN c …`."""
    (clause,) = parse(f"ALTER TABLE t ADD COLUMN c {text}", backslash_escapes=backslash_escapes)
    assert isinstance(clause, AddColumn)
    return clause.column


def partitioned_by(clause: str) -> Partitioning:
    """The partitioning of a table of `a` and `b`."""
    (create,) = parse(f"CREATE TABLE t (a INT, b INT) PARTITION BY {clause}")
    assert isinstance(create, CreateTable) and create.partitioning is not None
    return create.partitioning
