"""The command line as a script sees it: exit codes, messages and JSON."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from click.testing import Result

from cdc_lakehouse.lake.tables.lease import Lease
from cdc_lakehouse.pipeline.context import utc_now
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


@pytest.mark.parametrize(
    ("arguments", "heavy"),
    [
        (("sample", "--help"), HEAVY),
        (("status", "--help"), {"dagster", "pyspark", "boto3"}),
        (("run", "--help"), {"boto3"}),
        (("--version",), HEAVY),
        (("--help",), HEAVY),
        (("canal", "tail", "--help"), HEAVY),
        (("ddl", "apply", "--help"), HEAVY | {"pyarrow", "pymysql"}),
    ],
)
def test_help_is_quick_for_it_loads_nothing_heavy(arguments: tuple[str, ...], heavy: set[str]) -> None:
    assert not imported_by(*arguments) & heavy


def test_help_has_every_command_and_an_unknown_one_is_refused(call: Call) -> None:
    result = call("--help")
    assert result.exit_code == 0
    assert all(f"\n  {command} " in result.stdout for command in ("ddl", "run", "sample", "show", "status"))
    assert call("rnu").exit_code == 2
