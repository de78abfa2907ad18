"""`cdc-lakehouse ddl`: show the schema that statements make, from their text only: no configuration, no JVM, no
server."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from typing import Any, Final

import click

from cdc_lakehouse.changelog.ddl.clauses import OfDatabase
from cdc_lakehouse.changelog.ddl.lexer import SCANNERS, DdlSyntaxError
from cdc_lakehouse.changelog.ddl.statements import parse
from cdc_lakehouse.changelog.history import History
from cdc_lakehouse.changelog.mysql_types import type_text
from cdc_lakehouse.changelog.schema import SchemaChange, TableVersion
from cdc_lakehouse.commands.common import BAD_INPUT, DONE, exits, grid, print_json, say, short
from cdc_lakehouse.errors import DdlError


@click.group(name="ddl")
def command() -> None:
    """Show the tables that DDL statements make. Statements are read from standard input."""


@command.command("apply")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
@click.option("--database", default="test", help="The database of names without one, until the first USE.")
@exits
def apply_command(as_json: bool, database: str) -> int:
    """Show the tables that result from the statements.

    Statements are taken as a server accepted them: what does not fit is left out, with a note. The first statement that
    is not understood ends the work: its error is shown after the tables as they were before it, and the exit code is 2.

    \b
    Example:
      mysqldump --no-data shop | cdc-lakehouse ddl apply --database shop
    """
    content = sys.stdin.buffer.read()
    try:
        script = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        say(f"the statements are not UTF-8: byte {error.start}, in line {line}", err=True)
        return BAD_INPUT
    # The databases that statements create or use, without those that they drop.
    session, databases, history = database, set[str](), History()
    fault, said = dict[str, Any](), ""
    for place, (text, first, indent) in enumerate(_split(script), 1):
        try:
            clauses = parse(text)
            change = SchemaChange(place, session, "", None, text, (), "", backslash_escapes=True, kind="text")
            for version in history.carry_out(change):
                if version.incarnation and version.effect != "drop":
                    databases.add(version.name.database)
                for note in filter(None, (version.note, version.hold)):
                    say(f"note, line {first}: {note}", err=True)
            for clause in clauses:
                match clause:
                    case OfDatabase("use_database" | "create_database" as kind, name):
                        session = name if kind == "use_database" else session
                        databases.add(name)
                    case OfDatabase("drop_database", name):
                        databases.discard(name)
                    case _:
                        pass
        except DdlError as error:
            line, column, said = first, None, f"{error}, in: {short(text)}"
            if isinstance(error, DdlSyntaxError):
                # Its place is one of the statement: that of the script is meant.
                line, column = error.place
                line, column = first + line - 1, column if line > 1 else indent + column - 1
                said = str(error)
            fault = {"class": type(error).__name__, "message": error.message, "line": line, "column": column,
                     "statement": text}  # fmt: skip
            break
    live = (life.last for life in history.incarnations().values() if life.dropped_ts is None)
    tables = sorted(live, key=lambda table: (table.name.database, table.name.table))
    if as_json:
        result = {"databases": sorted(databases), "tables": [*map(_table, tables)]}
        print_json({**result, "error": fault} if fault else result)
    else:
        for name in sorted(databases):
            say(f"database {name}")
            for table in (table for table in tables if table.name.database == name):
                say(f"\n{table.name}")
                rows = [
                    [each["name"], each["type"], "yes" if each["nullable"] else "no",
                     "-" if each["default"] is None else each["default"], "PRI" if each["key"] else ""]
                    for each in _table(table)["columns"]
                ]  # fmt: skip
                say("\n".join(grid(["column", "type", "null", "default", "key"], rows)))
    if not fault:
        return DONE
    place = f"line {fault['line']}" + ("" if fault["column"] is None else f", column {fault['column']}")
    say(f"{fault['class']}, {place}: {said}", err=True)
    return BAD_INPUT


def _table(table: TableVersion) -> dict[str, Any]:
    columns = [
        {
            "name": column.name, "type": type_text(column.type, widths=True), "nullable": column.nullable,
            "default": column.default, "key": column.id in table.key,
        }
        for column in table.columns
    ]  # fmt: skip
    return {"database": table.name.database, "table": table.name.table, "columns": columns}


_COMMAND: Final = re.compile(r"DELIMITER[ \t]++(\S++)[^\n]*+(?:\n|\Z)", re.IGNORECASE)


def _split(script: str) -> Iterator[tuple[str, int, int]]:
    """Yield all statements in order, without delimiters, empty ones and comments between them, each with its line and
    column from 1. Text that is not closed extends to the end of the script: the parser says what is wrong with it."""
    scan, delimiter, opened = SCANNERS[True].match, ";", 0
    position, start, end, line, counted = 0, -1, 0, 1, 0
    while position < len(script):
        if start < 0 and (command := _COMMAND.match(script, position)) is not None:
            delimiter, position = command[1], command.end()
            continue
        if not opened and script.startswith(delimiter, position):
            if start >= 0:
                line, counted = line + script.count("\n", counted, start), start
                yield script[start:end], line, start - script.rfind("\n", 0, start)
            start, position = -1, position + len(delimiter)
            continue
        found = scan(script, position)
        kind, after = ("symbol", position + 1) if found is None else (found.lastgroup, found.end())
        if kind in ("block", "unclosed"):
            closed = script.find("*/", after) if kind == "block" else -1
            kind, after = ("unclosed", len(script)) if closed < 0 else (kind, closed + 2)
        elif kind == "word" and not opened and (inside := script.find(delimiter, position, after)) > position:
            after = inside
        opened = max(0, opened + (kind == "special") - (kind == "close"))
        if start < 0 and kind not in ("spaces", "line", "block"):
            start = position
        if start >= 0 and kind != "spaces":
            end = after
        position = after
    if start >= 0:
        yield script[start:end], line + script.count("\n", counted, start), start - script.rfind("\n", 0, start)
