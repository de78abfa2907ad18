"""The event: its columns, and what collects events one by one. Nowhere else are these columns listed.

    feed_date           the segment's feed date; null for synthetic events
    schema_name         the database in the source
    table_name          the table in the source
    table_version       commit-ts (TSO) of the version of the table that a sink file is of; 0 where messages are read
    physical_partition  TiDB's id of the partition whose file it is, else null
    op                  I, U or D
    commit_ts           TSO of the change
    commit_time         the time in commit_ts, UTC, milliseconds
    before, after       the row's texts by column, as the source has them; null where the event has no such row
    segment             the segment that the event came in
    line                the record's number in a file, from 1; a message's offset in its partition
    synthetic           whether this product wrote the event, because a DDL moved the row

Decoders of files give the columns of `DECODED`, in tasks: an event, or a record that cannot be used.

    file                what `Decoded.segments` has by this name: the segment's path
    line, schema_name … after   as above; the names are those that the record itself says
    problem             a key of `problems.PROBLEMS` where the record cannot be used, else null
    value               the record's bytes; null where a decoder has them of unusable records only, and it is not one"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

import pyarrow as pa

_TEXTS: Final = pa.map_(pa.string(), pa.string())
_SPARK_TYPES: Final[Mapping[pa.DataType, str]] = {
    pa.string(): "string", pa.int64(): "bigint", pa.binary(): "binary", pa.timestamp("us", "UTC"): "timestamp",
    pa.bool_(): "boolean",
    _TEXTS: "map<string,string>",
}  # fmt: skip

SYNTHETIC: Final = "synthetic"

EVENTS: Final = pa.schema([
    ("feed_date", pa.string()),
    ("schema_name", pa.string()),
    ("table_name", pa.string()),
    ("table_version", pa.int64()),
    ("physical_partition", pa.int64()),
    ("op", pa.string()),
    ("commit_ts", pa.int64()),
    ("commit_time", pa.timestamp("us", "UTC")),
    ("before", _TEXTS),
    ("after", _TEXTS),
    ("segment", pa.string()),
    ("line", pa.int64()),
    (SYNTHETIC, pa.bool_()),
])  # fmt: skip
"""The columns of the table `events`."""

NEW_EVENTS: Final = pa.schema([each for each in EVENTS if each.name not in ("commit_time", SYNTHETIC)])
"""Events before they are written: `commit_time` follows from `commit_ts`, and those of decoders are not synthetic."""

DECODED: Final = pa.schema(
    [
        ("file", pa.string()),
        *(EVENTS.field(name) for name in ("line", "schema_name", "table_name", "op", "commit_ts", "before", "after")),
        ("problem", pa.string()),
        ("value", pa.binary()),
    ]
)
"""What decoders of files give: see the module."""


def spark_columns(schema: pa.Schema) -> str:
    """The columns of a schema as Spark declares them: `name type, …`."""
    return ", ".join(f"{each.name} {_SPARK_TYPES[each.type]}" for each in schema)


@dataclass(slots=True)
class _Maps:
    names: list[str] = field(default_factory=list[str])
    texts: list[str | None] = field(default_factory=list["str | None"])
    ends: list[int] = field(default_factory=lambda: [0])
    absent: list[bool] = field(default_factory=list[bool])

    def add(self, row: Mapping[str, str | None] | None) -> None:
        self.absent.append(row is None)
        if row is not None:
            self.names.extend(row)
            self.texts.extend(row.values())
        self.ends.append(len(self.names))

    def array(self) -> pa.Array:
        names, texts = pa.array(self.names, pa.string()), pa.array(self.texts, pa.string())
        mask = pa.array(self.absent) if any(self.absent) else None
        return pa.MapArray.from_arrays(pa.array(self.ends, pa.int32()), names, texts, mask=mask)


class EventRows:
    """Collects the columns of `NEW_EVENTS`, without a Python object for each cell of a map; `take` empties it."""

    def __init__(self) -> None:
        self._clear()

    def _clear(self) -> None:
        self._cells: list[tuple[str | None, str, str, str, int, str, int]] = []
        self._before = _Maps()
        self._after = _Maps()

    def __len__(self) -> int:
        return len(self._cells)

    def add(
        self,
        date: str | None,
        database: str,
        table: str,
        op: str,
        commit_ts: int,
        before: Mapping[str, str | None] | None,
        after: Mapping[str, str | None] | None,
        segment: str,
        line: int,
    ) -> None:
        self._cells.append((date, database, table, op, commit_ts, segment, line))
        self._before.add(before)
        self._after.add(after)

    def take(self) -> pa.RecordBatch:
        dates, databases, tables, ops, commit_ts, segments, lines = zip(*self._cells, strict=True)
        count = len(self._cells)
        columns = [
            dates, databases, tables, pa.repeat(0, count), pa.nulls(count), ops, commit_ts, self._before.array(),
            self._after.array(), segments, lines,
        ]  # fmt: skip
        arrays = [
            cells if isinstance(cells, pa.MapArray)
            else cells.cast(column.type) if isinstance(cells, pa.Array)
            else pa.array(cells, column.type)
            for cells, column in zip(columns, NEW_EVENTS, strict=True)
        ]  # fmt: skip
        self._clear()
        return pa.RecordBatch.from_arrays(arrays, schema=NEW_EVENTS)
