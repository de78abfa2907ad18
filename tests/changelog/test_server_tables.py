"""What statements make of tables is what a real MySQL made of them (`golden/ddl.jsonl`, `golden/types.jsonl`)."""

from __future__ import annotations

from typing import Any

import pytest

from cdc_lakehouse.changelog.mysql_types import server_type_text
from tests.changelog.server_tables import ProductTables, differences
from tests.kit import golden


@pytest.mark.parametrize("question", golden.read("ddl"), ids=lambda question: question["about"])
def test_tables_are_those_of_mysql(question: dict[str, Any]) -> None:
    here = ProductTables("d")
    for statement, tables in question["log"].items():
        here.run(statement)
        assert not list(differences(tables, [(each.name.table, each) for each in here.tables])), statement


def test_types_are_those_of_mysql() -> None:
    wrong = dict[str, tuple[str, str]]()
    for question in golden.read("types"):
        here = ProductTables("d")
        here.run(f"CREATE TABLE t (c {question['declared']})")
        shown = server_type_text(here.tables[0].columns[0].type)
        if shown != question["is"]:
            wrong[question["declared"]] = question["is"], shown
    assert not wrong
