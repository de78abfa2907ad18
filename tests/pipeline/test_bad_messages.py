"""Messages that cannot be used, from their bytes to what is held: none reaches another table, or ends a run."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from cdc_lakehouse.changelog import observed_schema
from cdc_lakehouse.changelog.observed_schema import ObservedColumns
from cdc_lakehouse.decoders.problems import LISTED_PER_SEGMENT
from cdc_lakehouse.definitions import build_definitions
from cdc_lakehouse.pipeline.holds import find_holds
from tests.kit.decoding import Reading
from tests.kit.lakes import TestLake
from tests.lake import NOON
from tests.pipeline import lake_in

_TABLES = ("a", "b", "big")
_FLAT = ("ticdc-canal-json", "canal-json", "dts-canal-json", "shareplex-json")


def _lake(directory: Path, format_name: str = "ticdc-canal-json") -> TestLake:
    return lake_in(directory, source={
        "type": "kafka", "bootstrap_servers": "k:9092", "topics": ["t"], "format": format_name,
    })  # fmt: skip


def _row(database: str, table: str, **more: Any) -> dict[str, Any]:
    return {
        "database": database, "table": table, "type": "INSERT", "isDdl": False, "data": [{"id": "1"}], "old": None,
        "pkNames": ["id"], "mysqlType": {"id": "int"}, "es": 1_780_000_000_000, "_tidb": {"commitTs": 450 << 50},
        **more,
    }  # fmt: skip


def _record(lake: TestLake, columns: Sequence[ObservedColumns]) -> None:
    lake.run().history.record(list(observed_schema.schema_changes(columns, escapes=True)), NOON)


def _columns(database: str, table: str) -> ObservedColumns:
    return ObservedColumns(5 << 18, database, table, (("id", "int"),), ("id",), "t/0/1@5")


def _held(lake: TestLake, message: dict[str, Any], times: int) -> list[str]:
    """The tables that are held for a message that comes so often."""
    reading = Reading("ticdc-canal-json")
    reading.landed_ms = 1_780_000_000_000
    reading.read([[json.dumps(message).encode()] * times], [times])
    assert reading.bad == times
    run = lake.run()
    rejected = [each for found in reading.summaries.values() for bad in found.bad.values() for each in bad]
    run.quarantine.replace(lambda _: True, rejected, NOON)
    assert run.quarantine.count() == times
    return sorted(find_holds(run, run.history.history.incarnations(), 10 << 18).reasons)


@pytest.mark.parametrize("times", [1, LISTED_PER_SEGMENT + 1, LISTED_PER_SEGMENT + 7])
def test_however_many_bad_messages_name_a_table_it_alone_is_held(tmp_path: Path, times: int) -> None:
    lake = _lake(tmp_path)
    _record(lake, [_columns("d", table) for table in _TABLES])
    keys_alone = _row("d", "big", type="UPDATE", old=[{}], _tidb={"commitTs": 450 << 50, "onlyHandleKey": True})

    assert _held(lake, keys_alone, times) == ["d.big#1"]


@pytest.mark.parametrize("times", [1, LISTED_PER_SEGMENT + 1])
def test_however_many_watermarks_cannot_be_true_none_holds_a_table(tmp_path: Path, times: int) -> None:
    lake = _lake(tmp_path)
    _record(lake, [_columns("d", table) for table in _TABLES])
    ahead = {"type": "TIDB_WATERMARK", "_tidb": {"watermarkTs": 3_000_000_000_000 << 18}}

    assert _held(lake, ahead, times) == []


@pytest.mark.parametrize("half", [b"\\ud800", b"\xed\xa0\x80"], ids=["escaped", "raw"])
@pytest.mark.parametrize("format_name", _FLAT)
def test_a_name_with_half_a_surrogate_pair_is_quarantined(tmp_path: Path, format_name: str, half: bytes) -> None:
    reading = Reading(format_name)
    reading.read([[b'{"database":"%b","table":"t","type":"INSERT","data":[{"id":"1"}],"es":1}' % half]], [1])
    (rejected,) = [each for found in reading.summaries.values() for bad in found.bad.values() for each in bad]
    run = _lake(tmp_path, format_name).run()

    run.quarantine.replace(lambda _: False, [rejected], NOON)

    assert run.quarantine.count() == 1


@pytest.mark.parametrize("by_columns", [True, False])
@pytest.mark.parametrize(("database", "table"), [("", "t"), ("d", "")])
@pytest.mark.parametrize("format_name", _FLAT[:3])
def test_a_row_of_no_database_or_no_table_is_a_bad_message(
    format_name: str, database: str, table: str, by_columns: bool
) -> None:
    reading = Reading(format_name, by_columns=by_columns)

    reading.read([[json.dumps(_row(database, table)).encode()]], [1])

    assert not reading.events
    assert reading.bad == 1


def test_a_table_that_a_lake_knows_without_a_database_is_no_asset(tmp_path: Path) -> None:
    """Rows of none were taken once. Dagster knows no group without a name."""
    lake = _lake(tmp_path)
    _record(lake, [_columns("", "t"), _columns("d", "t")])

    keys = build_definitions(lake.config).resolve_all_asset_keys()

    assert any(key.path[-2:] == ["d", "t"] for key in keys)
    assert not any("" in key.path for key in keys)
