"""`metrics` as Prometheus's own parser reads it. tests/golden_pages/metrics.txt has those of a lake with everything."""

from __future__ import annotations

import re
import signal
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.commands import call
from tests.kit.kafka import impatient_client
from tests.kit.lakes import TestLake
from tests.kit.scripted_lake import T0, publish
from tests.pipeline import lake_in

ROOT = Path(__file__).parents[2]
Labels = tuple[tuple[str, str], ...]


@pytest.fixture
def lake(lake: TestLake, monkeypatch: pytest.MonkeyPatch) -> TestLake:
    monkeypatch.setenv("CDC_LAKEHOUSE_CONFIG", str(lake.config_path))
    monkeypatch.delenv("DAGSTER_HOME", raising=False)
    return lake


def parsed(text: str) -> dict[tuple[str, Labels], float]:
    """Values by name (without the prefix) and labels."""
    found = {}
    for family in text_string_to_metric_families(text):
        assert family.type == "gauge" and family.documentation, family
        for sample in family.samples:
            found[sample.name.removeprefix("cdc_lakehouse_"), tuple(sorted(sample.labels.items()))] = sample.value
    return found


def metrics(*options: str) -> dict[tuple[str, Labels], float]:
    done = call("metrics", *options)
    assert done.exit_code == 0, done.output
    return parsed(done.stdout)


def test_silent_source_is_down_and_delays_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        brokers = f"127.0.0.1:{silent.getsockname()[1]}"
        source = {"type": "kafka", "format": "dts-canal-json", "bootstrap_servers": brokers, "topics": ["t"]}
        lake = lake_in(tmp_path, source={**source, "kafka": {"socket.connection.setup.timeout.ms": "1000"}})
        monkeypatch.setenv("CDC_LAKEHOUSE_CONFIG", str(lake.config_path))
        impatient_client(monkeypatch, lake.feed.kafka, 3)
        monkeypatch.setattr("cdc_lakehouse.commands.metrics._PATIENCE_SECONDS", 0.2)
        found = metrics()
        assert (found["source_up", (("feed", lake.name),)], found["up", (("feed", lake.name),)]) == (0, 1)


def test_pages_name_every_metric_and_no_other(lake: TestLake) -> None:
    """The golden page has values of all that a sink can have."""
    reference, page = ((ROOT / "docs" / name).read_text("utf-8") for name in ("reference/metrics.md", "monitoring.md"))
    names = set(re.findall(r"^# TYPE cdc_lakehouse_(\w+) gauge$", call("metrics").stdout, re.MULTILINE))
    assert len(names) > 20 and names == set(re.findall(r"cdc_lakehouse_(\w+)", reference))
    assert set(re.findall(r"cdc_lakehouse_(\w+)", page)) <= names
    golden = (ROOT / "tests/golden_pages/metrics.txt").read_text(encoding="utf-8")
    shown = set(re.findall(r"^cdc_lakehouse_(\w+)\{", golden, re.MULTILINE))
    assert names - shown == {"table_last_compaction_timestamp_seconds", "source_pending_records"}


@pytest.mark.parametrize("listen", ["9464", "127.0.0.1:x", "127.0.0.1:99999", ":1"])
def test_wrong_address_is_refused(lake: TestLake, listen: str) -> None:
    done = call("metrics", "--listen", listen)
    assert done.exit_code == 2 and "HOST:PORT" in done.stderr


@pytest.mark.slow
def test_metrics_are_served_until_interrupted(lake: TestLake, interruptible: None) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        refused = call("metrics", "--listen", address)
        assert refused.exit_code == 2 and f"cannot listen at {address}" in refused.stderr
    program = "from cdc_lakehouse.cli import main; main()"
    command = [sys.executable, "-c", program, "metrics", "--listen", address]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, cwd=ROOT) as process:
        try:
            assert process.stderr is not None and f"http://{address}/metrics" in process.stderr.readline()
            seen = []
            for rows in ({}, {"a": 1, "b": 2}):
                publish(lake, rows, at=T0 + len(rows))
                with urllib.request.urlopen(f"http://{address}/metrics", timeout=60) as answer:
                    seen.append(parsed(answer.read().decode())["tables", (("feed", lake.name),)])
            assert seen == [0, 2], "each scrape reads anew"
        finally:
            process.send_signal(signal.SIGINT)
        assert process.wait(300) == 0
