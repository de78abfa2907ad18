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
from cdc_lakehouse.lake.tables.checkpoints import Cut
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
    assert seen["keys"] == [
        f"{lake.name}/{layer}" for layer in ("checkpoint", "compaction", "events", "maintenance", "raw", "source")
    ]
    assert seen["jobs"] == [
        "cdc_prune_runs",
        *(f"{lake.name}_{job}" for job in ("compaction", "dates", "maintenance", "new", "tables")),
    ]
    assert "no metadata file" in seen["ticks"][f"{lake.name}_checkpoint"]


@dataclass(frozen=True)
class Loaded:
    name: str
    definitions: dg.Definitions


@pytest.fixture(scope="module")
def known(tmp_path_factory: pytest.TempPathFactory) -> Loaded:
    """Definitions of a lake that knows tables, two of them live."""
    of_a = {"owners": ["a@example.com"], "tags": {"pii": True}, "freshness_minutes": 5}
    lake = lake_in(
        tmp_path_factory.mktemp("known"),
        tables={"include": ["d.*"], "exclude": ["d.secret"], "settings": {"d.a": of_a}},
        owners=["team:shop"],
        tags={"tier": 1},
        freshness_minutes=30,
    )
    changes = [change(10, name, CREATE) for name in ("a", "b", "secret", "gone")]
    lake.run().history.record([*changes, change(20, "gone", DROP, "DROP TABLE gone")], NOON)
    return Loaded(lake.name, build_definitions(lake.config))


def paths(definitions: dg.Definitions) -> set[tuple[str, ...]]:
    return {tuple(key.path) for key in definitions.resolve_asset_graph().get_all_asset_keys()}


def test_live_tables_that_are_taken_are_assets(known: Loaded) -> None:
    feed = known.name
    layers = {(feed, layer) for layer in ("source", "raw", "events", "checkpoint", "compaction", "maintenance")}
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

    assert before("source") == set() and before("raw") == {("source",)}
    assert before("events") == {("raw",)}
    assert before("schema", "d", "a") == {("source",)}
    assert before("current", "d", "a") == {("events",), ("schema", "d", "a")}
    assert before("checkpoint") == {("current", "d", "a"), ("current", "d", "b")}


@pytest.mark.parametrize("job", ["new", "dates", "tables"])
def test_every_op_of_a_feed_is_in_one_pool(known: Loaded, job: str) -> None:
    definitions = known.definitions
    found = definitions.resolve_job_def(f"{known.name}_{job}")
    assert found.executor_def.name == dg.in_process_executor.name
    pools = {node.definition.pool for node in found.nodes if isinstance(node.definition, dg.OpDefinition)}
    assert f"cdc_{known.name}" in pools


def test_what_is_new_and_tables_are_taken_without_a_date_and_a_backfill_takes_both_assets_with_dates(
    known: Loaded,
) -> None:
    jobs = {job: known.definitions.resolve_job_def(f"{known.name}_{job}") for job in ("new", "dates", "tables")}
    assert {job: found.partitions_def is not None for job, found in jobs.items()} == {
        "new": False, "dates": True, "tables": False,
    }  # fmt: skip
    keys = jobs["dates"].asset_layer.selected_asset_keys
    assert {tuple(key.path) for key in keys} == {(known.name, "raw"), (known.name, "events")}


@pytest.mark.parametrize(("asset", "cron"), [("maintenance", "0 3 * * *"), ("compaction", "30 * * * *")])
def test_maintenance_has_a_job_and_a_schedule_of_its_own(known: Loaded, asset: str, cron: str) -> None:
    job = known.definitions.resolve_job_def(f"{known.name}_{asset}")
    assert {tuple(key.path) for key in job.asset_layer.selected_asset_keys} == {(known.name, asset)}
    assert "cdc/feed" not in job.tags, "it is no run of the feed"
    assert known.definitions.resolve_schedule_def(f"{known.name}_{asset}_schedule").cron_schedule == cron


def test_one_table_can_be_materialized_alone(known: Loaded) -> None:
    chosen = dg.AssetKey([known.name, "current", "d", "a"])
    job = known.definitions.resolve_implicit_global_asset_job_def().get_subset(asset_selection={chosen})
    assert job.asset_layer.selected_asset_keys == {chosen}


def test_files_and_events_have_dates_and_a_backfill_is_one_run(known: Loaded) -> None:
    graph = known.definitions.resolve_asset_graph()
    dated = {
        key.path[1]: graph.get(key).backfill_policy == dg.BackfillPolicy.single_run()
        for key in graph.get_all_asset_keys()
        if graph.get(key).partitions_def is not None
    }
    assert dated == {"raw": True, "events": True}


def test_a_database_is_a_group_in_the_feeds_and_its_schemas_are_one_in_it(known: Loaded) -> None:
    graph = known.definitions.resolve_asset_graph()
    found = {"/".join(key.path[1:]): graph.get(key).group_name for key in graph.get_all_asset_keys()}
    feed = known.name
    assert found == {
        "source": f"{feed}/source",
        **dict.fromkeys(["raw", "events", "checkpoint", "compaction", "maintenance"], feed),
        **{f"current/d/{table}": f"{feed}/d" for table in ("a", "b")},
        **{f"schema/d/{table}": f"{feed}/d/schema" for table in ("a", "b")},
    }


def test_the_page_of_a_feed_names_each_table_once(known: Loaded) -> None:
    """The page of a group shows its assets and what they are next to."""
    graph = known.definitions.resolve_asset_graph()
    own = [graph.get(key) for key in graph.get_all_asset_keys() if graph.get(key).group_name == known.name]
    shown = {key for node in own for key in (node.key, *node.parent_keys, *node.child_keys)}
    names = sorted(key.path[-1] for key in shown)
    assert names == sorted({*names}) and {"a", "b", "source", "checkpoint"} <= {*names}


@pytest.mark.parametrize(
    ("path", "owners", "tags"),
    [
        (("raw",), ["team:shop"], {"tier": "1"}),
        (("source",), ["team:shop"], {"tier": "1"}),
        (("maintenance",), ["team:shop"], {"tier": "1"}),
        (("current", "d", "a"), ["a@example.com"], {"tier": "1", "pii": "true"}),
        (("schema", "d", "a"), ["a@example.com"], {"tier": "1", "pii": "true"}),
        (("current", "d", "b"), ["team:shop"], {"tier": "1"}),
    ],
)
def test_owners_and_tags_are_the_tables_own_or_the_feeds(
    known: Loaded, path: tuple[str, ...], owners: list[str], tags: dict[str, str]
) -> None:
    node = known.definitions.resolve_asset_graph().get(dg.AssetKey([known.name, *path]))
    assert list(node.owners) == owners
    assert {name: text for name, text in node.tags.items() if not name.startswith("dagster/kind/")} == tags


def test_an_asset_says_where_it_is_stored_and_what_database_it_comes_from(known: Loaded) -> None:
    node = known.definitions.resolve_asset_graph().get
    current = node(dg.AssetKey([known.name, "current", "d", "a"]))
    assert current.metadata["dagster/table_name"] == f"lake.{known.name}__d.a"
    assert current.metadata["dagster/storage_kind"] == "iceberg" and current.kinds == {"iceberg", "spark"}
    events = node(dg.AssetKey([known.name, "events"]))
    assert events.metadata["dagster/table_name"] == f"lake.cdc_{known.name}.events"
    columns = {column.name: column.type for column in events.metadata["dagster/column_schema"].columns}
    assert (columns["commit_ts"], columns["after"]) == ("long", "string")
    assert node(dg.AssetKey([known.name, "schema", "d", "a"])).kinds == {"tidb"}
    source = node(dg.AssetKey([known.name, "source"]))
    assert source.kinds == {"ticdc", "tidb"} and not source.is_executable
    assert source.metadata["place"].startswith("file:///")
    shown = source.metadata["configuration"].value
    assert shown.startswith(f"```yaml\nname: {known.name}\n") and "uri: (not shown)\n" in shown
    assert "  exclude:\n  - d.secret\n" in shown and shown.endswith("\n```")


def test_the_cut_must_be_fresh_and_a_table_where_that_is_said(known: Loaded) -> None:
    graph = known.definitions.resolve_asset_graph()
    found = {"/".join(key.path[1:]): graph.get(key).freshness_policy for key in graph.get_all_asset_keys()}
    windows = {name: policy.fail_window.to_timedelta() for name, policy in found.items() if policy is not None}
    minutes = {name: window.total_seconds() / 60 for name, window in windows.items()}
    assert minutes == {"checkpoint": 30, "current/d/a": 5}


def test_each_table_and_each_layer_has_its_checks(known: Loaded) -> None:
    keys = known.definitions.resolve_asset_graph().asset_check_keys
    found = {f"{'/'.join(key.asset_key.path[1:])} {key.name}" for key in keys if key.asset_key.path[-1] != "b"}
    assert found == {
        "raw no_index_gaps", "events nothing_quarantined", "events events_of_segments", "events lines_accounted",
        "checkpoint fresh", "checkpoint cut_rows",
        "checkpoint nothing_held", "checkpoint schema_files_valid", "checkpoint labels_known",
        "checkpoint patterns_match",
        "current/d/a no_duplicate_keys", "current/d/a rows_conserved",
    }  # fmt: skip


def test_definitions_do_not_read_the_sink(tmp_path: Path) -> None:
    lake = lake_in(tmp_path)
    Sink(lake.sink).create("t")
    assert len(paths(build_definitions(lake.config))) == 6


def test_the_check_of_the_source_has_a_job_of_its_own_and_a_schedule(tmp_path: Path) -> None:
    lake = lake_in(tmp_path, verify={"url": "mysql://nobody@127.0.0.1:1", "schedule": "0 3 * * 0"})
    definitions = build_definitions(lake.config)
    schedule = definitions.resolve_schedule_def(f"{lake.name}_verify")
    assert (schedule.job_name, schedule.cron_schedule) == (f"{lake.name}_verify", "0 3 * * 0")
    ops = {name: [node.name for node in definitions.resolve_job_def(name).nodes] for name in jobs_of(definitions)}
    (only,) = ops.pop(f"{lake.name}_verify")
    assert "equals_source" in only and ops and all(only not in others for others in ops.values())


def test_a_source_that_cannot_be_reached_is_no_difference(tmp_path: Path) -> None:
    lake = lake_in(tmp_path, verify={"url": "mysql://nobody@127.0.0.1:1"})
    lake.run().checkpoints.publish(Cut(7), [])
    done = build_definitions(lake.config).resolve_job_def(f"{lake.name}_verify").execute_in_process()
    (check,) = done.get_asset_check_evaluations()
    assert (check.passed, check.severity) == (False, dg.AssetCheckSeverity.WARN)
    assert "cannot be reached" in str(check.metadata["not_compared"].value)


def jobs_of(definitions: dg.Definitions) -> list[str]:
    jobs = definitions.get_repository_def().get_all_jobs()
    return [job.name for job in jobs if not job.name.startswith("__")]
