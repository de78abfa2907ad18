"""Ranges of offsets read as messages, column by column. It is the position that ends a range, not a count."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from cdc_lakehouse.errors import CdcError, SourceError, SourceUnreachableError
from cdc_lakehouse.sources.kafka.client import Client
from cdc_lakehouse.sources.kafka.faults import OUT_OF_RANGE, Troubles, topic_fault
from cdc_lakehouse.sources.kafka.offsets import OffsetRange, Partition
from cdc_lakehouse.sources.kafka.pending import gone, shortened

Headers = list[tuple[str, bytes | None]]

_MESSAGES_AT_ONCE: Final = 10_000
_FIRST_MESSAGES: Final = 500
"""Before it is known how large they are."""
_BYTES_AT_ONCE: Final = 16 << 20
_WAIT_SECONDS: Final = 0.1
"""For so many: what comes in so short a time bounds the memory that a batch takes, however large its messages are."""


@dataclass(frozen=True, slots=True)
class Messages:
    """Messages of one range, in the order of their offsets, column by column. A timestamp is (type, milliseconds since
    1970 UTC), with the client's numbers of types."""

    range: OffsetRange
    offsets: list[int]
    timestamps: list[tuple[int, int]]
    keys: list[bytes | None]
    values: list[bytes | None]
    headers: list[Headers | None]
    sizes: list[int]
    """Bytes of key and value."""


def read_ranges(client: Client, ranges: Sequence[OffsetRange]) -> Iterator[Messages]:
    """All messages of some ranges of different partitions, side by side, each in its order.

    Raises `SourceError` for messages that are gone, that may not or cannot be read, or that are larger than the client
    takes; `SourceUnreachableError` when for a while nothing comes."""
    reader = _Reader(client, ranges)
    try:
        yield from reader.read()
    finally:
        reader.close()


class _Reading:
    """How far a range has been read."""

    def __init__(self, whole: OffsetRange) -> None:
        self.range = whole
        self.position = whole.start
        self.bytes_left = whole.max_bytes

    @property
    def done(self) -> bool:
        return self.position >= self.range.end or self.bytes_left <= 0

    def take(self, messages: Sequence[Message]) -> Messages | None:
        """The part of some messages, one after the other in the log, that belongs to the range."""
        offsets: list[int] = [message.offset() for message in messages]  # pyright: ignore[reportAssignmentType]
        if offsets[-1] >= self.range.end:
            messages = messages[: sum(1 for offset in offsets if offset < self.range.end)]
        keys = [message.key() for message in messages]
        values = [message.value() for message in messages]
        sizes = [len(key or b"") + len(value or b"") for key, value in zip(keys, values, strict=True)]
        if sum(sizes) >= self.bytes_left:
            wanted = 1 + sum(1 for read in itertools.accumulate(sizes) if read < self.bytes_left)
            messages, keys, values, sizes = messages[:wanted], keys[:wanted], values[:wanted], sizes[:wanted]
        self.position = max(self.position, offsets[-1] + 1)
        self.bytes_left -= sum(sizes)
        if not messages:
            return None
        timestamps = [message.timestamp() for message in messages]
        headers: list[Headers | None] = [message.headers() for message in messages]  # pyright: ignore[reportAssignmentType]
        return Messages(self.range, offsets[: len(messages)], timestamps, keys, values, headers, sizes)


class _Reader:
    def __init__(self, client: Client, ranges: Sequence[OffsetRange]) -> None:
        self._client = client
        self._troubles = Troubles()
        self._open = {each.partition: _Reading(each) for each in ranges if len(each)}
        self._consumer: Consumer = client.consumer(self._troubles)
        self._single = next(iter(self._open)) if len(self._open) == 1 else None
        self._waited = 0.0
        """Since something came, and not counting what is done with it."""
        self._wanted = _FIRST_MESSAGES

    def close(self) -> None:
        self._consumer.close()

    def read(self) -> Iterator[Messages]:
        # Given without a group: nothing is asked of a coordinator that this depends on.
        self._consumer.assign(
            [TopicPartition(*partition, reading.position) for partition, reading in self._open.items()]
        )
        while self._open:
            left = sum(reading.range.end - reading.position for reading in self._open.values())
            asked = time.monotonic()
            batch = self._consumer.consume(max(1, min(self._wanted, left)), _WAIT_SECONDS)
            self._waited += time.monotonic() - asked
            yield from self._take(batch)
            if self._troubles.too_large is not None:
                raise self._too_large(self._troubles.too_large)
            if self._waited > self._client.patience_seconds:
                raise self._out_of_range(next(iter(self._open.values())))

    def _take(self, batch: Sequence[Message]) -> Iterator[Messages]:
        good = [message for message in batch if message.error() is None]
        read = size = 0
        for partition, run in self._runs(good):
            reading = self._open.get(partition)
            if reading is None:
                continue  # What was on its way when its range had been read.
            self._waited = 0
            if (taken := reading.take(run)) is not None:
                read, size = read + len(taken.sizes), size + sum(taken.sizes)
                yield taken
            if reading.done:
                self._end(partition)
        if read:
            self._wanted = max(1, min(_MESSAGES_AT_ONCE, _BYTES_AT_ONCE * read // max(1, size)))
        if len(good) < len(batch):
            for message in batch:
                if (error := message.error()) is not None:
                    self._heed(message, error)

    def _runs(self, messages: Sequence[Message]) -> Iterator[tuple[Partition, Sequence[Message]]]:
        """The messages that stand together in a partition."""
        if self._single is not None:
            return iter([(self._single, messages)] if messages else [])
        return ((key, list(run)) for key, run in itertools.groupby(messages, key=_partition))

    def _heed(self, message: Message, error: KafkaError) -> None:
        topic, number, offset = message.topic(), message.partition(), message.offset()
        reading = None if topic is None or number is None else self._open.get(Partition(topic, number))
        if reading is None:
            # Of the client's own group, which is not used, or of what has been read.
            return
        if error.code() == KafkaError._PARTITION_EOF:
            # Markers and aborted messages alone are before it. One that is too early is no end: a new leader may be
            # behind for a moment.
            if offset is not None and offset >= reading.range.end:
                self._end(reading.range.partition)
        elif error.code() in OUT_OF_RANGE:
            raise self._out_of_range(reading)
        elif (found := topic_fault(reading.range.partition.topic, error)) is not None:
            raise found
        else:
            self._troubles.note(error)

    def _end(self, partition: Partition) -> None:
        del self._open[partition]
        if self._open:
            self._consumer.pause([TopicPartition(*partition)])

    def _out_of_range(self, reading: _Reading) -> CdcError:
        """Why nothing is at a position."""
        partition, position = reading.range.partition, reading.position
        try:
            # The topic first: of one that may not be read the client says only that it does not know the partition.
            known = self._consumer.list_topics(partition.topic, self._client.timeout_seconds)
            error: KafkaError | None = known.topics[partition.topic].error
            if error is not None and (found := topic_fault(partition.topic, error)) is not None:
                return found
            asked = TopicPartition(*partition)
            low, high = self._consumer.get_watermark_offsets(asked, self._client.timeout_seconds)
        except KafkaException as raised:
            told: KafkaError = raised.args[0]
            return topic_fault(partition.topic, told) or self._troubles.fault(self._client.brokers, told)
        if position < low:
            return gone(partition, position, low)
        if reading.range.end > high:
            return shortened(partition, reading.range.end, high)
        return SourceUnreachableError(f"{partition.named} gives nothing for now from offset {position} on")

    def _too_large(self, size: int) -> CdcError:
        places = ", ".join(f"{partition} from offset {each.position}" for partition, each in self._open.items())
        return SourceError(
            f"a message is larger than the client takes: it comes in an answer of {size} bytes, of {places}",
            advice="set receive.message.max.bytes of source.kafka above that",
        )


def _partition(message: Message) -> Partition:
    return Partition(message.topic() or "", message.partition() or 0)
