"""`cdc-lakehouse alerts`: test whether the receivers of alerts can be reached."""

from __future__ import annotations

import click

from cdc_lakehouse.commands.common import DONE, HELD, configured, print_json, say
from cdc_lakehouse.config import LakehouseConfig
from cdc_lakehouse.errors import AlertNotSentError, ConfigurationError
from cdc_lakehouse.operate.alerts import receiver_label, send_test


@click.group()
def command() -> None:
    """Test the receivers of alerts."""


@command.command()
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
@configured
def test(config: LakehouseConfig, as_json: bool) -> int:
    """Send a test message to each receiver of `alerts`, and print which accepted it.

    Exit code 0: all accepted it. 1: one did not. 2: the configuration is wrong or has no receivers.

    \b
    Example:
      cdc-lakehouse alerts test
    """
    if not config.alerts:
        raise ConfigurationError("the configuration has no receivers of alerts", advice="add them as `alerts`")
    errors: dict[str, str | None] = {}
    for position, receiver in enumerate(config.alerts):
        label = receiver_label(receiver, position)
        errors[label] = None
        try:
            send_test(receiver)
        except AlertNotSentError as error:
            errors[label] = str(error)
        if not as_json:
            say(f"{label}: {errors[label] or 'took the message'}")
    if as_json:
        print_json({"receivers": [{"receiver": label, "error": error} for label, error in errors.items()]})
    return DONE if all(error is None for error in errors.values()) else HELD
