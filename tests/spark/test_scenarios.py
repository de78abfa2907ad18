"""Scenarios of `tests/scenarios`, each file in each of its ways."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.kit.lakes import TestLake
from tests.kit.scenarios import DIRECTORY, ScenarioError, files, load, play

pytestmark = pytest.mark.spark


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """With `--only`, the ways that play that scenario."""
    only = metafunc.config.getoption("--only")
    found = [
        pytest.param(name, way, marks=[] if way in file.ways else [pytest.mark.in_turn])
        for name, file in files().items()
        for way in (*file.ways, *file.others)
        if file.played(way, only)
    ]
    if not found:
        raise pytest.UsageError(f"no scenario is called {only!r}")
    metafunc.parametrize(("name", "way"), found, ids=lambda text: text.replace(" ", "-"))


def test_scenarios_of_file_end_as_written(
    name: str,
    way: str,
    new_lake: Callable[..., TestLake],
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> None:
    wrong = ""
    try:
        play(load(DIRECTORY / f"{name}.txt"), way, new_lake, monkeypatch, request.config.getoption("--only"))
    except ScenarioError as error:
        wrong = str(error)
    if wrong:
        pytest.fail(wrong, pytrace=False)
