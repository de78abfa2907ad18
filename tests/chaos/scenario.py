"""Histories of a seed that one changefeed brings: what each database does, when the project runs, and what goes wrong
then. The same seed gives the same histories in any process."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal

from tests.chaos.history import NAMES, ROWS, STATEMENTS, Flush, History, Midnight, Restart, new_clock
from tests.kit.log import Entry

_PASSES: Final = (3, 5)
_COMMANDS: Final = (3, 11)
"""Of a database before each pass."""
_KINDS: Final = ("row", "statement", "flush")
_WEIGHTS: Final = (56, 14, 8)
_MAINTAINED: Final = 0.4
"""Of the scenarios."""
_MOVED: Final = 0.2
_PATTERNS: Final = 0.3
"""How often tables are in other namespaces, or taken by other patterns, in a run."""
_FEED_STEPS: Final = 0.015
"""How often midnight comes, or the changefeed starts again, for each command."""
_POLICIES: Final[tuple[dict[str, Any], ...]] = (
    {},
    {"quarantine": "skip"},
    {"index_gap": "skip"},
    {"ddl": {"drop": "purge"}},
    {"ddl": {"rewrite": "hold"}},
)

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


@dataclass(frozen=True)
class Of:
    """A step of one database."""

    database: str
    step: Entry | Flush


Step = Of | Midnight | Restart | Pass


@dataclass(frozen=True)
class Scenario:
    """`maintained`: each pass ends its dates, and maintenance keeps nothing of them that it need not keep."""

    seed: int
    protocol: Protocol
    old_values: bool
    databases: Sequence[str]
    steps: Sequence[Step]
    maintained: bool = False

    def of(self, numbers: Sequence[int]) -> Scenario:
        """Some of its histories alone, with the same passes and faults."""
        kept = [self.databases[number] for number in numbers]
        steps = [step for step in self.steps if not isinstance(step, Of) or step.database in kept]
        return replace(self, databases=kept, steps=steps)


class _Database:
    """One history: its random numbers are its own."""

    def __init__(self, seed: int, number: int, clock: Iterator[int]) -> None:
        self.name = f"shop{number}"
        self.chance = random.Random(f"{seed}/{number}")
        self.history = History(clock)

    def command(self) -> Iterator[Entry | Flush]:
        kind = self.chance.choices(_KINDS, _WEIGHTS)[0]
        if kind == "flush":
            self.history.pause()
            yield Flush(self.chance.randint(1, 5))
            return
        named = self.chance.choice(ROWS if kind == "row" else STATEMENTS)
        yield from self.history.command(named, *(self.chance.randrange(12) for _ in range(3)))

    def excluded(self) -> set[str]:
        return {f"{self.name}.{self.chance.choice(NAMES)}"} if self.chance.random() < 0.25 else set()


def scenario(
    seed: int,
    faults: Sequence[str],
    protocols: Sequence[Protocol],
    histories: int,
    passes: tuple[int, int] = _PASSES,
) -> Scenario:
    """Histories that end with a pass up to their last entry, every table taken."""
    chance = random.Random(seed)
    protocol = chance.choice(protocols)
    if protocol == "topic":
        faults = [fault for fault in faults if fault not in OF_FILES] or ["none"]
    clock = new_clock()
    databases = [_Database(seed, number, clock) for number in range(histories)]
    steps: list[Step] = []
    for each in databases:
        created = [*each.history.create("t0", 0), *each.history.create("t1", 1)]
        steps += [Of(each.name, entry) for entry in created]
    last = chance.randint(*passes) - 1
    for number in range(last + 1):
        turns = [each for each in databases for _ in range(each.chance.randint(*_COMMANDS))]
        chance.shuffle(turns)
        for each in turns:
            if chance.random() < _FEED_STEPS:
                _pause(databases)
                steps.append(chance.choice((Midnight(), Restart())))
            steps += [Of(each.name, step) for step in each.command()]
        _pause(databases)
        step = _pass(steps, chance, faults, databases, last=number == last)
        # Random numbers of their own, so that a seed keeps its histories.
        steps.append(_placed(step, random.Random(f"{seed}/places/{number}"), databases, last=number == last))
    maintained = random.Random(f"{seed}/maintained").random() < _MAINTAINED
    return Scenario(seed, protocol, chance.random() < 0.5, [each.name for each in databases], steps, maintained)


def _pause(databases: Sequence[_Database]) -> None:
    for each in databases:
        each.history.pause()


def _pass(
    steps: Sequence[Step], chance: random.Random, faults: Sequence[str], databases: Sequence[_Database], *, last: bool
) -> Pass:
    times = sorted(step.step.commit_ts for step in steps if isinstance(step, Of) and not isinstance(step.step, Flush))
    behind = 0 if last else chance.randrange(min(len(times), 5 * len(databases)))
    return Pass(
        upto=times[-1 - behind],
        fault=chance.choice(faults),
        number=chance.randint(1, 12 + 2 * len(databases)) if chance.random() < 0.5 else chance.randint(1, 12),
        during=Settings() if last else _settings(chance, databases, whole=False),
        after=Settings() if last else _settings(chance, databases, whole=True),
        again=chance.random() < (0.2 if last else 0.1),
    )


def _placed(step: Pass, chance: random.Random, databases: Sequence[_Database], *, last: bool) -> Pass:
    """The pass, now and then with tables taken by other patterns, or in other namespaces."""

    def placed(settings: Settings) -> Settings:
        moved = chance.random() < _MOVED
        if last or chance.random() >= _PATTERNS:
            return replace(settings, moved=moved)
        left, prefix = chance.choice((None, *NAMES)), chance.choice(("*", "shop*", "????*"))
        include = tuple(f"{prefix}.{name}" for name in NAMES if name != left)
        return replace(
            settings,
            excluded=settings.excluded | {f"{each.name}.{left}" for each in databases if left is not None},
            include=include,
            moved=moved,
        )

    return replace(step, during=placed(step.during), after=placed(step.after))


def _settings(chance: random.Random, databases: Sequence[_Database], *, whole: bool) -> Settings:
    """`whole`: nothing but names of tables and keys is other than usual, so that no table is held."""
    excluded = frozenset(name for each in databases for name in each.excluded())
    keys = frozenset(each.name for each in databases if each.chance.random() < 0.2)
    if whole:
        return Settings(excluded, keys=keys)
    policy, start_date = chance.choice(_POLICIES), chance.choice(["2026-01-01", "2025-06-01"])
    return Settings(excluded, keys=keys, policy=policy, start_date=start_date)
