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

from tests.fuzz.running import try_examples
from tests.fuzz.targets import TARGETS

_ROUND = 200


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10, help="of each decoder")
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
    ends, number = time.monotonic() + minutes * 60, first
    while time.monotonic() < ends:
        try:
            try_examples(name, number, _ROUND, last)
        except Exception:  # noqa: BLE001 - Whatever it is, it is wrong.
            _say(f"{name}, seed {number}:\n{traceback.format_exc()}")
            sys.exit(1)
        number += 1
    _say(f"{name}: {(number - first) * _ROUND} examples in {minutes:g} minutes, seeds {first} to {number - 1}")


def _say(line: str) -> None:
    print(line, flush=True)  # noqa: T201 - A tool for the terminal.


if __name__ == "__main__":
    sys.exit(main())
