"""`cdc-lakehouse resume`: let a rewrite through that the policy holds. The next run carries it out."""

from __future__ import annotations

import datetime
from typing import NoReturn

import click

from cdc_lakehouse.commands.configured import chosen, with_configuration
from cdc_lakehouse.commands.exit_codes import DONE, HELD
from cdc_lakehouse.config import LakehouseConfig
from cdc_lakehouse.lake.catalog import Lake
from cdc_lakehouse.lake.current.tables import CurrentTables
from cdc_lakehouse.lake.tables.approvals import Approval
from cdc_lakehouse.pipeline.approval import unapproved
from cdc_lakehouse.pipeline.run import FeedRun


@click.command()
@click.argument("table")
@click.option("--feed", "feed_name", help="Only this feed.")
def command(table: str, feed_name: str | None) -> None:
    """Let the rewrite of TABLE (database.table) through that waits for it.

    Exit code 0: it is, and the next run carries it out. 1: no rewrite of the table waits.
    """

    def work(config: LakehouseConfig) -> int:
        lake = Lake(config.lake, config.storage)
        runs = [FeedRun(feed, lake, _no_session) for feed in chosen(config, feed_name)]
        resumed = [run for run in runs if _resume(run, table)]
        if not resumed:
            _tell_why(runs, table)
        return DONE if resumed else HELD

    with_configuration(work)


def _no_session() -> NoReturn:
    raise AssertionError("nothing is carried out here")


def _resume(run: FeedRun, table: str) -> bool:
    tables = CurrentTables(run.lake, run.feed)
    done = False
    for life in run.history.history.incarnations().values():
        waiting = unapproved(run, life, tables.find) if str(life.last.name) == table else ()
        if waiting:
            name, now = life.last.name, datetime.datetime.now(datetime.UTC)
            run.approvals.add(Approval(life.id, name.database, name.table, waiting[-1].commit_ts, now))
            click.echo(f"feed {run.feed.name}: the next run carries out")
            for version in waiting:
                click.echo(f"  {version.query or version.kind}")
            done = True
    return done


def _tell_why(runs: list[FeedRun], table: str) -> None:
    click.echo(f"no rewrite of {table} waits", err=True)
    for run in runs:
        lives = run.history.history.incarnations()
        for id, reason in run.last_cut.held:
            if id in lives and str(lives[id].last.name) == table:
                click.echo(f"feed {run.feed.name} holds it for another reason: {reason}", err=True)
