"""Topics of a real broker landed in `records`: what is kept of a message, what is new, and what is no message."""

from __future__ import annotations

import datetime
import json
import time

import pytest

from cdc_lakehouse.lake.names import OFFSETS
from cdc_lakehouse.sources.kafka import reading as ranges_module
from tests.kit.waiting import until
from tests.servers.kafka import Broker, Sent
from tests.servers.topics import NewFeed, TopicFeed, numbered

pytestmark = [pytest.mark.server, pytest.mark.spark]


def milliseconds(text: str) -> int:
    return int(datetime.datetime.fromisoformat(text).timestamp() * 1000)


# --- What is kept ---


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


def test_the_brokers_own_time(new_feed: NewFeed, kafka: Broker) -> None:
    feed = new_feed(topics=[kafka.create(message_timestamp_type="LogAppendTime")])
    feed.send(Sent(b"x", at=1000))
    feed.run()
    (row,) = feed.rows()
    assert row["timestamp_type"] == "LogAppendTime"
    assert abs(row["timestamp"].timestamp() - time.time()) < 3600


def test_the_feed_date_is_the_timestamps_in_the_zone(new_feed: NewFeed) -> None:
    feed = new_feed(time_zone="Asia/Shanghai")
    times = ["2026-03-01T15:59:59.999Z", "2026-03-01T16:00:00Z", "2026-02-28T16:00:00Z", "1999-12-31T16:00:00Z"]
    feed.send(*(Sent(b"x", at=milliseconds(text)) for text in times))
    batch, _ = feed.run()
    assert [row["feed_date"] for row in feed.rows()] == ["2026-03-01", "2026-03-02", "2026-03-01", "2000-01-01"]
    (segment,) = batch.segments
    assert segment.dates == ("2000-01-01", "2026-03-01", "2026-03-02")
    assert len(feed.table.inspect.partitions()) == 3
    spark = feed.lake.session()
    found = spark.table(f"lake.cdc_{feed.lake.name}.records").where("feed_date = '2026-03-01'").collect()
    assert sorted(row["offset"] for row in found) == [0, 2]


def test_messages_larger_than_a_fetch(new_feed: NewFeed, kafka: Broker) -> None:
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


def test_ranges_that_are_read_in_parts_and_end_early(new_feed: NewFeed, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_partitions_that_are_added(new_feed: NewFeed, kafka: Broker) -> None:
    feed = new_feed(start="latest")
    feed.send(b"before")
    assert feed.run()[0].segments == ()
    assert feed.ends() == {feed.topic: {0: 1}}
    kafka.add_partitions(feed.topic, 3)
    feed.send(b"a", Sent(b"b", partition=2))
    feed.drain()
    assert (feed.values(0), feed.values(1), feed.values(2)) == ([b"a"], [], [b"b"])
    assert feed.ends() == {feed.topic: {0: 2, 1: 0, 2: 1}}


def test_topics_by_a_pattern(new_feed: NewFeed, kafka: Broker) -> None:
    stem = kafka.create()
    names = [kafka.create(f"{stem}.{kind}") for kind in ("items", "orders")]
    feed = new_feed(topic_pattern=rf"{stem}\.(orders|items|later)")
    other = kafka.create(f"{stem}.orders-not")
    for topic in (*names, other):
        kafka.send(topic, [topic.encode()])
    feed.drain()
    assert {row["topic"]: row["value"] for row in feed.rows()} == {topic: topic.encode() for topic in names}
    later = kafka.create(f"{stem}.later")
    kafka.send(later, [b"new"])
    feed.drain()
    assert [row["value"] for row in feed.rows() if row["topic"] == later] == [b"new"]


def test_a_pattern_that_matches_nothing_yet(new_feed: NewFeed, kafka: Broker) -> None:
    stem = kafka.create()
    feed = new_feed(topic_pattern=f"{stem}x", start="latest")
    assert feed.run()[0].segments == ()
    kafka.create(f"{stem}x")
    kafka.send(f"{stem}x", [b"first"])
    feed.drain()
    assert [row["value"] for row in feed.rows()] == [b"first"]


def test_a_start_by_offsets(new_feed: NewFeed, kafka: Broker) -> None:
    topic = kafka.create(partitions=2)
    kafka.send(topic, [*numbered(5), *(Sent(value, partition=1) for value in numbered(3))])
    feed = new_feed(topics=[topic], start={topic: {0: 3}})
    feed.drain()
    assert (feed.values(0), feed.values(1)) == (numbered(2, 3), numbered(3))


# --- Holes in the offsets ---


def test_transactions(new_feed: NewFeed, kafka: Broker) -> None:
    feed = new_feed()
    feed.send(b"a")
    kafka.send_in_transaction(feed.topic, [b"b", b"c"])
    kafka.send_in_transaction(feed.topic, [b"never"], commit=False)
    feed.run()
    assert feed.values() == [b"a", b"b", b"c"]
    assert feed.ends() == {feed.topic: {0: 6}}, "behind the last marker"
    with kafka.transaction(feed.topic, [b"d"]) as producer:
        feed.send(b"after")
        assert not feed.run()[0].segments, "an open transaction and what is behind it is not seen"
        producer.commit_transaction(30)
    kafka.send_in_transaction(feed.topic, [b"never"], commit=False)
    feed.run()
    assert feed.values() == [b"a", b"b", b"c", b"d", b"after"]


def test_a_range_of_nothing_but_aborted_messages(new_feed: NewFeed, kafka: Broker) -> None:
    feed = new_feed()
    kafka.send_in_transaction(feed.topic, [b"never"] * 3, commit=False)
    batch, _ = feed.run()
    assert [(s.start, s.end, s.records) for s in batch.segments] == [(0, 4, 0)]
    before = feed.lake.metadata()
    feed.run()
    assert feed.lake.metadata() == before
    feed.send(b"a")
    feed.run()
    assert feed.values() == [b"a"]


def test_compaction(new_feed: NewFeed, kafka: Broker) -> None:
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
