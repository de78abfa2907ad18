"""Positions of dumps that are none in the log of a Canal feed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cdc_lakehouse.config import FeedConfig
from cdc_lakehouse.errors import SourceError
from cdc_lakehouse.lake.catalog import Lake
from cdc_lakehouse.pipeline.canal import CanalServer
from cdc_lakehouse.pipeline.context import FeedContext
from cdc_lakehouse.pipeline.source import JoinPoint
from cdc_lakehouse.sources.dump.contents import DumpPosition
from tests.kit.lakes import lake_config

SOURCE: dict[str, Any] = {"type": "canal", "addresses": ["canal-1:11111"], "destination": "example"}


def no_session() -> Any:
    raise AssertionError("no JVM is needed")


def join(root: Path, position: DumpPosition) -> JoinPoint:
    feed = FeedConfig.model_validate({"name": "shop", "start_date": "2020-01-01", "source": SOURCE})
    return CanalServer(FeedContext(feed, Lake(lake_config(root)), no_session)).join(position)


@pytest.mark.parametrize(
    ("position", "words"),
    [
        (DumpPosition(gtid="0f0f0f0f-1111-2222-3333-444444444444:1-77"), "GTID 0f0f0f0f-1111-2222-3333-444444444444"),
        (DumpPosition(tso=466_100_000_000_000_001), "TSO 466100000000000001"),
    ],
)
def test_a_position_that_is_no_place_in_a_binlog(tmp_path: Path, position: DumpPosition, words: str) -> None:
    with pytest.raises(SourceError, match=f"not a place in a binlog .{words}") as error:
        join(tmp_path, position)
    assert "REPLICATION CLIENT" in str(error.value)


def test_a_dump_waits_for_the_first_entry(tmp_path: Path) -> None:
    found = join(tmp_path, DumpPosition(log_file="bin.000003", log_offset=4711))
    assert found.waits == "the dump waits for the log to reach bin.000003, 4711; nothing of it has landed"
