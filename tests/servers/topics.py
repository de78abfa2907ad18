"""A feed of topics in the shared lake, run as a pipeline runs it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from pyiceberg.table import Table

from cdc_lakehouse.errors import CdcError
from cdc_lakehouse.lake.catalog import Lake
from cdc_lakehouse.lake.tables.records import Appended, LandedBatch, Records, landed_state
from cdc_lakehouse.sources.kafka import KafkaClient, choose_ranges, find_pending, read_topics
from cdc_lakehouse.sources.record_log import OffsetRange, Pending
from tests.kit.kafka import with_timeout
from tests.kit.lakes import TestLake
from tests.servers.kafka import Broker, Sent

Row = dict[str, Any]


class TopicFeed:
    def __init__(
        self, new_lake: Callable[..., TestLake], broker: Broker, lake: dict[str, Any] | None = None, **source: Any
    ) -> None:
        """`lake` has what is other of the lake: `storage`, `warehouse`."""
        self.broker = broker
        named = {} if "topic_pattern" in source else {"topics": [broker.create()]}
        told = {"type": "kafka", "format": "canal-json", "bootstrap_servers": broker.bootstrap, **named, **source}
        self.lake = new_lake(source=told, **(lake or {}))
        self.source = self.lake.feed.kafka
        self.client = with_timeout(KafkaClient.of(self.source), 8)

    @property
    def topic(self) -> str:
        return (self.source.topics or ("",))[0]

    def configure(self, **source: Any) -> None:
        """Settings of the source that are other from now on."""
        self.source = self.source.model_copy(update=source)
        self.client = dataclasses.replace(self.client, settings=dict(self.source.kafka))

    def fresh(self) -> Lake:
        return Lake(self.lake.config.lake, self.lake.config.storage)

    def pending(self) -> Pending:
        topics = read_topics(self.source, self.client)
        return find_pending(self.source, topics, landed_state(self.fresh(), self.lake.name).landed)

    def choose(self, pending: Pending) -> Sequence[OffsetRange]:
        landed = landed_state(self.fresh(), self.lake.name).landed
        return choose_ranges(pending.offsets, landed, self.source.max_records, self.source.max_bytes)

    def append(self, pending: Pending, ranges: Sequence[OffsetRange] | None = None) -> Appended:
        lake = self.fresh()
        feed = self.lake.feed.model_copy(update={"source": self.source})
        records = Records(lake, feed, self.lake.session, self.client)
        ranges = self.choose(pending) if ranges is None else ranges
        return records.append(ranges, pending, landed_state(lake, self.lake.name).last.number + 1)

    def run(self) -> tuple[LandedBatch, tuple[CdcError, ...]]:
        pending = self.pending()
        done = self.append(pending)
        return done.batch, (*pending.faults, *done.faults)

    def drain(self) -> list[LandedBatch]:
        """Runs until nothing is new."""
        batches: list[LandedBatch] = []
        while True:
            batch, faults = self.run()
            assert not faults, faults
            if not batch.segments:
                return batches
            batches.append(batch)

    @property
    def table(self) -> Table:
        return self.fresh().catalog.load_table((f"cdc_{self.lake.name}", "records"))

    def files(self) -> set[str]:
        """The data files in the warehouse, whether a snapshot has them or not."""
        location = Path(self.table.location().removeprefix("file://"))
        return {f"file://{path}" for path in location.rglob("*.parquet")}

    def rows(self) -> list[Row]:
        found = self.lake.machinery("records")
        return sorted(found, key=lambda row: (row["topic"], row["partition"], row["offset"]))

    def values(self, partition: int = 0, topic: str | None = None) -> list[bytes | None]:
        """Of one partition, in the order of their offsets."""
        where = (topic or self.topic, partition)
        return [row["value"] for row in self.rows() if (row["topic"], row["partition"]) == where]

    def ends(self) -> dict[str, dict[int, int]]:
        """The offsets that are landed."""
        landed = landed_state(self.fresh(), self.lake.name).landed
        return {name: dict(topic.ends) for name, topic in landed.topics.items()}

    def send(self, *messages: Sent | bytes, **settings: Any) -> None:
        self.broker.send(self.topic, messages, **settings)


NewFeed = Callable[..., TopicFeed]


def numbered(count: int, first: int = 0) -> list[bytes]:
    """Values to send."""
    return [b"%d" % number for number in range(first, first + count)]
