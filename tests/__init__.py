"""Tests. `CDC_TESTS` is the tier that runs: `quick`, `long`, or nothing for that of `make test`."""

from __future__ import annotations

import os
from typing import Final

TIER: Final = os.environ.get("CDC_TESTS", "")
LONG: Final = TIER == "long"
"""Large products, and other random examples each time."""
