"""`cdc-lakehouse show`: rows of a current-state table, as of the published cut or of another moment. No JVM is
started."""

from __future__ import annotations

import datetime

import click

from cdc_lakehouse.commands.common import DONE, chosen, configured, feed_option, grid, printable
from cdc_lakehouse.config import LakehouseConfig
from cdc_lakehouse.errors import ConfigurationError
from cdc_lakehouse.lake.catalog import Lake
from cdc_lakehouse.pipeline.context import no_spark
from cdc_lakehouse.pipeline.reading import AsOf, ReadableTable, readable_tables
from cdc_lakehouse.pipeline.run import FeedRun

_WIDTH = 32


def _as_of(context: click.Context, parameter: click.Parameter, value: str | None) -> AsOf:
    if value is None or value.isdecimal():
        return None if value is None else int(value)
    try:
        moment = datetime.datetime.fromisoformat(value)
    except ValueError:
        return value
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=datetime.UTC)


@click.command()
@click.argument("table", required=False)
@feed_option
@click.option("--rows", type=click.IntRange(1, 1000), default=5, show_default=True, help="Rows of each table.")
@click.option(
    "--as-of",
    callback=_as_of,
    help="A time (2026-11-22T10:00, UTC unless it says otherwise): the newest cut at or before it. A commit-ts: "
    "exactly that. A tag (day_2026-11-21).",
)
@configured
def command(config: LakehouseConfig, table: str | None, feed_name: str | None, rows: int, as_of: AsOf) -> int:
    """Print rows of TABLE (database.table), or of every table, as of the published cut."""
    lake = Lake(config.lake, config.storage)
    runs = [FeedRun(feed, lake, no_spark) for feed in chosen(config, feed_name)]
    found = [each for run in runs for each in readable_tables(run, as_of)]
    wanted = [each for each in found if table in (None, str(each.name))]
    if not wanted:
        known = ", ".join(str(each.name) for each in found) or "none"
        raise ConfigurationError(f"no table {table or ''} is published", advice=f"published are: {known}")
    click.echo("\n\n".join(_text(each, rows) for each in wanted))
    return DONE


def _text(table: ReadableTable, limit: int) -> str:
    count, arrow = table.head(limit)
    title = f"{table.name}: {count} rows"
    if not count and table.snapshot_id is None:
        return title
    cells = [[_cell(value) for value in row.values()] for row in arrow.to_pylist()]
    return "\n".join([title, *grid(arrow.column_names, cells)])


def _cell(value: object) -> str:
    text = value.hex() if isinstance(value, bytes) else "NULL" if value is None else str(value)
    text = printable(text)
    return text if len(text) <= _WIDTH else f"{text[: _WIDTH - 1]}…"
