"""librdkafka's clients for the configuration, the same for a sensor, a run and its tasks; the classification of the
client's errors; and the topics of a feed with their partitions: the offsets that can be read of each, and those that
have not landed yet.

An error's text contains addresses and responses of brokers, so only the error's name is passed on. No group is joined.

It also reads claim checks, the files in which TiCDC stores messages that are too large for the broker.

    {"key":null,"value":"<the message, base64>"}

With claim-check-raw-value the file is the message itself. Either can be compressed: bytes are returned as they are. A
message in the topic has the URI of its file; only its file name is used here, so that a message can refer to no other
place than the configured one."""

from __future__ import annotations

import base64
import binascii
import itertools
import re
import threading
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, NamedTuple, Self, TypeVar

from confluent_kafka import Consumer, IsolationLevel, KafkaError, KafkaException, TopicCollection, TopicPartition
from confluent_kafka import admin as kafka_admin
from confluent_kafka.admin import AdminClient

from cdc_lakehouse.config import KafkaSource, StorageConfig
from cdc_lakehouse.errors import CdcError, ConfigurationError, SourceError, SourceUnreachableError
from cdc_lakehouse.sources import read_json
from cdc_lakehouse.sources.object_store import shared_store
from cdc_lakehouse.sources.record_log import LandedOffsets, LogPartition, Pending

_DEFAULTS: Final = {
    "client.id": "cdc-lakehouse",
    # Problems are raised as errors; a log of the client would additionally go to stderr.
    "log_level": "0",
    "check.crcs": "true",
    # The end of a range that ends with a transaction's marker is only known when the broker reports that there is no
    # more, and it waits for this long before it does.
    "fetch.wait.max.ms": "100",
    # By its default a partition pauses for a second whenever enough is in the queue.
    "fetch.queue.backoff.ms": "5",
    # Messages that are fetched beyond the end of a range are wasted.
    "queued.min.messages": "20000",
    # Reconnect soon to a broker that went away, and give up one that hangs.
    "reconnect.backoff.max.ms": "2000",
    "socket.timeout.ms": "30000",
    "socket.keepalive.enable": "true",
}
_OWN: Final = {
    # The client requires a group name, although it joins none and commits nothing.
    "group.id": "cdc-lakehouse",
    "enable.auto.commit": "false",
    "isolation.level": "read_committed",
    "auto.offset.reset": "error",
    "enable.partition.eof": "true",
    "allow.auto.create.topics": "false",
}
_SETTING: Final = re.compile(r'configuration property:? "([\w.]+)"')


_Client = TypeVar("_Client", Consumer, AdminClient)


@dataclass(frozen=True, slots=True)
class KafkaClient:
    """How the brokers are reached. It is handed to tasks, secrets and all, and never shown. A request is given up after
    `timeout_seconds`; a read without progress after `patience_seconds`."""

    brokers: str
    settings: Mapping[str, str] = field(repr=False)
    timeout_seconds: float = 15
    patience_seconds: float = 60

    @classmethod
    def of(cls, source: KafkaSource) -> Self:
        return cls(",".join(source.bootstrap_servers), dict(source.kafka))

    def made(self, kind: type[_Client], errors: ClientErrors) -> _Client:
        """Return a consumer without a group, or a client for requests to the cluster. Raises `ConfigurationError` when
        it does not accept its settings."""
        own: Any = {"bootstrap.servers": self.brokers, "error_cb": errors.note}
        try:
            return kind({**_DEFAULTS, **self.settings, **_OWN, **own})
        except (KafkaException, TypeError, ValueError) as error:
            # The client's text may contain a value.
            named = _SETTING.search(str(error))
            what = "a setting of source.kafka" if named is None else f"the setting source.kafka.{named[1]}"
            advice = "names and values are those of librdkafka's CONFIGURATION.md"
            raise ConfigurationError(f"the Kafka client does not take {what}", advice=advice) from None


_FORBIDDEN: Final = frozenset({KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.CLUSTER_AUTHORIZATION_FAILED})
_MISSING: Final = frozenset({
    KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError.UNKNOWN_TOPIC_ID, KafkaError._UNKNOWN_TOPIC,
    KafkaError._UNKNOWN_PARTITION,
})  # fmt: skip
_NO_LEADER: Final = frozenset({
    KafkaError.LEADER_NOT_AVAILABLE, KafkaError.NOT_LEADER_FOR_PARTITION, KafkaError.REPLICA_NOT_AVAILABLE,
    KafkaError.FENCED_LEADER_EPOCH, KafkaError.UNKNOWN_LEADER_EPOCH, KafkaError.OFFSET_NOT_AVAILABLE,
    KafkaError.KAFKA_STORAGE_ERROR, KafkaError._NOENT,
})  # fmt: skip
OUT_OF_RANGE: Final = frozenset({KafkaError.OFFSET_OUT_OF_RANGE, KafkaError._AUTO_OFFSET_RESET})
_CORRUPT: Final = frozenset({
    KafkaError.INVALID_MSG, KafkaError.INVALID_RECORD, KafkaError._BAD_MSG, KafkaError._BAD_COMPRESSION,
    KafkaError._UNSUPPORTED_FEATURE, KafkaError._NOT_IMPLEMENTED,
})  # fmt: skip
_LOGIN: Final = frozenset({
    KafkaError._AUTHENTICATION, KafkaError.SASL_AUTHENTICATION_FAILED, KafkaError.UNSUPPORTED_SASL_MECHANISM,
    KafkaError.ILLEGAL_SASL_STATE,
})  # fmt: skip
_TOO_LARGE: Final = re.compile(r"Invalid response size (\d+).*receive\.message\.max\.bytes")
_NOT_TRUSTED: Final = "certificate verify failed"


class ClientErrors:
    """Errors that the client has reported about its brokers, by code. It reports them from its own threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._by_code: dict[int, str] = {}
        self.too_large: int | None = None
        """The bytes of a response that the client refused to accept."""

    def note(self, error: KafkaError) -> None:
        with self._lock:
            self._by_code[error.code()] = error.str()
            if found := _TOO_LARGE.search(error.str()):
                self.too_large = int(found[1])

    def fault(self, brokers: str, error: KafkaError | None = None) -> CdcError:
        """Return the error for a request without a response: `SourceError` for a permanent cause, else
        `SourceUnreachableError`."""
        with self._lock:
            reported = dict(self._by_code)
        if _LOGIN & reported.keys():
            advice = "correct sasl.mechanism, sasl.username and sasl.password of source.kafka"
            return SourceError(f"the Kafka brokers at {brokers} do not take the credentials", advice=advice)
        if _NOT_TRUSTED in reported.get(KafkaError._SSL, ""):
            advice = "set ssl.ca.location of source.kafka to the authority that issued it"
            return SourceError(f"the certificate of the Kafka brokers at {brokers} cannot be verified", advice=advice)
        names = sorted(KafkaError(code).name() for code in reported if code != KafkaError._ALL_BROKERS_DOWN)
        said = names or ([] if error is None else [error.name()])
        return SourceUnreachableError(
            f"the Kafka brokers at {brokers} cannot be reached for now ({', '.join(said) or 'no answer'})",
            advice="see whether they run, and bootstrap_servers of the source is right; the next run tries again",
        )


class TopicError(SourceError):
    """A topic cannot be read; others can."""


class TopicMissingError(TopicError):
    """A topic, or a partition of one, is not there."""


def topic_fault(topic: str, error: KafkaError) -> TopicError | None:
    """The error for a topic that cannot be read; None for what may pass."""
    if error.code() in _FORBIDDEN:
        advice = "allow the user of source.kafka READ and DESCRIBE on it"
        return TopicError(f"no permission to read the topic {topic} ({error.name()})", advice=advice)
    if error.code() in _MISSING:
        said = f"there is no topic {topic}, or not this partition of it"
        return TopicMissingError(said, advice="correct source.topics")
    if error.code() in _CORRUPT or error.fatal():
        return TopicError(
            f"the topic {topic} holds what the client cannot read ({error.name()})",
            advice="look at the broker's disk and logs; with compression zstd or a newer format renew confluent-kafka",
        )
    return None


_NAME: Final = re.compile(r"[0-9A-Za-z_-]{1,200}\.json")
_LIMIT: Final = 128 << 20
"""The limit of a file in bytes: a message in base64, with a margin."""


def read_claim_check(uri: str, storage: StorageConfig, location: str) -> bytes:
    """Read the complete message of the claim check that a message names by `location`. Its file is below `uri`. Raises
    `SourceError` when the location names no such file or the file is not a claim check, `ObjectMissingError` when it
    does not exist, and as `ObjectStore.read` does."""
    name = location.rsplit("/", 1)[-1]
    if not _NAME.fullmatch(name):
        raise SourceError("the message names a claim check whose name is none of TiCDC's", segment=name)
    content = shared_store(uri, storage).read(name, limit=_LIMIT)
    if not content.startswith(b"{"):
        return content
    value = read_json(content, "the claim check", partial(SourceError, segment=name)).get("value")
    if not isinstance(value, str):
        return content
    try:
        return base64.b64decode(value, validate=True)
    except binascii.Error as error:
        raise SourceError("the value of the claim check is not base64", segment=name) from error


_NO_ID: Final = "AAAAAAAAAAAAAAAAAAAAAA"
"""Zeros, in the notation of topic ids."""

_WAIT_SECONDS: Final = 0.2
_LEAST_SECONDS: Final = 0.1
"""Of a request, so that one is made even where the time is over."""

_OffsetSpec: Any = getattr(kafka_admin, "OffsetSpec")  # noqa: B009 - exported, but not to type checkers


class Bounds(NamedTuple):
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
    """Read the current topics that the source names or its pattern matches, but for those that are internal to the
    brokers. This takes three or four requests. Missing ones are left out; `find_faults` returns them. Raises
    `SourceError` when none of the named topics can be read, `SourceUnreachableError` when the brokers do not answer,
    `ConfigurationError` when the client does not take its settings."""
    cluster = _Cluster(client or KafkaClient.of(source))
    try:
        topics = cluster.topics(source)
    finally:
        # Destroyed on this thread: the garbage collector can run on a thread of another client, where the library
        # aborts the process instead.
        del cluster.admin
    faults = find_faults(source, topics)
    if faults and all(topic.fault is not None for topic in topics):
        raise faults[0]
    return topics


class _NoLeaderError(SourceUnreachableError):
    """A partition has no leader, or a new one is not known everywhere: that passes soon."""


class _Cluster:
    def __init__(self, client: KafkaClient) -> None:
        self._brokers = client.brokers
        self._errors = ClientErrors()
        self.admin: Any = client.made(AdminClient, self._errors)  # Its answers have no types.
        self._deadline = time.monotonic() + client.timeout_seconds

    def _seconds_left(self) -> float:
        return max(_LEAST_SECONDS, self._deadline - time.monotonic())

    def topics(self, source: KafkaSource) -> tuple[Topic, ...]:
        while True:
            try:
                return self._topics(source)
            except _NoLeaderError as error:
                if self._seconds_left() <= _WAIT_SECONDS:
                    raise SourceUnreachableError(error.message) from None
                time.sleep(_WAIT_SECONDS)

    def _topics(self, source: KafkaSource) -> tuple[Topic, ...]:
        names = source.topics
        if names is None:
            try:
                known: Iterable[str] = self.admin.list_topics(timeout=self._seconds_left()).topics
            except KafkaException as error:
                raise self._fault(error) from None
            names = tuple(name for name in known if source.takes(name))
        if not names:
            return ()
        answers: Mapping[str, Future[Any]] = self.admin.describe_topics(
            TopicCollection(list(names)), request_timeout=self._seconds_left()
        )
        described: dict[str, tuple[str, list[int]]] = {}
        unreadable: list[Topic] = []
        for name, future in sorted(answers.items()):
            try:
                topic = self._result(future, name)
            except TopicMissingError:
                continue
            except TopicError as error:
                unreadable.append(Topic(name, "", {}, error))
                continue
            if not topic.is_internal:
                id = str(topic.topic_id)
                described[name] = "" if id == _NO_ID else id, sorted(each.id for each in topic.partitions)
        partitions = [TopicPartition(name, number) for name, (_, numbers) in described.items() for number in numbers]
        asked: list[Mapping[TopicPartition, Future[Any]]] = []
        for which in (_OffsetSpec.earliest(), _OffsetSpec.latest()) if partitions else ():
            # Both are on their way at once.
            options = {"isolation_level": IsolationLevel.READ_COMMITTED, "request_timeout": self._seconds_left()}
            asked.append(self.admin.list_offsets(dict.fromkeys(partitions, which), **options))
        offsets: dict[tuple[str, int], list[int]] = defaultdict(list)
        for partition, future in itertools.chain.from_iterable(answer.items() for answer in asked):
            offsets[partition.topic, partition.partition].append(self._result(future, partition.topic).offset)
        readable = (
            Topic(name, id, {number: Bounds(*offsets[name, number]) for number in numbers})
            for name, (id, numbers) in described.items()
        )
        return (*readable, *unreadable)

    def _result(self, future: Future[Any], topic: str) -> Any:
        try:
            return future.result(self._seconds_left())
        except KafkaException as error:
            raise self._fault(error, topic) from None
        except FutureTimeoutError:
            raise self._fault(None) from None

    def _fault(self, error: KafkaException | None, topic: str | None = None) -> CdcError:
        # The client reports errors by callback only when it is polled.
        self.admin.poll(0)
        cause: KafkaError | None = None if error is None else error.args[0]
        if cause is not None and topic is not None:
            if (found := topic_fault(topic, cause)) is not None:
                return found
            if cause.code() in _NO_LEADER:
                return _NoLeaderError(f"a partition of the topic {topic} has no leader for now ({cause.name()})")
        return self._errors.fault(self._brokers, cause)


def find_pending(source: KafkaSource, topics: Sequence[Topic], landed: LandedOffsets) -> Pending:
    """What of the topics is not in the lake. `topics` are all that `read_topics` found. Raises nothing: what stands in
    the way of a topic or a partition is in `faults`."""
    offsets: dict[LogPartition, tuple[int, int]] = {}
    faults = find_faults(source, topics, landed)
    for topic in topics:
        known = landed.topics.get(topic.name)
        if known is not None and topic.id and known.id and topic.id != known.id:
            said = f"the topic {topic.name} was deleted and made again: its offsets start over, and what was not read "
            advice = "give the new one another name, or read it by a new feed"
            faults.append(SourceError(f"{said}of the earlier one is lost", advice=advice))
        elif not source.tidb_extension and len(topic.partitions) > 1:
            fault = SourceError(
                f"the topic {topic.name} has {len(topic.partitions)} partitions, and without TiDB's extension its "
                "messages have no commit-ts: nothing tells the order of rows and statements of different partitions",
                advice="set enable-tidb-extension=true in the changefeed's sink URI and take tidb_extension: false out "
                "of the feed's source; or send to a topic with one partition",
            )
            faults.append(fault)
        else:
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
            said = f"{partition.named} has no offset {chosen}: it holds those from {bounds.low} on, before {bounds.end}"
            raise SourceError(said, advice="correct source.start")
        return chosen
    if end < bounds.low:
        if chosen is not None and bounds.low <= chosen <= bounds.end:
            return chosen  # The loss is known to whoever wrote this.
        raise offsets_expired(partition, end, bounds.low)
    if end > bounds.end:
        raise log_truncated(partition, end, bounds.end)
    return end


def offsets_expired(partition: LogPartition, wanted: int, low: int) -> SourceError:
    return SourceError(
        f"{partition.named} has lost the offsets from {wanted} on, before {low}, by retention or by deletion: they "
        "were not read yet",
        advice=f"restore them, or continue without them by source.start {{{partition.topic}: {{{partition.number}: "
        f"{low}}}}}; then raise the topic's retention, or run more often",
    )


def log_truncated(partition: LogPartition, wanted: int, end: int) -> SourceError:
    return SourceError(
        f"{partition.named} ends at offset {end}, though it was read up to {wanted}: it was cut off, or the topic "
        "was deleted and made again",
        advice="restore it; a topic that was made again is read under another name, or by a new feed",
    )


def find_faults(source: KafkaSource, topics: Iterable[Topic], landed: LandedOffsets | None = None) -> list[SourceError]:
    """Return the errors of topics that the source names, or of which something has landed, and that cannot be read.
    `topics` are all that `read_topics` found."""
    landed = landed or LandedOffsets()
    found = {topic.name: topic for topic in topics}
    faults = [topic.fault for topic in found.values() if topic.fault is not None]
    known = (name for name in landed.topics if source.takes(name))
    for name in sorted({*(source.topics or ()), *known} - found.keys()):
        fault = SourceError(
            f"there is no topic {name}",
            advice="correct source.topics, or make the topic: the checkpoint-ts waits for it",
        )
        if name in landed.topics:
            fault = SourceError(
                f"the topic {name} is not there any more: what was not read of it is lost",
                advice="restore it, or take it out of source.topics, or change source.topic_pattern so that it does "
                "not match: the checkpoint-ts waits for it while a table of it lives",
            )
        faults.append(fault)
    return faults


def require_all(source: KafkaSource, topics: Iterable[Topic]) -> None:
    for fault in find_faults(source, topics):
        raise fault
