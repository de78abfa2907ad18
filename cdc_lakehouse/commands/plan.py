"""`cdc-lakehouse plan`: what the DDL that waits will do. Nothing is changed; neither Spark nor Dagster is started."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any, NoReturn

import click

from cdc_lakehouse.changelog.positions import commit_time
from cdc_lakehouse.commands.configured import chosen, print_json, with_configuration
from cdc_lakehouse.commands.exit_codes import DONE
from cdc_lakehouse.config import LakehouseConfig
from cdc_lakehouse.lake.catalog import Lake
from cdc_lakehouse.pipeline.plan import FeedPlan, PendingStatement, TablePlan, plan_ddl
from cdc_lakehouse.pipeline.run import FeedRun


@click.command()
@click.option("--feed", "feed_name", help="Only this feed.")
@click.option("--json", "json_wanted", is_flag=True, help="Print the plan as JSON.")
def command(feed_name: str | None, json_wanted: bool) -> None:
    """Show pending DDL: its effect, the statements that would run, and the rows that would be rewritten."""

    def work(config: LakehouseConfig) -> int:
        lake = Lake(config.lake, config.storage)
        found = [plan_ddl(FeedRun(feed, lake, _no_session)) for feed in chosen(config, feed_name)]
        if json_wanted:
            print_json({"feeds": [asdict(each) for each in found]})
        else:
            click.echo("\n\n".join(_text(each) for each in found))
        return DONE

    with_configuration(work)


def _no_session() -> NoReturn:
    raise AssertionError("a plan starts no JVM")


def _text(plan: FeedPlan) -> str:
    lines = [f"feed {plan.feed}, up to {plan.checkpoint_ts} ({commit_time(plan.checkpoint_ts):%Y-%m-%d %H:%M:%S} UTC)"]
    if not plan.statements and not plan.tables:
        return "\n".join([*lines, "  no DDL waits"])
    for statement in plan.statements:
        lines += ["", *_of_statement(statement)]
    for table in plan.tables:
        lines += ["", *_of_table(table)]
    return "\n".join(lines)


def _of_statement(pending: PendingStatement) -> list[str]:
    waits = ", above the checkpoint" if pending.waits else ""
    table = f"{pending.database}.{pending.table}" if pending.table else pending.database
    told: list[Any] = [pending.note and f"note: {pending.note}", pending.hold and f"holds the table: {pending.hold}"]
    return [
        f"  {table}  {pending.effect}  {commit_time(pending.commit_ts):%Y-%m-%d %H:%M:%S}{waits}",
        f"    {pending.statement or '(columns seen)'}",
        *(f"      {line}" for line in pending.columns),
        *(f"    {each}" for each in told if each),
    ]


def _of_table(table: TablePlan) -> list[str]:
    lines = [f"  {table.table} ({table.iceberg_table}): {table.rows} rows, {table.rewritten} to be rewritten"]
    lines += [f"    {statement}" for statement in table.statements or ("nothing changes but rows",)]
    return lines if table.hold is None else [*lines, f"    held: {table.hold}"]
