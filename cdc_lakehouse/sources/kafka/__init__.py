"""Topics of Apache Kafka: which there are, what is new in them, and their messages as they are.

Nothing is committed to the brokers and no group is joined: how far a feed has read is in the lake. Aborted messages
are never seen."""

from cdc_lakehouse.sources.kafka.client import Client
from cdc_lakehouse.sources.kafka.ranges import choose_ranges, split_ranges, useful_task_count
from cdc_lakehouse.sources.kafka.reading import RangeReader
from cdc_lakehouse.sources.kafka.topics import Bounds, Topic, find_pending, read_topics, require_all

__all__ = [
    "Bounds", "Client", "RangeReader", "Topic", "choose_ranges", "find_pending", "read_topics", "require_all",
    "split_ranges", "useful_task_count",
]  # fmt: skip
