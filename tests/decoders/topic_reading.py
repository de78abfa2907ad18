"""Records of topics, made by hand and read as a task reads them, without Spark and without a broker."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa

from cdc_lakehouse.changelog.positions import END_MS
from cdc_lakehouse.decoders.messages.registry import format_of
from cdc_lakehouse.decoders.partition_summary import Summaries
from cdc_lakehouse.decoders.topic_reader import RECORDS, TopicFormat, TopicReader
from tests.kit import duckdb_sql

Partitions = Sequence[Sequence[bytes | None]]


def image_of(text: str | None) -> dict[str, str | None] | None:
    return None if text is None else json.loads(text)


class Reading:
    """A topic's partitions, read in batches: a batch goes, in each partition, up to an offset of its own. The commit-ts
    go on from batch to batch as in a lake. `at_once` records are handed over together, those of partitions one after
    the other or `by_turns`; without `by_columns` the decoder reads each of them."""

    def __init__(
        self,
        format_name: str,
        *,
        by_columns: bool = True,
        by_turns: bool = False,
        at_once: int = 1000,
        **options: Any,
    ) -> None:
        self._name, self._options = format_name, options
        self._by_columns, self._by_turns, self._at_once = by_columns, by_turns, at_once
        self.events: list[dict[str, Any]] = []
        self.summaries: Summaries = {}
        self._ends: list[int] = []
        self._batch, self._last_ts = 0, 0
        self.landed_ms, self.record_ms, self.has_record_times = END_MS, 0, True

    def read(self, partitions: Partitions, ends: Sequence[int]) -> None:
        starts = self._ends or [0] * len(partitions)
        self._batch += 1
        seeds = {self._batch: self._last_ts}
        topic_format = TopicFormat(
            self._name,
            self._options,
            seeds,
            {self._batch: {}},
            lambda *_: True,
            {self._batch: self.landed_ms},
            has_record_times=self.has_record_times,
            ignores_tombstones=True,
        )
        reader = TopicReader(topic_format, duckdb_sql.connection())
        if not self._by_columns:
            reader._columns = None
        window = format_of(self._name).messages_before()
        rows = [
            ("2026-01-01", "t", number, offset, self.record_ms, None, values[offset], "s", self._batch, offset < start)
            for number, (values, start, end) in enumerate(zip(partitions, starts, ends, strict=True))
            for offset in range(max(0, start - window), end)
        ]
        if self._by_turns:
            rows.sort(key=lambda row: row[RECORDS.get_field_index("offset")])
        for found in self._through(reader, rows):
            self.events += found.to_pylist()
        self.summaries |= reader.summaries
        self._last_ts = max([self._last_ts, *(summary.last_ts for summary in reader.summaries.values())])
        self._ends = list(ends)

    def _through(self, reader: TopicReader, rows: list[tuple[Any, ...]]) -> Iterator[pa.RecordBatch]:
        for start in range(0, len(rows), self._at_once):
            columns = zip(*rows[start : start + self._at_once], strict=True)
            arrays = [pa.array(cells, each.type) for cells, each in zip(columns, RECORDS, strict=True)]
            yield from reader.read(pa.RecordBatch.from_arrays(arrays, schema=RECORDS))
        yield from reader.rest()

    def changes(self, partition_of: Any) -> dict[Any, list[tuple[Any, ...]]]:
        """Of each partition, told from a row, what happened in the order of the commit-ts."""
        found: dict[Any, list[tuple[Any, ...]]] = {}
        for event in sorted(self.events, key=lambda event: event["commit_ts"]):
            before, after = image_of(event["before"]), image_of(event["after"])
            row = after or before
            change = (event["op"], event["table_name"], before, after)
            found.setdefault(partition_of(row), []).append(change)
        return found

    @property
    def bad(self) -> int:
        return sum(
            each.count for summary in self.summaries.values() for listed in summary.bad.values() for each in listed
        )
