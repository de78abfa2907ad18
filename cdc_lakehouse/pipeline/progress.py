"""Log the progress of long work."""

from __future__ import annotations

import logging
import time
from typing import Final

_EVERY_SECONDS: Final = 5.0
"""Each line is a row of Dagster's event log."""


class Progress:
    """Counts what is done of `total`; logs a line every few seconds, and a last one. `what` is a plural."""

    def __init__(self, log: logging.Logger, what: str, total: int) -> None:
        self._log, self._what, self._total = log, what, total
        self._done = 0
        self._told_at = time.monotonic()

    def add(self, number: int = 1) -> None:
        self._done += number
        if self._done >= self._total or time.monotonic() - self._told_at > _EVERY_SECONDS:
            self._told_at = time.monotonic()
            self._log.info("%d of %d %s", self._done, self._total, self._what)


def time_span(seconds: float) -> str:
    """Format a time span for people."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    minutes = seconds / 60
    return f"{minutes:.0f} min" if minutes < 120 else f"{minutes / 60:.1f} h"
