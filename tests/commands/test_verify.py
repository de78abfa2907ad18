"""`verify` without a database: what it needs, and that it says so."""

from __future__ import annotations

from pathlib import Path

from tests.commands import call
from tests.pipeline import lake_in


def test_a_feed_without_a_database_is_a_fault_of_the_configuration(tmp_path: Path) -> None:
    result = call("verify", config=lake_in(tmp_path).config_path)
    assert result.exit_code == 2
    assert "no source database is configured: set verify.url of the feed" in result.output


def test_nothing_published_is_2(tmp_path: Path) -> None:
    lake = lake_in(tmp_path, verify={"url": "mysql://nobody@127.0.0.1:1"})
    result = call("verify", config=lake.config_path)
    assert result.exit_code == 2
    assert "no cut is published" in result.output
