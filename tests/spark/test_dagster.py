"""The sample changefeed through Dagster and the command line, as the daemon and a person run it."""

import datetime
import itertools
import json
import os
import shutil
import signal
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from pyspark.sql import SparkSession

from cdc_lakehouse.assets.steps import decisions_config
from cdc_lakehouse.definitions import build_definitions
from cdc_lakehouse.lake.spark import build_session
from cdc_lakehouse.sample import shop as changefeed
from tests.commands import call as cli
from tests.kit.dagster_feed import tick
from tests.kit.lakes import TestLake
from tests.kit.shop import check_shop
from tests.kit.waiting import until
from tests.pipeline import T0, Sink

pytestmark = pytest.mark.spark

END = datetime.datetime(2026, 3, 4, 18, tzinfo=datetime.UTC)
START = END - datetime.timedelta(days=2)
"""Dates of before the first file."""


class Shop:
    """The sample in a sink, its feed in the shared lake, and a Dagster instance of its own."""

    def __init__(self, lake: TestLake, instance: dg.DagsterInstance) -> None:
        self.lake, self.instance = lake, instance
        self._clock = itertools.count(1)
        changefeed.write_history(lake.sink, start=START, end=END, transactions=150)

    def go_on(self, batches: int) -> None:
        clock = (END + datetime.timedelta(minutes=next(self._clock)) for _ in itertools.count())
        for _ in changefeed.follow(self.lake.sink, pause_seconds=0, batches=batches, clock=lambda: next(clock)):
            pass

    def tick(self, cursor: str | None = None) -> Any:
        return tick(self.lake, cursor, self.instance)

    def execute(self, tags: dict[str, str], job: str = "new", **options: Any) -> dg.ExecuteInProcessResult:
        found = build_definitions(self.lake.config).resolve_job_def(f"{self.lake.name}_{job}")
        return found.execute_in_process(instance=self.instance, tags=tags, **options)

    def materializations(self, *key: str) -> list[dg.AssetMaterialization]:
        records = self.instance.fetch_materializations(dg.AssetKey([self.lake.name, *key]), limit=100).records
        return [record.asset_materialization for record in records if record.asset_materialization is not None]

    def up_to_date(self, table: str) -> bool | None:
        """The last result of the table's check; None before the first."""
        key = dg.AssetCheckKey(dg.AssetKey([self.lake.name, "shop", table]), "up_to_date")
        (*records,) = self.instance.event_log_storage.get_asset_check_execution_history(key, limit=1)
        events = [record.event.dagster_event for record in records if record.event is not None]
        return next((each.asset_check_evaluation_data.passed for each in events if each is not None), None)

    def events_by_date(self, number: str) -> dict[str | None, Any]:
        """A number of the last materialization of each partition."""
        found = reversed(self.materializations("events"))
        return {each.partition: each.metadata[number].value for each in found}

    def lines_by_date(self) -> dict[str, int]:
        lines = Counter[str]()
        for path in self.lake.sink.rglob("CDC*.json"):
            lines[path.parent.name] += path.read_bytes().count(b"\n")
        return lines

    def check(self) -> None:
        check_shop(self.lake)


@pytest.fixture
def shop(lake_root: Path, tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shop]:
    lake, home = TestLake(lake_root, tmp_path, lambda: spark, start_date="2000-01-01"), tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("CDC_LAKEHOUSE_CONFIG", str(tmp_path / "lakehouse.yaml"))
    monkeypatch.setenv("DAGSTER_HOME", str(home))
    with dg.DagsterInstance.get() as instance:
        yield Shop(lake, instance)


@pytest.mark.in_turn
@pytest.mark.usefixtures("no_orphans")
def test_compaction_and_maintenance_are_assets_that_tables_tell_of(shop: Shop) -> None:
    shop.lake.configure(maintenance={"min_small_files": 2})
    for _ in range(2):
        (request,) = shop.tick().run_requests
        assert shop.execute(request.tags).success
        shop.go_on(3)
    before = len(shop.materializations("shop", "orders"))
    assert shop.execute({}, "compaction").success
    (done,) = shop.materializations("compaction")
    assert done.metadata["compacted_files"].value and not done.metadata["tables_not_done"].value
    key = dg.AssetKey([shop.lake.name, "shop", "orders"])
    (record,) = shop.instance.fetch_observations(key, limit=10).records
    assert record.asset_observation is not None
    seen = record.asset_observation.metadata
    assert (seen["files"].value, seen["delete_ratio"].value) == (1, 0.0) and "last_compaction" in seen
    assert len(shop.materializations("shop", "orders")) == before, "its rows are no newer"
    assert shop.execute({}, "maintenance").success
    (done,) = shop.materializations("maintenance")
    assert not done.metadata["tables_not_done"].value
    # The next run goes on over the files that were written anew.
    (request,) = shop.tick().run_requests
    assert shop.execute(request.tags).success
    shop.check()


def test_from_a_moved_checkpoint_to_a_published_cut(shop: Shop) -> None:
    asked = shop.tick()
    (request,) = asked.run_requests
    assert shop.execute(request.tags).success
    shop.check()

    # Each date has its own numbers, and they are those of the files.
    rows = "dagster/partition_row_count"
    assert shop.events_by_date(rows) == shop.events_by_date("new_events") == shop.lines_by_date()
    total = sum(shop.lines_by_date().values())
    assert set(shop.events_by_date("dagster/row_count").values()) == {total}
    # Dates before the first one with files are no partitions.
    for layer in ("raw", "events"):
        assert {each.partition for each in shop.materializations(layer)} == set(shop.lines_by_date())
    assert isinstance(shop.tick(asked.cursor), dg.SkipReason)
    shop.go_on(3)
    (request,) = shop.tick(asked.cursor).run_requests
    result = shop.execute(request.tags)
    shop.check()
    assert shop.events_by_date(rows) == shop.lines_by_date()
    last = END.date().isoformat()
    assert 0 < shop.events_by_date("new_events")[last] < shop.lines_by_date()[last]
    checks = {each.check_name: each.passed for each in result.get_asset_check_evaluations()}
    failed = {name for name, passed in checks.items() if not passed}
    assert "rows_conserved" in checks and failed <= {"fresh"}, "the sample is of a day that is past"

    # A backfill of dates is one run, and changes no row.
    before, cuts = shop.lake.events_by_segment(), len(shop.materializations("checkpoint"))
    first, last = START.date().isoformat(), (START.date() + datetime.timedelta(days=1)).isoformat()
    ends = {"dagster/asset_partition_range_start": first, "dagster/asset_partition_range_end": last}
    assert shop.execute({"cdc/feed": shop.lake.name, **ends}, job="dates").success
    assert len(shop.materializations("checkpoint")) == cuts + 1, "tables are brought to it by the same run"
    shop.check()
    assert shop.lake.events_by_segment() == before
    again = [each.partition for each in shop.materializations("events")]
    assert again.count(first) == again.count(last) == 2
    assert cli("run", "--partition", first).exit_code == 0
    shop.check()


@pytest.mark.in_turn
def test_tables_are_materialized_held_resumed_and_rebuilt_alone(shop: Shop) -> None:
    shop.execute({})
    (before,) = shop.materializations("shop", "orders")
    shop.go_on(3)
    cut = shop.lake.run().checkpoints.last()
    stale = {name: table.current_snapshot().snapshot_id for name, table in shop.lake.tables().items()}
    # What "Materialize" of one asset runs.
    job = build_definitions(shop.lake.config).resolve_implicit_global_asset_job_def()
    one = [dg.AssetKey([shop.lake.name, "shop", "orders"])]
    assert job.execute_in_process(instance=shop.instance, asset_selection=one).success
    check_shop(shop.lake, only="orders")
    moved = {name for name, table in shop.lake.tables().items() if table.current_snapshot().snapshot_id != stale[name]}
    assert moved == {("shop", "orders")}
    # A cut is of all tables at one checkpoint: this one waits for the others.
    assert shop.lake.run().checkpoints.last() == cut

    hold = decisions_config(shop.lake.name, hold={"shop.customers": "an audit"}, decided_by="ann")
    assert shop.execute({}, run_config=hold).success
    held = dict(shop.lake.run().checkpoints.last().held)["shop.customers#1"]
    assert "held by ann since" in held and "an audit" in held
    shop.go_on(3)
    assert cli("run").exit_code == 1
    customers = shop.lake.tables()["shop", "customers"].current_snapshot().snapshot_id
    assert customers == stale["shop", "customers"]
    assert "an audit" in cli("status").stdout
    assert shop.up_to_date("customers") is False and shop.up_to_date("orders") is not False
    assert cli("resume", "shop.customers").exit_code == 0
    assert cli("run").exit_code == 0
    assert shop.up_to_date("customers") is True
    shop.check()

    replaced = shop.lake.tables()["shop", "orders"]
    columns = [field.field_id for field in replaced.schema().fields]
    assert cli("rebuild", "shop.orders").exit_code == 0
    shop.check()
    rebuilt = shop.lake.tables()["shop", "orders"]
    assert rebuilt.current_snapshot().snapshot_id != replaced.current_snapshot().snapshot_id
    assert [field.field_id for field in rebuilt.schema().fields] == columns
    assert shop.materializations("shop", "orders")[0].metadata["rebuilt"].value is True
    assert cli("rebuild", "shop.orderz").exit_code == 2

    # Nothing is new: what is true of the table is said again.
    assert shop.execute({}, "tables").success
    again = shop.materializations("shop", "orders")[0]
    assert again.metadata["unchanged"].value is True
    of_a_change = {"upserts", "deletes", "zero_dates_as_null", "keys_of_older_state", "rebuilt"}
    assert again.metadata.keys() - {"unchanged"} == before.metadata.keys() - of_a_change
    assert again.metadata["dagster/row_count"].value == len(rebuilt.scan().to_arrow())
    shown = [shop.materializations(*key)[0] for key in (("shop", "orders"), ("shop", "customers"), ("checkpoint",))]
    assert len({each.metadata["lag_seconds"].value for each in shown}) == 1, "of one moment"
    assert "ADD COLUMN `channel`" in str(shop.materializations("ddl_shop")[0].metadata["statements"])

    # The cut is replaced by one of the same moment: what it showed of the table stays its last good state.
    assert cli("hold", "shop.customers", "--reason", "again").exit_code == 0
    assert cli("run").exit_code == 1
    (customers,) = json.loads(cli("show", "shop.customers", "--json").stdout)["tables"]
    assert customers["commit_ts"] == shop.lake.run().checkpoints.last().checkpoint_ts


def test_a_process_that_follows_makes_a_pass_for_each_change(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sink made by hand, which a thread changes; the second change brings a table."""
    shutil.rmtree(shop.lake.sink)
    sink = Sink(shop.lake.sink, "t")
    sessions: list[SparkSession] = []

    def build_and_note(*settings: Any) -> SparkSession:
        sessions.append(build_session(*settings))
        return sessions[-1]

    monkeypatch.setattr("cdc_lakehouse.lake.spark.build_session", build_and_note)

    def published(at: int) -> bool:
        return shop.lake.run().checkpoints.last().checkpoint_ts == T0 + at

    def change() -> None:
        try:
            sink.file("t", at=1)
            sink.checkpoint(2)
            until(lambda: published(2))
            sink.create("u", at=3)
            sink.file("u", at=4, version=3)
            sink.file("t", at=5)
            sink.checkpoint(6)
            until(lambda: published(6))
            sink.checkpoint(7)
            until(lambda: published(7))
        finally:
            os.kill(os.getpid(), signal.SIGTERM)

    changing = threading.Thread(target=change)
    changing.start()
    done = cli("run", "--follow", "--interval", "0.1", "--json")
    changing.join()
    assert done.exit_code == 0, done.output
    passes = [json.loads(line) for line in done.stdout.splitlines()]
    assert [each["checkpoint_ts"] - T0 for each in passes] == [2, 6, 7]
    rows = [{each["table"]: each["rows"] for each in one["tables"]} for one in passes[:2]]
    assert rows == [{"t": 1}, {"t": 2, "u": 1}]
    assert shop.lake.rows("t") == [(1,), (5,)] and shop.lake.rows("u") == [(4,)]

    # Three runs and no more; none needs a session.
    assert {run.run_id for run in shop.instance.get_runs()} == {each["run_id"] for each in passes}
    assert {each.status for each in shop.instance.get_runs()} == {dg.DagsterRunStatus.SUCCESS}
    assert not sessions
    # What a pass brings is an asset of the next one.
    assert len(shop.materializations("d", "t")) == 2 and shop.materializations("d", "u")
