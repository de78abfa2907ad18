"""Which events are superseded: only those that a later, whole one of the same row and version hides for good."""

from __future__ import annotations

import re
from typing import Any, Final

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from cdc_lakehouse.changelog.positions import row_stage
from cdc_lakehouse.decoders.event_schema import CHANGE_COLUMNS, EVENTS, SYNTHETIC, image_text, spark_columns
from cdc_lakehouse.lake.current.keyed_events import KeyedSpan
from cdc_lakehouse.operate.retention import _CHANGES, VersionSpan, _Changes, _superseded

pytestmark = pytest.mark.spark

NAME: Final = 'a"b/c~ü'
PLACE: Final = (("_file", pa.string()), ("_pos", pa.int64()))
SCHEMA: Final = pa.schema([*(EVENTS.field(name) for name in CHANGE_COLUMNS), *PLACE])


def versions(table_no: int, table: str) -> list[VersionSpan]:
    return [
        VersionSpan(KeyedSpan(table_no, 0, "d", table, 0, row_stage(100), ("id",)), ("id", NAME)),
        VersionSpan(KeyedSpan(table_no, 1, "d", table, row_stage(100), row_stage(200), ("id",)), ("id", NAME, "w")),
    ]


IMAGES: Final[dict[str, dict[str, str | None] | None]] = {
    "-": None, "1": {"id": "1", NAME: "x"}, "2": {"id": "2", NAME: "x"}, "1w": {"id": "1", NAME: "x", "w": "y"},
    "1alone": {"id": "1"}, "1null": {"id": "1", NAME: None}, "x": {NAME: "x"}, "y": {NAME: "y"},
}  # fmt: skip
CASES: Final = """
each but the last: I 1 - 1, U 2 1 1, U 3 1 1 => 0 1
a delete stays: I 1 - 1, D 2 1 - => 0
a delete that an insert follows: D 1 1 -, I 2 - 1 => 0
in whatever order they stand: U 3 - 1, I 1 - 1 => 1
delete first, then upsert, at one commit-ts: I 1 - 1, D 1 1 - => 1
an update that leaves a column out hides nothing: I 1 - 1, U 2 - 1alone =>
but a whole one hides it: I 1 - 1, U 2 - 1alone, U 3 - 1null => 0 1
another key: I 1 - 1, I 2 - 2 =>
another version: I 1 - 1, U 101 - 1w =>
whole by its own version: I 101 - 1w, U 102 - 1 =>
a change of the key when both of its keys are hidden: U 1 1 2, I 2 - 1, D 3 2 - => 0
and not with one of them: U 1 1 2, I 2 - 1 =>
it hides what was of both: I 1 - 1, D 1 2 -, U 2 1 2 => 0 1
what has no key hides nothing: I 1 - x, I 2 - y =>
beyond what is looked at: I 199 - 1w, U 201 - 1w =>
decoded again: I 1 - 1, U 2 - 1 =>
synthetic: I 1 - 1, U 2 - 1 =>
"""
"""Each has changes as op, commit-ts, row before, row after; and the places of those that are superseded."""


def test_events_that_a_later_whole_one_hides_are_superseded(spark: SparkSession) -> None:
    # Each case is a table, and a file.
    events: list[dict[str, Any]] = []
    expected: dict[str, list[int]] = {}
    for line in CASES.strip().splitlines():
        case, changes, places = re.fullmatch(r"(.*): (.*) =>(.*)", line).groups()  # type: ignore[union-attr]
        expected[case] = [int(place) for place in places.split()]
        for place, (op, at, before, after) in enumerate(each.split() for each in changes.split(", ")):
            events.append({
                "schema_name": "d", "table_name": case, "op": op, "commit_ts": int(at),
                "before": image_text(IMAGES[before]), "after": image_text(IMAGES[after]),
                "segment": "kept" if case == "decoded again" else "s", "line": place,
                SYNTHETIC: case == "synthetic" and place == 1, "_file": case, "_pos": place,
            })  # fmt: skip
    spans = [version for number, table in enumerate(expected) for version in versions(number, table)]
    changes = spark.createDataFrame(pa.Table.from_pylist(events, SCHEMA)).mapInArrow(
        _Changes(spans, frozenset({"kept"})), spark_columns(_CHANGES)
    )
    found: dict[str, list[int]] = {table: [] for table in expected}
    for each in _superseded(changes).sort("position").collect():
        found[each["file"]].append(each["position"])
    assert found == expected
