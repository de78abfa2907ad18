"""Data sets, and inputs that users have reported, equal their true rows after each stage, however they are read."""

from __future__ import annotations

import json
import shutil
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from cdc_lakehouse.config import LakeConfig
from cdc_lakehouse.errors import SourceError
from cdc_lakehouse.lake.spark import spark_settings, use_catalog
from cdc_lakehouse.lake.tables.segments import totals
from cdc_lakehouse.operate.state import uncounted_lines
from tests import LONG
from tests.kit import data_sets as packed
from tests.kit.data_sets import ARCHIVES, apply_stage
from tests.kit.kafka import MemoryTopic
from tests.kit.lakes import TestLake, divide_tables, lake_section, let_spark_do_all, run_all
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


# --- Inputs that users of other tools have reported, or that documents of tools show, each played stage by stage: every
# table equals its rows, or is held with the right reason.
#
# A case is `{name}/case.json` of the archive: `kind` and `options` of the source, other settings of the `feed`, and
# `right`, the result in words; `expected.json` has the rows after each stage. A `sink` lays `sink/{stage}` over the
# stage before, a `dump` is read beside a sink, and `kafka` sends `msgs/{stage}.jsonl`. ---

CASES = dict(
    line.split(": ", 1) if ": " in line else (line, "")
    for line in ARCHIVES.joinpath("cases.txt").read_text(encoding="utf-8").splitlines()
)
"""By case, the tables that are held at the end, each with a part of the reason."""


@pytest.fixture(scope="module")
def cases(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("cases")
    with tarfile.open(ARCHIVES / "cases.tar.xz") as packed:
        packed.extractall(directory)
    return directory


class Case:
    def __init__(
        self, directory: Path, new_lake: Callable[..., TestLake], patch: pytest.MonkeyPatch, **feed: Any
    ) -> None:
        self._directory = directory
        self.truth = Truth(directory)
        told = json.loads((directory / "case.json").read_text(encoding="utf-8"))
        self._topic = MemoryTopic(patch) if told["kind"] == "kafka" else None
        source: dict[str, Any] = dict(told["options"])
        if self._topic is not None:
            source = {"type": "kafka", "bootstrap_servers": "localhost:1", "topics": ["cdc"], **source}
        if told["kind"] == "dump":
            source["initial"] = {"uri": str(directory / "dump"), **source["initial"]}
        self.lake = new_lake(source=source, **told.get("feed", {}), **feed)

    def advance(self, stage: int) -> None:
        if self._topic is None:
            shutil.copytree(self._directory / f"sink/{stage}", self.lake.sink, dirs_exist_ok=True)
        else:
            lines = (self._directory / f"msgs/{stage}.jsonl").read_text(encoding="utf-8").splitlines()
            self._topic.send(map(json.loads, lines))


@pytest.mark.in_turn
@pytest.mark.parametrize("name", CASES)
def test_case_equals_its_rows_or_is_held_with_its_reason(
    name: str, cases: Path, new_lake: Callable[..., TestLake], monkeypatch: pytest.MonkeyPatch
) -> None:
    case = Case(cases / name, new_lake, monkeypatch)
    for stage in range(len(case.truth.stages)):
        case.advance(stage)
        done = run_all(case.lake.run())
        held = {done.applied.lives[id].last.name.table: reason for id, reason in done.applied.held.items()}
        said = dict(each.split(" because ") for each in CASES[name].split(" | ") if each)
        assert held.keys() == said.keys() and all(words in held[table] for table, words in said.items()), held
        expected = case.truth.tables(stage)
        tables = case.lake.tables()
        case.lake.check(expected, except_for={each for each in {*expected, *tables} if each[1] in held})
        for summary in (each.current_snapshot().summary for each in tables.values() if each.current_snapshot()):
            # A data file has one deletion vector, however many runs have deleted rows of it.
            assert int(summary["total-delete-files"]) <= int(summary["total-data-files"])


@pytest.mark.parametrize("policy", ["ignore", "quarantine"])
def test_tombstones_are_counted_or_hold_by_policy(
    policy: str, cases: Path, new_lake: Callable[..., TestLake], monkeypatch: pytest.MonkeyPatch
) -> None:
    case = Case(cases / "topic-tombstones", new_lake, monkeypatch, policy={"tombstones": policy})
    case.advance(0)
    done = run_all(case.lake.run())
    (segment,) = case.lake.machinery("segments")
    assert (segment["tombstones"], segment["quarantined"]) == ((1, 0) if policy == "ignore" else (0, 1))
    assert uncounted_lines(case.lake.lake, case.lake.name) == []
    assert all("has no value" in reason for reason in done.applied.held.values())
    assert len(done.applied.held) == segment["quarantined"]
    assert totals(case.lake.run().segments.rows).tombstones == segment["tombstones"]


def test_dump_without_its_position_is_refused(
    cases: Path, new_lake: Callable[..., TestLake], monkeypatch: pytest.MonkeyPatch
) -> None:
    case = Case(cases / "mydumper-without-position", new_lake, monkeypatch)
    case.advance(0)
    with pytest.raises(SourceError, match=r"does not say its position.*dump MySQL again with its binlog on"):
        run_all(case.lake.run())


def test_cases_are_all_played(cases: Path) -> None:
    assert {each.name for each in cases.iterdir()} == {*CASES, "mydumper-without-position"}
