"""Statements of other projects' test suites, which lie beside the repository and are never copied into it.

Only the long tier reads them; it skips them where they do not lie beside the checkout.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from cdc_lakehouse.changelog.ddl.clauses import Clause
from cdc_lakehouse.changelog.ddl.lexer import DdlSyntaxError
from cdc_lakehouse.changelog.ddl.statements import parse

CORPUS = Path(__file__).parents[4] / "shared" / "data" / "ddl" / "ddl_corpus.jsonl"
ENOUGH = 0.995

# The labels were made by rules, and some are wrong or leave clauses out. What these statements do instead, by
# the first digits of their SHA-256.
CORRECTED = {
    "926bf11a0997": ["add_index"],  # ADD CONSTRAINT IF NOT EXISTS ... UNIQUE adds no column
    "c5e24606d3f6": ["add_column", "add_primary_key"],  # both in one pair of parentheses
    "5ba59b94234c": ["add_column", "add_primary_key"],  # the same
    "b4f8f6fa23d4": ["foreign_key"],  # ADD ( ... ) with nothing but a foreign key
    "cb9984e88c38": ["check_constraint"],  # ADD ( ... ) with nothing but a check
    "483220df3598": ["add_column"],  # comes after WAIT n
    "4d05f0e8e2ed": ["add_column", "placement_tiflash_ttl_etc"],  # two clauses without a comma
    "ddc5ab603ae4": ["foreign_key", "reorganize_partition"],  # two clauses without a comma
    "6c07794b1752": ["placement_tiflash_ttl_etc"],  # the comma is in a list of labels
    "0403e1e31a00": ["create_table"],  # "like" is part of a name
    "17ab3e771831": ["create_table_as_select"],  # VALUES is a query
    "9330c7f7c6ce": ["add_column", "charset"],  # the character set is the second of two options
    "5fecfb5adfe4": ["charset"],  # the same
}

# Statements that neither MySQL nor TiDB takes: an error is the right answer.
NOT_UNDERSTOOD = {
    "e8eb51d61f57": "two statements, the second without an end",
    "2233c107a4f1": "a partition's LOCALITY, which another system has",
    "e19a3a3df548": "CREATE VIEW without a query",
    "6dfa4dcfa28b": "DROP INDEX without a table",
    "67f5f1dfd2ee": "IF EXISTS after the table's name",
}


# Kinds of the corpus that are one here, as TiDB has one number for them.
ONE_KIND = {
    "change_column": "modify_column", "rename_column": "modify_column",
    "create_table_like": "create_table", "create_table_as_select": "create_table",
}  # fmt: skip


def digest(statement: str) -> str:
    return hashlib.sha256(statement.encode()).hexdigest()[:12]


def kinds(clauses: tuple[Clause, ...]) -> list[str]:
    """Each kind once, in order; table options only where there is nothing else."""
    found = list(dict.fromkeys(clause.kind for clause in clauses))
    return [kind for kind in found if kind != "table_option"] or found


pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(not CORPUS.exists(), reason=f"the corpus is not there: {CORPUS}"),
]


@pytest.fixture(scope="module")
def entries() -> list[dict[str, Any]]:
    return [json.loads(line) for line in CORPUS.read_text("utf-8").splitlines()]


def test_no_statement_gets_a_wrong_kind(entries: list[dict[str, Any]]) -> None:
    wrong: list[str] = []
    for entry in entries:
        statement: str = entry["sql"]
        labels: list[str] = CORRECTED.get(digest(statement), entry["kinds"])
        expected = list(dict.fromkeys(ONE_KIND.get(kind, kind) for kind in labels))
        try:
            found = kinds(parse(statement))
        except DdlSyntaxError:
            continue
        if found != expected:
            wrong.append(f"{found} instead of {expected}: {statement}")
    assert wrong == []


def test_nearly_all_statements_are_understood(entries: list[dict[str, Any]]) -> None:
    errors: dict[str, str] = {}
    for entry in entries:
        try:
            parse(entry["sql"])
        except DdlSyntaxError as error:
            errors[digest(entry["sql"])] = str(error)
    assert {found: error for found, error in errors.items() if found not in NOT_UNDERSTOOD} == {}
    understood = sum(digest(entry["sql"]) not in errors for entry in entries)
    assert understood >= ENOUGH * len(entries)
