"""What there is to land: topics as they are against what is in the lake."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from cdc_lakehouse.config import KafkaSource
from cdc_lakehouse.errors import SourceError
from cdc_lakehouse.sources.kafka.offsets import Bounds, Landed, Partition, Topic


@dataclass(frozen=True, slots=True)
class Pending:
    """From where to where each partition is to be read, also those with nothing new. A partition that cannot be read
    on without a loss is not among them, but told in `faults`: the others go on.

    `ids` are those of the topics."""

    offsets: Mapping[Partition, tuple[int, int]]
    ids: Mapping[str, str]
    faults: tuple[SourceError, ...]

    @property
    def records(self) -> int:
        """New offsets: at least as many as new messages."""
        return sum(end - start for start, end in self.offsets.values())


def find_pending(source: KafkaSource, topics: Sequence[Topic], landed: Landed) -> Pending:
    """`topics` are all that `read_topics` found."""
    offsets: dict[Partition, tuple[int, int]] = {}
    faults: list[SourceError] = list(_vanished(source, topics, landed))
    for topic in topics:
        known = landed.topics.get(topic.name)
        if known is not None and topic.id and known.id and topic.id != known.id:
            faults.append(_recreated(topic))
            continue
        if source.format == "ticdc-canal-json" and not source.has_watermarks and len(topic.partitions) > 1:
            faults.append(_without_order(topic))
            continue
        for number, bounds in sorted(topic.partitions.items()):
            partition = Partition(topic.name, number)
            try:
                offsets[partition] = _start(source, partition, bounds, landed), bounds.end
            except SourceError as error:
                faults.append(error)
    return Pending(offsets, {topic.name: topic.id for topic in topics}, tuple(faults))


def _start(source: KafkaSource, partition: Partition, bounds: Bounds, landed: Landed) -> int:
    start, end = source.start, landed.end(partition)
    chosen = start.get(partition.topic, {}).get(partition.number) if isinstance(start, dict) else None
    if end is None:
        if chosen is None:
            # What comes up later is new as a whole, wherever the feed began.
            return bounds.end if start == "latest" and not landed.began else bounds.low
        if not bounds.low <= chosen <= bounds.end:
            raise SourceError(
                f"{partition.named} has no offset {chosen}: it holds those from {bounds.low} on, before {bounds.end}",
                advice="correct source.start",
            )
        return chosen
    if end < bounds.low:
        if chosen is not None and bounds.low <= chosen <= bounds.end:
            return chosen  # The loss is known to whoever wrote this.
        raise gone(partition, end, bounds.low)
    if end > bounds.end:
        raise shortened(partition, end, bounds.end)
    return end


def gone(partition: Partition, wanted: int, low: int) -> SourceError:
    """The error when messages were removed before they were read."""
    return SourceError(
        f"{partition.named} has lost the offsets from {wanted} on, before {low}, by retention or by deletion: they "
        "were not read yet",
        advice=f"restore them, or go on without them by source.start {{{partition.topic}: {{{partition.number}: "
        f"{low}}}}}; then raise the topic's retention, or run more often",
    )


def shortened(partition: Partition, wanted: int, end: int) -> SourceError:
    """The error when a log ends before what was read of it."""
    return SourceError(
        f"{partition.named} ends at offset {end}, though it was read up to {wanted}: it was cut off, or the topic "
        "was deleted and made again",
        advice="restore it; a topic that was made again is read under another name, or by a new feed",
    )


def _recreated(topic: Topic) -> SourceError:
    return SourceError(
        f"the topic {topic.name} was deleted and made again: its offsets begin anew, and what was not read of the "
        "earlier one is lost",
        advice="give the new one another name, or read it by a new feed",
    )


def _without_order(topic: Topic) -> SourceError:
    return SourceError(
        f"the topic {topic.name} has {len(topic.partitions)} partitions, and without TiDB's extension its messages "
        "have no commit-ts: nothing tells the order of rows and statements of different partitions",
        advice="set enable-tidb-extension=true in the changefeed's sink URI and take tidb_extension: false out of the "
        "feed's source; or send to a topic with one partition",
    )


def _vanished(source: KafkaSource, topics: Iterable[Topic], landed: Landed) -> Iterator[SourceError]:
    there = {topic.name for topic in topics}
    for name in sorted(landed.topics):
        if name not in there and source.takes(name):
            yield SourceError(
                f"the topic {name} is not there any more: what was not read of it is lost",
                advice="restore it, or change source.topic_pattern so that it does not match",
            )
