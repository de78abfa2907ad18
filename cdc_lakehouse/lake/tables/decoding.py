"""Decode files of a sink or a dump to data files of `events`, in one Spark job: a task reads files, decodes them and
writes the events. Rejected records are returned to the driver, the first ones of each file one by one.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
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
    that all of its events share. Tasks can share it by its `pieces`."""

    ref: SegmentRef
    segment: str
    context: FileContext | DumpContext
    table_version: int | None
    physical_partition: int | None = None
    feed_date: str | None = None
    synthetic: bool = False
    pieces: int = 1


@dataclass
class DecodedFiles:
    """The result of decoding. `data_files` are JSON for Iceberg's `ContentFileParser`. `lines` is the number of lines
    read by segment, events and rejected lines; `strict` of those that were read one by one, `further` of rejected ones
    that are not listed. `typed` is what was made of the rows beside events."""

    data_files: list[str] = field(default_factory=list[str])
    rejected: list[Rejected] = field(default_factory=list[Rejected])
    lines: Counter[str] = field(default_factory=Counter[str])
    strict: Counter[str] = field(default_factory=Counter[str])
    further: Counter[str] = field(default_factory=Counter[str])
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
    is_small = fits_driver([file.ref.size for file in files])
    groups = [[*files]] if is_small else _groups(files, spark().sparkContext.defaultParallelism)
    begun = None if typing is None else functools.partial(typing, len(groups))
    work, found = functools.partial(_decode, read, decode, writer, begun), DecodedFiles()
    rejected: list[Rejected] = []
    for each in run_tasks(None if is_small else spark(), groups, work):
        found.data_files += each.data_files
        found.lines.update(each.lines)
        found.strict.update(each.strict)
        found.further.update(each.further)
        found.typed += each.typed
        rejected += each.rejected
    for segment, of_segment in itertools.groupby(rejected, lambda each: each.segment):
        listed = [*of_segment]
        further = found.further[segment] + len(listed[LISTED_PER_SEGMENT:])
        found.rejected += listed[:LISTED_PER_SEGMENT]
        if further:
            message = f"{listed[0].message} ({further} further lines of the segment, not listed one by one)"
            found.rejected.append(replace(listed[0], line=None, message=message, raw=None, count=further))
    return found


def _decode(
    read: Callable[[Sequence[SegmentRef]], Iterator[tuple[SegmentRef, Any]]],
    decode: Callable[[Any, Any, Any], Iterator[pa.RecordBatch]],
    writer: EventWriter,
    typing: Callable[[], Any] | None,
    files: Sequence[SegmentFile],
) -> Iterator[DecodedFiles]:
    """Decode the files of a task, one after the other."""
    found, typed = DecodedFiles(), None if typing is None else typing()

    def events() -> Iterator[pa.RecordBatch]:
        with database() as connection:
            for file, (_, content) in zip(files, read([file.ref for file in files]), strict=True):
                left, context = LISTED_PER_SEGMENT, file.context
                found.lines[file.segment] += 0  # An empty file is counted.
                found.strict[file.segment] += 0
                for batch in _of_file(file, decode(connection, content, context)):
                    sound = batch
                    found.lines[file.segment] += batch.num_rows
                    found.strict[file.segment] += batch.column("strict").true_count
                    if batch.column(_PROBLEM).null_count < batch.num_rows:
                        bad = batch.filter(batch.column(_PROBLEM).is_valid())
                        first = bad.slice(0, left)
                        columns = (first.column(DECODED.get_field_index(name)).to_pylist() for name in _REJECTED)
                        for line, problem, value in zip(*columns, strict=True):
                            of = file.segment, line, problem, PROBLEMS[problem], bytes(value[:RAW_LIMIT])
                            found.rejected.append(Rejected(*of, context.database, context.table, 1))
                        left -= first.num_rows
                        found.further[file.segment] += bad.num_rows - first.num_rows
                        sound = batch.filter(batch.column(_PROBLEM).is_null())
                    if sound.num_rows:
                        if typed is not None:
                            typed.add(file, sound)
                        yield _events(sound, file)

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


def fits_driver(sizes: Sequence[int]) -> bool:
    """Whether segments of these sizes, in bytes, are worked on in the driver: a job would take longer than the
    work."""
    return len(sizes) <= _DRIVER_SEGMENTS and sum(sizes) <= _TASK_BYTES


def _groups(files: Sequence[SegmentFile], tasks: int) -> list[list[SegmentFile]]:
    """Group adjacent files, which belong to one table, into tasks that take about the same time. Adjacent tasks share a
    file where that makes them more alike."""
    weights = [file.ref.size + _REQUEST for file in files]
    total = sum(weights)
    # A task costs something too: a handful of small files is not worth one each.
    wanted = max(1, min(2 * tasks, math.ceil(total / _TASK_BYTES)), math.ceil(total / _GROUP_BYTES))
    share = filled = total / wanted
    groups: list[list[SegmentFile]] = []
    for file, weight in zip(files, weights, strict=True):
        at, each = 0, weight / file.pieces
        while at < file.pieces:
            if at or filled >= share or (file.pieces > 1 and share - filled < each / 2):
                groups.append([])
                filled = 0.0
            count = min(file.pieces - at, max(1, round((share - filled) / each)))
            of_task = file
            if count < file.pieces:
                pieces = at, None if at + count == file.pieces else at + count
                of_task = replace(file, context=replace(file.context, pieces=pieces))
            groups[-1].append(of_task)
            at += count
            filled += each * count
    return groups
