"""From a sensor to a published cut with the processes that `make dev` starts, through a SIGKILL of each."""

from __future__ import annotations

import contextlib
import datetime
import json
import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from cdc_lakehouse.lake.tables.lease import Holder, last_holder
from cdc_lakehouse.sample import changefeed
from tests.kit.lakes import TestLake
from tests.kit.processes import command_of, in_session
from tests.kit.shop import check_shop
from tests.kit.waiting import until
from tests.servers.process import free_port

pytestmark = pytest.mark.server

ROOT = Path(__file__).parents[2]
WORKSPACE = "load_from: [{python_module: {module_name: tests.servers.impatient, working_directory: %s}}]\n"


class Dev:
    """Processes of `scripts/dev`: a session of their own."""

    def __init__(self, lake: TestLake, directory: Path) -> None:
        self.log = directory / "log"
        self.home = directory / "dagster_home"
        self.port = free_port()
        workspace = directory / "workspace.yaml"
        workspace.write_text(WORKSPACE % ROOT)
        self._environment = {
            **os.environ,
            "BIN": str(Path(sys.executable).parent),
            "CDC_LAKEHOUSE_CONFIG": str(lake.config_path),
            "DAGSTER_HOME": str(self.home),
            "PORT": str(self.port),
            "WORKSPACE": str(workspace),
        }

    @contextlib.contextmanager
    def running(self) -> Iterator[subprocess.Popen[bytes]]:
        """From when the UI answers. All processes are gone when the block has ended, whatever ended them."""
        with self.log.open("ab") as log:
            # As in the background of a script, where SIGINT is ignored.
            dev = subprocess.Popen(
                [str(ROOT / "scripts/dev")],
                env=self._environment,
                stdout=log,
                stderr=log,
                start_new_session=True,
                preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN),
            )
        try:
            until(lambda: self._answers() or dev.poll() is not None, 180)
            assert self._answers(), self.log.read_text()
            yield dev
            until(lambda: not in_session(dev.pid), 60)
            left = [command_of(each) for each in in_session(dev.pid)]
            assert not left, left
        finally:
            for each in in_session(dev.pid):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(each, signal.SIGKILL)
            dev.wait()

    def kill(self, dev: subprocess.Popen[bytes], words: str) -> None:
        (process,) = [each for each in in_session(dev.pid) if words in command_of(each)]
        os.kill(process, signal.SIGKILL)

    def _answers(self) -> bool:
        with contextlib.suppress(OSError):
            return urllib.request.urlopen(f"http://127.0.0.1:{self.port}/server_info", timeout=5).status == 200
        return False


def test_runs_go_on_whatever_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lake = TestLake(tmp_path / "root", tmp_path, no_session, source={"time_zone": "UTC"})
    now = datetime.datetime.now(datetime.UTC)
    changefeed.write_history(lake.sink, start=now - datetime.timedelta(hours=30), end=now, transactions=80)
    dev = Dev(lake, tmp_path)
    monkeypatch.setenv("DAGSTER_HOME", str(dev.home))

    def holder() -> Holder | None:
        found = last_holder(lake.lake, lake.name)
        return None if found is None or found.released else found

    with dev.running() as process:
        until(lambda: holder() is not None and lake.machinery("segments"), 120)
        first = holder()
        assert first is not None, dev.log.read_text()
        # The run's worker, and then the daemon: the others end with it.
        os.kill(int(first.process.rpartition("/")[2].partition(":")[0]), signal.SIGKILL)
        dev.kill(process, "dagster._daemon")
    goes_on(lake)
    with dev.running() as process:
        until(lambda: (found := holder()) is not None and found.run != first.run, 180)
        second = holder()
        assert second is not None and second.run != first.run, dev.log.read_text()
        dev.kill(process, "dagster_webserver")
    goes_on(lake)
    with dev.running() as process:
        until(lambda: published(lake) == checkpoint(lake), 240)
        assert published(lake) == checkpoint(lake), dev.log.read_text()
        check_shop(lake)
        with dg.DagsterInstance.get() as instance:
            until(lambda: all(run.is_finished for run in instance.get_runs()), 30)
            found = {run.run_id: run for run in instance.get_runs()}
            assert found[first.run].status == dg.DagsterRunStatus.FAILURE
            assert found[first.run].tags["cdc/failure"] == "transient"
            assert next(iter(found.values())).status == dg.DagsterRunStatus.SUCCESS
        process.terminate()
    events = [(event["segment"], event["line"]) for event in lake.machinery("events")]
    assert len(set(events)) == len(events)


def no_session() -> Any:
    raise AssertionError("nothing of this test runs here")


def goes_on(lake: TestLake) -> None:
    for _ in changefeed.follow(lake.sink, pause_seconds=0, batches=2):
        pass


def published(lake: TestLake) -> int:
    return lake.run().checkpoints.last().checkpoint_ts


def checkpoint(lake: TestLake) -> int:
    return json.loads((lake.sink / "metadata").read_text())["checkpoint-ts"]
