"""When a feed of a Canal server asks for a run, and that it takes nothing from one."""

from __future__ import annotations

from pathlib import Path

import dagster as dg

from cdc_lakehouse.definitions import build_definitions
from cdc_lakehouse.sources.canal.wire import packets_pb2 as wire
from tests.assets import asked, skipped, tick
from tests.kit.lakes import TestLake
from tests.pipeline import lake_in
from tests.sources.canal.binlogs import binlog_of
from tests.sources.canal.hand_made import HandMadeCanal
from tests.sources.canal.servers import closed_port, serving

LOG = binlog_of([{"kind": "mysql", "rows": 5, "seconds": 1, "rotated": False}] * 4).entries


def lake_of(directory: Path, address: str) -> TestLake:
    source = {"type": "canal", "addresses": [address], "destination": "example"}
    return lake_in(directory, source=source, start_date="2020-01-01")


def test_entries_that_wait_are_one_run_and_stay_there(tmp_path: Path) -> None:
    server = HandMadeCanal(list(LOG[:14]))
    with serving(server) as address:
        lake = lake_of(tmp_path, address)
        result = tick(lake)
        request = asked(result)
        assert request.run_key == f"{lake.name}:{result.cursor}" and request.tags["cdc/feed"] == lake.name
        assert server.acked == 0 and not server.heard[wire.CLIENT_ACK]
        assert "was asked for" in skipped(tick(lake, result.cursor))
        lake.run().source.land()
        assert "no entries wait" in skipped(tick(lake, result.cursor))
        server.entries = list(LOG)
        assert tick(lake, result.cursor).cursor != result.cursor
        # Landed, and not acknowledged: there is something to do all the same.
        lake.run().source.land()
        server.acked = 20
        assert asked(tick(lake, result.cursor))


def test_while_a_run_is_unfinished_nothing_is_asked(tmp_path: Path) -> None:
    server = HandMadeCanal(list(LOG))
    with serving(server) as address, dg.DagsterInstance.ephemeral() as instance:
        lake = lake_of(tmp_path, address)
        run = dg.DagsterRun("a_job", status=dg.DagsterRunStatus.STARTED, tags={"cdc/feed": lake.name})
        instance.add_run(run)
        result = tick(lake, instance=instance)
    assert run.run_id in skipped(result) and server.connections == 0


def test_a_server_that_cannot_be_reached_is_told(tmp_path: Path) -> None:
    assert "cannot be reached" in skipped(tick(lake_of(tmp_path, closed_port())))


def test_definitions_load_without_a_server(tmp_path: Path) -> None:
    lake = lake_of(tmp_path, closed_port())
    definitions = build_definitions(lake.config)
    assert [sensor.name for sensor in definitions.sensors or ()] == [f"{lake.name}_entries"]
    checks = {key.name for each in definitions.asset_checks or () for key in each.check_keys}
    assert "text_undamaged" in checks
