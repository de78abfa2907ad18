"""Numbers about a feed's tables that tell whether they are right. PyIceberg only: no JVM is started for a check."""

from __future__ import annotations

import json
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation, Snapshot

from cdc_lakehouse.lake.catalog import Lake, machinery
from cdc_lakehouse.lake.current import KEY, KEYS_TOUCHED, row_count
from cdc_lakehouse.lake.segments import DECODED, Segments


@dataclass(frozen=True, slots=True)
class Duplicates:
    """Keys that stand more than once in a table, with a few of them; `rows` were looked at."""

    rows: int
    keys: int
    examples: tuple[str, ...]


def duplicate_keys(table: Table) -> Duplicates:
    """Reads the key's columns alone."""
    key: list[str] = json.loads(table.properties.get(KEY, "[]"))
    if not key or table.current_snapshot() is None:
        return Duplicates(0, 0, ())
    columns = table.scan(selected_fields=tuple(key)).to_arrow().select(key)
    # By position: a column's name can hold what the group-by would take for something else.
    plain = pa.table({f"k{n}": column for n, column in enumerate(columns.columns)})
    counts = plain.group_by(plain.column_names).aggregate([([], "count_all")])
    double = counts.filter(pc.field("count_all") > 1)
    examples = tuple(str(tuple(row.values())[: len(key)]) for row in double.slice(0, 5).to_pylist())
    return Duplicates(columns.num_rows, double.num_rows, examples)


@dataclass(frozen=True, slots=True)
class Conservation:
    """Rows of a table before and after its last batch, and what the batch wrote. `touched` are the keys of which it
    could delete rows, None where that is any row."""

    before: int
    written: int
    after: int
    touched: int | None

    @property
    def deleted(self) -> int:
        return self.before + self.written - self.after

    @property
    def holds(self) -> bool:
        """No row is lost: only those of touched keys went. No row is there twice: none that was written is missing."""
        return self.deleted >= 0 and (self.touched is None or self.deleted <= self.touched)


def conservation(table: Table) -> Conservation:
    """From the summaries of the snapshots that the last batch made."""
    touched = table.properties.get(KEYS_TOUCHED, "")
    head = snapshot = table.current_snapshot()
    written = 0
    while snapshot is not None and _batch(head) == _batch(snapshot):
        if snapshot.summary is not None and snapshot.summary.operation == Operation.APPEND:
            written += int(snapshot.summary.additional_properties.get("added-records", "0"))
        parent = snapshot.parent_snapshot_id
        snapshot = None if parent is None else table.snapshot_by_id(parent)
    return Conservation(row_count(snapshot), written, row_count(head), int(touched) if touched else None)


def _batch(snapshot: Snapshot | None) -> tuple[str | None, str | None]:
    totals = {} if snapshot is None or snapshot.summary is None else snapshot.summary.additional_properties
    return totals.get("cdc.batch"), totals.get("cdc.checkpoint-ts")


@dataclass(frozen=True, slots=True)
class EventCounts:
    """Events that the segments gave, and events that are there."""

    of_segments: int
    in_table: int


def event_counts(lake: Lake, feed: str) -> EventCounts:
    table = lake.load(machinery(feed, "events"))
    decoded = (segment for segment in Segments(lake, feed).rows.values() if segment.state == DECODED)
    rows = 0 if table is None else row_count(table.current_snapshot())
    return EventCounts(sum(segment.events or 0 for segment in decoded), rows)
