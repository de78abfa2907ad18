"""The topics of a feed with their partitions, and from where to where each can be read. No group is joined."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from typing import Any, Final

from confluent_kafka import IsolationLevel, KafkaError, KafkaException, TopicCollection, TopicPartition
from confluent_kafka import admin as kafka_admin

from cdc_lakehouse.config import KafkaSource
from cdc_lakehouse.errors import CdcError, SourceUnreachableError
from cdc_lakehouse.sources.kafka.client import Client
from cdc_lakehouse.sources.kafka.errors import NO_LEADER, Troubles, topic_fault
from cdc_lakehouse.sources.kafka.offsets import Bounds, Partition, Topic

_NO_ID: Final = "AAAAAAAAAAAAAAAAAAAAAA"
"""Zeros, as ids of topics are written."""

_WAIT_SECONDS: Final = 0.2

_OffsetSpec: Any = getattr(kafka_admin, "OffsetSpec")  # noqa: B009 - exported, but not to type checkers


def read_topics(source: KafkaSource, client: Client | None = None) -> tuple[Topic, ...]:
    """The topics that the source names or its pattern matches, as they are now. Costs three requests or four.

    Raises `SourceError` when a named topic is not there or may not be read, `SourceUnreachableError` when the brokers
    do not answer, `ConfigurationError` when the client does not take its settings."""
    cluster = _Cluster(client or Client.of(source))
    while True:
        try:
            return cluster.topics(source)
        except _NoLeaderError as error:
            if not cluster.waits():
                raise error.fault from None


class _NoLeaderError(Exception):
    """A partition's leader is away, or a new one is not known everywhere: that passes soon."""

    def __init__(self, fault: CdcError) -> None:
        super().__init__(fault)
        self.fault = fault


class _Cluster:
    def __init__(self, client: Client) -> None:
        self._client = client
        self._troubles = Troubles()
        self._admin: Any = client.admin(self._troubles)  # Its answers have no types.
        self._deadline = time.monotonic() + client.timeout_seconds

    def waits(self) -> bool:
        """Waits for a moment, if there is time."""
        if time.monotonic() + _WAIT_SECONDS > self._deadline:
            return False
        time.sleep(_WAIT_SECONDS)
        return True

    def topics(self, source: KafkaSource) -> tuple[Topic, ...]:
        described = self._describe(list(source.topics or self._matching(source)))
        partitions = [Partition(name, number) for name, (_, numbers) in described.items() for number in numbers]
        # Both are on their way at once.
        asked = [self._ask(partitions, which) for which in (_OffsetSpec.earliest(), _OffsetSpec.latest())]
        lows, ends = map(self._offsets, asked)
        bounds = {partition: Bounds(lows[partition], ends[partition]) for partition in partitions}
        return tuple(
            Topic(name, id, {number: bounds[Partition(name, number)] for number in numbers})
            for name, (id, numbers) in described.items()
        )

    def _matching(self, source: KafkaSource) -> Iterable[str]:
        try:
            known: Iterable[str] = self._admin.list_topics(timeout=self._left()).topics
        except KafkaException as error:
            raise self._fault(error) from None
        return (name for name in known if source.takes(name))

    def _describe(self, names: Sequence[str]) -> dict[str, tuple[str, list[int]]]:
        """Ids and numbers of partitions of topics, but of those that brokers keep for themselves."""
        if not names:
            return {}
        collection = TopicCollection(list(names))
        asked: Mapping[str, Future[Any]] = self._admin.describe_topics(collection, request_timeout=self._left())
        topics = {name: self._result(future, name) for name, future in sorted(asked.items())}
        return {
            name: (_id(topic), sorted(partition.id for partition in topic.partitions))
            for name, topic in topics.items()
            if not topic.is_internal
        }

    def _ask(self, partitions: Sequence[Partition], which: Any) -> Mapping[TopicPartition, Future[Any]]:
        if not partitions:
            return {}
        return self._admin.list_offsets(
            {TopicPartition(*partition): which for partition in partitions},
            isolation_level=IsolationLevel.READ_COMMITTED,
            request_timeout=self._left(),
        )

    def _offsets(self, asked: Mapping[TopicPartition, Future[Any]]) -> dict[Partition, int]:
        return {
            Partition(each.topic, each.partition): self._result(future, each.topic).offset
            for each, future in asked.items()
        }

    def _result(self, future: Future[Any], topic: str) -> Any:
        try:
            return future.result(self._left())
        except KafkaException as error:
            raise self._fault(error, topic) from None
        except FutureTimeoutError:
            raise self._fault(None) from None

    def _left(self) -> float:
        return max(0.1, self._deadline - time.monotonic())

    def _fault(self, error: KafkaException | None, topic: str | None = None) -> CdcError:
        # What the client has to tell it tells when it is asked.
        self._admin.poll(0)
        told: KafkaError | None = None if error is None else error.args[0]
        if told is not None and topic is not None:
            if (found := topic_fault(topic, told)) is not None:
                return found
            if told.code() in NO_LEADER:
                raise _NoLeaderError(
                    SourceUnreachableError(f"a partition of the topic {topic} has no leader for now ({told.name()})")
                )
        return self._troubles.fault(self._client.brokers, told)


def _id(topic: Any) -> str:
    id = str(topic.topic_id)
    return "" if id == _NO_ID else id
