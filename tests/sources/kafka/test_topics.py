"""Which topics brokers have, by answers that are made here."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from cdc_lakehouse.config import KafkaSource
from cdc_lakehouse.errors import SourceError
from cdc_lakehouse.sources.kafka import find_pending, read_topics, require_all
from cdc_lakehouse.sources.record_log import LandedOffsets, LandedTopic

MISSING, FORBIDDEN = KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError.TOPIC_AUTHORIZATION_FAILED


class Brokers:
    """With topics of one partition and ten messages, and errors for others."""

    brokers, timeout_seconds = "k:9092", 1

    def __init__(self, faults: Mapping[str, int]) -> None:
        self._faults = faults

    def admin(self, _: object) -> Any:
        return self

    def poll(self, _: float) -> None:
        return

    def describe_topics(self, names: Any, request_timeout: float) -> dict[str, Future[Any]]:
        topic = SimpleNamespace(topic_id="id", is_internal=False, partitions=[SimpleNamespace(id=0)])
        found: dict[str, Future[Any]] = {}
        for name in names.topic_names if hasattr(names, "topic_names") else names:
            found[name] = Future()
            if name in self._faults:
                found[name].set_exception(KafkaException(KafkaError(self._faults[name])))
            else:
                found[name].set_result(topic)
        return found

    def list_offsets(self, asked: Iterable[TopicPartition], **_: Any) -> dict[TopicPartition, Future[Any]]:
        found: dict[TopicPartition, Future[Any]] = {}
        for partition in asked:
            found[partition] = Future()
            found[partition].set_result(SimpleNamespace(offset=10))
        return found


def read(*topics: str, **faults: int) -> tuple[KafkaSource, Any]:
    settings = {"type": "kafka", "format": "canal-json", "bootstrap_servers": "k:9092", "topics": list(topics)}
    source, client = KafkaSource.model_validate(settings), Brokers(faults)
    return source, read_topics(source, client)  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(
    ("code", "known", "words"),
    [
        (MISSING, False, ("there is no topic b", "source.topics")),
        (MISSING, True, ("the topic b is not there any more", "source.topics")),
        (FORBIDDEN, False, ("no permission to read the topic b", "READ and DESCRIBE")),
        (FORBIDDEN, True, ("no permission to read the topic b", "READ and DESCRIBE")),
    ],
)
def test_one_that_cannot_be_read_stops_no_other(code: int, known: bool, words: tuple[str, ...]) -> None:
    source, topics = read("a", "b", b=code)
    landed = LandedOffsets({"b": LandedTopic("id", {0: 3})} if known else {}, began=True)
    pending = find_pending(source, topics, landed)
    assert [partition.topic for partition in pending.offsets] == ["a"]
    (fault,) = pending.faults
    assert all(each in str(fault) for each in words)
    with pytest.raises(SourceError, match="topic b"):
        require_all(source, topics)


@pytest.mark.parametrize("code", [MISSING, FORBIDDEN])
def test_where_none_can_be_read_the_source_cannot(code: int) -> None:
    with pytest.raises(SourceError, match="topic a"):
        read("a", "b", a=code, b=code)


def test_all_that_can_be_read() -> None:
    source, topics = read("a", "b")
    require_all(source, topics)
    assert [(topic.name, topic.id, topic.fault) for topic in topics] == [("a", "id", None), ("b", "id", None)]
