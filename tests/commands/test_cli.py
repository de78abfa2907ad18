"""The command line as a script sees it: exit codes, messages and JSON."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

from cdc_lakehouse.changelog.positions import utc_now
from cdc_lakehouse.cli import main
from cdc_lakehouse.commands import common
from cdc_lakehouse.lake.tables.lease import Lease
from tests import commands
from tests.commands import HEAVY, imported_by
from tests.kit.lakes import TestLake
from tests.pipeline import Sink

Call = Callable[..., Result]


@pytest.fixture
def call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Call:
    """A command with the configuration of `lake`, or another one."""
    monkeypatch.setenv("DAGSTER_HOME", str(tmp_path / "home"))
    return partial(commands.call, config=tmp_path / "feed" / "lakehouse.yaml")


def edited(lake: TestLake, where: str, value: object) -> Path:
    """The lake's configuration with one other value; `where` is the path of its key."""
    document = json.loads((lake.sink.parent / "lakehouse.yaml").read_text())
    *parents, last = where.replace("[0]", ".0").split(".")
    section = document
    for step in parents:
        section = section[int(step) if step.isdigit() else step]
    section[last] = value
    path = lake.sink.parent / "other.yaml"
    path.write_text(json.dumps(document))
    return path


@pytest.mark.parametrize(
    ("command", "where", "value"),
    [
        ("run", "feeds[0].source.date_separator", "hour"),
        ("status", "feeds[0].source.time_zone", "Mars/Olympus"),
        ("run", "feeds[0].nmae", "typo"),
        ("status", "feeds[0].tables", {"include": ["orders"]}),
        ("run", "feeds[0].policy", {"quarantine": "drop"}),
        ("status", "lake.catalog", {"type": "sql"}),
    ],
)
def test_a_bad_configuration_is_2_and_names_the_key(
    lake: TestLake, call: Call, command: str, where: str, value: object
) -> None:
    result = call(command, config=edited(lake, where, value))
    assert result.exit_code == 2
    assert where in result.stderr and "Traceback" not in result.output + result.stderr


@pytest.mark.parametrize("command", ["run", "status", "show"])
def test_a_configuration_or_a_feed_that_is_not_there_is_2_and_named(
    lake: TestLake, call: Call, tmp_path: Path, command: str
) -> None:
    absent = tmp_path / "absent.yaml"
    result = call(command, config=absent)
    assert result.exit_code == 2 and str(absent) in result.stderr
    result = call(command, "--feed", "nosuch")
    assert result.exit_code == 2 and "nosuch" in result.stderr and lake.name in result.stderr


@pytest.mark.parametrize("partition", ["2025-12-31", "2026-06", "today", "2026-02-30", "2999-01-01"])
def test_a_partition_that_is_not_the_feeds_is_2(lake: TestLake, call: Call, partition: str) -> None:
    result = call("run", "--partition", partition)
    assert result.exit_code == 2 and partition in result.stderr and lake.name in result.stderr


def test_a_source_that_is_not_there_is_3_and_told_as_json_and_in_words(lake: TestLake, call: Call) -> None:
    result = call("run", "--json")
    (feed,) = json.loads(result.stdout)["feeds"]
    told = (feed["feed"], feed["exit_code"], feed["run_id"], feed["published"])
    assert (result.exit_code, told) == (3, (lake.name, 3, None, False)) and str(lake.sink) in feed["error"]
    result = call("run")
    assert result.exit_code == 3
    assert f"feed {lake.name}" in result.stdout and f"{lake.sink} is not a directory" in result.stdout


def test_a_storage_that_is_not_supported_is_2(lake: TestLake, call: Call) -> None:
    result = call("run", config=edited(lake, "feeds[0].source.uri", "ftp://host/sink"))
    assert result.exit_code == 2 and "ftp://" in result.stdout


@pytest.mark.parametrize("command", ["status", "run", "show"])
def test_a_catalog_that_cannot_be_opened_is_2_and_a_sentence(
    lake: TestLake, call: Call, tmp_path: Path, command: str
) -> None:
    (tmp_path / "catalog.db").mkdir()
    result = call(
        command, config=edited(lake, "lake.catalog", {"type": "sql", "uri": f"sqlite:///{tmp_path}/catalog.db"})
    )
    assert result.exit_code == 2 and "Traceback" not in result.output
    assert "lake.catalog.uri: the database cannot be used: unable to open database file" in result.output


def test_a_feed_that_another_run_has_is_left_alone(lake: TestLake, call: Call) -> None:
    Sink(lake.sink).checkpoint(10)
    lease = Lease(lake.lake, lake.name, "another", utc_now)
    lease.take()
    result = call("run")
    assert result.exit_code == 1 and "run another on" in result.stdout and "is not finished" in result.stdout
    lease.release()
    assert set(lake.metadata()) == {f"cdc_{lake.name}.lease"}


def test_a_mistyped_path_leaves_nothing_behind(call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DAGSTER_HOME")
    # Set by the command itself: put back when the test ends.
    monkeypatch.setattr(os, "environ", os.environ.copy())
    assert call("run", config=tmp_path / "mistyped" / "lakehouse.yaml").exit_code == 2
    assert not (tmp_path / "mistyped").exists()


def test_dagster_home_of_a_configuration_in_the_checkout_is_the_checkouts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("DAGSTER_HOME", raising=False)
    root = Path(__file__).parents[2]
    for directory, home in ((root / "demo", root), (root, root), (tmp_path, tmp_path)):
        monkeypatch.setenv("CDC_LAKEHOUSE_CONFIG", str(directory / "lakehouse.yaml"))
        assert common.find_home() == home / "dagster_home"
    assert "concurrency" in (root / "dagster_home/dagster.yaml").read_text(encoding="utf-8")


def test_help_is_quick_for_it_loads_nothing_heavy() -> None:
    # In one process, which keeps what it has loaded: those that may load the least come first.
    may_not_load: list[tuple[tuple[str, ...], set[str]]] = [
        (("ddl", "apply", "--help"), HEAVY | {"pyarrow", "pymysql"}),
        (("--version",), HEAVY),
        (("--help",), HEAVY),
        (("sample", "--help"), HEAVY),
        (("canal", "tail", "--help"), HEAVY),
        (("status", "--help"), {"dagster", "pyspark", "boto3"}),
        (("report", "--help"), {"dagster", "boto3"}),
        (("run", "--help"), {"boto3"}),
    ]
    seen = imported_by([arguments for arguments, _ in may_not_load])
    for (arguments, heavy), loaded in zip(may_not_load, seen, strict=True):
        assert not loaded & heavy, arguments


def test_help_has_every_command_and_an_unknown_one_is_refused(call: Call) -> None:
    result = call("--help")
    assert result.exit_code == 0
    assert all(f"\n  {command} " in result.stdout for command in ("ddl", "run", "sample", "show", "status"))
    assert call("rnu").exit_code == 2


def leaves(group: click.Group, *above: str) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    for name in group.list_commands(click.Context(group)):
        command = group.get_command(click.Context(group), name)
        assert command is not None
        if isinstance(command, click.Group):
            yield from leaves(command, *above, name)
        else:
            yield (*above, name), command


def test_every_command_has_examples_with_options_that_it_has() -> None:
    for names, command in leaves(main):
        assert "-h, --help" in CliRunner().invoke(main, [*names, "-h"]).stdout, names
        examples = re.findall(rf"cdc-lakehouse {' '.join(names)}(?= |$)(.*)", command.help or "", re.MULTILINE)
        assert examples, f"{names} has no example"
        options = {option for parameter in command.params for option in parameter.opts}
        for example in examples:
            used = re.findall(r"(?<= )--[a-z-]+", example)
            assert set(used) <= options, (names, example)


def test_what_is_printed_is_there_as_json() -> None:
    without = {names for names, command in leaves(main) if not any("--json" in each.opts for each in command.params)}
    # The schema and entries are JSON anyway, and metrics have a form of their own.
    assert without == {("config", "schema"), ("canal", "tail"), ("metrics",)}


def test_the_option_names_the_configuration_before_the_environment_does(
    lake: TestLake, call: Call, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    Sink(lake.sink).checkpoint(10)
    # Set by the option itself: put back when the test ends.
    monkeypatch.setattr(os, "environ", os.environ.copy())
    monkeypatch.chdir(lake.sink.parent)
    result = call("--config", "lakehouse.yaml", "status", "--json", config=tmp_path / "absent.yaml")
    assert result.exit_code == 0 and json.loads(result.stdout)["feeds"][0]["feed"] == lake.name
    result = call("--config", "nosuch.yaml", "status")
    assert result.exit_code == 2 and str(lake.sink.parent / "nosuch.yaml") in result.stderr


def test_names_are_completed_without_loading_commands() -> None:
    program = (
        "import os, sys\nos.environ.update(_CDC_LAKEHOUSE_COMPLETE='bash_complete', COMP_WORDS=sys.argv[1], "
        "COMP_CWORD='1')\nfrom cdc_lakehouse.cli import main\n"
        "try:\n    main(prog_name='cdc-lakehouse')\nexcept SystemExit:\n    pass\n"
        "print('|', *sorted({name.partition('.')[0] for name in sys.modules}))"
    )

    def complete(words: str) -> tuple[list[str], set[str]]:
        done = subprocess.run([sys.executable, "-c", program, words], capture_output=True, text=True, check=True)
        found, _, loaded = done.stdout.partition("|")
        return found.split(), set(loaded.split())

    found, loaded = complete("cdc-lakehouse re")
    assert found == ["plain,rebuild", "plain,report", "plain,resume"] and not loaded & HEAVY
    assert complete("cdc-lakehouse --con")[0] == ["plain,--config"]
