"""A dump and the log that goes on from it give the true rows, in whatever order they are read."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from cdc_lakehouse.commands.plan import plan_ddl
from cdc_lakehouse.config import DumpCsv
from cdc_lakehouse.errors import SourceError
from cdc_lakehouse.lake.tables.events import Events
from cdc_lakehouse.operate.decisions import replay
from cdc_lakehouse.pipeline.dump import PendingLoad
from cdc_lakehouse.pipeline.steps import Steps
from tests.commands import call
from tests.kit.data_sets import apply_stage
from tests.kit.dumps import dump_of
from tests.kit.kills import KillAtCall, kill_everywhere
from tests.kit.lakes import TestLake, check_events, run_all
from tests.kit.truth import Truth

pytestmark = pytest.mark.spark

# Separators and quotes of Dumpling may have several characters.
WIDE = DumpCsv.model_validate({"separator": "|+|", "delimiter": "<q>"})
FORMS: list[tuple[str, dict[str, Any]]] = [
    *((name, {"rows_per_file": 3}) for name in ("csv/random_3", "canal-json/rename_chain", "canal-json/drop_recreate",
                                                "canal-json/existing_before_feed", "canal-json/date_dirs")),
    ("canal-json/types_all_random", {"rows_per_file": 3}),
    ("canal-json/types_all_random", {"tool": "mydumper"}),
    ("canal-json/types_all_random", {"tool": "mydumper", "output": "LOAD_DATA", "hex_blob": True, "suffix": ".zst"}),
    ("canal-json/types_all_random", {"tool": "mydumper", "output": "CSV", "header": True}),
    ("canal-json/random_6", {"filetype": "sql"}),
    ("canal-json/random_6", {"filetype": "sql", "suffix": ".zst"}),
    ("canal-json/random_6", {"filetype": "csv", "suffix": ".zst", "csv": WIDE}),
]  # fmt: skip
DATED = "canal-json/date_dirs"


class Load:
    """A data set whose dump is of its middle stage. `name` is a table with rows by then."""

    def __init__(self, data_set: Path, new_lake: Callable[..., TestLake], tmp_path: Path, **form: Any) -> None:
        self.truth = Truth(data_set)
        self.last = len(self.truth.stages) - 1
        self.stage = self.last // 2
        self.directory = tmp_path / "snapshot"
        dump_of(self.truth, self.stage, self.directory, **form)
        self.initial = {"type": form.get("tool", "dumpling"), "uri": str(self.directory)}
        if isinstance(form.get("csv"), DumpCsv):
            self.initial["csv"] = form["csv"].model_dump()
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


@pytest.fixture
def load(data_sets: Path, new_lake: Callable[..., TestLake], tmp_path: Path) -> Callable[..., Load]:
    return lambda name, **form: Load(data_sets / name, new_lake, tmp_path, **form)


@pytest.mark.in_turn
@pytest.mark.parametrize(("name", "form"), FORMS, ids=lambda x: x if isinstance(x, str) else "-".join(map(str, x)))
def test_dump_and_log_after_it_give_true_rows(name: str, form: dict[str, Any], load: Callable[..., Load]) -> None:
    found = load(name, **form)
    done = found.run()
    assert done.loaded.commit_ts == found.at
    cuts = {row["checkpoint_ts"] for row in found.lake.machinery("checkpoints")}
    # Where there is no table yet, there is no cut.
    assert cuts == {found.truth.stages[found.last]["checkpoint_ts"]} | ({found.at} if found.tables else set[int]())
    found.check(done)
    loaded = sum(1 for event in found.lake.machinery("events") if event["op"] == "R")
    assert loaded == sum(found.rows.values())
    before = found.lake.metadata()
    assert not found.run().loaded.decoded.segments and found.lake.metadata() == before


def test_dump_alone_is_the_first_cut(load: Callable[..., Load]) -> None:
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

    done = found.run(found.stage)
    found.check(done, found.stage)
    assert done.published.cut.checkpoint_ts == found.at
    assert plan_ddl(found.lake.run())["initial"] is None
    (status,) = json.loads(call("status", "--json", config=config).stdout)["feeds"]
    expected = {"position": found.at, "files_left": 0, "bytes_left": 0, "rows": sum(found.rows.values())}
    assert {name: status["initial"][name] for name in expected} == expected


@pytest.mark.parametrize("policy", ["hold", "skip"])
def test_table_with_other_rows_than_its_dump_says_is_held(policy: str, load: Callable[..., Load]) -> None:
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
    file: str, old: bytes, new: bytes, words: str, settings: list[str] | None, load: Callable[..., Load]
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
        assert replay(run, run.quarantine.rows)[0]
    found.check(found.run())


@pytest.mark.parametrize("repeats", [False, True])
def test_rows_of_dump_are_typed_as_they_are_decoded(repeats: bool, load: Callable[..., Load]) -> None:
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


def test_file_of_dump_gone_after_its_run_was_killed_has_its_rows(load: Callable[..., Load]) -> None:
    """Its events are in: they are not in the files that tasks have typed of the others."""
    found = load("canal-json/random_6", rows_per_file=2)
    found.lake.configure(policy={"quarantine": "skip"})
    with KillAtCall(Events, "commit", 1, after=True)(found.lake) as killed:
        found.run(found.stage)
    assert killed.happened
    max(found.directory.glob("test.Tab-1.0*.csv")).unlink()
    found.check(found.run(found.stage), found.stage)
    check_events(found.lake)


def test_load_killed_after_any_commit_changes_nothing(load: Callable[..., Load]) -> None:
    found = load("canal-json/rename_chain", rows_per_file=2)
    kill_everywhere(found.lake, found.run)
    found.check(found.run())
    events = [(event["segment"], event["line"]) for event in found.lake.machinery("events")]
    assert len(set(events)) == len(events)


def test_log_first_and_then_the_dump(load: Callable[..., Load]) -> None:
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


def test_gap_between_dump_and_log_is_refused(load: Callable[..., Load]) -> None:
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
def test_table_of_later_dump_begins_again_by_command(
    load: Callable[..., Load], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At that dump's position; the others go on from theirs."""
    found = load(DATED)
    found.run(found.stage)
    later = tmp_path / "later"
    dump_of(found.truth, found.last, later)
    found.lake.configure(source={**found.truth.source, "initial": {**found.initial, "uri": str(later)}})
    assert not found.run(found.stage).loaded.decoded.segments, "what is loaded stays"
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


def test_table_renamed_to_an_included_name_has_rows_of_dump(load: Callable[..., Load]) -> None:
    found = load("canal-json/rename_chain")
    gone = found.tables.keys() - found.truth.tables(found.last).keys()
    found.lake.configure(tables={"exclude": [".".join(name) for name in gone]})
    found.check(found.run())
