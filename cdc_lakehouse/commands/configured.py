"""What commands share that work with the configuration."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from typing import Any

import click

from cdc_lakehouse import config as configuration
from cdc_lakehouse.commands.exit_codes import exit_code
from cdc_lakehouse.config import FeedConfig, LakehouseConfig
from cdc_lakehouse.errors import CdcError


def with_configuration(work: Callable[[LakehouseConfig], int]) -> None:
    """Load the configuration, work, and end with the exit code; an error of ours is one line."""
    try:
        code = work(configuration.load())
    except CdcError as error:
        click.echo(f"cdc-lakehouse: {error}", err=True)
        code = exit_code(error)
    sys.exit(code)


def chosen(config: LakehouseConfig, name: str | None) -> Sequence[FeedConfig]:
    """All feeds, or the one that is named."""
    return config.feeds if name is None else [config.feed(name)]


def print_json(document: dict[str, Any]) -> None:
    click.echo(json.dumps(document, ensure_ascii=False, indent=2))
