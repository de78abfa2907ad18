"""The rows that a DDL moves, as images for the table that they leave and the one that they go to."""

from __future__ import annotations

import json
from typing import Any, Final

import pyarrow as pa
import pytest

from cdc_lakehouse.changelog.mysql_types import ColumnType
from cdc_lakehouse.changelog.schema import Column, TableName, TableVersion
from cdc_lakehouse.decoders.event_schema import image_text
from cdc_lakehouse.lake.current.keyed_events import KEYED_EVENTS
from cdc_lakehouse.lake.current.moved_rows import LiveRows
from cdc_lakehouse.lake.current.typed_rows import Target
from cdc_lakehouse.lake.current.value_parsing import ValueFormat

INT, TEXT = ColumnType.of("int"), ColumnType.of("varchar", length=20)


def version_of(table: str, *columns: Column) -> TableVersion:
    return TableVersion(1, TableName("d", table), f"d.{table}#1", "alter", "evolve", "", "", columns)


FIRST: Final = version_of("t", Column(1, "id", INT), Column(2, "v", INT))
LAST: Final = version_of("t", Column(1, "Id", INT), Column(2, "v", TEXT), Column(3, "w", TEXT))
OTHER: Final = version_of("u", Column(7, "ID", INT), Column(8, 'V"', TEXT), Column(9, "", TEXT))


def keyed(version_no: int, image: dict[str, str | None] | None, stage: int = 2, key: str = "1") -> dict[str, Any]:
    return {
        "table_no": 0, "key": [key], "stage": stage, "upsert": image is not None, "is_insert": False,
        "version_no": version_no, "commit_ts": stage // 2, "image": image_text(image), "segment": "s", "line": 1,
    }  # fmt: skip


def live(*events: dict[str, Any], other: TableVersion | None = None) -> list[dict[str, Any]]:
    reader = LiveRows(1, Target(LAST.columns, {0: FIRST, 1: LAST}), other, (), None, ValueFormat())
    batches = pa.Table.from_pylist(list(events), KEYED_EVENTS).to_batches()
    return [row for found in reader(batches) for row in found.to_pylist()]


@pytest.mark.parametrize(
    ("event", "texts"),
    [
        (keyed(1, {"Id": "1", "v": None, "w": 'a"\0😀\n'}), ["1", None, 'a"\0😀\n']),
        (keyed(0, {"v": "07", "id": "1"}), ["1", "7", None]),
        (keyed(0, {"v": None, "id": "1"}), ["1", None, None]),
    ],
)
def test_a_row_has_the_names_of_its_table(event: dict[str, Any], texts: list[str | None]) -> None:
    own, others = (dict(zip(names, texts, strict=True)) for names in (("Id", "v", "w"), ("ID", 'V"', "")))
    (stays,) = live(event)
    assert json.loads(stays["after"]) == own and stays["before"] is None and not stays["exchanged"]
    (goes,) = live(event, other=OTHER)
    assert json.loads(goes["before"]) == own and json.loads(goes["after"]) == others


def test_only_the_last_event_of_a_key_leaves_a_row() -> None:
    events = [keyed(0, {"id": "1", "v": "1"}, 2), keyed(0, {"id": "2", "v": "1"}, 2, "2"), keyed(0, None, 4, "2")]
    found = live(*events, keyed(1, {"Id": "1", "v": "2", "w": "x"}, 6))
    assert [(row["commit_ts"], json.loads(row["after"])["v"], row["partial"]) for row in found] == [(3, "2", False)]
    assert live(*events[1:]) == []


def test_what_the_last_event_leaves_out_is_as_earlier_ones_say() -> None:
    whole = keyed(0, {"id": "1", "v": "07"}) | {"is_insert": True}
    (row,) = live(whole, keyed(1, {"Id": "1", "w": "x"}, 6), other=OTHER)
    assert json.loads(row["before"]) == {"Id": "1", "v": "7", "w": "x"} and not row["partial"]
    assert json.loads(row["after"]) == {"ID": "1", 'V"': "7", "": "x"} and row["commit_ts"] == 3
    # Texts of types that stayed are copied, and another row is as its own event says.
    texts = keyed(1, {"Id": "1", "v": " 007", "w": None}) | {"is_insert": True}
    other = keyed(1, {"Id": "2", "v": "a", "w": "b"}, 6, "2")
    found = live(texts, keyed(1, {"Id": "1", "w": "x"}, 4), keyed(1, {"w": "y"}, 6), other)
    shown = sorted([*json.loads(row["after"]).values()] for row in found)
    assert shown == [["1", " 007", "y"], ["2", "a", "b"]]
    # What was before a DELETE counts for nothing, and what an older version did not have is its default.
    gone = [whole, keyed(0, None, 4), keyed(1, {"Id": "1", "w": "x"}, 6)]
    assert [row["partial"] for row in live(*gone)] == [True]
    (row,) = live(whole, keyed(1, {"Id": "1", "v": "b"}, 6))
    assert json.loads(row["after"]) == {"Id": "1", "v": "b", "w": None} and not row["partial"]


def test_a_row_that_is_not_whole_says_so() -> None:
    assert [row["partial"] for row in live(keyed(1, {"Id": "1"}))] == [True]
