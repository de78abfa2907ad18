"""DTS's records in Avro through a real broker: tables are what the source's are, whatever is killed or sent again."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest

from cdc_lakehouse.pipeline.steps import Steps, run_all
from tests.lakes import TestLake
from tests.servers.dts_source import KINDS, DtsSource, check, row
from tests.servers.kafka import Broker, Sent

pytestmark = [pytest.mark.spark, pytest.mark.server]

ALL = tuple(KINDS)
SOME = ("id", "name", "price", "body")


class DtsFeed:
    """A topic of one partition with what a source has done, as far as it was sent."""

    def __init__(self, broker: Broker, new_lake: Callable[..., TestLake], source: DtsSource, **feed: Any) -> None:
        self.source = source
        self._broker = broker
        self._topic = broker.create()
        self._sent = 0
        kafka = {"type": "kafka", "format": "dts-avro", "bootstrap_servers": broker.bootstrap, "topics": [self._topic]}
        self.lake = new_lake(source=kafka, start_date="2020-01-01", **feed)

    def send(self, *, back_to: int | None = None) -> None:
        """What is new; or, as a task does that starts again, what was sent before as well."""
        first = self._sent if back_to is None else back_to
        self._broker.send(self._topic, [Sent(value) for value in self.source.records[first:]])
        self._sent = len(self.source.records)

    def run(self) -> Steps:
        return run_all(self.lake.run())

    def check(self) -> None:
        check(self.lake.tables(), self.source.tables)


@pytest.fixture
def dts_feed(kafka: Broker, new_lake: Callable[..., TestLake]) -> Callable[..., DtsFeed]:
    return lambda source, **feed: DtsFeed(kafka, new_lake, source, **feed)


def transaction(source: DtsSource, *work: Callable[[], None]) -> None:
    source.begin()
    for each in work:
        each()
    source.commit()
    source.beside()


@pytest.mark.parametrize("born", [None, 1_732_156_800_789], ids=["SDK 2.0.0", "with bornTimestamp"])
def test_tables_are_the_sources(born: int | None, dts_feed: Callable[..., DtsFeed]) -> None:
    source = DtsSource(born=born)
    feed = dts_feed(source)
    # A transaction whose end is not there is not applied, the first one neither.
    source.begin()
    source.create("all_kinds", ALL)
    source.begin()
    source.insert("all_kinds", *(row(n, ALL) for n in range(8)))
    feed.send()
    assert not feed.run().applied.held
    assert [table.scan().to_arrow().num_rows for table in feed.lake.tables().values()] == [0]
    source.commit()
    # Of a table that no statement makes, a column whose values are NULL at first.
    source.create("older", SOME, told=False)
    transaction(source, lambda: source.insert("older", {**row(1, SOME), "price": None, "body": None}))
    feed.send()
    assert not feed.run().applied.held
    done = feed.lake.tables()
    assert done["shop", "all_kinds"].scan().to_arrow().num_rows == 8
    source.rotate()
    transaction(
        source,
        lambda: source.update("all_kinds", 3, row(33, ALL, id=3)),
        lambda: source.update("all_kinds", 4, row(44, ALL, id=444)),
        lambda: source.delete("all_kinds", 5),
        lambda: source.insert("older", row(2, SOME), row(3, SOME)),
    )
    whole = copy.deepcopy(source.tables)
    source.begin()
    source.insert("older", row(4, SOME))
    source.delete("all_kinds", 1)
    feed.send()
    assert not feed.run().applied.held
    check(feed.lake.tables(), whole)
    before = feed.lake.metadata()
    feed.run()
    assert feed.lake.metadata() == before
    source.commit()
    feed.send()
    assert not feed.run().applied.held
    feed.check()
