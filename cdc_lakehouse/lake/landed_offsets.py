"""Up to which offsets the topics of a feed are in `records`, kept as properties of the table.

They are written by the commit that makes records visible, so there is no moment between the two; and they stay when
snapshots expire or files are rewritten. Read by PyIceberg, without a JVM."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from cdc_lakehouse.lake.catalog import Lake, machinery
from cdc_lakehouse.lake.names import Identifier
from cdc_lakehouse.sources.kafka import Landed, LandedTopic, Partition

RECORDS: Final = "records"

_TOPIC: Final = "cdc.landed."
_BATCH: Final = "cdc.batch"
_SEGMENTS: Final = "cdc.batch-segments"


@dataclass(frozen=True, slots=True)
class LandedSegment:
    """A range of offsets that is in `records`: those from `start` on, before `end`. `dates` are its feed dates."""

    segment: str
    partition: Partition
    start: int
    end: int
    records: int
    bytes: int
    dates: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class LandedBatch:
    """The last batch of records; its number is 0 before the first."""

    number: int
    segments: tuple[LandedSegment, ...]


def records_table(feed: str) -> Identifier:
    return machinery(feed, RECORDS)


def landed_offsets(lake: Lake, feed: str) -> Landed:
    """What is in the lake."""
    properties = _properties(lake, feed)
    topics: dict[str, LandedTopic] = {}
    for key, value in properties.items():
        if key.startswith(_TOPIC):
            told: dict[str, Any] = json.loads(value)
            ends = {int(number): end for number, end in told["ends"].items()}
            topics[key.removeprefix(_TOPIC)] = LandedTopic(told["id"], ends, told["bytes"])
    return Landed(topics, began=_BATCH in properties)


def last_batch(lake: Lake, feed: str) -> LandedBatch:
    """What a run after a crash asks: which batch is in, and what it holds."""
    properties = _properties(lake, feed)
    segments = [
        LandedSegment(segment, Partition(topic, number), start, end, records, size, tuple(dates))
        for segment, topic, number, start, end, records, size, dates in json.loads(properties.get(_SEGMENTS, "[]"))
    ]
    return LandedBatch(int(properties.get(_BATCH, "0")), tuple(segments))


def as_properties(landed: Landed, batch: LandedBatch) -> dict[str, str]:
    """What the two functions above read. One property a topic: some catalogs keep properties in a database, which has
    limits."""
    topics = {
        _TOPIC + name: json.dumps({"id": topic.id, "ends": dict(topic.ends), "bytes": topic.record_bytes})
        for name, topic in landed.topics.items()
    }
    segments = [
        [each.segment, *each.partition, each.start, each.end, each.records, each.bytes, each.dates]
        for each in batch.segments
    ]
    return {**topics, _BATCH: str(batch.number), _SEGMENTS: json.dumps(segments)}


def advanced(
    landed: Landed, ids: Mapping[str, str], ends: Mapping[Partition, int], segments: Sequence[LandedSegment]
) -> Landed:
    """What is in the lake once some segments are. `ends` are of all partitions that were looked at."""
    topics = dict(landed.topics)
    for topic in sorted({partition.topic for partition in ends}):
        known = topics.get(topic, LandedTopic("", {}))
        own = {partition.number: end for partition, end in ends.items() if partition.topic == topic}
        size = _record_bytes(each for each in segments if each.partition.topic == topic)
        topics[topic] = LandedTopic(
            ids.get(topic) or known.id, {**known.ends, **own}, known.record_bytes if size is None else size
        )
    return Landed(topics, began=True)


def _record_bytes(segments: Iterable[LandedSegment]) -> float | None:
    sizes = [(each.bytes, each.end - each.start) for each in segments]
    # A size for each offset: where there are holes, as much less.
    offsets = sum(count for _, count in sizes)
    return round(sum(size for size, _ in sizes) / offsets, 1) if offsets else None


def _properties(lake: Lake, feed: str) -> Mapping[str, str]:
    table = lake.load(records_table(feed))
    return {} if table is None else table.properties
