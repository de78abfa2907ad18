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

STATEMENTS = [
    statement for name in ("columns", "keys", "partitions", "others", "tables", "ticdc") for statement, _ in cases(name)
]
NOT_COMPARED, HELD = (dict(cases(name)) for name in ("not_compared", "held"))
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
        match clause:
            case ddl.RecoverTable(table):
                changed.append(Statement(15, SESSION, "", f"DROP TABLE {table or 't'}", "o15"))
            case ddl.OfDatabase("recover_database", name):
                changed.append(Statement(15, SESSION, "", f"DROP DATABASE {name}", "o15"))
            case _:
                pass
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
    assert flashback or {version.hold for version in told} - {None} == {*filter(None, [HELD.get(statement)])}


def _tables_before(clauses: Sequence[ddl.Clause]) -> dict[TableName, str]:
    """The tables that a statement needs, so that it changes something, with their partitions."""
    found: dict[ddl.TableRef, str] = {}
    made: set[ddl.TableRef] = set()
    own = ddl.TableRef(None, "t")
    for clause in clauses or [ddl.OtherClause(own, "other")]:
        match clause:
            case ddl.CreateTable(_, _, None):
                pass
            case ddl.OtherClause(_, "create_view" | "drop_view"):
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
            case ddl.Flashback(_, database) | ddl.OfDatabase("drop_database" | "recover_database", database):
                found[ddl.TableRef(database, "t")] = PARTITIONS
            case _:
                found[getattr(clause, "table", None) or own] = PARTITIONS
    return {TableName(name.database or SESSION, name.name): partitions for name, partitions in found.items()}
