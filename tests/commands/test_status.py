"""`status` and `show`: where feeds stand, from the catalog and the sink alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from cdc_lakehouse.decoders.partition_summary import OptionConflict, PartitionSummary
from cdc_lakehouse.decoders.problems import Rejected
from cdc_lakehouse.lake.tables.checkpoints import Cut, CutRow
from cdc_lakehouse.sources.kafka import Client
from tests.commands import call
from tests.kit.lakes import TestLake
from tests.lake import ID, NOON, change
from tests.pipeline import T0, Sink, lake_in

KEYS = {
    "feed", "source_checkpoint_ts", "source_lag_seconds", "pending_records", "landed_entries", "landed_position",
    "published_checkpoint_ts", "published_lag_seconds", "tables", "held", "quarantined", "discarded", "contradictions",
    "warnings", "error", "initial",
}  # fmt: skip


@pytest.fixture
def lake(lake: TestLake, monkeypatch: pytest.MonkeyPatch) -> TestLake:
    monkeypatch.setenv("CDC_LAKEHOUSE_CONFIG", str(lake.sink.parent / "lakehouse.yaml"))
    return lake


def status(exit_code: int = 0) -> dict[str, Any]:
    result = call("status", "--json")
    assert result.exit_code == exit_code, result.output
    (feed,) = json.loads(result.stdout)["feeds"]
    assert set(feed) == KEYS
    return feed


def publish(lake: TestLake, *rows: CutRow) -> None:
    lake.run().checkpoints.publish(Cut(T0 + 5, held=(("d.x#1", "it's bad"),)), rows)


def test_an_empty_lake_is_nothing_published_and_no_error(lake: TestLake) -> None:
    Sink(lake.sink).checkpoint(10)
    seen = status()
    assert (seen["feed"], seen["source_checkpoint_ts"], seen["error"]) == (lake.name, T0 + 10, None)
    assert (seen["published_checkpoint_ts"], seen["published_lag_seconds"]) == (None, None)
    assert (seen["tables"], seen["held"], seen["quarantined"]) == ([], {}, 0)
    assert lake.metadata() == {}


def test_a_published_lake_says_what_is_in_it_and_what_is_wrong(lake: TestLake) -> None:
    Sink(lake.sink).checkpoint(10)
    publish(lake, CutRow(T0 + 5, "d", "u", None, 0, NOON), CutRow(T0 + 5, "d", "a", 1, 12, NOON))
    rejected = [Rejected("s", n, "BadLine", "m", None, "d", "x") for n in (1, 2)]
    lake.run().quarantine.replace(lambda _: False, rejected, NOON)
    seen = status()
    assert (seen["published_checkpoint_ts"], seen["quarantined"]) == (T0 + 5, 2)
    shown = [(table["database"], table["table"], table["rows"], table["health"]) for table in seen["tables"]]
    assert shown == [("d", "a", 12, None), ("d", "u", 0, None)]
    assert seen["held"] == {"d.x#1": "it's bad"}
    words = call("status").stdout
    assert all(each in words for each in (lake.name, str(T0 + 10), str(T0 + 5), "d.a", "12", "it's bad", "2 rows"))


def test_a_pattern_that_matches_nothing_is_a_warning(lake: TestLake) -> None:
    Sink(lake.sink).checkpoint(10)
    lake.configure(tables={"include": ["D.*", "d.t"]})
    assert status()["warnings"] == []
    lake.run().history.record([change(5, "t", 0, "", ID), change(6, "u", 0, "", ID)], NOON)
    said = "the pattern D.* of tables.include matches none of the 2 tables that were seen; d.t differs in letter case"
    assert status()["warnings"] == [f"{said}, and 1 more"]
    assert f"  warning: {said}" in call("status").stdout


def test_a_source_that_is_not_there_is_3_and_the_lake_is_still_told(lake: TestLake) -> None:
    publish(lake, CutRow(T0 + 5, "d", "a", 1, 12, NOON))
    seen = status(exit_code=3)
    assert str(lake.sink) in seen["error"] and seen["source_checkpoint_ts"] is None
    assert [table["table"] for table in seen["tables"]] == ["a"]


def test_a_checkpoint_that_cannot_be_read_is_told(lake: TestLake) -> None:
    lake.sink.mkdir()
    (lake.sink / "metadata").write_text("{")
    assert "checkpoint-ts" in status()["error"]


def test_messages_that_contradict_an_option_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nobody = {"type": "kafka", "format": "dts-canal-json", "bootstrap_servers": "127.0.0.1:1", "topics": ["t"]}
    lake = lake_in(tmp_path, source={**nobody, "kafka": {"socket.connection.setup.timeout.ms": "1000"}})
    client = Client.of(lake.feed.kafka).with_timeout(1)
    monkeypatch.setattr(Client, "of", lambda _: client)
    monkeypatch.setenv("CDC_LAKEHOUSE_CONFIG", str(lake.sink.parent / "lakehouse.yaml"))
    finds = PartitionSummary(0, 0, option_conflict=OptionConflict("t", 0, 17, "a row of DELETE is in old"))
    lake.run().signals.write(1, {("t", 0, 1): finds})
    result = call("status")
    assert result.exit_code == 3 and "run the dates again" in result.stdout
    assert "t/0 from offset 17 on: a row of DELETE is in old" in result.stdout


def test_rows_are_shown_as_of_the_published_cut(lake: TestLake) -> None:
    schema = pa.schema([pa.field("id", pa.int64()), pa.field("note", pa.string()), pa.field("blob", pa.binary())])
    where = (f"{lake.name}__d", "a")
    lake.lake.ensure_namespace(where[0])
    table = lake.lake.catalog.create_table(where, schema)
    table.append(pa.Table.from_pylist([{"id": 1, "note": "published\n", "blob": b"\xff\x00"}], schema=schema))
    snapshot = table.current_snapshot()
    assert snapshot is not None
    publish(lake, CutRow(T0 + 5, "d", "a", snapshot.snapshot_id, 1, NOON))
    table.append(pa.Table.from_pylist([{"id": 2, "note": "later", "blob": None}], schema=schema))
    result = call("show", "d.a")
    assert result.exit_code == 0
    assert "d.a: 1 rows" in result.stdout and r"published\n" in result.stdout and "ff00" in result.stdout
    assert "later" not in result.stdout


def test_a_table_that_is_not_published_is_2_and_the_others_are_named(lake: TestLake) -> None:
    publish(lake, CutRow(T0 + 5, "d", "a", None, 0, NOON))
    result = call("show", "d.b")
    assert result.exit_code == 2 and "d.b" in result.stderr and "d.a" in result.stderr
