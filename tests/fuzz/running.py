"""Examples of a target, by hypothesis: it makes what fails smaller."""

from __future__ import annotations

import random
import signal
import sys
import threading
import time
import traceback
from pathlib import Path

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from tests.fuzz.mutations import mutated
from tests.fuzz.targets import TARGETS, WAITING, survive

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
    """Examples for so many minutes of CPU, or of the clock where a target waits, or until SIGTERM.

    It ends the process with 1 where one is wrong.
    """
    clock = time.monotonic if name in WAITING else time.process_time
    stopped = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stopped.set())
    began, number = clock(), first
    while clock() < began + minutes * 60 and not stopped.is_set():
        try:
            try_examples(name, number, _ROUND, last)
        except Exception:  # noqa: BLE001 - Whatever it is, it is wrong.
            say(f"{name}, seed {number}:\n{traceback.format_exc()}")
            sys.exit(1)
        number += 1
    say(
        f"{name}: {(number - first) * _ROUND} examples in {(clock() - began) / 60:.1f} minutes"
        f" of {'the clock' if name in WAITING else 'CPU'}, seeds {first} to {number - 1}"
    )


def say(line: str) -> None:
    print(line, flush=True)  # noqa: T201 - For the terminal.
