"""Examples of a target, by hypothesis: it makes what fails smaller."""

from __future__ import annotations

import random
from pathlib import Path

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from tests.fuzz.mutations import mutated
from tests.fuzz.targets import TARGETS, survive


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
