"""`cdc-lakehouse ddl`: what statements say, and what they make of a schema. From their text alone: no configuration, no
JVM, no server."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Sequence
from typing import Any, Final

import click

from cdc_lakehouse.changelog.ddl.clauses import Clause, DdlSyntaxError
from cdc_lakehouse.changelog.ddl.definitions import ColumnDefinition, TableName
from cdc_lakehouse.changelog.ddl.parser import parse
from cdc_lakehouse.changelog.ddl_apply import apply
from cdc_lakehouse.changelog.ddl_schema import Database, Schema, TableSchema
from cdc_lakehouse.changelog.ddl_script import ScriptStatement, split
from cdc_lakehouse.changelog.mysql_types import ColumnType, server_type_text, type_text
from cdc_lakehouse.commands.common import BAD_INPUT, DONE, grid
from cdc_lakehouse.errors import DdlError

_SHOWN: Final = 100
_DEFAULT_DATABASE: Final = "test"

as_json_option = click.option("--json", "as_json", is_flag=True, help="As JSON.")


@click.group(name="ddl")
def command() -> None:
    """Show what DDL statements say, and the tables that result. Statements are read from standard input."""


@command.command("parse")
@as_json_option
def parse_command(as_json: bool) -> None:
    """Show the kinds and clauses of each statement.

    A statement that is not understood is shown with its error, and the next one goes on; the exit code is then 2.
    """
    faults = 0
    told: list[dict[str, Any]] = []
    for statement in split(_script()):
        try:
            clauses, fault = parse(statement.text), None
        except DdlError as error:
            clauses, fault = (), error
            faults += 1
        if as_json:
            told.append(_parsed(statement, clauses, fault))
        else:
            _echo_parsed(statement, clauses, fault)
    if as_json:
        click.echo(json.dumps({"statements": told}, indent=2, ensure_ascii=False))
    sys.exit(BAD_INPUT if faults else DONE)


@command.command("apply")
@as_json_option
@click.option(
    "--database",
    default=_DEFAULT_DATABASE,
    show_default=True,
    help="The database of names without one, until the first USE.",
)
def apply_command(as_json: bool, database: str) -> None:
    """Show the tables that result from the statements.

    Databases that a statement uses are taken to be there. The first statement that cannot be applied ends the work: its
    error is shown after the tables as they were before it, and the exit code is 2.
    """
    schema = Schema(session=database, assumed=True)
    fault: tuple[ScriptStatement, DdlError] | None = None
    for statement in split(_script()):
        try:
            schema = apply(schema, parse(statement.text))
        except DdlError as error:
            fault = statement, error
            break
    if as_json:
        result = {"databases": sorted(schema.databases), "tables": _tables(schema)}
        click.echo(json.dumps({**result, **({"error": _fault(*fault)} if fault else {})}, indent=2, ensure_ascii=False))
    else:
        for name in sorted(schema.databases):
            _echo_database(schema.databases[name])
    if fault is not None:
        _echo_fault(*fault)
    sys.exit(DONE if fault is None else BAD_INPUT)


def _script() -> str:
    content = sys.stdin.buffer.read()
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        click.echo(f"the statements are not UTF-8: byte {error.start}, in line {line}", err=True)
        sys.exit(BAD_INPUT)


# --- Statements ---


def _parsed(statement: ScriptStatement, clauses: Sequence[Clause], fault: DdlError | None) -> dict[str, Any]:
    shown: dict[str, Any] = {"line": statement.line, "statement": statement.text}
    if fault is not None:
        return {**shown, "error": _fault(statement, fault)}
    kinds = list(dict.fromkeys(clause.kind for clause in clauses))
    return {**shown, "kinds": kinds, "clauses": [{"kind": clause.kind, **_plain(clause)} for clause in clauses]}


def _plain(value: Any) -> Any:
    """What JSON has of a value; a part's class tells literals and positions from each other."""
    if isinstance(value, TableName):
        return {"database": value.database, "name": value.name}
    if dataclasses.is_dataclass(value):
        fields = {field.name: _plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
        return {"class": type(value).__name__, **fields}
    if isinstance(value, tuple):
        return [_plain(item) for item in value]  # pyright: ignore[reportUnknownVariableType]
    return value.hex() if isinstance(value, bytes) else value


def _fault(statement: ScriptStatement, error: DdlError) -> dict[str, Any]:
    line, column = statement.line, None
    if isinstance(error, DdlSyntaxError):
        line, column = statement.place(error.statement_line, error.statement_column)
    told = {"class": type(error).__name__, "message": error.message, "line": line, "column": column}
    return {**told, "statement": statement.text}


def _echo_parsed(statement: ScriptStatement, clauses: Sequence[Clause], fault: DdlError | None) -> None:
    click.echo(f"{statement.line}: {_short(statement.text)}")
    for clause in clauses:
        fields = {field.name: getattr(clause, field.name) for field in dataclasses.fields(clause)}
        said = {name: value for name, value in fields.items() if value not in (None, (), False) and name != "keys"}
        words = [f"{name}={_words(value)}" for name, value in said.items()]
        click.echo(f"    {clause.kind}  {'  '.join(words)}")
    if fault is not None:
        _echo_fault(statement, fault)


def _echo_fault(statement: ScriptStatement, error: DdlError) -> None:
    told = _fault(statement, error)
    place = f"line {told['line']}" + ("" if told["column"] is None else f", column {told['column']}")
    text = str(error) if isinstance(error, DdlSyntaxError) else f"{error}, in: {_short(statement.text)}"
    click.echo(f"{told['class']}, {place}: {text}", err=True)


def _words(value: Any) -> str:
    if isinstance(value, ColumnType):
        return type_text(value)
    if isinstance(value, ColumnDefinition):
        null = {None: "", True: " null", False: " not null"}[value.nullable]
        return f"`{value.name}` {type_text(value.type)}{null}"
    if isinstance(value, tuple):
        return f"({', '.join(_words(item) for item in value)})"  # pyright: ignore[reportUnknownVariableType,reportUnknownArgumentType]
    return str(value)


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _SHOWN else f"{line[: _SHOWN - 1]}…"


# --- Tables ---


def _tables(schema: Schema) -> list[dict[str, Any]]:
    return [
        {"database": database, "table": name, "columns": _columns(table)}
        for database in sorted(schema.databases)
        for name, table in sorted(schema.databases[database].tables.items())
    ]


def _columns(table: TableSchema) -> list[dict[str, Any]]:
    return [
        {
            "name": column.name,
            "type": server_type_text(column.type),
            "nullable": column.nullable,
            "default": column.default,
            "key": column.id in table.primary_key,
        }
        for column in table.columns
    ]


def _echo_database(database: Database) -> None:
    click.echo(f"database {database.name}")
    for name, table in sorted(database.tables.items()):
        click.echo(f"\n{database.name}.{name}")
        rows = [
            [
                column["name"],
                column["type"],
                "yes" if column["nullable"] else "no",
                "-" if column["default"] is None else column["default"],
                "PRI" if column["key"] else "",
            ]
            for column in _columns(table)
        ]
        click.echo("\n".join(grid(["column", "type", "null", "default", "key"], rows)))
