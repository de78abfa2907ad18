"""The product's clock."""

from __future__ import annotations

import contextlib
import datetime
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from unittest import mock

from cdc_lakehouse.changelog import positions


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
