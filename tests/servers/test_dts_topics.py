"""DTS's records in Avro through a real broker: tables are what the source's are, whatever is killed or sent again."""

from __future__ import annotations

import copy
import datetime
import decimal
from collections.abc import Callable
from typing import Any

import pytest

from cdc_lakehouse.pipeline.steps import Steps
from tests.decoders.messages.dts_records import body, row_body, sdk_records
from tests.kit.kills import kill_further_and_further
from tests.kit.lakes import TestLake, run_all
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


def test_a_kill_after_any_commit_and_what_is_sent_again_change_nothing(dts_feed: Callable[..., DtsFeed]) -> None:
    source = DtsSource()
    feed = dts_feed(source)
    source.create("t", SOME)
    transaction(source, lambda: source.insert("t", *(row(n, SOME) for n in range(1, 6))))
    transaction(source, lambda: source.update("t", 1, row(11, SOME, id=1)), lambda: source.delete("t", 2))
    feed.send()
    feed.run()
    source.rotate()
    source.statement("ALTER TABLE `t` ADD COLUMN `tiny` TINYINT NOT NULL DEFAULT 5", "t")
    source.tables["t"].columns.append("tiny")
    for each in source.tables["t"].rows.values():
        each["tiny"] = 5
    wide = (*SOME, "tiny")
    transaction(
        source,
        lambda: source.insert("t", row(7, wide), row(8, wide)),
        lambda: source.update("t", 1, row(21, wide, id=1)),
        lambda: source.delete("t", 8),
    )
    # From the first record on: its CREATE and the rows as they were then, too.
    feed.send(back_to=0)
    kill_further_and_further(feed.lake, feed.run)
    assert not feed.run().applied.held
    feed.check()
    events = [(event["op"], event["after"], event["before"]) for event in feed.lake.machinery("events")]
    assert len(events) == 7 + 4


SDK_ROW: dict[str, Any] = {
    "id": decimal.Decimal((1 << 64) - 1), "c_tiny": -128, "c_small": 65535, "c_int": -2147483648, "c_med": 16777215,
    "c_bit": decimal.Decimal(5), "c_bool": 1, "c_dec": decimal.Decimal("-1234567890123456789012345678.0123456789"),
    "c_float": 1.5, "c_double": 3.141592653589793, "c_varchar": "vär 中文 😀", "c_char": "café", "c_gbk": "中文",
    "c_empty": "", "c_binary": b"\0\xff", "c_ts": datetime.datetime(2024, 11, 21, 2, 40, 0, 123456, datetime.UTC),
    "c_ts0": None, "c_datetime": datetime.datetime.fromisoformat("2024-02-29 12:34:56.789012"), "c_dt0": None,
    "c_date": datetime.date(1000, 1, 1), "c_time": "838:59:59", "c_negtime": "-12:34:56.500000", "c_year": 2155,
    "c_tstz": datetime.datetime(2024, 2, 29, 4, 34, 56, 1, datetime.UTC),
    "c_geom": "\1\1\0\0\0\0\0\0\0\0\0\xf0\x3f\0\0\0\0\0\0\0\x40", "c_wkt": "POINT(1 2)", "c_blob": bytes(range(256)),
    "c_blob0": b"", "c_json": '{"a":[1,null,"中"]}', "c_enum": "a", "c_set": "x,y", "c_null": None,
}  # fmt: skip
SDK_NULLS = {**dict.fromkeys(SDK_ROW), "id": decimal.Decimal(2)}


def test_every_record_of_the_sdk(kafka: Broker, new_lake: Callable[..., TestLake]) -> None:
    topic = kafka.create()
    source = {"type": "kafka", "format": "dts-avro", "bootstrap_servers": kafka.bootstrap, "topics": [topic]}
    lake = new_lake(source=source, start_date="2020-01-01")
    records = [value for value, _ in sdk_records()]

    def run(*values: bytes) -> set[str]:
        kafka.send(topic, [Sent(value) for value in values])
        done = run_all(lake.run())
        return {id.rpartition("#")[0] for id in done.applied.held}

    def rows(table: str) -> list[dict[str, Any]]:
        arrow = lake.tables()["cdc", table].scan().to_arrow().drop_columns(["_commit_ts"])
        return sorted(arrow.to_pylist(), key=lambda row: row["id"])

    def commit(number: int) -> bytes:
        return body(operation="COMMIT", sourcePosition=f"5@{number}", sourceTimestamp=1_732_156_802)

    # Zero dates are NULL by policy.
    assert run(*records[:3], commit(1002)) == set()
    assert rows("t_all") == [SDK_NULLS, SDK_ROW]
    assert run(records[3], commit(1003)) == set()
    updated = {**SDK_ROW, "c_int": 2147483647, "c_varchar": None, "c_null": "was null"}
    assert rows("t_all") == [SDK_NULLS, updated]
    # Up to the ALTER, which ends what is open. Two tables have no key.
    assert run(*records[4:12]) == {"cdc.no_pk", "cdc.no_tags"}
    assert rows("t_all") == [{**SDK_NULLS, "c_new": 7}]
    small = {"id": SDK_ROW["id"], "c_tiny": -128}
    assert rows("t3") == [{"id": 9, "c_tiny": 1}]
    assert rows("we.ird") == [small]
    assert rows("t_empty") == [{"id": SDK_ROW["id"], "c_enull": None}]
    # A record that cannot be used holds the table that it names, and no other.
    bad = row_body([("id", 8, None)], objectName="cdc.we\\u002Eird", source={"sourceType": "Oracle", "version": "1"})
    assert run(*records[12:], bad) == {"cdc.no_pk", "cdc.no_tags", "cdc.we.ird"}
    assert rows("t_all") == [] and rows("we.ird") == [small]
    (row,) = lake.machinery("quarantine")
    assert (row["error_class"], row["database"], row["table"]) == ("BadMessage", "cdc", "we.ird")
