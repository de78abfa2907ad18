"""`cdc-lakehouse connect`: print how an engine reads a table of the lake."""

from __future__ import annotations

import click

from cdc_lakehouse.adopt.connect import SUPPORTED, snippet
from cdc_lakehouse.commands.common import DONE, Asked, of_feeds
from cdc_lakehouse.commands.show import as_of_option, find_tables
from cdc_lakehouse.errors import ConfigurationError
from cdc_lakehouse.pipeline.reading import AsOf


@click.command()
@click.argument("engine", type=click.Choice(SUPPORTED))
@click.argument("table", required=False)
@as_of_option
@of_feeds("Print the snippet as JSON.")
def command(asked: Asked, engine: str, table: str | None, as_of: AsOf) -> int:
    """Print how ENGINE reads TABLE (database.table; default: the first one): the catalog's settings with the real
    paths, and a query. With --as-of the query reads the snapshot of a cut.

    Secrets are not printed: each one is marked where it belongs.

    \b
    Examples:
      cdc-lakehouse connect duckdb shop.orders
      cdc-lakehouse connect pyiceberg shop.orders --as-of 2026-11-22T10:00
    """
    found = [each for each in find_tables(asked, table, as_of) if each.identifier is not None]
    if not found:
        raise ConfigurationError(
            "the rows of that moment are in no snapshot", advice="read them with `cdc-lakehouse show` or read()"
        )
    chosen = found[0]
    assert chosen.identifier is not None
    text = snippet(chosen.run.lake, engine, chosen.identifier, None if as_of is None else chosen.snapshot_id)
    asked.answer({"engine": engine, "table": str(chosen.name), "snippet": text}, text)
    return DONE
