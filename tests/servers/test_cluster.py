"""The same run on a cluster of Spark's own: a master and two workers, each a process."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyspark
import pytest

from tests.kit.data_sets import apply_stage
from tests.kit.lakes import TestLake
from tests.kit.truth import Truth
from tests.kit.waiting import until
from tests.servers.process import free_port, running

pytestmark = pytest.mark.server

_HERE = "127.0.0.1"
_SMALL = ("-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")


@contextlib.contextmanager
def cluster(directory: Path, workers: int) -> Iterator[str]:
    """Its URL. Each worker has one core."""
    home = Path(pyspark.__file__).parent
    environment = {
        **os.environ,
        "SPARK_HOME": str(home),
        "SPARK_SCALA_VERSION": "2.13",  # Which Spark's scripts find out.
        "SPARK_LOCAL_IP": _HERE,
        "SPARK_WORKER_DIR": str(directory / "work"),
    }

    def daemon(kind: str, *arguments: str) -> list[str]:
        main = ["-cp", str(home / "jars" / "*"), f"org.apache.spark.deploy.{kind}"]
        return ["java", *_SMALL, *main, "--host", _HERE, *arguments]

    port, url = free_port(), ""
    with contextlib.ExitStack() as stack:
        url = f"spark://{_HERE}:{port}"
        master = daemon("master.Master", "--port", str(port), "--webui-port", str(free_port()))
        stack.enter_context(running(master, port, directory / "master.log", environment))
        for number in range(workers):
            own = free_port()
            options = ("--port", str(own), "--webui-port", str(free_port()), "--cores", "1", "--memory", "1g", url)
            log = directory / f"worker-{number}.log"
            stack.enter_context(running(daemon("worker.Worker", *options), own, log, environment))
            until(lambda log=log: "Successfully registered" in log.read_text())
        yield url


@pytest.mark.in_turn
def test_a_run_on_two_workers(data_sets: Path, tmp_path: Path) -> None:
    truth = Truth(data_sets / "canal-json/types_all_random")
    root = tmp_path / "lake"
    root.mkdir()
    lake = TestLake(
        root, tmp_path / "feed", lambda: pytest.fail("the run has a session of its own"), source=truth.source
    )
    with cluster(tmp_path, workers=2) as url:
        document = json.loads(lake.config_path.read_text())
        # Two executors, so that none of them is where the driver is.
        document["lake"]["spark"] = {
            "master": url,
            "conf": {
                "spark.driver.host": _HERE,
                "spark.executor.memory": "512m",
                "spark.cores.max": "2",
                "spark.driver.extraJavaOptions": " ".join(_SMALL[1:]),
                "spark.executor.extraJavaOptions": " ".join(_SMALL[1:]),
            },
        }
        lake.config_path.write_text(json.dumps(document))
        environment = {
            **os.environ,
            "CDC_LAKEHOUSE_CONFIG": str(lake.config_path),
            "DAGSTER_HOME": str(tmp_path / "home"),
            "SPARK_LOCAL_IP": _HERE,
        }
        command = [str(Path(sys.executable).with_name("cdc-lakehouse")), "run"]
        last = len(truth.stages) - 1
        apply_stage(truth.dataset, last, lake.sink)
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
    lake.check(truth.tables(last))
    assert lake.events_by_segment() == truth.events_by_segment(last)
    assert len(list((tmp_path / "work").glob("app-*/*/stderr"))) == 2, "an executor on each worker"
