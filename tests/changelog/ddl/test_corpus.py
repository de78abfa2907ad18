"""Statements of other projects' test suites, which lie beside the repository and are never copied into it.

Only the long tier reads them; it skips them where they do not lie beside the checkout.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from cdc_lakehouse.changelog.ddl.lexer import DdlSyntaxError
from cdc_lakehouse.changelog.ddl.statements import parse

CORPUS = Path(__file__).parents[4] / "shared" / "data" / "ddl" / "ddl_corpus.jsonl"
ENOUGH = 0.995

# Statements that neither MySQL nor TiDB takes: an error is the right answer.
NOT_UNDERSTOOD = {
    "e8eb51d61f57": "two statements, the second without an end",
    "2233c107a4f1": "a partition's LOCALITY, which another system has",
    "e19a3a3df548": "CREATE VIEW without a query",
    "6dfa4dcfa28b": "DROP INDEX without a table",
    "67f5f1dfd2ee": "IF EXISTS after the table's name",
}


def digest(statement: str) -> str:
    return hashlib.sha256(statement.encode()).hexdigest()[:12]


pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(not CORPUS.exists(), reason=f"the corpus is not there: {CORPUS}"),
]


def test_nearly_all_statements_are_understood() -> None:
    statements = [json.loads(line)["sql"] for line in CORPUS.read_text("utf-8").splitlines()]
    errors: dict[str, str] = {}
    for statement in statements:
        try:
            assert all(clause.kind for clause in parse(statement))
        except DdlSyntaxError as error:
            errors[digest(statement)] = str(error)
    assert {found: error for found, error in errors.items() if found not in NOT_UNDERSTOOD} == {}
    assert sum(digest(statement) not in errors for statement in statements) >= ENOUGH * len(statements)
