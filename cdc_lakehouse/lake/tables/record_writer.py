"""Data files of `records`: messages as rows, written where they are read, in Spark's tasks or in this process.

PyArrow writes columns to Parquet through PyIceberg, which takes a third of the CPU time of Spark's writer for rows. The
messages are not interpreted; bytes stay bytes. The files are unused until the driver commits them (see `records`)."""

from __future__ import annotations

import contextlib
import datetime
import itertools
import pickle
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import pyarrow as pa
from pyiceberg.io import FileIO, load_file_io
from pyiceberg.io.fileformat import FileFormatFactory, FileFormatWriter
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.partitioning import PartitionField, PartitionFieldValue, PartitionKey, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.locations import load_location_provider
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
from pyspark.sql import SparkSession

from cdc_lakehouse.config import DateSeparator, StorageConfig
from cdc_lakehouse.config.section import zone_of
from cdc_lakehouse.decoders.arrow import pc
from cdc_lakehouse.errors import CdcError
from cdc_lakehouse.lake.catalog import Lake
from cdc_lakehouse.lake.file_io import pyiceberg_file_io
from cdc_lakehouse.sources.kafka import KafkaClient, RangeReader
from cdc_lakehouse.sources.record_log import Headers, Messages, OffsetRange

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
"""Kafka's names for the client's timestamp types, by number."""
_WHOLE_MINUTES_SINCE: Final = 100_000_000
"""1973, in seconds: since then every zone's offset from UTC is in whole minutes, and changes at a full minute."""
_LAST_SECOND: Final = 253_370_764_800
"""The start of the year 9999: Python's calendar ends with that year."""
_DATE_LENGTH: Final[dict[DateSeparator, int]] = {"year": 4, "month": 7, "day": 10}


Dated = tuple[str | None, pa.RecordBatch]


@dataclass(frozen=True)
class RecordRows:
    """Makes the rows of a batch. Their dates are those of the timestamps in `time_zone`; None when there is no
    timestamp."""

    time_zone: str
    date_separator: DateSeparator
    batch: int
    schema: pa.Schema = field(default=_ARROW)

    def of(self, messages: Messages) -> Iterator[Dated]:
        """Yield the rows of each feed date, with the columns of `schema`."""
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
            "size": pc.add(*(pc.binary_length(each).fill_null(0) for each in (keys, values))),
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
        """Return the distinct dates, and for each second the index of its date."""
        length = _DATE_LENGTH.get(self.date_separator)
        if length is None or not dated.any():
            return [None], np.zeros(len(seconds), dtype=np.int64)
        step = 60 if seconds[dated].min() >= _WHOLE_MINUTES_SINCE else 1
        moments, of_moment = np.unique(np.where(dated, seconds // step, -1), return_inverse=True)
        zone = zone_of(self.time_zone)
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
    """Replace empty lists of headers by None: to Kafka they are the same."""
    return [each or None for each in headers] if any(headers) else [None] * len(headers)


_ROW_GROUP_BYTES: Final = 64 << 20
_FILE_BYTES: Final = 1 << 30
"""The size in memory, before encoding: a quarter or less of it on disk."""
_DATES_AT_ONCE: Final = 8


@dataclass(frozen=True)
class RecordTable:
    """The table as tasks need it. It is sent to tasks together with the warehouse's credentials."""

    location: str
    properties: Mapping[str, str]
    schema: Schema
    spec: PartitionSpec
    warehouse: str
    storage: StorageConfig
    io: Mapping[str, str] = field(repr=False)

    @classmethod
    def of(cls, table: Table, lake: Lake) -> RecordTable:
        properties, io = dict(table.properties), dict(table.io.properties)
        where = (lake.config.warehouse, lake.storage)
        return cls(table.location(), properties, table.schema(), table.spec(), *where, io)

    @property
    def arrow(self) -> pa.Schema:
        return schema_to_pyarrow(self.schema)

    def open_io(self) -> FileIO:
        """Open the FileIO with the credentials that the configuration gives in this process now: those sent with the
        task may have expired."""
        return load_file_io({**self.io, **pyiceberg_file_io(self.warehouse, self.storage).pyiceberg}, self.location)

    def delete(self, files: Iterable[DataFile]) -> None:
        """Delete files that no commit references or will reference."""
        io = self.open_io()
        for file in files:
            with contextlib.suppress(OSError):
                io.delete(file.file_path)


class RecordFiles:
    """The data files of one task of a batch: at any time one open file for each of a few feed dates. The rows in memory
    are at most those of a row group."""

    def __init__(self, table: RecordTable, name: str) -> None:
        """`name` is part of the files' names and must be unique to the task."""
        self._table = table
        self._io = table.open_io()
        self._locations = load_location_provider(table.location, dict(table.properties))
        self._name = name
        self._open: dict[str | None, _File] = {}
        self._held = 0
        self._paths: list[str] = []
        self._written: list[DataFile] = []

    def add(self, date: str | None, rows: pa.RecordBatch) -> None:
        if date not in self._open:
            if len(self._open) >= _DATES_AT_ONCE:
                self._close(next(iter(self._open)))  # The one that was opened first: dates come in order.
            self._open[date] = self._new(date)
        file = self._open[date]
        file.held.append(rows)
        self._held += rows.nbytes
        if self._held >= _ROW_GROUP_BYTES:
            self._held = 0
            for each in self._open.values():
                each.write()
            if file.bytes >= _FILE_BYTES:
                self._close(date)

    def close(self) -> list[DataFile]:
        """Close all files and return them."""
        for date in list(self._open):
            self._close(date)
        return self._written

    def discard(self) -> None:
        """Delete all files."""
        for file in self._open.values():
            if file.bytes:
                with contextlib.suppress(OSError):
                    file.writer.close()
        for path in self._paths:
            with contextlib.suppress(OSError):
                self._io.delete(path)

    def _new(self, date: str | None) -> _File:
        key = PartitionKey(
            [PartitionFieldValue(self._table.spec.fields[0], date)], self._table.spec, self._table.schema
        )
        path = self._locations.new_data_location(f"{self._name}-{len(self._paths):05d}.parquet", key)
        self._paths.append(path)
        model = FileFormatFactory.get(FileFormat.PARQUET)
        output = self._io.new_output(path)
        return _File(path, key, model.create_writer(output, self._table.schema, dict(self._table.properties)))

    def _close(self, date: str | None) -> None:
        file = self._open.pop(date)
        file.write()
        statistics = file.writer.close()
        self._written.append(
            DataFile.from_args(
                content=DataFileContent.DATA,
                file_path=file.path,
                file_format=FileFormat.PARQUET,
                partition=file.key.partition,
                file_size_in_bytes=len(self._io.new_input(file.path)),
                sort_order_id=None,
                spec_id=self._table.spec.spec_id,
                equality_ids=None,
                key_metadata=None,
                **statistics.to_serialized_dict(),
            )
        )


@dataclass
class _File:
    path: str
    key: PartitionKey
    writer: FileFormatWriter
    held: list[pa.RecordBatch] = field(default_factory=list[pa.RecordBatch])
    bytes: int = 0

    def write(self) -> None:
        """Write the collected rows as a row group."""
        if self.held:
            rows, self.held = pa.Table.from_batches(self.held), []
            self.bytes += rows.nbytes
            self.writer.write(rows)


@dataclass
class ReadRange:
    """The part of a range that was read. `end` is the first offset that was not read."""

    range: OffsetRange
    end: int
    records: int = 0
    bytes: int = 0
    dates: set[str] = field(default_factory=set[str])


@dataclass
class ReadGroup:
    """The ranges that a task has read, the files with their records, and the errors."""

    ranges: list[ReadRange]
    files: list[DataFile]
    faults: list[CdcError]


@dataclass(frozen=True)
class RecordTask:
    """The part of the work that all tasks of a batch share. `name` must be unique among all writers of the table."""

    client: KafkaClient
    rows: RecordRows
    table: RecordTable
    name: str

    def run(self, number: int, ranges: Sequence[OffsetRange]) -> ReadGroup:
        found = {each: ReadRange(each, each.start) for each in ranges}
        reader = RangeReader(self.client, ranges)
        files = RecordFiles(self.table, f"{self.name}-{number:05d}")
        try:
            for messages in reader.messages():
                _count(found[messages.range], messages)
                for date, rows in self.rows.of(messages):
                    files.add(date, rows)
                    if date is not None:
                        found[messages.range].dates.add(date)
            written = files.close()
        except BaseException:
            files.discard()
            raise
        for each, end in reader.ends.items():
            found[each].end = end
        return ReadGroup(list(found.values()), written, reader.faults)


def run_tasks(
    task: RecordTask, groups: Sequence[Sequence[OffsetRange]], spark: Callable[[], SparkSession]
) -> list[ReadGroup]:
    """Run a task for each group of ranges; Spark is started when there are several."""
    if len(groups) == 1:
        return [task.run(0, groups[0])]

    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                group = pickle.dumps(task.run(number, groups[number]))
                yield pa.RecordBatch.from_arrays([pa.array([group], pa.binary())], names=["read"])

    frame = spark().range(0, len(groups), 1, len(groups)).mapInArrow(run, "read binary")
    answers: list[Any] = frame.collect()
    return [pickle.loads(answer["read"]) for answer in answers]


def _count(read: ReadRange, messages: Messages) -> None:
    read.records += len(messages.offsets)
    read.bytes += messages.size
