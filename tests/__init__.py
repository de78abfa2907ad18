"""Tests. `CDC_TESTS=long` are those of `make test-long`."""

from __future__ import annotations

import os
from typing import Final

LONG: Final = os.environ.get("CDC_TESTS") == "long"
"""Large products, and other random examples each time."""
