"""A log of records, as the lake keeps it: topics with partitions, whose records have offsets. Values only.

Topics of Kafka are one; a Canal server's destination is a topic with one partition, whose offsets count the entries. A
segment of such a log is a range of offsets of one partition. Offsets are not a count of messages: in Kafka markers of
transactions, aborted messages and compacted ones leave holes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from cdc_lakehouse.errors import SourceError

Headers = list[tuple[str, bytes | None]]


class LogPartition(NamedTuple):
    """One partition of a topic."""

    topic: str
    number: int

    @property
    def named(self) -> str:
        """As a sentence names it."""
        return f"partition {self.number} of the topic {self.topic}"

    def __str__(self) -> str:
        return f"{self.topic}/{self.number}"


@dataclass(frozen=True, slots=True)
class OffsetRange:
    """Offsets of a partition from `start` on, before `end`; what is read ends before that where keys and values come
    to `max_bytes`."""

    partition: LogPartition
    start: int
    end: int
    max_bytes: int

    def __len__(self) -> int:
        return self.end - self.start

    @property
    def segment(self) -> str:
        """Its name: the first offset has as many digits as in Kafka's own files, so that names are in order."""
        return f"{self.partition}/{self.start:020d}"


def parse_segment(name: str) -> tuple[LogPartition, int]:
    """The partition and first offset of the range that has this name. Raises `ValueError` for another name."""
    topic, number, start = name.rsplit("/", 2)
    return LogPartition(topic, int(number)), int(start)


@dataclass(frozen=True, slots=True)
class LandedTopic:
    """What is in the lake of a topic: of each partition all before an offset. `record_bytes` is the size of a record
    of its last batch, None before the first."""

    id: str
    ends: Mapping[int, int]
    record_bytes: float | None = None


@dataclass(frozen=True, slots=True)
class LandedOffsets:
    """What is in the lake of a feed; `began` is false before its first run."""

    topics: Mapping[str, LandedTopic] = field(default_factory=dict[str, LandedTopic])
    began: bool = False

    def end(self, partition: LogPartition) -> int | None:
        """The first offset of a partition that is not in the lake; None where nothing of it is."""
        topic = self.topics.get(partition.topic)
        return None if topic is None else topic.ends.get(partition.number)

    def record_bytes(self, topic: str) -> float | None:
        """Bytes of a record of the topic, on average in its last batch; None where nothing of it is in the lake."""
        known = self.topics.get(topic)
        return None if known is None else known.record_bytes


@dataclass(frozen=True, slots=True)
class Pending:
    """From where to where each partition is to be read, also those with nothing new. A partition that cannot be read
    on without a loss is in `faults` instead, and the others go on.

    `ids` are those of the topics."""

    offsets: Mapping[LogPartition, tuple[int, int]]
    ids: Mapping[str, str]
    faults: tuple[SourceError, ...]

    @property
    def records(self) -> int:
        """New offsets: at least as many as new messages."""
        return sum(end - start for start, end in self.offsets.values())


@dataclass(slots=True)
class Messages:
    """Messages of one range, in the order of their offsets, column by column. A timestamp is (type, milliseconds since
    1970 UTC), with the client's numbers of types. `size` is the bytes of all keys and values."""

    range: OffsetRange
    offsets: list[int] = field(default_factory=list[int])
    timestamps: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])
    keys: list[bytes | None] = field(default_factory=list["bytes | None"])
    values: list[bytes | None] = field(default_factory=list["bytes | None"])
    headers: list[Headers | None] = field(default_factory=list["Headers | None"])
    size: int = 0
