"""Data sets, and inputs that users have reported, equal their true rows after each stage, however they are read."""

import json
import re
import shutil
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import dagster as dg
import pytest
from pyspark.sql import SparkSession

from cdc_lakehouse.commands.decisions import replay_rows
from cdc_lakehouse.commands.plan import plan_ddl
from cdc_lakehouse.config import DumpCsv, LakeConfig
from cdc_lakehouse.errors import SourceError
from cdc_lakehouse.lake.current import update_tasks as update
from cdc_lakehouse.lake.spark import spark_settings, use_catalog
from cdc_lakehouse.lake.tables.events import Events
from cdc_lakehouse.lake.tables.segments import totals
from cdc_lakehouse.operate.state import uncounted_lines
from cdc_lakehouse.pipeline.dump import PendingLoad
from cdc_lakehouse.pipeline.steps import Steps
from tests import LONG
from tests.commands import call
from tests.kit import data_sets as packed
from tests.kit.data_sets import ARCHIVES, apply_stage
from tests.kit.dumps import dump_of
from tests.kit.kafka import MemoryTopic
from tests.kit.kills import KillAtCall, kill_everywhere
from tests.kit.lakes import NewLake, TestLake, check_events, divide_tables, lake_section, let_spark_do_all, run_all
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
def test_data_set_stage_by_stage_equals_its_rows(truth: Truth, new_lake: NewLake) -> None:
    lake = new_lake(source=truth.source)
    for stage in range(len(truth.stages)):
        apply_stage(truth.dataset, stage, lake.sink)
        done = run_all(lake.run())
        assert done.published.cut.checkpoint_ts == truth.stages[stage]["checkpoint_ts"]
        check(lake, truth, stage)
        assert lake.events_by_segment() == truth.events_by_segment(stage)


@pytest.mark.parametrize("truth", sets("once"), indirect=True)
def test_data_set_read_at_once_and_again_equals_its_rows(truth: Truth, new_lake: NewLake) -> None:
    lake = new_lake(source=truth.source)
    last = len(truth.stages) - 1
    apply_stage(truth.dataset, last, lake.sink)
    run_all(lake.run())
    check(lake, truth, last)

    with lake.without_changes(but=""):
        assert not run_all(lake.run()).published.new

    if "dates" in WAYS[f"{truth.protocol}/{truth.dataset.name}"]:
        dates = frozenset(row["feed_date"] for row in lake.machinery("segments")) - {None}
        assert dates
        run_all(lake.run(dates=dates))
        check(lake, truth, last)
        assert lake.events_by_segment() == truth.events_by_segment(last)


@pytest.mark.parametrize("truth", ["canal-json/types_all_random"], indirect=True)
def test_with_the_settings_that_users_have(truth: Truth, new_lake: NewLake, spark: SparkSession) -> None:
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
    def __init__(self, directory: Path, new_lake: NewLake, patch: pytest.MonkeyPatch, **feed: Any) -> None:
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
    name: str, cases: Path, new_lake: NewLake, monkeypatch: pytest.MonkeyPatch
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
    policy: str, cases: Path, new_lake: NewLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = Case(cases / "topic-tombstones", new_lake, monkeypatch, policy={"tombstones": policy})
    case.advance(0)
    done = run_all(case.lake.run())
    (segment,) = case.lake.machinery("segments")
    assert (segment["tombstones"], segment["quarantined"]) == ((1, 0) if policy == "ignore" else (0, 1))
    assert uncounted_lines(case.lake.run()) == []
    assert all("has no value" in reason for reason in done.applied.held.values())
    assert len(done.applied.held) == segment["quarantined"]
    assert totals(case.lake.run().segments.rows).tombstones == segment["tombstones"]


def test_dump_without_its_position_is_refused(cases: Path, new_lake: NewLake, monkeypatch: pytest.MonkeyPatch) -> None:
    case = Case(cases / "mydumper-without-position", new_lake, monkeypatch)
    case.advance(0)
    with pytest.raises(SourceError, match=r"does not say its position.*dump MySQL again with its binlog on"):
        run_all(case.lake.run())


def test_cases_are_all_played(cases: Path) -> None:
    assert {each.name for each in cases.iterdir()} == {*CASES, "mydumper-without-position"}


# --- A dump and the log that goes on from it give the true rows, in whatever order they are read ---

FORMS = [line.split(" ", 1) for line in (ARCHIVES / "dumps.txt").read_text(encoding="utf-8").splitlines()[1:]]
"""Data sets, and as JSON the forms in which their dumps are written."""
DATED = "canal-json/date_dirs"


class Load:
    """A data set whose dump is of its middle stage. `name` is a table with rows by then."""

    def __init__(self, data_set: Path, new_lake: NewLake, tmp_path: Path, **form: Any) -> None:
        self.truth = Truth(data_set)
        self.last = len(self.truth.stages) - 1
        self.stage = self.last // 2
        self.directory = tmp_path / "snapshot"
        csv = {"csv": DumpCsv.model_validate(form["csv"])} if "csv" in form else {}
        dump_of(self.truth, self.stage, self.directory, **{**form, **csv})
        self.initial = {"type": form.get("tool", "dumpling"), "uri": str(self.directory)}
        if "csv" in form:
            self.initial["csv"] = form["csv"]
        self.lake = new_lake(source={**self.truth.source, "initial": self.initial})
        self.at: int = self.truth.stages[self.stage]["checkpoint_ts"]
        self.tables = self.truth.tables(self.stage)
        self.rows = {name: len(table["rows"]) for name, table in self.tables.items()}
        self.name = min((name for name, rows in self.rows.items() if rows), default=("", ""))

    def run(self, stage: int | None = None) -> Steps:
        apply_stage(self.truth.dataset, self.last if stage is None else stage, self.lake.sink)
        return run_all(self.lake.run())

    def held(self, done: Steps) -> dict[str, str]:
        return {done.applied.lives[id].last.name.table: reason for id, reason in done.applied.held.items()}

    def check(self, done: Steps, stage: int | None = None) -> None:
        tables = self.truth.tables(self.last if stage is None else stage)
        keyless = {name for name, table in tables.items() if not table["key"]}
        assert self.held(done).keys() <= {name for _, name in keyless}, done.applied.held
        self.lake.check(tables, except_for=keyless)


NewLoad = Callable[..., Load]


@pytest.fixture
def load(data_sets: Path, new_lake: NewLake, tmp_path: Path) -> NewLoad:
    return lambda name, **form: Load(data_sets / name, new_lake, tmp_path, **form)


@pytest.mark.in_turn
@pytest.mark.parametrize(("name", "form"), FORMS)
def test_dump_and_log_after_it_give_true_rows(name: str, form: str, load: NewLoad) -> None:
    found = load(name, **json.loads(form))
    done = found.run()
    assert done.loaded.commit_ts == found.at
    cuts = {row["checkpoint_ts"] for row in found.lake.machinery("checkpoints")}
    # Where there is no table yet, there is no cut.
    assert cuts == {found.truth.stages[found.last]["checkpoint_ts"]} | ({found.at} if found.tables else set[int]())
    found.check(done)
    loaded = sum(1 for event in found.lake.machinery("events") if event["op"] == "R")
    assert loaded == sum(found.rows.values())
    before = found.lake.metadata()
    assert not found.run().loaded.segments and found.lake.metadata() == before


def test_dump_alone_is_the_first_cut(load: NewLoad) -> None:
    """The log is not further yet. What is to be loaded is planned, and what is loaded is reported."""
    found = load(DATED, rows_per_file=3)
    apply_stage(found.truth.dataset, found.stage, found.lake.sink)
    files = [*found.directory.glob("*.0*.csv")]
    config = found.lake.config_path
    before = found.lake.metadata()
    size = sum(each.stat().st_size for each in files)
    assert plan_ddl(found.lake.run())["initial"] == PendingLoad(len(found.tables), len(files), size, None)
    said = f"initial load: {len(files)} files of {len(found.tables)} tables"
    assert said in call("plan", config=config).stdout and found.lake.metadata() == before

    with patch(f"{update.__name__}.update_in_job", wraps=update.update_in_job) as read_again:
        done = found.run(found.stage)
    # The rows of the dump were typed as they were decoded, and are not read again.
    assert not read_again.call_args_list[0].args[2]
    found.check(done, found.stage)
    assert done.published.cut.checkpoint_ts == found.at
    assert plan_ddl(found.lake.run())["initial"] is None
    (status,) = json.loads(call("status", "--json", config=config).stdout)["feeds"]
    expected = {"position": found.at, "files_left": 0, "bytes_left": 0, "rows": sum(found.rows.values())}
    assert {name: status["initial"][name] for name in expected} == expected


@pytest.mark.parametrize("policy", ["hold", "skip"])
def test_table_with_other_rows_than_its_dump_says_is_held(policy: str, load: NewLoad) -> None:
    """Whatever the policy for rows is; until a person gives it up."""
    found = load(DATED, tool="mydumper")
    found.lake.configure(policy={"quarantine": policy})
    said, count = found.directory / "metadata", found.rows[found.name]
    head, section, rest = said.read_text().partition(f"real_table_name={found.name[1]}\nrows = ")
    said.write_text(f"{head}{section}{count + 2}{rest.removeprefix(str(count))}")
    (reason,) = found.run().applied.held.values()
    assert f"rows by the dump: {count + 2}, in its files: {count}" in reason
    found.lake.check(found.truth.tables(found.last), except_for={found.name})
    run = found.lake.run()
    (row,) = run.quarantine.open()
    run.quarantine.discard([row.id], "somebody", "the dump was cut", run.clock())
    found.check(found.run())


@pytest.mark.parametrize(
    ("file", "old", "new", "words", "settings"),
    [
        ("000000000.csv", rb"\Z", b"1,2\r\n", "000000000.csv line", None),
        ("-schema.sql", rb"(?s).*", b"CREATE TABLE `t` (`id` nothing);", "a column type", None),
        # Stored generated columns are not in dumps.
        ("-schema.sql", rb"\(\n", b"(\n  `g` int GENERATED ALWAYS AS (1 + 1) STORED,\n", "virtual_columns", ["g"]),
    ],
)
def test_file_of_dump_that_cannot_be_used_holds_its_table_alone(
    file: str, old: bytes, new: bytes, words: str, settings: list[str] | None, load: NewLoad
) -> None:
    """Until it is mended, or configured: then its rows are loaded, below the changes that came meanwhile. A file of
    rows is loaded again by a replay alone."""
    found = load(DATED)
    (path,) = found.directory.glob(f"{'.'.join(found.name)}*{file}")
    content = path.read_bytes()
    path.write_bytes(re.sub(old, new, content, count=1))
    assert path.read_bytes() != content
    ((table, reason),) = found.held(found.run()).items()
    assert table == found.name[1] and words in reason
    found.lake.check(found.truth.tables(found.last), except_for={found.name})
    if settings:
        found.lake.configure(tables={"settings": {".".join(found.name): {"virtual_columns": settings}}})
    else:
        path.write_bytes(content)
    if file.endswith(".csv"):
        run = found.lake.run()
        assert replay_rows(run, run.quarantine.rows)[0]
    found.check(found.run())


@pytest.mark.parametrize("repeats", [False, True])
def test_rows_of_dump_are_typed_as_they_are_decoded(repeats: bool, load: NewLoad) -> None:
    """Then their file is older than the table. A row that a second file repeats is found, and nothing unused stays."""
    found, name = load("canal-json/random_6", rows_per_file=2), ("test", "Tab-1")
    first, *_, last = sorted(found.directory.glob(f"{'.'.join(name)}.0*.csv"))
    if repeats:
        last.write_bytes(last.read_bytes() + first.read_bytes().splitlines(keepends=True)[1])
    found.check(found.run(found.stage), found.stage)
    directory = Path(found.lake.tables()[name].location().removeprefix("file://"))
    (file,) = directory.glob("data/*.parquet")
    created = min(each.stat().st_mtime_ns for each in directory.glob("metadata/*.json"))
    assert (file.stat().st_mtime_ns > created) == repeats


def test_file_of_dump_gone_after_its_run_was_killed_has_its_rows(load: NewLoad) -> None:
    """Its events are in: they are not in the files that tasks have typed of the others."""
    found = load("canal-json/random_6", rows_per_file=2)
    found.lake.configure(policy={"quarantine": "skip"})
    with KillAtCall(Events, "commit", 1, after=True)(found.lake) as killed:
        found.run(found.stage)
    assert killed.happened
    max(found.directory.glob("test.Tab-1.0*.csv")).unlink()
    found.check(found.run(found.stage), found.stage)
    check_events(found.lake)


def test_load_killed_after_any_commit_changes_nothing(load: NewLoad) -> None:
    found = load("canal-json/rename_chain", rows_per_file=2)
    kill_everywhere(found.lake, found.run)
    found.check(found.run())
    events = [(event["segment"], event["line"]) for event in found.lake.machinery("events")]
    assert len(set(events)) == len(events)


def test_log_first_and_then_the_dump(load: NewLoad) -> None:
    """Tables that the log alone has told of are replaced; so it is, when one is taken later."""
    found = load(DATED)
    some = min(found.tables)
    found.lake.configure(source=found.truth.source, tables={"exclude": [".".join(some)]})
    found.run()
    found.lake.configure(source={**found.truth.source, "initial": found.initial})
    found.run()
    assert some[1] not in {table for _, table in found.lake.tables()}
    found.lake.configure(tables={})
    found.check(found.run())


def test_gap_between_dump_and_log_is_refused(load: NewLoad) -> None:
    found = load("canal-json/existing_before_feed")
    first = found.truth.expected["start_ts"]
    metadata = found.directory / "metadata"
    metadata.write_text(metadata.read_text().replace(str(found.at), str(first - 5)))
    with pytest.raises(SourceError, match=f"the dump is of {first - 5} and the change log begins at {first}"):
        found.run()
    assert not found.lake.machinery("segments"), "nothing is loaded"
    found.lake.configure(source={**found.truth.source, "initial": {**found.initial, "start_ts": first - 5}})
    assert found.run().loaded.commit_ts == first - 5


@pytest.mark.in_turn
def test_table_of_later_dump_reloads_by_command(load: NewLoad, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At that dump's position; the others go on from theirs."""
    found = load(DATED)
    found.run(found.stage)
    later = tmp_path / "later"
    dump_of(found.truth, found.last, later)
    found.lake.configure(source={**found.truth.source, "initial": {**found.initial, "uri": str(later)}})
    assert not found.run(found.stage).loaded.segments, "what is loaded stays"
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("DAGSTER_HOME", str(home))
    config = found.lake.config_path
    unknown = call("load", "--table", "d.unknown", config=config)
    assert unknown.exit_code == 1 and "d.unknown cannot be loaded: the dump at " in unknown.output
    apply_stage(found.truth.dataset, found.last, found.lake.sink)
    done = call("load", "--table", ".".join(found.name), "--json", config=config)
    assert done.exit_code == 0, done.output
    with dg.DagsterInstance.get() as instance:
        event = instance.get_latest_materialization_event(dg.AssetKey([found.lake.name, "snapshot"]))
    assert event is not None and event.asset_materialization is not None
    shown = {name: value.value for name, value in event.asset_materialization.metadata.items()}
    tables, at = found.truth.tables(found.last), found.truth.stages[found.last]["checkpoint_ts"]
    rows = len(tables[found.name]["rows"])
    assert (shown["new_files"], shown["new_rows"], shown["position_ts"]) == (1, rows, str(at))
    found.lake.check(tables, except_for={name for name, table in tables.items() if not table["key"]})
    assert set(found.lake.tables()[found.name].scan().to_arrow()["_commit_ts"].to_pylist()) == {at}


def test_table_renamed_to_an_included_name_has_rows_of_dump(load: NewLoad) -> None:
    found = load("canal-json/rename_chain")
    gone = found.tables.keys() - found.truth.tables(found.last).keys()
    found.lake.configure(tables={"exclude": [".".join(name) for name in gone]})
    found.check(found.run())
