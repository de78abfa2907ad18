"""What a task finds in a partition beside the rows: statements, watermarks, columns as they are seen, and what is
wrong."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import Any

from cdc_lakehouse.changelog.events import MessageError, Origin, RowChange
from cdc_lakehouse.changelog.positions import LOGICAL_BITS
from cdc_lakehouse.decoders.messages.canal_json import lossy_columns
from cdc_lakehouse.decoders.problems import BAD_MESSAGE, LISTED_PER_SEGMENT, RAW_LIMIT, Rejected

Place = tuple[str, int, int]
"""Topic, partition and batch."""


@dataclass(frozen=True)
class FoundStatement:
    commit_ts: int
    database: str
    table: str
    text: str
    offset: int
    segment: str
    time_ms: int | None = None
    """When the source executed it, as the message says."""


@dataclass(frozen=True)
class FoundSight:
    """The first row of the partition that has these columns."""

    commit_ts: int
    database: str
    table: str
    columns: tuple[tuple[str, str], ...]
    key: tuple[str, ...] | None
    offset: int
    segment: str


@dataclass(frozen=True)
class FoundDoubts:
    """Messages that contradict an option of the format: the first one, and how many they are."""

    first: str
    offset: int
    count: int = 1


@dataclass
class PartitionFinds:
    """What a task found in a partition beside the rows. `last_ts` is the greatest commit-ts of a row or statement,
    `seed` where there is none; `ended_ts` that of the last transaction that is whole, None where messages do not tell
    transactions apart. `replays` were left out, for they had come before."""

    seed: int
    last_ts: int
    watermark: int | None = None
    ended_ts: int | None = None
    replays: int = 0
    statements: list[FoundStatement] = field(default_factory=list[FoundStatement])
    sights: dict[Any, FoundSight] = field(default_factory=dict[Any, FoundSight])
    damaged: dict[tuple[str, str], Counter[str]] = field(default_factory=dict[tuple[str, str], "Counter[str]"])
    """By database and table, of each column the changes whose text was damaged before it came here."""
    bad: dict[str, list[Rejected]] = field(default_factory=dict[str, list[Rejected]])
    """By segment, messages that cannot be used; those beyond the first ones are only counted."""
    doubts: FoundDoubts | None = None

    def commit_ts(self, origin: Origin, time_ms: int | None) -> int | None:
        """Of the next row or statement; None where it has come before: a changefeed that starts again sends what it has
        sent. `time_ms` is the record's, for where the message has no time of its own."""
        if origin.commit_ts is None:
            moment = origin.time_ms if origin.time_ms is not None else time_ms or 0
            self.last_ts = max(self.last_ts + 1, moment << LOGICAL_BITS)
            return self.last_ts
        return origin.commit_ts if self.begins(origin.commit_ts) else None

    def begins(self, commit_ts: int) -> bool:
        """Whether a row or statement of the source's own commit-ts is new; then it is counted in."""
        if commit_ts <= (self.watermark or 0):
            return False
        self.last_ts = max(self.last_ts, commit_ts)
        return True

    def note_bad(self, segment: str, offset: int, error: MessageError, raw: bytes) -> None:
        listed = self.bad.setdefault(segment, [])
        message = str(error)
        if len(listed) < LISTED_PER_SEGMENT:
            database, table = error.of or _table_of(raw)
            listed.append(Rejected(segment, offset, BAD_MESSAGE, message, raw[:RAW_LIMIT], database, table))
            return
        last = listed[-1]
        count = last.count + 1 if len(listed) > LISTED_PER_SEGMENT else 1
        del listed[LISTED_PER_SEGMENT:]
        listed.append(Rejected(segment, offset if count == 1 else last.line, BAD_MESSAGE, message, b"", count=count))

    def note_doubt(self, doubt: str, offset: int) -> None:
        first = self.doubts or FoundDoubts(doubt, offset, 0)
        self.doubts = replace(first, count=first.count + 1)

    def note_sight(self, sight: FoundSight, *, in_order: bool) -> None:
        """Rows come `in_order` where their places make their commit-ts: then what looks the same is another sight
        behind a statement."""
        shape = (sight.database, sight.table, sight.columns, sight.key, len(self.statements) if in_order else 0)
        known = self.sights.get(shape)
        if known is None or sight.commit_ts < known.commit_ts:
            self.sights[shape] = sight

    def note_damage(self, row: RowChange) -> None:
        if damaged := lossy_columns(row):
            self.damaged.setdefault((row.database, row.table), Counter()).update(damaged)


Finds = dict[Place, PartitionFinds]


def _table_of(raw: bytes) -> tuple[str | None, str | None]:
    """The table that a message in JSON names, though the rest of it cannot be used: it alone is held then."""
    try:
        told = json.loads(raw)
    except (ValueError, RecursionError):
        return None, None
    names = (told.get("database"), told.get("table")) if isinstance(told, dict) else (None, None)
    return names if all(isinstance(name, str) and name for name in names) else (None, None)
