"""`metrics`: what Prometheus reads, as its own parser does."""

from __future__ import annotations

import datetime
import re
import signal
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path

import pyarrow as pa
import pytest
from prometheus_client.parser import text_string_to_metric_families

from cdc_lakehouse.changelog.positions import tso
from cdc_lakehouse.decoders.problems import Rejected
from cdc_lakehouse.lake.tables.checkpoints import Cut, CutRow
from cdc_lakehouse.sources.kafka import KafkaClient
from tests.commands import call, run_that_fails
from tests.kit.kafka import with_timeout
from tests.kit.lakes import TestLake
from tests.lake import CREATE, NOON, RENAME, change, segment
from tests.pipeline import T0, Sink, lake_in

ROOT = Path(__file__).parents[2]
Labels = tuple[tuple[str, str], ...]
NAMES = {
    "up", "published_checkpoint_timestamp_seconds", "published_lag_seconds", "freshness_limit_seconds",
    "last_cut_timestamp_seconds", "tables", "held_tables", "quarantined_rows", "discarded_rows", "events",
    "segments_waiting", "table_rows", "table_lag_seconds", "table_held", "table_files", "table_average_file_bytes",
    "table_delete_ratio",
    "table_last_compaction_timestamp_seconds", "source_up", "source_checkpoint_timestamp_seconds",
    "source_pending_records", "last_run_end_timestamp_seconds", "last_run_duration_seconds",
    "last_run_failed",
}  # fmt: skip


@pytest.fixture
def lake(lake: TestLake, monkeypatch: pytest.MonkeyPatch) -> TestLake:
    monkeypatch.setenv("CDC_LAKEHOUSE_CONFIG", str(lake.config_path))
    monkeypatch.delenv("DAGSTER_HOME", raising=False)
    return lake


def parsed(text: str) -> dict[tuple[str, Labels], float]:
    """Values by name (without the prefix) and labels."""
    found = {}
    for family in text_string_to_metric_families(text):
        assert family.type == "gauge" and family.documentation, family
        for sample in family.samples:
            found[sample.name.removeprefix("cdc_lakehouse_"), tuple(sorted(sample.labels.items()))] = sample.value
    return found


def metrics(lake: TestLake) -> dict[tuple[str, Labels], float]:
    done = call("metrics")
    assert done.exit_code == 0, done.output
    return parsed(done.stdout)


def publish(lake: TestLake, checkpoint: int) -> None:
    rows = [CutRow(checkpoint, "d", "a", None, 12, NOON), CutRow(checkpoint, 'd"1', "ü\n", None, 0, NOON)]
    lake.run().history.record([change(5, "w", CREATE), change(6, "x", RENAME, "RENAME TABLE d.w TO d.x")], NOON)
    (life,) = lake.run().history.history.incarnations()
    held = ((life, "bad"), ("d%2E1.y", "bad"))
    lake.run().checkpoints.publish(Cut(checkpoint, held=held), rows)


def test_an_empty_lake_has_zeros_and_nothing_of_a_cut(lake: TestLake) -> None:
    feed = (("feed", lake.name),)
    assert metrics(lake) == {
        ("up", feed): 1, ("freshness_limit_seconds", feed): 3600, ("tables", feed): 0, ("held_tables", feed): 0,
        ("quarantined_rows", feed): 0, ("discarded_rows", feed): 0, ("events", feed): 0, ("segments_waiting", feed): 0,
        ("source_up", feed): 0,
    }  # fmt: skip
    assert lake.metadata() == {} and not (lake.config_path.parent / "dagster_home").exists(), "nothing is written"


def test_every_number_of_a_feed_is_there_under_its_name(lake: TestLake, monkeypatch: pytest.MonkeyPatch) -> None:
    Sink(lake.sink).checkpoint(10)
    now = datetime.datetime.now(datetime.UTC)
    shown = now - datetime.timedelta(minutes=10)
    publish(lake, tso(shown))
    lake.run().quarantine.replace(
        lambda _: False, [Rejected("s", n, "BadLine", "m", None, "d", "x") for n in (1, 2, 3)], NOON
    )
    lake.run().quarantine.discard([lake.run().quarantine.rows[0].id], "me", "gone", NOON)
    lake.run().segments.land([segment(f"d/a/1/{n}.json", state=state) for n, state in enumerate(("landed", "decoded"))])
    run_that_fails(lake, monkeypatch, ValueError("no"))
    monkeypatch.delenv("DAGSTER_HOME")

    found = metrics(lake)
    feed, run = (("feed", lake.name),), (("feed", lake.name), ("job", ""))
    ended, seconds = found.pop(("last_run_end_timestamp_seconds", run)), found.pop(("last_run_duration_seconds", run))
    assert 0 <= ended - now.timestamp() < 300 and 0 < seconds < 300
    assert 600 <= found.pop(("published_lag_seconds", feed)) < 900
    of_source = found.pop(("source_checkpoint_timestamp_seconds", feed))
    assert of_source == pytest.approx((T0 + 10 >> 18) / 1000, abs=0.002)
    at = found.pop(("published_checkpoint_timestamp_seconds", feed))
    assert at == pytest.approx(shown.timestamp(), abs=0.002)

    lags = {labels: found.pop((name, labels)) for name, labels in [*found] if name == "table_lag_seconds"}
    assert len(lags) == 2 and all(600 <= lag < 900 for lag in lags.values())

    def table(database: str, name: str) -> Labels:
        return (("database", database), ("feed", lake.name), ("table", name))

    assert found == {
        ("up", feed): 1, ("freshness_limit_seconds", feed): 3600, ("tables", feed): 2, ("held_tables", feed): 2,
        ("quarantined_rows", feed): 2, ("discarded_rows", feed): 1, ("events", feed): 0, ("segments_waiting", feed): 1,
        ("last_cut_timestamp_seconds", feed): NOON.timestamp(), ("last_run_failed", run): 1,
        ("table_rows", table("d", "a")): 12, ("table_rows", table('d"1', "ü\n")): 0, ("table_held", table("d", "x")): 1,
        ("table_held", table("d.1", "y")): 1, ("source_up", feed): 1,
    }  # fmt: skip


def test_a_lake_that_cannot_be_read_is_down(lake: TestLake) -> None:
    catalog = lake.lake.config.catalog.uri
    assert catalog is not None
    publish(lake, tso(NOON))
    Path(catalog.removeprefix("sqlite:///")).write_bytes(b"this is no database" * 1000)
    feed = (("feed", lake.name),)
    assert metrics(lake) == {("up", feed): 0, ("freshness_limit_seconds", feed): 3600, ("source_up", feed): 0}


def test_the_files_of_a_table_are_those_of_its_last_snapshot(lake: TestLake) -> None:
    where, rows = (f"{lake.name}__d", "a"), pa.table({"id": [1, 2, 3]})
    lake.lake.ensure_namespace(where[0])
    properties = {"cdc.compacted-at": NOON.isoformat()}
    table = lake.lake.catalog.create_table(where, rows.schema, properties=properties)
    for _ in range(2):
        table.append(rows)
    snapshot = table.current_snapshot()
    assert snapshot is not None
    cut = Cut(tso(NOON), held=(("d.gone", "why"),))
    lake.run().checkpoints.publish(cut, [CutRow(tso(NOON), "d", "a", snapshot.snapshot_id, 6, NOON)])
    found = {name: value for (name, labels), value in metrics(lake).items() if ("table", "a") in labels}
    files = list(Path(table.location().removeprefix("file://")).rglob("*.parquet"))
    assert found.pop("table_lag_seconds") > 0
    assert found == {
        "table_rows": 6, "table_files": 2, "table_delete_ratio": 0,
        "table_average_file_bytes": sum(each.stat().st_size for each in files) // 2,
        "table_last_compaction_timestamp_seconds": NOON.timestamp(),
    }  # fmt: skip


def test_a_source_that_does_not_answer_is_down_and_keeps_nothing_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        brokers = f"127.0.0.1:{silent.getsockname()[1]}"
        source = {"type": "kafka", "format": "dts-canal-json", "bootstrap_servers": brokers, "topics": ["t"]}
        lake = lake_in(tmp_path, source={**source, "kafka": {"socket.connection.setup.timeout.ms": "1000"}})
        monkeypatch.setenv("CDC_LAKEHOUSE_CONFIG", str(lake.config_path))
        client = with_timeout(KafkaClient.of(lake.feed.kafka), 3)
        monkeypatch.setattr(KafkaClient, "of", lambda _: client)
        monkeypatch.setattr("cdc_lakehouse.commands.metrics._PATIENCE_SECONDS", 0.2)
        feed = (("feed", lake.name),)
        assert metrics(lake)["source_up", feed] == 0
        without = parsed(call("metrics", "--no-source").stdout)
        assert without["up", feed] == 1 and ("source_up", feed) not in without


def test_the_documentation_names_every_metric_and_no_other(lake: TestLake) -> None:
    publish(lake, tso(NOON))
    reference, page = ((ROOT / "docs" / name).read_text("utf-8") for name in ("reference/metrics.md", "monitoring.md"))
    described = set(re.findall(r"^# TYPE cdc_lakehouse_(\w+) gauge$", call("metrics").stdout, re.MULTILINE))
    assert described == NAMES == set(re.findall(r"cdc_lakehouse_(\w+)", reference))
    assert set(re.findall(r"cdc_lakehouse_(\w+)", page)) <= NAMES


@pytest.mark.parametrize("listen", ["9464", "127.0.0.1:x", "127.0.0.1:99999", ":1"])
def test_an_address_that_is_none_is_refused(lake: TestLake, listen: str) -> None:
    done = call("metrics", "--listen", listen)
    assert done.exit_code == 2 and "HOST:PORT" in done.stderr


@pytest.mark.slow
def test_it_is_served_until_it_is_interrupted(lake: TestLake, interruptible: None) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        refused = call("metrics", "--listen", address)
        assert refused.exit_code == 2 and f"cannot listen at {address}" in refused.stderr
    program = "from cdc_lakehouse.cli import main; main()"
    command = [sys.executable, "-c", program, "metrics", "--listen", address]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, cwd=ROOT) as process:
        try:
            assert process.stderr is not None and f"http://{address}/metrics" in process.stderr.readline()
            tables = ("tables", (("feed", lake.name),))
            seen = []
            for checkpoint in (None, tso(NOON)):
                if checkpoint is not None:
                    publish(lake, checkpoint)
                with urllib.request.urlopen(f"http://{address}/metrics", timeout=60) as answer:
                    seen.append(parsed(answer.read().decode())[tables])
            assert seen == [0, 2], "each scrape reads anew"
        finally:
            process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0
