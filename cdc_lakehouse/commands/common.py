"""Functions that the commands share: loading the configuration, exit codes, text for a terminal."""

from __future__ import annotations

import contextlib
import datetime
import functools
import getpass
import json
import logging
import os
import re
import shutil
import sqlite3
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Concatenate, Final, Literal, NoReturn, ParamSpec, TypeVar

import click
import yaml

from cdc_lakehouse import config as configuration
from cdc_lakehouse.config import FeedConfig, LakehouseConfig
from cdc_lakehouse.config.reporting import plural
from cdc_lakehouse.errors import CdcError, ConfigurationError, EngineError, SourceUnreachableError

if TYPE_CHECKING:
    from cdc_lakehouse.lake.catalog import Lake
    from cdc_lakehouse.pipeline.run import FeedRun

DONE, HELD, BAD_INPUT, UNREACHABLE, ENGINE_FAILED = range(5)
"""Exit codes: done, or nothing to do; something is held or quarantined, or a run failed; the configuration is wrong, or
the command's input is not understood; a source cannot be reached; Spark failed, or its JVM ended."""

_HOME: Final = "dagster_home"
_CHECKOUT: Final = Path(__file__).parents[2]
# Everything except printable ASCII, line feeds, and click's green, red, yellow and reset.
_NOT_PLAIN: Final = re.compile(r"(\n|\x1b\[(?:3[123]|0)m)|[^ -~]")

_CODES: Final = {SourceUnreachableError: UNREACHABLE, ConfigurationError: BAD_INPUT, EngineError: ENGINE_FAILED}
_Options = ParamSpec("_Options")


def exit_code(error: CdcError) -> int:
    return next((code for error_class, code in _CODES.items() if isinstance(error, error_class)), HELD)


def exits(command: Callable[_Options, int]) -> Callable[_Options, NoReturn]:
    """Make the process exit with the code that the command returns. A `CdcError` is printed as one line."""

    @functools.wraps(command)
    def run(*args: _Options.args, **options: _Options.kwargs) -> NoReturn:
        try:
            code = command(*args, **options)
        except CdcError as error:
            say(f"cdc-lakehouse: {error.coded}", err=True)
            code = exit_code(error)
        sys.exit(code)

    return run


class Asked:
    """What a command is asked for: all feeds of a configuration, or the one of `--feed`, and JSON or text."""

    def __init__(self, config: LakehouseConfig, feed_name: str | None, *, as_json: bool = False) -> None:
        self.config, self.as_json = config, as_json
        self.feeds: Sequence[FeedConfig] = config.feeds if feed_name is None else [config.feed(feed_name)]

    @functools.cached_property
    def lake(self) -> Lake:
        from cdc_lakehouse.lake.catalog import Lake  # noqa: PLC0415 - Help is shown without it.

        return Lake(self.config.lake, self.config.storage)

    @functools.cached_property
    def runs(self) -> list[FeedRun]:
        from cdc_lakehouse.pipeline.run import FeedRun  # noqa: PLC0415 - Help is shown without it.

        return [FeedRun(feed, self.lake) for feed in self.feeds]

    def answer(self, document: dict[str, Any], *texts: str) -> None:
        """Print a document as indented JSON, or the texts that are not empty, with an empty line between them."""
        if self.as_json:
            print_json(document)
        elif any(texts):
            say("\n\n".join(filter(None, texts)))


def of_feeds(
    json_help: str | None = "Print the result as JSON.",
) -> Callable[[Callable[Concatenate[Asked, ...], int]], Callable[..., NoReturn]]:
    """Like `exits`, for a command about feeds: it has the options --feed and --json (but for a help of None), and its
    first parameter is what is asked for."""

    def decorate(command: Callable[Concatenate[Asked, ...], int]) -> Callable[..., NoReturn]:
        @exits
        @functools.wraps(command)
        def run(feed_name: str | None, as_json: bool = False, **options: Any) -> int:
            return command(Asked(configuration.load(), feed_name, as_json=as_json), **options)

        with_json = run if json_help is None else click.option("--json", "as_json", is_flag=True, help=json_help)(run)
        return click.option("--feed", "feed_name", help="Only this feed.")(with_json)

    return decorate


def find_home() -> Path:
    """Return DAGSTER_HOME, by default a directory at the root of the configuration's checkout, or beside it."""
    path = configuration.config_path()
    own = (_CHECKOUT / _HOME).is_dir() and path.resolve().is_relative_to(_CHECKOUT)
    return Path(os.environ.get("DAGSTER_HOME") or (_CHECKOUT if own else path.parent) / _HOME)


def existing_home() -> Path | None:
    """Return the home of an existing Dagster instance, or None, for commands that create none; set DAGSTER_HOME to
    it."""
    if not ((home := find_home()) / "dagster.yaml").exists():
        return None
    os.environ["DAGSTER_HOME"] = str(home)
    return home


_PENDING: Final = """
    SELECT 1 FROM runs AS run WHERE status NOT IN ('SUCCESS', 'CANCELED') AND NOT (
        status = 'FAILURE' AND pipeline_name NOT LIKE '\\_\\_%' ESCAPE '\\' AND EXISTS (
            SELECT 1 FROM runs WHERE id > run.id AND status = 'SUCCESS' AND pipeline_name = run.pipeline_name))
"""
"""Runs that are not finished, and those that failed without a later one of the same job that succeeded. Jobs of assets
that are chosen in the UI have one name for all feeds, which begins with two underscores."""


def may_have_pending_runs(home: Path) -> bool:
    """Whether a run of the instance may be unfinished, or the last one of a job may have failed. It is read from the
    table of Dagster's own SQLite, because the import of Dagster takes longer than all else that a status does; True for
    any other storage, and for a table of another form."""
    settings: Any = yaml.load((home / "dagster.yaml").read_text(), getattr(yaml, "CSafeLoader", yaml.SafeLoader)) or {}
    runs = home / "history" / "runs.db"
    if not settings.keys().isdisjoint({"storage", "run_storage", "instance_class"}):
        return True
    if not runs.exists():
        return False
    try:
        with contextlib.closing(sqlite3.connect(runs, timeout=5)) as connection:
            return connection.execute(_PENDING).fetchone() is not None
    except sqlite3.Error:
        return True


def os_user() -> str:
    """Return the user of the operating system who runs the command, by name, or by number without a name."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # The user of a container may have no name.
        return f"uid {os.getuid()}"


def say(text: str, *, err: bool = False) -> None:
    """Print text for people. Characters that a terminal takes as commands are escaped, because names and texts of the
    source can contain them. The colours of `good`, `bad` and `doubtful` are kept."""
    click.echo(_NOT_PLAIN.sub(lambda found: found[1] or printable(found[0]), text), err=err)


def print_json(document: dict[str, Any]) -> None:
    click.echo(json.dumps(document, ensure_ascii=False, indent=2))


def grid(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Return the lines of a table: the first column is left-aligned, the others are right-aligned."""
    header, *rows = ([printable(cell) for cell in row] for row in (header, *rows))
    widths = [max(len(row[n]) for row in [header, *rows]) for n in range(len(header))]

    def line(row: Sequence[str]) -> str:
        cells = [row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))]
        return "  " + "  ".join(cells)

    return [line(header), "  " + "-" * (sum(widths) + 2 * (len(widths) - 1)), *(line(row) for row in rows)]


def printable(text: str) -> str:
    """Return the text for a terminal: characters that do not print are escaped."""
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)


def short(text: str, width: int = 100) -> str:
    """Return the text as one line for a terminal, truncated to `width`."""
    line = printable(" ".join(text.split()))
    return line if len(line) <= width else f"{line[: width - 1]}…"


# What only a terminal shows.
good, bad, doubtful = (functools.partial(click.style, fg=colour) for colour in ("green", "red", "yellow"))


def problem_lines(
    held: Mapping[str, str], quarantined: int, notes: Sequence[str], warnings: Sequence[str], discarded: int = 0
) -> list[str]:
    """Return lines that say what is held, quarantined or otherwise wrong; none when all is well."""
    from cdc_lakehouse.pipeline.holds import reason_and_advice  # noqa: PLC0415 - Help is shown without it.

    lines = ["", "  held at the last good cut:"] if held else []
    for table, why in sorted(held.items()):
        # What is wrong, and in a line of its own what to do.
        reason, advice = map(printable, reason_and_advice(why))
        lines += [bad(f"    {printable(table)}: {reason}"), *([f"      {advice}"] if advice else [])]
    if quarantined:
        lines += ["", bad(f"  quarantined: {plural(quarantined, 'row')}; `cdc-lakehouse quarantine list` shows them")]
    if discarded:
        lines += ["", f"  discarded: {plural(discarded, 'row')} that could not be used and were given up"]
    said = [*(f"  note: {note}" for note in notes), *(doubtful(f"  warning: {warning}") for warning in warnings)]
    return lines + [line for each in said for line in ("", each)]


# A line on the terminal that shows the work in progress.

_TICK_SECONDS: Final = 0.5
_LOG: Final = logging.getLogger("cdc_lakehouse")

Shown = Literal["line", "nothing", "log"]
"""What of progress is shown on stderr: a changing line on a terminal; nothing; or a line a message, with its time."""

_Command = TypeVar("_Command", bound=Callable[..., Any])


def progress_options(command: _Command) -> _Command:
    """Add the options with which a command selects what is shown, as its argument `progress`."""
    off, each = "No progress on stderr. [default: off a terminal]", "Log each step on stderr."
    hidden = {"default": "line", "show_default": False}
    quiet = click.option("--quiet", "-q", "progress", flag_value="nothing", help=off, **hidden)
    verbose = click.option("--verbose", "-v", "progress", flag_value="log", help=each)
    return quiet(verbose(command))


class ProgressLine(logging.Handler):
    """Shows the last message, and the time since the work began, on one line of stderr while the block runs; or what
    `shown` says.

    What the project logs is shown automatically; it can be a handler of the log of a feed's run too."""

    def __init__(self, shown: Shown, stream: IO[str] | None = None) -> None:
        super().__init__(logging.INFO)
        self._stream = sys.stderr if stream is None else stream
        self._shown: Shown = "nothing" if shown == "line" and not self._stream.isatty() else shown
        self._text, self._began, self._level = "", time.monotonic(), _LOG.level
        self._done = threading.Event()
        self._ticking = threading.Thread(target=self._tick, name="progress", daemon=True)

    def __enter__(self) -> ProgressLine:
        if self._shown != "nothing":
            _LOG.addHandler(self)
            _LOG.setLevel(logging.INFO)
        if self._shown == "line":
            self._ticking.start()
        return self

    def __exit__(self, *_: object) -> None:
        _LOG.removeHandler(self)
        _LOG.setLevel(self._level)
        if self._shown == "line":
            self._done.set()
            self._ticking.join()
            self._write("")

    def emit(self, record: logging.LogRecord) -> None:
        of_feed = "" if record.name == _LOG.name else f"{record.name}: "
        self._text = " ".join(f"{of_feed}{record.getMessage()}".split())
        if self._shown == "log":
            now = datetime.datetime.now(datetime.UTC)
            self._stream.write(f"{now:%Y-%m-%dT%H:%M:%SZ} {printable(self._text)}\n")
            self._stream.flush()

    def _tick(self) -> None:
        while not self._done.wait(_TICK_SECONDS):
            if self._text:
                minutes, seconds = divmod(int(time.monotonic() - self._began), 60)
                self._write(f"{minutes}:{seconds:02} {self._text}")

    def _write(self, text: str) -> None:
        width = shutil.get_terminal_size().columns - 1
        # The cursor returns to the start, so that other output replaces the line.
        self._stream.write(f"\r\x1b[K{printable(text)[:width]}\r")
        self._stream.flush()
