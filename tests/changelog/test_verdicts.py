"""One statement has one verdict: with the columns after it, as schema files have them, and from its text alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from cdc_lakehouse.changelog.column_matching import clauses_of
from cdc_lakehouse.changelog.ddl import clauses as ddl
from cdc_lakehouse.changelog.ddl.parser import parse
from cdc_lakehouse.changelog.history import History
from cdc_lakehouse.changelog.mysql_types import server_type_text
from cdc_lakehouse.changelog.observed_schema import Statement, schema_changes
from cdc_lakehouse.changelog.schema import SchemaChange, SourceColumn, TableVersion
from cdc_lakehouse.errors import DdlError
from tests.changelog.ddl.cases import cases
from tests.changelog.statements import ADD, CREATE, MODIFY, columns

TABLE = "CREATE TABLE t (id BIGINT PRIMARY KEY, a INT, b VARCHAR(9))"
SPEC = "id:bigint:pk a b:varchar"


def from_text(*statements: str) -> list[TableVersion]:
    """As a topic or a Canal server has them."""
    log = [Statement(10 * number, "d", "t", text, f"o{number}") for number, text in enumerate(statements, start=1)]
    return History().apply(schema_changes(log, escapes=True))


def from_file(query: str, after: Sequence[SourceColumn]) -> TableVersion:
    """As a storage sink has it: the columns are the authority, the statement explains them."""
    created = SchemaChange(10, "d", "t", CREATE, TABLE, columns(SPEC), "o1", backslash_escapes=True)
    changed = SchemaChange(20, "d", "t", MODIFY, query, tuple(after), "o2", backslash_escapes=True)
    return History().apply([created, changed])[-1]


Verdict = tuple[str, bool, list[tuple[str, str, bool, bool, str | None]]]


def verdict(version: TableVersion) -> Verdict:
    """Effect, whether the table is held, and of its columns name, type, nullability, key, and what older rows hold."""
    shown = [
        (column.name, server_type_text(column.type), column.nullable, column.id in version.key, column.initial.text)
        for column in version.columns
    ]
    return version.effect, version.hold is not None, shown


OLD = [
    ("id", "bigint(20)", False, True, None),
    ("a", "int(11)", True, False, None),
    ("b", "varchar(9)", True, False, None),
]


# Each is legal where sql_mode lacks NO_ZERO_DATE, in MariaDB, under a collation that tells case, or in a database in
# latin1; none says so itself.
@pytest.mark.parametrize(
    ("definition", "type_text", "nullable", "older"),
    [
        ("DATETIME NOT NULL DEFAULT '0000-00-00 00:00:00'", "datetime", False, "0000-00-00 00:00:00"),
        ("TIMESTAMP NOT NULL DEFAULT 0", "timestamp", False, "0000-00-00 00:00:00"),
        ("DATE NOT NULL DEFAULT '2020-00-00'", "date", False, "2020-00-00"),
        ("TEXT DEFAULT 'x'", "text", True, "x"),
        ("JSON DEFAULT '{}'", "json", True, "{}"),
        ("BLOB NOT NULL DEFAULT ''", "blob", False, ""),
        ("ENUM('a','A')", "enum('a','A')", True, None),
        ("ENUM('a','A') NOT NULL DEFAULT 'A'", "enum('a','A')", False, "A"),
        ("VARCHAR(20000)", "varchar(20000)", True, None),
        ("VARCHAR(65535)", "varchar(65535)", True, None),
        ("INT DEFAULT 'x'", "int(11)", True, "x"),
        ("TINYINT DEFAULT 300", "tinyint(4)", True, "300"),
        ("CHAR(300)", "char(300)", True, None),
        ("VARCHAR(9) CHARACTER SET nope", "varchar(9)", True, None),
        ("BIGINT UNIQUE KEY AUTO_INCREMENT", "bigint(20)", False, "0"),
    ],
)
def test_what_a_source_accepted_is_carried_out(
    definition: str, type_text: str, nullable: bool, older: str | None
) -> None:
    statement = f"ALTER TABLE t ADD COLUMN c {definition}"
    wanted = ("evolve", False, [*OLD, ("c", type_text, nullable, False, older)])
    made = from_text(TABLE, statement)[-1]
    (clause, *_) = parse(statement)
    assert isinstance(clause, ddl.AddColumn)
    shown = SourceColumn("c", made.columns[-1].type, nullable, default=made.columns[-1].default)
    assert verdict(made) == wanted
    assert verdict(from_file(statement, [*shown_columns(made)[:-1], shown])) == wanted


@pytest.mark.parametrize(
    ("definition", "shown", "default", "older", "in_file"),
    [
        ("BIT(8) DEFAULT 49", "1", "b'110001'", "49", "49"),
        ("BIT(8) DEFAULT 255", "\ufffd", "b'11111111'", "255", "255"),
        (
            "TIMESTAMP DEFAULT '2024-01-01 08:00:00'",
            "2024-01-01 00:00:00",
            "2024-01-01 08:00:00",
            "2024-01-01 08:00:00",
            "2024-01-01 00:00:00+00:00",
        ),
    ],
)
def test_schema_files_have_defaults_in_a_form_of_their_own(
    definition: str, shown: str, default: str, older: str, in_file: str
) -> None:
    statement = f"ALTER TABLE t ADD COLUMN c {definition}"
    made = from_text(TABLE, statement)[-1]
    added = made.columns[-1]
    assert (added.default, added.initial.text) == (default, older)
    after = [*shown_columns(made)[:-1], SourceColumn("c", added.type, default=shown)]
    assert from_file(statement, after).columns[-1].initial.text == in_file


def shown_columns(version: TableVersion) -> tuple[SourceColumn, ...]:
    """The columns as a schema file lists them."""
    return tuple(
        SourceColumn(column.name, column.type, column.nullable, column.id in version.primary_key, column.default)
        for column in version.columns
    )


STATEMENTS = [
    statement for name in ("columns", "keys", "partitions", "others", "tables", "ticdc") for statement, _ in cases(name)
]
# What the statements name, so that they change something.
BASE = """CREATE TABLE t (id BIGINT PRIMARY KEY, a INT, b VARCHAR(9), c INT, x INT, y INT, `b c` INT)
 PARTITION BY RANGE (id) (PARTITION p0 VALUES LESS THAN (10), PARTITION p1 VALUES LESS THAN (20))"""


@pytest.mark.parametrize("statement", STATEMENTS)
def test_a_statement_has_one_verdict(statement: str) -> None:
    base = from_text(BASE)[-1]
    made = from_text(BASE, statement)[1:]
    of_table = [version for version in made if version.incarnation == base.incarnation]
    try:
        clauses = parse(statement)
    except DdlError:
        pytest.skip("the sinks of TiCDC write statements with other escapes")
    assert all(version.hold is None or _rows_unknown(clauses) for version in made), statement
    if not _is_of_table(clauses):
        return  # A schema file of t has no such statement.
    created = SchemaChange(10, "d", "t", CREATE, BASE, shown_columns(base), "o1", backslash_escapes=True)
    for version in of_table if len(of_table) == 1 else []:
        name = version.name
        shown = shown_columns(version)
        file = SchemaChange(20, name.database, name.table, None, statement, shown, "o2", backslash_escapes=True)
        if version.effect in ("move", "drop") and len(made) > 1:
            continue  # Each of the tables has a schema file of its own.
        seen = [each for each in History().apply([created, file]) if each.incarnation == base.incarnation][-1]
        assert verdict(seen) == verdict(version), statement
        assert (seen.key, seen.unique_keys, seen.partitioning, seen.emptied, seen.swap) == (
            version.key, version.unique_keys, version.partitioning, version.emptied, version.swap,
        )  # fmt: skip


def _is_of_table(clauses: Sequence[ddl.Clause]) -> bool:
    for clause in clauses:
        match clause:
            case ddl.RenameTable(_, new_name) if new_name.name == "t":
                return False
            case ddl.DropTable(_, _, True) | ddl.NoEffect(_, "create_view" | "drop_view", _):
                return False
            case ddl.Flashback():
                return True
            case _:
                pass
    return {str(getattr(clause, "table", "")).removeprefix("d.") for clause in clauses} == {"t"}


def _rows_unknown(clauses: Sequence[ddl.Clause]) -> bool:
    """Which rows are gone, or come, cannot be known from the log of the one table that is in it."""
    kinds = ddl.DropPartitions | ddl.TruncatePartitions | ddl.ExchangePartition | ddl.Flashback | ddl.RenameTable
    return any(isinstance(clause, kinds) for clause in clauses)


def test_the_statement_explains_columns_that_a_file_shows() -> None:
    """Where the two do not agree, a file's columns are right, and the table goes on."""
    query = "ALTER TABLE t ADD COLUMN c INT"
    version = from_file(query, columns(f"{SPEC} c:bigint d"))
    assert (version.effect, version.hold) == ("evolve", None)
    assert [column.name for column in version.columns] == ["id", "a", "b", "c", "d"]
    assert version.note is not None and "column d appears" in version.note


def test_a_statement_is_read_once() -> None:
    change = SchemaChange(10, "d", "t", ADD, TABLE, (), "o")
    assert clauses_of(change)[0] is clauses_of(replace(change, commit_ts=20, origin="p"))[0]
