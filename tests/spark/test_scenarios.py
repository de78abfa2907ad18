"""Scenarios of `tests/scenarios`, each file in each of its ways; and some histories of `make chaos`, the same each
time, and some of the run's seed: whatever goes wrong, every table and every cut is right."""

from pathlib import Path

import pytest

from tests import SEED, TURN
from tests.chaos.faults import FAULTS, fill
from tests.chaos.world import Protocol, Tally
from tests.chaos.world import play as play_history
from tests.kit.lakes import NewLake
from tests.kit.scenarios import DIRECTORY, ScenarioError, files, load, play

pytestmark = pytest.mark.spark


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """With `--only`, the ways that play that scenario."""
    if "way" not in metafunc.fixturenames:
        return
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
    name: str, way: str, new_lake: NewLake, monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> None:  # fmt: skip
    wrong = ""
    try:
        play(load(DIRECTORY / f"{name}.txt"), way, new_lake, monkeypatch, request.config.getoption("--only"))
    except ScenarioError as error:
        wrong = str(error)
    if wrong:
        pytest.fail(wrong, pytrace=False)


# --- Histories of `make chaos` ---

PLAYED: tuple[tuple[int, Protocol], ...] = ((9, "canal-json"), (30, "csv"), (46, "canal-json"))
"""With a third of the faults each; a run with a seed plays one of them."""
PROTOCOLS: tuple[Protocol, ...] = ("canal-json", "csv")
HISTORIES = 2
PASSES = 6
NEW = 5
"""Histories of a new seed."""
EARLY = 4
"""The latest commit that is hit: each run has so many."""
WANTED = [name for name in FAULTS if name != "none"]
"""Those that end processes are in `test_processes` and in `make chaos`."""


@pytest.mark.parametrize("number", range(len(PLAYED)) if TURN is None else [TURN % len(PLAYED)])
def test_every_fault_in_short_histories(new_lake: NewLake, number: int) -> None:
    tally, (seed, protocol) = Tally(), PLAYED[number]
    wanted = [*WANTED, *WANTED][number * PASSES : (number + 1) * PASSES]
    faults = iter(wanted)
    play_history(
        seed, FAULTS, [protocol], HISTORIES, new_lake, tally, passes=(PASSES, PASSES), maintained=protocol == "csv",
        hits=lambda _, commit: (next(faults), 1 + commit % EARLY),
    )  # fmt: skip
    assert tally["superseded events removed"] or protocol != "csv", "maintenance had no event to remove"
    assert not (missed := [name for name in wanted if not tally[f"{name}: happened"]]), missed


def test_faults_are_all_played() -> None:
    assert len(WANTED) <= len(PLAYED) * PASSES


def test_disk_that_is_filled_raises_nothing() -> None:
    fill(Path("/dev/full"))


def test_histories_of_runs_seed_are_right(new_lake: NewLake) -> None:
    seed = 1 if SEED is None else SEED
    print(f"CDC_TESTS_SEED={seed} plays these again")  # noqa: T201
    tally = Tally()
    play_history(seed, FAULTS, PROTOCOLS, NEW, new_lake, tally)
    assert tally["histories"] == NEW and tally["cuts"]
