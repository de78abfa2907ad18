"""Where the log of TiCDC's topics begins, by the first messages that the brokers still have."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from cdc_lakehouse.changelog.events import Message, MessageError, Watermark
from cdc_lakehouse.config import KafkaSource
from cdc_lakehouse.decoders.messages.format import Decode
from cdc_lakehouse.errors import SourceUnreachableError
from cdc_lakehouse.sources.kafka import Client, RangeReader, find_pending, read_topics, require_all
from cdc_lakehouse.sources.record_log import LandedOffsets, OffsetRange, Partition

_LOOKED_AT: Final = 500
"""Messages of a partition. TiCDC sends a watermark every second."""
_BYTES: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class Beginning:
    """Of a partition: the offset that it is read from, and the commit-ts (a TSO) of the first watermark; of rows and
    statements before it the least one. None for what the first messages do not show."""

    partition: Partition
    offset: int
    watermark: int | None
    change_ts: int | None

    @property
    def began_at(self) -> int | None:
        """A commit-ts that the changefeed did not begin behind, of a partition that is read from its first message."""
        known = [each for each in (self.watermark, self.change_ts) if each is not None]
        return min(known, default=None)

    @property
    def complete_from(self) -> int | None:
        """The least commit-ts from which on all changes are known to be read, of a partition that has lost messages or
        is not read from its first one: what is above a watermark comes behind it."""
        return self.watermark if self.offset else None


def read_beginnings(source: KafkaSource, decode: Decode) -> list[Beginning]:
    """Of all partitions that have messages, for a feed of which nothing has landed. Raises as `read_topics` and
    `RangeReader.messages` do, `SourceUnreachableError`, and `SourceError` when a topic cannot be read."""
    client = Client.of(source)
    topics = read_topics(source, client)
    require_all(source, topics)
    pending = find_pending(source, topics, LandedOffsets())
    ranges = [
        OffsetRange(partition, start, min(end, start + _LOOKED_AT), _BYTES)
        for partition, (start, end) in pending.offsets.items()
        if end > start
    ]
    values: dict[Partition, list[tuple[bytes | None, bytes | None]]] = {}
    reader = RangeReader(client, ranges)
    for found in reader.messages():
        values.setdefault(found.range.partition, []).extend(zip(found.keys, found.values, strict=True))
    if unreachable := [fault for fault in reader.faults if isinstance(fault, SourceUnreachableError)]:
        raise unreachable[0]
    return beginnings_of({each.partition: each.start for each in ranges}, values, decode)


def beginnings_of(
    offsets: Mapping[Partition, int],
    values: Mapping[Partition, Iterable[tuple[bytes | None, bytes | None]]],
    decode: Decode,
) -> list[Beginning]:
    """By the first offsets, and the keys and values from there on."""
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
            continue  # It is told when it is decoded.
        for each in decoded if isinstance(decoded, list) else [decoded]:
            if isinstance(each, Message):
                yield each
