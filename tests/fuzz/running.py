"""Examples of a target, by hypothesis: it makes what fails smaller."""

from __future__ import annotations

import random
import sys
import time
import traceback
from pathlib import Path

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from tests.fuzz.mutations import mutated
from tests.fuzz.targets import TARGETS, survive

_ROUND = 50


def try_examples(name: str, first: int, count: int, last: Path | None = None) -> None:
    """So many examples of a seed. `last` has the bytes that are read, in case the process dies of them. Raises what the
    decoder raises and must not."""
    variants = TARGETS[name]()

    @seed(first)
    @settings(
        max_examples=count,
        deadline=None,
        database=None,
        derandomize=False,
        suppress_health_check=list(HealthCheck),
        phases=(Phase.generate, Phase.shrink),
        print_blob=False,
    )
    @given(st.integers(0, len(variants) - 1), st.randoms(use_true_random=False))
    def one(number: int, chance: random.Random) -> None:
        value = mutated(chance, variants[number].samples)
        if last is not None:
            last.write_bytes(value)
        try:
            survive(variants[number], value)
        except Exception as error:
            error.add_note(f"{name}, variant {number}, seed {first}: {value!r}")
            raise

    one()


def go_on(name: str, first: int, minutes: float, last: Path) -> None:
    """Examples for so many minutes of CPU; ends the process with 1 where one is wrong."""
    ends, number = time.process_time() + minutes * 60, first
    while time.process_time() < ends:
        try:
            try_examples(name, number, _ROUND, last)
        except Exception:  # noqa: BLE001 - Whatever it is, it is wrong.
            say(f"{name}, seed {number}:\n{traceback.format_exc()}")
            sys.exit(1)
        number += 1
    say(f"{name}: {(number - first) * _ROUND} examples in {minutes:g} minutes of CPU, seeds {first} to {number - 1}")


def say(line: str) -> None:
    print(line, flush=True)  # noqa: T201 - For the terminal.
