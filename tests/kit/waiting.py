"""Waiting for what happens outside of a test, the clock that the product sees, and the memory that it takes."""

import contextlib
import datetime
import inspect
import time
import tracemalloc
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any
from unittest import mock

from cdc_lakehouse.changelog import positions


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


@contextlib.contextmanager
def clock_at(now: Callable[[], datetime.datetime]) -> Iterator[None]:
    """The product's clock shows `now()`. Files, Iceberg and Dagster have the machine's."""

    class Clock(datetime.datetime):
        @classmethod
        def now(cls, tz: datetime.tzinfo | None = None) -> datetime.datetime:  # pyright: ignore
            return now().astimezone(tz)

    shown = SimpleNamespace(**{**vars(datetime), "datetime": Clock})
    with mock.patch.object(positions, "datetime", shown):
        yield


@contextlib.contextmanager
def memory_below(limit: int) -> Iterator[None]:
    """What Python allocates within never takes so many bytes at once."""
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < limit
    finally:
        tracemalloc.stop()
