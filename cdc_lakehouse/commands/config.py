"""`cdc-lakehouse config`: print the schema of `lakehouse.yaml`."""

from __future__ import annotations

import click

from cdc_lakehouse.commands.common import DONE, exits, print_json
from cdc_lakehouse.config.file import json_schema


@click.group()
def command() -> None:
    """Print the schema of lakehouse.yaml."""


@command.command()
@exits
def schema() -> int:
    """Print the JSON Schema of lakehouse.yaml, so that editors complete and check it.

    \b
    Example:
      cdc-lakehouse config schema > lakehouse.schema.json

    The first line of lakehouse.yaml names it: `# yaml-language-server: $schema=lakehouse.schema.json`.
    """
    print_json(json_schema())
    return DONE
