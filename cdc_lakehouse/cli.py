"""The command line. A command's module is imported when the command is called: most of them need neither Dagster nor
Spark.

To add a command: a module in `cdc_lakehouse.commands` with a click command called `command`, and its row here.
"""

from __future__ import annotations

import importlib
from typing import Final

import click

_COMMANDS: Final = {
    "run": "cdc_lakehouse.commands.run",
    "status": "cdc_lakehouse.commands.status",
    "sample": "cdc_lakehouse.commands.sample",
    "show": "cdc_lakehouse.commands.show",
}


class _Commands(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        return importlib.import_module(_COMMANDS[cmd_name]).command


@click.group(cls=_Commands)
@click.version_option(package_name="cdc-lakehouse")
def main() -> None:
    """Database change logs as Apache Iceberg tables."""
