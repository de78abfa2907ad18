"""The command line as a script sees it: exit codes, messages and JSON."""

from __future__ import annotations

import io
import logging
import os
import pwd
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import dagster as dg
import pytest

from cdc_lakehouse.commands import common
from cdc_lakehouse.commands.common import ProgressLine, Shown, find_home, os_user
from cdc_lakehouse.pipeline.progress import Progress
from tests.commands import HEAVY, call, imported_by, run_that_fails
from tests.kit.lakes import TestLake
from tests.kit.scripted_lake import publish
from tests.kit.waiting import until
from tests.pipeline import Sink


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def say(text: str, capsys: pytest.CaptureFixture[str], *, color: bool = False) -> str:
    with click.Context(click.Command("a"), color=color):
        common.say(text)
    return capsys.readouterr().out


def shown_by_progress(stream: io.StringIO, shown: Shown) -> str:
    """What is written of a step that reports its progress, and then logs a name with escapes."""
    log = logging.getLogger("cdc_lakehouse")
    level = log.level
    with ProgressLine(shown, stream):
        Progress(log, "segments are decoded", 3).add(3)
        log.info("of \x1b[31ma\nname")
        if shown == "line" and stream.isatty():
            until(lambda: "name" in stream.getvalue())
    assert log.level == level and not log.handlers
    return stream.getvalue()


def log_lines(written: str) -> list[str]:
    return [re.sub(r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ ", "", line) for line in written.splitlines()]


def test_mistyped_path_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DAGSTER_HOME", raising=False)
    # Set by the command itself: put back when the test ends.
    monkeypatch.setattr(os, "environ", os.environ.copy())
    assert call("run", config=tmp_path / "mistyped" / "lakehouse.yaml").exit_code == 2
    assert not (tmp_path / "mistyped").exists()


def test_dagster_home_is_that_of_the_checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DAGSTER_HOME", raising=False)
    root = Path(__file__).parents[2]
    for directory, home in ((root / "demo", root), (root, root), (tmp_path, tmp_path)):
        monkeypatch.setenv("CDC_LAKEHOUSE_CONFIG", str(directory / "lakehouse.yaml"))
        assert find_home() == home / "dagster_home"
    assert "concurrency" in (root / "dagster_home/dagster.yaml").read_text(encoding="utf-8")


def test_help_loads_nothing_heavy() -> None:
    # In one process, which keeps what it has loaded: those that may load the least come first.
    may_not_load = {
        "ddl apply --help": HEAVY | {"pyarrow", "pymysql"},
        **dict.fromkeys(("--version", "--help", "sample --help", "canal tail --help"), HEAVY),
        "status --help": {"dagster", "pyspark", "boto3", "sqlalchemy"},
        **{words: {"dagster", "boto3"} for words in ("report --help", "metrics --help")},
        "run --help": {"boto3"},
    }
    seen = imported_by([words.split() for words in may_not_load])
    for (words, heavy), loaded in zip(may_not_load.items(), seen, strict=True):
        assert not loaded & heavy, words


def test_status_and_run_with_nothing_new_load_nothing_heavy(lake: TestLake, monkeypatch: pytest.MonkeyPatch) -> None:
    """A failed run is only read about until its job succeeds."""
    Sink(lake.sink).checkpoint(10)
    publish(lake, {"a": 1}, {"d.b": "held"})
    monkeypatch.setenv("CDC_LAKEHOUSE_CONFIG", str(lake.config_path))
    run_that_fails(lake, monkeypatch, RuntimeError("it failed"))
    with dg.DagsterInstance.get() as instance:
        assert "dagster" in imported_by([("status",)])[0]
        dg.GraphDefinition("runs").to_job().execute_in_process(instance=instance)
    heavy = {"dagster", "pandas", "pyspark", "grpc", "google", "sqlalchemy"}
    assert not imported_by([("status",)])[0] & heavy


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


# --- Text for a terminal ---


@pytest.mark.parametrize(
    "escape", ["\x1b[2J", "\x1b]0;title\x07", "\x1b[8m", "\x9b31m", "\r", "\x7f", "\u202e", "\udcff"]
)
def test_commands_for_a_terminal_are_escaped(escape: str, capsys: pytest.CaptureFixture[str]) -> None:
    said = say(f"a table t{escape}, and its statement", capsys)
    assert not any(each in said for each in escape if not each.isprintable())
    assert escape.encode("unicode_escape").decode() in said


def test_text_of_any_language_and_colours_stay(capsys: pytest.CaptureFixture[str]) -> None:
    assert say("größe 表 😀\nnext", capsys) == "größe 表 😀\nnext\n"
    coloured = click.style("a", fg="green") + click.style("b", fg="red") + click.style("c", fg="yellow")
    assert say(coloured, capsys, color=True) == f"{coloured}\n"


def test_progress_line_shows_the_last_message_and_is_cleared() -> None:
    written = shown_by_progress(Terminal(), "line")
    assert re.search(r"\d:\d\d of \\x1b\[31ma name", written)
    assert written.endswith("\r\x1b[K\r") and "\n" not in written and "\x1b[31m" not in written


@pytest.mark.parametrize(("stream", "shown"), [(Terminal(), "nothing"), (io.StringIO(), "line")])
def test_progress_is_silent_when_quiet_or_off_a_terminal(stream: io.StringIO, shown: Any) -> None:
    assert shown_by_progress(stream, shown) == ""


@pytest.mark.parametrize("stream", [Terminal(), io.StringIO()], ids=["a terminal", "a file"])
def test_progress_log_has_a_line_for_each_message(stream: io.StringIO) -> None:
    first, last = log_lines(shown_by_progress(stream, "log"))
    assert "segments are decoded" in first and last == "of \\x1b[31ma name"


def test_user_without_a_name_is_a_number(monkeypatch: pytest.MonkeyPatch) -> None:
    def nobody(uid: int) -> pwd.struct_passwd:
        raise KeyError(uid)

    monkeypatch.setattr(pwd, "getpwuid", nobody)
    for name in ("LOGNAME", "USER", "LNAME", "USERNAME"):
        monkeypatch.delenv(name, raising=False)
    assert os_user() == f"uid {os.getuid()}"
