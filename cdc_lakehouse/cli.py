"""The command line. A command's module is imported when the command is called: most commands need neither Dagster nor
Spark.

To add a command: a module in `cdc_lakehouse.commands` with a click command, and its row here.
"""

from __future__ import annotations

import importlib
from typing import Final

import click

_COMMANDS: Final = {
    "init": ("init:command", "Look at a change log, and write a lakehouse.yaml for it."),
    "doctor": ("doctor:command", "Try each part of the configuration on this machine."),
    "run": ("run:command", "Bring the tables up to date: land, decode, apply, publish."),
    "load": ("run:load", "Load tables of the initial dump again."),
    "status": ("status:command", "Show the state of each feed: checkpoints, lag, what is held."),
    "alerts": ("alerts:command", "Try the receivers of alerts."),
    "metrics": ("metrics:command", "Print the state of the feeds for Prometheus, or serve it."),
    "show": ("show:command", "Print rows of current-state tables."),
    "verify": ("verify:command", "Compare the tables with the source database."),
    "maintain": ("maintain:command", "Keep tables small: compaction, manifests, snapshots, orphan files."),
    "plan": ("plan:command", "Show what pending DDL will do, without doing it."),
    "hold": ("table_decisions:hold", "Keep a table as it is until it is resumed."),
    "resume": ("table_decisions:resume", "Let a held table go on, or approve its rewrite."),
    "rebuild": ("run:rebuild", "Recompute a table from all of its events."),
    "quarantine": ("quarantine:command", "Look at what could not be used, give it up, or decode it again."),
    "config": ("config:command", "Print the JSON Schema of lakehouse.yaml."),
    "ddl": ("ddl:command", "Parse DDL statements, and apply them to tables."),
    "canal": ("canal:command", "Print what a Canal server sends."),
    "sample": ("sample:command", "Write a sample changefeed, and keep it going."),
}
"""By name: the module below `cdc_lakehouse.commands` with the click command in it, and its line of help."""


class _Commands(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        module, _, attribute = _COMMANDS[cmd_name][0].partition(":")
        return getattr(importlib.import_module(f"cdc_lakehouse.commands.{module}"), attribute)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        # Click would import every command for its line of help.
        with formatter.section("Commands"):
            formatter.write_dl([(name, line) for name, (_, line) in _COMMANDS.items()])


@click.group(cls=_Commands)
@click.version_option(package_name="cdc-lakehouse")
def main() -> None:
    """Database change logs as Apache Iceberg tables."""
