"""What is stored of the plan of a dump, key by key, and that plans of before are read.

The text here is in lakes: a test that fails says that lakes cannot be read, not that the text must follow."""

from __future__ import annotations

import json
from typing import Any

from cdc_lakehouse.changelog.schema import TableName
from cdc_lakehouse.pipeline.database_load import _PLAN, _Plan, _PlannedTable
from cdc_lakehouse.sources.database.reading import KeyRange, TableDefinition
from cdc_lakehouse.sources.dump.contents import DumpPosition

POSITION = DumpPosition(log_file="bin.1", log_offset=4)
NAME = TableName("d", "ö")
DEFINITION = TableDefinition(NAME, "CREATE TABLE …", "2026-06-01", 30)
RANGES = (KeyRange(None, ("1", "a")), KeyRange(("1", "a"), None))
PLAN = _Plan(
    ["*"], "2026-06-10 01:02:03", POSITION, 3,
    {"d.ö": _PlannedTable(DEFINITION, "t000003/", DumpPosition(gtid="g:1", server_id=7), RANGES)},
)  # fmt: skip
STORED = (
    '{"format": 1, "wanted": ["*"], "started": "2026-06-10 01:02:03", "position": {"log_file": "bin.1", "log_offset": '
    '4}, "begun": 3, "tables": {"d.ö": {"definition": {"name": {"database": "d", "table": "ö"}, "statement": '
    '"CREATE TABLE …", "created": "2026-06-01", "estimated_rows": 30}, "directory": "t000003/", "position": '
    '{"gtid": "g:1", "server_id": 7}, "ranges": [{"upper": ["1", "a"]}, {"lower": ["1", "a"]}]}}}'
)


def test_what_is_stored() -> None:
    assert PLAN.stored() == STORED
    assert _PLAN.validate_python(json.loads(STORED)) == PLAN
    assert (
        _Plan(["d.a"], "now").stored() == '{"format": 1, "wanted": ["d.a"], "started": "now", "begun": 0, "tables": {}}'
    )


def test_plans_of_before_and_of_later_are_read() -> None:
    stored: dict[str, Any] = json.loads(STORED)
    of_later = {**stored, "of later": 1, "tables": {n: {**each, "of later": 1} for n, each in stored["tables"].items()}}
    del stored["format"]
    for each in (stored, of_later):
        assert _PLAN.validate_python(each) == PLAN
