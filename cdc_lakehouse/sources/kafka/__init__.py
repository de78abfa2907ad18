"""Topics of Apache Kafka: listing them, finding what is new in them, and reading their messages unchanged.

Nothing is committed to the brokers and no group is joined: the offsets that a feed has read are in the lake. Messages
of aborted transactions are never seen."""

from cdc_lakehouse.sources.kafka.client import Bounds, KafkaClient, Topic, find_pending, read_topics, require_all
from cdc_lakehouse.sources.kafka.reading import RangeReader, choose_ranges, split_ranges, useful_task_count

__all__ = [
    "Bounds", "KafkaClient", "RangeReader", "Topic", "choose_ranges", "find_pending", "read_topics", "require_all",
    "split_ranges", "useful_task_count",
]  # fmt: skip
