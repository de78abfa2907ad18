"""Runs that are killed: at some commit a run ends, before or after the commit took effect."""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from cdc_lakehouse.lake.current.staging import Staging
from cdc_lakehouse.lake.iceberg_java import IcebergJavaApi
from cdc_lakehouse.lake.tables.events import Events
from cdc_lakehouse.lake.tables.records import Records
from cdc_lakehouse.lake.tables.small_table import SmallTable

# Every place where a run commits something.
COMMITS: tuple[tuple[type, str], ...] = (
    (SmallTable, "write"),
    (Records, "append"),
    (Events, "append"),
    (Events, "replace_segments"),
    (IcebergJavaApi, "create"),
    (IcebergJavaApi, "evolve"),
    (IcebergJavaApi, "open_branch"),
    (IcebergJavaApi, "clear"),
    (Staging, "stage"),
    (IcebergJavaApi, "publish"),
    (IcebergJavaApi, "rename"),
)


class Crash(BaseException):
    """Not an Exception: nothing in the project may catch it, as nothing can catch a kill."""


@dataclass(frozen=True)
class CrashPoint:
    """The n-th commit of a run (from 1), counted over all places or over one of them."""

    number: int
    after: bool
    place: tuple[type, str] | None = None
    also: tuple[tuple[type, str], ...] = ()
    """Further places, beside those of all runs."""

    @contextlib.contextmanager
    def __call__(self) -> Iterator[threading.Event]:
        """Runs within end at the point; the event tells whether one did."""
        happened = threading.Event()
        counter = itertools.count(1)
        lock = threading.Lock()
        with pytest.MonkeyPatch.context() as patch:
            for owner, name in [self.place] if self.place else [*COMMITS, *self.also]:
                patch.setattr(owner, name, self._ending(getattr(owner, name), counter, lock, happened))
            with contextlib.suppress(Crash):
                yield happened

    def _ending(self, real: Any, counter: Iterator[int], lock: threading.Lock, happened: threading.Event) -> Any:
        def commit(*arguments: Any, **keywords: Any) -> Any:
            with lock:
                here = not happened.is_set() and next(counter) == self.number
                if here:
                    happened.set()
            if here and not self.after:
                raise Crash
            if happened.is_set() and not here:
                raise Crash  # The other threads of a killed process do not go on either.
            result = real(*arguments, **keywords)
            if here:
                raise Crash
            return result

        return commit


def crash_points(seed: int) -> Iterator[CrashPoint]:
    """Points that differ from stage to stage and from data set to data set, and together are all places."""
    for step in itertools.count(seed):
        yield CrashPoint(
            number=1 + step // len(COMMITS) % 4, after=bool(step // 2 % 2), place=COMMITS[step * 4 % len(COMMITS)]
        )
