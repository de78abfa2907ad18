"""Examples of every decoder for as long as one likes: `python -m tests.fuzz --minutes 10 --seed 1`."""

from __future__ import annotations

import argparse
import multiprocessing
import random
import sys
import tempfile
import time
import traceback
from pathlib import Path

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from cdc_lakehouse.errors import CdcError
from tests.fuzz.targets import TARGETS, WAITING
from tests.kit.mishaps import mutated

_ROUND = 50


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument(
        "--minutes", type=float, default=10, help="of CPU for each decoder, of the clock for Canal server"
    )
    parser.add_argument("--seed", type=int, default=None, help="of the first examples")
    parser.add_argument("--target", action="append", choices=list(TARGETS), help="only this one; may be repeated")
    options = parser.parse_args()
    first = random.SystemRandom().randrange(1_000_000) if options.seed is None else options.seed
    wrong: list[str] = []
    with tempfile.TemporaryDirectory() as place:
        last = Path(place) / "last"
        for name in options.target or TARGETS:
            # In a process of its own, which may die.
            process = multiprocessing.get_context("spawn").Process(
                target=_go_on, args=(name, first, options.minutes, last)
            )
            process.start()
            process.join()
            if process.exitcode:
                wrong.append(name)
            if (process.exitcode or 0) < 0:
                _say(f"{name}: the process died by signal {-(process.exitcode or 0)} of {last.read_bytes()!r}")
    _say(f"wrong: {wrong}")
    return 1 if wrong else 0


def _go_on(name: str, first: int, minutes: float, last: Path) -> None:
    """Try examples for so many minutes of CPU, or of the clock where a target waits. It ends the process with 1 where
    one is wrong."""
    clock = time.monotonic if name in WAITING else time.process_time
    began, number = clock(), first
    while clock() < began + minutes * 60:
        try:
            try_examples(name, number, _ROUND, last)
        except Exception:  # noqa: BLE001 - Whatever it is, it is wrong.
            _say(f"{name}, seed {number}:\n{traceback.format_exc()}")
            sys.exit(1)
        number += 1
    _say(
        f"{name}: {(number - first) * _ROUND} examples in {(clock() - began) / 60:.1f} minutes"
        f" of {'the clock' if name in WAITING else 'CPU'}, seeds {first} to {number - 1}"
    )


def try_examples(name: str, first: int, count: int, last: Path | None = None) -> None:
    """So many examples of a seed; hypothesis makes what fails smaller. `last` has the bytes that are read, in case the
    process dies of them. Raises what the decoder raises and must not."""
    variants = TARGETS[name]()

    @seed(first)
    @settings(
        max_examples=count, deadline=None, database=None, derandomize=False, print_blob=False,
        suppress_health_check=list(HealthCheck),  # pyright: ignore[reportArgumentType]
        phases=(Phase.generate, Phase.shrink),
    )  # fmt: skip
    @given(st.integers(0, len(variants) - 1), st.randoms(use_true_random=False))
    def one(number: int, chance: random.Random) -> None:
        value = mutated(chance, variants[number].samples)
        if last is not None:
            last.write_bytes(value)
        try:
            variants[number].read(value)
        except CdcError:
            pass
        except Exception as error:
            error.add_note(f"{name}, variant {number}, seed {first}: {value!r}")
            raise

    one()


def _say(line: str) -> None:
    print(line, flush=True)  # noqa: T201 - For the terminal.
