"""Messages of topics as rows of `records`: nothing is read into them, bytes stay bytes."""

from __future__ import annotations

import datetime
import itertools
import zoneinfo
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import (
    BinaryType,
    IntegerType,
    ListType,
    LongType,
    NestedField,
    StringType,
    StructType,
    TimestamptzType,
)

from cdc_lakehouse.config import DateSeparator
from cdc_lakehouse.sources.record_log import Headers, Messages

_HEADER: Final = StructType(NestedField(14, "key", StringType()), NestedField(15, "value", BinaryType()))
SCHEMA: Final = Schema(
    NestedField(1, "feed_date", StringType(), doc="The timestamp's date in the feed's time zone."),
    NestedField(2, "topic", StringType(), required=True),
    NestedField(3, "partition", IntegerType(), required=True),
    NestedField(4, "offset", LongType(), required=True),
    NestedField(5, "timestamp", TimestamptzType()),
    NestedField(6, "timestamp_type", StringType(), doc="CreateTime or LogAppendTime."),
    NestedField(7, "key", BinaryType()),
    NestedField(8, "value", BinaryType()),
    NestedField(9, "headers", ListType(13, _HEADER)),
    NestedField(10, "size", IntegerType(), required=True, doc="Bytes of key and value."),
    NestedField(11, "segment", StringType(), required=True, doc="The range of offsets that it landed with."),
    NestedField(12, "batch", LongType(), required=True),
)
SPEC: Final = PartitionSpec(PartitionField(1, 1000, IdentityTransform(), "feed_date"))
_ARROW: Final = schema_to_pyarrow(SCHEMA)

_TYPES: Final = (None, "CreateTime", "LogAppendTime")
"""Kafka's names of the client's numbers."""
_WHOLE_MINUTES_SINCE: Final = 100_000_000
"""1973, in seconds: from then on every zone is some minutes off UTC, and changes at the full minute."""
_LAST_SECOND: Final = 253_370_764_800
"""The year 9999 begins: beyond it a calendar here has no dates."""
_DATE_LENGTH: Final[dict[DateSeparator, int]] = {"year": 4, "month": 7, "day": 10}

_compute: Any = pc  # What it takes is hidden from type checkers.

Dated = tuple[str | None, pa.RecordBatch]


@dataclass(frozen=True)
class RecordRows:
    """Makes the rows of a batch. Dates are those of the timestamps in `time_zone`, None where there is none."""

    time_zone: str
    date_separator: DateSeparator
    batch: int
    schema: pa.Schema = field(default=_ARROW)

    def of(self, messages: Messages) -> Iterator[Dated]:
        """The rows of each feed date."""
        flat = np.fromiter(itertools.chain.from_iterable(messages.timestamps), np.int64, 2 * len(messages.timestamps))
        types, times = flat[::2], flat[1::2]
        dated = (types > 0) & (times >= 0) & (times < _LAST_SECOND * 1000)
        count, partition = len(messages.offsets), messages.range.partition
        dates, which = self._dates(times // 1000, dated)
        keys, values = pa.array(messages.keys, pa.large_binary()), pa.array(messages.values, pa.large_binary())
        columns = {
            "feed_date": pa.array(dates, pa.large_string()).take(pa.array(which)),
            "topic": partition.topic,
            "partition": partition.number,
            "offset": messages.offsets,
            "timestamp": pa.array(times * 1000, pa.int64(), mask=~dated).view(pa.timestamp("us", "UTC")),
            "timestamp_type": pa.array(_TYPES, pa.large_string()).take(pa.array(types)),
            "key": keys,
            "value": values,
            "headers": _or_none(messages.headers),
            "size": _compute.add(*(_compute.binary_length(each).fill_null(0) for each in (keys, values))),
            "segment": messages.range.segment,
            "batch": self.batch,
        }
        rows = pa.RecordBatch.from_arrays(
            [_array(columns[each.name], each.type, count) for each in self.schema], schema=self.schema
        )
        if len(dates) == 1:
            yield dates[0], rows
        else:
            for number, date in enumerate(dates):
                yield date, rows.filter(pa.array(which == number))

    def _dates(
        self, seconds: np.ndarray[Any, Any], dated: np.ndarray[Any, Any]
    ) -> tuple[list[str | None], np.ndarray[Any, Any]]:
        """The dates that there are, and which of them each second is of."""
        length = _DATE_LENGTH.get(self.date_separator)
        if length is None or not dated.any():
            return [None], np.zeros(len(seconds), dtype=np.int64)
        step = 60 if seconds[dated].min() >= _WHOLE_MINUTES_SINCE else 1
        moments, of_moment = np.unique(np.where(dated, seconds // step, -1), return_inverse=True)
        zone = zoneinfo.ZoneInfo(self.time_zone)
        names = [
            None if moment < 0 else datetime.datetime.fromtimestamp(moment * step, zone).date().isoformat()[:length]
            for moment in moments.tolist()
        ]
        dates = list(dict.fromkeys(names))
        return dates, np.array([dates.index(name) for name in names])[of_moment]


def _array(column: Any, type: pa.DataType, count: int) -> pa.Array:
    if isinstance(column, pa.Array):
        return column if column.type == type else column.cast(type)
    return pa.array(column, type) if isinstance(column, list) else pa.repeat(pa.scalar(column, type), count)


def _or_none(headers: Sequence[Headers | None]) -> list[Headers | None]:
    """None where there are none: an empty list is the same to Kafka."""
    return [each or None for each in headers] if any(headers) else [None] * len(headers)
