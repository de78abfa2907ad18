from __future__ import annotations

import json
from pathlib import Path

import pytest

from cdc_lakehouse.changelog.ddl.statements import parse
from cdc_lakehouse.changelog.versions import kind_of_action
from tests.kit import data_sets as packed


def test_numbers_name_what_statements_do(data_sets: Path) -> None:
    """The kind of TiDB's number is the kind of the statement's only clause."""
    files = [data_sets / "canal-json" / name / "expected.json" for name in packed.names("canal-json")]
    statements = [ddl for file in files for ddl in json.loads(file.read_text(encoding="utf-8"))["ddl"]]
    assert len({ddl["kind"] for ddl in statements}) > 10
    for ddl in statements:
        kinds = {clause.kind for clause in parse(ddl["query"], backslash_escapes=False)}
        told = kind_of_action(ddl["kind"])
        if told == "multi_schema_change":
            assert len(kinds) > 1
        else:
            assert kinds == {told}


# TiDB's model.ActionType, those that the data sets do not have.
@pytest.mark.parametrize(
    ("statement", "action"),
    [
        ("ALTER TABLE t ADD CONSTRAINT FOREIGN KEY (a) REFERENCES u (a)", 9),
        ("ALTER TABLE t DROP FOREIGN KEY f", 10),
        ("ALTER TABLE t RENAME INDEX a TO b", 18),
        ("ALTER TABLE t CONVERT TO CHARACTER SET utf8mb4", 22),
        ("ALTER TABLE t ADD PRIMARY KEY (a)", 32),
        ("ALTER TABLE t DROP PRIMARY KEY", 33),
        ("ALTER TABLE t EXCHANGE PARTITION p WITH TABLE u", 42),
        ("CREATE TABLE t (a INT)", 60),
        ("ALTER TABLE t PARTITION BY HASH (a) PARTITIONS 2", 71),
        ("ALTER TABLE t REMOVE PARTITIONING", 72),
    ],
)
def test_further_numbers(statement: str, action: int) -> None:
    assert {clause.kind for clause in parse(statement)} == {kind_of_action(action)}


def test_a_number_that_is_not_known_is_named_by_itself() -> None:
    assert kind_of_action(0) == "seen"
    assert kind_of_action(9999) == "action_9999"
