"""The tables `quarantine` and `decisions`, in which people decide what a run cannot.

`quarantine` has one row for each thing that could not be used. Nothing is dropped without one.

A row is `open` until what it names could be used after all (`replayed`), a person discarded it (`discarded`), or the
source sent it again, undamaged, in another segment (`redelivered`). A discarded row is not opened again when the same
bytes are found again at the same place. The columns are those of `decoders.problems.Rejected`, and the row's state with
who set it, when and why.
"""

from __future__ import annotations

import datetime
import hashlib
import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from dataclasses import replace as changed
from functools import cached_property
from typing import Any, Final, Literal

from cdc_lakehouse.changelog.positions import BEGINNING
from cdc_lakehouse.changelog.schema import TableName
from cdc_lakehouse.decoders.problems import BAD_VALUE, Rejected
from cdc_lakehouse.lake.catalog import Lake
from cdc_lakehouse.lake.tables.small_table import ALL, SmallTable, schema_of

State = Literal["open", "replayed", "discarded", "redelivered"]

_ID_DIGITS: Final = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class Quarantined(Rejected):
    """One row of the table; times are UTC. resolved_at: when it got its state, None for an open row. discarded_by,
    discard_reason: who discarded it, and why; None for a row that was never discarded."""

    state: State
    quarantined_at: datetime.datetime
    resolved_at: datetime.datetime | None = None
    discarded_by: str | None = None
    discard_reason: str | None = None

    @property
    def id(self) -> str:
        """A short stable id: 12 hex digits of the SHA-256 of JSON `[segment, line, error_class, SHA-256 of raw (hex) or
        null, count]`. The same thing with another message keeps its id; other bytes at the same place have another."""
        raw = None if self.raw is None else hashlib.sha256(self.raw).hexdigest()
        identity = [self.segment, self.line, self.error_class, raw, self.count]
        return hashlib.sha256(json.dumps(identity).encode()).hexdigest()[:_ID_DIGITS]


SCHEMA: Final = schema_of(Quarantined)


class Quarantine:
    """The quarantine of one feed, read once and updated with what this object writes."""

    def __init__(self, lake: Lake, feed: str) -> None:
        self._table = SmallTable(lake, feed, "quarantine", SCHEMA)

    @cached_property
    def rows(self) -> Sequence[Quarantined]:
        return [Quarantined(**row) for row in self._table.read()]

    def open(self) -> list[Quarantined]:
        return [row for row in self.rows if row.state == "open"]

    def has_discarded(self, names: Collection[TableName]) -> bool:
        """Whether a person discarded rows that a table, under one of these names, cannot take."""
        discarded = (row for row in self.rows if (row.state, row.error_class) == ("discarded", BAD_VALUE))
        return any(TableName(row.database or "", row.table or "") in names for row in discarded)

    def unresolved(self) -> list[Quarantined]:
        """Return what could not be used so far, discarded or not."""
        return [row for row in self.rows if row.state in ("open", "discarded")]

    def count(self, state: State = "open") -> int:
        """Count the things in a state, including those without a row of their own."""
        return sum(row.count for row in self.rows if row.state == state)

    def replace(
        self, scope: Callable[[Quarantined], bool], rejected: Iterable[Rejected], now: datetime.datetime
    ) -> None:
        """Make `rejected` the open rows of a scope, in one commit; nothing is committed when nothing changes.

        Rows in the scope that are not among the rejected things become `replayed`. A rejected thing that is already
        open or discarded keeps its row and its state, whatever its message is now. A redelivered one is opened again,
        because it has to be checked again.
        """
        wanted = {_identity(each): each for each in map(storable, rejected)}
        known = {_identity(row) for row in self.unresolved()}
        rows: list[Quarantined] = []
        for row in self.rows:
            found_again = _identity(row) in wanted
            if row.state == "redelivered" and found_again:
                continue
            is_resolved = row.state != "replayed" and not found_again and scope(row)
            rows.append(changed(row, state="replayed", resolved_at=now) if is_resolved else row)
        added = (each for identity, each in wanted.items() if identity not in known)
        new = [Quarantined(**asdict(each), state="open", quarantined_at=now) for each in added]
        if rows != self.rows:
            self._table.write([*rows, *new], replacing=ALL)
        elif new:
            self._table.write(new)
        self.rows = [*rows, *new]

    def redeliver(self, messages: Mapping[str, str], now: datetime.datetime) -> None:
        """Set open rows with these ids to redelivered, in one commit; `messages` say by id where they came again."""
        state = {"state": "redelivered", "resolved_at": now}
        self._change("open", messages, lambda row: {**state, "message": messages[row.id]})

    def discard(self, ids: Collection[str], by: str, reason: str, now: datetime.datetime) -> list[Quarantined]:
        """Discard the open rows with these ids, in one commit; return them in their new state.

        Raises `ConcurrentRunError` when the table was changed since it was read."""
        given_up = {"state": "discarded", "resolved_at": now, "discarded_by": by, "discard_reason": reason}
        return self._change("open", ids, lambda _: given_up)

    def reopen(self, ids: Collection[str]) -> list[Quarantined]:
        """Open the discarded rows with these ids again; otherwise like `discard`."""
        nothing = dict.fromkeys(("resolved_at", "discarded_by", "discard_reason"))
        return self._change("discarded", ids, lambda _: {"state": "open", **nothing})

    def forget_replayed(self, before: datetime.datetime, *, dry_run: bool = False) -> int:
        """Remove the rows that became `replayed` before a moment, or only count them; return their number."""
        kept = [row for row in self.rows if row.state != "replayed" or (row.resolved_at or before) >= before]
        removed = len(self.rows) - len(kept)
        if removed and not dry_run:
            self._write(kept)
        return removed

    def _change(
        self, state: State, ids: Collection[str], values: Callable[[Quarantined], dict[str, Any]]
    ) -> list[Quarantined]:
        rows = [changed(row, **values(row)) if row.state == state and row.id in ids else row for row in self.rows]
        found = [row for row, before in zip(rows, self.rows, strict=True) if row is not before]
        if found:
            self._write(rows)
        return found

    def _write(self, rows: list[Quarantined]) -> None:
        self._table.write(rows, replacing=ALL)
        self.rows = rows


def discards(rows: Iterable[Quarantined]) -> Callable[[Rejected], bool]:
    """Return a predicate that is true for rejected things that a person discarded."""
    identities = {_identity(row) for row in rows if row.state == "discarded"}
    return lambda rejected: _identity(storable(rejected)) in identities


def storable(rejected: Rejected) -> Rejected:
    """Escape what cannot be encoded as UTF-8, so that a defect of the rejected thing cannot end the run."""
    texts = {name: getattr(rejected, name) for name in ("segment", "message", "database", "table")}
    escaped = {
        name: None if text is None else text.encode(errors="backslashreplace").decode() for name, text in texts.items()
    }
    return changed(rejected, **escaped)


def _identity(row: Rejected) -> tuple[str, int, str, bytes | None, int]:
    # The count is included: a row that stands for more things than before is another one.
    return row.segment, -1 if row.line is None else row.line, row.error_class, row.raw, row.count


@dataclass(frozen=True, slots=True)
class Decision:
    """A decision about a table, with the name that it had then. A `hold` keeps it as it is, for a `reason`, until a
    person releases it. A `rewrite` allows statements up to `commit_ts` that the policy would hold."""

    kind: Literal["hold", "rewrite"]
    incarnation: str
    database: str
    table: str
    decided_at: datetime.datetime
    decided_by: str | None = None
    reason: str | None = None
    commit_ts: int | None = None


class Decisions:
    """What people decided about tables, on which each run acts."""

    def __init__(self, lake: Lake, feed: str) -> None:
        self._table = SmallTable(lake, feed, "decisions", schema_of(Decision))

    def holds(self) -> list[Decision]:
        return [Decision(**row) for row in self._table.read() if row["kind"] == "hold"]

    def approved_upto(self, incarnation: str) -> int:
        """Return the commit-ts up to which a table's rewrites are allowed; 0 when none is."""
        of_table = (row for row in self._table.read() if (row["kind"], row["incarnation"]) == ("rewrite", incarnation))
        return max((row["commit_ts"] for row in of_table), default=BEGINNING)

    def add(self, decision: Decision) -> None:
        """Add a decision, which replaces one of its kind about the same table."""
        same = {"kind": [decision.kind], "incarnation": [decision.incarnation]}
        self._table.write([decision], replacing=same)

    def release(self, incarnation: str) -> None:
        """Remove the hold of a table."""
        self._table.write([], replacing={"kind": ["hold"], "incarnation": [incarnation]})
