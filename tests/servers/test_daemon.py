"""From a sensor to a published cut, and to assets of new tables, with the processes that `make dev` starts, through a
SIGKILL of each."""

from __future__ import annotations

import contextlib
import datetime
import json
import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import dagster as dg
import pytest

from cdc_lakehouse.lake.tables.lease import Holder, last_holder
from cdc_lakehouse.sample import shop
from tests.kit.lakes import TestLake
from tests.kit.processes import command_of, in_session
from tests.kit.shop import check_shop
from tests.kit.waiting import until
from tests.lake import CREATE, NOON, change
from tests.servers.process import free_port

pytestmark = pytest.mark.server

ROOT = Path(__file__).parents[2]
WORKSPACE = "load_from: [{python_module: {module_name: tests.servers.impatient, working_directory: %s}}]\n"
_ASSETS = json.dumps({"query": "{ assetNodes { assetKey { path } } }"}).encode()


class Dev:
    """Processes of `scripts/dev`: a session of their own."""

    def __init__(self, lake: TestLake, directory: Path) -> None:
        self.log = directory / "log"
        self.home = directory / "dagster_home"
        self.port = free_port()
        self._url = f"http://127.0.0.1:{self.port}"
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
            until(lambda: self._answers() or dev.poll() is not None, shown=self.log.read_text)
            assert self._answers(), self.log.read_text()
            yield dev
            until(lambda: not in_session(dev.pid), shown=lambda: [*map(command_of, in_session(dev.pid))])
        finally:
            for each in in_session(dev.pid):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(each, signal.SIGKILL)
            dev.wait()

    def assets(self) -> set[tuple[str, ...]]:
        """The keys of the assets that the UI has; none while the definitions are loaded."""
        request = urllib.request.Request(
            f"{self._url}/graphql", data=_ASSETS, headers={"Content-Type": "application/json"}
        )
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                nodes = json.load(answer)["data"]["assetNodes"]
        except (urllib.error.URLError, TimeoutError):
            return set()
        return {tuple(node["assetKey"]["path"]) for node in nodes}

    def _answers(self) -> bool:
        with contextlib.suppress(OSError):
            return urllib.request.urlopen(f"{self._url}/server_info", timeout=5).status == 200
        return False


@pytest.mark.in_turn
def test_runs_go_on_whatever_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lake = TestLake(tmp_path / "root", tmp_path, pytest.fail, source={"time_zone": "UTC"})
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
        for words in ("dagster_webserver", "dagster._daemon"):
            (found,) = [each for each in in_session(process.pid) if words in command_of(each)]
            os.kill(found, signal.SIGKILL)
    for _ in shop.follow(lake.sink, pause_seconds=0, batches=2):
        pass
    with dev.running() as process:
        upto = json.loads((lake.sink / "metadata").read_text())["checkpoint-ts"]
        until(lambda: lake.run().checkpoints.last().checkpoint_ts == upto, shown=dev.log.read_text)
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
