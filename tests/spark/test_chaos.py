"""Some histories of `make chaos`, the same each time, and some of the run's seed: whatever goes wrong, every table and
every cut is right."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace

import pytest

from tests import SEED
from tests.chaos.faults import FAULTS
from tests.chaos.scenario import Pass, Protocol, scenario
from tests.chaos.world import Tally, play
from tests.kit.lakes import TestLake

pytestmark = pytest.mark.spark

PLAYED: tuple[tuple[int, Protocol], ...] = ((9, "canal-json"), (30, "csv"), (46, "canal-json"))
HISTORIES = 2
NEW = 8
"""Histories of a new seed: half a minute."""
EARLY = 4
"""The latest commit that is hit: each run has so many."""
WANTED = [name for name in FAULTS if name != "none"]
"""Those that end processes are in `test_processes` and in `make chaos`."""


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


@pytest.mark.parametrize("protocol", ["canal-json", "csv"])
def test_histories_of_runs_seed_are_right(new_lake: Callable[..., TestLake], protocol: Protocol) -> None:
    seed = 1 if SEED is None else SEED
    print(f"CDC_TESTS_SEED={seed} plays these again")  # noqa: T201
    tally = Tally()
    play(scenario(seed, list(FAULTS), [protocol], NEW), FAULTS, new_lake, tally)
    assert tally.histories == NEW and tally.cuts
