"""The status page that `ui` serves."""

from __future__ import annotations

import base64
import hashlib
import re
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import ThreadingHTTPServer
from pathlib import Path

import pytest

from cdc_lakehouse.changelog.positions import utc_now
from cdc_lakehouse.commands.report import page_handler
from tests.kit.lakes import TestLake
from tests.kit.scripted_lake import before, publish
from tests.pipeline import Sink


@contextmanager
def served(lake: TestLake) -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), page_handler(lake.config, None)) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/"
        finally:
            server.shutdown()
            thread.join()


def test_page_shows_first_what_needs_attention(lake: TestLake) -> None:
    Sink(lake.sink).checkpoint(10)
    lake.configure(tables={"settings": {"d.slow": {"freshness_minutes": 1}}})
    publish(lake, {"fine": 5, "slow": 1}, {"d.<x>": "it's bad"}, at=before(utc_now(), 3))
    with served(lake) as url:
        with urllib.request.urlopen(url, timeout=60) as answer:
            page = answer.read().decode()
        with pytest.raises(urllib.error.HTTPError, match="404"):
            urllib.request.urlopen(f"{url}etc/passwd", timeout=60)
    rows = re.findall(r"<tr( class=bad)?><td>(d\.[^<]+)</td><td>([^<]+)</td>", page)
    assert rows == [(" class=bad", "d.&lt;x&gt;", "held"), (" class=bad", "d.slow", "late"), ("", "d.fine", "on time")]
    assert "d.&lt;x&gt; is held: it&#x27;s bad" in page and 'http-equiv="refresh"' in page
    (script,) = re.findall(r"<script>(.*?)</script>", page, re.DOTALL)
    assert f"sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}" in page


def test_page_of_a_broken_catalog_says_why(lake: TestLake, tmp_path: Path) -> None:
    publish(lake, {"a": 1})
    Path((lake.config.lake.catalog.uri or "").removeprefix("sqlite:///")).write_text("not a database")
    with served(lake) as url, pytest.raises(urllib.error.HTTPError, match="503") as raised:
        urllib.request.urlopen(url, timeout=60)
    assert "(CDC-" in raised.value.read().decode()
