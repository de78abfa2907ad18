"""`cdc-lakehouse show` prints rows of a current-state table, as of the published cut or of another moment; `schema` its
columns in the source and in the lake, and the DDL that made them. No JVM is started."""

from __future__ import annotations

import csv
import datetime
import io
from typing import Any

import click

from cdc_lakehouse.changelog.mysql_types import type_text
from cdc_lakehouse.changelog.positions import commit_time
from cdc_lakehouse.commands.common import DONE, Asked, grid, of_feeds, printable, say, short
from cdc_lakehouse.config.reporting import guess, plural, some
from cdc_lakehouse.errors import ConfigurationError
from cdc_lakehouse.lake.current.typed_rows import lake_columns
from cdc_lakehouse.pipeline.feed_tables import key_columns, value_format
from cdc_lakehouse.pipeline.reading import AsOf, ReadableTable, readable_tables

_WIDTH = 32


def _as_of(context: click.Context, parameter: click.Parameter, value: str | None) -> AsOf:
    if value is None or value.isdecimal():
        return None if value is None else int(value)
    try:
        moment = datetime.datetime.fromisoformat(value)
    except ValueError:
        return value
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=datetime.UTC)


as_of_option = click.option(
    "--as-of",
    callback=_as_of,
    help="A time (2026-11-22T10:00, UTC unless it says otherwise): the newest cut at or before it. A commit-ts: "
    "exactly that. A tag (day_2026-11-21).",
)


@click.command()
@click.argument("table", required=False)
@click.option("--rows", type=click.IntRange(1, 1000), default=5, help="Rows of each table.")
@as_of_option
@click.option("--last-good", is_flag=True, help="With --as-of: show a held table at its last good cut.")
@click.option("--columns", help="Only these columns, separated by commas.")
@click.option("--csv", "as_csv", is_flag=True, help="Print the rows of one table as CSV.")
@of_feeds("Print the rows as JSON.")
def command(
    asked: Asked, table: str | None, rows: int, as_of: AsOf, last_good: bool, columns: str | None, as_csv: bool
) -> int:
    """Print rows of TABLE (database.table), or of every table, as of the published cut.

    In JSON and CSV, binary values are hexadecimal digits. In JSON, values of types that
    JSON does not have are strings. In CSV, NULL is an empty field.

    \b
    Examples:
      cdc-lakehouse show shop.orders --rows 20 --columns id,status,total
      cdc-lakehouse show shop.orders --as-of 2026-11-22T10:00 --csv
    """
    if asked.as_json and as_csv:
        raise click.UsageError("--json and --csv exclude each other")
    wanted = find_tables(asked, table, as_of, last_good=last_good)
    if table is None:
        for each in wanted:
            if each.refused is not None:
                say(f"cdc-lakehouse: {each.name} is not shown: {each.refused}", err=True)
        wanted = [each for each in wanted if each.refused is None]
    if as_csv and len(wanted) > 1:
        raise click.UsageError("--csv prints one table: name it, and the feed where several have it")
    names = None if columns is None else [name.strip() for name in columns.split(",")]
    found: list[tuple[dict[str, Any], str]] = []
    for each in wanted:
        count, arrow = each.head(rows)
        for name in names or ():
            if name not in arrow.column_names:
                known = ", ".join(arrow.column_names)
                raise ConfigurationError(f"{each.name} has no column {name}", advice=f"its columns are: {known}")
        arrow = arrow if names is None else arrow.select(names)
        shown = arrow.to_pylist()
        if as_csv:
            lines = io.StringIO()
            writer = csv.writer(lines, lineterminator="\n")
            writer.writerow(arrow.column_names)
            writer.writerows(["" if value is None else _plain(value) for value in row.values()] for row in shown)
            click.echo(lines.getvalue(), nl=False)
            return DONE
        document = {
            "feed": each.run.feed.name, "database": each.name.database, "table": each.name.table,
            "commit_ts": each.commit_ts, "row_count": count,
            "rows": [{name: _json(value) for name, value in row.items()} for row in shown],
        }  # fmt: skip
        title = f"{each.name}: {plural(count, 'row')}"
        if count or each.snapshot_id is not None:
            cells = [[_cell(value) for value in row.values()] for row in shown]
            title = "\n".join([title, *grid(arrow.column_names, cells)])
        found.append((document, title))
    asked.answer({"tables": [document for document, _ in found]}, *(text for _, text in found))
    return DONE


def find_tables(asked: Asked, table: str | None, as_of: AsOf, *, last_good: bool = False) -> list[ReadableTable]:
    """Return the published tables of the feeds, or those of that name. Raises `ConfigurationError` without any."""
    found = [each for run in asked.runs for each in readable_tables(run, as_of, last_good=last_good)]
    wanted = [each for each in found if table in (None, str(each.name))]
    if not wanted:
        known = [str(each.name) for each in found]
        if not known:
            raise ConfigurationError("no table is published yet", advice="run the feed: `cdc-lakehouse run`")
        near = guess(table, known)
        raise ConfigurationError(f"no table {table} is published{near}", advice=f"published are: {some(known, 20)}")
    return wanted


def _json(value: object) -> Any:
    if isinstance(value, float) and value - value != 0:
        return str(value)  # JSON has no NaN and no infinity.
    return value if value is None or isinstance(value, bool | int | float | list) else _plain(value)


def _plain(value: object) -> str:
    return value.hex() if isinstance(value, bytes) else str(value)


def _cell(value: object) -> str:
    text = printable("NULL" if value is None else _plain(value))
    return text if len(text) <= _WIDTH else f"{text[: _WIDTH - 1]}…"


@click.command()
@click.argument("table")
@of_feeds("Print the schema as JSON.")
def schema(asked: Asked, table: str) -> int:
    """Show the columns of TABLE (database.table) in the source and in the lake, and the DDL that made them.

    \b
    Examples:
      cdc-lakehouse schema shop.orders
      cdc-lakehouse schema shop.orders --json
    """
    documents = [_schema(each) for each in find_tables(asked, table, None)]
    texts: list[str] = []
    for document in documents:
        rows: list[list[str]] = []
        for each in document["columns"]:
            lake = each["lake_type"] or "-"
            if each["lake_name"] not in (None, each["name"]):
                lake = f"{each['lake_name']} {lake}"
            source = each["type"] + ("" if each["nullable"] else " NOT NULL")
            notes = short(each["default"] or "", 30), short(each["comment"] or "", 40)
            rows.append([each["name"], source, lake, "key" if each["key"] else "", *notes])
        title = f"{document['database']}.{document['table']}: {document['iceberg_table'] or 'no rows yet'}"
        ddl = [f"    {each['commit_time']}  {each['effect']:<8} {short(each['statement'])}" for each in document["ddl"]]
        header = ["column", "source", "lake", "", "default", "comment"]
        texts.append("\n".join([title, *grid(header, rows), "", "  DDL:", *ddl]))
    asked.answer({"tables": documents}, *texts)
    return DONE


def _schema(table: ReadableTable) -> dict[str, Any]:
    """Return a table's schema as JSON. The lake columns of a column are None when rows do not have it."""
    run, version = table.run, table.life.last
    key = {column.id for column in key_columns(run.feed, version)}
    columns = lake_columns(version.carried, value_format(run.feed, version.name))
    in_lake = {column.id: (column.name, column.type) for column in columns}
    return {
        "feed": run.feed.name, "database": table.name.database, "table": table.name.table,
        "iceberg_table": table.identifier and str(table.identifier),
        "columns": [
            {
                "name": column.name, "type": type_text(column.type), "nullable": column.nullable,
                "default": column.default, "comment": column.comment, "key": column.id in key,
                **dict(zip(("lake_name", "lake_type"), in_lake.get(column.id, (None, None)), strict=True)),
            }
            for column in version.columns
        ],
        "ddl": [
            {
                "commit_ts": each.commit_ts, "commit_time": commit_time(each.commit_ts).isoformat(),
                "effect": each.effect, "statement": each.query,
            }
            for each in table.life.versions
            if each.kind != "seen"
        ],
    }  # fmt: skip
