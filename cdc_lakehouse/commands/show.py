"""`cdc-lakehouse show`: rows of a current-state table, as of the published cut. No JVM is started."""

from __future__ import annotations

import click
from pyiceberg.table import Table

from cdc_lakehouse.changelog.positions import BEGINNING
from cdc_lakehouse.changelog.schema import TableName
from cdc_lakehouse.commands.common import DONE, chosen, configured, feed_option, grid, printable
from cdc_lakehouse.config import FeedConfig, LakehouseConfig
from cdc_lakehouse.errors import ConfigurationError
from cdc_lakehouse.lake.catalog import Lake
from cdc_lakehouse.lake.current.tables import CurrentTables
from cdc_lakehouse.lake.tables.checkpoints import Checkpoints, CutRow

_WIDTH = 32


@click.command()
@click.argument("table", required=False)
@feed_option
@click.option("--rows", type=click.IntRange(1, 1000), default=5, show_default=True, help="Rows of each table.")
@configured
def command(config: LakehouseConfig, table: str | None, feed_name: str | None, rows: int) -> int:
    """Print rows of TABLE (database.table), or of every table, as of the published cut."""
    lake = Lake(config.lake, config.storage)
    found = [(feed, row) for feed in chosen(config, feed_name) for row in _cut(lake, feed)]
    wanted = [(feed, row) for feed, row in found if table in (None, f"{row.database}.{row.table}")]
    if not wanted:
        known = ", ".join(f"{row.database}.{row.table}" for _, row in found) or "none"
        raise ConfigurationError(f"no table {table or ''} is published", advice=f"published are: {known}")
    click.echo("\n\n".join(_text(lake, feed, row, rows) for feed, row in wanted))
    return DONE


def _cut(lake: Lake, feed: FeedConfig) -> list[CutRow]:
    checkpoints = Checkpoints(lake, feed.name)
    published = checkpoints.last().checkpoint_ts
    rows = [] if published == BEGINNING else checkpoints.rows(published)
    return sorted(rows, key=lambda row: (row.database, row.table))


def _text(lake: Lake, feed: FeedConfig, row: CutRow, limit: int) -> str:
    table = lake.load(CurrentTables(lake, feed).identifier(TableName(row.database, row.table)))
    title = f"{row.database}.{row.table}: {row.row_count} rows"
    if table is None or row.snapshot_id is None:
        return title
    return "\n".join([title, *_rows(table, row.snapshot_id, limit)])


def _rows(table: Table, snapshot_id: int, limit: int) -> list[str]:
    arrow = table.scan(snapshot_id=snapshot_id, limit=limit).to_arrow()
    cells = [[_cell(value) for value in row.values()] for row in arrow.to_pylist()]
    return grid(arrow.column_names, cells)


def _cell(value: object) -> str:
    text = value.hex() if isinstance(value, bytes) else "NULL" if value is None else str(value)
    text = printable(text)
    return text if len(text) <= _WIDTH else f"{text[: _WIDTH - 1]}…"
