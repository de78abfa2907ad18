"""Decode files of a sink or a dump to data files of `events`, in one Spark job: a task reads files, decodes them and
writes the events. Rejected records are returned to the driver, the first ones of each file one by one.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

from cdc_lakehouse.decoders.event_schema import DECODED, NEW_EVENTS, SYNTHETIC, SYNTHETIC_EVENTS
from cdc_lakehouse.decoders.format import FileContext
from cdc_lakehouse.decoders.formats.dump import DumpContext
from cdc_lakehouse.decoders.problems import LISTED_PER_SEGMENT, PROBLEMS, RAW_LIMIT, Rejected
from cdc_lakehouse.decoders.tasks import run_tasks
from cdc_lakehouse.duckdb_sql import database
from cdc_lakehouse.errors import SourceError
from cdc_lakehouse.lake.tables.events import EventWriter
from cdc_lakehouse.sources.object_store import SegmentRef

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from cdc_lakehouse.lake.tables.segments import Segment


_REQUEST: Final = 1024 * 1024
"""A request takes about as much time as reading this many bytes."""
_TASK_BYTES: Final = 4 * 1024 * 1024
_DRIVER_SEGMENTS: Final = 64
_GROUP_BYTES: Final = 128 * 1024 * 1024


@dataclass(frozen=True)
class SegmentFile:
    """A segment that is a file: the location of its content (`ref`), what its decoder needs (`context`), and the values
    that all of its events share."""

    ref: SegmentRef
    segment: str
    context: FileContext | DumpContext
    table_version: int | None
    physical_partition: int | None = None
    feed_date: str | None = None
    synthetic: bool = False


@dataclass
class DecodedFiles:
    """The result of decoding. `data_files` are JSON for Iceberg's `ContentFileParser`. `lines` is the number of lines
    read by segment, events and rejected lines; `strict` of those that were read one by one. `typed` is what was made of
    the rows beside events."""

    data_files: list[str] = field(default_factory=list[str])
    rejected: list[Rejected] = field(default_factory=list[Rejected])
    lines: dict[str, int] = field(default_factory=dict[str, int])
    strict: dict[str, int] = field(default_factory=dict[str, int])
    typed: list[Any] = field(default_factory=list[Any])

    def counted(self, segments: Sequence[Segment]) -> list[Segment]:
        """Return the segments with their line counts; None where a segment was not read."""
        return [replace(s, lines=self.lines.get(s.segment), strict=self.strict.get(s.segment)) for s in segments]


def decode_segments(
    spark: Callable[[], SparkSession],
    files: Sequence[SegmentFile],
    read: Callable[[Sequence[SegmentRef]], Iterator[tuple[SegmentRef, Any]]],
    decode: Callable[[Any, Any, Any], Iterator[pa.RecordBatch]],
    writer: EventWriter,
    typing: Callable[[int], Any] | None = None,
) -> DecodedFiles:
    """Decode files. `typing` begins what each of so many tasks makes of rows beside events (see
    `update_tasks.TypingTask`).

    `read` yields segments with their contents in tasks; `decode` yields batches with the columns of
    `event_schema.DECODED` for a DuckDB connection, a content and a file's context."""
    by_path = {file.ref.path: file for file in files}
    segments = [file.ref for file in files]
    is_small = fits_driver([segment.size for segment in segments])
    groups = [segments] if is_small else _groups(segments, spark().sparkContext.defaultParallelism)
    begun = None if typing is None else functools.partial(typing, len(groups))
    work, found = functools.partial(_decode, read, decode, by_path, writer, begun), DecodedFiles()
    for each in run_tasks(None if is_small else spark(), groups, work):
        found.data_files += each.data_files
        found.rejected += each.rejected
        found.lines |= each.lines
        found.strict |= each.strict
        found.typed += each.typed
    return found


def _decode(
    read: Callable[[Sequence[SegmentRef]], Iterator[tuple[SegmentRef, Any]]],
    decode: Callable[[Any, Any, Any], Iterator[pa.RecordBatch]],
    files: Mapping[str, SegmentFile],
    writer: EventWriter,
    typing: Callable[[], Any] | None,
    segments: Sequence[SegmentRef],
) -> Iterator[DecodedFiles]:
    """Decode the segments of a task, one after the other."""
    found, typed = DecodedFiles(), None if typing is None else typing()

    def events() -> Iterator[pa.RecordBatch]:
        with database() as connection:
            for ref, content in read(segments):
                file = files[ref.path]
                listed: list[Rejected] = []
                further = 0
                found.lines[file.segment] = found.strict[file.segment] = 0
                for batch in _of_file(file, decode(connection, content, file.context)):
                    sound = batch
                    found.lines[file.segment] += batch.num_rows
                    found.strict[file.segment] += batch.column("strict").true_count
                    if batch.column(_PROBLEM).null_count < batch.num_rows:
                        bad = batch.filter(batch.column(_PROBLEM).is_valid())
                        first = bad.slice(0, LISTED_PER_SEGMENT - len(listed))
                        columns = (first.column(DECODED.get_field_index(name)).to_pylist() for name in _REJECTED)
                        for line, problem, value in zip(*columns, strict=True):
                            raw = bytes(value[:RAW_LIMIT])
                            listed.append(_rejected(file, line, problem, PROBLEMS[problem], raw, 1))
                        further += bad.num_rows - first.num_rows
                        sound = batch.filter(batch.column(_PROBLEM).is_null())
                    if sound.num_rows:
                        if typed is not None:
                            typed.add(file, sound)
                        yield _events(sound, file)
                if further:
                    problem = listed[0].error_class
                    message = f"{PROBLEMS[problem]} ({further} further lines of the segment, not listed one by one)"
                    listed.append(_rejected(file, None, problem, message, None, further))
                found.rejected += listed

    try:
        found.data_files += writer.write(events())
        found.typed += [] if typed is None else typed.parts()
    except Exception:
        if typed is not None:
            typed.discard()
        raise
    yield found


def _of_file(file: SegmentFile, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Set the segment of errors that concern the file and not the whole store."""
    try:
        yield from batches
    except SourceError as error:
        if error.segment is not None or error.table is not None:
            error.segment = file.segment
        raise


_PROBLEM: Final = DECODED.get_field_index("problem")
_REJECTED: Final = ("line", "problem", "value")


def _events(decoded: pa.RecordBatch, file: SegmentFile) -> pa.RecordBatch:
    """Convert decoded records to events with the columns of `NEW_EVENTS` (with `synthetic` for a synthetic file).
    Values that all share are dictionaries of one entry."""
    common = {
        "feed_date": file.feed_date,
        "schema_name": file.context.database,
        "table_name": file.context.table,
        "table_version": file.table_version,
        "physical_partition": file.physical_partition,
        "segment": file.segment,
    }
    count = decoded.num_rows
    schema = SYNTHETIC_EVENTS if file.synthetic else NEW_EVENTS
    none, first = pa.nulls(count, pa.int32()), pa.array(np.zeros(count, np.int32))
    columns: list[pa.Array] = []
    for each in schema:
        if each.name == SYNTHETIC:
            columns.append(pa.repeat(True, count))
        elif each.name in common:
            value = common[each.name]
            dictionary = pa.array([] if value is None else [value], each.type)
            columns.append(pa.DictionaryArray.from_arrays(none if value is None else first, dictionary))
        else:
            columns.append(decoded.column(decoded.schema.get_field_index(each.name)))
    return pa.RecordBatch.from_arrays(columns, names=schema.names)


def _rejected(
    file: SegmentFile, line: int | None, problem: str, message: str, raw: bytes | None, count: int
) -> Rejected:
    return Rejected(file.segment, line, problem, message, raw, file.context.database, file.context.table, count)


def fits_driver(sizes: Sequence[int]) -> bool:
    """Whether segments of these sizes, in bytes, are worked on in the driver: a job would take longer than the
    work."""
    return len(sizes) <= _DRIVER_SEGMENTS and sum(sizes) <= _TASK_BYTES


def _groups(segments: Sequence[SegmentRef], tasks: int) -> list[list[SegmentRef]]:
    """Group adjacent segments, which belong to one table, into tasks that take about the same time."""
    weights = [segment.size + _REQUEST for segment in segments]
    total = sum(weights)
    # A task costs something too: a handful of small files is not worth one each.
    wanted = max(1, min(2 * tasks, math.ceil(total / _TASK_BYTES)), math.ceil(total / _GROUP_BYTES))
    share = total / wanted
    groups: list[list[SegmentRef]] = []
    filled = share
    for segment, weight in zip(segments, weights, strict=True):
        if filled >= share:
            groups.append([])
            filled = 0
        groups[-1].append(segment)
        filled += weight
    return groups
