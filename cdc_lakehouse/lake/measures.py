"""Numbers about a feed's tables that tell whether they are right. PyIceberg only: no JVM is started for a check."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.table import Table

from cdc_lakehouse.lake.catalog import Lake, machinery
from cdc_lakehouse.lake.current import row_count
from cdc_lakehouse.lake.names import Identifier
from cdc_lakehouse.lake.segments import DECODED, Segments


@dataclass(frozen=True, slots=True)
class Duplicates:
    """Keys that stand more than once in a table, with a few of them; `rows` were looked at."""

    rows: int
    keys: int
    examples: tuple[str, ...]


def duplicate_keys(lake: Lake, identifier: Identifier, key: Sequence[str]) -> Duplicates:
    """Reads the key's columns alone."""
    table = lake.load(identifier)
    if table is None or not key:
        return Duplicates(0, 0, ())
    # By position: a column's name can hold what the group-by would take for something else.
    columns = table.scan(selected_fields=tuple(key)).to_arrow().select(list(key))
    plain = pa.table({f"k{n}": column for n, column in enumerate(columns.columns)})
    counts = plain.group_by(plain.column_names).aggregate([([], "count_all")])
    double = counts.filter(pc.greater(counts["count_all"], 1))
    examples = tuple(str(tuple(row.values())[: len(key)]) for row in double.slice(0, 5).to_pylist())
    return Duplicates(columns.num_rows, double.num_rows, examples)


@dataclass(frozen=True, slots=True)
class EventCounts:
    """Events that the segments gave, and events that are there."""

    of_segments: int
    in_table: int


def event_counts(lake: Lake, feed: str) -> EventCounts:
    table = lake.load(machinery(feed, "events"))
    decoded = (segment for segment in Segments(lake, feed).rows.values() if segment.state == DECODED)
    return EventCounts(sum(segment.events or 0 for segment in decoded), _rows(table))


def _rows(table: Table | None) -> int:
    return 0 if table is None else row_count(table)
