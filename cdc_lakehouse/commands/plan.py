"""`cdc-lakehouse plan`: show what pending DDL will do. It starts neither Spark nor Dagster."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import click

from cdc_lakehouse.adopt.plan import FeedPlan, PendingStatement, TablePlan, plan_ddl
from cdc_lakehouse.changelog.positions import BEGINNING, commit_time
from cdc_lakehouse.commands.common import DONE, Asked, of_feeds
from cdc_lakehouse.pipeline.dump import PendingLoad


@click.command()
@of_feeds("the plan")
def command(asked: Asked) -> int:
    """Show what is pending: the initial load, and DDL with its effect, the statements that would run, and the rows
    that would be rewritten.

    \b
    Example:
      cdc-lakehouse plan --feed shop
    """
    plans = [plan_ddl(run) for run in asked.runs]
    asked.answer({"feeds": [asdict(plan) for plan in plans]}, *map(_text, plans))
    return DONE


def _text(plan: FeedPlan) -> str:
    upto = f"up to {plan.checkpoint_ts} ({commit_time(plan.checkpoint_ts):%Y-%m-%d %H:%M:%S} UTC)"
    lines = [f"feed {plan.feed}, {'before its first run' if plan.checkpoint_ts == BEGINNING else upto}"]
    if plan.initial is not None:
        lines += [f"  initial load: {_of_load(plan.initial)}"]
    if not plan.statements and not plan.tables:
        return "\n".join([*lines, "  no DDL is pending"])
    for statement in plan.statements:
        lines += ["", *_of_statement(statement)]
    for table in plan.tables:
        lines += ["", *_of_table(table)]
    return "\n".join(lines)


def _of_load(load: PendingLoad) -> str:
    if load.reading is not None:
        return f"the database is being read: {load.reading}"
    if load.files is None:
        return "the tables of the database are to be read"
    waits = "" if load.waits is None else f"; {load.waits}"
    return f"{load.files} files of {load.tables} tables ({load.bytes} bytes) are to be loaded{waits}"


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
