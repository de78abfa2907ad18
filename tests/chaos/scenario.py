"""A history of a seed: what the database does, how the changefeed brings it, when the project runs, and what goes wrong
then. The same seed gives the same history in any process."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from tests.model.changefeed import DATABASE
from tests.model.fold import Entry
from tests.model.history import NAMES, ROWS, STATEMENTS, Flush, History, Midnight, Restart

_COMMANDS: Final = (12, 45)
_KINDS: Final = ("row", "statement", "flush", "midnight", "restart", "pass")
_WEIGHTS: Final = (56, 14, 8, 5, 5, 12)
_POLICIES: Final[tuple[dict[str, Any], ...]] = (
    {},
    {"quarantine": "skip"},
    {"index_gap": "skip"},
    {"ddl": {"drop": "purge"}},
    {"ddl": {"rewrite": "hold"}},
)


@dataclass(frozen=True)
class Settings:
    """What a run is configured with. `keys`: whether the configuration names the keys that the tables have anyway."""

    excluded: str | None = None
    policy: dict[str, Any] = field(default_factory=dict[str, Any])
    keys: bool = False
    start_date: str = "2026-01-01"


@dataclass(frozen=True)
class Pass:
    """The checkpoint is `behind` entries back. The project runs with settings under which a fault hits it at its n-th
    commit, and once more, with other settings, without one. `again`: then each date is decoded once more."""

    behind: int
    fault: str
    number: int
    during: Settings
    after: Settings
    again: bool = False


Step = Entry | Flush | Midnight | Restart | Pass


@dataclass(frozen=True)
class Scenario:
    seed: int
    csv: bool
    old_values: bool
    steps: Sequence[Step]


def scenario(seed: int, faults: Sequence[str], length: tuple[int, int] = _COMMANDS) -> Scenario:
    """A history that ends with a pass up to its last entry, every table taken."""
    chance = random.Random(seed)
    history = History()
    steps: list[Step] = [*history.create("t0", 0), *history.create("t1", 1)]
    for _ in range(chance.randint(*length)):
        match chance.choices(_KINDS, _WEIGHTS)[0]:
            case "row":
                steps += history.command(chance.choice(ROWS), *_numbers(chance))
            case "statement":
                steps += history.command(chance.choice(STATEMENTS), *_numbers(chance))
            case other:
                history.pause()
                steps.append(_of_feed(other, chance, faults))
    last = Pass(0, chance.choice(faults), chance.randint(1, 12), Settings(), Settings(), again=chance.random() < 0.2)
    return Scenario(seed, chance.random() < 0.5, chance.random() < 0.5, [*steps, last])


def _numbers(chance: random.Random) -> tuple[int, int, int]:
    return chance.randrange(12), chance.randrange(12), chance.randrange(12)


def _of_feed(kind: str, chance: random.Random, faults: Sequence[str]) -> Step:
    match kind:
        case "flush":
            return Flush(chance.randint(1, 5))
        case "midnight":
            return Midnight()
        case "restart":
            return Restart()
        case _:
            return Pass(
                behind=chance.randrange(5),
                fault=chance.choice(faults),
                number=chance.randint(1, 12),
                during=_settings(chance),
                after=Settings(excluded=_excluded(chance), keys=chance.random() < 0.2),
                again=chance.random() < 0.1,
            )


def _settings(chance: random.Random) -> Settings:
    return Settings(
        excluded=_excluded(chance),
        policy=chance.choice(_POLICIES),
        keys=chance.random() < 0.2,
        start_date=chance.choice(["2026-01-01", "2025-06-01"]),
    )


def _excluded(chance: random.Random) -> str | None:
    return f"{DATABASE}.{chance.choice(NAMES)}" if chance.random() < 0.25 else None
