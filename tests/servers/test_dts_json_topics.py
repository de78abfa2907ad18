"""DTS's two formats in JSON through a real broker: Canal JSON before and after 2022-03-20, and Shareplex JSON."""

from __future__ import annotations

import decimal
import json
from collections.abc import Callable
from typing import Any

import pytest

from cdc_lakehouse.assets.checks import build_checks
from cdc_lakehouse.pipeline.steps import Steps
from tests.kit.kills import kill_further_and_further
from tests.kit.lakes import TestLake, run_all
from tests.servers.kafka import Broker, Sent

pytestmark = [pytest.mark.spark, pytest.mark.server]

Rows = dict[int, dict[str, Any]]


class JsonFeed:
    def __init__(self, broker: Broker, new_lake: Callable[..., TestLake], format_name: str, **feed: Any) -> None:
        self._broker = broker
        self.topic = broker.create()
        self.source = {
            "type": "kafka", "format": format_name, "bootstrap_servers": broker.bootstrap, "topics": [self.topic],
        }  # fmt: skip
        self.new_lake = new_lake
        self.feed = feed
        self.lake = new_lake(source=self.source, start_date="2020-01-01", **feed)

    def send(self, *messages: dict[str, Any]) -> None:
        self._broker.send(self.topic, [Sent(json.dumps(each, ensure_ascii=False).encode()) for each in messages])

    def run(self, **options: Any) -> Steps:
        return run_all(self.lake.run(**options))

    def rows(self, table: str, key: str = "id") -> Rows:
        (found,) = [each for (_, name), each in self.lake.tables().items() if name == table]
        arrow = found.scan().to_arrow().drop_columns(["_commit_ts"])
        return {row[key]: row for row in arrow.to_pylist()}


# Canal JSON.

TYPES = {"id": "bigint", "v": "varchar", "state": "enum", "tags": "set", "price": "decimal"}


def canal(type: str, table: str = "t", **values: Any) -> dict[str, Any]:
    """A message as the documentation shows it: what is null is left out."""
    return {
        "database": "shop", "table": table, "es": 1_722_510_001_000, "ts": 1_722_510_001_250, "id": 7, "isDdl": False,
        "mysqlType": TYPES, "pkNames": ["id"], "sql": "", "type": type, **values,
    }  # fmt: skip


def ddl(sql: str) -> dict[str, Any]:
    plain = canal("DDL", isDdl=True, sql=sql)
    return {name: plain[name] for name in ("database", "es", "id", "isDdl", "sql", "table", "ts", "type")}


def text(id: int, v: str | None, **more: str | None) -> dict[str, str | None]:
    return {"id": str(id), "v": v, "state": "paid", "tags": "a,c", "price": "1.50", **more}


CREATE = ddl(
    "CREATE TABLE t (id BIGINT PRIMARY KEY, v VARCHAR(9), state ENUM('new','paid','2') NOT NULL,"
    " tags SET('a','b','c'), price DECIMAL(10,2))"
)


def canal_messages() -> list[dict[str, Any]]:
    """As tasks of before 2022-03-20 write them: rows have all columns in both images, and old and new are exchanged."""

    def update(old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
        return canal("UPDATE", data=[old], old=[new])

    def delete(*rows: dict[str, Any]) -> dict[str, Any]:
        return canal("DELETE", old=list(rows))

    return [
        CREATE,
        canal("INIT", data=[text(1, "one"), text(2, None), text(3, "three")]),
        # Numbers as Canal writes them: 1 is `new`, 3 is `2`; 6 is b and c. And 2 is a label.
        canal("INSERT", data=[text(4, "four", state="1", tags="6"), text(5, "five", state="2", tags="")]),
        canal("INSERT", data=[text(6, "six", state="3", tags="0"), text(7, "seven", state="new", tags="b")]),
        update(text(1, "one"), text(1, "uno", price="0.10")),
        update(text(2, None), text(22, "two")),
        delete(text(3, "three")),
        ddl("ALTER TABLE t ADD COLUMN w INT DEFAULT 8"),
        canal("INSERT", data=[text(9, "nine", w="-1")], mysqlType={**TYPES, "w": "int"}),
    ]


def _row(id: int, v: str | None, state: str, tags: str, price: str = "1.50", w: int = 8) -> dict[str, Any]:
    return {"id": id, "v": v, "state": state, "tags": tags, "price": decimal.Decimal(price), "w": w}


CANAL_ROWS = {
    row["id"]: row
    for row in (
        _row(1, "uno", "paid", "a,c", "0.10"), _row(22, "two", "paid", "a,c"), _row(4, "four", "new", "b,c"),
        _row(5, "five", "2", ""), _row(6, "six", "2", ""), _row(7, "seven", "new", "b"),
        _row(9, "nine", "paid", "a,c", w=-1),
    )
}  # fmt: skip


def option_check(lake: TestLake) -> Any:
    (found,) = [
        each for each in build_checks(lake.lake, lake.feed, []) if "options_agree" in {k.name for k in each.check_keys}
    ]
    return found()


def test_the_wrong_option_fails_a_check_until_it_is_mended(
    kafka: Broker, new_lake: Callable[..., TestLake], monkeypatch: pytest.MonkeyPatch
) -> None:
    feed = JsonFeed(kafka, new_lake, "dts-canal-json")
    feed.send(*canal_messages())
    feed.run()
    assert feed.rows("t")[1]["v"] == "one", "the update was undone, which nothing but the check can tell"
    result = option_check(feed.lake)
    assert not result.passed and "set before_2022_03_20" in result.description
    assert result.metadata["messages"].value == 1 and f"{feed.topic} partition 0 from offset 6" in str(
        result.metadata["where"].value
    )
    # The configuration is mended, and the dates are run again.
    source = feed.lake.feed.kafka.model_copy(update={"before_2022_03_20": True})
    mended = feed.lake.feed.model_copy(update={"source": source})
    monkeypatch.setattr(TestLake, "feed", property(lambda _: mended))
    assert not option_check(feed.lake).passed
    dates = frozenset(row["feed_date"] for row in feed.lake.machinery("records"))
    assert not feed.run(dates=dates).applied.held
    assert option_check(feed.lake).passed
    assert feed.rows("t") == CANAL_ROWS


# Shareplex JSON.

ITEMS = {"ID": "bigint", "V": "varchar(20)", "PRICE": "decimal(10,2)", "GONE": "int"}
SETTINGS = {"settings": {"BIZ.ITEMS": {"primary_key": ["ID"], "columns": ITEMS}}}


class Shareplex:
    """Operations, with an scn for each transaction."""

    def __init__(self) -> None:
        self._scn = 70_200_300_400
        self._seq = 0

    def begin(self) -> None:
        self._scn += 7
        self._seq = 0

    def __call__(self, op: str, table: str = "BIZ.ITEMS", **images: Any) -> dict[str, Any]:
        self._seq += 1
        meta = {
            "time": "2024-08-01T11:00:01", "userid": 12, "op": op, "scn": str(self._scn), "rowid": "AAAAaBAACAAADeFAAG",
            "trans": "3.1.2048", "seq": self._seq, "size": 6, "table": table, "idx": f"{self._seq}/6",
            "posttime": "2024-08-01T11:00:05",
        }  # fmt: skip
        return {"meta": meta, **images}


def item(id: int, **more: str | None) -> dict[str, str | None]:
    return {"ID": str(id), "V": f"v{id}", "PRICE": "1.50", "GONE": "0", **more}


def test_shareplex_becomes_tables_whatever_is_killed(kafka: Broker, new_lake: Callable[..., TestLake]) -> None:
    feed = JsonFeed(kafka, new_lake, "shareplex-json", tables=SETTINGS)
    op = Shareplex()
    first = [
        op("ins", data=item(1)),
        op("ins", data=item(2)),
        op("ins", data=item(3)),
        op("ins", data=item(4)),
        op("ins", "BIZ.NO_KEY", data={"A": "1"}),
    ]
    op.begin()
    first += [
        op("upd", data={"V": "new"}, key={"ID": "1", "V": "v1", "PRICE": None}),
        op("del", data=item(2)),
        op("UPDATE BEFORE", data=item(3)),
    ]
    feed.send(*first)
    held = feed.run().applied.held
    # A half waits for the other.
    assert feed.rows("ITEMS", "ID")[3]["V"] == "v3" and not feed.lake.machinery("quarantine")
    assert [id.rpartition("#")[0] for id in held] == ["BIZ.NO_KEY"]
    assert "primary_key" in "".join(held.values())
    second = [op("UPDATE AFTER", data={"ID": "33", "V": "moved", "GONE": None})]
    op.begin()
    second += [
        op("DROP COLUMN", data={"GONE": None}),
        op("upd", data={"ID": "44"}, key={"ID": "4", "V": "v4", "PRICE": "1.50"}),
        op("ins", data={"ID": "5", "V": None, "PRICE": "-0.01"}),
        op("UPDATE BEFORE", key={"ID": "5"}),
    ]
    feed.send(*second)
    kill_further_and_further(feed.lake, feed.run)
    assert [id.rpartition("#")[0] for id in feed.run().applied.held] == ["BIZ.NO_KEY"]
    wanted = {
        1: {"ID": 1, "V": "new", "PRICE": decimal.Decimal("1.50")},
        33: {"ID": 33, "V": "moved", "PRICE": decimal.Decimal("1.50")},
        44: {"ID": 44, "V": "v4", "PRICE": decimal.Decimal("1.50")},
        5: {"ID": 5, "V": None, "PRICE": decimal.Decimal("-0.01")},
    }
    assert feed.rows("ITEMS", "ID") == wanted
    # The task starts again before the half: what it has sent is known, and the half is whole with what follows.
    feed.send(*second, op("UPDATE AFTER", data={"V": "five"}))
    assert [id.rpartition("#")[0] for id in feed.run().applied.held] == ["BIZ.NO_KEY"]
    assert feed.rows("ITEMS", "ID") == {**wanted, 5: {**wanted[5], "V": "five"}}
    op.begin()
    feed.send(op("TRUNCATE"), op("ins", data={"ID": "6", "V": "six", "PRICE": "2"}))
    feed.run()
    assert feed.rows("ITEMS", "ID") == {6: {"ID": 6, "V": "six", "PRICE": decimal.Decimal("2.00")}}
    assert not feed.lake.machinery("quarantine")
    # A half that stays alone holds its table, and no other.
    feed.send(op("UPDATE BEFORE", data={"ID": "6"}), op("ins", "BIZ.NO_KEY", data={"A": "2"}))
    assert {id.rpartition("#")[0] for id in feed.run().applied.held} == {"BIZ.NO_KEY", "BIZ.ITEMS"}
    (bad,) = feed.lake.machinery("quarantine")
    assert bad["table"] == "ITEMS" and "UPDATE BEFORE" in bad["message"]
