"""Topics of Apache Kafka: which there are, what is new in them, and their messages as they are.

Nothing is committed to the brokers and no group is joined: how far a feed has read is in the lake. Aborted messages
are never seen."""

from cdc_lakehouse.sources.kafka.client import Client
from cdc_lakehouse.sources.kafka.offsets import (
    Bounds,
    Landed,
    LandedTopic,
    OffsetRange,
    Partition,
    Topic,
    parse_segment,
)
from cdc_lakehouse.sources.kafka.pending import Pending, find_pending
from cdc_lakehouse.sources.kafka.ranges import choose_ranges, split_ranges, worth_tasks
from cdc_lakehouse.sources.kafka.reading import Headers, Messages, RangeReader
from cdc_lakehouse.sources.kafka.topics import read_topics

__all__ = [
    "Bounds", "Client", "Headers", "Landed", "LandedTopic", "Messages", "OffsetRange", "Partition", "Pending",
    "RangeReader", "Topic", "choose_ranges", "find_pending", "parse_segment", "read_topics", "split_ranges",
    "worth_tasks",
]  # fmt: skip
