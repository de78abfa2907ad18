"""What is served: the status page of `ui`, and `metrics` as Prometheus's own parser reads it.
tests/golden_pages/metrics.txt has those of a lake with everything."""

import base64
import hashlib
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import ThreadingHTTPServer
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from cdc_lakehouse.changelog.positions import utc_now
from cdc_lakehouse.commands.common import Asked
from cdc_lakehouse.commands.report import page_handler
from tests.commands import call
from tests.kit.kafka import wait_at_most
from tests.kit.lakes import TestLake
from tests.kit.scripted_lake import T0, before, publish
from tests.pipeline import Sink, lake_in

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
SHOTS = os.environ.get("CDC_TESTS_SHOTS")


@pytest.fixture
def lake(lake: TestLake, monkeypatch: pytest.MonkeyPatch) -> TestLake:
    monkeypatch.setenv("CDC_LAKEHOUSE_CONFIG", str(lake.config_path))
    monkeypatch.delenv("DAGSTER_HOME", raising=False)
    return lake


@contextmanager
def served(lake: TestLake) -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), page_handler(Asked(lake.config, None))) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/"
        finally:
            server.shutdown()
            thread.join()


def page_of(lake: TestLake) -> str:
    with served(lake) as url, urllib.request.urlopen(url, timeout=60) as answer:
        return answer.read().decode()


def test_page_is_all_that_is_served_and_runs_its_own_script(lake: TestLake) -> None:
    page = page_of(lake)
    with served(lake) as url, pytest.raises(urllib.error.HTTPError, match="404"):
        urllib.request.urlopen(f"{url}etc/passwd", timeout=60)
    (script,) = re.findall(r"<script>(.*?)</script>", page, re.DOTALL)
    assert f"sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}" in page
    assert 'http-equiv="refresh"' in page


def test_page_of_a_broken_catalog_says_why(lake: TestLake, tmp_path: Path) -> None:
    publish(lake, {"a": 1})
    Path((lake.config.lake.catalog.uri or "").removeprefix("sqlite:///")).write_text("not a database")
    with pytest.raises(urllib.error.HTTPError, match="503") as raised:
        page_of(lake)
    assert "(CDC-" in raised.value.read().decode()


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on the PATH (Debian: apt-get install chromium)")
def test_page_of_1000_tables_fits_a_phone(lake: TestLake) -> None:
    api = pytest.importorskip("playwright.sync_api", reason="the browser's driver is not installed: run scripts/setup")
    Sink(lake.sink).checkpoint(10)
    reason = f"it is bad: {'long ' * 60}{'d/x/' * 60}"
    publish(lake, {f"t{n}": n for n in range(1000)}, {"d.x": reason}, at=before(utc_now(), 3))
    with served(lake) as url, api.sync_playwright() as driver:
        options = ["--no-sandbox", "--disable-dev-shm-usage"]
        with driver.chromium.launch(executable_path=CHROMIUM, args=options) as browser:
            page = browser.new_page(viewport={"width": 390, "height": 844})
            page.goto(url, timeout=120_000)
            assert page.evaluate("document.documentElement.scrollWidth") <= 390
            assert "d.x is held" in page.locator("ul.bad").inner_text()
            page.get_by_label("search tables").fill("T99")
            api.expect(page.locator("tbody").first.locator("tr:visible")).to_have_count(11)
            if SHOTS is not None:
                page.screenshot(path=f"{SHOTS}/phone.png")


# --- Metrics ---


ROOT = Path(__file__).parents[2]
Labels = tuple[tuple[str, str], ...]


def parsed(text: str) -> dict[tuple[str, Labels], float]:
    """Values by name (without the prefix) and labels."""
    found = {}
    for family in text_string_to_metric_families(text):
        assert family.type == "gauge" and family.documentation, family
        for sample in family.samples:
            found[sample.name.removeprefix("cdc_lakehouse_"), tuple(sorted(sample.labels.items()))] = sample.value
    return found


def test_silent_source_is_down_and_delays_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        brokers = f"127.0.0.1:{silent.getsockname()[1]}"
        source = {"type": "kafka", "format": "dts-canal-json", "bootstrap_servers": brokers, "topics": ["t"]}
        lake = lake_in(tmp_path, source={**source, "kafka": {"socket.connection.setup.timeout.ms": "1000"}})
        monkeypatch.setenv("CDC_LAKEHOUSE_CONFIG", str(lake.config_path))
        wait_at_most(monkeypatch, 3)
        monkeypatch.setattr("cdc_lakehouse.commands.metrics._PATIENCE_SECONDS", 0.2)
        done = call("metrics")
        found = parsed(done.stdout)
        assert done.exit_code == 0, done.output
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
