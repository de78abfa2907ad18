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
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Final, Literal

import pyarrow as pa

from cdc_lakehouse.changelog.history import LogEntry, renamed_from
from cdc_lakehouse.changelog.schema import TableName
from cdc_lakehouse.decoders.arrow import pc
from cdc_lakehouse.decoders.topic_reader import OptionConflict, Summaries, origin_of
from cdc_lakehouse.lake.catalog import Lake
from cdc_lakehouse.lake.tables.small_table import ALL, SmallTable, schema_of

OPTION_CONFLICT_ADVICE: Final = (
    "Correct the feed's configuration, then run the dates again: rows were read with the wrong option."
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
_PLACE: Final = ["topic", "partition"]


@dataclass(frozen=True, slots=True)
class Position:
    """The progress of a partition. Rows after `ended_ts` are of an open transaction; None when messages mark none."""

    last_ts: int
    watermark: int
    ended_ts: int | None


class Signals:
    """The signals of one feed, read once and updated with what this object writes."""

    def __init__(self, lake: Lake, feed: str) -> None:
        self._table = SmallTable(lake, feed, "signals", SCHEMA)

    @cached_property
    def _stored(self) -> pa.Table:
        return self._table.scan()

    @cached_property
    def rows(self) -> Sequence[Signal]:
        """All signals but the positions."""
        return [Signal(**row) for row in self._stored.filter(pc.field("kind") != "position").to_pylist()]

    @cached_property
    def position_rows(self) -> pa.Table:
        """The positions, with the columns of `SCHEMA`: each batch adds one of each partition, so none is an object."""
        return self._stored.filter(pc.field("kind") == "position")

    def write(self, batch: int, finds: Summaries) -> None:
        """Write the signals of a batch, in place of its earlier ones."""
        others = [row for row in self.rows if row.batch != batch]
        new = list(_with_news(batch, signals_of(batch, finds), others))
        known = self.position_rows.filter(pc.field("batch") == batch).to_pylist()
        before = {*(row for row in self.rows if row.batch == batch), *(Signal(**row) for row in known)}
        if before != set(new):
            self._table.write(new, replacing={"batch": [batch]} if before else None)
        kept = self.position_rows.filter(pc.field("batch") != batch)
        self.position_rows = pa.concat_tables([kept, _table(row for row in new if row.kind == "position")])
        self.rows = [*others, *(row for row in new if row.kind != "position")]

    def outdated(self, before: int) -> int:
        """Count the positions of batches before one that a single position of each partition can replace."""
        rows = self.position_rows.filter(pc.field("batch") < before)
        counts = rows.group_by(_PLACE).aggregate([([], "count_all")])["count_all"]
        return pc.sum(counts.filter(pc.greater(counts, 1))).as_py() or 0

    def summarize(self, before: int) -> None:
        """Replace the outdated positions by one a partition, in one commit: those batches are not decoded again."""
        if not self.outdated(before):
            return
        older = pc.field("batch") < before
        summaries = _table(
            Signal(batch, "position", *place, None, found.last_ts, found.watermark or None, found.ended_ts)
            for place, (batch, found) in _positions(self.position_rows.filter(older)).items()
        )
        self.position_rows = pa.concat_tables([self.position_rows.filter(~older), summaries])
        self._table.write(pa.concat_tables([_table(self.rows), self.position_rows]), replacing=ALL)

    def last_ts(self, before: int) -> int:
        """Return the greatest commit-ts of the batches before one; 0 when there is none."""
        position = pc.max(self.position_rows.filter(pc.field("batch") < before)["commit_ts"]).as_py() or 0
        return max([position, *(row.commit_ts for row in self.rows if row.batch < before)])

    def positions_before(self, batch: int) -> Mapping[tuple[str, int], tuple[int, int]]:
        """Return the greatest commit-ts and the greatest watermark of each (topic, partition) before a batch."""
        found = _positions(self.position_rows.filter(pc.field("batch") < batch))
        return {place: (position.last_ts, position.watermark) for place, (_, position) in found.items()}

    def positions(self) -> Mapping[tuple[str, int], Position]:
        """Return the position of each (topic, partition) that has delivered something."""
        found = {place: position for place, (_, position) in _positions(self.position_rows).items()}
        # A statement commits the open transaction.
        for row in self.rows:
            place = found.get((row.topic, row.partition))
            if row.kind == "statement" and place is not None and place.ended_ts is not None:
                found[row.topic, row.partition] = replace(place, ended_ts=max(place.ended_ts, row.commit_ts))
        return found

    def tables(self, topic: str) -> set[TableName]:
        """Return the folded names of the tables of which a topic has delivered rows or statements. A RENAME names the
        new table, but comes to the topic of the old one, which it names as it was typed."""
        found: set[TableName] = set()
        for row in self.rows:
            if row.topic == topic and row.kind in ("statement", "columns") and row.table:
                name = TableName(row.database or "", row.table)
                before = None if row.kind == "columns" else renamed_from(name, row.text or "")
                found.add((before or name).folded)
        return found

    def statements(self) -> set[tuple[str, str, int]]:
        """Return the database, table and commit-ts of each statement."""
        rows = (row for row in self.rows if row.kind == "statement")
        return {(row.database or "", row.table or "", row.commit_ts) for row in rows}

    def option_conflicts(self) -> list[OptionConflict]:
        """Return the option conflicts, sorted by topic, partition and offset."""
        found = [
            OptionConflict(row.topic, row.partition, row.offset or 0, *json.loads(row.text or '["", 0]'))
            for row in self.rows
            if row.kind == "option conflict"
        ]
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

    def schema_signals(self) -> Iterator[LogEntry]:
        """Yield statements and observed columns in the form that the DDL log takes."""
        for row in (row for row in self.rows if row.kind in ("statement", "columns")):
            origin = origin_of(row.topic, row.partition, row.offset or 0, row.commit_ts)
            entry = LogEntry(row.commit_ts, row.database or "", row.table or "", origin, row.text or "", row.time_ms)
            if row.kind == "columns":
                columns, key = json.loads(row.text or "[[], null]")
                key = None if key is None else tuple(key)
                entry = replace(entry, text=None, columns=tuple((name, kind) for name, kind in columns), key=key)
            yield entry


def _table(rows: Iterable[Signal]) -> pa.Table:
    return pa.Table.from_pylist([asdict(row) for row in rows], SCHEMA)


def _positions(rows: pa.Table) -> dict[tuple[str, int], tuple[int, Position]]:
    """Return the last batch and the position of each (topic, partition) with rows."""
    columns = [("batch", "max"), ("commit_ts", "max"), ("watermark", "max"), ("ended_ts", "last")]
    groups = rows.sort_by("batch").group_by(_PLACE, use_threads=False).aggregate(columns)
    return {
        (topic, partition): (batch, Position(last_ts, watermark or 0, ended_ts))
        for topic, partition, batch, last_ts, watermark, ended_ts in zip(*groups.to_pydict().values(), strict=True)
    }


def _with_news(batch: int, signals: Iterable[Signal], others: Sequence[Signal]) -> Iterator[Signal]:
    """Leave out columns that repeat the previous ones of their topic, in this batch or an earlier one, with no
    statement in between, and tables already left out. Otherwise each partition of each batch would describe all."""
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
        yield Signal(batch, "position", topic, partition, None, found.last_ts, found.watermark, found.ended_ts)
        if (conflict := found.option_conflict) is not None:
            text = json.dumps([conflict.reason, conflict.count], ensure_ascii=False)
            yield Signal(batch, "option conflict", topic, partition, conflict.offset, 0, text=text)
        for offset, each in found.statements:
            place = (topic, partition, offset, each.commit_ts)
            yield Signal(batch, "statement", *place, None, None, each.database, each.table, each.text, each.time_ms)
        for offset, each in found.observed.values():
            text = json.dumps([each.columns, each.key], ensure_ascii=False)
            place = (topic, partition, offset, each.commit_ts)
            yield Signal(batch, "columns", *place, None, None, each.database, each.table, text)
        for (database, table), columns in sorted(found.lossy.items()):
            text = json.dumps(columns, ensure_ascii=False)
            yield Signal(batch, "damage", topic, partition, None, found.last_ts, None, None, database, table, text)
        for database, table in sorted(found.left_out):
            yield Signal(batch, "left out", topic, partition, None, 0, database=database, table=table)
