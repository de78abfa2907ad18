"""The topics of a feed with their partitions: the offsets that can be read of each, and those that have not landed yet.

No group is joined.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from dataclasses import dataclass
from typing import Any, Final

from confluent_kafka import IsolationLevel, KafkaError, KafkaException, TopicCollection, TopicPartition
from confluent_kafka import admin as kafka_admin
from tenacity import Retrying, retry_if_exception_type, stop_before_delay, wait_fixed

from cdc_lakehouse.config import KafkaSource
from cdc_lakehouse.errors import CdcError, SourceError, SourceUnreachableError
from cdc_lakehouse.sources.kafka.client import (
    NO_LEADER,
    ClientErrors,
    KafkaClient,
    TopicError,
    TopicMissingError,
    topic_fault,
)
from cdc_lakehouse.sources.record_log import LandedOffsets, LogPartition, Pending

_NO_ID: Final = "AAAAAAAAAAAAAAAAAAAAAA"
"""Zeros, in the notation of topic ids."""

_WAIT_SECONDS: Final = 0.2

_OffsetSpec: Any = getattr(kafka_admin, "OffsetSpec")  # noqa: B009 - exported, but not to type checkers


@dataclass(frozen=True, slots=True)
class Bounds:
    """Offsets that can be read: from `low` on, before `end`. After it are messages of open transactions."""

    low: int
    end: int


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic in the brokers. `id` differs between successive topics of one name; it is empty with brokers that have no
    ids (before Kafka 2.8). A topic with a `fault` exists, or may exist, and cannot be read: its content is unknown."""

    name: str
    id: str
    partitions: Mapping[int, Bounds]
    fault: SourceError | None = None


def read_topics(source: KafkaSource, client: KafkaClient | None = None) -> tuple[Topic, ...]:
    """Read the current topics that the source names or its pattern matches. This takes three or four requests. Missing
    ones are left out; `find_faults` returns them.

    Raises `SourceError` when none of the named topics can be read, `SourceUnreachableError` when the brokers do not
    answer, `ConfigurationError` when the client does not take its settings."""
    client = client or KafkaClient.of(source)
    retrying = Retrying(
        retry=retry_if_exception_type(_NoLeaderError),
        wait=wait_fixed(_WAIT_SECONDS),
        stop=stop_before_delay(client.timeout_seconds),
        reraise=True,
    )
    cluster = _Cluster(client)
    try:
        topics: tuple[Topic, ...] = retrying(cluster.topics, source)
    except _NoLeaderError as error:
        raise error.fault from None
    finally:
        cluster.close()
    faults = find_faults(source, topics)
    if faults and all(topic.fault is not None for topic in topics):
        raise faults[0]
    return topics


class _NoLeaderError(Exception):
    """A partition has no leader, or a new one is not known everywhere: that passes soon."""

    def __init__(self, fault: CdcError) -> None:
        super().__init__(fault)
        self.fault = fault


class _Cluster:
    def __init__(self, client: KafkaClient) -> None:
        self._client = client
        self._errors = ClientErrors()
        self._admin: Any = client.admin(self._errors)  # Its answers have no types.
        self._deadline = time.monotonic() + client.timeout_seconds

    def close(self) -> None:
        """Destroy the client on this thread. The garbage collector can run on a thread of another client, where the
        library aborts the process instead."""
        self._admin = None

    def topics(self, source: KafkaSource) -> tuple[Topic, ...]:
        described, faults = self._describe(list(source.topics or self._matching(source)))
        partitions = [LogPartition(name, number) for name, (_, numbers) in described.items() for number in numbers]
        # Both are on their way at once.
        asked = [self._ask(partitions, which) for which in (_OffsetSpec.earliest(), _OffsetSpec.latest())]
        lows, ends = map(self._offsets, asked)
        bounds = {partition: Bounds(lows[partition], ends[partition]) for partition in partitions}
        return (
            *(
                Topic(name, id, {number: bounds[LogPartition(name, number)] for number in numbers})
                for name, (id, numbers) in described.items()
            ),
            *(Topic(name, "", {}, fault) for name, fault in faults.items()),
        )

    def _matching(self, source: KafkaSource) -> Iterable[str]:
        try:
            known: Iterable[str] = self._admin.list_topics(timeout=self._left()).topics
        except KafkaException as error:
            raise self._fault(error) from None
        return (name for name in known if source.takes(name))

    def _describe(self, names: Sequence[str]) -> tuple[dict[str, tuple[str, list[int]]], dict[str, SourceError]]:
        """Return ids and partition numbers of readable topics, without those that are internal to the brokers; and the
        errors of topics that exist and cannot be read."""
        described: dict[str, tuple[str, list[int]]] = {}
        faults: dict[str, SourceError] = {}
        if not names:
            return described, faults
        collection = TopicCollection(list(names))
        asked: Mapping[str, Future[Any]] = self._admin.describe_topics(collection, request_timeout=self._left())
        for name, future in sorted(asked.items()):
            try:
                topic = self._result(future, name)
            except TopicMissingError:
                continue
            except TopicError as error:
                faults[name] = error
                continue
            if not topic.is_internal:
                described[name] = _id(topic), sorted(partition.id for partition in topic.partitions)
        return described, faults

    def _ask(self, partitions: Sequence[LogPartition], which: Any) -> Mapping[TopicPartition, Future[Any]]:
        if not partitions:
            return {}
        return self._admin.list_offsets(
            {TopicPartition(*partition): which for partition in partitions},
            isolation_level=IsolationLevel.READ_COMMITTED,
            request_timeout=self._left(),
        )

    def _offsets(self, asked: Mapping[TopicPartition, Future[Any]]) -> dict[LogPartition, int]:
        return {
            LogPartition(partition.topic, partition.partition): self._result(future, partition.topic).offset
            for partition, future in asked.items()
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
        # The client reports errors by callback only when it is polled.
        self._admin.poll(0)
        cause: KafkaError | None = None if error is None else error.args[0]
        if cause is not None and topic is not None:
            if (found := topic_fault(topic, cause)) is not None:
                return found
            if cause.code() in NO_LEADER:
                raise _NoLeaderError(
                    SourceUnreachableError(f"a partition of the topic {topic} has no leader for now ({cause.name()})")
                )
        return self._errors.fault(self._client.brokers, cause)


def _id(topic: Any) -> str:
    id = str(topic.topic_id)
    return "" if id == _NO_ID else id


def find_pending(source: KafkaSource, topics: Sequence[Topic], landed: LandedOffsets) -> Pending:
    """What of the topics is not in the lake. `topics` are all that `read_topics` found. Raises nothing: what stands in
    the way of a topic or a partition is in `faults`."""
    offsets: dict[LogPartition, tuple[int, int]] = {}
    faults = find_faults(source, topics, landed)
    for topic in topics:
        known = landed.topics.get(topic.name)
        if known is not None and topic.id and known.id and topic.id != known.id:
            faults.append(_recreated(topic))
            continue
        if source.needs_one_partition and len(topic.partitions) > 1:
            faults.append(_without_order(topic))
            continue
        for number, bounds in sorted(topic.partitions.items()):
            partition = LogPartition(topic.name, number)
            try:
                offsets[partition] = _start(source, partition, bounds, landed), bounds.end
            except SourceError as error:
                faults.append(error)
    return Pending(offsets, {topic.name: topic.id for topic in topics}, tuple(faults))


def _start(source: KafkaSource, partition: LogPartition, bounds: Bounds, landed: LandedOffsets) -> int:
    start, end = source.start, landed.end(partition)
    chosen = start.get(partition.topic, {}).get(partition.number) if isinstance(start, dict) else None
    if end is None:
        if chosen is None:
            # A later partition is new as a whole, wherever the feed began.
            return bounds.end if start == "latest" and not landed.began else bounds.low
        if not bounds.low <= chosen <= bounds.end:
            raise SourceError(
                f"{partition.named} has no offset {chosen}: it holds those from {bounds.low} on, before {bounds.end}",
                advice="correct source.start",
            )
        return chosen
    if end < bounds.low:
        if chosen is not None and bounds.low <= chosen <= bounds.end:
            return chosen  # The loss is known to whoever wrote this.
        raise offsets_expired(partition, end, bounds.low)
    if end > bounds.end:
        raise log_truncated(partition, end, bounds.end)
    return end


def offsets_expired(partition: LogPartition, wanted: int, low: int) -> SourceError:
    """Return the error for messages that were removed before they were read."""
    return SourceError(
        f"{partition.named} has lost the offsets from {wanted} on, before {low}, by retention or by deletion: they "
        "were not read yet",
        advice=f"restore them, or go on without them by source.start {{{partition.topic}: {{{partition.number}: "
        f"{low}}}}}; then raise the topic's retention, or run more often",
    )


def log_truncated(partition: LogPartition, wanted: int, end: int) -> SourceError:
    """Return the error for a log that ends before the last offset that was read."""
    return SourceError(
        f"{partition.named} ends at offset {end}, though it was read up to {wanted}: it was cut off, or the topic "
        "was deleted and made again",
        advice="restore it; a topic that was made again is read under another name, or by a new feed",
    )


def _recreated(topic: Topic) -> SourceError:
    return SourceError(
        f"the topic {topic.name} was deleted and made again: its offsets begin anew, and what was not read of the "
        "earlier one is lost",
        advice="give the new one another name, or read it by a new feed",
    )


def _without_order(topic: Topic) -> SourceError:
    return SourceError(
        f"the topic {topic.name} has {len(topic.partitions)} partitions, and without TiDB's extension its messages "
        "have no commit-ts: nothing tells the order of rows and statements of different partitions",
        advice="set enable-tidb-extension=true in the changefeed's sink URI and take tidb_extension: false out of the "
        "feed's source; or send to a topic with one partition",
    )


def find_faults(source: KafkaSource, topics: Iterable[Topic], landed: LandedOffsets | None = None) -> list[SourceError]:
    """Return the errors of topics that the source names, or of which something has landed, and that cannot be read.
    `topics` are all that `read_topics` found."""
    landed = landed or LandedOffsets()
    found = {topic.name: topic for topic in topics}
    known = (name for name in landed.topics if source.takes(name))
    return [
        *(topic.fault for topic in found.values() if topic.fault is not None),
        *(_missing(name, landed) for name in sorted({*(source.topics or ()), *known} - found.keys())),
    ]


def require_all(source: KafkaSource, topics: Iterable[Topic]) -> None:
    """Raise `SourceError` when one of the topics that the source names cannot be read."""
    for fault in find_faults(source, topics):
        raise fault


def _missing(name: str, landed: LandedOffsets) -> SourceError:
    if name in landed.topics:
        return SourceError(
            f"the topic {name} is not there any more: what was not read of it is lost",
            advice="restore it, or take it out of source.topics, or change source.topic_pattern so that it does not "
            "match: the checkpoint-ts waits for it while a table of it lives",
        )
    return SourceError(
        f"there is no topic {name}",
        advice="correct source.topics, or make the topic: the checkpoint-ts waits for it",
    )
