"""A line on the terminal that says what is under way."""

from __future__ import annotations

import logging
import shutil
import sys
import threading
import time
from types import TracebackType
from typing import IO, Any, Final

import click

_TICK_SECONDS: Final = 0.5
_LOG: Final = logging.getLogger("cdc_lakehouse")

quiet_option: Any = click.option("--quiet", "-q", is_flag=True, help="No progress on stderr. [default: off a terminal]")


class ProgressLine:
    """The last thing that was said, and the time since the work began, on one line of stderr as long as the block
    lasts. Nothing is written where stderr is no terminal, or `quiet` is set.

    What the project logs is said by itself; `say` is for what comes another way."""

    def __init__(self, *, quiet: bool, stream: IO[str] | None = None) -> None:
        self._stream = sys.stderr if stream is None else stream
        self._shown = not quiet and self._stream.isatty()
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
            self._ticking.start()
        return self

    def __exit__(
        self, type: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._shown:
            self._done.set()
            self._ticking.join()
            _LOG.removeHandler(self._handler)
            _LOG.setLevel(self._level)
            self._write("")

    def say(self, text: str) -> None:
        self._text = " ".join(text.split())

    def _tick(self) -> None:
        while not self._done.wait(_TICK_SECONDS):
            if self._text:
                minutes, seconds = divmod(int(time.monotonic() - self._began), 60)
                self._write(f"{minutes}:{seconds:02} {self._text}")

    def _write(self, text: str) -> None:
        width = shutil.get_terminal_size().columns - 1
        # The cursor goes back to the start: what others write comes in the place of the line.
        self._stream.write(f"\r\x1b[K{''.join(each for each in text if each.isprintable())[:width]}\r")
        self._stream.flush()


class _Handler(logging.Handler):
    def __init__(self, line: ProgressLine) -> None:
        super().__init__(logging.INFO)
        self._line = line

    def emit(self, record: logging.LogRecord) -> None:
        self._line.say(record.getMessage())
