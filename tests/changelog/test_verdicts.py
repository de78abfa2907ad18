"""One statement has one verdict: with the columns after it, as schema files have them, and from its text alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from cdc_lakehouse.changelog.ddl import clauses as ddl
from cdc_lakehouse.changelog.ddl.statements import parse
from cdc_lakehouse.changelog.history import History, Statement, schema_changes
from cdc_lakehouse.changelog.schema import TableName
from tests.changelog.ddl.cases import cases
from tests.changelog.statements import files_of, in_any_case, in_odd_case, verdicts

TABLE = "CREATE TABLE t (id BIGINT PRIMARY KEY, a INT, b VARCHAR(9))"


STATEMENTS = [
    statement for name in ("columns", "keys", "partitions", "others", "tables", "ticdc") for statement, _ in cases(name)
]
# Statements of which topics and schema files cannot say the same, and why.
NOT_COMPARED = {
    **dict.fromkeys(
        (
            "CREATE TEMPORARY TABLE t (a INT)",
            "CREATE GLOBAL TEMPORARY TABLE t (a INT) ON COMMIT DELETE ROWS",
            "CREATE TEMPORARY TABLE IF NOT EXISTS t (LIKE d.t)",
            "DROP /*!40005 TEMPORARY */ TABLE IF EXISTS t",
        ),
        "a temporary table has no schema file",
    ),
    **dict.fromkeys(
        (
            "CREATE TABLE t AS SELECT 1",
            "CREATE TABLE t SELECT a FROM (SELECT 1 AS a) x",
            "CREATE TABLE t (SELECT 1)",
            "CREATE TABLE t (a INT) IGNORE SELECT b FROM x",
            "CREATE TABLE t (UNIQUE (a)) REPLACE AS WITH x AS (SELECT 1) SELECT * FROM x",
        ),
        "the text does not say the columns of the query: the first row does",
    ),
    "CREATE OR REPLACE TABLE t (a INT)": "TiDB has no such statement",
    "ALTER TABLE t DROP a, RENAME u": "TiDB refuses a RENAME beside other changes",
    "DROP TABLE ``": "no table has such a name, and a schema file without one is of a database",
}
NUMBERED = "the server numbers its rows in column {}, and the log does not say how"
COMPUTED = "the server computes column {} for all rows, and its values are not in the log"
REPLACED = "it replaces rows with those of a file, which are not in the log"
# Statements of the cases that hold their tables.
HELD = {
    "ALTER TABLE t MODIFY COLUMN a INT NOT NULL AUTO_INCREMENT PRIMARY KEY": [NUMBERED.format("a")],
    "ALTER TABLE t MODIFY COLUMN a INT SERIAL DEFAULT VALUE": [NUMBERED.format("a")],
    "ALTER TABLE t ADD COLUMN c SERIAL": [NUMBERED.format("c")],
    "ALTER TABLE t MODIFY COLUMN a INT GENERATED ALWAYS AS(`b`+1) STORED": [COMPUTED.format("a")],
    "ALTER TABLE t MODIFY COLUMN a INT AS (b) PERSISTENT": [COMPUTED.format("a")],
    "ALTER TABLE t IMPORT PARTITION p TABLESPACE": [REPLACED],
    "ALTER TABLE t DISCARD TABLESPACE": [
        "it takes rows away, and the log does not have those that come in their place"
    ],
    "ALTER TABLE t ENGINE=x ROW_FORMAT=y, DROP a": ["the engine x need not keep the table's rows"],
}
COLUMNS = "(id BIGINT PRIMARY KEY, a INT, b VARCHAR(9), c INT, x INT, y INT, `b c` INT)"
PARTITIONS = "PARTITION BY RANGE (id) (PARTITION p VALUES LESS THAN (10), PARTITION q VALUES LESS THAN (20))"
SESSION = "s"
"""Its database is not `d`: `t` and `d.t` are two tables."""


@pytest.mark.parametrize("statement", STATEMENTS)
def test_a_statement_has_one_verdict(statement: str) -> None:
    clauses = parse(statement)
    base = [
        Statement(number, SESSION, "", f"CREATE TABLE {name.quoted} {COLUMNS} {partitions}", f"o{number}")
        for number, (name, partitions) in enumerate(_tables_before(clauses).items(), start=1)
    ]
    changed = [Statement(20, SESSION, "t", statement, "o20")]
    for clause in clauses:
        if isinstance(clause, ddl.RecoverTable | ddl.RecoverDatabase):
            is_table = isinstance(clause, ddl.RecoverTable)
            lost = f"TABLE {clause.table or 't'}" if is_table else f"DATABASE {clause.name}"
            changed.append(Statement(15, SESSION, "", f"DROP {lost}", "o15"))
    told = History().apply(schema_changes([*base, *changed], escapes=True))
    assert [version.effect for version in told[: len(base)]] == ["create"] * len(base)
    shown = History().apply(files_of(told))
    if statement in NOT_COMPARED:
        assert verdicts(shown, 20) != verdicts(told, 20), "it can be compared"
    else:
        assert verdicts(shown, 20) == verdicts(told, 20) != {}
    # Typed in another letter case it is the same.
    typed = [replace(each, text=in_odd_case(each.text)) for each in changed]
    odd = History().apply(schema_changes([*base, *typed], escapes=True))
    assert in_any_case(odd, 20) == in_any_case(told, 20)
    flashback = any(isinstance(clause, ddl.Flashback) for clause in clauses)
    assert flashback or [version.hold for version in told if version.hold is not None] == HELD.get(statement, [])


def _tables_before(clauses: Sequence[ddl.Clause]) -> dict[TableName, str]:
    """The tables that a statement needs, so that it changes something, with their partitions."""
    found: dict[ddl.TableRef, str] = {}
    made: set[ddl.TableRef] = set()
    own = ddl.TableRef(None, "t")
    for clause in clauses or [ddl.NoEffect(own, "other")]:
        match clause:
            case ddl.CreateTable(_, _, None):
                pass
            case ddl.NoEffect(_, "create_view" | "drop_view"):
                pass
            case ddl.CreateTable(_, _, source) if source is not None:
                found[source] = PARTITIONS
            case ddl.RenameTable(table, new_name):
                found |= {} if table in made else {table: PARTITIONS}
                made.add(new_name)
            case ddl.ExchangePartition(table, _, other):
                found |= {table: PARTITIONS, other: ""}
            case ddl.Flashback(_, None, tables):
                found |= dict.fromkeys(tables or (own,), PARTITIONS)
            case ddl.Flashback(_, database) | ddl.DropDatabase(database) | ddl.RecoverDatabase(database):
                found[ddl.TableRef(database, "t")] = PARTITIONS
            case _:
                found[getattr(clause, "table", None) or own] = PARTITIONS
    return {TableName(name.database or SESSION, name.name): partitions for name, partitions in found.items()}
