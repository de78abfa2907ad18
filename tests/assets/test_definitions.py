"""What Dagster loads, whatever is down and without a JVM; its partitions are the source's date directories.
tests/golden_pages/definitions.txt has all of one feed. And feeds in a Dagster project of somebody else; and what is
deleted of old runs."""

import contextlib
import datetime
import json
import os
import re
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dagster as dg
import jsonschema
import pyarrow as pa
import pytest
import yaml
from dagster._core.definitions.data_version import CachingStaleStatusResolver, StaleStatus
from dagster._core.execution.backfill import BulkActionStatus, PartitionBackfill
from dagster._core.loader import LoadingContextForTest
from dagster._core.remote_origin import GrpcServerCodeLocationOrigin
from dagster.components.testing.utils import create_defs_folder_sandbox
from hypothesis import example, given
from hypothesis import strategies as st

from cdc_lakehouse import FeedComponent as Component
from cdc_lakehouse.config import FeedConfig, load
from cdc_lakehouse.definitions import build_definitions
from cdc_lakehouse.errors import ConfigurationError
from tests.boundaries.change_log import TableName, utc_now
from tests.kit import dagster_feed
from tests.kit import scripted_lake as script
from tests.kit.case_files import Case, evaluated, read_cases
from tests.kit.dagster_feed import FEED_TAG, decisions_config, delete_runs, ended, feed_named, keys, runs
from tests.kit.golden_pages import logged
from tests.kit.hand_sinks import HandSink
from tests.kit.lakes import TestLake
from tests.kit.waiting import clock_at

PROGRAM = """
import json
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
LAYERS = ("checkpoint", "compaction", "events", "maintenance", "raw", "source")


@pytest.mark.slow
def test_definitions_load_without_jvm_sink_and_catalog(lake: TestLake, tmp_path: Path) -> None:
    assert not lake.sink.exists() and not list(tmp_path.rglob("catalog.db"))
    # Java can be found nowhere: to start it would fail.
    environment = {
        "PATH": "/nonexistent", "JAVA_HOME": "/nonexistent", "HOME": str(tmp_path),
        "CDC_LAKEHOUSE_CONFIG": str(lake.config_path), "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
    }  # fmt: skip
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout.splitlines()[-1])
    assert seen["jvm"] == [False, False]
    assert seen["keys"] == [f"{lake.name}/{layer}" for layer in LAYERS]
    jobs = [f"{lake.name}_{job}" for job in ("compaction", "dates", "maintenance", "new", "tables")]
    assert seen["jobs"] == ["cdc_prune_runs", *jobs]
    assert "no metadata file" in seen["ticks"][f"{lake.name}_checkpoint"]


NAMES = st.text(st.sampled_from("aA_-/ `订é%0"), min_size=1, max_size=5)
TABLES = st.builds(TableName, NAMES, NAMES)


@given(one=TABLES, other=TABLES)
@example(one=TableName("a_b", "c"), other=TableName("a", "b_c"))
@example(one=TableName("a", "b__c"), other=TableName("a__b", "c"))
@example(one=TableName("d", "T"), other=TableName("d", "t"))
@example(one=TableName("a._", "b"), other=TableName("a", "_.b"))
def test_output_names_differ_as_tables_do(one: TableName, other: TableName) -> None:
    name = keys.output_name("current", one)
    assert re.fullmatch(r"[A-Za-z0-9_]+", name)
    assert (name == keys.output_name("current", other)) == (one == other)
    assert name != keys.output_name("ddl", one)


def test_verify_has_a_job_and_reports_an_unreachable_source(lake: TestLake) -> None:
    lake.configure(verify={"url": "mysql://nobody@127.0.0.1:1", "schedule": "0 3 * * 0"})
    script.publish(lake, at=7)
    definitions = build_definitions(lake.config)
    name = f"{lake.name}_verify"
    schedule = definitions.resolve_schedule_def(f"{name}_schedule")
    assert (schedule.job_name, schedule.cron_schedule) == (name, "0 3 * * 0")
    jobs = [job for job in definitions.get_repository_def().get_all_jobs() if not job.name.startswith("__")]
    ops = {job.name: [node.name for node in job.nodes] for job in jobs}
    (only,) = ops.pop(name)
    assert "equals_source" in only and ops and all(only not in others for others in ops.values())
    (check,) = definitions.resolve_job_def(name).execute_in_process().get_asset_check_evaluations()
    assert (check.passed, check.severity) == (False, dg.AssetCheckSeverity.WARN)
    assert "cannot be reached" in str(check.metadata["not_compared"].value)


def test_table_without_new_events_is_not_outdated(lake: TestLake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CDC_LAKEHOUSE_CONFIG", str(lake.config_path))
    lake.configure(source={"date_separator": "none"})
    script.create(lake, "a")
    HandSink(lake.sink).checkpoint(10)
    definitions, held = build_definitions(lake.config), decisions_config(lake.name, hold={"d.a": "x"}, decided_by="ann")
    with dg.DagsterInstance.ephemeral() as instance:
        table = dg.AssetMaterialization(dg.AssetKey([lake.name, "d", "a"]), tags=dagster_feed.made_of_events(lake.feed))
        instance.report_runless_asset_event(table)
        job = definitions.resolve_job_def(f"{lake.name}_new")
        assert job.execute_in_process(instance=instance, run_config=held).success
        assert "held by ann since" in dict(lake.run().checkpoints.last().held)["d.a#1"]
        graph, context = definitions.resolve_asset_graph(), LoadingContextForTest(instance)
        status = CachingStaleStatusResolver(instance, graph, context).get_status(table.asset_key)
    assert status == StaleStatus.FRESH


def test_failed_table_check_stops_assets_that_depend_on_it(lake: TestLake) -> None:
    script.create(lake, "t", "u")
    tables = {
        name: script.current_table(lake, name, pa.schema([("id", pa.int64())]), cdc_key='["id"]') for name in "tu"
    }
    one = pa.table({"id": [1]})
    for table in tables.values():
        table.append(one)
    assets = {name: dg.AssetKey([lake.name, "d", name]) for name in tables}

    @dg.asset(deps=[assets["t"]])
    def of_t() -> None: ...

    @dg.asset(deps=[assets["u"]])
    def of_u() -> None: ...

    chosen = dg.AssetSelection.checks_for_assets(*assets.values()) | dg.AssetSelection.assets(of_t, of_u)
    marts = dg.Definitions([of_t, of_u], jobs=[dg.define_asset_job("marts", chosen)])
    job = dg.Definitions.merge(build_definitions(lake.config), marts).resolve_job_def("marts")

    def runs() -> set[str]:
        done = job.execute_in_process(raise_on_error=False)
        assert len(done.get_asset_check_evaluations()) == 6
        return {event.step_key or "" for event in done.all_events if event.is_step_success} & {"of_t", "of_u"}

    assert runs() == {"of_t", "of_u"}
    tables["t"].append(one)
    assert runs() == set(), "the checks of all tables are one step"


def test_run_of_two_feeds_takes_the_steps_of_each(lake: TestLake) -> None:
    document = json.loads(lake.config_path.read_text())
    document["feeds"].append({**document["feeds"][0], "name": "other"})
    lake.config_path.write_text(json.dumps(document))
    HandSink(lake.sink).checkpoint(10)
    job = build_definitions(load(lake.config_path)).resolve_implicit_global_asset_job_def()
    cuts = [dg.AssetKey([feed, "checkpoint"]) for feed in (lake.name, "other")]
    done = job.execute_in_process(asset_selection=cuts)
    made = [each.asset_key for each in done.get_asset_materialization_events() if each.asset_key in cuts]
    assert sorted(made) == sorted(cuts)


# --- Partitions ---


NOW = datetime.datetime(2026, 6, 30, 23, 59, tzinfo=datetime.UTC)


@pytest.mark.parametrize("case", read_cases(Path(__file__).with_name("cases") / "partitions.txt"), ids=str)
def test_partitions_are_those_since_the_start_date_and_of_a_run(case: Case, update: bool) -> None:
    separator, zone, start, *dates = case.own[0].split()
    source = {"type": "storage_sink", "uri": "file:///s", "protocol": "canal-json", "date_separator": separator}
    source["time_zone"] = zone
    config = FeedConfig.model_validate({"name": "f", "source": source, "start_date": start})
    results = ["no partitions"]
    if (definition := dagster_feed.partitions_of(config)) is not None:
        found = list(definition.get_partition_keys(current_time=NOW))
        assert found == sorted(set(found))
        results = [" ".join([definition.timezone, *found[:1], *found[-1:]])]
    try:
        results.append(f"run: {' '.join(dagster_feed.run_partitions(config, dates, NOW))}".rstrip())
    except ConfigurationError as error:
        results.append(str(error))
    case.compare(results, update=update)


def test_partitions_begin_with_files_long_after_start_date(lake: TestLake, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run logs two events for each date that has passed: they must not be those of decades without files."""
    lake.configure(start_date="2000-01-01")
    monkeypatch.setenv("CDC_LAKEHOUSE_CONFIG", str(lake.config_path))
    HandSink(lake.sink).checkpoint(0)
    dates = ("1999-12-31", "2026-06-27", "not a date")
    script.land(lake, *(script.segment(f"d/t/1/{date}/CDC1.json", feed_date=date, events=1) for date in dates))
    script.publish(lake, at=script.before(NOW, 0))
    definitions = build_definitions(lake.config)
    loaded = definitions.resolve_asset_graph().get(keys.raw_key(lake.feed)).partitions_def
    assert isinstance(loaded, dg.TimeWindowPartitionsDefinition)
    assert loaded.start.date() == datetime.date(2026, 6, 27)
    with dg.DagsterInstance.ephemeral() as instance, clock_at(lambda: NOW):
        done = definitions.resolve_job_def(f"{lake.name}_new").execute_in_process(instance=instance)
        assert done.success
        materialized, _ = logged(instance.all_logs(done.run_id))
    passed = {str(each["partition"]) for each in materialized if each["partition"] is not None}
    assert passed == {"2026-06-27", "2026-06-28", "2026-06-29", "2026-06-30"}, "and the current one"


# --- Feeds in a Dagster project of somebody else: the project of docs/dagster-project.md, as it stands there ---


PAGE = Path(__file__).parents[2] / "docs" / "dagster-project.md"
SOURCE = {
    "type": "storage_sink", "uri": "./sink", "protocol": "canal-json", "date_separator": "day", "time_zone": "UTC",
}  # fmt: skip
FEED = {"name": "shop", "source": SOURCE, "start_date": "2026-11-01"}
LAKE = {"warehouse": "./lake", "catalog": {"type": "sql", "uri": "sqlite:///./catalog.db"}}


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The project of the page."""
    blocks = re.findall(r"```\w+\n# ([\w./]+)\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert len(blocks) >= 7
    for name, text in blocks:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    for folder in ("my_project", "my_project/defs"):
        (tmp_path / folder / "__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    for name in [name for name in sys.modules if name.split(".")[0] == "my_project"]:
        del sys.modules[name]


def load_project(project: Path) -> dg.Definitions:
    """The lake of the page's component has the table `shop.orders`."""
    attributes = yaml.safe_load((project / "my_project/defs/shop/defs.yaml").read_text())["attributes"]
    config = Component(**attributes).configuration(project / "my_project/defs/shop")
    script.create_in(config, "shop", "orders")
    return dg.load_from_defs_folder(path_within_project=project / "my_project")


def test_project_of_the_page_loads(project: Path) -> None:
    found = load_project(project)
    graph = found.resolve_asset_graph()
    orders = dg.AssetKey(["cdc", "shop", "shop", "orders"])
    assert graph.get(orders).group_name == "cdc/shop"
    assert graph.get(dg.AssetKey(["cdc", "shop", "raw"])).group_name == "cdc"
    assert graph.get(dg.AssetKey(["payments", "raw"])).group_name == "payments"
    assert graph.get(dg.AssetKey("revenue")).parent_keys == {orders}
    assert {sensor.name for sensor in found.sensors or ()} >= {"shop_checkpoint", "payments_checkpoint"}
    source = yaml.safe_load((project / "models/sources.yml").read_text())["sources"][0]["tables"][0]
    assert dg.AssetKey(source["config"]["meta"]["dagster"]["asset_key"]) == orders
    keys_of_checks = {key.asset_key for key in graph.asset_check_keys}
    assert orders in keys_of_checks and keys_of_checks <= set(graph.get_all_asset_keys())
    plain = __import__("my_project.plain", fromlist=["defs"]).defs
    assert dg.AssetKey(["payments", "events"]) in plain.resolve_asset_graph().get_all_asset_keys()


def test_changed_table_runs_dependent_assets(project: Path) -> None:
    found = load_project(project)
    orders = dg.AssetKey(["cdc", "shop", "shop", "orders"])
    instance = dg.DagsterInstance.ephemeral()
    assert dg.evaluate_automation_conditions(found, instance).total_requested == 0
    before = dg.evaluate_automation_conditions(found, instance)

    def requested(*, sound: bool) -> int:
        instance.report_runless_asset_event(dg.AssetMaterialization(orders))
        for name in ("no_duplicate_keys", "rows_conserved"):
            evaluation = dg.AssetCheckEvaluation(asset_key=orders, check_name=name, passed=sound, metadata={})
            instance.report_runless_asset_event(evaluation)
        after = dg.evaluate_automation_conditions(found, instance, cursor=before.cursor)
        return after.get_num_requested(dg.AssetKey("revenue"))

    assert requested(sound=False) == 0
    assert requested(sound=True) == 1


def test_feeds_merge_with_a_project_that_has_spark(tmp_path: Path) -> None:
    def feed(name: str) -> dg.Definitions:
        return build_definitions(Component(lake=LAKE, feed={**FEED, "name": name}).configuration(tmp_path / name))

    @dg.asset
    def own(spark: dg.ResourceParam[str]) -> None: ...

    theirs = dg.Definitions([own], resources={"spark": "theirs"}, executor=dg.multiprocess_executor)
    merged = dg.Definitions.merge(theirs, feed("a"), feed("b"))
    dg.Definitions.validate_loadable(merged)


SCHEMA: Any = jsonschema.Draft202012Validator(Component.model().model_json_schema())


@pytest.mark.parametrize("case", read_cases(Path(__file__).with_name("cases") / "component.txt"), ids=str)
def test_component_says_each_fault_of_its_attributes(case: Case, tmp_path: Path, update: bool) -> None:
    def schema(**attributes: Any) -> str:
        return "; ".join(sorted(each.message for each in SCHEMA.iter_errors(attributes))) or "valid"

    def loads(**attributes: Any) -> None:
        Component(**attributes).configuration(tmp_path)

    names = {"LAKE": LAKE, "FEED": FEED, "SOURCE": SOURCE, "schema": schema, "loads": loads}
    case.compare([each.replace(str(tmp_path), "<dir>") for each in evaluated(case, names)], update=update)


def test_component_is_listed_and_described() -> None:
    assert "FeedComponent" in dir(__import__("cdc_lakehouse"))
    assert "asset" in Component.get_spec().produces and Component.get_spec().description
    feed = SCHEMA.schema["properties"]["feed"]["properties"]
    assert all(each.get("description") for each in [*SCHEMA.schema["properties"].values(), *feed.values()])


@pytest.mark.parametrize("options", [{}, {"protocol": "csv", "source": "s3://bucket/cdc"}])
def test_scaffolded_component_loads(options: dict[str, str]) -> None:
    with create_defs_folder_sandbox() as sandbox:
        folder = sandbox.scaffold_component(Component, "invoices", options)
        with sandbox.load_component_and_build_defs(folder) as (_, definitions):
            assert dg.AssetKey(["invoices", "raw"]) in definitions.resolve_all_asset_keys()
        attributes = yaml.safe_load((folder / "defs.yaml").read_text())["attributes"]
        assert not [*SCHEMA.iter_errors(json.loads(json.dumps(attributes, default=str)))]


def test_secrets_come_by_reference(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KEY", "from-environment")
    s3 = {"access_key_id": "${KEY}", "secret_access_key": "${KEY}"}
    config = Component(lake=LAKE, storage={"s3": s3}, feed=FEED).configuration(tmp_path)
    assert config.storage.s3.secret_access_key == "from-environment"
    assert config.lake.warehouse == (tmp_path / "lake").as_uri()


# --- Old runs are deleted with their files, but those that an asset page shows ---


PRUNED = feed_named("f")
RAW, CUT = keys.raw_key(PRUNED), keys.checkpoint_key(PRUNED)
DAYS = dg.DailyPartitionsDefinition("2026-06-01", end_date="2026-06-05")


@pytest.fixture
def instance(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dg.DagsterInstance]:
    monkeypatch.setenv("DAGSTER_HOME", str(tmp_path))
    with dg.DagsterInstance.get() as instance:
        yield instance


def run(
    instance: dg.DagsterInstance, key: dg.AssetKey, date: str | None = None, *, feed: str | None = "f", job: str = "any"
) -> str:
    """A run of a job with an asset, with the tag of a feed."""

    @dg.asset(key=key, partitions_def=None if date is None else DAYS)
    def work() -> None: ...

    loaded = dg.Definitions([work], jobs=[dg.define_asset_job(job, [work])], executor=dg.in_process_executor)
    tags = {} if feed is None else {FEED_TAG: feed}
    return loaded.resolve_job_def(job).execute_in_process(instance=instance, partition_key=date, tags=tags).run_id


def run_ids(instance: dg.DagsterInstance) -> set[str]:
    return {each.run_id for each in instance.get_runs()}


def test_run_is_deleted_with_files_unless_shown(instance: dg.DagsterInstance, tmp_path: Path) -> None:
    first = run(instance, RAW, "2026-06-01")
    again, other_date = run(instance, RAW, "2026-06-01"), run(instance, RAW, "2026-06-02")
    earlier_cut, cut, of_another = run(instance, CUT), run(instance, CUT), run(instance, CUT, feed="g")
    assert delete_runs(instance, PRUNED, utc_now() - datetime.timedelta(days=1)) == (0, 0), "none is old enough"

    assert delete_runs(instance, PRUNED, utc_now()) == (3, 2)
    # The last cut is another feed's run here: it is the one that is shown.
    assert run_ids(instance) == {again, other_date, of_another}
    assert instance.get_materialized_partitions(RAW) == {"2026-06-01", "2026-06-02"}
    assert instance.get_latest_materialization_event(CUT) is not None
    gone = {first, earlier_cut, cut}
    left = [path for path in tmp_path.rglob("*") if any(run in str(path) for run in gone)]
    assert not left
    assert delete_runs(instance, PRUNED, utc_now()) == (0, 2)


def test_shown_run_stays_where_keys_have_a_prefix(instance: dg.DagsterInstance, lake: TestLake) -> None:
    lake.configure(key_prefix=["company"])
    key = keys.current_key(lake.feed, TableName("d", "t"))
    _, last = (run(instance, key, feed=lake.name) for _ in range(2))
    assert key.path[0] == "company" and delete_runs(instance, lake.feed, utc_now()) == (1, 1)
    assert run_ids(instance) == {last}


def test_runs_of_other_jobs_of_the_feed_are_deleted(instance: dg.DagsterInstance) -> None:
    kinds = ("maintenance", "compaction", "verify")
    made = [{run(instance, dg.AssetKey(["f", kind]), feed=None, job=f"f_{kind}") for kind in kinds} for _ in range(2)]
    assert delete_runs(instance, PRUNED, utc_now()) == (3, 3)
    assert run_ids(instance) == made[1]


def test_job_keeps_runs_for_the_configured_days(instance: dg.DagsterInstance) -> None:
    definitions = dagster_feed.build_retention([PRUNED], 1)
    kept = {run(instance, CUT), run(instance, CUT)}
    done = definitions.resolve_job_def("cdc_prune_runs").execute_in_process(instance=instance)
    assert done.success and run_ids(instance) == {*kept, done.run_id}
    (schedule,) = definitions.schedules or []
    assert isinstance(schedule, dg.ScheduleDefinition) and schedule.job_name == "cdc_prune_runs"


# --- Private names of Dagster ---


PACKAGE = Path(runs.__file__).parents[1]


def stored(database: Path, statement: str) -> list[tuple[Any, ...]]:
    with contextlib.closing(sqlite3.connect(database)) as connection:
        return sorted(connection.execute(statement))


def test_private_names_of_dagster_do_what_they_are_used_for(tmp_path: Path) -> None:
    users = [path.name for path in PACKAGE.rglob("*.py") if re.search(r"dagster(\._|_shared)", path.read_text("utf-8"))]
    assert users == ["runs.py"]
    with dg.instance_for_test(temp_dir=str(tmp_path)) as instance:
        backfill = PartitionBackfill(
            "b", BulkActionStatus.REQUESTED, False, {}, 0.0, asset_selection=[dg.AssetKey("a")]
        )
        instance.add_backfill(backfill)
        assert [each.backfill_id for each in runs.requested_backfills(instance)] == ["b"]
        run = ended(instance, None, fails=True)
        error = runs.step_failure(instance, run)
        assert error is not None and error.cause is not None and error.cause.cls_name == "CatalogUnreachableError"
        key, whole = (dg.AssetCheckKey(dg.AssetKey("a"), name) for name in ("bad", "whole"))
        for each in (key, whole):
            evaluation = dg.AssetCheckEvaluation(
                asset_key=each.asset_key, check_name=each.name, passed=each is whole, metadata={}
            )
            instance.report_runless_asset_event(evaluation)
        assert list(runs.failed_checks(instance, [key, whole])) == [key]
        runs.make_log_file(instance, "made")
        (own,), (made,) = (list(tmp_path.rglob(f"{name}.db")) for name in (run, "made"))
        form = "SELECT sql FROM sqlite_schema WHERE sql > ''", "SELECT * FROM alembic_version", "PRAGMA journal_mode"
        assert [stored(made, each) for each in form] == [stored(own, each) for each in form]
        content, (index,) = made.read_bytes(), tmp_path.rglob("index.db")
        runs.make_log_file(instance, "made")
        assert made.read_bytes() == content, "another process has made it: it stays as it is"
        kind, what, payload = runs.payload_of_event(dg.AssetMaterialization("new"))
        of_asset = dg.DagsterEvent(kind.value, "job", event_specific_data=payload, message=what)
        count = "SELECT count(*) FROM event_logs WHERE run_id = 'made'"
        for fails in (True, False):
            with (
                pytest.raises(OSError, match="no room") if fails else contextlib.nullcontext(),
                runs.stored_at_once(instance),
            ):
                for moment, event in ((0.0, None), (1.0, of_asset), (2.0, None)):
                    instance.handle_new_event(dg.EventLogEntry(None, 20, "said", "made", moment, None, None, event))
                assert [stored(each, count) for each in (made, index)] == [[(0,)]] * 2, "they are one transaction"
                if fails:
                    raise OSError("no room")
            assert [stored(each, count) for each in (made, index)] == [[(0 if fails else n,)] for n in (3, 1)]
        assert instance.get_latest_materialization_event(dg.AssetKey("new")) is not None
        files = set(tmp_path.rglob(f"{run}*"))
        runs.delete_log_file(instance, run)
        assert files - set(tmp_path.rglob(f"{run}*")), "each run has a file"
    server = runs.code_server(GrpcServerCodeLocationOrigin("127.0.0.1", port=1))
    with pytest.raises(dg.DagsterError, match="Could not reach user code server"):
        server.reload_code(timeout=1)
    assert runs.code_server(None) is None
