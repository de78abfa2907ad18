"""What commands write to a terminal."""

from __future__ import annotations

import io
import logging
import re

import click
import pytest

from cdc_lakehouse.commands import common
from cdc_lakehouse.commands.common import ProgressLine, Shown, find_home, os_user
from cdc_lakehouse.pipeline.progress import Progress
from tests.kit.waiting import until

__all__ = ["find_home", "os_user"]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def say(text: str, capsys: pytest.CaptureFixture[str], *, color: bool = False) -> str:
    with click.Context(click.Command("a"), color=color):
        common.say(text)
    return capsys.readouterr().out


def shown_by_progress(stream: io.StringIO, shown: Shown) -> str:
    """What is written of a step that reports its progress, and then logs a name with escapes."""
    log = logging.getLogger("cdc_lakehouse")
    level = log.level
    with ProgressLine(shown, stream):
        Progress(log, "segments are decoded", 3).add(3)
        log.info("of \x1b[31ma\nname")
        if shown == "line" and stream.isatty():
            until(lambda: "name" in stream.getvalue())
    assert log.level == level and not log.handlers
    return stream.getvalue()


def log_lines(written: str) -> list[str]:
    return [re.sub(r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ ", "", line) for line in written.splitlines()]
