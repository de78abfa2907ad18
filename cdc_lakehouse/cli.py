"""The command line. A command's module is imported when the command is called: most of them need neither Dagster nor
Spark.

To add a command: a module in `cdc_lakehouse.commands` with a click command called `command`, and its row here.
"""

from __future__ import annotations

import importlib
from typing import Final

import click

_COMMANDS: Final = {
    "canal": ("cdc_lakehouse.commands.canal", "What a Canal server sends."),
    "ddl": ("cdc_lakehouse.commands.ddl", "What DDL statements say, and the tables that result."),
    "resume": ("cdc_lakehouse.commands.resume", "Let a table's rewrite through that waits for it."),
    "run": ("cdc_lakehouse.commands.run", "One pass over the feeds: land, decode, apply, publish."),
    "plan": ("cdc_lakehouse.commands.plan", "What the DDL that waits will do, without doing it."),
    "sample": ("cdc_lakehouse.commands.sample", "Write a sample changefeed, and keep it going."),
    "show": ("cdc_lakehouse.commands.show", "Print rows of current-state tables."),
    "status": ("cdc_lakehouse.commands.status", "Where each feed stands: checkpoints, lag, what is held."),
}


class _Commands(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        return importlib.import_module(_COMMANDS[cmd_name][0]).command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        # Click would import all of them for a line each.
        with formatter.section("Commands"):
            formatter.write_dl([(name, line) for name, (_, line) in _COMMANDS.items()])


@click.group(cls=_Commands)
@click.version_option(package_name="cdc-lakehouse")
def main() -> None:
    """Database change logs as Apache Iceberg tables."""
