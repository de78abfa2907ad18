"""Batches of histories for as long as one likes: `python -m tests.chaos --minutes 10 --seed 1`."""

import argparse
import contextlib
import functools
import itertools
import logging
import random
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from cdc_lakehouse.lake.names import CATALOG
from cdc_lakehouse.lake.spark import build_session
from tests.chaos.faults import FAULTS, PROCESS_FAULTS
from tests.chaos.world import Fault, Protocol, Tally, play
from tests.kit.lakes import TestLake, lake_config
from tests.servers.kafka import Broker

_say = functools.partial(print, flush=True)
_MEMORY = Path("/dev/shm")
"""A commit of SQLite's waits for the disk."""
_PROTOCOLS: Final[tuple[Protocol, ...]] = ("canal-json", "csv", "topic")
_EVERY = 3
"""A run in a process of its own takes as long as several in this one."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--seed", type=int, default=None, help="of the first batch of histories")
    parser.add_argument("--batches", type=int, default=None, help="how many at most")
    parser.add_argument("--histories", type=int, default=30, help="of a batch")
    parser.add_argument("--only", type=int, action="append", help="this history of a batch, from 0; may be repeated")
    parser.add_argument("--protocol", action="append", choices=_PROTOCOLS, help="only this one; may be repeated")
    parser.add_argument("--fault", action="append", help="only this one; may be repeated")
    parser.add_argument("--directory", type=Path, help="of the lakes; where its file system is small it is filled up")
    options = parser.parse_args()
    if not {*(options.only or ())} <= {*range(options.histories)}:
        parser.error("--only: there is no such history")
    # So that what it has made goes with it.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    first = random.SystemRandom().randrange(1_000_000) if options.seed is None else options.seed
    _say(f"seed {first}")
    directory = options.directory or (_MEMORY if _MEMORY.is_dir() else None)
    with tempfile.TemporaryDirectory(prefix="chaos-", dir=directory) as place, contextlib.ExitStack() as servers:
        broker = functools.cache(lambda: servers.enter_context(Broker(Path(place) / "kafka")))
        return _batches(options, first, Path(place), broker)


def _batches(options: argparse.Namespace, first: int, root: Path, broker: Callable[[], Broker]) -> int:
    logging.basicConfig(format="%(asctime)s %(message)s")
    logging.getLogger("pyiceberg").setLevel(logging.ERROR)
    # What runs say of their faults is not for the one who looks. `KillAtCommit` listens to it: no level is set.
    logging.getLogger("cdc_lakehouse").propagate = False
    logging.getLogger("chaos").setLevel(logging.INFO)
    every: dict[str, Fault] = {**FAULTS, **PROCESS_FAULTS}
    session = build_session(lake_config(root))
    # SQLite's driver and Snappy unpack a library when first used: where the disk is full then, this JVM has none.
    session.sql(f"SHOW NAMESPACES IN {CATALOG}").collect()
    jvm: Any = session.sparkContext._jvm
    jvm.org.xerial.snappy.Snappy.getNativeLibraryVersion()
    tally, wrong, numbers = Tally(), [], itertools.count(1)
    ends = time.monotonic() + options.minutes * 60

    def new_lake(**feed: object) -> TestLake:
        return TestLake(root, root / f"feed{next(numbers)}", lambda: session, **feed)

    for seed in itertools.count(first):
        if time.monotonic() > ends or (options.batches is not None and seed - first >= options.batches):
            break
        # By the seed alone, so that one batch can be had again.
        names = options.fault or [*FAULTS, *(PROCESS_FAULTS if seed % _EVERY == 0 else ())]
        faults, protocols = {name: every[name] for name in names}, options.protocol or _PROTOCOLS
        began = time.monotonic()
        try:
            lake = play(seed, faults, protocols, options.histories, new_lake, tally, broker, only=options.only or ())
        except Exception:  # noqa: BLE001 - The next batch may be right; all of the wrong ones are wanted.
            wrong.append(seed)
            _say(f"seed {seed} is wrong:\n{traceback.format_exc()}")
        else:
            # What a batch leaves makes the next one slower.
            lake.remove()
            _say(f"seed {seed}: {time.monotonic() - began:.1f} s; {dict(sorted(tally.items()))}")
    session.stop()
    _say(f"{dict(sorted(tally.items()))}\nwrong: {wrong}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
