"""Where topics begin and end, and which of their messages a run takes: values and functions only.

A segment of a topic is a range of offsets of one partition. Offsets are not a count of messages: markers of
transactions, aborted messages and compacted ones leave holes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple


class Partition(NamedTuple):
    topic: str
    number: int

    @property
    def named(self) -> str:
        """For people."""
        return f"partition {self.number} of the topic {self.topic}"

    def __str__(self) -> str:
        return f"{self.topic}/{self.number}"


@dataclass(frozen=True, slots=True)
class Bounds:
    """Offsets that can be read: from `low` on, before `end`. Beyond it are messages of open transactions."""

    low: int
    end: int


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic as the brokers have it. `id` differs between topics that had one name one after the other; it is empty
    with brokers that know none (before Kafka 2.8)."""

    name: str
    id: str
    partitions: Mapping[int, Bounds]


@dataclass(frozen=True, slots=True)
class OffsetRange:
    """Offsets of a partition from `start` on, before `end`; what is read ends before that where keys and values come
    to `max_bytes`."""

    partition: Partition
    start: int
    end: int
    max_bytes: int

    def __len__(self) -> int:
        return self.end - self.start

    @property
    def segment(self) -> str:
        """Its name: the first offset has as many digits as in Kafka's own files, so that names are in order."""
        return f"{self.partition}/{self.start:020d}"


def parse_segment(name: str) -> tuple[Partition, int]:
    """The partition and first offset of the range that has this name."""
    topic, number, start = name.rsplit("/", 2)
    return Partition(topic, int(number)), int(start)


@dataclass(frozen=True, slots=True)
class LandedTopic:
    """What is in the lake of a topic: of each partition all before an offset. `record_bytes` is the size of a record
    of its last batch, None before the first."""

    id: str
    ends: Mapping[int, int]
    record_bytes: float | None = None


@dataclass(frozen=True, slots=True)
class Landed:
    """What is in the lake of a feed; `began` is false before its first run."""

    topics: Mapping[str, LandedTopic] = field(default_factory=dict[str, LandedTopic])
    began: bool = False

    def end(self, partition: Partition) -> int | None:
        topic = self.topics.get(partition.topic)
        return None if topic is None else topic.ends.get(partition.number)

    def record_bytes(self, topic: str) -> float | None:
        known = self.topics.get(topic)
        return None if known is None else known.record_bytes
