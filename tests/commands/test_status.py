"""`status` and `show`: where feeds stand, from the catalog and the sink alone."""

from __future__ import annotations

import datetime
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from cdc_lakehouse.assets.leases import FAILURE_TAG
from cdc_lakehouse.changelog.positions import tso, utc_now
from cdc_lakehouse.decoders.partition_summary import OptionConflict, PartitionSummary
from cdc_lakehouse.decoders.problems import Rejected
from cdc_lakehouse.errors import ConfigurationError
from cdc_lakehouse.lake.current.tables import CurrentTables
from cdc_lakehouse.lake.tables.checkpoints import Cut, CutRow
from cdc_lakehouse.lake.tables.lease import Lease
from cdc_lakehouse.pipeline.database_progress import location_of
from cdc_lakehouse.sources.kafka import KafkaClient
from tests.commands import call, run_that_fails
from tests.kit.kafka import with_timeout
from tests.kit.lakes import TestLake
from tests.lake import ID, NOON, change
from tests.pipeline import T0, Sink, lake_in

KEYS = {
    "feed", "source_checkpoint_ts", "source_lag_seconds", "published_checkpoint_ts", "published_lag_seconds", "tables",
    "held", "quarantined", "discarded", "contradictions", "warnings", "error", "initial", "last_run", "failed_runs",
    "attention",
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
    lake.run().checkpoints.publish(Cut(T0 + 5, held=(("d.x", "it's bad"),)), rows)


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
    # The last one is held, and was never in a cut.
    assert shown == [("d", "a", 12, None), ("d", "u", 0, None), ("d", "x", None, None)]
    assert seen["held"] == {"d.x": "it's bad"}
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
    assert [table["table"] for table in seen["tables"]] == ["a", "x"]


def test_a_checkpoint_that_cannot_be_read_is_told(lake: TestLake) -> None:
    lake.sink.mkdir()
    (lake.sink / "metadata").write_text("{")
    assert "checkpoint-ts" in status()["error"]


def test_messages_that_contradict_an_option_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nobody = {"type": "kafka", "format": "dts-canal-json", "bootstrap_servers": "127.0.0.1:1", "topics": ["t"]}
    lake = lake_in(tmp_path, source={**nobody, "kafka": {"socket.connection.setup.timeout.ms": "1000"}})
    client = with_timeout(KafkaClient.of(lake.feed.kafka), 1)
    monkeypatch.setattr(KafkaClient, "of", lambda _: client)
    monkeypatch.setenv("CDC_LAKEHOUSE_CONFIG", str(lake.sink.parent / "lakehouse.yaml"))
    finds = PartitionSummary(0, 0, option_conflict=OptionConflict("t", 0, 17, "a row of DELETE is in old"))
    lake.run().signals.write(1, {("t", 0, 1): finds})
    result = call("status")
    assert result.exit_code == 3 and "run the dates again" in result.stdout
    assert "t/0 from offset 17 on: a row of DELETE is in old" in result.stdout


def test_a_database_that_is_being_read(lake: TestLake) -> None:
    Sink(lake.sink).checkpoint(10)
    source = lake.feed.source.model_dump(exclude_unset=True)
    lake.configure(source={**source, "initial": {"type": "database", "url": "mysql://r@127.0.0.1:1"}})
    assert status()["initial"]["reading"] is None
    table = {"directory": "t000001/", "ranges": [[None, ["5"]], [["5"], None]], "estimated_rows": 300_000}
    root = f"{location_of(lake.lake, lake.name)}/000001"
    lake.lake.write(f"{root}/plan.json", json.dumps({"tables": [table]}).encode())
    lake.lake.write(f"{root}/t000001/000000000-aa.200000.done", b"done")
    reading = status()["initial"]["reading"]
    assert (reading["rows"], reading["estimated_rows"], reading["ranges_read"]) == (200_000, 300_000, 1)
    for command in ("status", "plan"):
        assert "the database is being read: 200000 of about 300000 rows are read" in call(command).stdout
    lake.lake.write(f"{root}/dump.json", b"{}")
    assert status()["initial"]["reading"] is None


def test_rows_are_shown_as_of_the_published_cut(lake: TestLake) -> None:
    schema = pa.schema([pa.field("id", pa.int64()), pa.field("note", pa.string()), pa.field("blob", pa.binary())])
    where = (f"{lake.name}__d", "a")
    lake.lake.ensure_namespace(where[0])
    lake.run().history.record([change(5, "a", 0, "", ID)], NOON)
    (life,) = lake.run().history.history.incarnations().values()
    properties = CurrentTables(lake.lake, lake.feed).first_properties(life) | {"format-version": "2"}
    table = lake.lake.catalog.create_table(where, schema, properties=properties)
    table.append(pa.Table.from_pylist([{"id": 1, "note": "published\n", "blob": b"\xff\x00"}], schema=schema))
    snapshot = table.current_snapshot()
    assert snapshot is not None
    publish(lake, CutRow(T0 + 5, "d", "a", snapshot.snapshot_id, 1, NOON))
    table.append(pa.Table.from_pylist([{"id": 2, "note": "later", "blob": None}], schema=schema))
    result = call("show", "d.a")
    assert result.exit_code == 0
    assert "d.a: 1 rows" in result.stdout and r"published\n" in result.stdout and "ff00" in result.stdout
    assert "later" not in result.stdout
    (shown,) = json.loads(call("show", "d.a", "--json").stdout)["tables"]
    assert shown == {
        "feed": lake.name, "database": "d", "table": "a", "commit_ts": T0 + 5, "row_count": 1,
        "rows": [{"id": 1, "note": "published\n", "blob": "ff00"}],
    }  # fmt: skip
    assert call("show", "d.a", "--csv").stdout == 'id,note,blob\n1,"published\n",ff00\n'
    assert call("show", "d.a", "--csv", "--columns", "blob, id").stdout == "blob,id\nff00,1\n"
    result = call("show", "d.a", "--columns", "id,nosuch")
    assert result.exit_code == 2 and "nosuch" in result.stderr and "id, note, blob" in result.stderr
    assert call("show", "d.a", "--csv", "--json").exit_code == 2


def test_a_table_that_is_not_published_is_2_and_the_others_are_named(lake: TestLake) -> None:
    lake.run().history.record([change(5, "a", 0, "", ID)], NOON)
    publish(lake, CutRow(T0 + 5, "d", "a", None, 0, NOON))
    result = call("show", "d.b")
    assert result.exit_code == 2 and "d.b" in result.stderr and "d.a" in result.stderr


def test_a_held_table_has_its_own_lag_and_the_name_that_people_know(lake: TestLake) -> None:
    Sink(lake.sink).checkpoint(10)
    lake.run().history.record([change(5, "t", 0, "", ID), change(6, "never", 0, "", ID)], NOON)
    ids = {life.last.name.table: id for id, life in lake.run().history.history.incarnations().items()}
    publish(lake, CutRow(T0 + 5, "d", "t", None, 3, NOON), CutRow(T0 + 5, "d", "a", None, 1, NOON))
    held = ((ids["t"], "bad"), (ids["never"], "no key"))
    later = T0 + (3_600_000 << 18)
    lake.run().checkpoints.publish(Cut(later, held=held), [CutRow(later, "d", "a", None, 1, NOON)])
    assert all("#" in id for id in ids.values())
    seen = status()
    assert seen["held"] == {"d.t": "bad", "d.never": "no key"}
    tables = {table["table"]: table for table in seen["tables"]}
    assert [(name, t["rows"], t["checkpoint_ts"], t["held"]) for name, t in sorted(tables.items())] == [
        ("a", 1, later, None), ("never", None, None, "no key"), ("t", 3, T0 + 5, "bad"),
    ]  # fmt: skip
    assert tables["t"]["lag_seconds"] - tables["a"]["lag_seconds"] == pytest.approx(3600, abs=0.01)
    assert "(held)" in call("status").stdout and "#" not in call("status").stdout


RED, YELLOW, GREEN = "\x1b[31m", "\x1b[33m", "\x1b[32m"


def test_a_terminal_shows_in_colour_what_needs_a_person(lake: TestLake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    Sink(lake.sink).checkpoint(10)
    ago = tso(utc_now()) - (180_000 << 18)
    rows = [CutRow(ago, "d", name, None, 1, NOON) for name in ("a", "b")]
    lake.run().checkpoints.publish(Cut(ago), rows)
    lines = call("status", "--check", terminal=True).stdout.splitlines()
    assert [line[5:].split()[0] for line in lines if line.startswith(GREEN)] == ["feed", "check:"]
    assert not any(line.startswith((RED, YELLOW)) for line in lines)
    lake.configure(tables={"settings": {"d.a": {"freshness_minutes": 1}}})
    lake.run().checkpoints.publish(Cut(ago, held=(("d.x", "bad"),)), rows)
    lines = call("status", terminal=True).stdout.splitlines()
    assert [line[5:].split()[0] for line in lines if line.startswith(RED)] == ["feed", "d.x", "d.x:"]
    assert [line[5:].split()[0] for line in lines if line.startswith(YELLOW)] == ["d.a"]
    assert "\x1b" not in call("status").stdout
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b" not in call("status", terminal=True).stdout


def test_check_is_1_and_says_why_where_something_needs_a_person(lake: TestLake) -> None:
    Sink(lake.sink).checkpoint(10)
    assert call("status").exit_code == 0
    result = call("status", "--check")
    assert result.exit_code == 1 and "  check: nothing is published" in result.stdout
    lake.run().checkpoints.publish(Cut(tso(utc_now()) - (120_000 << 18)), [])
    result = call("status", "--check")
    assert result.exit_code == 0 and "  check: all is well" in result.stdout
    lake.configure(freshness_minutes=1)
    result = call("status", "--check")
    assert result.exit_code == 1 and "2 min old, and freshness_minutes is 1" in result.stdout
    lake.configure(freshness_minutes=60)
    lake.run().quarantine.replace(lambda _: False, [Rejected("s", 1, "BadLine", "m", None, "d", "x")], NOON)
    assert "  check: 1 rows are quarantined" in call("status", "--check").stdout
    lake.run().quarantine.replace(lambda _: True, [], NOON)
    lake.run().checkpoints.publish(Cut(tso(utc_now()), held=(("d.x", "bad"),)), [])
    result = call("status", "--check", "--json")
    assert (result.exit_code, json.loads(result.stdout)["feeds"][0]["attention"]) == (1, ["d.x is held"])


def test_check_is_1_where_the_source_is_not_there(lake: TestLake) -> None:
    lake.run().checkpoints.publish(Cut(tso(utc_now())), [])
    result = call("status", "--check")
    assert result.exit_code == 1 and "  check: the source cannot be used" in result.stdout


def test_the_last_run_is_told_and_whether_it_goes_on(lake: TestLake) -> None:
    Sink(lake.sink).checkpoint(10)
    lease = Lease(lake.lake, lake.name, "the-run", utc_now)
    lease.take()
    seen = status()["last_run"]
    assert (seen["run"], seen["ended_at"]) == ("the-run", None)
    lease.release()
    seen = status()["last_run"]
    assert (seen["run"], seen["was_killed"]) == ("the-run", False) and seen["ended_at"] is not None


@pytest.mark.parametrize("kind", ["transient", "permanent"])
def test_a_run_that_failed_is_told_with_its_error_and_the_next_try(
    lake: TestLake, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    Sink(lake.sink).checkpoint(10)
    error = ConfigurationError("the wrong key", advice="correct it")
    home, failed = run_that_fails(lake, monkeypatch, error, **{FAILURE_TAG: kind})
    (run,) = status()["failed_runs"]
    assert (run["run"], run["job"]) == (failed, None) and "the wrong key" in run["error"]
    ended = datetime.datetime.fromisoformat(run["ended_at"])
    retried = None if run["next_try_at"] is None else datetime.datetime.fromisoformat(run["next_try_at"]) - ended
    assert retried == (datetime.timedelta(minutes=1) if kind == "transient" else None)
    result = call("status", "--check")
    assert result.exit_code == 1 and "  check: the last run failed" in result.stdout
    assert "the wrong key" in result.stdout
    assert ("tries it again at" if kind == "transient" else "not tried again") in result.stdout
    (home / "dagster.yaml").write_text("storage: {postgres: {postgres_url: [no]}}")
    result = call("status")
    assert result.exit_code == 0 and "the Dagster instance of" in result.stderr and lake.name in result.stdout


@pytest.mark.parametrize("command", ["status", "show", "plan"])
def test_to_look_before_the_first_run_makes_nothing(tmp_path: Path, command: str) -> None:
    assert call("sample", "--directory", str(tmp_path), "--transactions", "20").exit_code == 0
    before = sorted(tmp_path.iterdir())
    result = call(command, config=tmp_path / "lakehouse.yaml")
    assert result.exit_code == (2 if command == "show" else 0), result.output
    assert sorted(tmp_path.iterdir()) == before
