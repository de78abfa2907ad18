"""What the tables hold after Canal's messages, folded one after the other in plain Python, and what a server shows.

The fold reads the statements itself, as far as the tests use SQL: nothing of the product's own reading of DDL is in it.
Types of values are those that the server shows of its columns. A value that no message told is the column's default."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Final

from cdc_lakehouse.changelog.events import Ddl, Message, MessagePart, RowChange, TransactionEnd

Row = dict[str, str | None]
"""Values by the names that the columns have now, in lower case."""
Cell = dict[str, str | None]
"""As a server shows it: `text`, null where it is not one, and `hex`, what HEX() gives."""
Name = tuple[str, str]

INTEGERS: Final = {"tinyint", "smallint", "mediumint", "int", "bigint"}
BLOBS: Final = {"binary", "varbinary", "tinyblob", "blob", "mediumblob", "longblob"}
GEOMETRIES: Final = {"geometry", "point", "linestring", "polygon"}
_NAME: Final = r"(`(?:[^`]|``)*`|[\w$]+)"
_TABLE: Final = rf"(?:{_NAME}\.)?{_NAME}"
_NO_COLUMN: Final = re.compile(r"(primary|unique|key|index|constraint|check|foreign|fulltext|spatial)\b", re.IGNORECASE)


@dataclass
class Table:
    """`columns` by their names in lower case, in order, each with the default of rows that do not tell it."""

    columns: dict[str, str | None] = field(default_factory=dict[str, "str | None"])
    names: dict[str, str] = field(default_factory=dict[str, str])
    key: tuple[str, ...] = ()
    rows: list[Row] = field(default_factory=list[Row])

    @property
    def shown_names(self) -> list[str]:
        return [self.names[name] for name in self.columns]

    def define(self, text: str, was: str | None = None) -> None:
        """A column as a statement defines it, in the place of the one that it `was`, else at the end or where AFTER or
        FIRST puts it."""
        match = re.match(rf"\s*{_NAME}\s", text)
        assert match, text
        plain = _plain(match[1])
        name, default = plain.lower(), _default(text)
        if re.search(r"\bprimary\s+key\b", text, re.IGNORECASE):
            self.key = (name,)
        if was is not None:
            self.columns = {(name if old == was else old): value for old, value in self.columns.items()}
            self.rows = [{(name if old == was else old): value for old, value in row.items()} for row in self.rows]
            self.key = tuple(name if old == was else old for old in self.key)
        order = [each for each in self.columns if each != name or was is not None]
        if was is None:
            order.append(name)
            # Rows of before keep what the column began with, whatever its default is later.
            self.rows = [{**row, name: default} for row in self.rows]
        if place := re.search(rf"\b(?:after\s+{_NAME}|first)\s*$", text, re.IGNORECASE):
            order.remove(name)
            order.insert(order.index(_plain(place[1]).lower()) + 1 if place[1] else 0, name)
        self.names[name] = plain
        self.columns = {each: default if each == name else self.columns[each] for each in order}

    def drop(self, name: str) -> None:
        del self.columns[name]
        self.rows = [{old: value for old, value in row.items() if old != name} for row in self.rows]


class Fold:
    def __init__(self, messages: Iterable[Message] = ()) -> None:
        self.tables: dict[Name, Table] = {}
        self.unknown: dict[Name, set[str]] = defaultdict(set)
        """Columns of changes that the tables did not have then: those changes are left out."""
        for message in messages:
            self.add(message)

    def add(self, message: Message) -> None:
        for part in message.parts:
            self._add(part)

    def _add(self, part: MessagePart) -> None:
        match part:
            case Ddl():
                self._run(part.database, re.sub(r"/\*.*?\*/", " ", part.sql, flags=re.DOTALL).strip().rstrip(";"))
            case RowChange():
                self._change(part)
            case TransactionEnd():
                pass
            case other:
                raise AssertionError(f"{other} of Canal")

    def _run(self, database: str, sql: str) -> None:
        words = re.sub(r"\bif\s+(not\s+)?exists\b", " ", sql, flags=re.IGNORECASE)
        for pattern, run in (
            (r"create\s+table\s+(?P<table>%s)\s*(?P<rest>.*)", self._create),
            (r"drop\s+table\s+(?P<rest>.*)", self._drop),
            (r"truncate\s+(?:table\s+)?(?P<table>%s)(?P<rest>)", self._truncate),
            (r"rename\s+table\s+(?P<rest>.*)", self._rename),
            (r"alter\s+table\s+(?P<table>%s)\s*(?P<rest>.*)", self._alter),
            (r"drop\s+database\s+(?P<rest>.*)", self._drop_database),
            (r"(?:create\s+database|(?:create|drop)\s+(?:\w+\s+)?index)\b(?P<rest>)", lambda *_: None),
        ):
            unnamed = _TABLE.replace("(`", "(?:`")
            if match := re.fullmatch(pattern.replace("%s", unnamed) + r"(?s:.*)", words, re.IGNORECASE | re.DOTALL):
                run(database, match.groupdict().get("table", ""), match["rest"])
                return
        raise AssertionError(f"a statement that the fold cannot read: {sql}")

    def _create(self, database: str, name: str, rest: str) -> None:
        table = self.tables[_name(database, name)] = Table()
        if match := re.match(rf"like\s+({_TABLE})", rest, re.IGNORECASE):
            model = self.tables[_name(database, match[1])]
            table.columns, table.names, table.key = dict(model.columns), dict(model.names), model.key
            return
        for element in _elements(rest[1 : _closing(rest)]):
            if match := re.match(r"primary\s+key\s*\((.*)\)", element, re.IGNORECASE):
                table.key = tuple(_plain(part).lower() for part in match[1].split(","))
            elif not _NO_COLUMN.match(element):
                table.define(element)

    def _drop(self, database: str, _: str, rest: str) -> None:
        for name in rest.split(","):
            self.tables.pop(_name(database, name.strip()), None)

    def _drop_database(self, _: str, __: str, rest: str) -> None:
        self.tables = {name: table for name, table in self.tables.items() if name[0] != _plain(rest.strip())}

    def _truncate(self, database: str, name: str, _: str) -> None:
        self.tables[_name(database, name)].rows = []

    def _rename(self, database: str, _: str, rest: str) -> None:
        for pair in rest.split(","):
            old, new = re.split(r"\s+to\s+", pair.strip(), flags=re.IGNORECASE)
            self.tables[_name(database, new)] = self.tables.pop(_name(database, old))

    def _alter(self, database: str, name: str, rest: str) -> None:
        table = self.tables[_name(database, name)]
        for clause in _elements(rest):
            match = re.match(r"(add|drop|change|modify)\s+(?:column\s+)?(.*)", clause, re.IGNORECASE | re.DOTALL)
            assert match, clause
            what, text = match[1].lower(), match[2]
            old = re.match(rf"{_NAME}\s*", text)
            assert old, clause
            match what:
                case "add":
                    table.define(text)
                case "drop":
                    table.drop(_plain(old[1]).lower())
                case "change":
                    table.define(text[old.end() :], _plain(old[1]).lower())
                case _:
                    table.define(text, _plain(old[1]).lower())

    def _change(self, change: RowChange) -> None:
        name = (change.database, change.table)
        table = self.tables[name]
        before, after = (
            {column.lower(): text for column, text in (image or {}).items()} for image in (change.before, change.after)
        )
        if strange := {column for column in (*before, *after) if column not in table.columns}:
            self.unknown[name] |= strange
            return
        if change.op == "I":
            table.rows.append({**table.columns, **after})
            return
        place = _find(table, {**after, **before})
        if change.op == "U":
            table.rows[place] = {**table.rows[place], **after}
        else:
            del table.rows[place]

    def names(self, database: str, name: str) -> list[str]:
        """Of the table's columns, in order."""
        return self.tables[database, name].shown_names

    def shown(self, database: str, name: str, columns: Iterable[list[str]]) -> list[list[Cell]]:
        """Rows as `server_rows` shows them, in no order; `columns` are the server's."""
        kinds = [(shown.lower(), text, kind) for shown, text, kind in columns]
        return [[_cell(row[own], text, kind) for own, text, kind in kinds] for row in self.tables[database, name].rows]


def _name(database: str, text: str) -> Name:
    match = re.fullmatch(_TABLE, text.strip())
    assert match, text
    return (_plain(match[1]) if match[1] else database), _plain(match[2])


def _plain(name: str) -> str:
    name = name.strip()
    return name[1:-1].replace("``", "`") if name.startswith("`") else name


def _default(definition: str) -> str | None:
    """The default of a definition, in the notation of row values; a moment cannot be known."""
    match = re.search(r"\bdefault\s+('(?:[^']|'')*'|[-\w.]+)", definition, re.IGNORECASE)
    if match is None or match[1].lower() in ("null", "current_timestamp", "now"):
        return None
    return match[1][1:-1].replace("''", "'") if match[1].startswith("'") else match[1]


def _pieces(text: str) -> Iterator[tuple[str, int]]:
    """Characters, or quoted texts whole, with the depth of parentheses after them."""
    depth = 0
    for piece in re.findall(r"'(?:[^'\\]|\\.|'')*'|`(?:[^`]|``)*`|.", text, re.DOTALL):
        depth += (piece == "(") - (piece == ")")
        yield piece, depth


def _elements(text: str) -> list[str]:
    """What stands between commas that are in no parentheses."""
    found = [""]
    for piece, depth in _pieces(text):
        if piece == "," and depth == 0:
            found.append("")
        else:
            found[-1] += piece
    return [each.strip() for each in found]


def _closing(text: str) -> int:
    place = 0
    for piece, depth in _pieces(text):
        place += len(piece)
        if depth == 0:
            return place - 1
    raise AssertionError(text)


def _find(table: Table, image: Row) -> int:
    for place, row in enumerate(table.rows):
        if all(row[name] == image[name] for name in table.key or image):
            return place
    raise AssertionError(f"no row like {image}")


def _cell(text: str | None, declared: str, kind: str) -> Cell:
    if text is None:
        return {"text": None, "hex": None}
    labels = [label.replace("''", "'") for label in re.findall(r"'((?:[^']|'')*)'", declared)]
    numbers = [int(number) for number in re.findall(r"\d+", declared)]
    match kind:
        case "bit":
            return {"text": None, "hex": f"{int(text):X}"}
        case "enum":
            text = labels[int(text) - 1] if int(text) else ""
        case "set":
            text = ",".join(label for n, label in enumerate(labels) if int(text) >> n & 1)
        case "decimal":
            return {"text": f"{Decimal(text):.{numbers[1]}f}"}
        case "float" | "double":
            return {"text": _number(text, kind)}
        case "json":
            return {"text": _json(text)}
        case "binary":
            # Zero bytes at its end are not in the binlog.
            return {"text": None, "hex": text.encode("latin-1").ljust(numbers[0], b"\0").hex().upper()}
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
