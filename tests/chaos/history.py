"""Random histories of a small database: what can be done to it, drawn by numbers."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Iterator, Set
from dataclasses import dataclass
from typing import Final

from tests.kit.log import LIMIT, Column, Ddl, Entry, Key, Kind, RowChange, Table, Tables, Values, apply

NAMES: Final = ("t0", "t1", "Table 2")
PARTITIONED: Final = "t1"
_TYPES: Final = ("int", "varchar(20)", "decimal(12,2)", "datetime", "bigint")
_RETYPED: Final = {
    "int": ("bigint", "varchar(40)"),
    "bigint": ("varchar(40)",),
    "decimal(12,2)": ("decimal(16,2)", "decimal(18,4)"),
    "varchar(20)": ("varchar(60)",),
}
_TEXTS: Final = ("", "NULL", r"\N", 'a,"b"', "é😀", "x\r\ny", "null", " ")
_START: Final = 450_000_000_000_000_000


@dataclass(frozen=True)
class Flush:
    """What waits is written, so many lines a file."""

    lines: int


@dataclass(frozen=True)
class Midnight:
    """The changefeed's files go to the next date's directories."""


@dataclass(frozen=True)
class Restart:
    """The changefeed starts again from its checkpoint: what is above it comes once more."""


ROWS: Final = ("put", "put", "put", "delete", "move")
STATEMENTS: Final = (
    "add", "drop column", "rename column", "retype", "retype", "truncate", "rename table", "drop", "rekey", "exchange",
    "exchange", "recover", "recover",
)  # fmt: skip


def new_clock() -> Iterator[int]:
    """Commit-ts one after the other."""
    return itertools.count(_START, 1 << 18)


class History:
    """The database as it stands, and what can be done to it: `command` takes a kind of `ROWS` or `STATEMENTS` and three
    numbers from 0 to 11, which say what of it."""

    def __init__(self, clock: Iterator[int] | None = None) -> None:
        """`clock` gives commit-ts: histories of one feed have one."""
        self._tables = Tables()
        self._clock = clock or new_clock()
        self._now = next(self._clock)
        self._over = False
        """Nothing of this time comes any more: a statement comes after the rows, a checkpoint after everything."""
        self._last_ts = 0
        self._touched: Set[tuple[str, Key]] = frozenset()
        """Keys of the transaction: the log has what became of each in the end."""

    def pause(self) -> None:
        self._over = True

    def command(self, kind: str, a: int, b: int, c: int) -> list[Entry]:
        missing = [name for name in NAMES[:2] if name not in self._tables]
        if not self._tables or (missing and kind == "truncate"):
            return self.create(missing[0], a)
        name = sorted(self._tables)[a % len(self._tables)]
        # Now and then several changes are of one transaction, or a statement has the time of the one before it.
        if c % 4 or self._over:
            self._now = next(self._clock)
        match kind:
            case "put":
                return self._put(name, b, c)
            case "delete" | "move":
                return self._gone(name, b, c, moved=kind == "move")
            case "drop":
                return [self._done(Ddl(self._now, name, "drop"))] if b > 7 else []
            case "truncate":
                return [self._done(Ddl(self._now, name, "truncate"))]
            case "rename table":
                new = next((new for new in NAMES if new not in self._tables), None)
                return [self._done(Ddl(self._now, name, "rename table", new_name=new))] if new else []
            case "exchange":
                return self._exchange(b, c)
            case "recover":
                return self._recover(b, c)
            case _:
                return self._alter(name, kind, b, c)

    def _recover(self, b: int, c: int) -> list[Entry]:
        """Of a table that was dropped or truncated, under its name where that is free, or under another one; else one
        is dropped or truncated."""
        gone, free = sorted(self._tables.gone), [name for name in NAMES if name not in self._tables]
        if not gone or not free:
            name = sorted(self._tables)[b % len(self._tables)]
            return [self._done(Ddl(self._now, name, "drop" if c % 2 else "truncate"))]
        name = gone[b % len(gone)]
        new = name if name in free and c % 2 else free[c % len(free)]
        return [self._done(Ddl(self._now, name, "recover", new_name=new))]

    def _exchange(self, b: int, c: int) -> list[Entry]:
        """With a table that is as the partitioned one; else such a table is made, with rows of its own."""
        name = next((name for name, table in sorted(self._tables.items()) if table.partition), None)
        if name is None:
            return []
        table = self._tables[name]
        others = [(name, each) for name, each in sorted(self._tables.items()) if each.partition is None]
        twin = next((name for name, each in others if (each.columns, each.key) == (table.columns, table.key)), None)
        if twin is None:
            free = next((name for name in NAMES if name not in self._tables), None)
            if free is None:
                return []
            self._now = next(self._clock)
            made = Ddl(self._now, free, "create", columns=tuple(table.columns), key=table.key)
            entries = [self._done(made)]
            self._now = next(self._clock)
            entries += self._put(free, b, c)
            if b % 2:
                return entries
            self._now = next(self._clock)
            return [*entries, *self._exchanged(name, free, c)]
        return self._exchanged(name, twin, c)

    def _exchanged(self, name: str, twin: str, c: int) -> list[Entry]:
        column = self._tables[name].partition or ""
        below = {int(row[column] or 0) < LIMIT for row, _ in self._tables[twin].rows.values()} or {c % 2 == 0}
        if len(below) > 1:
            return []  # The database refuses rows that do not belong there.
        return [self._ddl("exchange", name, name="p0" if True in below else "p1", new_name=twin)]

    def create(self, name: str, number: int) -> list[Entry]:
        self._now = next(self._clock)
        columns = [Column("id", "int"), Column("v", _TYPES[number % len(_TYPES)]), Column("w", "varchar(20)")]
        if number % 2:
            columns.insert(1, Column("code", "varchar(20)"))
        key = ("id", "code") if number % 2 else ("id",)
        partition = "id" if number % 2 else None
        return [self._done(Ddl(self._now, name, "create", columns=tuple(columns), key=key, partition=partition))]

    def _put(self, name: str, number: int, c: int) -> list[Entry]:
        table = self._tables[name]
        row = _row(table, number % 6, c * 7 + number)
        before = table.rows.get(table.key_of(row), (None, 0))[0]
        if before == row:
            return []
        unchanged = frozenset(column for column in row if before and before[column] == row[column]) - set(table.key)
        partial = unchanged if c % 3 == 0 else frozenset[str]()
        return [self._changed(name, copy.copy(before), row, partial, c)]

    def _gone(self, name: str, number: int, c: int, *, moved: bool) -> list[Entry]:
        table = self._tables[name]
        if not table.rows:
            return []
        before = dict(list(table.rows.values())[number % len(table.rows)][0])
        after = {**before, **{key: _row(table, c % 6, 0)[key] for key in table.key}} if moved else None
        if after is not None and table.key_of(after) in table.rows:
            return []
        return [self._changed(name, before, after, frozenset(), c)]

    def _alter(self, name: str, kind: str, b: int, c: int) -> list[Entry]:
        table = self._tables[name]
        free = next(f"c{n}" for n in range(20) if f"c{n}" not in {column.name for column in table.columns})
        others = [column for column in table.columns if column.name not in table.key]
        column = table.columns[b % len(table.columns)]
        if kind == "add":
            added = Column(free, _TYPES[c % len(_TYPES)])
            default = _text(added.type, c) if b % 2 else None
            return [self._ddl("add", name, column=Column(added.name, added.type, default), first=c % 3 == 0)]
        if kind == "drop column":
            return [self._ddl("drop column", name, name=others[b % len(others)].name)] if len(others) > 1 else []
        if kind == "rekey":
            able = [c.name for c in table.columns if c.type.startswith(("int", "bigint", "varchar"))]
            key = (able[b % len(able)],)
            told = [row[key[0]] for row, _ in table.rows.values()]
            # MySQL compares texts without case and without blanks at the end.
            distinct = {text.strip().lower() for text in told if text is not None}
            refused = table.partition or key == table.key or len(distinct) < len(told)
            return [] if refused else [self._ddl("rekey", name, key=key)]
        if column.name == table.partition:
            return []  # The database refuses.
        if kind == "rename column":
            return [self._ddl("rename column", name, name=column.name, new_name=free)]
        wider = _RETYPED.get(column.type, ())
        if column.name in table.key:
            wider = wider if column.type in ("int", "bigint") else ()
        if not wider:
            return []
        retyped = Column(column.name, wider[c % len(wider)], column.default)
        return [self._ddl("retype", name, name=column.name, column=retyped)]

    def _changed(
        self, name: str, before: Values | None, after: Values | None, partial: frozenset[str], style: int
    ) -> Entry:
        keys = {(name, self._tables[name].key_of(row)) for row in (before, after) if row is not None}
        if self._touched & keys:
            self._now = next(self._clock)
        return self._done(RowChange(self._now, name, before, after, partial, style), keys)

    def _ddl(self, kind: Kind, table: str, **parts: object) -> Entry:
        return self._done(Ddl(self._now, table, kind, **parts))  # pyright: ignore[reportArgumentType]

    def _done(self, entry: Entry, keys: Set[tuple[str, Key]] = frozenset()) -> Entry:
        apply(self._tables, entry)
        self._touched = keys | (self._touched if entry.commit_ts == self._last_ts else frozenset())
        self._last_ts = entry.commit_ts
        self._over = isinstance(entry, Ddl)
        return entry


def _row(table: Table, number: int, salt: int) -> Values:
    row: Values = {}
    for place, column in enumerate(table.columns):
        if column.name in table.key:
            row[column.name] = f"k{number % 2}" if column.type.startswith("varchar") else str(number)
        else:
            row[column.name] = _text(column.type, salt // (1 + place))
    return row


def _text(kind: str, number: int) -> str | None:
    if number % 7 == 6:
        return None
    match kind.partition("(")[0]:
        case "varchar":
            return _TEXTS[number % len(_TEXTS)]
        case "decimal":
            scale = int(kind.partition(",")[2].removesuffix(")"))
            return f"-{number}.{number % 100:0{scale}}"
        case "datetime":
            return f"2026-02-{1 + number % 28:02} 10:00:00"
        case _:
            return str(number - 20)
