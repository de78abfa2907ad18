"""`cdc-lakehouse verify`: whether the lake's tables are those of the source database. No JVM is started."""

from __future__ import annotations

import functools
from typing import Any, Final

import click

from cdc_lakehouse.commands.common import (
    BAD_INPUT,
    DONE,
    HELD,
    chosen,
    configured,
    feed_option,
    grid,
    no_spark,
    print_json,
)
from cdc_lakehouse.config import LakehouseConfig
from cdc_lakehouse.errors import ConfigurationError
from cdc_lakehouse.lake.catalog import Lake
from cdc_lakehouse.pipeline.row_differences import Difference, Values
from cdc_lakehouse.pipeline.run import FeedRun
from cdc_lakehouse.pipeline.verify import FeedResult, TableResult, VerifyOptions, verify_feed

_CODES: Final = {"equal": DONE, "different": HELD, "unchecked": BAD_INPUT}
_WIDTH: Final = 60


@click.command()
@feed_option
@click.option("--table", "tables", multiple=True, help="Only this table (database.table); may be repeated.")
@click.option(
    "--attempts",
    type=click.IntRange(1, 100),
    default=3,
    show_default=True,
    help="How often keys that differ are compared.",
)
@click.option("--pause", type=click.FloatRange(0), default=10, show_default=True, help="Seconds between two attempts.")
@click.option("--rows", type=click.IntRange(0, 10_000), default=10, show_default=True, help="Keys shown of each table.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
@configured
def command(
    config: LakehouseConfig,
    feed_name: str | None,
    tables: tuple[str, ...],
    attempts: int,
    pause: float,
    rows: int,
    as_json: bool,
) -> int:
    """Compare the tables of the published cut with the source database.

    Exit code 0: they are equal. 1: rows differ. 2: something could not be checked, and no row differs."""
    lake = Lake(config.lake, config.storage)
    feeds = [(feed, feed.verify) for feed in chosen(config, feed_name)]
    results = [
        verify_feed(
            functools.partial(FeedRun, feed, lake, no_spark), verify, tables, VerifyOptions(attempts, pause, rows)
        )
        for feed, verify in feeds
        if verify is not None
    ]
    if not results:
        raise ConfigurationError("no source database is configured", advice="set verify.url of the feed")
    if tables and not any(result.tables or result.held or result.error for result in results):
        raise ConfigurationError(f"no table {', '.join(tables)} is published")
    if as_json:
        print_json({"feeds": [_document(result) for result in results]})
    else:
        click.echo("\n\n".join(_text(result) for result in results))
    found = {result.result for result in results}
    return next(_CODES[each] for each in ("different", "unchecked", "equal") if each in found)


def _document(result: FeedResult) -> dict[str, Any]:
    """Binary values are hexadecimal digits, all others texts."""
    return {
        "feed": result.feed,
        "result": result.result,
        "checkpoint_ts": result.checkpoint_ts,
        "server": result.server,
        "error": result.error,
        "held": dict(result.held),
        "tables": [
            {
                "database": table.name.database,
                "table": table.name.table,
                "result": table.result,
                "reason": table.reason,
                "source_rows": table.source_rows,
                "lake_rows": table.lake_rows,
                "buckets": table.buckets,
                "different_buckets": table.different_buckets,
                "missing": table.missing,
                "extra": table.extra,
                "different": table.different,
                "changing": table.changing,
                "left_out": dict(table.left_out),
                "differences": [
                    {
                        "kind": each.kind,
                        "key": _printable(each.key),
                        "columns": list(each.columns),
                        "source": _printable(each.source),
                        "lake": _printable(each.lake),
                    }
                    for each in table.differences
                ],
            }
            for table in result.tables
        ],
    }


def _printable(values: Values | None) -> dict[str, str | None] | None:
    if values is None:
        return None
    return {name: value.hex() if isinstance(value, bytes) else value for name, value in values.items()}


def _text(result: FeedResult) -> str:
    lines = [f"feed {result.feed}: {result.result}", f"  cut     {result.checkpoint_ts or 'none'}"]
    if result.server is not None:
        lines.append(f"  source  {result.server}")
    if result.error is not None:
        lines.append(f"  error   {result.error}")
    if result.tables:
        header = ["table", "result", "rows in source", "in lake", "buckets", "differ", "differing keys", "changing"]
        lines += ["", *grid(header, [_cells(table) for table in result.tables])]
    for table in result.tables:
        lines += _notes(table)
    if result.held:
        lines += ["", "  held, not compared:", *(f"    {table}: {why}" for table, why in sorted(result.held.items()))]
    return "\n".join(lines)


def _cells(table: TableResult) -> list[str]:
    if table.result == "unchecked":
        return [str(table.name), table.result, *["-"] * 6]
    numbers = (
        table.source_rows, table.lake_rows, table.buckets, table.different_buckets, table.differing_keys,
        table.changing,
    )  # fmt: skip
    return [str(table.name), table.result, *map(str, numbers)]


def _notes(table: TableResult) -> list[str]:
    lines: list[str] = []
    if table.reason is not None:
        lines.append(f"    could not be checked: {table.reason}")
    lines += [f"    column {name} is not compared: {why}" for name, why in table.left_out.items()]
    for difference in table.differences:
        lines += _difference(difference)
    if table.differing_keys > len(table.differences):
        lines.append(f"    and {table.differing_keys - len(table.differences)} more keys")
    return ["", f"  {table.name}", *lines] if lines else []


def _difference(difference: Difference) -> list[str]:
    key = ", ".join(f"{name}={_shown(value)}" for name, value in difference.key.items())
    match difference.kind:
        case "missing":
            return [f"    {key}: missing in the lake", f"      source: {_row(difference.source)}"]
        case "extra":
            return [f"    {key}: too many in the lake", f"      lake:   {_row(difference.lake)}"]
        case "different":
            only = difference.columns
            return [
                f"    {key}: {', '.join(only)} differs",
                f"      source: {_row(difference.source, only)}",
                f"      lake:   {_row(difference.lake, only)}",
            ]


def _row(values: Values | None, only: tuple[str, ...] = ()) -> str:
    found = values or {}
    return ", ".join(f"{name}={_shown(value)}" for name, value in found.items() if not only or name in only)


def _shown(value: Any) -> str:
    if value is None:
        return "NULL"
    text = f"0x{value.hex()}" if isinstance(value, bytes) else repr(value)
    return text if len(text) <= _WIDTH else f"{text[: _WIDTH - 1]}…"
