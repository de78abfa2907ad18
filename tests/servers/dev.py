"""The processes that `make dev` starts, for a lake of tests."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

from tests.kit.lakes import TestLake
from tests.kit.processes import command_of, in_session
from tests.kit.waiting import until
from tests.servers.process import free_port

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

    def kill(self, dev: subprocess.Popen[bytes], words: str) -> None:
        (process,) = [each for each in in_session(dev.pid) if words in command_of(each)]
        os.kill(process, signal.SIGKILL)

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
