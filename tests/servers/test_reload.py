"""Tables that appear are assets of a running Dagster, with nobody reloading it."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from cdc_lakehouse.commands import run
from tests.kit.waiting import until
from tests.lake import CREATE, NOON, change
from tests.pipeline import lake_in

pytestmark = pytest.mark.server

_QUERY = json.dumps({"query": "{ assetNodes { assetKey { path } } }"}).encode()


@pytest.fixture
def dagster(tmp_path: Path) -> Iterator[tuple[Path, int]]:
    """`dagster dev` beside the configuration in the directory; its port."""
    home = tmp_path / "home"
    home.mkdir()
    shutil.copy(Path(run.__file__).with_name("dagster.yaml"), home)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    lake_in(tmp_path)
    environment = {
        **os.environ, "DAGSTER_HOME": str(home),
        "CDC_LAKEHOUSE_CONFIG": str(next(tmp_path.rglob("lakehouse.yaml"))),
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
    }  # fmt: skip
    command = [sys.executable, "-m", "dagster", "dev", "-m", "cdc_lakehouse.definitions", "-h", "127.0.0.1"]
    with (tmp_path / "dagster.log").open("wb") as log:
        process = subprocess.Popen(
            [*command, "-p", str(port)], env=environment, cwd=tmp_path, stdout=log, stderr=log, start_new_session=True
        )
        try:
            yield tmp_path, port
        finally:
            process.send_signal(signal.SIGINT)
            try:
                process.wait(60)
            finally:
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)


def assets(port: int) -> set[tuple[str, ...]]:
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/graphql", data=_QUERY, headers={"Content-Type": "application/json"}
    )
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            nodes = json.load(answer)["data"]["assetNodes"]
    except (urllib.error.URLError, TimeoutError):
        return set()
    return {tuple(node["assetKey"]["path"]) for node in nodes}


def test_a_table_that_appears_is_an_asset_soon(dagster: tuple[Path, int]) -> None:
    directory, port = dagster
    lake = lake_in(directory)
    table = (lake.name, "current", "d", "new")
    until(lambda: (lake.name, "checkpoint") in assets(port), 240)
    assert (lake.name, "checkpoint") in assets(port) and table not in assets(port)
    lake.run().history.record([change(10, "new", CREATE)], NOON)
    until(lambda: table in assets(port), 240)
    assert table in assets(port)
