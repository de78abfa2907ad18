"""Segments read in tasks, with the same client that lists them: no Hadoop connector, the same credentials, and never an
object that is not the listed one."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final, NamedTuple

from cdc_lakehouse.config import StorageConfig
from cdc_lakehouse.errors import CdcError, SourceError
from cdc_lakehouse.sources.object_store.opening import SEGMENT_LIMIT, read_segment, segment_pieces

_AHEAD_BYTES: Final = 32 * 1024 * 1024
_REQUESTS_AT_ONCE: Final = 8
_PART_BYTES: Final = 8 * 1024 * 1024


class SegmentRef(NamedTuple):
    """A segment as it was listed. `size` is in bytes."""

    path: str
    size: int
    etag: str | None


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
