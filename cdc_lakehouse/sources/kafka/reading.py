"""Reading of offset ranges as messages, column by column. A range ends at a position, not after a count of messages.

The offsets that one run reads, and their distribution over tasks: pure functions.

A run is limited by records and by bytes. The size of records is known from the last batch of their topic; where it
turns out to be different, a range ends earlier than planned."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, cast

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from cdc_lakehouse.config import KafkaSource
from cdc_lakehouse.errors import CdcError, SourceError, SourceUnreachableError
from cdc_lakehouse.sources.kafka.client import (
    OUT_OF_RANGE,
    ClientErrors,
    KafkaClient,
    Topic,
    log_truncated,
    offsets_expired,
    topic_fault,
)
from cdc_lakehouse.sources.record_log import LandedOffsets, LogPartition, Messages, OffsetRange

_MESSAGES_AT_ONCE: Final = 500
"""Measured: with 10,000, each costs twice as much, because they do not fit into the processor's cache."""
_FIRST_MESSAGES: Final = 100
"""Before their size is known."""
_BYTES_AT_ONCE: Final = 8 << 20
_WAIT_SECONDS: Final = 0.1
"""Waiting so short a time for so many messages limits the memory that they take, however large they are."""
_ROWS_TOGETHER: Final = 10_000
_BYTES_TOGETHER: Final = 16 << 20
_BYTES_HELD: Final = 64 << 20
"""The limit for all partitions that are read side by side."""

# Mapped over messages without a line of Python for each: this takes half of the time. Their results are untyped: where
# a message is no error there is no None, unlike in the client's types.
_error, _topic, _number, _offset, _key, _value, _timestamp, _headers = cast(
    "tuple[Callable[[Message], Any], ...]",
    (
        Message.error, Message.topic, Message.partition, Message.offset, Message.key, Message.value, Message.timestamp,
        Message.headers,
    ),
)  # fmt: skip


class RangeReader:
    """Reads ranges of different partitions, side by side, each in its order: `messages` yields the messages of all of
    them. A fault ends the range that it concerns, and the others continue; a fault of the brokers ends all. Then `ends`
    says how far the ranges were read, and `faults` what went wrong: `SourceError` for messages that are lost, that may
    not or cannot be read, or that are larger than the client accepts; `SourceUnreachableError` when nothing came for a
    while."""

    def __init__(self, client: KafkaClient, ranges: Sequence[OffsetRange]) -> None:
        self._client = client
        self._parts = [_Part(whole) for whole in ranges]
        self.faults: list[CdcError] = []

    @property
    def ends(self) -> dict[OffsetRange, int]:
        """By range, the first offset that was not read."""
        return {part.range: part.position for part in self._parts}

    def messages(self) -> Iterator[Messages]:
        """Yield the messages of the ranges, in batches of one range each. Raises `ConfigurationError` when the client
        does not accept its settings."""
        yield from self._read(self._parts)
        # Ranges are left where an answer was too large. The client does not report its partition: reading one after the
        # other shows it.
        for part in self._parts:
            yield from self._read([part])

    def _read(self, parts: Sequence[_Part]) -> Iterator[Messages]:
        self._open = {part.range.partition: part for part in parts if not part.over}
        if not self._open:
            return
        single = next(iter(self._open)) if len(self._open) == 1 else None
        self._errors = ClientErrors()
        self._waited = 0.0  # The seconds since something came, without the time of processing it.
        self._wanted = _FIRST_MESSAGES
        held = 0  # The bytes received since all parts have yielded their messages.
        self._consumer = self._client.made(Consumer, self._errors)
        try:
            # Assigned without a group: this depends on no request to a coordinator.
            self._consumer.assign([TopicPartition(*partition, part.position) for partition, part in self._open.items()])
            while self._open:
                left = sum(part.range.end - part.position for part in self._open.values())
                asked = time.monotonic()
                batch = self._consumer.consume(max(1, min(self._wanted, left)), _WAIT_SECONDS)
                self._waited += time.monotonic() - asked
                held += self._take(batch, single)
                if (size := self._errors.too_large) is not None:
                    for part in self._open.values():
                        yield from part.hand_on()
                    if single is None:
                        return
                    if not (part := self._open[single]).over:
                        fault = SourceError(
                            f"a message is larger than the client takes: it comes in an answer of {size} bytes, from "
                            f"offset {part.position} of {single.named} on",
                            advice="set receive.message.max.bytes of source.kafka above that",
                        )
                        self._end(part, fault)
                elif self._waited > self._client.patience_seconds:
                    for part in self._open.values():
                        fault = self._why_no_messages(part)
                        self._end(part, fault)
                        if isinstance(fault, SourceUnreachableError):
                            break
                    for part in self._open.values():
                        part.over = True
                too_much = held >= _BYTES_HELD
                held = 0 if too_much else held
                for partition, part in list(self._open.items()):
                    if (
                        part.over
                        or too_much
                        or len(part.held.offsets) >= _ROWS_TOGETHER
                        or part.held.size >= _BYTES_TOGETHER
                    ):
                        yield from part.hand_on()
                    if part.over:
                        del self._open[partition]
                        if self._open:
                            self._consumer.pause([TopicPartition(*partition)])
        finally:
            self._consumer.close()

    def _take(self, batch: Sequence[Message], single: LogPartition | None) -> int:
        """Add what came to its parts, and return its bytes; `single` is the partition where there is only one."""
        errors = any(map(_error, batch))
        good = [message for message in batch if message.error() is None] if errors else batch
        runs: Iterable[tuple[LogPartition, Sequence[Message]]] = ()
        if single is None:
            runs = _runs(good)
        elif good:
            runs = [(single, good)]
        count = size = 0
        for partition, run in runs:
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
        return size

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
            self._errors.note(error)

    def _end(self, part: _Part, fault: CdcError) -> None:
        part.over = True
        self.faults.append(fault)

    def _why_no_messages(self, part: _Part) -> CdcError:
        partition, position = part.range.partition, part.position
        try:
            # The topic first: if it may not be read, the client says only that it does not know the partition.
            known = self._consumer.list_topics(partition.topic, self._client.timeout_seconds)
            error: KafkaError | None = known.topics[partition.topic].error
            if error is not None and (found := topic_fault(partition.topic, error)) is not None:
                return found
            asked = TopicPartition(*partition)
            low, high = self._consumer.get_watermark_offsets(asked, self._client.timeout_seconds)
        except KafkaException as raised:
            cause: KafkaError = raised.args[0]
            return topic_fault(partition.topic, cause) or self._errors.fault(self._client.brokers, cause)
        if position < low:
            return offsets_expired(partition, position, low)
        if part.range.end > high:
            return log_truncated(partition, part.range.end, high)
        return SourceUnreachableError(f"{partition.named} gives nothing for now from offset {position} on")


def _runs(messages: Sequence[Message]) -> Iterator[tuple[LogPartition, Sequence[Message]]]:
    first = 0
    for place, run in itertools.groupby(zip(map(_topic, messages), map(_number, messages), strict=True)):
        last = first + sum(1 for _ in run)
        yield LogPartition(*place), messages[first:last]
        first = last


class _Part:
    """The progress of a range, and its messages that were not yielded yet. With `over`, no more messages of it are
    read."""

    def __init__(self, whole: OffsetRange) -> None:
        self.range = whole
        self.position = whole.start
        self.over = not len(whole)
        self._bytes_left = whole.max_bytes
        self.held = Messages(whole)

    def take(self, messages: Sequence[Message]) -> tuple[int, int]:
        """Add those of some messages, which are consecutive in the log, that belong to the range; return their number
        and their bytes."""
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
        held.keys += keys[:count]
        held.values += values[:count]
        held.timestamps += map(_timestamp, messages[:count])
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
    reader = RangeReader(KafkaClient.of(source), ranges[:_FIRST_PARTITIONS])
    for messages in reader.messages():
        values += [value for value in messages.values if value is not None]
        if len(values) >= _LOOKED_AT:
            break
    if not values and reader.faults:
        raise reader.faults[0]
    return values[:_LOOKED_AT]


_UNKNOWN_SIZE: Final = 1024.0
"""The assumed bytes of a record, for a topic of which none was read."""
_USUAL_SIZE: Final = 1024
"""The bytes up to which the time depends on the number of records, not on their size."""
_WORTH_A_TASK: Final = 100_000
"""Ranges with fewer records are not cut further: starting a client in a task costs about as much."""
_SLACK: Final = 2
"""The factor by which a part of a range may exceed its estimate. Parts after one that ends early are read in vain."""


def choose_ranges(
    offsets: Mapping[LogPartition, tuple[int, int]], landed: LandedOffsets, max_records: int, max_bytes: int
) -> tuple[OffsetRange, ...]:
    """Choose the ranges to read from partitions with (from, before) offsets: at most `max_records` offsets, and about
    `max_bytes` bytes of keys and values. What a partition does not need is shared by the others. Each partition with
    new offsets gets at least one offset, whatever the limits are, so that none waits forever."""
    left = {partition: end - start for partition, (start, end) in offsets.items() if end > start}
    found = {each: landed.record_bytes(each.topic) for each in left}
    sizes = {each: _UNKNOWN_SIZE if size is None else max(1.0, size) for each, size in found.items()}
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


def _share(needs: Mapping[LogPartition, int], total: int) -> dict[LogPartition, int]:
    """Divide a total as equally as the needs allow: a partition that needs less than its share leaves the rest to the
    others."""
    shares: dict[LogPartition, int] = {}
    for position, partition in enumerate(sorted(needs, key=lambda partition: (needs[partition], partition))):
        shares[partition] = min(needs[partition], total // (len(needs) - position))
        total -= shares[partition]
    return shares


def useful_task_count(ranges: Sequence[OffsetRange], landed: LandedOffsets) -> int:
    """Return the maximum number of tasks that have enough to do: at least 1."""
    return max(1, math.ceil(sum(_cost(part, landed) for part in ranges) / _WORTH_A_TASK))


def split_ranges(
    ranges: Sequence[OffsetRange], landed: LandedOffsets, tasks: int
) -> tuple[tuple[OffsetRange, ...], ...]:
    """Distribute the ranges over groups, for about `tasks` tasks with about equal work. Large ranges are cut, and each
    part is a group of its own; but not where the size of records is not known: a part might have to end early, and what
    is behind would be read twice."""
    costs = {part: _cost(part, landed) for part in ranges}
    share = max(_WORTH_A_TASK, math.ceil(sum(costs.values()) / tasks))
    parts: list[OffsetRange] = []
    whole: list[OffsetRange] = []
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


def _cost(part: OffsetRange, landed: LandedOffsets) -> float:
    """Return the cost of a range, in records of a usual size: larger records take longer."""
    return len(part) * max(1.0, (landed.record_bytes(part.partition.topic) or 0) / _USUAL_SIZE)
