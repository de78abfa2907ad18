"""The log model: entries of a database's log, and the oracle: the tables after them, folded in plain Python.

It knows what statements do, not how they are written: text, files and arrival are the writers' (`changefeed`)."""

import datetime
from collections.abc import Iterable
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any, Literal

from tests.kit import truth

Values = dict[str, str | None]
Key = tuple[str | None, ...]
Kind = Literal[
    "create", "drop", "truncate", "rename table", "add", "drop column", "rename column", "retype", "rekey", "exchange",
    "recover", "older", "drop key", "drop partition", "truncate partition", "remove partitioning", "alter",
]  # fmt: skip
FIRST_TS = 450_000_000_000_000_000
LIMIT = 3
"""Partition `p0` has what is below it, `p1` the rest. NULL is in `p0`."""


@dataclass(frozen=True)
class Column:
    name: str
    type: str
    default: str | None = None


@dataclass(frozen=True)
class RowChange:
    """One change with whole images; `partial` names the columns whose new values the log leaves out."""

    commit_ts: int
    table: str
    before: Values | None
    after: Values | None
    partial: frozenset[str] = frozenset()
    style: int = 0
    """How much of the old row the log carries, and whether a change of the key is told as DELETE and INSERT."""


@dataclass(frozen=True)
class Ddl:
    """`column` is the new one (add, retype), `name` what is dropped, renamed or retyped, `new_name` what it becomes.
    "older" is the create of a table from before the log. `key` is the new one (create, rekey), `partition` the
    column by which a created table is partitioned. An exchange is of partition `name` and the table `new_name`. A
    recover is of a table that was dropped or truncated, as `new_name`. An "alter" has its own text as `query`, the
    `columns` and the `key` that it leaves, and `origins`: by column the one that its values come from, "" where they
    are the default. `query` of a "create" is how it is partitioned, where `partition` does not say so; then `leaving`
    has the keys of the rows that an emptied partition leaves."""

    commit_ts: int
    table: str
    kind: Kind
    columns: tuple[Column, ...] = ()
    key: tuple[str, ...] = ()
    partition: str | None = None
    column: Column | None = None
    first: bool = False
    name: str = ""
    new_name: str = ""
    query: str = ""
    action: int = 0
    origins: tuple[tuple[str, str], ...] = ()
    leaving: tuple[Key, ...] | None = None


@dataclass
class Table:
    columns: list[Column]
    key: tuple[str, ...]
    rows: dict[Key, tuple[Values, int]]
    partition: str | None = None

    def key_of(self, row: Values) -> Key:
        """Without a key a row is known by all of its values."""
        return tuple(row[name] for name in self.key or row)

    def typed(self) -> tuple[list[tuple[str, str]], list[tuple[Any, ...]]]:
        """Columns with their Iceberg types, and rows as Python values, each with its commit-ts at the end."""
        columns = [(_name_in_lake(column.name), truth.iceberg_type(column.type)) for column in self.columns]
        rows = [
            (*(value(row[column.name], column.type) for column in self.columns), commit_ts)
            for row, commit_ts in self.rows.values()
        ]
        return [*columns, ("_commit_ts", "long")], sorted(rows, key=repr)


Entry = RowChange | Ddl


class Tables(dict[str, Table]):
    """By name. `gone` has what was last dropped or truncated of each name, and is not back."""

    def __init__(self) -> None:
        super().__init__()
        self.gone: dict[str, Table] = {}


def fold(entries: Iterable[Entry], upto: int) -> Tables:
    tables = Tables()
    for entry in entries:
        if entry.commit_ts <= upto:
            apply(tables, entry)
    return tables


def apply(tables: Tables, entry: Entry) -> None:
    table, at = tables.get(entry.table), entry.commit_ts
    if isinstance(entry, RowChange):
        if entry.before is not None:
            # The row is missing where an entry before it was left out.
            table.rows.pop(table.key_of(entry.before), None)
        if entry.after is not None:
            table.rows[table.key_of(entry.after)] = (dict(entry.after), at)
        return
    place = next((n for n, column in enumerate(table.columns if table else ()) if column.name == entry.name), None)
    match entry.kind:
        case "create" | "older":
            tables[entry.table] = Table(list(entry.columns), entry.key, {}, entry.partition)
        case "drop":
            tables.gone[entry.table] = tables.pop(entry.table)
        case "rename table":
            tables[entry.new_name] = tables.pop(entry.table)
        case "recover":
            table = tables[entry.new_name] = tables.gone.pop(entry.table)
            _keyed(table, at)
        case "truncate":
            tables.gone[entry.table] = replace(table, columns=list(table.columns))
            table.rows = {}
        case "exchange":
            plain, out = tables[entry.new_name], _in_partition(table, entry.name)
            back, plain.rows = plain.rows, {key: (row, at) for key, (row, _) in out.items()}
            kept = {key: row for key, row in table.rows.items() if key not in out}
            # Rows that change places have the statement's time.
            table.rows = {**kept, **{key: (row, at) for key, (row, _) in back.items()}}
        case "drop partition" | "truncate partition":
            out = _in_partition(table, entry.name) if entry.leaving is None else table.rows.keys() - set(entry.leaving)
            table.rows = {key: row for key, row in table.rows.items() if key not in out}
        case "add":
            table.columns.insert(0 if entry.first else len(table.columns), entry.column)
            for row, _ in table.rows.values():
                row[entry.column.name] = entry.column.default
        case "drop column":
            del table.columns[place]
            for row, _ in table.rows.values():
                del row[entry.name]
        case "rename column":
            table.columns[place] = replace(table.columns[place], name=entry.new_name)
            table.key = tuple(entry.new_name if name == entry.name else name for name in table.key)
            for row, _ in table.rows.values():
                row[entry.new_name] = row.pop(entry.name)
        case "retype":
            old, table.columns[place] = table.columns[place], entry.column
            for row, _ in table.rows.values():
                row[entry.name] = _converted(row[entry.name], entry.column.type)
            if entry.name in table.key and _meaning(old.type) != _meaning(entry.column.type):
                _keyed(table, at)
        case "rekey":
            table.key = entry.key
            _keyed(table, at)
        case "drop key":
            table.key = ()
        case "remove partitioning":
            table.partition = None
        case "alter":
            origins = {column.name: column.name for column in entry.columns} | dict(entry.origins)
            table.columns, table.key = list(entry.columns), entry.key
            table.rows = {
                key: ({c.name: row[origins[c.name]] if origins[c.name] else c.default for c in entry.columns}, then)
                for key, (row, then) in table.rows.items()
            }
        case _:
            raise AssertionError(entry.kind)


def _in_partition(table: Table, name: str) -> dict[Key, tuple[Values, int]]:
    column = table.partition
    return {key: row for key, row in table.rows.items() if (int(row[0][column] or 0) < LIMIT) == (name == "p0")}


def _keyed(table: Table, commit_ts: int) -> None:
    """Rows that are told apart by other values, or come back, have the time of the statement that made it so."""
    table.rows = {table.key_of(row): (row, commit_ts) for row, _ in table.rows.values()}


_MEANINGS = {"int": int, "bigint": int, "varchar": str, "datetime": datetime.datetime}


def _meaning(kind: str) -> object:
    """Types between which the text of a key stays the same."""
    base = kind.partition("(")[0]
    return kind if base == "decimal" else _MEANINGS.get(base, base)


def _converted(text: str | None, new: str) -> str | None:
    if text is None:
        return None
    match new.partition("(")[0]:
        case "decimal":
            return f"{Decimal(text):.{new.partition(',')[2].removesuffix(')')}f}"
        case "int" | "bigint":
            return str(int(text))
        case "date":
            return text[:10]
        case "char":
            return text.rstrip(" ")
        case _:
            return text


def _name_in_lake(name: str) -> str:
    """The lake has a column `_commit_ts` of its own."""
    return f"{name}_" if name.lower().rstrip("_") == "_commit_ts" else name


def value(text: str | None, kind: str) -> Any:
    """Decimals without zeros at their end, timestamps of a feed in Asia/Shanghai."""
    match truth.iceberg_type(kind).partition("(")[0]:
        case "decimal" if text is not None:
            return Decimal(text).normalize()
        case "timestamptz" if text is not None:
            return datetime.datetime.fromisoformat(f"{text}+08:00")
        case "string":
            return text
        case _:
            return truth.true_value(text, kind)


def seen(schema: Any, scan: Any) -> tuple[list[tuple[str, str]], list[tuple[Any, ...]]]:
    """What a scan of PyIceberg shows, as `Table.typed` gives it."""
    return [(field.name, str(field.field_type)) for field in schema.fields], values(scan.to_arrow())


def values(table: Any) -> list[tuple[Any, ...]]:
    """The rows of an Arrow table, as `Table.typed` gives them."""
    cells = [table.column(place).to_pylist() for place in range(table.num_columns)]
    rows = [
        tuple(cell.normalize() if isinstance(cell, Decimal) else cell for cell in row)
        for row in zip(*cells, strict=True)
    ]
    return sorted(rows, key=repr)


def same(what: str, found: object, expected: object) -> None:
    assert found == expected, f"{what}:\n  found    {found}\n  expected {expected}"
