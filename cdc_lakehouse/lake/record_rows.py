"""Messages of topics as rows of `records`: nothing is read into them, bytes stay bytes."""

from __future__ import annotations

import datetime
import zoneinfo
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa

from cdc_lakehouse.config import DateSeparator
from cdc_lakehouse.sources.kafka import Headers, Messages

COLUMNS: Final = (
    "feed_date string, topic string, `partition` int, `offset` bigint, `timestamp` timestamp, timestamp_type string, "
    "key binary, value binary, headers array<struct<key: string, value: binary>>, size int, segment string, "
    "batch bigint"
)
"""In Spark's words. `size` is the bytes of key and value."""

DATE: Final = "feed_date"
_HEADERS: Final = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
_TIMESTAMP: Final = pa.timestamp("us", "UTC")
_TYPES: Final = (None, "CreateTime", "LogAppendTime")
"""Kafka's names of the client's numbers."""
_BYTES_AT_ONCE: Final = 64 << 20
"""What one batch of rows may hold, but for a message that is larger by itself: the JVM has it in memory."""
_WHOLE_MINUTES_SINCE: Final = 100_000_000
"""1973, in seconds: from then on every zone is some minutes off UTC, and changes at the full minute."""
_LAST_SECOND: Final = 253_370_764_800
"""The year 9999 begins: beyond it a calendar here has no dates."""
_DATE_LENGTH: Final[dict[DateSeparator, int]] = {"year": 4, "month": 7, "day": 10}


@dataclass(frozen=True)
class RecordRows:
    """Makes the rows of a batch. Dates are those of the timestamps in `time_zone`, None where there is none."""

    time_zone: str
    date_separator: DateSeparator
    batch: int

    def of(self, messages: Messages) -> Iterator[pa.RecordBatch]:
        """The rows, in the columns of `COLUMNS`."""
        first = taken = 0
        for position, size in enumerate(messages.sizes):
            if taken + size > _BYTES_AT_ONCE and position > first:
                yield self._rows(messages, slice(first, position))
                first, taken = position, 0
            taken += size
        yield self._rows(messages, slice(first, None))

    def _rows(self, messages: Messages, part: slice) -> pa.RecordBatch:
        offsets = messages.offsets[part]
        types, times = np.array(messages.timestamps[part], dtype=np.int64).T
        dated = (types > 0) & (times >= 0) & (times < _LAST_SECOND * 1000)
        count, partition = len(offsets), messages.range.partition
        columns = {
            DATE: self._dates(times // 1000, dated),
            "topic": _constant(partition.topic, pa.string(), count),
            "partition": _constant(partition.number, pa.int32(), count),
            "offset": pa.array(offsets, pa.int64()),
            "timestamp": pa.array(times * 1000, pa.int64(), mask=~dated).view(_TIMESTAMP),
            "timestamp_type": _chosen(_TYPES, types),
            "key": pa.array(messages.keys[part], pa.binary()),
            "value": pa.array(messages.values[part], pa.binary()),
            "headers": _headers(messages.headers[part]),
            "size": pa.array(messages.sizes[part], pa.int32()),
            "segment": _constant(messages.range.segment, pa.string(), count),
            "batch": _constant(self.batch, pa.int64(), count),
        }
        return pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))

    def _dates(self, seconds: np.ndarray[Any, Any], dated: np.ndarray[Any, Any]) -> pa.Array:
        length = _DATE_LENGTH.get(self.date_separator)
        if length is None or not dated.any():
            return pa.nulls(len(seconds), pa.string())
        step = 60 if seconds[dated].min() >= _WHOLE_MINUTES_SINCE else 1
        moments, which = np.unique(np.where(dated, seconds // step, -1), return_inverse=True)
        zone = zoneinfo.ZoneInfo(self.time_zone)
        names = [
            None if moment < 0 else datetime.datetime.fromtimestamp(moment * step, zone).date().isoformat()[:length]
            for moment in moments.tolist()
        ]
        return _chosen(names, which)


def _headers(headers: Sequence[Headers | None]) -> pa.Array:
    """None where there is none: an empty list is the same to Kafka."""
    if not any(headers):
        return pa.nulls(len(headers), _HEADERS)
    return pa.array([each or None for each in headers], _HEADERS)


def _constant(value: str | int, type: pa.DataType, count: int) -> pa.Array:
    return pa.repeat(pa.scalar(value, type), count)


def _chosen(words: Any, which: np.ndarray[Any, Any]) -> pa.Array:
    return pa.array(words, pa.string()).take(pa.array(which))
