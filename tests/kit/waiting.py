"""Waiting for what happens outside of a test."""

from __future__ import annotations

import contextlib
import inspect
import time
from collections.abc import Callable
from typing import Any


def until(condition: Callable[[], object], seconds: float = 300, *, shown: Callable[[], object] = lambda: "") -> Any:
    """Wait until the condition holds, and give its value. Fails when the time is over, with the condition and what
    `shown` gives."""
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        if time.monotonic() >= deadline:
            what = repr(condition)
            with contextlib.suppress(OSError, TypeError):
                what = inspect.getsource(condition).strip()
            raise AssertionError(f"after {seconds} seconds not yet: {what}\n{shown()}")
        time.sleep(0.05)
    return found
