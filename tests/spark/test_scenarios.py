"""Scenarios of `tests/scenarios`, each file in each of its ways."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.kit.lakes import TestLake
from tests.kit.scenarios import DIRECTORY, ScenarioError, files, load, play

pytestmark = pytest.mark.spark


@pytest.mark.parametrize(
    ("name", "way"),
    [(name, way) for name in files() for way in load(DIRECTORY / f"{name}.txt").ways],
    ids=lambda text: text.replace(" ", "-"),
)
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
