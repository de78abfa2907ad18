"""`init` before real servers: what it writes is what the source is, and secrets are named and not written."""

from __future__ import annotations

import datetime
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from cdc_lakehouse import config
from cdc_lakehouse.cli import main
from cdc_lakehouse.config.feed import FeedConfig
from cdc_lakehouse.sample.shop import write_history
from tests.servers.buckets import Bucket
from tests.servers.canal import PASSWORD, USER, StartCanal
from tests.servers.kafka import Broker

pytestmark = pytest.mark.server


def run(*words: str) -> Result:
    result = CliRunner().invoke(main, words)
    assert result.exit_code == 0, result.output
    return result


def feed_of(here: Path, **environment: str) -> FeedConfig:
    return config.load(here / "lakehouse.yaml", environment).feeds[0]


MESSAGE = {
    "id": 0, "database": "shop", "table": "orders", "pkNames": ["id"], "isDdl": False, "type": "INSERT",
    "es": 1767225600000, "ts": 1767225600001, "sql": "", "sqlType": {"id": 4, "n": 12},
    "mysqlType": {"id": "int", "n": "varchar(9)"}, "data": [{"id": "1", "n": "a"}], "old": None,
}  # fmt: skip


@pytest.mark.in_turn
def test_the_format_of_a_topic(kafka: Broker, here: Path) -> None:
    for other, told in (
        ({"_tidb": {"commitTs": 463256217600000001}}, ("ticdc-canal-json", True)),
        ({}, ("ticdc-canal-json", False)),
        ({"gtid": ""}, ("canal-json", True)),
        ({"mysqlType": {"id": "int", "n": "varchar"}, "gtid": ""}, ("dts-canal-json", True)),
    ):
        topic = kafka.create(partitions=2)
        kafka.send(topic, [json.dumps({**MESSAGE, **other}).encode()])
        run("init", "--force", "--source", f"kafka://{kafka.bootstrap}/{topic}?protocol=canal-json")
        source = feed_of(here).kafka
        assert (source.format, source.tidb_extension) == told
        assert source.topics == (topic,) and ",".join(source.bootstrap_servers) == kafka.bootstrap


def test_a_uri_without_a_topic_is_told_which_there_are(kafka: Broker, here: Path) -> None:
    topic = kafka.create("a-first-one")  # Not all are listed.
    result = CliRunner().invoke(main, ["init", "--source", f"kafka://{kafka.bootstrap}"])
    assert result.exit_code == 2 and topic in result.output


def test_a_canal_server(start_canal: StartCanal, here: Path) -> None:
    server = start_canal()
    result = run("init", "--source", f"canal://{USER}:{PASSWORD}@{server.address}/{server.source().destination}")
    written = (here / "lakehouse.yaml").read_text(encoding="utf-8")
    assert "password: ${CANAL_PASSWORD}" in written and "CANAL_PASSWORD" in result.output
    source = feed_of(here, CANAL_PASSWORD=PASSWORD).canal
    assert (source.user, source.password, source.addresses) == (USER, PASSWORD, (server.address,))


def test_a_bucket_by_the_uri_that_the_changefeed_has(
    new_bucket: Callable[..., Bucket], here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:

    bucket: Any = new_bucket("s3", "cdc")
    end = datetime.datetime(2026, 3, 2, tzinfo=datetime.UTC)
    write_history(here / "sink", start=end - datetime.timedelta(days=1), end=end, transactions=20, seed=1)
    for file in (path for path in (here / "sink").rglob("*") if path.is_file()):
        bucket.put(file.relative_to(here / "sink").as_posix(), file.read_bytes())
    keys = f"endpoint={bucket.endpoint}&access-key={bucket.ACCESS}&secret-access-key={bucket.SECRET}"
    result = run("init", "--source", f"{bucket.uri}?protocol=canal-json&{keys}")
    written = (here / "lakehouse.yaml").read_text(encoding="utf-8")
    assert bucket.SECRET not in written + result.output
    monkeypatch.setenv("S3_ACCESS_KEY_ID", bucket.ACCESS)
    monkeypatch.setenv("S3_SECRET_ACCESS_KEY", bucket.SECRET)
    assert json.loads(run("doctor", "--json").stdout)["findings"][-1]["outcome"] == "ok"
