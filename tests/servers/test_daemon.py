"""From a sensor to a published cut, and to assets of new tables, with the processes that `make dev` starts, through a
SIGKILL of each."""

from __future__ import annotations

import datetime
import json
import os
import signal
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from cdc_lakehouse.lake.tables.lease import Holder, last_holder
from cdc_lakehouse.sample import shop
from tests.kit.lakes import TestLake
from tests.kit.shop import check_shop
from tests.kit.waiting import until
from tests.lake import CREATE, NOON, change
from tests.servers.dev import Dev

pytestmark = pytest.mark.server


@pytest.mark.in_turn
def test_runs_go_on_whatever_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lake = TestLake(tmp_path / "root", tmp_path, no_session, source={"time_zone": "UTC"})
    now = datetime.datetime.now(datetime.UTC)
    shop.write_history(lake.sink, start=now - datetime.timedelta(hours=30), end=now, transactions=80)
    dev = Dev(lake, tmp_path)
    monkeypatch.setenv("DAGSTER_HOME", str(dev.home))

    def holder() -> Holder | None:
        found = last_holder(lake.lake, lake.name)
        return None if found is None or found.released else found

    with dev.running() as process:
        until(lambda: holder() is not None and lake.machinery("segments"), shown=dev.log.read_text)
        first = holder()
        assert first is not None
        # The run's worker, what serves the UI, and then the daemon: the others end with it.
        os.kill(int(first.process.rpartition("/")[2].partition(":")[0]), signal.SIGKILL)
        dev.kill(process, "dagster_webserver")
        dev.kill(process, "dagster._daemon")
    for _ in shop.follow(lake.sink, pause_seconds=0, batches=2):
        pass
    with dev.running() as process:
        until(lambda: published(lake) == checkpoint(lake), shown=dev.log.read_text)
        check_shop(lake)
        with dg.DagsterInstance.get() as instance:
            until(lambda: all(run.is_finished for run in instance.get_runs()))
            found = {run.run_id: run for run in instance.get_runs()}
            assert found[first.run].status == dg.DagsterRunStatus.FAILURE
            assert found[first.run].tags.get("cdc/failure", "transient") == "transient"
            assert next(iter(found.values())).status == dg.DagsterRunStatus.SUCCESS
        # A table that appears is an asset, with nobody reloading Dagster.
        new = (lake.name, "d", "new")
        assert (lake.name, "checkpoint") in dev.assets() and new not in dev.assets()
        lake.run().history.record([change(10, "new", CREATE)], NOON)
        until(lambda: new in dev.assets())
        process.terminate()
    events = [(event["segment"], event["line"]) for event in lake.machinery("events")]
    assert len(set(events)) == len(events)


def no_session() -> Any:
    raise AssertionError("nothing of this test runs here")


def published(lake: TestLake) -> int:
    return lake.run().checkpoints.last().checkpoint_ts


def checkpoint(lake: TestLake) -> int:
    return json.loads((lake.sink / "metadata").read_text())["checkpoint-ts"]
