"""A dump and the log that goes on from it give the true rows, in whatever order they are read."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from cdc_lakehouse.adopt.plan import plan_ddl
from cdc_lakehouse.config import DumpCsv
from cdc_lakehouse.errors import SourceError
from cdc_lakehouse.pipeline.dump import PendingLoad
from cdc_lakehouse.pipeline.steps import Steps
from tests.commands import call
from tests.kit.data_sets import apply_stage
from tests.kit.dumped_truth import dump_of
from tests.kit.kills import kill_further_and_further
from tests.kit.lakes import TestLake, run_all
from tests.kit.other_writer import rewrite
from tests.kit.truth import Truth

pytestmark = pytest.mark.spark

SETS = [
    "canal-json/types_all_random", "csv/random_3", "canal-json/rename_chain", "canal-json/drop_recreate",
    "canal-json/existing_before_feed", "canal-json/date_dirs",
]  # fmt: skip


class Load:
    """A data set whose dump is of one of its stages, the middle one unless it is said."""

    def __init__(self, data_set: Path, new_lake: Callable[..., TestLake], tmp_path: Path, **form: Any) -> None:
        self.truth = Truth(data_set)
        self.stage = (len(self.truth.stages) - 1) // 2
        self.directory = tmp_path / "snapshot"
        dump_of(self.truth, self.stage, self.directory, **form)
        self.initial = {"type": form.get("tool", "dumpling"), "uri": str(self.directory)}
        if isinstance(form.get("csv"), DumpCsv):
            self.initial["csv"] = form["csv"].model_dump()
        self.lake = new_lake(source={**self.truth.source, "initial": self.initial})

    @property
    def at(self) -> int:
        return self.truth.stages[self.stage]["checkpoint_ts"]

    def advance(self, stage: int) -> None:
        apply_stage(self.truth.dataset, stage, self.lake.sink)

    def run(self) -> Steps:
        return run_all(self.lake.run())

    def keyless(self, stage: int) -> set[tuple[str, str]]:
        return {name for name, table in self.truth.tables(stage).items() if not table["key"]}

    def check(self, stage: int, done: Steps) -> None:
        tables = self.truth.tables(stage)
        assert {done.applied.lives[id].last.name.table for id in done.applied.held} <= {
            name[1] for name in self.keyless(stage)
        }, done.applied.held
        self.lake.check(tables, except_for=self.keyless(stage))


@pytest.fixture
def load(data_sets: Path, new_lake: Callable[..., TestLake], tmp_path: Path) -> Callable[..., Load]:
    return lambda name, **form: Load(data_sets / name, new_lake, tmp_path, **form)


def test_no_second_cut_at_the_dump_after_another_writers_rewrite(load: Callable[..., Load]) -> None:
    found = load("csv/random_3", rows_per_file=3)
    last = len(found.truth.stages) - 1
    found.advance(last)
    cut = found.run().published.cut
    rewrite(found.lake.lake.catalog.load_table((f"cdc_{found.lake.name}", "checkpoints")))
    before = found.lake.metadata()
    done = found.run()
    assert (done.published.cut, found.lake.metadata()) == (cut, before)
    found.check(last, done)


@pytest.mark.parametrize("name", SETS)
def test_the_first_cut_is_the_dump_and_the_log_goes_on(name: str, load: Callable[..., Load]) -> None:
    found = load(name, rows_per_file=3)
    last = len(found.truth.stages) - 1
    found.advance(last)
    done = found.run()
    assert done.loaded.commit_ts == found.at
    cuts = {row["checkpoint_ts"] for row in found.lake.machinery("checkpoints")}
    assert cuts == {found.at, found.truth.stages[last]["checkpoint_ts"]} or not found.truth.tables(found.stage)
    found.check(last, done)
    before = found.lake.metadata()
    again = found.run()
    assert found.lake.metadata() == before and not again.loaded.segments


def test_what_is_to_be_loaded_is_planned_and_what_is_loaded_is_told(
    load: Callable[..., Load], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = load("canal-json/date_dirs", rows_per_file=3)
    monkeypatch.setenv("CDC_LAKEHOUSE_CONFIG", str(found.lake.config_path))
    found.advance(found.stage)
    tables = found.truth.tables(found.stage)
    files = [*found.directory.glob("*.0*.csv")]
    before = found.lake.metadata()
    planned = plan_ddl(found.lake.run()).initial
    assert planned == PendingLoad(len(tables), len(files), sum(each.stat().st_size for each in files), None)
    said = call("plan").stdout
    assert f"initial load: {len(files)} files of {len(tables)} tables" in said and found.lake.metadata() == before

    found.run()
    assert plan_ddl(found.lake.run()).initial is None and "initial load" not in call("plan").stdout
    (told,) = json.loads(call("status", "--json").stdout)["feeds"]
    rows = sum(len(table["rows"]) for table in tables.values())
    assert {name: told["initial"][name] for name in ("position", "files_left", "bytes_left", "rows")} == {
        "position": found.at, "files_left": 0, "bytes_left": 0, "rows": rows,
    }  # fmt: skip


@pytest.mark.parametrize("filetype", ["csv", "sql"])
@pytest.mark.parametrize("suffix", ["", ".zst"])
def test_rows_of_every_form(filetype: str, suffix: str, load: Callable[..., Load]) -> None:
    """The cut of the dump alone: the log is not further yet."""
    # Separators and quotes of Dumpling may have several characters.
    csv = (
        {"csv": DumpCsv.model_validate({"separator": "|+|", "delimiter": "<q>"})}
        if filetype == "csv" and suffix
        else {}
    )
    found = load("canal-json/random_6", filetype=filetype, suffix=suffix, **csv)
    found.advance(found.stage)
    done = found.run()
    found.check(found.stage, done)
    assert done.published.cut.checkpoint_ts == found.at
    rows = sum(len(table["rows"]) for table in found.truth.tables(found.stage).values())
    assert sum(1 for event in found.lake.machinery("events") if event["op"] == "R") == rows


@pytest.mark.parametrize(
    "form",
    [
        {"tool": "mydumper"},
        {"tool": "mydumper", "output": "LOAD_DATA", "hex_blob": True, "suffix": ".zst"},
        {"tool": "mydumper", "output": "CSV", "header": True},
    ],
    ids=lambda form: "-".join(map(str, form.values())),
)
def test_dumps_by_mydumper(form: dict[str, Any], load: Callable[..., Load]) -> None:
    found = load("canal-json/types_all_random", **form)
    last = len(found.truth.stages) - 1
    found.advance(last)
    done = found.run()
    assert done.loaded.commit_ts == found.at
    found.check(last, done)


@pytest.mark.parametrize("policy", ["hold", "skip"])
def test_a_table_with_other_rows_than_its_dump_says_is_held(policy: str, load: Callable[..., Load]) -> None:
    """Whatever the policy for rows is; until a person gives it up."""
    found = load("canal-json/date_dirs", tool="mydumper")
    found.lake.configure(policy={"quarantine": policy})
    last = len(found.truth.stages) - 1
    name = min(name for name, table in found.truth.tables(found.stage).items() if table["rows"])
    count = len(found.truth.tables(found.stage)[name]["rows"])
    said = found.directory / "metadata"
    head, section, rest = said.read_text().partition(f"real_table_name={name[1]}\nrows = ")
    said.write_text(f"{head}{section}{count + 2}{rest.removeprefix(str(count))}")
    found.advance(last)
    (reason,) = found.run().applied.held.values()
    assert f"the dump says that the table has {count + 2} rows, and its files have {count}" in reason
    found.lake.check(found.truth.tables(last), except_for={name})
    run = found.lake.run()
    (row,) = run.quarantine.open()
    run.quarantine.discard([row.id], "somebody", "the dump was cut", run.clock())
    found.check(last, found.run())


def test_a_kill_after_any_commit_changes_nothing(load: Callable[..., Load]) -> None:
    found = load("canal-json/rename_chain", rows_per_file=2)
    last = len(found.truth.stages) - 1
    found.advance(last)
    kill_further_and_further(found.lake, found.run)
    found.check(last, found.run())
    events = [(event["segment"], event["line"]) for event in found.lake.machinery("events")]
    assert len(set(events)) == len(events)


def test_the_log_first_and_then_the_dump(load: Callable[..., Load]) -> None:
    """Tables that the log alone has told of are replaced; so it is, when one is taken later."""
    found = load("canal-json/date_dirs")
    last = len(found.truth.stages) - 1
    some = min(found.truth.tables(found.stage))
    found.lake.configure(source=found.truth.source, tables={"exclude": [".".join(some)]})
    found.advance(last)
    found.run()
    found.lake.configure(source={**found.truth.source, "initial": found.initial})
    found.lake.configure(tables={"exclude": [".".join(some)]})
    found.run()
    assert some[1] not in {table for _, table in found.lake.tables()}
    found.lake.configure(tables={})
    found.check(last, found.run())


def test_what_is_between_the_dump_and_the_log_is_missing(load: Callable[..., Load]) -> None:
    found = load("canal-json/existing_before_feed")
    found.advance(len(found.truth.stages) - 1)
    first = found.truth.expected["start_ts"]
    metadata = found.directory / "metadata"
    metadata.write_text(metadata.read_text().replace(str(found.at), str(first - 5)))
    with pytest.raises(SourceError, match=f"the dump is of {first - 5} and the change log begins at {first}"):
        found.run()
    assert not found.lake.machinery("segments"), "nothing is loaded"
    found.lake.configure(source={**found.truth.source, "initial": {**found.initial, "start_ts": first - 5}})
    assert found.run().loaded.commit_ts == first - 5


def test_a_bad_row_holds_its_table_alone(load: Callable[..., Load]) -> None:
    found = load("canal-json/date_dirs")
    last = len(found.truth.stages) - 1
    names = [name for name, table in sorted(found.truth.tables(found.stage).items()) if table["rows"]]
    (file,) = found.directory.glob(f"{names[0][0]}.{names[0][1]}.000000000.csv")
    file.write_bytes(file.read_bytes() + b"1,2\r\n")
    found.advance(last)
    done = found.run()
    assert [done.applied.lives[id].last.name.table for id in done.applied.held] == [names[0][1]]
    (row,) = found.lake.machinery("quarantine")
    assert (
        row["segment"].endswith(file.name) and row["line"] == len(found.truth.tables(found.stage)[names[0]]["rows"]) + 1
    )
    found.lake.check(found.truth.tables(last), except_for={names[0]})


def test_a_statement_that_is_not_understood_holds_its_table_alone(load: Callable[..., Load]) -> None:
    """Until the file is mended: then its rows are loaded, below the changes that came meanwhile."""
    found = load("canal-json/date_dirs")
    last = len(found.truth.stages) - 1
    name = min(name for name, table in found.truth.tables(found.stage).items() if table["rows"])
    schema = found.directory / f"{name[0]}.{name[1]}-schema.sql"
    whole = schema.read_text()
    schema.write_text(f"CREATE TABLE `{name[1]}` (`id` nothing);")
    found.advance(last)
    done = found.run()
    assert [done.applied.lives[id].last.name.table for id in done.applied.held] == [name[1]]
    (row,) = found.lake.machinery("quarantine")
    assert row["segment"].endswith(schema.name) and "a column type" in row["message"]
    found.lake.check(found.truth.tables(last), except_for={name})
    schema.write_text(whole)
    found.check(last, found.run())


def test_a_table_of_a_later_dump_begins_anew(
    load: Callable[..., Load], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At that dump's position; the others go on from theirs. By the command, which runs Dagster's assets."""
    found = load("canal-json/date_dirs")
    last = len(found.truth.stages) - 1
    names = [name for name, table in sorted(found.truth.tables(last).items()) if table["rows"]]
    found.advance(found.stage)
    found.run()
    later = tmp_path / "later"
    dump_of(found.truth, last, later)
    source = {**found.truth.source, "initial": {**found.initial, "uri": str(later)}}
    found.lake.configure(source=source)
    assert not found.run().loaded.segments, "what is loaded stays"
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("DAGSTER_HOME", str(home))
    monkeypatch.setenv("CDC_LAKEHOUSE_CONFIG", str(found.lake.config_path))
    unknown = call("load", "--table", "d.unknown")
    assert unknown.exit_code == 1 and "d.unknown cannot be loaded: the dump at " in unknown.output
    found.advance(last)
    loaded = call("load", "--table", ".".join(names[0]), "--json")
    assert loaded.exit_code == 0, loaded.output
    with dg.DagsterInstance.get() as instance:
        event = instance.get_latest_materialization_event(dg.AssetKey([found.lake.name, "snapshot"]))
    assert event is not None and event.asset_materialization is not None
    shown = {name: value.value for name, value in event.asset_materialization.metadata.items()}
    rows = len(found.truth.tables(last)[names[0]]["rows"])
    at = found.truth.stages[last]["checkpoint_ts"]
    assert (shown["new_files"], shown["new_rows"], shown["position_ts"]) == (1, rows, str(at))
    found.lake.check(found.truth.tables(last), except_for=found.keyless(last))
    times = found.lake.tables()[names[0]].scan().to_arrow().column("_commit_ts").to_pylist()
    assert set(times) == {at}


def test_a_table_that_is_renamed_to_a_name_that_is_taken(load: Callable[..., Load]) -> None:
    """Its rows of the dump are there in the first cut that shows it."""
    found = load("canal-json/rename_chain")
    last = len(found.truth.stages) - 1
    before, after = (found.truth.tables(stage) for stage in (found.stage, last))
    found.lake.configure(tables={"exclude": [".".join(name) for name in before.keys() - after.keys()]})
    found.advance(last)
    found.check(last, found.run())


def test_stored_generated_columns_are_not_in_dumps(load: Callable[..., Load]) -> None:
    """The table is held with what to do; by the configuration it goes without the column."""
    found = load("canal-json/date_dirs")
    last = len(found.truth.stages) - 1
    names = [name for name, table in sorted(found.truth.tables(found.stage).items()) if table["rows"]]
    schema = found.directory / f"{names[0][0]}.{names[0][1]}-schema.sql"
    whole = schema.read_text()
    schema.write_text(whole.replace("(\n", "(\n  `g` int GENERATED ALWAYS AS (1 + 1) STORED,\n", 1))
    found.advance(last)
    held = found.run().applied.held
    (reason,) = held.values()
    assert "stored generated column g" in reason and "virtual_columns" in reason
    found.lake.check(found.truth.tables(last), except_for={names[0]})
    found.lake.configure(tables={"settings": {".".join(names[0]): {"virtual_columns": ["g"]}}})
    found.check(last, found.run())
