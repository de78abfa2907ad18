"""Which events are superseded: only those that a later, whole one of the same row and version hides for good."""

from __future__ import annotations

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


def row(id: str, value: str | None = "x", **more: str | None) -> dict[str, str | None]:
    return {"id": id, NAME: value, **more}


Case = tuple[str, int, dict[str, str | None] | None, dict[str, str | None] | None]
CASES: Final[dict[str, tuple[list[Case], list[int]]]] = {
    "each but the last": (
        [("I", 1, None, row("1")), ("U", 2, row("1"), row("1")), ("U", 3, row("1"), row("1"))], [0, 1],
    ),
    "a delete stays": ([("I", 1, None, row("1")), ("D", 2, row("1"), None)], [0]),
    "a delete that an insert follows": ([("D", 1, row("1"), None), ("I", 2, None, row("1"))], [0]),
    "in whatever order they stand": ([("U", 3, None, row("1")), ("I", 1, None, row("1"))], [1]),
    "delete first, then upsert, at one commit-ts": ([("I", 1, None, row("1")), ("D", 1, row("1"), None)], [1]),
    "an update that leaves a column out hides nothing": ([("I", 1, None, row("1")), ("U", 2, None, {"id": "1"})], []),
    "but a whole one hides it": (
        [("I", 1, None, row("1")), ("U", 2, None, {"id": "1"}), ("U", 3, None, row("1", None))], [0, 1],
    ),
    "another key": ([("I", 1, None, row("1")), ("I", 2, None, row("2"))], []),
    "another version": ([("I", 1, None, row("1")), ("U", 101, None, row("1", w="y"))], []),
    "whole by its own version": ([("I", 101, None, row("1", w="y")), ("U", 102, None, row("1"))], []),
    "a change of the key goes when both of its keys are hidden": (
        [("U", 1, row("1"), row("2")), ("I", 2, None, row("1")), ("D", 3, row("2"), None)], [0],
    ),
    "and stays with one of them": ([("U", 1, row("1"), row("2")), ("I", 2, None, row("1"))], []),
    "it hides what was of both": (
        [("I", 1, None, row("1")), ("D", 1, row("2"), None), ("U", 2, row("1"), row("2"))], [0, 1],
    ),
    "what has no key hides nothing": ([("I", 1, None, {NAME: "x"}), ("I", 2, None, {NAME: "y"})], []),
    "beyond what is looked at": ([("I", 199, None, row("1", w="y")), ("U", 201, None, row("1", w="y"))], []),
}  # fmt: skip


def test_what_is_superseded(spark: SparkSession) -> None:
    # Each case is a table, and a file.
    events = [event(case, place, *each) for case, (each_of, _) in CASES.items() for place, each in enumerate(each_of)]
    twice = (("I", 1, None, row("1")), ("U", 2, None, row("1")))
    events += [event("decoded again", place, *each) | {"segment": "kept"} for place, each in enumerate(twice)]
    events += [event("synthetic", place, *each) | {SYNTHETIC: place == 1} for place, each in enumerate(twice)]
    tables = dict.fromkeys(each["_file"] for each in events)
    spans = [version for number, table in enumerate(tables) for version in versions(number, table)]
    changes = spark.createDataFrame(pa.Table.from_pylist(events, SCHEMA)).mapInArrow(
        _Changes(spans, frozenset({"kept"})), spark_columns(_CHANGES)
    )
    found: dict[str, list[int]] = {table: [] for table in tables}
    for each in _superseded(changes).sort("position").collect():
        found[each["file"]].append(each["position"])
    assert found == {case: places for case, (_, places) in CASES.items()} | {"decoded again": [], "synthetic": []}


def event(case: str, place: int, op: str, commit_ts: int, before: Any, after: Any) -> dict[str, Any]:
    return {
        "schema_name": "d", "table_name": case, "op": op, "commit_ts": commit_ts, "before": image_text(before),
        "after": image_text(after), "segment": "s", "line": place, SYNTHETIC: False, "_file": case, "_pos": place,
    }  # fmt: skip
