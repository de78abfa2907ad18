"""Topics of a real broker landed in `records`: what is kept of a message, what is new, and what is no message."""

from __future__ import annotations

import json

import pytest

from cdc_lakehouse.lake.names import OFFSETS
from cdc_lakehouse.sources.kafka import reading as ranges_module
from tests.kit.waiting import until
from tests.servers.kafka import Broker, Sent
from tests.servers.topics import NewFeed, TopicFeed, numbered

pytestmark = [pytest.mark.server, pytest.mark.spark]


# --- What is kept ---


@pytest.mark.in_turn
@pytest.mark.usefixtures("in_tasks")
def test_every_byte_of_a_message_is_kept(new_feed: NewFeed, kafka: Broker) -> None:
    feed = new_feed(topics=[kafka.create(partitions=2)])
    all_bytes = bytes(range(256))
    sent = [
        Sent(all_bytes, all_bytes, 1_700_000_000_123, [("a", all_bytes), ("a", None), ("é", b"")]),
        Sent(None, b"tombstone", 1_700_000_000_124),
        Sent(b"", b"", 1_700_000_000_125),
        Sent(None, None, 1_700_000_000_126),
        Sent("订单\x00\n".encode(), None, 1_700_000_000_127),
    ]
    feed.send(*sent, *(Sent(value, partition=1) for value in numbered(3)))
    batch, _ = feed.run()
    assert feed.values(1) == numbered(3)
    seen = [row for row in feed.rows() if row["partition"] == 0]
    assert [(row["key"], row["value"]) for row in seen] == [(each.key, each.value) for each in sent]
    assert [(h["key"], h["value"]) for h in seen[0]["headers"]] == list(sent[0].headers)
    assert not any(row["headers"] for row in seen[1:])
    assert [row["timestamp"].timestamp() for row in seen] == [1_700_000_000 + n / 1000 for n in range(123, 128)]
    assert {row["timestamp_type"] for row in seen} == {"CreateTime"}
    assert [row["offset"] for row in seen] == list(range(5))
    assert {(row["topic"], row["partition"], row["batch"]) for row in seen} == {(feed.topic, 0, 1)}
    segment, other = batch.segments
    assert (other.partition.number, other.start, other.end, other.records) == (1, 0, 3, 3)
    assert {row["segment"] for row in seen} == {segment.segment} == {f"{feed.topic}/0/{0:020d}"}
    assert (segment.start, segment.end, segment.records) == (0, 5, 5)
    assert segment.bytes == sum(row["size"] for row in seen) == 256 * 2 + 9 + len("订单\x00\n".encode())


def test_messages_larger_than_a_fetch_are_read(new_feed: NewFeed, kafka: Broker) -> None:
    feed = new_feed(topics=[kafka.create(max_message_bytes="30000000")], kafka={"fetch.message.max.bytes": 1000})
    values = [b"small", b"x" * 25_000_000, b"y" * 12_000_000, b"small"]
    feed.send(*values, **{"message.max.bytes": 30_000_000})
    feed.run()
    assert feed.values() == values


# --- What is new ---


def summary_of(feed: TopicFeed) -> dict[str, str]:
    snapshot = feed.table.current_snapshot()
    assert snapshot is not None and snapshot.summary is not None
    return snapshot.summary.additional_properties


def test_range_that_ends_early_lands_each_message_once(new_feed: NewFeed, monkeypatch: pytest.MonkeyPatch) -> None:
    """Records grow beyond what was reckoned: what was read behind the early end is read again, and is there once."""
    monkeypatch.setattr(ranges_module, "_WORTH_A_TASK", 10)
    feed = new_feed(max_bytes=2000)
    feed.send(*numbered(40))
    feed.drain()
    values = numbered(20, 40) + [b"large" * 100 + b"%d" % number for number in range(30)]
    feed.send(*values)
    pending = feed.pending()
    assert pending.records == 50
    batch = feed.append(pending).batch
    (segment,) = batch.segments
    assert 60 < segment.end < 65, "in the first of two parts"
    assert json.loads(summary_of(feed)[OFFSETS]) == {feed.topic: {"0": [40, segment.end]}}
    assert feed.values() == (numbered(40) + values)[: segment.end]
    feed.drain()
    assert feed.values() == numbered(40) + values
    assert {task.file.file_path for task in feed.table.scan().plan_files()} == feed.files()


def test_later_topics_and_partitions_are_read_whole(new_feed: NewFeed, kafka: Broker) -> None:
    """By a pattern that matches nothing at first, and though the feed begins with what is new."""
    stem = kafka.create()
    feed = new_feed(topic_pattern=rf"{stem}\.(orders|items)", start="latest")
    assert feed.run()[0].segments == ()
    items, orders, other = (kafka.create(f"{stem}.{kind}") for kind in ("items", "orders", "orders-not"))
    for topic in (items, orders, other):
        kafka.send(topic, [topic.encode()])
    feed.drain()
    assert {row["topic"]: row["value"] for row in feed.rows()} == {topic: topic.encode() for topic in (items, orders)}
    kafka.add_partitions(items, 3)
    kafka.send(items, [Sent(b"b", partition=2)])
    feed.drain()
    assert feed.values(2, items) == [b"b"] and feed.ends() == {items: {0: 1, 1: 0, 2: 1}, orders: {0: 1}}


# --- Holes in the offsets ---


def test_transactions_are_read_when_they_are_committed(new_feed: NewFeed, kafka: Broker) -> None:
    feed = new_feed()
    kafka.send_in_transaction(feed.topic, [b"never"] * 3, commit=False)
    batch, _ = feed.run()
    assert [(s.start, s.end, s.records) for s in batch.segments] == [(0, 4, 0)]
    before = feed.lake.metadata()
    feed.run()
    assert feed.lake.metadata() == before
    feed.send(b"a")
    kafka.send_in_transaction(feed.topic, [b"b", b"c"])
    kafka.send_in_transaction(feed.topic, [b"never"], commit=False)
    feed.run()
    assert feed.values() == [b"a", b"b", b"c"]
    assert feed.ends() == {feed.topic: {0: 10}}, "behind the last marker"
    with kafka.transaction(feed.topic, [b"d"]) as producer:
        feed.send(b"after")
        assert not feed.run()[0].segments, "an open transaction and what is behind it is not seen"
        producer.commit_transaction(30)
    kafka.send_in_transaction(feed.topic, [b"never"], commit=False)
    feed.run()
    assert feed.values() == [b"a", b"b", b"c", b"d", b"after"]


def test_compacted_topic_is_read_to_its_end(new_feed: NewFeed, kafka: Broker) -> None:
    topic = kafka.create(
        cleanup_policy="compact", segment_ms="100", min_cleanable_dirty_ratio="0.01", delete_retention_ms="0"
    )
    feed = new_feed(topics=[topic])
    feed.send(*(Sent(b"%d" % number, b"key%d" % (number % 3)) for number in range(30)))

    def is_compacted() -> bool:
        feed.send(Sent(b"tick", b"tick"))  # A segment of the log is closed by what comes after it.
        return sum(1 for _ in kafka.read(topic)) <= 10

    until(is_compacted)
    wanted = list(kafka.read(topic))
    feed.drain()
    assert [(row["offset"], row["value"]) for row in feed.rows()] == wanted
    assert feed.ends() == {topic: {0: wanted[-1][0] + 1}}
