"""Every data set equals its true rows after each stage, however it is read."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from cdc_lakehouse.config import LakeConfig
from cdc_lakehouse.lake.spark import spark_settings, use_catalog
from tests import LONG
from tests.kit import data_sets as packed
from tests.kit.data_sets import apply_stage
from tests.kit.jobs import divide_tables, let_spark_do_all
from tests.kit.lakes import TestLake, lake_section, run_all
from tests.kit.truth import Truth

pytestmark = pytest.mark.spark


def read() -> dict[str, set[str]]:
    """By data set without a fault, in which ways it is read: of canal-json in stages and not at once, of csv what is in
    canal-json too at once alone, unless `ways.txt` says more. The tables of those that are divided go through jobs."""
    names = [f"{protocol}/{name}" for protocol in ("canal-json", "csv") for name in packed.names(protocol)]
    lines = (packed.ARCHIVES / "ways.txt").read_text(encoding="utf-8").splitlines()
    said = dict(line.split(": ") for line in lines if not line.startswith("#"))
    found = {name: set(said.pop(name, "").split()) for name in names if "/fault_" not in name}
    assert not said, f"there are no data sets {said}"
    for name, ways in found.items():
        twin = name.startswith("csv/") and f"canal-json/{name[4:]}" in found
        if LONG:
            ways |= {"stages", "once", "dates"}
        elif "random" not in ways:
            ways.add("once" if twin else "stages")
    return found


WAYS = read()
SMOKE = "canal-json/rename_chain"


def sets(way: str) -> list[Any]:
    """Those that are read in a way."""
    chosen = [name for name, ways in WAYS.items() if way in ways]
    return [pytest.param(name, marks=pytest.mark.smoke if name == SMOKE else pytest.mark.in_turn) for name in chosen]


@pytest.fixture
def truth(request: pytest.FixtureRequest, data_sets: Path, monkeypatch: pytest.MonkeyPatch) -> Truth:
    if LONG or {"jobs", "divided"} & WAYS[request.param]:
        let_spark_do_all(monkeypatch)
    if "divided" in WAYS[request.param]:
        divide_tables(monkeypatch)
    return Truth(data_sets / request.param)


def check(lake: TestLake, truth: Truth, stage: int) -> None:
    """A table without any key is held, by the design; of one that is older than the feed and has no row nothing is in
    the log."""
    keyless = {name for name, table in truth.tables(stage).items() if not table["key"]}
    lake.check(truth.tables(stage), except_for=keyless | truth.older())
    assert not truth.older() & set(lake.tables())


@pytest.mark.parametrize("truth", sets("stages"), indirect=True)
def test_data_set_stage_by_stage_equals_its_rows(truth: Truth, new_lake: Callable[..., TestLake]) -> None:
    lake = new_lake(source=truth.source)
    for stage in range(len(truth.stages)):
        apply_stage(truth.dataset, stage, lake.sink)
        done = run_all(lake.run())
        assert done.published.cut.checkpoint_ts == truth.stages[stage]["checkpoint_ts"]
        check(lake, truth, stage)
        assert lake.events_by_segment() == truth.events_by_segment(stage)


@pytest.mark.parametrize("truth", sets("once"), indirect=True)
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

    if "dates" in WAYS[f"{truth.protocol}/{truth.dataset.name}"]:
        dates = frozenset(row["feed_date"] for row in lake.machinery("segments")) - {None}
        assert dates
        run_all(lake.run(dates=dates))
        check(lake, truth, last)
        assert lake.events_by_segment() == truth.events_by_segment(last)


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
