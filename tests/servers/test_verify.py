"""`verify` against a MySQL: what differs is found, each time and to the value, and nothing else is."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.servers.mysql import MySqlServer
from tests.servers.verified import Row, VerifiedFeed

pytestmark = pytest.mark.server


@pytest.fixture
def feed(mysql: MySqlServer, tmp_path: Path) -> VerifiedFeed:
    return VerifiedFeed(mysql, tmp_path)


def test_equal(feed: VerifiedFeed) -> None:
    feed.execute(
        "CREATE TABLE t (id BIGINT PRIMARY KEY, v VARCHAR(20))", "INSERT INTO t VALUES (1,'a'),(2,NULL),(3,'')"
    )
    feed.copy("t")
    (table,) = feed.verify(code=0)
    assert (table["result"], table["source_rows"], table["lake_rows"]) == ("equal", 3, 3)
