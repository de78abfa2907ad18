"""Topics of a real broker landed in `records`: every message once, whatever happens on the way."""

from __future__ import annotations

import datetime
import json
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from pyspark.sql.readwriter import DataFrameWriterV2

from cdc_lakehouse.errors import ConcurrentRunError, SourceError, SourceUnreachableError
from cdc_lakehouse.lake.landed_offsets import last_batch
from cdc_lakehouse.lake.records import OFFSETS
from cdc_lakehouse.lake.table_api import TableApi
from cdc_lakehouse.sources.kafka import ranges as ranges_module
from tests.crashes import CrashPoint
from tests.lakes import TestLake
from tests.servers.kafka import Broker, Sent
from tests.servers.topics import TopicFeed

pytestmark = [pytest.mark.server, pytest.mark.spark]

NewFeed = Callable[..., TopicFeed]


@pytest.fixture
def new_feed(new_lake: Callable[..., TestLake], kafka: Broker) -> NewFeed:
    return lambda **source: TopicFeed(new_lake, kafka, **source)


def numbered(count: int, first: int = 0) -> list[bytes]:
    return [b"%d" % number for number in range(first, first + count)]


def milliseconds(text: str) -> int:
    return int(datetime.datetime.fromisoformat(text).timestamp() * 1000)


# --- What is kept ---


def test_every_byte_of_a_message_is_kept(new_feed: NewFeed) -> None:
    feed = new_feed()
    all_bytes = bytes(range(256))
    sent = [
        Sent(all_bytes, all_bytes, 1_700_000_000_123, [("a", all_bytes), ("a", None), ("é", b"")]),
        Sent(None, b"tombstone", 1_700_000_000_124),
        Sent(b"", b"", 1_700_000_000_125),
        Sent(None, None, 1_700_000_000_126),
        Sent("订单\x00\n".encode(), None, 1_700_000_000_127),
    ]
    feed.send(*sent)
    batch, _ = feed.run()
    seen = feed.rows()
    assert [(row["key"], row["value"]) for row in seen] == [(each.key, each.value) for each in sent]
    assert [(h["key"], h["value"]) for h in seen[0]["headers"]] == list(sent[0].headers)
    assert not any(row["headers"] for row in seen[1:])
    assert [row["timestamp"].timestamp() for row in seen] == [1_700_000_000 + n / 1000 for n in range(123, 128)]
    assert {row["timestamp_type"] for row in seen} == {"CreateTime"}
    assert [row["offset"] for row in seen] == list(range(5))
    assert {(row["topic"], row["partition"], row["batch"]) for row in seen} == {(feed.topic, 0, 1)}
    (segment,) = batch.segments
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
    table = feed.lake.lake.catalog.load_table((f"cdc_{feed.lake.name}", "records"))
    assert len(table.inspect.partitions()) == 3


def test_messages_larger_than_a_fetch(new_feed: NewFeed, kafka: Broker) -> None:
    feed = new_feed(topics=[kafka.create(max_message_bytes="30000000")], kafka={"fetch.message.max.bytes": 1000})
    values = [b"small", b"x" * 25_000_000, b"y" * 12_000_000, b"small"]
    feed.send(*values, **{"message.max.bytes": 30_000_000})
    feed.run()
    assert feed.values() == values


# --- What is new ---


def test_nothing_new_changes_nothing(new_feed: NewFeed) -> None:
    feed = new_feed()
    feed.send(b"a")
    feed.run()
    before = feed.lake.metadata()
    batch, _ = feed.run()
    assert not batch.segments
    assert feed.lake.metadata() == before


def test_runs_go_on_where_the_last_ended(new_feed: NewFeed) -> None:
    feed = new_feed()
    for number in range(3):
        feed.send(*numbered(10, number * 10))
        batch, _ = feed.run()
        assert [(s.start, s.end, s.records) for s in batch.segments] == [(number * 10, number * 10 + 10, 10)]
    assert feed.values() == numbered(30)
    assert [row["batch"] for row in feed.rows()] == [1] * 10 + [2] * 10 + [3] * 10


def test_the_offsets_are_in_the_snapshots_summary(new_feed: NewFeed, kafka: Broker) -> None:
    feed = new_feed(topics=[kafka.create(partitions=2)])
    feed.send(b"a", b"b", Sent(b"c", partition=1))
    feed.run()
    table = feed.lake.lake.catalog.load_table((f"cdc_{feed.lake.name}", "records"))
    summary = table.current_snapshot().summary.additional_properties
    assert summary["cdc.batch"] == "1"
    assert json.loads(summary[OFFSETS]) == {feed.topic: {"0": [0, 2], "1": [0, 1]}}


def test_a_run_is_bounded_by_records_and_fair(new_feed: NewFeed, kafka: Broker) -> None:
    feed = new_feed(topics=[kafka.create(partitions=3)], max_records=10)
    feed.send(*numbered(12), Sent(b"only", partition=1), *(Sent(v, partition=2) for v in numbered(12)))
    assert sorted(s.records for s in feed.run()[0].segments) == [1, 4, 5]
    assert [s.records for s in feed.run()[0].segments] == [5, 5]
    feed.drain()
    assert (feed.values(0), feed.values(1), feed.values(2)) == (numbered(12), [b"only"], numbered(12))


def test_a_run_is_bounded_by_bytes(new_feed: NewFeed) -> None:
    feed = new_feed(max_bytes=1_000_000)
    values = [bytes([65 + number]) * 200_000 for number in range(12)]
    feed.send(*values)
    batches = feed.drain()
    assert feed.values() == values
    assert len(batches) > 2
    for batch in batches:
        assert sum(segment.bytes for segment in batch.segments) < 1_000_000 + 200_000


def test_ranges_that_are_read_in_parts_and_end_early(new_feed: NewFeed, monkeypatch: pytest.MonkeyPatch) -> None:
    """Records grow beyond what was reckoned: what was read behind the early end is read again, and there once."""
    monkeypatch.setattr(ranges_module, "_WORTH_A_TASK", 10)
    feed = new_feed(max_bytes=2000)
    feed.send(*numbered(40))
    feed.drain()
    values = numbered(20, 40) + [b"large" * 100 + b"%d" % number for number in range(30)]
    feed.send(*values)
    first, _ = feed.run()
    (segment,) = first.segments
    assert 40 < segment.end < 65, "before the second of two parts"
    summary = feed.lake.lake.catalog.load_table((f"cdc_{feed.lake.name}", "records")).current_snapshot().summary
    assert json.loads(summary[OFFSETS]) == {feed.topic: {"0": [40, segment.end]}}
    assert feed.values() == (numbered(40) + values)[: segment.end]
    feed.drain()
    assert feed.values() == numbered(40) + values


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


def test_ranges_that_begin_and_end_in_transactions(new_feed: NewFeed, kafka: Broker) -> None:
    feed = new_feed(max_records=3)
    wanted: list[bytes] = []
    for number in range(6):
        values = numbered(number, number * 10)
        kafka.send_in_transaction(feed.topic, values, commit=number % 3 != 1)
        wanted += values if number % 3 != 1 else []
    assert len(feed.drain()) >= 7
    assert feed.values() == wanted


def test_compaction(new_feed: NewFeed, kafka: Broker) -> None:
    topic = kafka.create(
        cleanup_policy="compact", segment_ms="100", min_cleanable_dirty_ratio="0.01", delete_retention_ms="0"
    )
    feed = new_feed(topics=[topic])
    feed.send(*(Sent(b"%d" % number, b"key%d" % (number % 3)) for number in range(30)))
    deadline = time.monotonic() + 60
    while sum(1 for _ in kafka.read(topic)) > 10 and time.monotonic() < deadline:
        time.sleep(0.5)
        feed.send(Sent(b"tick", b"tick"))  # A segment of the log is closed by what comes after it.
    wanted = list(kafka.read(topic))
    assert len(wanted) <= 10
    feed.drain()
    assert [(row["offset"], row["value"]) for row in feed.rows()] == wanted
    assert feed.ends() == {topic: {0: wanted[-1][0] + 1}}


# --- What is lost ---


def test_offsets_that_retention_took(new_feed: NewFeed, kafka: Broker) -> None:
    feed = new_feed(topics=[kafka.create(partitions=2)])
    feed.send(*numbered(10), *(Sent(value, partition=1) for value in numbered(4)))
    feed.run()
    feed.send(*numbered(10, 10), Sent(b"4", partition=1))
    kafka.forget(feed.topic, 13)
    _, faults = feed.run()
    (fault,) = faults
    for words in (f"partition 0 of the topic {feed.topic}", "from 10 on", "before 13", f"{{{feed.topic}: {{0: 13}}}}"):
        assert words in str(fault)
    assert feed.values(1) == numbered(5), "the other partition goes on"
    assert feed.values(0) == numbered(10)
    feed.configure(start={feed.topic: {0: 13}})
    feed.drain()
    assert feed.values(0) == numbered(10) + numbered(7, 13)


def test_offsets_that_go_between_the_plan_and_the_read(new_feed: NewFeed, kafka: Broker) -> None:
    feed = new_feed()
    feed.send(*numbered(10))
    pending = feed.pending()
    kafka.forget(feed.topic, 6)
    before = feed.lake.machinery("records")
    with pytest.raises(SourceError, match=r"has lost the offsets from 0 on, before 6"):
        feed.append(pending)
    assert feed.lake.machinery("records") == before == []
    feed.drain()
    assert feed.values() == numbered(4, 6)


def test_a_topic_that_goes_between_the_plan_and_the_read(new_feed: NewFeed, kafka: Broker) -> None:
    feed = new_feed()
    feed.send(*numbered(10))
    pending = feed.pending()
    kafka.delete(feed.topic)
    feed.client = feed.client.impatient(3)
    with pytest.raises(SourceError, match=f"there is no topic {feed.topic}"):
        feed.append(pending)
    with pytest.raises(SourceError, match=f"there is no topic {feed.topic}"):
        feed.run()


def test_a_topic_that_was_made_again(new_feed: NewFeed, kafka: Broker) -> None:
    feed = new_feed()
    feed.send(*numbered(3))
    feed.run()
    kafka.delete(feed.topic)
    kafka.create_again(feed.topic)
    feed.send(*numbered(5))
    batch, (fault,) = feed.run()
    assert f"the topic {feed.topic} was deleted and made again" in str(fault)
    assert not batch.segments and feed.values() == numbered(3)


def test_a_topic_that_is_gone(new_feed: NewFeed, kafka: Broker) -> None:
    stem = kafka.create()
    kafka.create(f"{stem}x")
    feed = new_feed(topic_pattern=f"{stem}.?")
    kafka.send(stem, [b"a"])
    kafka.send(f"{stem}x", [b"b"])
    feed.run()
    kafka.delete(f"{stem}x")
    kafka.send(stem, [b"c"])
    batch, faults = feed.run()
    (fault,) = faults
    assert f"the topic {stem}x is not there any more" in str(fault) and "topic_pattern" in str(fault)
    assert [segment.records for segment in batch.segments] == [1]


def test_a_message_that_the_client_does_not_take(new_feed: NewFeed, kafka: Broker) -> None:
    limits = {"receive.message.max.bytes": 2_000_000, "fetch.max.bytes": 1_000_000}
    feed = new_feed(topics=[kafka.create(max_message_bytes="9000000")], kafka=limits)
    feed.send(b"small", b"x" * 8_000_000, **{"message.max.bytes": 9_000_000})
    with pytest.raises(SourceError, match=r"larger than the client takes.*from offset 1.*receive\.message\.max\.bytes"):
        feed.run()
    assert feed.rows() == []
    feed.configure(kafka={**limits, "receive.message.max.bytes": "10000000"})
    feed.run()
    assert [len(value or b"") for value in feed.values()] == [5, 8_000_000]


# --- Once, whatever happens ---

PLACES: tuple[tuple[type, str], ...] = (
    (TableApi, "open_branch"),
    (DataFrameWriterV2, "append"),
    (TableApi, "drop_branch"),
    (TableApi, "publish"),
)


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("place", PLACES, ids=lambda place: place[1])
def test_a_run_that_is_killed(new_feed: NewFeed, kafka: Broker, place: tuple[type, str], after: bool) -> None:
    feed = new_feed(topics=[kafka.create(partitions=2)], max_records=8)
    total = 0
    for number in range(3):
        feed.send(*numbered(6, total), *(Sent(value, partition=1) for value in numbered(6, total)))
        total += 6
        if place[1] == "drop_branch":
            # It is there for what such a run leaves.
            with CrashPoint(1, after=True, place=(DataFrameWriterV2, "append"))():
                feed.run()
        with CrashPoint(1, after, place)() as happened:
            feed.run()
        assert happened.is_set()
        seen = [row["offset"] for row in feed.rows() if row["partition"] == 0]
        assert seen == list(range(feed.ends().get(feed.topic, {}).get(0, 0))), number
    feed.drain()
    assert feed.values(0) == feed.values(1) == numbered(18)
    table = feed.lake.lake.catalog.load_table((f"cdc_{feed.lake.name}", "records"))
    assert set(table.metadata.refs) == {"main"}, "nothing is left behind"
    batch = last_batch(feed.fresh(), feed.lake.name)
    assert sum(s.records for s in batch.segments) == sum(row["batch"] == batch.number for row in feed.rows())


def test_a_batch_is_known_when_its_snapshot_is_gone(new_feed: NewFeed, kafka: Broker) -> None:
    feed = new_feed()
    feed.send(*numbered(5))
    feed.run()
    spark, name = feed.lake.session(), f"lake.cdc_{feed.lake.name}.records"
    spark.sql(f"CALL lake.system.rewrite_data_files(table => '{name}', options => map('rewrite-all', 'true'))")
    spark.sql(f"CALL lake.system.expire_snapshots(table => '{name}', older_than => now(), retain_last => 1)")
    feed.send(*numbered(5, 5))
    feed.drain()
    assert feed.values() == numbered(10)
    assert [row["batch"] for row in feed.rows()] == [1] * 5 + [2] * 5


def test_of_two_runs_at_one_time_one_lands(new_feed: NewFeed, kafka: Broker) -> None:
    feed = new_feed()
    feed.send(*numbered(5))
    slow = feed.pending()
    feed.run()
    with pytest.raises(ConcurrentRunError, match="another run has landed"):
        feed.append(slow)
    feed.send(*numbered(5, 5))
    pending = feed.pending()
    ranges = feed.choose(pending)
    real = TableApi.publish
    with pytest.MonkeyPatch.context() as patch:

        def late(*arguments: Any, **keywords: Any) -> None:
            patch.setattr(TableApi, "publish", real)
            feed.append(feed.pending())
            real(*arguments, **keywords)

        patch.setattr(TableApi, "publish", late)
        with pytest.raises(ConcurrentRunError, match="another run"):
            feed.append(pending, ranges)
    assert feed.values() == numbered(10)


def test_a_broker_that_is_down(new_feed: NewFeed, kafka: Broker) -> None:
    feed = new_feed()
    feed.send(*numbered(5))
    pending = feed.pending()
    kafka.stop()
    try:
        feed.client = feed.client.impatient(2)
        with pytest.raises(SourceUnreachableError, match=r"127\.0\.0\.1:\d+ cannot be reached for now \(_TRANSPORT\)"):
            feed.pending()
        with pytest.raises(SourceUnreachableError, match="cannot be reached for now"):
            feed.append(pending)
    finally:
        kafka.start()
    feed.client = feed.client.impatient(8)
    feed.drain()
    assert feed.values() == numbered(5)


def test_a_broker_that_goes_and_returns_while_it_is_read(new_feed: NewFeed, kafka: Broker) -> None:
    feed = new_feed(
        kafka={"fetch.message.max.bytes": 20_000, "queued.min.messages": 100, "queued.max.messages.kbytes": 50}
    )
    values = [b"%d" % number + b"x" * 1000 for number in range(20_000)]
    feed.send(*values)
    feed.client = feed.client.impatient(60)
    done: list[Any] = []
    thread = threading.Thread(target=lambda: done.append(feed.run()))
    thread.start()
    deadline = time.monotonic() + 60
    while not any(name.startswith("land-") for name in _refs(feed)) and time.monotonic() < deadline:
        time.sleep(0.05)
    kafka.stop()
    kafka.start()
    thread.join(120)
    assert done, "it went on"
    assert feed.values() == values


def _refs(feed: TopicFeed) -> set[str]:
    identifier = (f"cdc_{feed.lake.name}", "records")
    lake = feed.fresh()
    return set(lake.catalog.load_table(identifier).metadata.refs) if lake.catalog.table_exists(identifier) else set()
