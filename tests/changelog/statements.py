"""What tests of the change log share: changes as a source tells them, in short, and what statements declare.

>>> change(7, "db.t", 3, "CREATE TABLE `db`.`t` …", "id:bigint:pk v:int name:varchar:!null:#12")
"""

from __future__ import annotations

import random
import re
import zlib
from collections.abc import Container, Iterator, Sequence
from dataclasses import replace

from cdc_lakehouse.changelog.ddl.apply import columns_of
from cdc_lakehouse.changelog.ddl.clauses import AddColumn, ColumnDefinition, PartitionBy, Partitioning
from cdc_lakehouse.changelog.ddl.statements import parse
from cdc_lakehouse.changelog.history import History
from cdc_lakehouse.changelog.mysql_types import ColumnType, server_type_text
from cdc_lakehouse.changelog.schema import SchemaChange, SourceColumn, TableVersion

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
    (partitioned,) = parse(f"ALTER TABLE t PARTITION BY {clause}")
    assert isinstance(partitioned, PartitionBy) and partitioned.partitioning is not None
    return partitioned.partitioning


def files_of(told: Sequence[TableVersion]) -> Iterator[SchemaChange]:
    """What a sink writes of the same statements: a file for each table, under the name that it has then, or one of the
    database. The other table of an EXCHANGE has one without a statement."""
    of_database: set[int] = set()
    for version in {(each.commit_ts, each.incarnation, each.name): each for each in told}.values():
        if version.commit_ts in of_database:
            continue
        database, table, shown = version.name.database, version.name.table, columns_of(version)
        if not version.incarnation:
            table = "" if version.kind.endswith("_database") else "t"
        file = SchemaChange(version.commit_ts, database, table, None, version.query, shown, "f", backslash_escapes=True)
        is_other = version.swap is not None and version.swap.plain == version.incarnation
        yield replace(file, query="", kind="columns") if is_other else file
        if version.kind in ("drop_database", "recover_database"):
            of_database.add(version.commit_ts)


def verdict(version: TableVersion) -> tuple[object, ...]:
    """Effect, whether the table is held, and of its columns name, type, nullability, key, and what older rows hold."""
    shown = [
        (column.name, server_type_text(column.type), column.nullable, column.id in version.key, column.initial.text)
        for column in version.columns
    ]
    return version.effect, version.hold is not None, shown


def in_any_case(versions: Sequence[TableVersion], *ts: int) -> str:
    """The verdicts of statements, alike for names in any letter case: a MODIFY or CHANGE names its column anew, as it
    is typed, which evolves the table."""
    return repr([verdicts(versions, each) for each in ts]).lower().replace("'evolve'", "'none'")


def verdicts(versions: Sequence[TableVersion], ts: int) -> dict[str, tuple[object, ...]]:
    """What the statement of a commit-ts makes of each table. Not `charset`: with it the types of columns are found that
    a later statement defines, and schema files show them."""
    return {
        version.incarnation: (
            verdict(version), version.incarnation and version.name, version.previous_name, version.key,
            version.primary_key, version.unique_keys, version.partitioning, version.emptied, version.swap,
            version.restored,
        )
        for version in versions
        if version.commit_ts == ts
    }  # fmt: skip
