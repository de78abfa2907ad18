"""What the tables hold after Canal's messages, folded one after the other in plain Python, and what a server shows.

Columns are matched by the identities that `changelog.ddl_apply` gives them; a value that no message told is the
column's default."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator
from decimal import Decimal
from typing import Any

from cdc_lakehouse.changelog.ddl import clauses as ddl
from cdc_lakehouse.changelog.ddl.definitions import TableName
from cdc_lakehouse.changelog.ddl_apply import apply, parse
from cdc_lakehouse.changelog.ddl_schema import Schema, TableSchema
from cdc_lakehouse.changelog.events import Ddl, Message, MessagePart, RowChange, TransactionEnd
from cdc_lakehouse.changelog.mysql_types import BLOBS, GEOMETRIES, INTEGERS, ColumnType

Row = dict[int, str | None]
"""Values by the ids of the columns."""
Cell = dict[str, str | None]
"""As a server shows it: `text`, null where it is not one, and `hex`, what HEX() gives."""


class Fold:
    def __init__(self, messages: Iterable[Message] = ()) -> None:
        self.schema = Schema(assumed=True)
        self.rows: dict[TableName, list[Row]] = {}
        self.unknown: dict[TableName, set[str]] = defaultdict(set)
        """Columns of changes that the tables did not have then: those changes are left out."""
        for message in messages:
            self.add(message)

    def add(self, message: Message) -> None:
        for part in message.parts:
            self._add(part)

    def _add(self, part: MessagePart) -> None:
        match part:
            case Ddl():
                self._run(part)
            case RowChange():
                self._change(part)
            case TransactionEnd():
                pass
            case other:
                raise AssertionError(f"{other} of Canal")

    def _run(self, statement: Ddl) -> None:
        clauses = parse(statement.sql)
        self.schema = apply(Schema(self.schema.databases, statement.database, assumed=True), clauses)
        for clause in clauses:
            match clause:
                case ddl.DropTable(table) | ddl.TruncateTable(table):
                    self.rows.pop(self.schema.qualified(table), None)
                case ddl.RenameTable(table, new_name):
                    moved = self.rows.pop(self.schema.qualified(table), [])
                    self.rows[self.schema.qualified(new_name)] = moved
                case _:
                    pass

    def _change(self, change: RowChange) -> None:
        name = TableName(change.database, change.table)
        table = self.schema.table(name)
        strange = {
            column for column in {**(change.before or {}), **(change.after or {})} if table.named(column) is None
        }
        if strange:
            self.unknown[name] |= strange
            return
        rows = self.rows.setdefault(name, [])
        before, after = _by_id(table, change.before), _by_id(table, change.after)
        if change.op == "I":
            rows.append(after)
            return
        place = _find(table, rows, {**after, **before})
        if change.op == "U":
            rows[place] = {**rows[place], **after}
        else:
            del rows[place]

    def table(self, database: str, name: str) -> TableSchema:
        return self.schema.table(TableName(database, name))

    def shown(self, database: str, name: str) -> list[list[Cell]]:
        """Rows as `server_rows` shows them, in no order."""
        table = self.table(database, name)
        rows = self.rows.get(TableName(database, name), [])
        return [[_cell(row.get(c.id, c.default), c.type) for c in table.columns] for row in rows]


def _by_id(table: TableSchema, row: Any) -> Row:
    return {column.id: text for name, text in (row or {}).items() if (column := table.named(name)) is not None}


def _find(table: TableSchema, rows: list[Row], image: Row) -> int:
    looked_at = table.primary_key or tuple(image)
    for place, row in enumerate(rows):
        if all(row.get(id) == image[id] for id in looked_at):
            return place
    raise AssertionError(f"no row like {image}")


def _cell(text: str | None, kind: ColumnType) -> Cell:
    if text is None:
        return {"text": None, "hex": None}
    match kind.name:
        case "bit":
            return {"text": None, "hex": f"{int(text):X}"}
        case "enum":
            text = kind.elements[int(text) - 1] if int(text) else ""
        case "set":
            text = ",".join(label for n, label in enumerate(kind.elements) if int(text) >> n & 1)
        case "decimal":
            return {"text": f"{Decimal(text):.{kind.fraction}f}"}
        case "float" | "double":
            return {"text": _number(text, kind.name)}
        case "json":
            return {"text": _json(text)}
        case "binary":
            # Zero bytes at its end are not in the binlog.
            return {"text": None, "hex": text.encode("latin-1").ljust(kind.length or 1, b"\0").hex().upper()}
        case name if name in BLOBS or name in GEOMETRIES:
            return {"text": None, "hex": text.encode("latin-1").hex().upper()}
        case _:
            pass
    return {"text": text}


def _number(text: str, name: str) -> str:
    # A server shows six digits of a FLOAT.
    return repr(float(text) if name == "double" else float(f"{float(text):.6g}"))


def _json(text: str) -> str:
    """A server prints numbers in JSON in another way than Java does: -15000000000.0, -1.5E10."""
    return json.dumps(json.loads(text), sort_keys=True)


def server_rows(columns: list[list[str]], rows: list[list[Cell]]) -> list[list[Cell]]:
    """What a server showed, with as much of each value as `Fold.shown` tells."""
    return [list(_server_cells(columns, row)) for row in rows]


def _server_cells(columns: list[list[str]], row: list[Cell]) -> Iterator[Cell]:
    for (_, _, kind), cell in zip(columns, row, strict=True):
        if cell["hex"] is None:
            yield {"text": None, "hex": None}
        elif kind == "bit":
            yield {"text": None, "hex": cell["hex"]}
        elif kind in INTEGERS:
            # Without the zeros of ZEROFILL, which are not in the binlog.
            yield {"text": str(int(cell["text"] or ""))}
        elif kind == "json":
            yield {"text": _json(cell["text"] or "")}
        elif kind in ("float", "double"):
            yield {"text": _number(cell["text"] or "", kind)}
        elif kind in BLOBS or kind in GEOMETRIES:
            yield {"text": None, "hex": cell["hex"]}
        else:
            yield {"text": cell["text"]}


def in_order(rows: list[list[Cell]]) -> list[list[Cell]]:
    return sorted(rows, key=lambda row: [str(cell) for cell in row])
