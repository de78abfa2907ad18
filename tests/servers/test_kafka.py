"""Topics of a real broker landed in `records`: every message once, whatever happens on the way."""

from __future__ import annotations

import contextlib
import datetime
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyspark.sql import SparkSession

from cdc_lakehouse.errors import ConcurrentRunError, SourceError, SourceUnreachableError
from cdc_lakehouse.lake import record_files, record_tasks
from cdc_lakehouse.lake.landed_offsets import last_batch
from cdc_lakehouse.lake.record_files import RecordTable
from cdc_lakehouse.lake.record_tasks import RecordTask
from cdc_lakehouse.lake.records import OFFSETS, Records
from cdc_lakehouse.lake.session import use_catalog
from cdc_lakehouse.sources.kafka import RangeReader, reading
from cdc_lakehouse.sources.kafka import ranges as ranges_module
from tests.crashes import CrashPoint
from tests.lakes import TestLake
from tests.servers.buckets import S3Bucket, s3_storage
from tests.servers.conftest import S3Server
from tests.servers.kafka import Broker, Sent
from tests.servers.topics import TopicFeed

pytestmark = [pytest.mark.server, pytest.mark.spark]

NewFeed = Callable[..., TopicFeed]


@pytest.fixture
def new_feed(new_lake: Callable[..., TestLake], kafka: Broker) -> NewFeed:
    return lambda **source: TopicFeed(new_lake, kafka, **source)


@pytest.fixture(params=["here", "in tasks"])
def in_tasks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is done by one task in the process itself is done by Spark's tasks where there is more."""
    if request.param == "in tasks":
        monkeypatch.setattr(ranges_module, "_WORTH_A_TASK", 2)


def numbered(count: int, first: int = 0) -> list[bytes]:
    return [b"%d" % number for number in range(first, first + count)]


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


def test_dates_without_number(new_feed: NewFeed, monkeypatch: pytest.MonkeyPatch) -> None:
    """More than there are files open at a time, back and forth, in files and row groups that are soon full."""
    monkeypatch.setattr(record_files, "_ROW_GROUP_BYTES", 5000)
    monkeypatch.setattr(record_files, "_FILE_BYTES", 20_000)
    feed = new_feed(date_separator="month")
    times = [milliseconds(f"20{10 + n % 13}-{1 + n * 7 % 12:02d}-15T12:00:00Z") for n in range(400)]
    feed.send(*(Sent(b"%d" % n, at=at) for n, at in enumerate(times)))
    feed.run()
    assert feed.values() == numbered(400)
    for row, at in zip(feed.rows(), times, strict=True):
        assert row["feed_date"] == datetime.datetime.fromtimestamp(at / 1000, datetime.UTC).strftime("%Y-%m")
    assert {task.file.file_path for task in feed.table.scan().plan_files()} == feed.files()


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
    summary = summary_of(feed)
    assert summary["cdc.batch"] == "1"
    assert json.loads(summary[OFFSETS]) == {feed.topic: {"0": [0, 2], "1": [0, 1]}}


def summary_of(feed: TopicFeed) -> dict[str, str]:
    snapshot = feed.table.current_snapshot()
    assert snapshot is not None and snapshot.summary is not None
    return snapshot.summary.additional_properties


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


@pytest.mark.usefixtures("in_tasks")
def test_offsets_that_go_between_the_plan_and_the_read(new_feed: NewFeed, kafka: Broker) -> None:
    feed = new_feed(topics=[kafka.create(partitions=2)])
    feed.send(*numbered(10), *(Sent(value, partition=1) for value in numbered(4)))
    pending = feed.pending()
    kafka.forget(feed.topic, 6)
    (fault,) = feed.append(pending).faults
    assert isinstance(fault, SourceError)
    assert f"partition 0 of the topic {feed.topic} has lost the offsets from 0 on, before 6" in str(fault)
    assert (feed.values(0), feed.values(1)) == ([], numbered(4)), "the other partition goes on"


@pytest.mark.usefixtures("in_tasks")
def test_a_topic_that_goes_between_the_plan_and_the_read(new_feed: NewFeed, kafka: Broker) -> None:
    going, staying = kafka.create(), kafka.create()
    feed = new_feed(topics=[going, staying])
    for topic in (going, staying):
        kafka.send(topic, numbered(10))
    pending = feed.pending()
    kafka.delete(going)
    feed.client = feed.client.impatient(3)
    (fault,) = feed.append(pending).faults
    assert isinstance(fault, SourceError) and f"there is no topic {going}" in str(fault)
    assert feed.values(topic=staying) == numbered(10)
    with pytest.raises(SourceError, match=f"there is no topic {going}"):
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


@pytest.mark.usefixtures("in_tasks")
def test_a_message_that_the_client_does_not_take(new_feed: NewFeed, kafka: Broker) -> None:
    limits = {"receive.message.max.bytes": 2_000_000, "fetch.max.bytes": 1_000_000}
    feed = new_feed(topics=[kafka.create(partitions=3, max_message_bytes="9000000")], kafka=limits)
    feed.send(*(Sent(b"small", partition=number) for number in range(3)))
    feed.send(Sent(b"x" * 8_000_000, partition=1), **{"message.max.bytes": 9_000_000})
    feed.send(*(Sent(b"behind", partition=number) for number in range(3)))
    _, faults = feed.run()
    (fault,) = faults
    assert isinstance(fault, SourceError)
    for words in ("larger than the client takes", f"from offset 1 of partition 1 of the topic {feed.topic}"):
        assert words in str(fault)
    assert "receive.message.max.bytes" in str(fault)
    assert [feed.values(number) for number in range(3)] == [[b"small", b"behind"], [b"small"], [b"small", b"behind"]]
    feed.configure(kafka={**limits, "receive.message.max.bytes": "10000000"})
    feed.drain()
    assert [len(value or b"") for value in feed.values(1)] == [5, 8_000_000, 6]


@pytest.mark.usefixtures("in_tasks")
def test_into_a_warehouse_on_s3(
    kafka: Broker, s3: S3Server, spark: SparkSession, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    warehouse = S3Bucket(s3.endpoint, prefix="lake house")
    storage = s3_storage(s3.endpoint, S3Bucket.ACCESS, S3Bucket.SECRET)
    session = spark.newSession()

    def lake(**feed: Any) -> TestLake:
        return TestLake(tmp_path / "lake", tmp_path / "feed", lambda: session, **feed)

    topic = kafka.create(partitions=2)
    feed = TopicFeed(lake, kafka, {"storage": storage, "warehouse": warehouse.uri}, topics=[topic])
    use_catalog(session, feed.lake.config.lake, feed.lake.config.storage)
    feed.send(*numbered(5), *(Sent(value, partition=1) for value in numbered(5)))
    feed.drain()
    assert feed.values(0) == feed.values(1) == numbered(5)
    assert any(key.endswith(".parquet") for key in warehouse.keys())  # noqa: SIM118
    about = RecordTable.of(feed.table, feed.fresh())
    assert S3Bucket.SECRET not in "".join(capfd.readouterr()) + repr(about)


# --- Once, whatever happens ---

PLACES: tuple[tuple[type, str], ...] = (
    (Records, "_create"),
    (RecordTask, "run"),
    (SqlCatalog, "commit_table"),
)


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("place", PLACES, ids=lambda place: place[1])
def test_a_run_that_is_killed(new_feed: NewFeed, kafka: Broker, place: tuple[type, str], after: bool) -> None:
    feed = new_feed(topics=[kafka.create(partitions=2)], max_records=8)
    total = 0
    for _ in range(3):
        feed.send(*numbered(6, total), *(Sent(value, partition=1) for value in numbered(6, total)))
        total += 6
        with CrashPoint(1, after, place)() as happened:
            feed.run()
        assert happened.is_set() or place[1] == "_create"
        landed = feed.ends().get(feed.topic, {}).get(0, 0)
        assert feed.values() == numbered(landed)
    feed.drain()
    assert feed.values(0) == feed.values(1) == numbered(18)
    batch = last_batch(feed.fresh(), feed.lake.name)
    assert sum(s.records for s in batch.segments) == sum(row["batch"] == batch.number for row in feed.rows())


def test_a_task_that_fails_leaves_nothing(new_feed: NewFeed, monkeypatch: pytest.MonkeyPatch) -> None:
    feed = new_feed()
    feed.send(b"a")
    feed.run()
    before = feed.files()
    feed.send(*numbered(10))

    def full(*_: Any) -> Any:
        raise OSError("no space left on device")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(record_files.RecordFiles, "close", full)
        with pytest.raises(OSError, match="no space left"):
            feed.run()
    assert feed.files() == before
    feed.drain()
    assert feed.values() == [b"a", *numbered(10)]


def maintain(feed: TopicFeed) -> None:
    """Rewrite the files and forget all snapshots but the last."""
    spark, name = feed.lake.session(), f"lake.cdc_{feed.lake.name}.records"
    spark.sql(f"CALL lake.system.rewrite_data_files(table => '{name}', options => map('rewrite-all', 'true'))")
    spark.sql(f"CALL lake.system.expire_snapshots(table => '{name}', older_than => now(), retain_last => 1)")


def test_what_is_landed_is_known_when_its_snapshot_is_gone(new_feed: NewFeed) -> None:
    feed = new_feed()
    feed.send(*numbered(5))
    first, _ = feed.run()
    maintain(feed)
    assert last_batch(feed.fresh(), feed.lake.name) == first
    feed.send(*numbered(5, 5))
    feed.drain()
    assert feed.values() == numbered(10)
    records = Records(feed.fresh(), feed.lake.feed, feed.lake.session)
    for batch, first in ((1, 0), (2, 5)):
        assert sorted(row["offset"] for row in records.frame(batch).collect()) == list(range(first, first + 5))


def test_maintenance_while_a_run_lands(new_feed: NewFeed) -> None:
    feed = new_feed()
    feed.send(*numbered(5))
    feed.run()
    feed.send(*numbered(5, 5))
    with _before_the_commit(lambda: maintain(feed)):
        feed.run()
    assert feed.values() == numbered(10)


def test_of_two_runs_at_one_time_one_lands(new_feed: NewFeed) -> None:
    feed = new_feed()
    feed.send(*numbered(5))
    slow = feed.pending()
    with _before_the_commit(lambda: feed.append(feed.pending())), pytest.raises(ConcurrentRunError, match="has landed"):
        feed.run()
    assert feed.values() == numbered(5), "the first ever"
    with pytest.raises(ConcurrentRunError, match="has landed"):
        feed.append(slow)
    feed.send(*numbered(5, 5))
    with _before_the_commit(lambda: feed.append(feed.pending())), pytest.raises(ConcurrentRunError, match="has landed"):
        feed.run()
    assert feed.values() == numbered(10)
    assert {task.file.file_path for task in feed.table.scan().plan_files()} == feed.files()


@contextlib.contextmanager
def _before_the_commit(what: Callable[[], object]) -> Iterator[None]:
    """Something happens right before the next commit."""
    real = SqlCatalog.commit_table
    with pytest.MonkeyPatch.context() as patch:

        def commit(*arguments: Any) -> Any:
            patch.setattr(SqlCatalog, "commit_table", real)
            what()
            return real(*arguments)

        patch.setattr(SqlCatalog, "commit_table", commit)
        yield


@pytest.mark.usefixtures("in_tasks")
def test_a_broker_that_is_down(new_feed: NewFeed, kafka: Broker) -> None:
    feed = new_feed()
    feed.send(*numbered(5))
    pending = feed.pending()
    kafka.stop()
    try:
        feed.client = feed.client.impatient(2)
        with pytest.raises(SourceUnreachableError, match=r"127\.0\.0\.1:\d+ cannot be reached for now \(_TRANSPORT\)"):
            feed.pending()
        (fault,) = feed.append(pending).faults
        assert isinstance(fault, SourceUnreachableError) and "cannot be reached for now" in str(fault)
    finally:
        kafka.start()
    feed.client = feed.client.impatient(8)
    feed.drain()
    assert feed.values() == numbered(5)


SLOW = {"fetch.message.max.bytes": 20_000, "queued.min.messages": 100, "queued.max.messages.kbytes": 50}


def test_a_broker_that_goes_and_returns_while_it_is_read(new_feed: NewFeed, kafka: Broker) -> None:
    feed = new_feed(kafka=SLOW)
    values = [b"%d" % number + b"x" * 1000 for number in range(20_000)]
    feed.send(*values)
    reader = RangeReader(feed.client.impatient(60), feed.choose(feed.pending()))
    seen: list[bytes | None] = []
    for number, messages in enumerate(reader.messages()):
        if number == 0:
            kafka.stop()
            kafka.start()
        seen += messages.values
    assert not reader.faults
    assert seen == values


def test_a_broker_that_goes_while_it_is_read(new_feed: NewFeed, kafka: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was read lands, the rest is for the next run."""
    monkeypatch.setattr(reading, "_ROWS_TOGETHER", 1000)
    feed = new_feed(kafka=SLOW)
    values = [b"%d" % number + b"x" * 1000 for number in range(20_000)]
    feed.send(*values)
    feed.client = feed.client.impatient(3)
    pending = feed.pending()
    count = record_tasks._count

    def stop_then_count(*arguments: Any) -> None:
        monkeypatch.setattr(record_tasks, "_count", count)
        kafka.stop()
        count(*arguments)

    monkeypatch.setattr(record_tasks, "_count", stop_then_count)
    try:
        done = feed.append(pending)
    finally:
        kafka.start()
    (fault,) = done.faults
    assert isinstance(fault, SourceUnreachableError)
    landed = sum(segment.records for segment in done.batch.segments)
    assert 1000 <= landed < 20_000
    assert feed.values() == values[:landed]
    feed.client = feed.client.impatient(8)
    feed.drain()
    assert feed.values() == values
