"""Some histories of `make chaos`, the same each time: whatever goes wrong, every table and every cut is right."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.chaos.faults import FAULTS
from tests.chaos.scenario import Pass, Protocol, scenario
from tests.chaos.world import Tally, play
from tests.kit.lakes import TestLake

pytestmark = pytest.mark.spark

PLAYED: tuple[tuple[int, Protocol], ...] = ((9, "canal-json"), (30, "csv"), (46, "canal-json"))
HISTORIES = 2
EARLY = 4
"""The latest commit that is hit: each run has so many."""
WANTED = [name for name in FAULTS if name != "none"]
"""Those that end processes are in `test_kills` and in `make chaos`."""


def test_every_fault_in_short_histories(new_lake: Callable[..., TestLake]) -> None:
    tally, left = Tally(), itertools.cycle(WANTED)
    for seed, protocol in PLAYED:
        played = scenario(seed, WANTED, [protocol], HISTORIES, passes=(6, 6))
        steps = [
            replace(step, fault=next(left), number=1 + step.number % EARLY, again=False)
            if isinstance(step, Pass)
            else step
            for step in played.steps
        ]
        play(replace(played, steps=steps, maintained=protocol == "csv"), FAULTS, new_lake, tally)
    assert tally.superseded, "maintenance had no event to remove"
    assert set(tally.faults) == set(WANTED), f"did not happen: {set(WANTED) - set(tally.faults)}"
