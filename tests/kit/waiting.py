"""Waiting for what happens outside of a test."""

from __future__ import annotations

import time
from collections.abc import Callable


def until(condition: Callable[[], object], seconds: float = 120) -> None:
    """Until the condition holds, or the time is over: whoever waits then looks."""
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.05)
