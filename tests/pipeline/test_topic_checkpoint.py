"""How far topics may be applied: transactions of DTS whose end has not come wait, and nothing else does."""

from __future__ import annotations

from pathlib import Path

from cdc_lakehouse.changelog.positions import BEGINNING
from tests.decoders.topic_reading import Reading
from tests.kit.lakes import TestLake
from tests.pipeline import lake_in
from tests.servers.dts_source import DtsSource, row

COLUMNS = ("id", "name")


class Partitions:
    """Partitions of a topic, each with a source of its own that writes to it."""

    def __init__(self, directory: Path, count: int = 1) -> None:
        source = {"type": "kafka", "format": "dts-avro", "bootstrap_servers": "k:9092", "topics": ["t"]}
        self.lake: TestLake = lake_in(directory, source=source)
        self.sources = [DtsSource() for _ in range(count)]
        for each in self.sources:
            each.create("t", COLUMNS, told=False)
        self._reading = Reading("dts-avro")
        self._batch = 0
        self._ids = 0

    def insert(self, partition: int = 0) -> None:
        self._ids += 1
        self.sources[partition].insert("t", row(self._ids, COLUMNS))

    def transaction(self, partition: int = 0) -> None:
        self.sources[partition].begin()
        self.insert(partition)
        self.sources[partition].commit()

    def run(self) -> int:
        """The checkpoint after a batch with all that is there."""
        self._batch += 1
        values = [source.records for source in self.sources]
        self._reading.read(values, [len(each) for each in values])
        new = {place: summary for place, summary in self._reading.summaries.items() if place[2] == self._batch}
        self.lake.run().signals.write(self._batch, new)
        return self.lake.run().source.checkpoint_ts()

    @property
    def last(self) -> int:
        """The commit-ts of the last row or statement."""
        rows = [event["commit_ts"] for event in self._reading.events]
        found = self._reading.summaries.values()
        return max(rows + [each.commit_ts for summary in found for _, each in summary.statements])


def test_a_transaction_waits_for_its_end(tmp_path: Path) -> None:
    topic = Partitions(tmp_path)
    (source,) = topic.sources
    source.begin()
    topic.insert()
    # The first one, too.
    assert topic.run() == BEGINNING
    topic.insert()
    assert topic.run() == BEGINNING
    source.commit()
    whole = topic.run()
    assert whole == topic.last > BEGINNING
    source.begin()
    topic.insert()
    assert topic.run() == whole < topic.last
    source.begin()
    assert topic.run() == topic.last


def test_a_statement_ends_what_is_open_and_waits_for_nothing(tmp_path: Path) -> None:
    topic = Partitions(tmp_path)
    (source,) = topic.sources
    topic.transaction()
    whole = topic.run()
    source.statement("ALTER TABLE t COMMENT 'x'", "t")
    assert topic.run() == topic.last > whole


def test_a_partition_that_stands_still_holds_up_no_other(tmp_path: Path) -> None:
    topic = Partitions(tmp_path, count=2)
    for partition in (0, 1):
        topic.transaction(partition)
    topic.run()
    topic.sources[0].beside()
    topic.transaction(1)
    assert topic.run() == topic.last
    topic.sources[0].beside()
    assert topic.run() == topic.last


def test_where_nothing_tells_transactions_apart_all_is_applied(tmp_path: Path) -> None:
    topic = Partitions(tmp_path)
    topic.insert()
    assert topic.run() == topic.last
    topic.sources[0].statement("ALTER TABLE t COMMENT 'x'", "t")
    topic.insert()
    assert topic.run() == topic.last
