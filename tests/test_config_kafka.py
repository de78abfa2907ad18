"""A source of topics in the configuration: what is taken, and what each mistake is answered with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cdc_lakehouse.config import KafkaSource
from cdc_lakehouse.errors import ConfigurationError
from tests.test_config import Edit, put, read, refusal, remove

SECRET = "hunter2-of-the-brokers"
SOURCE = {"type": "kafka", "format": "canal-json", "bootstrap_servers": "one:9092, two:9092", "topics": ["orders"]}


def kafka(**more: Any) -> Edit:
    return put("feeds.0.source", {key: value for key, value in {**SOURCE, **more}.items() if value is not None})


def source(tmp_path: Path, *edits: Edit, **environment: str) -> KafkaSource:
    return read(tmp_path, *edits, **environment).feed("shop").kafka


def test_defaults(tmp_path: Path) -> None:
    found = source(tmp_path, kafka())
    assert (found.bootstrap_servers, found.topics) == (("one:9092", "two:9092"), ("orders",))
    assert (found.time_zone, found.date_separator, found.start) == ("UTC", "day", "earliest")
    assert (found.max_records, found.max_bytes, found.kafka) == (5_000_000, 1 << 30, {})


def test_brokers_as_a_list_and_where_a_feed_begins(tmp_path: Path) -> None:
    assert source(tmp_path, kafka(start="latest")).start == "latest"
    assert source(tmp_path, kafka(start={"orders": {0: 5, "1": 0}})).start == {"orders": {0: 5, 1: 0}}
    assert source(tmp_path, kafka(bootstrap_servers=["a:1", "b:2"])).bootstrap_servers == ("a:1", "b:2")


@pytest.mark.parametrize(
    ("given", "taken", "left"),
    [
        ({"topics": ["orders", "order.items"]}, ["orders", "order.items"], ["order-items", ""]),
        ({"topics": None, "topic_pattern": r"shop\.\w+"}, ["shop.orders"], ["the.shop.orders", "shop.orders.x"]),
    ],
)
def test_which_topics_are_taken(tmp_path: Path, given: dict[str, Any], taken: list[str], left: list[str]) -> None:
    found = source(tmp_path, kafka(**given))
    assert [topic for topic in (*taken, *left) if found.takes(topic)] == taken


def test_client_settings_are_text_and_their_files_are_where_the_file_is(tmp_path: Path) -> None:
    settings = {"fetch.max.bytes": 1000, "check.crcs": True, "ssl.ca.location": "keys/ca.pem", "client.id": "cdc"}
    texts = {"fetch.max.bytes": "1000", "check.crcs": "true", "ssl.ca.location": f"{tmp_path}/keys/ca.pem"}
    assert source(tmp_path, kafka(kafka=settings)).kafka == {**texts, "client.id": "cdc"}
    files = {"ssl.key.location": "/keys/client.pem", "sasl.oauthbearer.assertion.private.key.file": "/keys/a.pem"}
    for settings in ({"ssl.ca.location": "probe"}, files):
        assert source(tmp_path, kafka(kafka=settings)).kafka == settings


DUMP = {"type": "mydumper", "uri": "snapshot"}


@pytest.mark.parametrize(
    ("edit", "said"),
    [
        (kafka(topics=None), (": needs either topics or topic_pattern",)),
        (kafka(topic_pattern="o.*"), (": needs either topics or topic_pattern",)),
        (kafka(topics=[]), (".topics", "at least 1")),
        (kafka(topics=["orders", "orders"]), (".topics", "twice")),
        (kafka(topics=["shop.*"]), (".topics", "'shop.*'", "topic_pattern")),
        (kafka(topics=[".."]), (".topics", "'..'")),
        (kafka(topics=None, topic_pattern="("), (".topic_pattern", "not a regular expression")),
        (kafka(format="debezium"), (".format", "'debezium'", "'ticdc-canal-json'")),
        (kafka(format=None), (".format: is missing",)),
        (kafka(bootstrap_servers=""), (".bootstrap_servers", "host:port")),
        (kafka(bootstrap_servers=[]), (".bootstrap_servers", "at least 1")),
        (kafka(bootstrap_servers=9092), (".bootstrap_servers",)),
        (kafka(time_zone="CEST"), (".time_zone", "Asia/Shanghai")),
        (kafka(date_separator="hour"), (".date_separator", "'day'")),
        (kafka(start="newest"), (".start", "'newest'", "earliest, latest")),
        (kafka(start={"orders": {0: -1}}), (".start", "{orders: {0: 1500")),
        (kafka(start={"orders": {"first": 1}}), (".start",)),
        (kafka(start={"orders": {0: "5"}}), (".start",)),
        (kafka(start=["orders"]), (".start",)),
        (kafka(start={"others": {0: 1}}), ("", "'others'", "does not read")),
        (kafka(max_records=0), (".max_records", "greater than 0")),
        (kafka(max_bytes=0), (".max_bytes", "greater than 0")),
        (
            kafka(before_2022_03_20=True),
            (
                "",
                "before_2022_03_20 means nothing with format canal-json",
            ),
        ),
        (kafka(initial=DUMP), ("", "the second of a change alone (es): read the Canal server itself (type canal)")),
        (kafka(initial=DUMP, format="canal-protobuf"), ("", "have no order over partitions: read the Canal server")),
        (kafka(initial=DUMP, format="dts-avro"), ("", "let the DTS task do its full load into the topic")),
        (
            kafka(initial=DUMP, format="ticdc-canal-json", tidb_extension=False),
            ("", "initial needs messages with a commit-ts: format ticdc-canal-json with tidb_extension"),
        ),
        (kafka(uri="s3://bucket"), (".uri: is not a key",)),
        (remove("feeds.0.source.type"), (".type: is missing",)),
        (put("feeds.0.source", "orders"), ("",)),
    ],
)
def test_what_is_refused(tmp_path: Path, edit: Edit, said: tuple[str, ...]) -> None:
    text = refusal(tmp_path, edit)
    place, *others = said
    assert [words for words in (f"feeds[0].source{place}", *others) if words not in text] == []


@pytest.mark.parametrize(
    "name",
    [
        "bootstrap.servers", "metadata.broker.list", "group.id", "group.instance.id", "group.protocol",
        "enable.auto.commit", "enable.auto.offset.store", "auto.offset.reset", "isolation.level",
        "enable.partition.eof", "allow.auto.create.topics", "sasl.jaas.config",
    ],
)  # fmt: skip
def test_client_settings_that_are_the_feeds_own(tmp_path: Path, name: str) -> None:
    text = refusal(tmp_path, kafka(kafka={name: "x"}))
    assert f"feeds[0].source.kafka: {name} cannot be set" in text


SECRETS = [
    "sasl.password", "ssl.key.password", "ssl.keystore.password", "ssl.key.pem", "sasl.oauthbearer.client.secret",
    "sasl.oauthbearer.assertion.private.key.pem", "sasl.oauthbearer.assertion.private.key.passphrase",
]  # fmt: skip


@pytest.mark.parametrize("name", SECRETS)
def test_secrets_come_from_the_environment_alone(tmp_path: Path, name: str) -> None:
    text = refusal(tmp_path, kafka(kafka={name: SECRET}))
    assert f"feeds[0].source.kafka.{name}" in text and "plain text" in text and SECRET not in text
    config = read(tmp_path, kafka(kafka={name: "${SECRET}"}), SECRET=SECRET)
    assert config.feed("shop").kafka.kafka == {name: SECRET}
    assert SECRET not in repr(config) and SECRET not in str(config)


def test_what_is_for_another_kind_of_source_says_so(tmp_path: Path) -> None:
    feed = read(tmp_path, kafka()).feed("shop")
    with pytest.raises(ConfigurationError, match=r"source\.type is storage_sink.*feed shop.*kafka"):
        _ = feed.storage_sink
    with pytest.raises(ConfigurationError, match=r"source\.type is kafka.*storage_sink"):
        _ = read(tmp_path).feed("shop").kafka
