"""Every data set equals its true rows after each stage, however it is read."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from cdc_lakehouse.config import LakeConfig
from cdc_lakehouse.lake.current import update_job
from cdc_lakehouse.lake.spark import spark_settings, use_catalog
from tests import LONG
from tests.kit import data_sets as packed
from tests.kit.data_sets import apply_stage
from tests.kit.jobs import divide_tables, let_spark_do_all
from tests.kit.lakes import TestLake, lake_section, run_all
from tests.kit.truth import Truth

pytestmark = pytest.mark.spark

NAMES = [f"{protocol}/{name}" for protocol in ("canal-json", "csv") for name in packed.names(protocol)]
SOUND = [name for name in NAMES if "/fault_" not in name]

# Sets of csv that are those of canal-json in another encoding: once decoded they are the same. Each is read in one way:
# in stages as canal-json, all at once as csv.
TWINS = [name for name in SOUND if name.startswith("csv/") and f"canal-json/{name[4:]}" in SOUND]
# Many stages of random statements and rows, which `tests/spark/test_chaos.py` has too.
RANDOM = {f"canal-json/random_{number}" for number in range(2, 7)}
IN_STAGES = [name for name in SOUND if LONG or name not in {*TWINS, *RANDOM}]
# Beside the twins those that arrive in many stages, or of which a stage has something that a later one has not.
MANY_STAGES = {
    "ahead_of_checkpoint", "date_dirs", "drop_recreate", "random_5", "random_6", "rename_chain", "rename_swap",
    "truncate_same_columns", "types_all_random", "across_nodes", "crash_index_before_data",
}  # fmt: skip
AT_ONCE = [name for name in SOUND if LONG or name in TWINS or name.partition("/")[2] in MANY_STAGES]
DATES_AGAIN = {"canal-json/random_5", "canal-json/rename_chain", "csv/restart_duplicates", "csv/random_3"}
SMOKE = "canal-json/rename_chain"
# All of their work goes through Spark's jobs; the tables of those that are True are divided.
IN_JOBS = {
    "canal-json/ddl_equal_ts": True,
    "canal-json/multi_schema_change": False,
    "canal-json/partitions_range": True,
    "canal-json/pk_updates": False,
    "canal-json/text_keys": True,
    "canal-json/types_all_random": False,
    "csv/across_nodes": True,
    "csv/csv_header_old_value": False,
    "csv/generated_columns": False,
}


@pytest.fixture
def truth(request: pytest.FixtureRequest, data_sets: Path, monkeypatch: pytest.MonkeyPatch) -> Truth:
    if LONG or request.param in IN_JOBS:
        let_spark_do_all(monkeypatch)
    if IN_JOBS.get(request.param):
        divide_tables(monkeypatch)
    return Truth(data_sets / request.param)


def check(lake: TestLake, truth: Truth, stage: int) -> None:
    """A table without any key is held, by the design; of one that is older than the feed and has no row nothing is in
    the log."""
    keyless = {name for name, table in truth.tables(stage).items() if not table["key"]}
    lake.check(truth.tables(stage), except_for=keyless | truth.older(), commit_ts=truth.commit_ts(stage))
    assert not truth.older() & set(lake.tables())


@pytest.mark.parametrize(
    "truth",
    [pytest.param(name, marks=[pytest.mark.smoke] if name == SMOKE else []) for name in IN_STAGES],
    indirect=True,
)
def test_data_set_stage_by_stage_equals_its_rows(truth: Truth, new_lake: Callable[..., TestLake]) -> None:
    lake = new_lake(source=truth.source)
    for stage in range(len(truth.stages)):
        apply_stage(truth.dataset, stage, lake.sink)
        done = run_all(lake.run())
        assert done.published.cut.checkpoint_ts == truth.stages[stage]["checkpoint_ts"]
        check(lake, truth, stage)
        assert lake.events_by_segment() == truth.events_by_segment(stage)


@pytest.mark.parametrize("truth", AT_ONCE, indirect=True)
def test_data_set_read_at_once_and_again_equals_its_rows(truth: Truth, new_lake: Callable[..., TestLake]) -> None:
    lake = new_lake(source=truth.source)
    last = len(truth.stages) - 1
    apply_stage(truth.dataset, last, lake.sink)
    run_all(lake.run())
    check(lake, truth, last)

    before = lake.metadata()
    done = run_all(lake.run())
    assert lake.metadata() == before, "a run with nothing to do has changed something"
    assert not done.published.new

    if LONG or f"{truth.protocol}/{truth.dataset.name}" in DATES_AGAIN:
        dates = frozenset(row["feed_date"] for row in lake.machinery("segments")) - {None}
        assert dates
        run_all(lake.run(dates=dates))
        check(lake, truth, last)
        assert lake.events_by_segment() == truth.events_by_segment(last)


@pytest.mark.parametrize(
    "truth",
    [pytest.param("canal-json/random_1", marks=pytest.mark.long), "canal-json/text_keys"],
    indirect=True,
)
def test_a_table_with_more_events_than_a_task_takes(
    truth: Truth, new_lake: Callable[..., TestLake], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Then it is divided by key among several."""
    # The one has hundreds of events, the other a few.
    monkeypatch.setattr(update_job, "_TASK_EVENTS", 20 if "random" in truth.dataset.name else 2)
    lake = new_lake(source=truth.source)
    for stage in range(len(truth.stages)):
        apply_stage(truth.dataset, stage, lake.sink)
        run_all(lake.run())
        check(lake, truth, stage)


@pytest.mark.parametrize("truth", ["canal-json/types_all_random"], indirect=True)
def test_with_the_settings_that_users_have(
    truth: Truth, new_lake: Callable[..., TestLake], spark: SparkSession
) -> None:
    """With generated code, adaptive plans and the product's number of partitions, which other tests go without."""
    lake = new_lake(source=truth.source)
    theirs = spark_settings(LakeConfig.model_validate({**lake_section(Path("/nowhere")), "spark": {}}))
    spark_itself = {
        "spark.sql.codegen.wholeStage": "true",
        "spark.sql.codegen.factoryMode": "FALLBACK",
        "spark.sql.adaptive.enabled": "true",
    }
    session = spark.newSession()
    for name in lake.config.lake.spark.conf:
        if name.startswith("spark.sql."):
            session.conf.set(name, {**spark_itself, **theirs}[name])
    assert int(session.conf.get("spark.sql.shuffle.partitions") or 0) > 1
    lake.session = lambda: use_catalog(session, lake.config.lake, lake.config.storage)
    for stage in range(len(truth.stages)):
        apply_stage(truth.dataset, stage, lake.sink)
        run_all(lake.run())
        check(lake, truth, stage)
