"""What tests of the change log share: changes as a source tells them, in short, and what statements declare.

>>> change(7, "db.t", 3, "CREATE TABLE `db`.`t` …", "id:bigint:pk v:int name:varchar:!null:#12")
"""

from __future__ import annotations

import random
import re
import zlib
from collections.abc import Container

from cdc_lakehouse.changelog.ddl.clauses import AddColumn, ColumnDefinition, CreateTable, Partitioning
from cdc_lakehouse.changelog.ddl.statements import parse
from cdc_lakehouse.changelog.history import History
from cdc_lakehouse.changelog.mysql_types import ColumnType
from cdc_lakehouse.changelog.schema import SchemaChange, SourceColumn

SEEN, CREATE, DROP, DROP_DATABASE, ADD, DROP_COLUMN, TRUNCATE, MODIFY, RENAME = 0, 3, 4, 2, 5, 6, 11, 12, 14


_WORDS = re.compile(
    r"""(?P<kept>[a-z]?'(?:[^'\\]|\\.|'')*'|"(?:[^"\\]|\\.|"")*"|/\*.{0,2}(?:\[[^\]]*\]|\d+)?|--[^\n]*|\b\d\w*)"""
    r"|(?P<word>`(?:[^`]|``)+`|\w+)",
    re.IGNORECASE | re.DOTALL,
)


def in_odd_case(text: str, seed: int | str = 0, keep: Container[str] = ()) -> str:
    """A statement with the names that have a small letter typed in another letter case, drawn from the seed; not those
    to `keep`: the new ones, which become what is typed."""
    drawn = random.Random(zlib.crc32(f"{seed} {text}".encode()))

    def typed(found: re.Match[str]) -> str:
        word = found["word"]
        if word is None or not word.isascii() or word.strip("`").replace("``", "`") in keep or word == word.upper():
            return found[0]
        return drawn.choice((word, word.upper(), word.lower(), word.swapcase(), word.title()))

    return _WORDS.sub(typed, text)


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
    """`name` is `database.table`, or a database alone. The statement has names in any letter case, as a user types
    them; columns and the table have their own."""
    database, _, table = name.partition(".")
    kind = "columns" if action == SEEN else "statement"
    query = query if action == CREATE else in_odd_case(query)
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
