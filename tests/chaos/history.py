"""Random histories of small databases: what can be done to one, drawn by numbers, and scenarios of a seed: histories
that one changefeed brings, when the project runs, and what goes wrong then. The same seed gives the same histories in
any process."""

import copy
import itertools
import random
from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal

from tests.kit.log import FIRST_TS, LIMIT, Column, Ddl, Entry, Key, Kind, RowChange, Table, Tables, Values, apply

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
    """The database as it stands, and what can be done to it: `command` takes a kind of `ROWS` or `STATEMENTS` and three
    numbers from 0 to 11, which say what of it."""

    def __init__(self, clock: Iterator[int] | None = None) -> None:
        """`clock` gives commit-ts: histories of one feed have one."""
        self._tables = Tables()
        self._clock = clock or itertools.count(FIRST_TS, 1 << 18)
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
                return [self._ddl("drop", name)] if b > 7 else []
            case "truncate":
                return [self._ddl("truncate", name)]
            case "rename table":
                new = next((new for new in NAMES if new not in self._tables), None)
                return [self._ddl("rename table", name, new_name=new)] if new else []
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
            return [self._ddl("drop" if c % 2 else "truncate", name)]
        name = gone[b % len(gone)]
        new = name if name in free and c % 2 else free[c % len(free)]
        return [self._ddl("recover", name, new_name=new)]

    def _exchange(self, b: int, c: int) -> list[Entry]:
        """With a table that is as the partitioned one; else such a table is made, with rows of its own."""
        name = next((name for name, table in sorted(self._tables.items()) if table.partition), None)
        if name is None:
            return []
        table, entries = self._tables[name], list[Entry]()
        others = [(name, each) for name, each in sorted(self._tables.items()) if each.partition is None]
        twin = next((name for name, each in others if (each.columns, each.key) == (table.columns, table.key)), None)
        if twin is None:
            free = next((name for name in NAMES if name not in self._tables), None)
            if free is None:
                return []
            self._now = next(self._clock)
            entries = [self._ddl("create", free, columns=tuple(table.columns), key=table.key)]
            self._now = next(self._clock)
            entries += self._put(free, b, c)
            if b % 2:
                return entries
            self._now, twin = next(self._clock), free
        below = {int(row[table.partition or ""] or 0) < LIMIT for row, _ in self._tables[twin].rows.values()}
        below = below or {c % 2 == 0}
        if len(below) > 1:
            return entries  # The database refuses rows that do not belong there.
        return [*entries, self._ddl("exchange", name, name="p0" if True in below else "p1", new_name=twin)]

    def create(self, name: str, number: int) -> list[Entry]:
        self._now = next(self._clock)
        columns = [Column("id", "int"), Column("v", _TYPES[number % len(_TYPES)]), Column("w", "varchar(20)")]
        if number % 2:
            columns.insert(1, Column("code", "varchar(20)"))
        key = ("id", "code") if number % 2 else ("id",)
        partition = "id" if number % 2 else None
        return [self._ddl("create", name, columns=tuple(columns), key=key, partition=partition)]

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
            type = _TYPES[c % len(_TYPES)]
            added = Column(free, type, _text(type, c) if b % 2 else None)
            return [self._ddl("add", name, column=added, first=c % 3 == 0)]
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
        if not wider or (column.name in table.key and column.type not in ("int", "bigint")):
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


# --- Histories of a seed, and when runs are and what hits them ---

_POLICIES: Final[tuple[dict[str, Any], ...]] = (
    {}, {"quarantine": "skip"}, {"index_gap": "skip"}, {"ddl": {"drop": "purge"}}, {"ddl": {"rewrite": "hold"}},
)  # fmt: skip

Protocol = Literal["canal-json", "csv", "topic"]
OF_FILES: Final = ("late file", "unreadable file", "lease and file lost")
"""Faults that a topic does not have."""


@dataclass(frozen=True)
class Settings:
    """What a run is configured with. `excluded` are the names, as `database.table`, that it does not take, also those
    that no pattern of `include` matches. `keys`: databases of which the configuration names the keys that the tables
    have anyway. `moved`: the tables are in other namespaces than usual."""

    excluded: frozenset[str] = frozenset()
    include: tuple[str, ...] = ("*.*",)
    moved: bool = False
    keys: frozenset[str] = frozenset()
    policy: dict[str, Any] = field(default_factory=dict[str, Any])
    start_date: str = "2026-01-01"


@dataclass(frozen=True)
class Pass:
    """The checkpoint goes to `upto`. The project runs with settings under which a fault hits it at its n-th commit, and
    once more, with other settings, without one. `again`: then each date is decoded once more."""

    upto: int
    fault: str
    number: int
    during: Settings
    after: Settings
    again: bool = False


FeedStep = Literal["midnight", "restart"]
"""The changefeed's files go to the next date's directories; or it starts again from its checkpoint: what is above it
comes once more."""


@dataclass(frozen=True)
class Of:
    """A step of one database; a number: what waits is written, so many lines a file."""

    database: str
    step: Entry | int


Step = Of | FeedStep | Pass


@dataclass(frozen=True)
class Scenario:
    """`maintained`: each pass ends its dates, and maintenance keeps nothing of them that it need not keep."""

    seed: int
    protocol: Protocol
    old_values: bool
    databases: Sequence[str]
    steps: Sequence[Step]
    maintained: bool = False

    def of(self, numbers: Sequence[int]) -> "Scenario":
        """Some of its histories alone, with the same passes and faults."""
        kept = [self.databases[number] for number in numbers]
        steps = [step for step in self.steps if not isinstance(step, Of) or step.database in kept]
        return replace(self, databases=kept, steps=steps)


class _Database(History):
    """One history: its random numbers are its own."""

    def __init__(self, seed: int, number: int, clock: Iterator[int]) -> None:
        super().__init__(clock)
        self.name, self.chance = f"shop{number}", random.Random(f"{seed}/{number}")

    def drawn(self) -> Sequence[Entry | int]:
        kind = self.chance.choices(("row", "statement", "flush"), (56, 14, 8))[0]
        if kind == "flush":
            self.pause()
            return [self.chance.randint(1, 5)]
        named = self.chance.choice(ROWS if kind == "row" else STATEMENTS)
        return self.command(named, *(self.chance.randrange(12) for _ in range(3)))


def scenario(
    seed: int, faults: Sequence[str], protocols: Sequence[Protocol], histories: int, passes: tuple[int, int] = (3, 5)
) -> "Scenario":
    """Histories that end with a pass up to their last entry, every table taken."""
    chance = random.Random(seed)
    protocol = chance.choice(protocols)
    if protocol == "topic":
        faults = [fault for fault in faults if fault not in OF_FILES] or ["none"]
    clock = itertools.count(FIRST_TS, 1 << 18)
    databases = [_Database(seed, number, clock) for number in range(histories)]
    created = [(each, [*each.create("t0", 0), *each.create("t1", 1)]) for each in databases]
    steps: list[Step] = [Of(each.name, entry) for each, entries in created for entry in entries]
    last = chance.randint(*passes) - 1
    for number in range(last + 1):
        turns = [each for each in databases for _ in range(each.chance.randint(3, 11))]
        chance.shuffle(turns)
        for each in turns:
            if chance.random() < 0.015:
                for paused in databases:
                    paused.pause()
                steps.append(chance.choice(("midnight", "restart")))
            steps += [Of(each.name, step) for step in each.drawn()]
        for each in databases:
            each.pause()
        times = sorted(each.step.commit_ts for each in steps if isinstance(each, Of) and not isinstance(each.step, int))
        behind = 0 if number == last else chance.randrange(min(len(times), 5 * len(databases)))
        fault = chance.choice(faults)
        commit = chance.randint(1, 12 + 2 * len(databases)) if chance.random() < 0.5 else chance.randint(1, 12)
        settings = [_settings(chance, databases, whole=whole) for whole in (False, True) if number < last]
        again = chance.random() < (0.2 if number == last else 0.1)
        # Random numbers of their own, so that a seed keeps its histories.
        places = random.Random(f"{seed}/places/{number}")
        during, after = (
            _placed(each, places, databases, last=number == last) for each in settings or (Settings(), Settings())
        )
        steps.append(Pass(times[-1 - behind], fault, commit, during, after, again))
    maintained = random.Random(f"{seed}/maintained").random() < 0.4
    return Scenario(seed, protocol, chance.random() < 0.5, [each.name for each in databases], steps, maintained)


def _settings(chance: random.Random, databases: Sequence[_Database], *, whole: bool) -> Settings:
    """`whole`: nothing but names of tables and keys is other than usual, so that no table is held."""
    excluded = frozenset(
        f"{each.name}.{each.chance.choice(NAMES)}" for each in databases if each.chance.random() < 0.25
    )
    keys = frozenset(each.name for each in databases if each.chance.random() < 0.2)
    if whole:
        return Settings(excluded, keys=keys)
    policy, start_date = chance.choice(_POLICIES), chance.choice(["2026-01-01", "2025-06-01"])
    return Settings(excluded, keys=keys, policy=policy, start_date=start_date)


def _placed(settings: Settings, chance: random.Random, databases: Sequence[_Database], *, last: bool) -> Settings:
    """Now and then with tables taken by other patterns, or in other namespaces."""
    moved = chance.random() < 0.2
    if last or chance.random() >= 0.3:
        return replace(settings, moved=moved)
    left, prefix = chance.choice((None, *NAMES)), chance.choice(("*", "shop*", "????*"))
    return replace(
        settings,
        excluded=settings.excluded | {f"{each.name}.{left}" for each in databases if left is not None},
        include=tuple(f"{prefix}.{name}" for name in NAMES if name != left),
        moved=moved,
    )
