"""Topics of Apache Kafka: listing them, finding what is new in them, and reading their messages unchanged.

Nothing is committed to the brokers and no group is joined: the offsets that a feed has read are in the lake. Messages
of aborted transactions are never seen. An error's text contains addresses and responses of brokers, so only the error's
name is passed on.

Claim checks are the files in which TiCDC stores messages that are too large for the broker, as
`{"key":null,"value":"<base64>"}`, or with claim-check-raw-value as they are; either can be compressed. A message in the
topic has the URI of its file. Only its file name is used, so that it can refer to no other place than the configured
one.

A range ends at a position, not after a count of messages. A run is limited by records and by bytes. The size of records
is known from the last batch of their topic; where it turns out to be different, a range ends earlier than planned."""

from __future__ import annotations

import base64
import binascii
import itertools
import math
import re
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, NamedTuple, TypeVar, cast

import confluent_kafka
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicCollection, TopicPartition
from confluent_kafka import admin as kafka_admin
from confluent_kafka.admin import AdminClient

from cdc_lakehouse.config import KafkaSource, StorageConfig
from cdc_lakehouse.errors import CdcError, ConfigurationError, SourceError, SourceUnreachableError
from cdc_lakehouse.sources import read_json
from cdc_lakehouse.sources.object_store import shared_store
from cdc_lakehouse.sources.record_log import LandedOffsets, LogPartition, Messages, OffsetRange, Pending

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
REQUEST_SECONDS: Final = 15.0
"""A request is given up after this time, and by `PATIENCE_SECONDS` a read without progress."""
PATIENCE_SECONDS: Final = 60.0

_Client = TypeVar("_Client", Consumer, AdminClient)

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


class Brokers:
    """The brokers of a source, for one client of them; and the errors that it has reported, by code. It reports them
    from its own threads."""

    def __init__(self, source: KafkaSource) -> None:
        self._addresses, self._settings = ",".join(source.bootstrap_servers), source.kafka
        self._lock = threading.Lock()
        self._by_code: dict[int, str] = {}
        self.too_large: int | None = None
        """The bytes of a response that the client refused to accept."""

    def client(self, kind: type[_Client]) -> _Client:
        """Return a consumer without a group, or a client for requests to the cluster. Raises `ConfigurationError` when
        it does not accept its settings."""
        own: Any = {"bootstrap.servers": self._addresses, "error_cb": self.note}
        try:
            return kind({**_DEFAULTS, **self._settings, **_OWN, **own})
        except (KafkaException, TypeError, ValueError) as error:
            # The client's text may contain a value.
            named = _SETTING.search(str(error))
            what = "a setting of source.kafka" if named is None else f"the setting source.kafka.{named[1]}"
            advice = "names and values are those of librdkafka's CONFIGURATION.md"
            raise ConfigurationError(f"the Kafka client does not take {what}", advice=advice) from None

    def note(self, error: KafkaError) -> None:
        with self._lock:
            self._by_code[error.code()] = error.str()
            if found := _TOO_LARGE.search(error.str()):
                self.too_large = int(found[1])

    def fault(self, error: KafkaError | None = None) -> CdcError:
        """Return the error for a request without a response."""
        with self._lock:
            reported = dict(self._by_code)
        if _LOGIN & reported.keys():
            advice = "correct sasl.mechanism, sasl.username and sasl.password of source.kafka"
            return SourceError(f"the Kafka brokers at {self._addresses} do not take the credentials", advice=advice)
        if _NOT_TRUSTED in reported.get(KafkaError._SSL, ""):
            advice = "set ssl.ca.location of source.kafka to the authority that issued it"
            said = f"the certificate of the Kafka brokers at {self._addresses} cannot be verified"
            return SourceError(said, advice=advice)
        names = sorted(KafkaError(code).name() for code in reported if code != KafkaError._ALL_BROKERS_DOWN)
        said = names or ([] if error is None else [error.name()])
        return SourceUnreachableError(
            f"the Kafka brokers at {self._addresses} cannot be reached for now ({', '.join(said) or 'no answer'})",
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

_NO_LEADER_SECONDS: Final = 0.2
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


def read_topics(source: KafkaSource, *, whole: bool = False) -> tuple[Topic, ...]:
    """Read the current topics that the source names or its pattern matches, in three or four requests; without missing
    ones, which `find_faults` returns. Raises `SourceError` when none of them can be read (`whole`: when one cannot),
    `SourceUnreachableError` when the brokers do not answer, `ConfigurationError` when the client does not take its
    settings."""
    cluster = _Cluster(source)
    try:
        topics = cluster.topics()
    finally:
        # Destroyed on this thread: the garbage collector can run on a thread of another client, where the library
        # aborts the process instead.
        del cluster.admin
    faults = find_faults(source, topics)
    if faults and (whole or all(topic.fault is not None for topic in topics)):
        raise faults[0]
    return topics


class _NoLeaderError(SourceUnreachableError):
    """A partition has no leader, or a new one is not known everywhere: that passes soon."""


class _Cluster:
    def __init__(self, source: KafkaSource) -> None:
        self._source, self._brokers = source, Brokers(source)
        self.admin: Any = self._brokers.client(AdminClient)  # Its answers have no types.
        self._deadline = time.monotonic() + REQUEST_SECONDS

    def _seconds_left(self) -> float:
        return max(_LEAST_SECONDS, self._deadline - time.monotonic())

    def topics(self) -> tuple[Topic, ...]:
        while True:
            try:
                return self._topics()
            except _NoLeaderError as error:
                if self._seconds_left() <= _NO_LEADER_SECONDS:
                    raise SourceUnreachableError(error.message) from None
                time.sleep(_NO_LEADER_SECONDS)

    def _topics(self) -> tuple[Topic, ...]:
        names = self._source.topics
        if names is None:
            try:
                known: Iterable[str] = self.admin.list_topics(timeout=self._seconds_left()).topics
            except KafkaException as error:
                raise self._fault(error) from None
            names = tuple(name for name in known if self._source.takes(name))
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
            committed = confluent_kafka.IsolationLevel.READ_COMMITTED
            options = {"isolation_level": committed, "request_timeout": self._seconds_left()}
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
        return self._brokers.fault(cause)


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
    """Return the errors of topics that the source names, or of which something has landed, and that cannot be read."""
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


# --- Reading of ranges ---

_MESSAGES_AT_ONCE: Final = 500
"""With 10,000, each costs twice as much, because they do not fit into the processor's cache."""
_FIRST_MESSAGES: Final = 100
"""Before their size is known."""
_BYTES_AT_ONCE: Final = 8 << 20
_CONSUME_SECONDS: Final = 0.1
"""Waiting so short a time for so many messages limits the memory that they take, however large they are."""
_ROWS_TOGETHER: Final = 10_000
_BYTES_TOGETHER: Final = 16 << 20
_BYTES_HELD: Final = 64 << 20
"""The limit for all partitions that are read side by side."""

# Mapped over messages without a line of Python for each: this takes half of the time. Their results are untyped: where
# a message is no error there is no None, unlike in the client's types.
_error, _topic, _number, _offset, _key, _value, _timestamp, _headers = (
    cast("Callable[[Message], Any]", getattr(Message, name))
    for name in ("error", "topic", "partition", "offset", "key", "value", "timestamp", "headers")
)


class RangeReader:
    """Reads ranges of different partitions, side by side, each in its order. A fault ends the range that it concerns,
    and the others continue; a fault of the brokers ends all. Then `ends` says how far the ranges were read, and
    `faults` what went wrong: `SourceUnreachableError` when nothing came for a while, else `SourceError`."""

    def __init__(self, source: KafkaSource, ranges: Sequence[OffsetRange]) -> None:
        self._source, self._patience = source, PATIENCE_SECONDS
        self._parts = [_Part(whole) for whole in ranges]
        self.faults: list[CdcError] = []

    @property
    def ends(self) -> dict[OffsetRange, int]:
        """By range, the first offset that was not read."""
        return {part.range: part.position for part in self._parts}

    def messages(self) -> Iterator[Messages]:
        """Yield the messages of the ranges, in batches of one range each. Raises as `Brokers.client` does."""
        yield from self._read(self._parts)
        # Ranges are left where an answer was too large. The client does not report its partition: reading one after the
        # other shows it.
        for part in self._parts:
            yield from self._read([part])

    def _read(self, parts: Sequence[_Part]) -> Iterator[Messages]:
        self._open = {part.range.partition: part for part in parts if not part.over}
        if not self._open:
            return
        self._brokers = Brokers(self._source)
        self._waited = 0.0  # The seconds since something came, without the time of processing it.
        self._wanted = _FIRST_MESSAGES
        self._consumer = self._brokers.client(Consumer)
        try:
            # Assigned without a group: this depends on no request to a coordinator.
            self._consumer.assign([TopicPartition(*partition, part.position) for partition, part in self._open.items()])
            while self._open:
                left = sum(part.range.end - part.position for part in self._open.values())
                asked = time.monotonic()
                batch = self._consumer.consume(max(1, min(self._wanted, left)), _CONSUME_SECONDS)
                self._waited += time.monotonic() - asked
                self._take(batch)
                if (size := self._brokers.too_large) is not None:
                    for part in self._open.values():
                        yield from part.hand_on()
                    if len(parts) > 1:
                        return
                    if not (part := parts[0]).over:
                        fault = SourceError(
                            f"a message is larger than the client takes: it comes in an answer of {size} bytes, from "
                            f"offset {part.position} of {part.range.partition.named} on",
                            advice="set receive.message.max.bytes of source.kafka above that",
                        )
                        self._end(part, fault)
                elif self._waited > self._patience:
                    for part in self._open.values():
                        fault = self._why_no_messages(part)
                        self._end(part, fault)
                        if isinstance(fault, SourceUnreachableError):
                            break
                    for part in self._open.values():
                        part.over = True
                too_much = sum(part.held.size for part in self._open.values()) >= _BYTES_HELD
                for partition, part in list(self._open.items()):
                    held = part.held
                    if part.over or too_much or len(held.offsets) >= _ROWS_TOGETHER or held.size >= _BYTES_TOGETHER:
                        yield from part.hand_on()
                    if part.over:
                        del self._open[partition]
                        if self._open:
                            self._consumer.pause([TopicPartition(*partition)])
        finally:
            self._consumer.close()

    def _take(self, batch: Sequence[Message]) -> None:
        """Add what came to its parts."""
        errors = any(map(_error, batch))
        good = [message for message in batch if message.error() is None] if errors else batch
        count = size = 0
        for partition, run in _runs(good):
            part = self._open.get(partition)
            if part is not None and not part.over:  # Else it was on its way when its range had been read.
                self._waited = 0
                more = part.take(run)
                count, size = count + more[0], size + more[1]
        if count:
            self._wanted = max(1, min(_MESSAGES_AT_ONCE, _BYTES_AT_ONCE * count // max(1, size)))
        if errors:
            for message in batch:
                if (error := message.error()) is not None:
                    self._take_error(message, error)

    def _take_error(self, message: Message, error: KafkaError) -> None:
        topic, number, offset = message.topic(), message.partition(), message.offset()
        part = None if topic is None or number is None else self._open.get(LogPartition(topic, number))
        if part is None or part.over:
            # The error concerns the client's own group, which is not used, or a range that has been read.
            return
        if error.code() == KafkaError._PARTITION_EOF:
            # A position before the range's end is no end: a new leader may be behind for a moment.
            if offset is not None and offset >= part.range.end:
                part.finish()
        elif error.code() in OUT_OF_RANGE:
            self._end(part, self._why_no_messages(part))
        elif (found := topic_fault(part.range.partition.topic, error)) is not None:
            self._end(part, found)
        else:
            self._brokers.note(error)

    def _end(self, part: _Part, fault: CdcError) -> None:
        part.over = True
        self.faults.append(fault)

    def _why_no_messages(self, part: _Part) -> CdcError:
        partition, position = part.range.partition, part.position
        try:
            # The topic first: if it may not be read, the client says only that it does not know the partition.
            known = self._consumer.list_topics(partition.topic, REQUEST_SECONDS)
            error: KafkaError | None = known.topics[partition.topic].error
            if error is not None and (found := topic_fault(partition.topic, error)) is not None:
                return found
            asked = TopicPartition(*partition)
            low, high = self._consumer.get_watermark_offsets(asked, REQUEST_SECONDS)
        except KafkaException as raised:
            cause: KafkaError = raised.args[0]
            return topic_fault(partition.topic, cause) or self._brokers.fault(cause)
        if position < low:
            return offsets_expired(partition, position, low)
        if part.range.end > high:
            return log_truncated(partition, part.range.end, high)
        return SourceUnreachableError(f"{partition.named} gives nothing for now from offset {position} on")


def _runs(messages: Sequence[Message]) -> Iterator[tuple[LogPartition, Sequence[Message]]]:
    first = 0
    for place, run in itertools.groupby(zip(map(_topic, messages), map(_number, messages), strict=True)):
        last = first + len([*run])
        yield LogPartition(*place), messages[first:last]
        first = last


class _Part:
    """The progress of a range, which is read until it is `over`, and its messages that were not yielded yet."""

    def __init__(self, whole: OffsetRange) -> None:
        self.range = whole
        self.position = whole.start
        self.over = not len(whole)
        self._bytes_left = whole.max_bytes
        self.held = Messages(whole)

    def take(self, messages: Sequence[Message]) -> tuple[int, int]:
        """Add those of consecutive messages that belong to the range; return their number and their bytes."""
        offsets: list[int] = list(map(_offset, messages))
        count = len(offsets)
        if offsets[-1] >= self.range.end:
            count = sum(1 for offset in offsets if offset < self.range.end)
            self.finish()
        else:
            self.position = offsets[-1] + 1
            self.over = self.position >= self.range.end
        keys, values = list(map(_key, messages[:count])), list(map(_value, messages[:count]))
        size = _bytes(keys) + _bytes(values)
        if size >= self._bytes_left:
            sizes = (_bytes(pair) for pair in zip(keys, values, strict=True))
            count = 1 + sum(1 for read in itertools.accumulate(sizes) if read < self._bytes_left)
            size = _bytes(keys[:count]) + _bytes(values[:count])
            self.position, self.over = offsets[count - 1] + 1, True
        self._bytes_left -= size
        held = self.held
        held.offsets += offsets[:count]
        held.keys.add(keys[:count])
        held.values.add(values[:count])
        held.timestamps += itertools.chain.from_iterable(map(_timestamp, messages[:count]))
        held.headers += map(_headers, messages[:count])
        held.size += size
        return count, size

    def finish(self) -> None:
        """Mark the range as read: its rest is markers and aborted messages."""
        self.position, self.over = self.range.end, True

    def hand_on(self) -> Iterator[Messages]:
        held, self.held = self.held, Messages(self.range)
        if held.offsets:
            yield held


def _bytes(values: Iterable[bytes | None]) -> int:
    return sum(map(len, filter(None, values)))


_LOOKED_AT: Final = 200
_FIRST_BYTES: Final = 16 << 20
_FIRST_PARTITIONS: Final = 12


def first_messages(source: KafkaSource, topics: Sequence[Topic]) -> list[bytes]:
    """Return the values of the first messages that the topics still have."""
    ranges = [
        OffsetRange(LogPartition(topic.name, number), low, min(end, low + _LOOKED_AT), _FIRST_BYTES)
        for topic in topics
        for number, (low, end) in topic.partitions.items()
        if end > low
    ]
    values: list[bytes] = []
    reader = RangeReader(source, ranges[:_FIRST_PARTITIONS])
    for messages in reader.messages():
        values += [value for value in messages.values if value is not None]
        if len(values) >= _LOOKED_AT:
            break
    if not values and reader.faults:
        raise reader.faults[0]
    return values[:_LOOKED_AT]


_USUAL_SIZE: Final = 1024.0
"""The bytes of a record up to which the time depends on their number, and those assumed where none was read."""
_WORTH_A_TASK: Final = 100_000
"""Ranges with fewer records are not cut further: starting a client in a task costs about as much."""
_SLACK: Final = 2
"""The factor by which a part of a range may exceed its estimate. Parts after one that ends early are read in vain."""


def choose_ranges(
    offsets: Mapping[LogPartition, tuple[int, int]], landed: LandedOffsets, max_records: int, max_bytes: int
) -> tuple[OffsetRange, ...]:
    """Choose the ranges to read from partitions with (from, before) offsets: at most `max_records` offsets, and about
    `max_bytes` bytes of keys and values. Each partition with new offsets gets at least one, so that none waits
    forever."""
    left = {partition: end - start for partition, (start, end) in offsets.items() if end > start}
    sizes = {each: _record_size(landed, each) for each in left}
    by_records = _share(left, max(max_records, len(left)))
    needs = {partition: math.ceil(count * sizes[partition]) for partition, count in by_records.items()}
    by_bytes = _share(needs, max_bytes)
    taken = {
        partition: max(1, min(count, int(by_bytes[partition] / sizes[partition])))
        for partition, count in by_records.items()
    }
    reckoned = sum(count * sizes[partition] for partition, count in taken.items())
    ranges: list[OffsetRange] = []
    for partition, count in sorted(taken.items()):
        start, share = offsets[partition][0], int(max_bytes * count * sizes[partition] / reckoned)
        ranges.append(OffsetRange(partition, start, start + count, max(1, share)))
    return tuple(ranges)


def _record_size(landed: LandedOffsets, partition: LogPartition) -> float:
    size = landed.record_bytes(partition.topic)
    return _USUAL_SIZE if size is None else max(1.0, size)


def expected_bytes(ranges: Iterable[OffsetRange], landed: LandedOffsets) -> list[int]:
    """Return about how many bytes of keys and values the ranges have."""
    return [round(len(each) * _record_size(landed, each.partition)) for each in ranges]


def _share(needs: Mapping[LogPartition, int], total: int) -> dict[LogPartition, int]:
    """Divide a total as equally as the needs allow: what a partition does not need is shared by the others."""
    shares: dict[LogPartition, int] = {}
    for position, partition in enumerate(sorted(needs, key=lambda partition: (needs[partition], partition))):
        shares[partition] = min(needs[partition], total // (len(needs) - position))
        total -= shares[partition]
    return shares


def split_ranges(
    ranges: Sequence[OffsetRange], landed: LandedOffsets, tasks: Callable[[], int]
) -> tuple[tuple[OffsetRange, ...], ...]:
    """Distribute the ranges over groups, for about `tasks` tasks with about equal work, asked for their number when
    there is more than one can do. Large ranges are cut, and each part is a group of its own; but not where the size of
    records is not known: a part might have to end early, and what is behind would be read twice."""
    # In records of a usual size: larger records take longer.
    costs = {
        part: len(part) * max(1.0, (landed.record_bytes(part.partition.topic) or 0) / _USUAL_SIZE) for part in ranges
    }
    total = sum(costs.values())
    divisible = len(ranges) > 1 or any(landed.record_bytes(part.partition.topic) is not None for part in ranges)
    share = max(_WORTH_A_TASK, math.ceil(total / tasks()) if divisible and total > _WORTH_A_TASK else 0)
    parts, whole = list[OffsetRange](), list[OffsetRange]()
    for part in ranges:
        count = min(round(costs[part] / share), len(part))
        if count > 1 and landed.record_bytes(part.partition.topic) is not None:
            ends = [part.start + len(part) * number // count for number in range(count + 1)]
            limit = _SLACK * math.ceil(part.max_bytes / count)
            parts += (OffsetRange(part.partition, start, end, limit) for start, end in itertools.pairwise(ends))
        else:
            whole.append(part)
    groups: list[list[OffsetRange]] = [[] for _ in range(math.ceil(sum(map(costs.__getitem__, whole)) / share))]
    for part in sorted(whole, key=costs.__getitem__, reverse=True):
        min(groups, key=lambda group: sum(map(costs.__getitem__, group))).append(part)
    return (*((part,) for part in parts), *(tuple(group) for group in groups if group))
