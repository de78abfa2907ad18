"""`cdc-lakehouse schema`: show the columns of a table in the source and in the lake, and the DDL that made them. No JVM
is started."""

from __future__ import annotations

from typing import Any

import click

from cdc_lakehouse.changelog.mysql_types import type_text
from cdc_lakehouse.changelog.positions import commit_time
from cdc_lakehouse.changelog.schema import Column, TableVersion
from cdc_lakehouse.commands.common import DONE, configured, feed_option, grid, print_json, say, short
from cdc_lakehouse.commands.show import find_tables
from cdc_lakehouse.config import LakehouseConfig
from cdc_lakehouse.lake.current.typed_rows import lake_columns
from cdc_lakehouse.pipeline.feed_tables import key_columns
from cdc_lakehouse.pipeline.reading import ReadableTable
from cdc_lakehouse.pipeline.source import value_format


@click.command()
@click.argument("table")
@feed_option
@click.option("--json", "as_json", is_flag=True, help="Print the schema as JSON.")
@configured
def command(config: LakehouseConfig, table: str, feed_name: str | None, as_json: bool) -> int:
    """Show the columns of TABLE (database.table) in the source and in the lake, and the DDL that made them.

    \b
    Examples:
      cdc-lakehouse schema shop.orders
      cdc-lakehouse schema shop.orders --json
    """
    documents = [_document(each) for each in find_tables(config, table, feed_name, None)]
    if as_json:
        print_json({"tables": documents})
    else:
        say("\n\n".join(map(_text, documents)))
    return DONE


def _document(table: ReadableTable) -> dict[str, Any]:
    run, version = table.run, table.life.last
    key = {column.id for column in key_columns(run.feed, version)}
    columns = lake_columns(version.carried, value_format(run.feed, version.name))
    in_lake = {column.id: (column.name, column.type) for column in columns}
    return {
        "feed": run.feed.name,
        "database": table.name.database,
        "table": table.name.table,
        "iceberg_table": None if table.identifier is None else str(table.identifier),
        "columns": [_column(column, key, in_lake.get(column.id)) for column in version.columns],
        "ddl": [_ddl(each) for each in table.life.versions if each.kind != "seen"],
    }


def _column(column: Column, key: set[int], in_lake: tuple[str, str] | None) -> dict[str, Any]:
    """Describe a column; its lake columns are None when rows do not have it."""
    name, kind = in_lake or (None, None)
    return {
        "name": column.name,
        "type": type_text(column.type),
        "nullable": column.nullable,
        "default": column.default,
        "comment": column.comment,
        "key": column.id in key,
        "lake_name": name,
        "lake_type": kind,
    }


def _ddl(version: TableVersion) -> dict[str, Any]:
    return {
        "commit_ts": version.commit_ts,
        "commit_time": commit_time(version.commit_ts).isoformat(),
        "effect": version.effect,
        "statement": version.query,
    }


def _text(document: dict[str, Any]) -> str:
    header = ["column", "source", "lake", "", "default", "comment"]
    rows = [
        [
            each["name"],
            each["type"] + ("" if each["nullable"] else " NOT NULL"),
            "-" if each["lake_type"] is None else _lake_column(each),
            "key" if each["key"] else "",
            short(each["default"] or "", 30),
            short(each["comment"] or "", 40),
        ]
        for each in document["columns"]
    ]
    title = f"{document['database']}.{document['table']}: {document['iceberg_table'] or 'no rows yet'}"
    ddl = [f"    {each['commit_time']}  {each['effect']:<8} {short(each['statement'])}" for each in document["ddl"]]
    return "\n".join([title, *grid(header, rows), "", "  DDL:", *ddl])


def _lake_column(column: dict[str, Any]) -> str:
    name, kind = column["lake_name"], column["lake_type"]
    return kind if name == column["name"] else f"{name} {kind}"
