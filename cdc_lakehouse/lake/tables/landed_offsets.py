"""The offsets up to which a feed's topics have landed in `records`, kept as properties of the table.

The commit that lands records writes them, so both are always consistent; and they stay when snapshots expire or files
are rewritten. PyIceberg reads them, without a JVM."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from pyiceberg.table import Table

from cdc_lakehouse.lake.catalog import Lake, system_table
from cdc_lakehouse.lake.names import BATCH, BATCH_SEGMENTS, LANDED, Identifier
from cdc_lakehouse.sources.record_log import LandedOffsets, LandedTopic, LogPartition, Pending


@dataclass(frozen=True, slots=True)
class LandedSegment:
    """A range of offsets that is in `records`: from `start` to before `end`. `dates` are its feed dates."""

    segment: str
    partition: LogPartition
    start: int
    end: int
    records: int
    bytes: int
    dates: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class LandedBatch:
    """A batch of records; the number is 0 before the first."""

    number: int
    segments: tuple[LandedSegment, ...]


@dataclass(frozen=True, slots=True)
class LandedState:
    """The state of `records`: the landed offsets and the last batch."""

    landed: LandedOffsets = field(default_factory=LandedOffsets)
    last: LandedBatch = LandedBatch(0, ())

    def after(self, pending: Pending, batch: LandedBatch | None) -> LandedState:
        """Return the state after a batch of the pending offsets has landed; without a batch, after the feed has only
        looked."""
        segments = () if batch is None else batch.segments
        ends = {partition: start for partition, (start, _) in pending.offsets.items()}
        ends |= {segment.partition: segment.end for segment in segments}
        topics = dict(self.landed.topics)
        for name in sorted({partition.topic for partition in ends}):
            known = topics.get(name, LandedTopic("", {}))
            own = {partition.number: end for partition, end in ends.items() if partition.topic == name}
            size = _record_bytes(segment for segment in segments if segment.partition.topic == name)
            topics[name] = replace(
                known,
                id=pending.ids.get(name) or known.id,
                ends={**known.ends, **own},
                record_bytes=known.record_bytes if size is None else size,
            )
        return LandedState(LandedOffsets(topics, began=True), batch or self.last)

    def as_properties(self) -> dict[str, str]:
        """Return the state as table properties, which `state_of` reads. Each topic has its own property, because some
        catalogs keep properties in a database with size limits."""
        topics = {
            LANDED + name: json.dumps({"id": topic.id, "ends": dict(topic.ends), "bytes": topic.record_bytes})
            for name, topic in self.landed.topics.items()
        }
        segments = [
            [each.segment, *each.partition, each.start, each.end, each.records, each.bytes, each.dates]
            for each in self.last.segments
        ]
        return {**topics, BATCH: str(self.last.number), BATCH_SEGMENTS: json.dumps(segments)}


def state_of(table: Table | None) -> LandedState:
    properties: Mapping[str, str] = {} if table is None else table.properties
    topics: dict[str, LandedTopic] = {}
    for key, value in properties.items():
        if key.startswith(LANDED):
            stored: dict[str, Any] = json.loads(value)
            ends = {int(number): end for number, end in stored["ends"].items()}
            topics[key.removeprefix(LANDED)] = LandedTopic(stored["id"], ends, stored["bytes"])
    segments = [
        LandedSegment(segment, LogPartition(topic, number), start, end, records, size, tuple(dates))
        for segment, topic, number, start, end, records, size, dates in json.loads(properties.get(BATCH_SEGMENTS, "[]"))
    ]
    last = LandedBatch(int(properties.get(BATCH, "0")), tuple(segments))
    return LandedState(LandedOffsets(topics, began=BATCH in properties), last)


def records_table(feed: str) -> Identifier:
    return system_table(feed, "records")


def landed_state(lake: Lake, feed: str) -> LandedState:
    """Return what has landed in the lake, for a run that looks for new records. After a crash, nothing else may know of
    the last batch yet."""
    return state_of(lake.load(records_table(feed)))


def landed_offsets(lake: Lake, feed: str) -> LandedOffsets:
    """Return the landed offsets, for a sensor and for the checkpoint."""
    return landed_state(lake, feed).landed


def last_batch(lake: Lake, feed: str) -> LandedBatch:
    """Return the batch that landed last."""
    return landed_state(lake, feed).last


def _record_bytes(segments: Iterable[LandedSegment]) -> float | None:
    sizes = [(segment.bytes, segment.end - segment.start) for segment in segments]
    # Per offset: missing offsets lower it accordingly.
    offsets = sum(count for _, count in sizes)
    return round(sum(size for size, _ in sizes) / offsets, 1) if offsets else None
