"""A line on the terminal that shows the work in progress."""

from __future__ import annotations

import datetime
import logging
import shutil
import sys
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import IO, Any, Final, Literal, TypeVar

import click

_TICK_SECONDS: Final = 0.5
_LOG: Final = logging.getLogger("cdc_lakehouse")

Shown = Literal["line", "nothing", "log"]
"""What of progress is shown on stderr: a changing line, if it is a terminal; nothing; or a line for each message, with
its time in UTC."""

_Command = TypeVar("_Command", bound=Callable[..., Any])


def progress_options(command: _Command) -> _Command:
    """Add the options with which a command selects what is shown, as its argument `progress`."""
    silent, each = "No progress on stderr. [default: off a terminal]", "Each thing that is done as a line on stderr."
    quiet = click.option("--quiet", "-q", "progress", flag_value="nothing", default="line", help=silent)
    verbose = click.option("--verbose", "-v", "progress", flag_value="log", help=each)
    return quiet(verbose(command))


class ProgressLine:
    """Shows the last message, and the time since the work began, on one line of stderr while the block runs; or what
    `shown` says.

    What the project logs is shown automatically; `say` is for other messages."""

    def __init__(self, shown: Shown, stream: IO[str] | None = None) -> None:
        self._stream = sys.stderr if stream is None else stream
        self._logs = shown == "log"
        self._shown = self._logs or (shown == "line" and self._stream.isatty())
        self._text = ""
        self._began = time.monotonic()
        self._done = threading.Event()
        self._ticking = threading.Thread(target=self._tick, name="progress", daemon=True)
        self._handler = _Handler(self)
        self._level = _LOG.level

    def __enter__(self) -> ProgressLine:
        self._began = time.monotonic()
        if self._shown:
            self._level = _LOG.level
            _LOG.addHandler(self._handler)
            _LOG.setLevel(logging.INFO)
            if not self._logs:
                self._ticking.start()
        return self

    def __exit__(
        self, type: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._shown:
            _LOG.removeHandler(self._handler)
            _LOG.setLevel(self._level)
            if not self._logs:
                self._done.set()
                self._ticking.join()
                self._write("")

    def say(self, text: str) -> None:
        self._text = " ".join(text.split())
        if self._logs:
            now = datetime.datetime.now(datetime.UTC)
            self._stream.write(f"{now:%Y-%m-%dT%H:%M:%SZ} {_printable(self._text)}\n")
            self._stream.flush()

    def _tick(self) -> None:
        while not self._done.wait(_TICK_SECONDS):
            if self._text:
                minutes, seconds = divmod(int(time.monotonic() - self._began), 60)
                self._write(f"{minutes}:{seconds:02} {self._text}")

    def _write(self, text: str) -> None:
        width = shutil.get_terminal_size().columns - 1
        # The cursor returns to the start, so that other output replaces the line.
        self._stream.write(f"\r\x1b[K{_printable(text)[:width]}\r")
        self._stream.flush()


def _printable(text: str) -> str:
    return "".join(each for each in text if each.isprintable())


class _Handler(logging.Handler):
    def __init__(self, line: ProgressLine) -> None:
        super().__init__(logging.INFO)
        self._line = line

    def emit(self, record: logging.LogRecord) -> None:
        self._line.say(record.getMessage())
