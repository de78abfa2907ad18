"""When a feed of topics asks for a run, and that its definitions need no broker."""

from __future__ import annotations

from pathlib import Path

from cdc_lakehouse.assets.sensors import decide
from cdc_lakehouse.definitions import build_definitions
from cdc_lakehouse.pipeline.monitors import state_of
from cdc_lakehouse.sources.record_log import LogPartition, Pending
from tests.kit.lakes import write_config
from tests.lake import NOON

TOPIC = LogPartition("t", 0)


def pending(start: int, end: int) -> Pending:
    return Pending({TOPIC: (start, end), LogPartition("t", 1): (5, 5)}, {"t": "id"}, ())


def run_key(pending: Pending, cursor: str | None) -> str | None:
    return decide("shop", state_of(pending, cursor), None, NOON).run_key


def test_what_is_not_landed_is_one_run() -> None:
    state = state_of(pending(3, 7), None)
    assert state.waiting and "4 offsets" in state.reason
    assert run_key(pending(3, 7), None) == f"shop:{state.cursor}"
    assert run_key(pending(3, 7), state.cursor) is None
    assert run_key(pending(7, 7), None) is None and not state_of(pending(7, 7), None).waiting


def test_a_run_that_took_a_part_is_followed_by_another() -> None:
    assert run_key(pending(5, 7), state_of(pending(3, 7), None).cursor) is not None


def test_definitions_load_without_a_broker(tmp_path: Path) -> None:
    source = {"type": "kafka", "format": "canal-json", "bootstrap_servers": "127.0.0.1:1", "topics": ["t"]}
    config = write_config(tmp_path / "lakehouse.yaml", tmp_path, tmp_path, "shop", source=source)
    assert [sensor.name for sensor in build_definitions(config).sensors or ()] == ["shop_offsets"]
