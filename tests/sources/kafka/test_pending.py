"""What there is to land: topics as they are against what is in the lake."""

from __future__ import annotations

from typing import Any

import pytest

from cdc_lakehouse.config import KafkaSource
from cdc_lakehouse.errors import SourceError
from cdc_lakehouse.sources.kafka import Bounds, Topic, find_pending
from cdc_lakehouse.sources.record_log import LandedOffsets, LandedTopic, LogPartition, Pending

NEW = LandedOffsets()


def source(**more: Any) -> KafkaSource:
    named = {} if "topic_pattern" in more else {"topics": ["a", "b"]}
    return KafkaSource.model_validate(
        {"type": "kafka", "format": "canal-json", "bootstrap_servers": "x:1", **named, **more}
    )


def topic(name: str, *bounds: tuple[int, int], id: str = "id") -> Topic:
    return Topic(name, id, {number: Bounds(*each) for number, each in enumerate(bounds)})


def landed(**ends: dict[int, int]) -> LandedOffsets:
    return LandedOffsets({name: LandedTopic("id", each) for name, each in ends.items()}, began=True)


def offsets(pending: Pending) -> dict[str, tuple[int, int]]:
    return {str(partition): each for partition, each in pending.offsets.items()}


def told(pending: Pending) -> str:
    (fault,) = pending.faults
    return str(fault)


@pytest.mark.parametrize(
    ("start", "expected"),
    [
        ("earliest", {"a/0": (5, 9), "a/1": (0, 0), "b/0": (2, 3)}),
        ("latest", {"a/0": (9, 9), "a/1": (0, 0), "b/0": (3, 3)}),
        ({"a": {0: 7}}, {"a/0": (7, 9), "a/1": (0, 0), "b/0": (2, 3)}),
        ({"a": {0: 9}}, {"a/0": (9, 9), "a/1": (0, 0), "b/0": (2, 3)}),
    ],
)
def test_where_a_feed_begins(start: Any, expected: dict[str, tuple[int, int]]) -> None:
    topics = [topic("a", (5, 9), (0, 0)), topic("b", (2, 3))]
    assert offsets(find_pending(source(start=start), topics, NEW)) == expected


@pytest.mark.parametrize("start", ["earliest", "latest"])
def test_what_comes_up_later_begins_at_its_beginning(start: str) -> None:
    topics = [topic("a", (5, 9), (1, 4)), topic("b", (2, 3))]
    pending = find_pending(source(start=start), topics, landed(a={0: 7}))
    assert offsets(pending) == {"a/0": (7, 9), "a/1": (1, 4), "b/0": (2, 3)}
    assert pending.records == 6 and not pending.faults


def test_what_is_landed_goes_before_the_start() -> None:
    pending = find_pending(source(start={"a": {0: 5}}), [topic("a", (0, 9))], landed(a={0: 7}))
    assert offsets(pending) == {"a/0": (7, 9)}


@pytest.mark.parametrize("offset", [4, 10])
def test_a_start_that_is_not_there(offset: int) -> None:
    pending = find_pending(source(start={"a": {0: offset}}), [topic("a", (5, 9)), topic("b", (0, 1))], NEW)
    assert offsets(pending) == {"b/0": (0, 1)}
    for words in ("partition 0 of the topic a", f"no offset {offset}", "from 5", "before 9", "source.start"):
        assert words in told(pending)


def test_offsets_that_are_gone_stop_their_partition_alone() -> None:
    pending = find_pending(source(topics=["a"]), [topic("a", (8, 9), (0, 3))], landed(a={0: 7, 1: 1}))
    assert offsets(pending) == {"a/1": (1, 3)}
    for words in ("partition 0 of the topic a", "from 7", "before 8", "{a: {0: 8}}"):
        assert words in told(pending)


def test_a_loss_that_is_known_is_passed() -> None:
    there = [topic("a", (8, 12))]
    assert offsets(find_pending(source(start={"a": {0: 8}}), there, landed(a={0: 7}))) == {"a/0": (8, 12)}
    # Of what is still there nothing is passed over.
    assert offsets(find_pending(source(start={"a": {0: 10}}), there, landed(a={0: 8}))) == {"a/0": (8, 12)}
    assert "lost" in told(find_pending(source(topics=["a"], start={"a": {0: 5}}), there, landed(a={0: 7})))


def test_a_log_that_is_shorter_than_what_was_read() -> None:
    pending = find_pending(source(topics=["a"]), [topic("a", (0, 6), id="")], landed(a={0: 7}))
    assert not pending.offsets
    for words in ("partition 0 of the topic a", "ends at offset 6", "up to 7"):
        assert words in told(pending)


def test_a_topic_that_was_made_again() -> None:
    pending = find_pending(source(), [topic("a", (0, 9), id="other"), topic("b", (0, 1))], landed(a={0: 7}))
    assert offsets(pending) == {"b/0": (0, 1)}
    assert "topic a was deleted and made again" in told(pending)


@pytest.mark.parametrize("more", [{}, {"topic_pattern": "[ab]"}])
def test_a_topic_that_is_gone(more: dict[str, Any]) -> None:
    pending = find_pending(source(**more), [topic("b", (0, 1))], landed(a={0: 7}))
    assert offsets(pending) == {"b/0": (0, 1)}
    assert "the topic a is not there any more" in told(pending)


@pytest.mark.parametrize("known", [NEW, landed(b={0: 1})])
def test_a_named_topic_that_was_never_there_stops_no_other(known: LandedOffsets) -> None:
    pending = find_pending(source(), [topic("b", (0, 1))], known)
    assert list(offsets(pending)) == ["b/0"]
    for words in ("there is no topic a", "source.topics", "checkpoint-ts waits"):
        assert words in told(pending)


@pytest.mark.parametrize("known", [NEW, landed(a={0: 7}, b={0: 1})])
def test_a_topic_that_may_not_be_read_stops_no_other(known: LandedOffsets) -> None:
    fault = SourceError("no permission to read the topic a")
    pending = find_pending(source(), [Topic("a", "", {}, fault), topic("b", (0, 1))], known)
    assert list(offsets(pending)) == ["b/0"] and pending.faults == (fault,)
    assert "a" in pending.ids, "it is not gone"


def test_a_topic_that_the_feed_left_is_not_missed() -> None:
    pending = find_pending(source(topic_pattern="b"), [topic("b", (0, 1))], landed(a={0: 7}))
    assert offsets(pending) == {"b/0": (0, 1)} and not pending.faults


def test_brokers_without_ids_of_topics() -> None:
    pending = find_pending(source(), [topic("a", (0, 9), id="")], landed(a={0: 7}))
    assert offsets(pending) == {"a/0": (7, 9)}
    assert list(pending.offsets) == [LogPartition("a", 0)]


def test_a_topic_that_can_give_no_order_is_refused() -> None:
    topics = [topic("a", (0, 9), (0, 9)), topic("b", (2, 3))]
    ticdc = source(format="ticdc-canal-json")
    assert not find_pending(ticdc, topics, NEW).faults
    pending = find_pending(ticdc.model_copy(update={"tidb_extension": False}), topics, NEW)
    assert offsets(pending) == {"b/0": (2, 3)}
    assert "a has 2 partitions" in told(pending) and "enable-tidb-extension=true" in told(pending)
