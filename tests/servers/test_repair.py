"""`verify --repair` against a MySQL: what differs is put right by events, and stays so; in both format versions."""

from __future__ import annotations

import datetime
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from click.testing import Result
from pyspark.sql import SparkSession

from cdc_lakehouse.config import load
from cdc_lakehouse.definitions import build_definitions
from cdc_lakehouse.lake.files import live_files
from tests.kit.hand_sinks import CREATE, CSV, T0, HandSink, row
from tests.kit.lakes import TestLake
from tests.servers.mysql import MySqlServer
from tests.servers.verified import PASSWORD, VerifiedSource

pytestmark = [pytest.mark.spark, pytest.mark.server]

TABLE = (
    "CREATE TABLE t (id BIGINT, at DATETIME(3), v INT, s VARCHAR(50), ts TIMESTAMP NULL, b VARBINARY(10), "
    "e ENUM('a','b'), d DECIMAL(10,2), PRIMARY KEY (id, at))"
)
MOMENT = datetime.datetime(2026, 1, 1, 12, 0, 0, 250_000)  # noqa: DTZ001 - as the source has it
# The csv has TIMESTAMP in the feed's zone, and bytes in base64.
LOGGED = '"2026-01-01 12:00:00.250"', "{v}", '"s{id}"', '"2026-01-01 20:00:00"', '"AP8="', '"b"', "1.50"


def change(op: str, at: int, id: int, v: int) -> str:
    return row(op, "t", at, str(id), *(text.format(id=id, v=v) for text in LOGGED))


class RepairedFeed(VerifiedSource):
    """A sink made by hand that says what `logged` says of table `t`, and a MySQL that has `rows`."""

    def __init__(self, server: MySqlServer, lake_root: Path, directory: Path, spark: SparkSession) -> None:
        super().__init__(server)
        self.execute(TABLE)
        self.lake = TestLake(lake_root, directory, lambda: spark, source={**CSV, "time_zone": "Asia/Shanghai"})
        self.set_tables({"settings": {"d.t": {"format_version": 2}}})
        self.sink = HandSink(self.lake.sink)
        self.sink.schema("t", 0, *self.columns("t"), action=CREATE, query=TABLE)

    def set_tables(self, tables: dict[str, Any]) -> None:
        self.lake.configure(tables=tables)
        self.configure()

    def insert(self, id: int, v: int) -> None:
        more = f"{v}, 's{id}', '2026-01-01 12:00:00', 0x00ff, 'b', 1.5"
        self.execute(f"INSERT INTO t VALUES ({id}, '2026-01-01 12:00:00.250', {more})")

    def log(self, index: int, upto: int, *changes: str) -> None:
        self.sink.rows("d/t", 0, *changes, index=index)
        self.sink.checkpoint(upto)

    def verify(self, *options: str, code: int, answer: str = "") -> Result:
        result = self.call(*options, answer=answer)
        assert result.exit_code == code, result.output
        return result

    def deletes(self) -> tuple[int, set[str]]:
        """The format version of the table, and the kinds of deletes that its files have."""
        table = self.lake.tables()["d", "t"]
        return table.format_version, {
            "positions" if each.place is None else "vector" for file in live_files(table) for each in file.deletes
        }

    def values(self) -> dict[int, int]:
        """`v` by `id`, as the lake has them."""
        return {each[0]: each[2] for each in self.lake.rows("t")}

    def repairs(self) -> list[tuple[Any, ...]]:
        rows = [each for each in self.lake.machinery("segments") if each["kind"] == "repair"]
        return [
            (each["inserts"], each["updates"], each["deletes"])
            for each in sorted(rows, key=lambda each: each["segment"])
        ]


@pytest.fixture
def feed(
    mysql: MySqlServer, lake_root: Path, tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> RepairedFeed:
    found = RepairedFeed(mysql, lake_root, tmp_path, spark)
    monkeypatch.setenv("CDC_LAKEHOUSE_CONFIG", str(found.lake.config_path))
    monkeypatch.setenv("DAGSTER_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("SOURCE_PASSWORD", PASSWORD)
    return found


@pytest.mark.in_turn
def test_differences_are_repaired_and_stay_repaired(feed: RepairedFeed) -> None:
    feed.log(1, 10, *(change("I", n, n, n) for n in (1, 2, 3)))
    feed.lake.go_through()
    for id, v in ((1, 1), (2, 22), (4, 4)):
        feed.insert(id, v)
    # The check finds what the command finds.
    (check,) = evaluated(feed)
    assert not check.passed and check.metadata["differing_keys"].value == 3
    assert "d.t: extra id=3" in str(check.metadata["differing"].value)
    # Nothing happens without a yes.
    asked = feed.verify("--repair", code=1, answer="n\n")
    assert "not confirmed" in asked.output and feed.repairs() == []
    (done,) = json.loads(feed.verify("--repair", "--yes", "--json", code=0).stdout)["feeds"]
    assert done["result"] == "different" and done["repair"]["not_repaired"] == {}
    assert done["repair"]["tables"] == [
        {"database": "d", "table": "t", "checkpoint_ts": T0 + 10, "inserted": 1, "updated": 1, "deleted": 1}
    ]
    feed.verify(code=0)
    moment = datetime.datetime(2026, 1, 1, 12, tzinfo=datetime.UTC)
    others = MOMENT, moment, b"\0\xff", "b"
    assert [(each[1], each[4], each[5], each[6]) for each in feed.lake.rows("t")] == [others] * 3
    (segment,) = [each for each in feed.lake.machinery("segments") if each["kind"] == "repair"]
    assert (segment["table"], segment["state"], "@" in segment["requested_by"]) == ("t", "decoded", True)
    assert (feed.repairs(), evaluated(feed)[0].passed) == ([(1, 1, 1)], True)
    assert feed.deletes() == (2, {"positions"})

    # It goes on in format version 3.
    feed.set_tables({})
    # A second repair of the same cut counts more than the first, also where it deletes.
    feed.execute("DELETE FROM t WHERE id = 4", "UPDATE t SET v = 23 WHERE id = 2")
    feed.insert(3, 33)
    feed.verify("--repair", "--yes", code=0)
    feed.verify(code=0)
    assert feed.deletes() == (3, {"positions", "vector"}), "earlier files of positions stay"
    assert feed.values() == {1: 1, 2: 23, 3: 33} and feed.repairs() == [(1, 1, 1), (1, 1, 1)]

    # The log goes on where it was: what it says counts more than a repair, and of other rows the repair stays.
    feed.log(2, 20, change("U", 12, 3, 34), change("I", 13, 5, 5))
    feed.lake.go_through()
    assert feed.values() == {1: 1, 2: 23, 3: 34, 5: 5}
    # So it does where the table is computed anew from its events.
    table = feed.lake.tables()["d", "t"]
    feed.lake.lake.catalog.drop_table(table.name())
    feed.lake.configure(tables={"exclude": ["d.none"]})
    feed.lake.go_through()
    assert feed.values() == {1: 1, 2: 23, 3: 34, 5: 5}


def test_run_beside_a_repair_keeps_what_the_log_says(feed: RepairedFeed, monkeypatch: pytest.MonkeyPatch) -> None:
    """The run is over before the repair is confirmed."""
    feed.log(1, 10, *(change("I", n, n, n) for n in (1, 2, 3)))
    feed.lake.go_through()
    for id, v in ((1, 11), (2, 22), (4, 4)):
        feed.insert(id, v)

    def confirm(*_: object, **__: object) -> bool:
        feed.log(2, 20, change("U", 12, 2, 222), change("D", 13, 3, 3), change("I", 14, 4, 44), change("I", 15, 5, 5))
        feed.lake.go_through()
        return True

    monkeypatch.setattr("click.confirm", confirm)
    assert "repaired d.t" in feed.verify("--repair", code=0).output
    assert feed.values() == {1: 11, 2: 222, 4: 44, 5: 5} and feed.repairs() == [(1, 2, 1)]
    feed.lake.lake.catalog.drop_table(feed.lake.tables()["d", "t"].name())
    feed.lake.configure(tables={"exclude": ["d.none"]})
    feed.lake.go_through()
    assert feed.values() == {1: 11, 2: 222, 4: 44, 5: 5}, "computed anew"


def evaluated(feed: RepairedFeed) -> Sequence[dg.AssetCheckEvaluation]:
    """What the scheduled job finds."""
    definitions = build_definitions(load(feed.lake.config_path))
    done = definitions.resolve_job_def(f"{feed.lake.name}_verify").execute_in_process()
    return done.get_asset_check_evaluations()
