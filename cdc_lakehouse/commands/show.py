"""`cdc-lakehouse show` prints rows of a current-state table, as of the published cut or of another moment;
`cdc-lakehouse schema` its columns in the source and in the lake, and the DDL that made them; `cdc-lakehouse plan` what
pending DDL will do. No JVM is started."""

from __future__ import annotations

import csv
import datetime
import io
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import click
import pyarrow as pa

from cdc_lakehouse.adopt.plan import FeedPlan, PendingStatement, TablePlan, plan_ddl
from cdc_lakehouse.changelog.mysql_types import type_text
from cdc_lakehouse.changelog.positions import BEGINNING, commit_time
from cdc_lakehouse.changelog.schema import Column, TableVersion
from cdc_lakehouse.commands.common import DONE, Asked, grid, of_feeds, printable, say, short
from cdc_lakehouse.config.reporting import guess, plural, some
from cdc_lakehouse.errors import ConfigurationError
from cdc_lakehouse.lake.current.typed_rows import lake_columns
from cdc_lakehouse.pipeline.dump import PendingLoad
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
@click.option("--rows", type=click.IntRange(1, 1000), default=5, show_default=True, help="Rows of each table.")
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
        wanted = _readable(wanted)
    if as_csv and len(wanted) > 1:
        raise click.UsageError("--csv prints one table: name it, and the feed where several have it")
    names = None if columns is None else [name.strip() for name in columns.split(",")]
    heads = [(each, *_head(each, rows, names)) for each in wanted]
    if as_csv:
        click.echo(_csv(heads[0][2]), nl=False)
    else:
        asked.answer({"tables": [_document(*head) for head in heads]}, *(_text(*head) for head in heads))
    return DONE


def find_tables(asked: Asked, table: str | None, as_of: AsOf, *, last_good: bool = False) -> list[ReadableTable]:
    """Return the published tables of the feeds, or those of that name. Raises `ConfigurationError` when there are
    none."""
    found = [each for run in asked.runs for each in readable_tables(run, as_of, last_good=last_good)]
    wanted = [each for each in found if table in (None, str(each.name))]
    if not wanted:
        known = [str(each.name) for each in found]
        if not known:
            raise ConfigurationError("no table is published yet", advice="run the feed: `cdc-lakehouse run`")
        near = guess(table, known)
        raise ConfigurationError(f"no table {table} is published{near}", advice=f"published are: {some(known, 20)}")
    return wanted


def _readable(tables: Sequence[ReadableTable]) -> list[ReadableTable]:
    """Return the tables that have a state of the moment; the others are reported on stderr."""
    for each in tables:
        if each.refused is not None:
            say(f"cdc-lakehouse: {each.name} is not shown: {each.refused}", err=True)
    return [each for each in tables if each.refused is None]


def _head(table: ReadableTable, limit: int, columns: Sequence[str] | None) -> tuple[int, pa.Table]:
    """Return the number of rows, and the first ones. Raises `ConfigurationError` for an unknown column."""
    count, arrow = table.head(limit)
    for name in columns or ():
        if name not in arrow.column_names:
            known = ", ".join(arrow.column_names)
            raise ConfigurationError(f"{table.name} has no column {name}", advice=f"its columns are: {known}")
    return count, arrow if columns is None else arrow.select(list(columns))


def _document(table: ReadableTable, count: int, arrow: pa.Table) -> dict[str, Any]:
    """Return a table as JSON. `row_count` is of the whole table, `rows` are the first ones."""
    rows = [{name: _json(value) for name, value in row.items()} for row in arrow.to_pylist()]
    return {
        "feed": table.run.feed.name,
        "database": table.name.database,
        "table": table.name.table,
        "commit_ts": table.commit_ts,
        "row_count": count,
        "rows": rows,
    }


def _json(value: object) -> Any:
    if isinstance(value, float) and value - value != 0:
        return str(value)  # JSON has no NaN and no infinity.
    return value if value is None or isinstance(value, bool | int | float | list) else _plain(value)


def _csv(arrow: pa.Table) -> str:
    lines = io.StringIO()
    writer = csv.writer(lines, lineterminator="\n")
    writer.writerow(arrow.column_names)
    writer.writerows(["" if value is None else _plain(value) for value in row.values()] for row in arrow.to_pylist())
    return lines.getvalue()


def _plain(value: object) -> str:
    return value.hex() if isinstance(value, bytes) else str(value)


def _text(table: ReadableTable, count: int, arrow: pa.Table) -> str:
    title = f"{table.name}: {plural(count, 'row')}"
    if not count and table.snapshot_id is None:
        return title
    cells = [[_cell(value) for value in row.values()] for row in arrow.to_pylist()]
    return "\n".join([title, *grid(arrow.column_names, cells)])


def _cell(value: object) -> str:
    text = printable("NULL" if value is None else _plain(value))
    return text if len(text) <= _WIDTH else f"{text[: _WIDTH - 1]}…"


# --- Schemas ---


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
    asked.answer({"tables": documents}, *map(_schema_text, documents))
    return DONE


def _schema(table: ReadableTable) -> dict[str, Any]:
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


def _schema_text(document: dict[str, Any]) -> str:
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


# --- What is pending ---


@click.command()
@of_feeds("Print the plan as JSON.")
def plan(asked: Asked) -> int:
    """Show what is pending: the initial load, and DDL with its effect, the statements that would run, and the rows
    that would be rewritten.

    \b
    Example:
      cdc-lakehouse plan --feed shop
    """
    plans = [plan_ddl(run) for run in asked.runs]
    asked.answer({"feeds": [asdict(plan) for plan in plans]}, *map(_plan_text, plans))
    return DONE


def _plan_text(plan: FeedPlan) -> str:
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
    return f"{plural(load.files, 'file')} of {plural(load.tables or 0, 'table')}, {load.bytes:,} bytes{waits}"


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
    lines = [f"  {table.table} ({table.iceberg_table}): {plural(table.rows, 'row')}, {table.rewritten:,} to rewrite"]
    lines += [f"    {statement}" for statement in table.statements or ("nothing changes but rows",)]
    return lines if table.hold is None else [*lines, f"    held: {table.hold}"]
