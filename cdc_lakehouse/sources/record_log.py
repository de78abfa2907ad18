"""A log of records, as the lake keeps it: topics with partitions, whose records have offsets. Values only.

Kafka's topics are such a log; a Canal server's destination is a topic with one partition, whose offsets count the
entries. A segment of such a log is a range of offsets of one partition. Offsets do not count messages: in Kafka,
transaction markers and aborted or compacted messages leave gaps."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from cdc_lakehouse.errors import SourceError

Headers = list[tuple[str, bytes | None]]


class LogPartition(NamedTuple):
    topic: str
    number: int

    @property
    def named(self) -> str:
        """The partition's name for use in a sentence."""
        return f"partition {self.number} of the topic {self.topic}"

    def __str__(self) -> str:
        return f"{self.topic}/{self.number}"


@dataclass(frozen=True, slots=True)
class OffsetRange:
    """Offsets of a partition from `start` on, before `end`; reading ends earlier where keys and values reach
    `max_bytes` bytes."""

    partition: LogPartition
    start: int
    end: int
    max_bytes: int

    def __len__(self) -> int:
        return self.end - self.start

    @property
    def segment(self) -> str:
        """The name of its segment, with as many digits as in Kafka's own files, so that names sort in order."""
        return f"{self.partition}/{self.start:020d}"


def parse_segment(name: str) -> tuple[LogPartition, int]:
    """Return the partition and first offset of the range with this name. Raises `ValueError` for another name."""
    topic, number, start = name.rsplit("/", 2)
    return LogPartition(topic, int(number)), int(start)


@dataclass(frozen=True, slots=True)
class Beginning:
    """The beginning of a partition: the offset from which it is read; a commit-ts (a TSO) that is not below the
    changefeed's start; and, for one that is not read from its first message, the least commit-ts from which on all
    changes are known to be read, as they come after a watermark. None for what the first messages do not show."""

    partition: LogPartition
    offset: int
    began_at: int | None
    complete_from: int | None


@dataclass(frozen=True, slots=True)
class LandedTopic:
    """What the lake has of a topic: for each partition everything before an offset. `record_bytes` is the average size
    of a record in its last batch, None before the first. `behind` are the partitions that the feed's last batch did not
    read up, each with its end as it was then, None where it could not be asked for."""

    id: str
    ends: Mapping[int, int]
    record_bytes: float | None = None
    behind: Mapping[int, int | None] = field(default_factory=dict[int, "int | None"])


_NOTHING: Final = LandedTopic("", {})


@dataclass(frozen=True, slots=True)
class LandedOffsets:
    """What the lake has of a feed's topics; `began` is false before the feed's first run."""

    topics: Mapping[str, LandedTopic] = field(default_factory=dict[str, LandedTopic])
    began: bool = False

    def end(self, partition: LogPartition) -> int | None:
        """Return the first offset of a partition that is not in the lake; None where it has nothing of it."""
        return self.topics.get(partition.topic, _NOTHING).ends.get(partition.number)

    def late_before(self, partition: LogPartition, end: int) -> int:
        """Return the offset before which messages of a partition with this end were waiting when the last batch landed;
        0 where it was read up, or was not there."""
        late = self.topics.get(partition.topic, _NOTHING).behind.get(partition.number, 0)
        return end if late is None else late

    def record_bytes(self, topic: str) -> float | None:
        """Return the average bytes of a record in the topic's last batch; None where the lake has nothing of it."""
        return self.topics.get(topic, _NOTHING).record_bytes


@dataclass(frozen=True, slots=True)
class Pending:
    """The offsets (from, before) to read of each partition, including those with nothing new. A partition that cannot
    be continued without a loss is in `faults` instead. `ids` are those of the topics."""

    offsets: Mapping[LogPartition, tuple[int, int]]
    ids: Mapping[str, str]
    faults: tuple[SourceError, ...]

    @property
    def records(self) -> int:
        """The number of new offsets: at least the number of new messages."""
        return sum(end - start for start, end in self.offsets.values())


class ByteColumn:
    """Values of bytes, one after the other: as thousands of objects they do not fit into the processor's cache."""

    def __init__(self, values: Iterable[bytes | None] = ()) -> None:
        self.content, self.lengths = bytearray(), list[int]()  # -1 for None.
        self.add([*values])

    def add(self, values: Sequence[bytes | None]) -> None:
        self.content += b"".join(filter(None, values))
        self.lengths += [-1 if value is None else len(value) for value in values]

    def __iter__(self) -> Iterator[bytes | None]:
        ends, whole = itertools.accumulate(max(0, length) for length in self.lengths), bytes(self.content)
        return (None if n < 0 else whole[end - n : end] for n, end in zip(self.lengths, ends, strict=True))


@dataclass(slots=True)
class Messages:
    """Messages of one range, in the order of their offsets. `timestamps` has for each the client's number of its type,
    and the milliseconds since 1970. `size` is the bytes of all keys and values."""

    range: OffsetRange
    offsets: list[int] = field(default_factory=list[int])
    timestamps: list[int] = field(default_factory=list[int])
    keys: ByteColumn = field(default_factory=ByteColumn)
    values: ByteColumn = field(default_factory=ByteColumn)
    headers: list[Headers | None] = field(default_factory=list["Headers | None"])
    size: int = 0
