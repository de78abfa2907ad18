"""The command line. A command's module is imported when the command is called: most commands need neither Dagster nor
Spark.

To add a command: a module in `cdc_lakehouse.commands` with a click command, and its row here.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import os
import sys
from pathlib import Path
from typing import Any, Final

import click
from click.shell_completion import CompletionItem

from cdc_lakehouse.lake import without_pandas

# Modules are not garbage: with Python's default its collector takes a seventh of the time of a short command.
gc.set_threshold(300_000)
# Nothing here calculates with matrices, and numpy's threads for it spend CPU on waiting for work.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

_SECTIONS: Final = {
    "Set up": {
        "init": ("init:command", "Inspect a change log and write a lakehouse.yaml for it."),
        "doctor": ("doctor:command", "Test each part of the configuration on this machine."),
        "config": ("sample:config", "Print the JSON Schema of lakehouse.yaml."),
        "sample": ("sample:command", "Write a sample changefeed, and keep it going."),
    },
    "Run": {
        "run": ("run:command", "Bring the tables up to date: land, decode, apply, publish."),
        "load": ("run:load", "Load tables of the initial dump again."),
        "rebuild": ("run:rebuild", "Recompute a table from all of its events."),
        "maintain": ("maintain:command", "Keep tables small: compaction, manifests, snapshots, orphan files."),
    },
    "Look": {
        "status": ("status:command", "Show the state of each feed: checkpoints, lag, what is held."),
        "show": ("show:command", "Print rows of current-state tables."),
        "connect": ("connect:command", "Print how an engine reads a table."),
        "schema": ("show:schema", "Show the columns of a table, and the DDL that made them."),
        "plan": ("plan:command", "Show what pending DDL will do, without doing it."),
        "verify": ("verify:command", "Compare the tables with the source database."),
        "ui": ("report:ui", "Serve the report as a status page."),
        "report": ("report:command", "Write a page of HTML about each feed."),
        "metrics": ("metrics:command", "Print the state of the feeds for Prometheus, or serve it."),
        "alerts": ("doctor:alerts", "Test the receivers of alerts."),
    },
    "Decide": {
        "hold": ("decisions:hold", "Keep a table as it is until it is resumed."),
        "resume": ("decisions:resume", "Release a held table, or approve its rewrite."),
        "quarantine": ("decisions:command", "List unusable input, give it up, or decode it again."),
    },
    "Inspect": {
        "ddl": ("ddl:command", "Show the tables that DDL statements make."),
        "canal": ("canal:command", "Print what a Canal server sends."),
    },
}
"""By section of the help, and name: the module below `cdc_lakehouse.commands`, its click command, the line of help."""
_COMMANDS: Final[dict[str, Any]] = {name: row for section in _SECTIONS.values() for name, row in section.items()}
_WIDEST: Final = max(map(len, _COMMANDS))


class _Commands(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        module, _, attribute = _COMMANDS[cmd_name][0].partition(":")
        with without_pandas():
            found = importlib.import_module(f"cdc_lakehouse.commands.{module}")
        gc.freeze()
        return getattr(found, attribute)

    # Click would import every command for its line of help, here and where a name is completed.

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for title, section in _SECTIONS.items():
            with formatter.section(title):
                formatter.write_dl([(f"{name:{_WIDEST}}", line) for name, (_, line) in section.items()])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        commands = [CompletionItem(name, help=row[1]) for name, row in _COMMANDS.items() if name.startswith(incomplete)]
        return [*commands, *click.Command.shell_complete(self, ctx, incomplete)]


_SETTINGS: Final = {"help_option_names": ["-h", "--help"], "show_default": True}


@click.group(cls=_Commands, commands=_COMMANDS, context_settings=_SETTINGS)
@click.version_option(package_name="cdc-lakehouse")
@click.option(
    "--config",
    "config_path",
    type=click.Path(path_type=Path, dir_okay=False),
    help="The configuration file. [default: CDC_LAKEHOUSE_CONFIG of the environment, else lakehouse.yaml]",
)
def main(config_path: Path | None) -> None:
    """Database change logs as Apache Iceberg tables.

    \b
    Examples:
      cdc-lakehouse sample
      cdc-lakehouse --config demo/lakehouse.yaml run
      cdc-lakehouse --config demo/lakehouse.yaml show shop.orders
    """
    if os.environ.get("NO_COLOR"):
        # Else Click leaves colours out where the output is no terminal.
        click.get_current_context().color = False
    if config_path is not None:
        os.environ["CDC_LAKEHOUSE_CONFIG"] = str(config_path.absolute())  # Dagster's runs find it there, too.


def program() -> None:
    """Run `main`, and end without the teardown of Python's modules, a fifth of the time of a short command."""
    codes: list[Any] = []

    @atexit.register
    def end() -> None:
        # Registered first, it is called last, when threads have ended. Without a code, Python ends the process.
        with contextlib.suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(codes[0])

    try:
        main()
    except SystemExit as ended:
        codes.append(ended.code)
        raise
