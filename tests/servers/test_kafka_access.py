"""How brokers are reached: TLS, passwords, permissions, and what is told where one is wrong. Never a secret."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from confluent_kafka.admin import AclOperation

from cdc_lakehouse.config import KafkaSource
from cdc_lakehouse.errors import CdcError, ConfigurationError, SourceError, SourceUnreachableError
from cdc_lakehouse.sources.kafka import KafkaClient, RangeReader, choose_ranges, find_pending, read_topics
from cdc_lakehouse.sources.record_log import LandedOffsets, OffsetRange
from tests.kit.kafka import with_timeout
from tests.kit.waiting import until
from tests.servers.kafka import Broker

pytestmark = pytest.mark.server

OTHER_SECRET = "not-the-password-55d1"


@pytest.fixture
def topic(kafka: Broker) -> str:
    topic = kafka.create()
    kafka.send(topic, [b"a", b"b", b"c"])
    return topic


def secure(broker: Broker, *topics: str, **settings: str) -> KafkaSource:
    """As `USER`, with settings of the client that are other."""
    told = {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "PLAIN",
        "sasl.username": broker.USER,
        "sasl.password": broker.PASSWORD,
        "ssl.ca.location": str(broker.certificate),
        **{name.replace("_", "."): value for name, value in settings.items()},
    }
    return source(broker.secure, *topics, **told)


def source(brokers: str, *topics: str, **settings: str) -> KafkaSource:
    named: dict[str, Any] = {"topics": list(topics)} if topics else {"topic_pattern": ".*"}
    return KafkaSource.model_validate(
        {"type": "kafka", "format": "canal-json", "bootstrap_servers": brokers, "kafka": settings, **named}
    )


def client(source: KafkaSource, seconds: float = 4) -> KafkaClient:
    return with_timeout(KafkaClient.of(source), seconds)


def ranges(broker: Broker, topic: str) -> tuple[OffsetRange, ...]:
    """As who may read."""
    reader = source(broker.bootstrap, topic)
    return choose_ranges(
        find_pending(reader, read_topics(reader), LandedOffsets()).offsets, LandedOffsets(), 1000, 10**6
    )


def values(source: KafkaSource, which: Iterable[OffsetRange]) -> list[bytes | None]:
    """What is read; raises the fault that there was."""
    reader = RangeReader(client(source), tuple(which))
    read = [value for messages in reader.messages() for value in messages.values]
    for fault in reader.faults:
        raise fault
    return read


def check_no_secret(error: CdcError) -> None:
    for text in (str(error), repr(error), repr(error.__cause__), repr(error.__context__ and str(error))):
        assert Broker.PASSWORD not in text and OTHER_SECRET not in text


def test_read_and_describe_are_enough(kafka: Broker, topic: str) -> None:
    kafka.allow(topic, AclOperation.READ, AclOperation.DESCRIBE)
    kafka.create()  # Which the user does not see.
    reader = secure(kafka, topic)
    (found,) = wait_for(reader)
    assert found.name == topic and found.partitions[0].end == 3 and len(found.id) == 22
    assert values(reader, ranges(kafka, topic)) == [b"a", b"b", b"c"]
    assert topic in {each.name for each in read_topics(secure(kafka), client(reader))}


def wait_for(source: KafkaSource) -> Any:
    """A permission takes the broker a moment."""
    found: list[Any] = []

    def may_read() -> bool:
        with contextlib.suppress(SourceError):
            found.append(read_topics(source, client(source)))
        return bool(found)

    until(may_read)
    return found[0]


@pytest.mark.parametrize("described", [False, True])
def test_without_permission(kafka: Broker, topic: str, described: bool) -> None:
    reader = secure(kafka, topic)
    with pytest.raises(SourceError, match=f"no permission to read the topic {topic}.*READ and DESCRIBE") as told:
        read_topics(reader, client(reader))
    check_no_secret(told.value)
    if described:
        kafka.allow(topic, AclOperation.DESCRIBE)
        wait_for(reader)
    with pytest.raises(SourceError, match=f"no permission to read the topic {topic}.*READ and DESCRIBE") as told:
        values(reader, ranges(kafka, topic))
    check_no_secret(told.value)


WRONG: dict[str, tuple[dict[str, str], type[CdcError], str]] = {
    "password": ({"sasl_password": OTHER_SECRET}, SourceError, r"do not take the credentials.*sasl\.password"),
    "user": ({"sasl_username": "nobody"}, SourceError, r"do not take the credentials.*sasl\.username"),
    "mechanism": ({"sasl_mechanism": "SCRAM-SHA-256"}, SourceError, r"do not take the credentials.*sasl\.mechanism"),
    "authority": ({"ssl_ca_location": "probe"}, SourceError, r"certificate .* cannot be verified.*ssl\.ca\.location"),
    "protocol": ({"security_protocol": "PLAINTEXT"}, SourceUnreachableError, "cannot be reached for now"),
}


def test_what_is_wrong_is_told(kafka: Broker, topic: str) -> None:
    """All at the same time, for clients try until their patience ends."""
    there = ranges(kafka, topic)

    def is_told(wrong: str) -> None:
        settings, kind, words = WRONG[wrong]
        reader = secure(kafka, topic, **settings)
        for look in (lambda: read_topics(reader, client(reader)), lambda: values(reader, there)):
            with pytest.raises(CdcError, match=words) as told:
                look()
            assert type(told.value) is kind and kafka.secure in str(told.value), wrong
            check_no_secret(told.value)

    with ThreadPoolExecutor(len(WRONG)) as pool:
        list(pool.map(is_told, WRONG))


BROKERS = ("127.0.0.1:1", "no-such-host.invalid:9092", "127.0.0.1:1,127.0.0.1:2")


def test_brokers_that_are_not_there(kafka: Broker, topic: str) -> None:
    there = ranges(kafka, topic)

    def is_told(brokers: str) -> None:
        reader = source(brokers, topic)
        for look in (lambda: read_topics(reader, client(reader, 2)), lambda: values(reader, there)):
            with pytest.raises(SourceUnreachableError, match=rf"{brokers} cannot be reached for now \(_"):
                look()

    with ThreadPoolExecutor(len(BROKERS)) as pool:
        list(pool.map(is_told, BROKERS))


def test_one_broker_of_several_is_enough(kafka: Broker, topic: str) -> None:
    reader = source(f"127.0.0.1:1,{kafka.bootstrap}", topic)
    assert values(reader, ranges(kafka, topic)) == [b"a", b"b", b"c"]
    (found,) = read_topics(reader)
    assert found.partitions[0].end == 3


def test_a_topic_that_is_not_there(kafka: Broker, topic: str) -> None:
    reader = source(kafka.bootstrap, topic, "no-such-topic")
    found = read_topics(reader, client(reader))
    assert [each.name for each in found] == [topic]
    pending = find_pending(reader, found, LandedOffsets())
    (fault,) = pending.faults
    assert "there is no topic no-such-topic: correct source.topics" in str(fault) and pending.records == 3
    reader = source(kafka.bootstrap, "no-such-topic")
    with pytest.raises(SourceError, match=r"there is no topic no-such-topic.*source\.topics"):
        read_topics(reader, client(reader))


def test_a_topic_that_may_not_be_read_stops_no_other(kafka: Broker, topic: str) -> None:
    kafka.allow(topic, AclOperation.READ, AclOperation.DESCRIBE)
    other = kafka.create()
    wait_for(secure(kafka, topic))
    reader = secure(kafka, topic, other)
    pending = find_pending(reader, read_topics(reader, client(reader)), LandedOffsets())
    (fault,) = pending.faults
    assert f"no permission to read the topic {other}" in str(fault) and pending.records == 3


def test_topics_of_the_brokers_own_match_no_pattern(kafka: Broker, topic: str) -> None:
    kafka.send_in_transaction(topic, [b"d"])  # Which makes one.
    names = {found.name for found in read_topics(source(kafka.bootstrap))}
    assert topic in names
    assert not {name for name in names if name.startswith("__")}


@pytest.mark.parametrize(
    "settings",
    [
        {"no.such.setting": OTHER_SECRET},
        {"fetch.max.bytes": OTHER_SECRET},
        {"security.protocol": OTHER_SECRET},
        {"sasl.mechanism": OTHER_SECRET, "security.protocol": "SASL_SSL"},
        {"ssl.ca.location": f"/no/such/{OTHER_SECRET}", "security.protocol": "SSL"},
    ],
    ids=lambda settings: next(iter(settings)),
)
def test_settings_that_the_client_does_not_take(kafka: Broker, topic: str, settings: dict[str, str]) -> None:
    reader = source(kafka.bootstrap, topic, **settings)
    for look in (lambda: read_topics(reader, client(reader)), lambda: values(reader, ranges(kafka, topic))):
        with pytest.raises(ConfigurationError, match=r"does not take .* source\.kafka.*CONFIGURATION\.md") as told:
            look()
        check_no_secret(told.value)


def test_a_client_does_not_show_its_settings(kafka: Broker, topic: str) -> None:
    shown = repr(KafkaClient.of(secure(kafka, topic)))
    assert kafka.secure in shown and Broker.PASSWORD not in shown
