"""`cdc-lakehouse run`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import click

from cdc_lakehouse.commands.configured import chosen, print_json, with_configuration
from cdc_lakehouse.commands.feed_pass import FeedResult, prepare_instance, run_feeds
from cdc_lakehouse.commands.text import faults, grid
from cdc_lakehouse.config import LakehouseConfig


@click.command()
@click.option("--feed", "feed_name", help="Only this feed.")
@click.option("--partition", "partitions", multiple=True, help="Decode this feed date again; may be given repeatedly.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def command(feed_name: str | None, partitions: Sequence[str], as_json: bool) -> None:
    """One pass over the feeds: land, decode, apply DDL and rows, publish.

    Exit code 0: done, or nothing to do. 1: something is held or quarantined. 2: the configuration is wrong.
    3: a source cannot be reached.
    """

    def work(config: LakehouseConfig) -> int:
        prepare_instance()
        results = run_feeds(config, chosen(config, feed_name), partitions)
        if as_json:
            print_json({"feeds": [asdict(result) for result in results]})
        else:
            click.echo("\n\n".join(as_text(result) for result in results))
        return max(result.exit_code for result in results)

    with_configuration(work)


def as_text(result: FeedResult) -> str:
    lines = [f"feed {result.feed}"]
    if result.error is not None:
        return "\n".join([*lines, f"  failed: {result.error}"])
    if result.checkpoint_ts is None:
        lines.append("  nothing is published yet")
    else:
        what = "published" if result.published else "nothing to do: published before,"
        lines.append(f"  {what} checkpoint-ts {result.checkpoint_ts} ({result.checkpoint_time})")
    if result.tables:
        header = ["table", "rows in", "insert", "update", "delete", "rows now", "ddl"]
        rows = [_table_row(table) for table in result.tables]
        lines += ["", *grid(header, rows)]
    ddl = [(table, each) for table in result.tables for each in table["ddl"]]
    if ddl:
        lines += ["", "  DDL applied:"]
        lines += [f"    {each['effect']:<8} {each['statement'] or table['table']}" for table, each in ddl]
    return "\n".join([*lines, *faults(result.held, result.quarantined, result.faults)])


def _table_row(table: dict[str, Any]) -> list[str]:
    counts = [str(table[name]) for name in ("rows_in", "inserts", "updates", "deletes")]
    rows = "-" if table["rows"] is None else str(table["rows"])
    return [f"{table['database']}.{table['table']}", *counts, rows, str(len(table["ddl"]))]
