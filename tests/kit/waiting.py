"""Waiting for what happens outside of a test."""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable


def until(condition: Callable[[], object], seconds: float = 300, *, shown: Callable[[], object] = lambda: "") -> None:
    """Wait until the condition holds. Fails when the time is over, with the condition and what `shown` gives."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() >= deadline:
            raise AssertionError(f"after {seconds} seconds not yet: {_source(condition)}\n{shown()}")
        time.sleep(0.05)


def _source(condition: Callable[[], object]) -> str:
    try:
        return inspect.getsource(condition).strip()
    except (OSError, TypeError):
        return repr(condition)
