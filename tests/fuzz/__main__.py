"""Examples of every decoder for as long as one likes: `python -m tests.fuzz --minutes 10 --seed 1`, or `make fuzz`."""

import argparse
import multiprocessing
import random
import sys
import tempfile
from pathlib import Path

import click

from tests.fuzz.test_fuzz import TARGETS, go_on


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
                target=go_on, args=(name, first, options.minutes, last)
            )
            process.start()
            process.join()
            if process.exitcode:
                wrong.append(name)
            if (process.exitcode or 0) < 0:
                click.echo(f"{name}: the process died by signal {-(process.exitcode or 0)} of {last.read_bytes()!r}")
    click.echo(f"wrong: {wrong}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
