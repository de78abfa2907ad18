"""The `signals` table: what messages of topics tell in addition to rows, each batch's once.

A `statement` is a DDL. `columns` are a table's columns as the first row with them in a batch and partition shows them.
A `position` is the progress of a partition in a batch: the greatest commit-ts, the watermark, and the end of the last
complete transaction. An `option conflict` says that messages contradict an option of their format. `damage` counts, by
column, a table's changes whose text was damaged before it arrived. `left out` names a table with rows that the feed did
not take, and the first batch that had such rows."""

from __future__ import annotations

import bisect
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal

import pyarrow as pa
from pyiceberg.expressions import AlwaysTrue

from cdc_lakehouse.changelog.observed_schema import ObservedColumns, Statement, renamed_from
from cdc_lakehouse.changelog.schema import TableName
from cdc_lakehouse.decoders.partition_summary import OptionConflict, Summaries, origin_of
from cdc_lakehouse.lake.catalog import Lake
from cdc_lakehouse.lake.tables.small_table import SmallTable, equal, schema_of

OPTION_CONFLICT_ADVICE: Final = (
    "Mend the feed's configuration, then run the dates again: rows were read with the wrong option."
)


@dataclass(frozen=True, slots=True)
class Signal:
    """One row of the table. `text` is the statement, or as JSON a table's columns and key, the reason and the number of
    messages of an option conflict, or the columns of a damage."""

    batch: int
    kind: Literal["statement", "columns", "position", "option conflict", "damage", "left out"]
    topic: str
    partition: int
    offset: int | None
    commit_ts: int
    watermark: int | None = None
    ended_ts: int | None = None
    database: str | None = None
    table: str | None = None
    text: str | None = None
    time_ms: int | None = None
    """When the source executed a statement, in milliseconds since 1970."""


SCHEMA: Final = schema_of(Signal, partition=pa.int32())


@dataclass(frozen=True, slots=True)
class Position:
    """The progress of a partition. Rows after `ended_ts` belong to an incomplete transaction; it is None when messages
    do not mark transactions."""

    last_ts: int
    watermark: int
    ended_ts: int | None


class Signals:
    """The signals of one feed, read once and updated with what this object writes."""

    def __init__(self, lake: Lake, feed: str) -> None:
        self._table = SmallTable(lake, feed, "signals", SCHEMA)
        self._rows: list[Signal] | None = None

    @property
    def rows(self) -> Sequence[Signal]:
        if self._rows is None:
            self._rows = [Signal(**row) for row in self._table.read()]
        return self._rows

    def write(self, batch: int, finds: Summaries) -> None:
        """Write the signals of a batch, in place of its earlier ones."""
        others = [row for row in self.rows if row.batch != batch]
        new = list(_with_news(batch, signals_of(batch, finds), others))
        known = {row for row in self.rows if row.batch == batch}
        if known != set(new):
            self._table.write(new, replacing=equal("batch", batch) if known else None)
        self._rows = [*others, *new]

    def outdated(self, before: int) -> list[Signal]:
        """Return the positions of batches before one that a single position of each partition can replace."""
        rows = [row for row in self.rows if row.kind == "position" and row.batch < before]
        count = Counter((row.topic, row.partition) for row in rows)
        return [row for row in rows if count[row.topic, row.partition] > 1]

    def summarize(self, before: int) -> None:
        """Replace the outdated positions by one for each partition, in one commit; those batches must not be decoded
        again."""
        outdated = self.outdated(before)
        if not outdated:
            return
        places = {(row.topic, row.partition): row.batch for row in sorted(outdated, key=lambda row: row.batch)}
        found = _positions(outdated)
        summaries = [
            Signal(
                batch, "position", *place, None, found[place].last_ts,
                found[place].watermark or None, found[place].ended_ts,
            )
            for place, batch in places.items()
        ]  # fmt: skip
        gone = set(outdated)
        self._rows = [*(row for row in self.rows if row not in gone), *summaries]
        self._table.write(self._rows, replacing=AlwaysTrue())

    def last_ts(self, before: int) -> int:
        """Return the greatest commit-ts of the batches before one; 0 when there is none."""
        return max((row.commit_ts for row in self.rows if row.batch < before), default=0)

    def watermarks(self, before: int) -> Mapping[tuple[str, int], int]:
        """Return the greatest watermark of each (topic, partition) in the batches before one."""
        found: dict[tuple[str, int], int] = {}
        for row in self.rows:
            if row.batch < before and row.watermark is not None:
                place = (row.topic, row.partition)
                found[place] = max(row.watermark, found.get(place, 0))
        return found

    def positions(self) -> Mapping[tuple[str, int], Position]:
        """Return the position of each (topic, partition) that has delivered something."""
        found = _positions(self.rows)
        # A statement commits the open transaction.
        for row in self.rows:
            place = found.get((row.topic, row.partition))
            if row.kind == "statement" and place is not None and place.ended_ts is not None:
                found[row.topic, row.partition] = replace(place, ended_ts=max(place.ended_ts, row.commit_ts))
        return found

    def tables(self, topic: str) -> set[TableName]:
        """Return the tables of which a topic has delivered rows or statements. A RENAME names the new table, but comes
        to the topic of the old one."""
        found: set[TableName] = set()
        for row in self.rows:
            if row.topic == topic and row.kind in ("statement", "columns") and row.table:
                name = TableName(row.database or "", row.table)
                before = None if row.kind == "columns" else renamed_from(name, row.text or "")
                found.add(before or name)
        return found

    def statements(self) -> set[tuple[str, str, int]]:
        """Return the database, table and commit-ts of each statement."""
        rows = (row for row in self.rows if row.kind == "statement")
        return {(row.database or "", row.table or "", row.commit_ts) for row in rows}

    def option_conflicts(self) -> list[OptionConflict]:
        """Return the option conflicts, sorted by topic, partition and offset."""
        found: list[OptionConflict] = []
        for row in self.rows:
            if row.kind == "option conflict":
                reason, count = json.loads(row.text or '["", 0]')
                found.append(OptionConflict(row.topic, row.partition, row.offset or 0, reason, count))
        return sorted(found, key=lambda conflict: (conflict.topic, conflict.partition, conflict.offset))

    def damage(self) -> Mapping[TableName, Mapping[str, int]]:
        """Return the number of changes with damaged text, by table and column."""
        found: dict[TableName, Counter[str]] = {}
        for row in self.rows:
            if row.kind == "damage":
                name = TableName(row.database or "", row.table or "")
                found.setdefault(name, Counter()).update(json.loads(row.text or "{}"))
        return found

    def left_out(self) -> Mapping[TableName, int]:
        """Return the tables with rows that the feed did not take, and the first batch that had such rows."""
        rows = sorted((row for row in self.rows if row.kind == "left out"), key=lambda row: -row.batch)
        return {TableName(row.database or "", row.table or ""): row.batch for row in rows}

    def schema_signals(self) -> Iterator[Statement | ObservedColumns]:
        """Yield statements and observed columns in the form that the DDL log takes."""
        for row in self.rows:
            origin = origin_of(row.topic, row.partition, row.offset or 0, row.commit_ts)
            if row.kind == "statement":
                yield Statement(row.commit_ts, row.database or "", row.table or "", row.text or "", origin, row.time_ms)
            elif row.kind == "columns":
                columns, key = json.loads(row.text or "[[], null]")
                yield ObservedColumns(
                    row.commit_ts,
                    row.database or "",
                    row.table or "",
                    tuple((name, kind) for name, kind in columns),
                    None if key is None else tuple(key),
                    origin,
                )


def _positions(rows: Iterable[Signal]) -> dict[tuple[str, int], Position]:
    found: dict[tuple[str, int], Position] = {}
    for row in sorted(rows, key=lambda row: row.batch):
        if row.kind == "position":
            known = found.get((row.topic, row.partition), Position(0, 0, None))
            found[row.topic, row.partition] = Position(
                max(row.commit_ts, known.last_ts),
                max(row.watermark or 0, known.watermark),
                known.ended_ts if row.ended_ts is None else row.ended_ts,
            )
    return found


def _with_news(batch: int, signals: Iterable[Signal], others: Sequence[Signal]) -> Iterator[Signal]:
    """Leave out columns that repeat the previous ones of their topic, in this batch or an earlier one, with no
    statement in between, and tables that were already left out. Otherwise every partition of every batch would describe
    every table."""
    signals = list(signals)
    stated = sorted(row.commit_ts for row in (*others, *signals) if row.kind == "statement")
    seen: dict[tuple[object, ...], list[int]] = {}
    for row in others:
        if row.kind == "columns" and row.batch < batch:
            bisect.insort(seen.setdefault((row.topic, row.database, row.table, row.text), []), row.commit_ts)
    left_out = {(row.database, row.table) for row in others if row.kind == "left out" and row.batch < batch}
    for row in sorted(signals, key=lambda row: row.commit_ts):
        if row.kind == "left out":
            if (row.database, row.table) in left_out:
                continue
            left_out.add((row.database, row.table))
        if row.kind == "columns":
            same = seen.setdefault((row.topic, row.database, row.table, row.text), [])
            place = bisect.bisect_right(same, row.commit_ts)
            if place and bisect.bisect_right(stated, row.commit_ts) == bisect.bisect_left(stated, same[place - 1]):
                continue
            same.insert(place, row.commit_ts)
        yield row


def signals_of(batch: int, finds: Summaries) -> Iterable[Signal]:
    for (topic, partition, _), found in sorted(finds.items()):
        # Without a row or a statement the partition has not advanced.
        last_ts = found.last_ts if found.last_ts > found.seed else 0
        yield Signal(batch, "position", topic, partition, None, last_ts, found.watermark, found.ended_ts)
        if (conflict := found.option_conflict) is not None:
            text = json.dumps([conflict.reason, conflict.count], ensure_ascii=False)
            yield Signal(batch, "option conflict", topic, partition, conflict.offset, 0, text=text)
        for offset, each in found.statements:
            yield Signal(
                batch, "statement", topic, partition, offset, each.commit_ts,
                database=each.database, table=each.table, text=each.text, time_ms=each.time_ms,
            )  # fmt: skip
        for offset, observed in found.observed.values():
            text = json.dumps([observed.columns, observed.key], ensure_ascii=False)
            yield Signal(
                batch, "columns", topic, partition, offset, observed.commit_ts,
                database=observed.database, table=observed.table, text=text,
            )  # fmt: skip
        for (database, table), columns in sorted(found.lossy.items()):
            text = json.dumps(columns, ensure_ascii=False)
            yield Signal(
                batch, "damage", topic, partition, None, found.last_ts, database=database, table=table, text=text
            )
        for database, table in sorted(found.left_out):
            yield Signal(batch, "left out", topic, partition, None, 0, database=database, table=table)
