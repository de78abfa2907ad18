"""What is lost on the brokers is told, and every message lands once, whatever ends a run."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyspark.sql import functions as F

from cdc_lakehouse.errors import ConcurrentRunError, SourceError, SourceUnreachableError
from cdc_lakehouse.lake.tables import records as record_writer
from cdc_lakehouse.lake.tables.records import landed_state, records_frame
from cdc_lakehouse.sources.kafka import reading
from tests.kit.kafka import with_timeout
from tests.servers.kafka import Broker, Sent
from tests.servers.topics import NewFeed, TopicFeed, numbered

pytestmark = [pytest.mark.server, pytest.mark.spark]

# --- What is lost ---


@pytest.mark.usefixtures("in_tasks")
def test_offsets_lost_after_the_plan_are_reported(new_feed: NewFeed, kafka: Broker) -> None:
    feed = new_feed(topics=[kafka.create(partitions=2)])
    feed.send(*numbered(10), *(Sent(value, partition=1) for value in numbered(4)))
    pending = feed.pending()
    kafka.forget(feed.topic, 6)
    (fault,) = feed.append(pending).faults
    assert isinstance(fault, SourceError)
    assert f"partition 0 of the topic {feed.topic} has lost the offsets from 0 on, before 6" in str(fault)
    assert (feed.values(0), feed.values(1)) == ([], numbered(4)), "the other partition goes on"


@pytest.mark.in_turn
def test_deleted_topic_is_reported_also_when_made_again(new_feed: NewFeed, kafka: Broker) -> None:
    going, staying = kafka.create(), kafka.create()
    feed = new_feed(topics=[going, staying])
    for topic in (going, staying):
        kafka.send(topic, numbered(10))
    feed.drain()
    for topic in (going, staying):
        kafka.send(topic, numbered(10, 10))
    pending = feed.pending()
    kafka.delete(going)
    feed.client = with_timeout(feed.client, 3)
    (fault,) = feed.append(pending).faults
    assert isinstance(fault, SourceError) and f"there is no topic {going}" in str(fault)
    assert feed.values(topic=staying) == numbered(20)
    _, faults = feed.run()
    assert [f"topic {going}" in str(each) for each in faults] == [True]
    kafka.create_again(going)
    kafka.send(going, numbered(15))
    batch, (fault,) = feed.run()
    assert f"the topic {going} was deleted and made again" in str(fault)
    assert not batch.segments and feed.values() == numbered(10)


def test_message_above_the_clients_limit_stops_its_partition(new_feed: NewFeed, kafka: Broker) -> None:
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


# --- Once, whatever happens ---


def maintain(feed: TopicFeed) -> None:
    """Rewrite the files and forget all snapshots but the last."""
    spark, name = feed.lake.session(), f"lake.cdc_{feed.lake.name}.records"
    spark.sql(f"CALL lake.system.rewrite_data_files(table => '{name}', options => map('rewrite-all', 'true'))")
    spark.sql(f"CALL lake.system.expire_snapshots(table => '{name}', older_than => now(), retain_last => 1)")


@pytest.mark.in_turn
def test_maintenance_keeps_what_is_known_of_landed_offsets(new_feed: NewFeed) -> None:
    """While a run lands, and after it, when the snapshots that said it are gone."""
    feed = new_feed()
    feed.send(*numbered(5))
    feed.run()
    feed.send(*numbered(5, 5))
    with _before_the_commit(lambda: maintain(feed)):
        second, _ = feed.run()
    maintain(feed)
    assert landed_state(feed.fresh(), feed.lake.name).last == second
    feed.send(*numbered(5, 10))
    feed.drain()
    assert feed.values() == numbered(15)
    records = records_frame(feed.lake.session(), feed.lake.name)
    for batch in range(3):
        found = records.where(F.col("batch") == batch + 1).collect()
        assert sorted(row["offset"] for row in found) == list(range(5 * batch, 5 * batch + 5))


def test_of_two_runs_at_a_time_one_lands(new_feed: NewFeed) -> None:
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


@pytest.mark.in_turn
def test_broker_that_is_down_is_a_passing_error(new_feed: NewFeed, kafka: Broker) -> None:
    feed = new_feed()
    feed.send(*numbered(5))
    pending = feed.pending()
    kafka.stop()
    try:
        feed.client = with_timeout(feed.client, 2)
        with pytest.raises(SourceUnreachableError, match=r"127\.0\.0\.1:\d+ cannot be reached for now \(_TRANSPORT\)"):
            feed.pending()
        (fault,) = feed.append(pending).faults
        assert isinstance(fault, SourceUnreachableError) and "cannot be reached for now" in str(fault)
    finally:
        kafka.start()
    feed.client = with_timeout(feed.client, 8)
    feed.drain()
    assert feed.values() == numbered(5)


SLOW = {"fetch.message.max.bytes": 20_000, "queued.min.messages": 100, "queued.max.messages.kbytes": 50}


@pytest.mark.in_turn
def test_broker_lost_in_a_read_keeps_what_was_read(
    new_feed: NewFeed, kafka: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was read lands, the rest is for the next run."""
    monkeypatch.setattr(reading, "_ROWS_TOGETHER", 1000)
    feed = new_feed(kafka=SLOW)
    values = [b"%d" % number + b"x" * 1000 for number in range(20_000)]
    feed.send(*values)
    feed.client = with_timeout(feed.client, 3)
    pending = feed.pending()
    count = record_writer._count

    def stop_then_count(*arguments: Any) -> None:
        monkeypatch.setattr(record_writer, "_count", count)
        kafka.stop()
        count(*arguments)

    monkeypatch.setattr(record_writer, "_count", stop_then_count)
    try:
        done = feed.append(pending)
    finally:
        kafka.start()
    (fault,) = done.faults
    assert isinstance(fault, SourceUnreachableError)
    landed = sum(segment.records for segment in done.batch.segments)
    assert 1000 <= landed < 20_000
    assert feed.values() == values[:landed]
    feed.client = with_timeout(feed.client, 8)
    feed.drain()
    assert feed.values() == values
