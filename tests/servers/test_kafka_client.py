"""A real broker: ranges are read whole however they are cut, and refusals are reported without a secret."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest
from confluent_kafka.admin import AclOperation

from cdc_lakehouse.config import KafkaSource
from cdc_lakehouse.errors import CdcError, ConfigurationError, SourceError, SourceUnreachableError
from tests.boundaries.sources import (
    KafkaClient,
    LandedOffsets,
    LogPartition,
    OffsetRange,
    RangeReader,
    choose_ranges,
    find_pending,
    read_topics,
    require_all,
)
from tests.kit.kafka import hand_on_often, with_timeout
from tests.kit.waiting import until
from tests.servers.kafka import Broker, Sent

pytestmark = pytest.mark.server

PARTITIONS = 3
OTHER_SECRET = "not-the-password-55d1"


def source(brokers: str, *topics: str, **settings: str) -> KafkaSource:
    named: dict[str, Any] = {"topics": list(topics)} if topics else {"topic_pattern": ".*"}
    return KafkaSource.model_validate(
        {"type": "kafka", "format": "canal-json", "bootstrap_servers": brokers, "kafka": settings, **named}
    )


def client(source: KafkaSource, seconds: float = 4) -> KafkaClient:
    return with_timeout(KafkaClient.of(source), seconds)


# --- Ranges ---


@pytest.fixture(scope="module")
def mixed(kafka: Broker) -> str:
    """A topic with messages in and out of transactions, some of them aborted, also right at the end."""
    topic, rng = kafka.create(partitions=PARTITIONS), random.Random(20260301)
    number = 0
    for step in range(40):
        some: list[Sent | bytes] = []
        for _ in range(rng.choice((0, 1, 3, 40))):
            value = None if rng.random() < 0.1 else b"%d" % number + b"x" * rng.choice((0, 10, 5000))
            some.append(Sent(value, rng.choice((None, b"key")), partition=rng.randrange(PARTITIONS)))
            number += 1
        match rng.choice(("plain", "committed", "aborted")) if step < 39 else "aborted":
            case "plain":
                kafka.send(topic, some)
            case how:
                kafka.send_in_transaction(topic, some or [b"one"], commit=how == "committed")
    return topic


@pytest.mark.in_turn
@pytest.mark.parametrize("limit", [100, 20_000, 1 << 40])
def test_ranges_are_read_whole_however_they_are_cut(
    kafka: Broker, mixed: str, limit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each ends with the message by which its bytes are reached, or at its end, and goes on from there."""
    rng = random.Random(limit)
    hand_on_often(monkeypatch, rng.choice((1, 7, 10_000)), rng.choice((1, 20_000, 1 << 30)), rng.choice((1, 5, 500)))
    of = source(kafka.bootstrap, mixed)
    (topic,) = read_topics(of)
    expected = {number: list(kafka.read(mixed, number)) for number in range(PARTITIONS)}
    rounds: list[list[OffsetRange]] = [[] for _ in range(4)]
    for number, bounds in topic.partitions.items():
        assert bounds.low == 0 and bounds.end > expected[number][-1][0]
        cuts = sorted(rng.sample(range(1, bounds.end), len(rounds) - 1))
        for each, start, end in zip(rounds, [0, *cuts], [*cuts, bounds.end], strict=True):
            each.append(OffsetRange(LogPartition(mixed, number), start, end, 1 << 40 if start else limit))
    found: dict[int, list[tuple[int, bytes | None]]] = {number: [] for number in range(PARTITIONS)}
    for ranges in rounds:
        while ranges:
            reader, sizes = RangeReader(client(of, 20), ranges), {each: [0] for each in ranges}
            for messages in reader.messages():
                part = messages.range
                assert all(part.start <= offset < part.end for offset in messages.offsets)
                read = [len(k or b"") + len(v or b"") for k, v in zip(messages.keys, messages.values, strict=True)]
                assert messages.size == sum(read)
                sizes[part] += read
                found[part.partition.number] += zip(messages.offsets, messages.values, strict=True)
            assert not reader.faults
            for part, read in sizes.items():
                assert sum(read[:-1]) < part.max_bytes
                assert sum(read) >= part.max_bytes or reader.ends[part] == part.end
            ranges = [replace(part, start=end) for part, end in reader.ends.items() if end < part.end]
    assert found == expected


# --- Access ---


@pytest.fixture
def topic(kafka: Broker) -> str:
    topic = kafka.create()
    kafka.send(topic, [b"a", b"b", b"c"])
    return topic


def secure(broker: Broker, *topics: str, **settings: str) -> KafkaSource:
    """As the broker's user, with settings of the client that differ."""
    own = {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "PLAIN",
        "sasl.username": broker.USER,
        "sasl.password": broker.PASSWORD,
        "ssl.ca.location": str(broker.certificate),
        **{name.replace("_", "."): value for name, value in settings.items()},
    }
    return source(broker.secure, *topics, **own)


def ranges(broker: Broker, topic: str) -> tuple[OffsetRange, ...]:
    """Those that somebody who may read would take."""
    reader, nothing = source(broker.bootstrap, topic), LandedOffsets()
    return choose_ranges(find_pending(reader, read_topics(reader), nothing).offsets, nothing, 1000, 10**6)


def values(source: KafkaSource, which: Iterable[OffsetRange]) -> list[bytes | None]:
    """The values of ranges; raises the fault that there was."""
    reader = RangeReader(client(source), tuple(which))
    read = [value for messages in reader.messages() for value in messages.values]
    for fault in reader.faults:
        raise fault
    return read


def check_no_secret(error: CdcError) -> None:
    for text in (str(error), repr(error), repr(error.__cause__), repr(error.__context__ and str(error))):
        assert Broker.PASSWORD not in text and OTHER_SECRET not in text


def wait_for(source: KafkaSource) -> Any:
    """A permission takes the broker a moment."""
    found: list[Any] = []

    def may_read() -> bool:
        with contextlib.suppress(SourceError):
            found.append(read_topics(source, client(source)))
        return bool(found)

    until(may_read)
    return found[0]


def test_read_and_describe_are_enough(kafka: Broker, topic: str) -> None:
    kafka.allow(topic, AclOperation.READ, AclOperation.DESCRIBE)
    forbidden = kafka.create()
    reader = secure(kafka, topic)
    (found,) = wait_for(reader)
    assert found.name == topic and found.partitions[0].end == 3 and len(found.id) == 22
    assert values(reader, ranges(kafka, topic)) == [b"a", b"b", b"c"]
    assert topic in {each.name for each in read_topics(secure(kafka), client(reader))}
    # A topic that the user may not read does not stop the others.
    both = secure(kafka, topic, forbidden)
    pending = find_pending(both, read_topics(both, client(both)), LandedOffsets())
    (fault,) = pending.faults
    assert f"no permission to read the topic {forbidden}" in str(fault) and pending.records == 3
    shown = repr(KafkaClient.of(reader))
    assert kafka.secure in shown and Broker.PASSWORD not in shown


@pytest.mark.parametrize("described", [False, True])
def test_missing_permission_is_reported(kafka: Broker, topic: str, described: bool) -> None:
    reader = secure(kafka, topic)
    words = f"no permission to read the topic {topic}.*READ and DESCRIBE"
    with pytest.raises(SourceError, match=words) as raised:
        read_topics(reader, client(reader))
    check_no_secret(raised.value)
    if described:
        kafka.allow(topic, AclOperation.DESCRIBE)
        wait_for(reader)
    with pytest.raises(SourceError, match=words) as raised:
        values(reader, ranges(kafka, topic))
    check_no_secret(raised.value)


BROKERS = ("127.0.0.1:1", "no-such-host.invalid:9092", "127.0.0.1:1,127.0.0.1:2")
WRONG: dict[str, tuple[dict[str, str], type[CdcError], str]] = {
    "password": ({"sasl_password": OTHER_SECRET}, SourceError, r"do not take the credentials.*sasl\.password"),
    "user": ({"sasl_username": "nobody"}, SourceError, r"do not take the credentials.*sasl\.username"),
    "mechanism": ({"sasl_mechanism": "SCRAM-SHA-256"}, SourceError, r"do not take the credentials.*sasl\.mechanism"),
    "authority": ({"ssl_ca_location": "probe"}, SourceError, r"certificate .* cannot be verified.*ssl\.ca\.location"),
    "protocol": ({"security_protocol": "PLAINTEXT"}, SourceUnreachableError, "cannot be reached for now"),
}


@pytest.mark.in_turn
def test_wrong_access_and_missing_brokers_are_reported(kafka: Broker, topic: str) -> None:
    """All at the same time, for clients try until their patience ends."""
    existing = ranges(kafka, topic)
    cases = [
        (secure(kafka, topic, **settings), kind, words, kafka.secure) for settings, kind, words in WRONG.values()
    ] + [
        (source(brokers, topic), SourceUnreachableError, rf"{brokers} cannot be reached for now \(_", brokers)
        for brokers in BROKERS
    ]

    def check(case: tuple[KafkaSource, type[CdcError], str, str]) -> None:
        reader, kind, words, brokers = case
        for look in (lambda: read_topics(reader, client(reader)), lambda: values(reader, existing)):
            with pytest.raises(CdcError, match=words) as raised:
                look()
            assert type(raised.value) is kind and brokers in str(raised.value), words
            check_no_secret(raised.value)

    with ThreadPoolExecutor(len(cases)) as pool:
        list(pool.map(check, cases))


def test_one_broker_of_several_is_enough(kafka: Broker, topic: str) -> None:
    reader = source(f"127.0.0.1:1,{kafka.bootstrap}", topic)
    assert values(reader, ranges(kafka, topic)) == [b"a", b"b", b"c"]
    assert read_topics(reader)[0].partitions[0].end == 3
    kafka.send_in_transaction(topic, [b"d"])  # Which makes a topic of the broker's own.
    names = {found.name for found in read_topics(source(kafka.bootstrap))}
    assert topic in names and not {name for name in names if name.startswith("__")}, "which matches no pattern"


def test_missing_topic_is_reported_and_stops_no_other(kafka: Broker, topic: str) -> None:
    reader = source(kafka.bootstrap, topic, "no-such-topic")
    found = read_topics(reader, client(reader))
    pending = find_pending(reader, found, LandedOffsets())
    (fault,) = pending.faults
    assert [each.name for each in found] == [topic] and pending.records == 3
    assert "there is no topic no-such-topic: correct source.topics" in str(fault)
    with pytest.raises(SourceError, match="there is no topic no-such-topic"):
        require_all(reader, found)
    reader = source(kafka.bootstrap, "no-such-topic")
    with pytest.raises(SourceError, match=r"there is no topic no-such-topic.*source\.topics"):
        read_topics(reader, client(reader))


def test_setting_that_the_client_refuses_is_reported(kafka: Broker, topic: str) -> None:
    existing = ranges(kafka, topic)
    for name, value, protocol in (
        ("no.such.setting", OTHER_SECRET, "PLAINTEXT"),
        ("fetch.max.bytes", OTHER_SECRET, "PLAINTEXT"),
        ("security.protocol", "PLAINTEXT", OTHER_SECRET),
        ("sasl.mechanism", OTHER_SECRET, "SASL_SSL"),
        ("ssl.ca.location", f"/no/such/{OTHER_SECRET}", "SSL"),
    ):
        reader = source(kafka.bootstrap, topic, **{name: value, "security.protocol": protocol})
        for look in (lambda of: read_topics(of, client(of)), lambda of: values(of, existing)):
            with pytest.raises(ConfigurationError, match=r"not take .* source\.kafka.*CONFIGURATION\.md") as raised:
                look(reader)
            check_no_secret(raised.value)
