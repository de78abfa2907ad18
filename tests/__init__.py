"""Tests. `CDC_TESTS=long` are those of `make test-long`, `CDC_TESTS=few` have few random examples."""

import os
from typing import Final

LONG: Final = os.environ.get("CDC_TESTS") == "long"
"""Large products, and other random examples each time."""
SEED: Final = int(os.environ["CDC_TESTS_SEED"]) if os.environ.get("CDC_TESTS_SEED") else None
"""Chooses examples and histories, and with `CDC_TESTS_SHUFFLED` the order of tests. None: the same each time."""
TURN: Final = None if LONG else SEED
"""Chooses what a run plays of the products that need not all be played each time. None: all of them."""
