"""Reading of whole segments in Spark's tasks, with the same client that lists them: no Hadoop connector, the same
credentials, and never an object other than the listed one.

A task's project error reaches the driver as one line in Java's and Python's traces. It carries its data there, so that
the driver raises the same error again: its type says whether a retry is useful.
"""

from __future__ import annotations

import base64
import contextlib
import json
import math
import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Final, NamedTuple

import pyarrow as pa
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from cdc_lakehouse import errors
from cdc_lakehouse.config import StorageConfig
from cdc_lakehouse.errors import CdcError, SourceError
from cdc_lakehouse.sources.object_store import SEGMENT_LIMIT, read_segment, segment_pieces

Work = Callable[[Sequence["SegmentRef"]], Iterator[pa.RecordBatch]]
"""The function that a task applies to its segments."""

_REQUEST: Final = 1024 * 1024
"""A request takes about as much time as reading this many bytes."""
_TASK_BYTES: Final = 4 * 1024 * 1024
_DRIVER_SEGMENTS: Final = 64
_GROUP_BYTES: Final = 128 * 1024 * 1024
_AHEAD_BYTES: Final = 32 * 1024 * 1024
_REQUESTS_AT_ONCE: Final = 8
_PART_BYTES: Final = 8 * 1024 * 1024
_MARK: Final = re.compile(r"cdc-error:([A-Za-z0-9+/=]+);")


class SegmentRef(NamedTuple):
    """A segment as it was listed. `size` is in bytes."""

    path: str
    size: int
    etag: str | None


def rows_of_segments(
    spark: SparkSession, segments: Sequence[SegmentRef], work: Work, columns: str
) -> Sequence[tuple[Any, ...]]:
    """Apply `work` to segments and return its rows, with these columns; a task has several segments, one after the
    other. A few small ones are read in the driver."""
    if fits_driver([segment.size for segment in segments]):
        return list(rows_of(work(segments)))
    groups = _groups(segments, spark.sparkContext.defaultParallelism)

    def rows(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                yield from work(groups[number])

    return spark.range(0, len(groups), 1, len(groups)).mapInArrow(rows, columns).collect()


def fits_driver(sizes: Sequence[int]) -> bool:
    """Whether segments of these sizes, in bytes, are processed in the driver: a job would take longer than the work."""
    return len(sizes) <= _DRIVER_SEGMENTS and sum(sizes) <= _TASK_BYTES


def rows_of(batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[Any, ...]]:
    """Yield the rows of a task, in the form that a job returns them."""
    for batch in batches:
        yield from zip(*(column.to_pylist() for column in batch.columns), strict=True)


def _groups(segments: Sequence[SegmentRef], tasks: int) -> list[list[SegmentRef]]:
    """Group adjacent segments, which belong to one table, into tasks that take about the same time."""
    weights = [segment.size + _REQUEST for segment in segments]
    total = sum(weights)
    # A task has a cost too: a few small files do not justify one each.
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


def read_whole(root: str, storage: StorageConfig, segments: Sequence[SegmentRef]) -> Iterator[tuple[SegmentRef, bytes]]:
    """Yield the content of each segment below the URI `root`, in order; small ones are requested ahead, because each
    response takes time."""
    asked: deque[tuple[SegmentRef, Future[bytes]]] = deque()
    with ThreadPoolExecutor(_REQUESTS_AT_ONCE) as pool:
        left = deque(segments)
        while asked or left:
            while left and (not asked or sum(each.size for each, _ in asked) + left[0].size <= _AHEAD_BYTES):
                segment = left.popleft()
                asked.append((segment, pool.submit(read_segment, root, storage, segment.path, segment.etag)))
            segment, content = asked.popleft()
            try:
                yield segment, content.result()
            except CdcError:
                pool.shutdown(cancel_futures=True)
                raise


def read_in_parts(
    root: str, storage: StorageConfig, segments: Sequence[SegmentRef]
) -> Iterator[tuple[SegmentRef, Iterator[bytes]]]:
    """Yield the content of each segment, as `read_whole` does, in parts. For a file on a disk one part at a time is in
    memory: allocating memory for the whole file takes longer than reading it."""
    if root.startswith("file:"):
        for segment in segments:
            if segment.size > SEGMENT_LIMIT:
                raise SourceError(
                    f"the file is larger than {SEGMENT_LIMIT} bytes",
                    segment=segment.path,
                    advice="let the changefeed write smaller files (file-size)",
                )
            yield segment, segment_pieces(root, storage, segment.path, segment.etag, size_of_piece=_PART_BYTES)
    else:
        for segment, content in read_whole(root, storage, segments):
            yield segment, iter([content])


@contextlib.contextmanager
def errors_to_driver() -> Iterator[None]:
    """Wrap the project's errors in a task so that the driver can raise them again."""
    try:
        yield
    except CdcError as error:
        raise TaskError(error) from None


class TaskError(Exception):
    """Carries an error of the project from a task to the driver."""

    def __init__(self, error: CdcError) -> None:
        kind, message, places = type(error).__name__, error.message, {**vars(error)}
        places.pop("message")
        carried = base64.b64encode(json.dumps([kind, message, places]).encode()).decode()
        super().__init__(f"{error} (cdc-error:{carried};)")


@contextlib.contextmanager
def errors_of_tasks() -> Iterator[None]:
    """Raise the project's error that made a task fail, instead of Spark's error about the failed task."""
    try:
        yield
    except (PySparkException, Py4JError, TaskError) as error:
        found = _carried(str(error))
        if found is None:
            raise
        raise found from None


def _carried(text: str) -> CdcError | None:
    match = _MARK.search(text)
    if match is None:
        return None
    kind, message, places = json.loads(base64.b64decode(match[1]))
    return getattr(errors, kind)(message, **places)
