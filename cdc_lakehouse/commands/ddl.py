"""`cdc-lakehouse ddl`: show the schema that statements make, from their text only: no configuration, no JVM, no
server."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import click

from cdc_lakehouse.changelog.ddl.clauses import OfDatabase
from cdc_lakehouse.changelog.ddl.lexer import SCANNERS, DdlSyntaxError
from cdc_lakehouse.changelog.ddl.statements import parse
from cdc_lakehouse.changelog.mysql_types import server_type_text
from cdc_lakehouse.changelog.schema import SchemaChange, TableVersion
from cdc_lakehouse.changelog.versions import LiveTables, versions_of
from cdc_lakehouse.commands.common import BAD_INPUT, DONE, exits, grid, print_json, say, short
from cdc_lakehouse.errors import DdlError

_DEFAULT_DATABASE: Final = "test"


@click.group(name="ddl")
def command() -> None:
    """Show the tables that DDL statements make. Statements are read from standard input."""


@command.command("apply")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
@click.option(
    "--database",
    default=_DEFAULT_DATABASE,
    show_default=True,
    help="The database of names without one, until the first USE.",
)
@exits
def apply_command(as_json: bool, database: str) -> int:
    """Show the tables that result from the statements.

    Statements are taken as a server accepted them: what does not fit is left out, with a note. The first statement that
    is not understood ends the work: its error is shown after the tables as they were before it, and the exit code is 2.

    \b
    Example:
      mysqldump --no-data shop | cdc-lakehouse ddl apply --database shop
    """
    server = _Server(database)
    fault: tuple[ScriptStatement, DdlError] | None = None
    for statement in split(_script()):
        try:
            for note in server.run(statement.text):
                say(f"note, line {statement.line}: {note}", err=True)
        except DdlError as error:
            fault = statement, error
            break
    if as_json:
        result = {"databases": sorted(server.databases), "tables": [_table(table) for table in server.tables]}
        print_json(result if fault is None else {**result, "error": _fault(*fault)})
    else:
        _echo_databases(server)
    if fault is not None:
        _echo_fault(*fault)
    return DONE if fault is None else BAD_INPUT


class _Server:
    """The tables that statements leave. `databases` are those that they create or use, without those that they drop."""

    def __init__(self, session: str) -> None:
        self.databases: set[str] = set()
        self._session = session
        self._live = LiveTables()
        self._place = 0

    def run(self, text: str) -> Iterator[str]:
        """Execute a statement, and yield notes on it. Raises DdlError when it is not understood."""
        self._place += 1
        clauses = parse(text)
        change = SchemaChange(self._place, self._session, "", None, text, (), "", backslash_escapes=True, kind="text")
        for version in versions_of(change, self._live):
            self._live.record(version)
            self.databases |= {version.name.database} if version.incarnation and version.effect != "drop" else set()
            yield from filter(None, (version.note, version.hold))
        for clause in clauses:
            match clause:
                case OfDatabase("use_database", name):
                    self._session = name
                    self.databases.add(name)
                case OfDatabase("create_database", name):
                    self.databases.add(name)
                case OfDatabase("drop_database", name):
                    self.databases.discard(name)
                case _:
                    pass

    @property
    def tables(self) -> list[TableVersion]:
        names = sorted(self._live.names(), key=lambda name: (name.database, name.table))
        return [table for name in names if (table := self._live.get(name)) is not None]


def _script() -> str:
    content = sys.stdin.buffer.read()
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        say(f"the statements are not UTF-8: byte {error.start}, in line {line}", err=True)
        sys.exit(BAD_INPUT)


# --- Statements ---


def _fault(statement: ScriptStatement, error: DdlError) -> dict[str, Any]:
    line, column = statement.line, None
    if isinstance(error, DdlSyntaxError):
        line, column = statement.place(*error.place)
    place = {"line": line, "column": column}
    return {"class": type(error).__name__, "message": error.message, **place, "statement": statement.text}


def _echo_fault(statement: ScriptStatement, error: DdlError) -> None:
    fault = _fault(statement, error)
    place = f"line {fault['line']}" + ("" if fault["column"] is None else f", column {fault['column']}")
    text = str(error) if isinstance(error, DdlSyntaxError) else f"{error}, in: {short(statement.text)}"
    say(f"{fault['class']}, {place}: {text}", err=True)


# --- Tables ---


def _table(table: TableVersion) -> dict[str, Any]:
    columns = [
        {
            "name": column.name,
            "type": server_type_text(column.type),
            "nullable": column.nullable,
            "default": column.default,
            "key": column.id in table.key,
        }
        for column in table.columns
    ]
    return {"database": table.name.database, "table": table.name.table, "columns": columns}


def _echo_databases(server: _Server) -> None:
    for name in sorted(server.databases):
        say(f"database {name}")
        for table in (table for table in server.tables if table.name.database == name):
            say(f"\n{table.name}")
            rows = [_cells(**column) for column in _table(table)["columns"]]
            say("\n".join(grid(["column", "type", "null", "default", "key"], rows)))


def _cells(name: str, type: str, nullable: bool, default: str | None, key: bool) -> list[str]:
    return [name, type, "yes" if nullable else "no", "-" if default is None else default, "PRI" if key else ""]


# --- Scripts ---

_COMMAND: Final = re.compile(r"DELIMITER[ \t]++(\S++)[^\n]*+(?:\n|\Z)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class ScriptStatement:
    """A statement without its delimiter, and its position: `line` and `column` count from 1."""

    text: str
    line: int
    column: int

    def place(self, line: int, column: int) -> tuple[int, int]:
        """Convert a line and column of the statement to those of the script."""
        return self.line + line - 1, column if line > 1 else self.column + column - 1


def split(script: str) -> Iterator[ScriptStatement]:
    """Yield all statements in order, without empty ones and without comments between them. Text that is not closed
    extends to the end of the script: the parser says what is wrong with it."""
    scan, delimiter, opened = SCANNERS[True].match, ";", 0
    position, start, end, line, counted = 0, -1, 0, 1, 0
    while position < len(script):
        if start < 0 and (command := _COMMAND.match(script, position)) is not None:
            delimiter, position = command[1], command.end()
            continue
        if not opened and script.startswith(delimiter, position):
            if start >= 0:
                line, counted = line + script.count("\n", counted, start), start
                yield ScriptStatement(script[start:end], line, _column(script, start))
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
        yield ScriptStatement(script[start:end], line + script.count("\n", counted, start), _column(script, start))


def _column(script: str, place: int) -> int:
    return place - script.rfind("\n", 0, place)
