"""What Dagster loads: whatever is down, and without a JVM."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import dagster as dg
import pytest

from cdc_lakehouse.definitions import build_definitions
from tests.lake import CREATE, DROP, NOON, change
from tests.pipeline import Sink, lake_in

PROGRAM = """
import json, sys
import dagster as dg
from pyspark import SparkContext
from cdc_lakehouse.definitions import defs

loaded = defs() if callable(defs) else defs
instance = dg.DagsterInstance.ephemeral()
repository = loaded.get_repository_def()
ticks = {}
for sensor in repository.sensor_defs:
    context = dg.build_sensor_context(instance=instance, repository_def=repository)
    ticks[sensor.name] = sensor.evaluate_tick(context).skip_message
print(json.dumps({
    "keys": sorted(key.to_user_string() for key in repository.asset_graph.get_all_asset_keys()),
    "jobs": sorted(job.name for job in repository.get_all_jobs() if not job.name.startswith("__")),
    "ticks": ticks,
    "jvm": [SparkContext._active_spark_context is not None, SparkContext._gateway is not None],
}))
"""


@pytest.mark.slow
def test_definitions_and_a_tick_need_neither_jvm_nor_sink_nor_catalog(tmp_path: Path) -> None:
    lake = lake_in(tmp_path)
    assert not lake.sink.exists() and not list(tmp_path.rglob("catalog.db"))
    # Java can be found nowhere: to start it would fail.
    environment = {
        "PATH": "/nonexistent", "JAVA_HOME": "/nonexistent", "HOME": str(tmp_path),
        "CDC_LAKEHOUSE_CONFIG": str(lake.sink.parent / "lakehouse.yaml"),
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
    }  # fmt: skip
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout.splitlines()[-1])
    assert seen["jvm"] == [False, False]
    assert seen["keys"] == [f"{lake.name}/{layer}" for layer in ("checkpoint", "events", "maintenance", "raw")]
    assert seen["jobs"] == [f"{lake.name}_feed", f"{lake.name}_maintenance"]
    assert "no metadata file" in seen["ticks"][f"{lake.name}_checkpoint"]


@dataclass(frozen=True)
class Loaded:
    name: str
    definitions: dg.Definitions


@pytest.fixture(scope="module")
def known(tmp_path_factory: pytest.TempPathFactory) -> Loaded:
    """Definitions of a lake that knows tables, two of them live."""
    lake = lake_in(tmp_path_factory.mktemp("known"), tables={"include": ["d.*"], "exclude": ["d.secret"]})
    changes = [change(10, name, CREATE) for name in ("a", "b", "secret", "gone")]
    lake.run().history.record([*changes, change(20, "gone", DROP, "DROP TABLE gone")], NOON)
    return Loaded(lake.name, build_definitions(lake.config))


def paths(definitions: dg.Definitions) -> set[tuple[str, ...]]:
    return {tuple(key.path) for key in definitions.resolve_asset_graph().get_all_asset_keys()}


def test_live_tables_that_are_taken_are_assets(known: Loaded) -> None:
    feed = known.name
    layers = {(feed, layer) for layer in ("raw", "events", "checkpoint", "maintenance")}
    tables = {(feed, layer, "d", table) for layer in ("schema", "current") for table in ("a", "b")}
    assert paths(known.definitions) == layers | tables


@pytest.mark.parametrize("tables", [("a-b", "a_b"), ("b c",), ("订单",), ("a/b",)])
def test_names_that_dagster_would_not_have_chosen_load(tmp_path: Path, tables: tuple[str, ...]) -> None:
    lake = lake_in(tmp_path)
    lake.run().history.record([change(10, name, CREATE) for name in tables], NOON)
    assert {path[-1] for path in paths(build_definitions(lake.config)) if path[1] == "current"} == set(tables)


def test_assets_follow_one_another_up_to_the_checkpoint(known: Loaded) -> None:
    graph = known.definitions.resolve_asset_graph()

    def before(*path: str) -> set[tuple[str, ...]]:
        return {tuple(key.path[1:]) for key in graph.get(dg.AssetKey([known.name, *path])).parent_keys}

    assert before("raw") == set()
    assert before("events") == {("raw",)}
    assert before("schema", "d", "a") == {("events",)}
    assert before("current", "d", "a") == {("events",), ("schema", "d", "a")}
    assert before("checkpoint") == {("current", "d", "a"), ("current", "d", "b")}


def test_every_asset_of_a_feed_is_in_one_pool_and_in_its_job(known: Loaded) -> None:
    definitions = known.definitions
    job = definitions.resolve_job_def(f"{known.name}_feed")
    assert job.executor_def.name == dg.in_process_executor.name
    pools = {node.definition.pool for node in job.nodes if isinstance(node.definition, dg.OpDefinition)}
    assert f"cdc_{known.name}" in pools
    maintenance = {(known.name, "maintenance")}
    assert {tuple(key.path) for key in job.asset_layer.selected_asset_keys} == paths(definitions) - maintenance
    other = definitions.resolve_job_def(f"{known.name}_maintenance")
    assert {tuple(key.path) for key in other.asset_layer.selected_asset_keys} == maintenance
    assert "cdc/feed" not in other.tags, "it is no run of the feed"
    assert definitions.resolve_schedule_def(f"{known.name}_maintenance_schedule").cron_schedule == "0 3 * * *"


def test_files_and_events_have_dates_and_a_backfill_is_one_run(known: Loaded) -> None:
    graph = known.definitions.resolve_asset_graph()
    dated = {
        key.path[1]: graph.get(key).backfill_policy == dg.BackfillPolicy.single_run()
        for key in graph.get_all_asset_keys()
        if graph.get(key).partitions_def is not None
    }
    assert dated == {"raw": True, "events": True}


def test_each_table_and_each_layer_has_its_checks(known: Loaded) -> None:
    keys = known.definitions.resolve_asset_graph().asset_check_keys
    found = {f"{'/'.join(key.asset_key.path[1:])} {key.name}" for key in keys if key.asset_key.path[-1] != "b"}
    assert found == {
        "raw no_index_gaps", "events nothing_quarantined", "events events_of_segments", "checkpoint fresh",
        "checkpoint nothing_held", "checkpoint schema_files_valid", "checkpoint labels_known",
        "checkpoint patterns_match",
        "current/d/a no_duplicate_keys", "current/d/a rows_conserved",
    }  # fmt: skip


def test_definitions_do_not_read_the_sink(tmp_path: Path) -> None:
    lake = lake_in(tmp_path)
    Sink(lake.sink).create("t")
    assert len(paths(build_definitions(lake.config))) == 4
