"""Ranges of a real broker read in every way of cutting them: together they are what is there, and each is its own."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from cdc_lakehouse.config import KafkaSource
from cdc_lakehouse.sources.kafka import KafkaClient, RangeReader, read_topics, reading
from cdc_lakehouse.sources.record_log import LogPartition, OffsetRange
from tests.kit.kafka import with_timeout
from tests.servers.kafka import Broker, Sent

pytestmark = pytest.mark.server

PARTITIONS = 3
Found = dict[int, list[tuple[int, bytes | None]]]


def source(broker: Broker, topic: str) -> KafkaSource:
    return KafkaSource.model_validate(
        {"type": "kafka", "format": "canal-json", "bootstrap_servers": broker.bootstrap, "topics": [topic]}
    )


@pytest.fixture(scope="module")
def topic(kafka: Broker) -> str:
    """Messages in and out of transactions, some of them aborted, also right at the end."""
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


def read(broker: Broker, topic: str, ranges: Sequence[OffsetRange]) -> Found:
    reader = RangeReader(with_timeout(KafkaClient.of(source(broker, topic)), 20), ranges)
    found: Found = {number: [] for number in range(PARTITIONS)}
    for messages in reader.messages():
        number = messages.range.partition.number
        assert all(messages.range.start <= offset < messages.range.end for offset in messages.offsets)
        assert messages.size == sum(len(each or b"") for each in (*messages.keys, *messages.values))
        found[number] += zip(messages.offsets, messages.values, strict=True)
    assert not reader.faults
    return found


@pytest.mark.parametrize("seed", range(6))
def test_ranges_are_read_whole_however_they_are_cut(
    kafka: Broker, topic: str, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = random.Random(seed)
    monkeypatch.setattr(reading, "_ROWS_TOGETHER", rng.choice((1, 7, 10_000)))
    monkeypatch.setattr(reading, "_BYTES_HELD", rng.choice((1, 20_000, 1 << 30)))
    monkeypatch.setattr(reading, "_MESSAGES_AT_ONCE", rng.choice((1, 5, 500)))
    (there,) = read_topics(source(kafka, topic))
    there_is = {number: list(kafka.read(topic, number)) for number in range(PARTITIONS)}
    rounds: list[list[OffsetRange]] = [[] for _ in range(4)]
    for number, bounds in there.partitions.items():
        assert bounds.low == 0 and bounds.end > there_is[number][-1][0]
        cuts = sorted(rng.sample(range(1, bounds.end), len(rounds) - 1))
        for each, start, end in zip(rounds, [0, *cuts], [*cuts, bounds.end], strict=True):
            each.append(OffsetRange(LogPartition(topic, number), start, end, 1 << 40))
    found: Found = {number: [] for number in range(PARTITIONS)}
    for ranges in rounds:
        for number, messages in read(kafka, topic, ranges).items():
            found[number] += messages
    assert found == there_is


@pytest.mark.parametrize("limit", [100, 5000, 20_000])
def test_bytes_end_a_range(kafka: Broker, topic: str, limit: int) -> None:
    """With the message by which there are so many, or at its end."""
    number, bounds = next(iter(next(iter(read_topics(source(kafka, topic)))).partitions.items()))
    there_is, start = list(kafka.read(topic, number)), 0
    found: list[tuple[int, bytes | None]] = []
    while start < bounds.end:
        whole = OffsetRange(LogPartition(topic, number), start, bounds.end, limit)
        reader = RangeReader(KafkaClient.of(source(kafka, topic)), [whole])
        read = [
            (offset, value, len(key or b"") + len(value or b""))
            for messages in reader.messages()
            for offset, key, value in zip(messages.offsets, messages.keys, messages.values, strict=True)
        ]
        size = sum(size for _, _, size in read)
        start = reader.ends[whole]
        if start < bounds.end:
            assert limit <= size < limit + read[-1][2] and start == read[-1][0] + 1
        else:
            assert size - (read[-1][2] if read else 0) < limit
        found += [(offset, value) for offset, value, _ in read]
    assert found == there_is


def test_many_partitions_by_one_client(kafka: Broker) -> None:
    topic = kafka.create(partitions=40)
    kafka.send(topic, [Sent(b"%d" % n, partition=n % 40) for n in range(4000)])
    (there,) = read_topics(source(kafka, topic))
    ranges = [OffsetRange(LogPartition(topic, number), 10, 90, 1 << 40) for number in there.partitions]
    reader = RangeReader(KafkaClient.of(source(kafka, topic)), ranges)
    found: dict[int, list[bytes | None]] = {}
    for messages in reader.messages():
        found.setdefault(messages.range.partition.number, []).extend(messages.values)
    assert found == {number: [b"%d" % (number + 40 * n) for n in range(10, 90)] for number in range(40)}
    assert reader.ends == dict.fromkeys(ranges, 90)
