"""`cdc-lakehouse plan` shows what pending DDL will do. `cdc-lakehouse resume` approves a rewrite that the policy holds.

Neither starts Spark or Dagster. The next run carries out what was approved."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import click

from cdc_lakehouse.changelog.positions import commit_time
from cdc_lakehouse.commands.common import DONE, HELD, chosen, configured, feed_option, print_json
from cdc_lakehouse.config import LakehouseConfig
from cdc_lakehouse.lake.catalog import Lake
from cdc_lakehouse.lake.current.tables import CurrentTables
from cdc_lakehouse.lake.tables.approvals import Approval
from cdc_lakehouse.pipeline.context import no_spark, utc_now
from cdc_lakehouse.pipeline.holds import unapproved
from cdc_lakehouse.pipeline.plan import FeedPlan, PendingStatement, TablePlan, plan_ddl
from cdc_lakehouse.pipeline.run import FeedRun


@click.command()
@feed_option
@click.option("--json", "as_json", is_flag=True, help="Print the plan as JSON.")
@configured
def command(config: LakehouseConfig, feed_name: str | None, as_json: bool) -> int:
    """Show pending DDL: its effect, the statements that would run, and the rows that would be rewritten."""
    plans = [plan_ddl(run) for run in _runs(config, feed_name)]
    if as_json:
        print_json({"feeds": [asdict(plan) for plan in plans]})
    else:
        click.echo("\n\n".join(_text(plan) for plan in plans))
    return DONE


def _runs(config: LakehouseConfig, feed_name: str | None) -> list[FeedRun]:
    lake = Lake(config.lake, config.storage)
    return [FeedRun(feed, lake, no_spark) for feed in chosen(config, feed_name)]


def _text(plan: FeedPlan) -> str:
    lines = [f"feed {plan.feed}, up to {plan.checkpoint_ts} ({commit_time(plan.checkpoint_ts):%Y-%m-%d %H:%M:%S} UTC)"]
    if not plan.statements and not plan.tables:
        return "\n".join([*lines, "  no DDL is pending"])
    for statement in plan.statements:
        lines += ["", *_of_statement(statement)]
    for table in plan.tables:
        lines += ["", *_of_table(table)]
    return "\n".join(lines)


def _of_statement(pending: PendingStatement) -> list[str]:
    waits = ", above the checkpoint" if pending.waits else ""
    table = f"{pending.database}.{pending.table}" if pending.table else pending.database
    notes: list[Any] = [pending.note and f"note: {pending.note}", pending.hold and f"holds the table: {pending.hold}"]
    return [
        f"  {table}  {pending.effect}  {commit_time(pending.commit_ts):%Y-%m-%d %H:%M:%S}{waits}",
        f"    {pending.statement or '(columns observed)'}",
        *(f"      {line}" for line in pending.columns),
        *(f"    {note}" for note in notes if note),
    ]


def _of_table(table: TablePlan) -> list[str]:
    lines = [f"  {table.table} ({table.iceberg_table}): {table.rows} rows, {table.rewritten} to be rewritten"]
    lines += [f"    {statement}" for statement in table.statements or ("nothing changes but rows",)]
    return lines if table.hold is None else [*lines, f"    held: {table.hold}"]


@click.command()
@click.argument("table")
@feed_option
@configured
def resume(config: LakehouseConfig, table: str, feed_name: str | None) -> int:
    """Approve the rewrite of TABLE (database.table) that the policy holds.

    Exit code 0: approved, and the next run carries it out. 1: no rewrite of the table waits.
    """
    runs = _runs(config, feed_name)
    approved = [run for run in runs if _approve(run, table)]
    if not approved:
        _print_why_not(runs, table)
    return DONE if approved else HELD


def _approve(run: FeedRun, table: str) -> bool:
    """Approve the rewrites of a table that wait. Returns whether there are any."""
    tables = CurrentTables(run.lake, run.feed)
    done = False
    for life in run.history.history.incarnations().values():
        waiting = unapproved(run, life, tables.find) if str(life.last.name) == table else ()
        if waiting:
            name = life.last.name
            run.approvals.add(Approval(life.id, name.database, name.table, waiting[-1].commit_ts, utc_now()))
            click.echo(f"feed {run.feed.name}: the next run carries out")
            for version in waiting:
                click.echo(f"  {version.query or version.kind}")
            done = True
    return done


def _print_why_not(runs: Sequence[FeedRun], table: str) -> None:
    click.echo(f"no rewrite of {table} waits", err=True)
    for run in runs:
        lives = run.history.history.incarnations()
        for id, reason in run.last_cut.held:
            if id in lives and str(lives[id].last.name) == table:
                click.echo(f"feed {run.feed.name} holds it for another reason: {reason}", err=True)
