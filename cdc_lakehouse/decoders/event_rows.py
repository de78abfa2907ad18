"""Events as they are collected one by one, column by column: what becomes an Arrow batch without a Python object for
each cell of a map."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

import pyarrow as pa

_TEXTS: Final = pa.map_(pa.string(), pa.string())
SCHEMA: Final = pa.schema([
    pa.field("feed_date", pa.string()),
    pa.field("schema_name", pa.string()),
    pa.field("table_name", pa.string()),
    pa.field("table_version", pa.int64()),
    pa.field("physical_partition", pa.int64()),
    pa.field("op", pa.string()),
    pa.field("commit_ts", pa.int64()),
    pa.field("before", _TEXTS),
    pa.field("after", _TEXTS),
    pa.field("segment", pa.string()),
    pa.field("line", pa.int64()),
])  # fmt: skip
COLUMNS: Final = (
    "feed_date string, schema_name string, table_name string, table_version bigint, physical_partition bigint, "
    "op string, commit_ts bigint, before map<string,string>, after map<string,string>, segment string, line bigint"
)
"""The same, as Spark has it."""


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
    """Rows of `events`; `take` empties it."""

    def __init__(self) -> None:
        self._clear()

    def _clear(self) -> None:
        self._places: list[tuple[str | None, str, str, str, int, str, int]] = []
        self._before = _Maps()
        self._after = _Maps()

    def __len__(self) -> int:
        return len(self._places)

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
        self._places.append((date, database, table, op, commit_ts, segment, line))
        self._before.add(before)
        self._after.add(after)

    def take(self) -> pa.RecordBatch:
        dates, databases, tables, ops, commit_ts, segments, lines = zip(*self._places, strict=True)
        count = len(self._places)
        columns = [
            dates, databases, tables, pa.repeat(0, count), pa.nulls(count), ops, commit_ts, self._before.array(),
            self._after.array(), segments, lines,
        ]  # fmt: skip
        arrays = [
            each if isinstance(each, pa.MapArray)
            else each.cast(field.type) if isinstance(each, pa.Array)
            else pa.array(each, field.type)
            for each, field in zip(columns, SCHEMA, strict=True)
        ]  # fmt: skip
        self._clear()
        return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)
