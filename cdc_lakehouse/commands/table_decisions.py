"""`cdc-lakehouse hold` holds a table in its current state, `cdc-lakehouse resume` releases it.

Neither starts Spark or Dagster: the next run acts on it."""

from __future__ import annotations

from typing import Any

import click

from cdc_lakehouse.changelog.positions import utc_now
from cdc_lakehouse.commands.common import DONE, HELD, Asked, of_feeds, os_user, say
from cdc_lakehouse.errors import ConfigurationError
from cdc_lakehouse.operate.decisions import Resumed, hold_table, resume_table
from cdc_lakehouse.pipeline.run import FeedRun


@click.command()
@click.argument("table")
@click.option("--reason", required=True, help="Why; `status` and the check nothing_held show it.")
@click.option("--by", "held_by", help="Who holds the table. [default: the user of the system]")
@of_feeds("what was done")
def hold(asked: Asked, table: str, reason: str, held_by: str | None) -> int:
    """Hold TABLE (database.table) at its last cut until it is resumed. Its events are kept; other tables continue.

    Exit code 0: held, from the next run on. 2: no feed has such a table.

    \b
    Example:
      cdc-lakehouse hold shop.orders --reason "wrong prices since Monday"
    """
    held: list[FeedRun] = []
    refused: ConfigurationError | None = None
    for run in asked.runs:
        try:
            hold_table(run, table, reason, held_by or os_user(), utc_now())
            held.append(run)
        except ConfigurationError as error:  # It may be a table of another feed.
            refused = error
    if refused is not None and not held:
        raise refused
    document = {"feeds": [{"feed": run.feed.name, "table": table, "held": True} for run in held]}
    asked.answer(document, "\n".join(f"feed {run.feed.name}: the next run holds {table}" for run in held))
    return DONE


@click.command()
@click.argument("table")
@of_feeds("what was done")
def resume(asked: Asked, table: str) -> int:
    """Release TABLE (database.table) that a person holds, or approve a rewrite that the policy holds.

    Exit code 0: the next run continues the table. 1: nobody holds it, and none of its rewrites waits.

    \b
    Example:
      cdc-lakehouse resume shop.orders
    """
    resumed = [(run, found) for run in asked.runs if (found := resume_table(run, table, utc_now()))]
    lines = [line for run, found in resumed for line in _lines(run, table, found)]
    asked.answer({"feeds": [_document(run, table, found) for run, found in resumed]}, "\n".join(lines))
    if resumed:
        return DONE
    say(f"nobody holds {table}, and no rewrite of {table} waits", err=True)
    for run in asked.runs:
        lives = run.history.history.incarnations()
        for id, reason in run.last_cut.held:
            if id in lives and str(lives[id].last.name) == table:
                say(f"feed {run.feed.name} holds it for another reason: {reason}", err=True)
    return HELD


def _document(run: FeedRun, table: str, resumed: Resumed) -> dict[str, Any]:
    """Return what was resumed as JSON. `approved` are the statements whose rewrite the next run carries out."""
    approved = [version.query or version.kind for version in resumed.approved]
    return {"feed": run.feed.name, "table": table, "held": False, "hold_ended": resumed.hold is not None,
            "approved": approved}  # fmt: skip


def _lines(run: FeedRun, table: str, resumed: Resumed) -> list[str]:
    lines: list[str] = []
    if resumed.hold is not None:
        lines.append(f"feed {run.feed.name}: {table} continues with the next run")
    if resumed.approved:
        lines.append(f"feed {run.feed.name}: the next run carries out")
        lines += [f"  {version.query or version.kind}" for version in resumed.approved]
    return lines
