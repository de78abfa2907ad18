"""Random histories of a small database: what can be done to it, drawn by numbers. The same numbers give the same
histories in any process."""

import copy
import itertools
import random
from collections.abc import Iterator, Sequence, Set
from typing import Final

from tests.kit.changefeed import Changefeed
from tests.kit.log import FIRST_TS, LIMIT, Column, Ddl, Entry, Key, Kind, RowChange, Table, Tables, Values

NAMES: Final = ("t0", "t1", "Table 2")
_TYPES: Final = ("int", "varchar(20)", "decimal(12,2)", "datetime", "bigint")
_RETYPED: Final = {
    "int": ("bigint", "varchar(40)"),
    "bigint": ("varchar(40)",),
    "decimal(12,2)": ("decimal(16,2)", "decimal(18,4)"),
    "varchar(20)": ("varchar(60)",),
}
_TEXTS: Final = ("", "NULL", r"\N", 'a,"b"', "é😀", "x\r\ny", "null", " ")
ROWS: Final = ("put", "put", "put", "delete", "move")
STATEMENTS: Final = (
    "add", "drop column", "rename column", "retype", "retype", "truncate", "rename table", "drop", "rekey", "exchange",
    "exchange", "recover", "recover",
)  # fmt: skip


class History:
    """What can be done to a database as its tables stand: `command` takes a kind of `ROWS` or `STATEMENTS` and three
    numbers from 0 to 11, which say what of it. Each entry must be applied to the tables before the next one is asked
    for."""

    def __init__(self, tables: Tables, clock: Iterator[int] | None = None) -> None:
        """`clock` gives commit-ts: histories of one feed have one."""
        self._tables = tables
        self._clock = clock or itertools.count(FIRST_TS, 1 << 18)
        self._now = next(self._clock)
        self._over = False
        """Nothing of this time comes any more: a statement comes after the rows, a checkpoint after everything."""
        self._last_ts = 0
        self._touched: Set[tuple[str, Key]] = frozenset()
        """Keys of the transaction: the log has what became of each in the end."""

    def pause(self) -> None:
        self._over = True

    def begin(self) -> Iterator[Entry]:
        """Two tables, the second of which is partitioned and has a key of two columns."""
        yield self._create("t0", 0)
        yield self._create("t1", 1)

    def command(self, kind: str, a: int, b: int, c: int) -> Iterator[Entry]:
        missing = [name for name in NAMES[:2] if name not in self._tables]
        if not self._tables or (missing and kind == "truncate"):
            yield self._create(missing[0], a)
            return
        name = sorted(self._tables)[a % len(self._tables)]
        free = [name for name in NAMES if name not in self._tables]
        # Now and then several changes are of one transaction, or a statement has the time of the one before it.
        if c % 4 or self._over:
            self._now = next(self._clock)
        match kind:
            case "put":
                yield from self._put(name, b, c)
            case "delete" | "move":
                yield from self._gone(name, b, c, moved=kind == "move")
            case "drop" if b <= 7:
                return
            case "drop" | "truncate":
                yield self._ddl(kind, name)
            case "rename table" if free:
                yield self._ddl("rename table", name, new_name=free[0])
            case "exchange":
                yield from self._exchange(free, b, c)
            case "recover" if self._tables.gone and free:
                name = sorted(self._tables.gone)[b % len(self._tables.gone)]
                yield self._ddl("recover", name, new_name=name if name in free and c % 2 else free[c % len(free)])
            case "recover":
                # Something that can be.
                yield self._ddl("drop" if c % 2 else "truncate", sorted(self._tables)[b % len(self._tables)])
            case _:
                yield from self._alter(name, kind, b, c)

    def _exchange(self, free: Sequence[str], b: int, c: int) -> Iterator[Entry]:
        """With a table that is as the partitioned one; else such a table is made, with rows of its own."""
        name = next((name for name, table in sorted(self._tables.items()) if table.partition), None)
        if name is None:
            return
        table = self._tables[name]
        others = [(name, each) for name, each in sorted(self._tables.items()) if each.partition is None]
        twin = next((name for name, each in others if (each.columns, each.key) == (table.columns, table.key)), None)
        if twin is None:
            if not free:
                return
            twin, self._now = free[0], next(self._clock)
            yield self._ddl("create", twin, columns=tuple(table.columns), key=table.key)
            self._now = next(self._clock)
            yield from self._put(twin, b, c)
            if b % 2:
                return
            self._now = next(self._clock)
        below = {int(row[table.partition or ""] or 0) < LIMIT for row, _ in self._tables[twin].rows.values()}
        below = below or {c % 2 == 0}
        # The database refuses rows that do not belong there.
        if len(below) == 1:
            yield self._ddl("exchange", name, name="p0" if True in below else "p1", new_name=twin)

    def _create(self, name: str, number: int) -> Entry:
        self._now = next(self._clock)
        columns = [Column("id", "int"), Column("v", _TYPES[number % len(_TYPES)]), Column("w", "varchar(20)")]
        if number % 2:
            columns.insert(1, Column("code", "varchar(20)"))
        key = ("id", "code") if number % 2 else ("id",)
        return self._ddl("create", name, columns=tuple(columns), key=key, partition="id" if number % 2 else None)

    def _put(self, name: str, number: int, c: int) -> Iterator[Entry]:
        table = self._tables[name]
        row = _row(table, number % 6, c * 7 + number)
        before = table.rows.get(table.key_of(row), (None, 0))[0]
        if before == row:
            return
        unchanged = frozenset(column for column in row if before and before[column] == row[column]) - set(table.key)
        yield self._changed(name, copy.copy(before), row, unchanged if c % 3 == 0 else frozenset(), c)

    def _gone(self, name: str, number: int, c: int, *, moved: bool) -> Iterator[Entry]:
        table = self._tables[name]
        if not table.rows:
            return
        before = dict(list(table.rows.values())[number % len(table.rows)][0])
        after = {**before, **{key: _row(table, c % 6, 0)[key] for key in table.key}} if moved else None
        if after is None or table.key_of(after) not in table.rows:
            yield self._changed(name, before, after, frozenset(), c)

    def _alter(self, name: str, kind: str, b: int, c: int) -> Iterator[Entry]:
        """Nothing, where the database refuses it, or has no name for it."""
        table = self._tables[name]
        free = next(f"c{n}" for n in range(20) if f"c{n}" not in {column.name for column in table.columns})
        others = [column for column in table.columns if column.name not in table.key]
        column = table.columns[b % len(table.columns)]
        match kind:
            case "add":
                type = _TYPES[c % len(_TYPES)]
                added = Column(free, type, _text(type, c) if b % 2 else None)
                yield self._ddl("add", name, column=added, first=c % 3 == 0)
            case "drop column" if len(others) > 1:
                yield self._ddl("drop column", name, name=others[b % len(others)].name)
            case "rekey":
                able = [c.name for c in table.columns if c.type.startswith(("int", "bigint", "varchar"))]
                key = (able[b % len(able)],)
                texts = [row[key[0]] for row, _ in table.rows.values()]
                # MySQL compares texts without case and without blanks at the end.
                distinct = {text.strip().lower() for text in texts if text is not None}
                if not table.partition and key != table.key and len(distinct) == len(texts):
                    yield self._ddl("rekey", name, key=key)
            case "rename column" if column.name != table.partition:
                yield self._ddl("rename column", name, name=column.name, new_name=free)
            case "retype" if column.name != table.partition and (wider := _RETYPED.get(column.type)):
                if column.name not in table.key or column.type in ("int", "bigint"):
                    retyped = Column(column.name, wider[c % len(wider)], column.default)
                    yield self._ddl("retype", name, name=column.name, column=retyped)
            case _:
                pass

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


class Database(History):
    """A history that its changefeed brings: its random numbers are its own."""

    def __init__(self, feed: Changefeed, seed: int, number: int, clock: Iterator[int]) -> None:
        super().__init__(feed.tables, clock)
        self.feed, self.chance = feed, random.Random(f"{seed}/{number}")

    def do(self, entries: Iterator[Entry]) -> None:
        for entry in entries:
            self.feed.send(entry)

    def go_on(self) -> None:
        kind = self.chance.choices(("row", "statement", "flush"), (56, 14, 8))[0]
        if kind == "flush":
            self.pause()
            self.feed.flush(self.chance.randint(1, 5))
            return
        named = self.chance.choice(ROWS if kind == "row" else STATEMENTS)
        self.do(self.command(named, *(self.chance.randrange(12) for _ in range(3))))
