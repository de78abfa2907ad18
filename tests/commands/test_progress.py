"""The line on the terminal that says what is under way."""

from __future__ import annotations

import io
import logging
import time

from cdc_lakehouse.commands.progress import ProgressLine
from cdc_lakehouse.pipeline.progress import Progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def work(stream: io.StringIO, *, quiet: bool) -> str:
    log = logging.getLogger("cdc_lakehouse")
    level = log.level
    with ProgressLine(quiet=quiet, stream=stream):
        Progress(log, "segments are decoded", 3).add(3)
        log.info("of \x1b[31ma\nname")
        end = time.monotonic() + 20
        while "name" not in stream.getvalue() and not quiet and stream.isatty() and time.monotonic() < end:
            time.sleep(0.05)
    assert log.level == level and not log.handlers
    return stream.getvalue()


def test_a_terminal_shows_what_is_said_last_and_then_nothing() -> None:
    written = work(Terminal(), quiet=False)
    assert "0:00 of [31ma name" in written or "0:01 of [31ma name" in written
    # The last thing that is written clears the line.
    assert written.endswith("\r\x1b[K\r") and "\n" not in written and "\x1b[31m" not in written


def test_nothing_is_written_when_quiet_or_off_a_terminal() -> None:
    assert work(Terminal(), quiet=True) == work(io.StringIO(), quiet=False) == ""
