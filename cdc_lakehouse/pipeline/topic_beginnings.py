"""Find where the log of TiCDC's topics begins, by the first messages that the brokers still have."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from cdc_lakehouse.changelog.events import Message, MessageError, Watermark
from cdc_lakehouse.config import KafkaSource
from cdc_lakehouse.decoders.messages.format import Decode
from cdc_lakehouse.errors import SourceUnreachableError
from cdc_lakehouse.sources.kafka import KafkaClient, RangeReader, find_pending, read_topics, require_all
from cdc_lakehouse.sources.record_log import LandedOffsets, LogPartition, OffsetRange

_LOOKED_AT: Final = 500
"""Messages of a partition to read. TiCDC sends a watermark every second."""
_BYTES: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class Beginning:
    """The beginning of a partition: the offset from which it is read, the commit-ts (a TSO) of the first watermark, and
    the least commit-ts of rows and statements before it. None for what the first messages do not show."""

    partition: LogPartition
    offset: int
    watermark: int | None
    change_ts: int | None

    @property
    def began_at(self) -> int | None:
        """A commit-ts that is not below the changefeed's start, for a partition that is read from its first message."""
        known = [each for each in (self.watermark, self.change_ts) if each is not None]
        return min(known, default=None)

    @property
    def complete_from(self) -> int | None:
        """The least commit-ts from which on all changes are known to be read, for a partition that has lost messages or
        is not read from its first one: changes above a watermark come after it. Otherwise None."""
        return self.watermark if self.offset else None


def read_beginnings(source: KafkaSource, decode: Decode) -> list[Beginning]:
    """Read the beginnings of all partitions that have messages, for a feed of which nothing has landed. Raises as
    `read_topics` and `RangeReader.messages` do, `SourceUnreachableError`, and `SourceError` when a topic cannot be
    read."""
    client = KafkaClient.of(source)
    topics = read_topics(source, client)
    require_all(source, topics)
    pending = find_pending(source, topics, LandedOffsets())
    ranges = [
        OffsetRange(partition, start, min(end, start + _LOOKED_AT), _BYTES)
        for partition, (start, end) in pending.offsets.items()
        if end > start
    ]
    values: dict[LogPartition, list[tuple[bytes | None, bytes | None]]] = {}
    reader = RangeReader(client, ranges)
    for found in reader.messages():
        values.setdefault(found.range.partition, []).extend(zip(found.keys, found.values, strict=True))
    if unreachable := [fault for fault in reader.faults if isinstance(fault, SourceUnreachableError)]:
        raise unreachable[0]
    return beginnings_of({each.partition: each.start for each in ranges}, values, decode)


def beginnings_of(
    offsets: Mapping[LogPartition, int],
    values: Mapping[LogPartition, Iterable[tuple[bytes | None, bytes | None]]],
    decode: Decode,
) -> list[Beginning]:
    """Determine the beginnings from the first offsets, and from the keys and values after them."""
    found: list[Beginning] = []
    for partition, offset in offsets.items():
        watermark, changes = None, list[int]()
        for message in _messages(values.get(partition, ()), decode):
            watermark = next((part.commit_ts for part in message.parts if isinstance(part, Watermark)), None)
            if watermark is not None:
                break
            if message.origin.commit_ts is not None:
                changes.append(message.origin.commit_ts)
        found.append(Beginning(partition, offset, watermark, min(changes, default=None)))
    return found


def _messages(values: Iterable[tuple[bytes | None, bytes | None]], decode: Decode) -> Iterator[Message]:
    for key, value in values:
        try:
            decoded = decode(key, value)
        except MessageError:
            continue  # It is reported when it is decoded.
        for each in decoded if isinstance(decoded, list) else [decoded]:
            if isinstance(each, Message):
                yield each
