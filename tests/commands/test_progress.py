"""The line on the terminal that says what is under way."""

from __future__ import annotations

import io
import logging
import re
import time

import pytest

from cdc_lakehouse.commands.progress import ProgressLine, Shown
from cdc_lakehouse.pipeline.progress import Progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def work(stream: io.StringIO, shown: Shown) -> str:
    log = logging.getLogger("cdc_lakehouse")
    level = log.level
    with ProgressLine(shown, stream):
        Progress(log, "segments are decoded", 3).add(3)
        log.info("of \x1b[31ma\nname")
        end = time.monotonic() + 20
        while "name" not in stream.getvalue() and shown == "line" and stream.isatty() and time.monotonic() < end:
            time.sleep(0.05)
    assert log.level == level and not log.handlers
    return stream.getvalue()


def test_a_terminal_shows_what_is_said_last_and_then_nothing() -> None:
    written = work(Terminal(), "line")
    assert "0:00 of [31ma name" in written or "0:01 of [31ma name" in written
    # The last thing that is written clears the line.
    assert written.endswith("\r\x1b[K\r") and "\n" not in written and "\x1b[31m" not in written


def test_nothing_is_written_when_quiet_or_off_a_terminal() -> None:
    assert work(Terminal(), "nothing") == work(io.StringIO(), "line") == ""


@pytest.mark.parametrize("stream", [Terminal(), io.StringIO()], ids=["a terminal", "a file"])
def test_each_thing_that_is_said_is_a_line_of_the_log(stream: io.StringIO) -> None:
    lines = work(stream, "log").splitlines()
    assert [re.sub(r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ ", "", line) for line in lines][-1] == "of [31ma name"
    assert "segments are decoded" in lines[0] and len(lines) == 2
