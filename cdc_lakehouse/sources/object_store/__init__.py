"""Read-only access to the store that holds a sink. Nothing here can write, rename or delete.

How to add a service: a case of `Location` in `store`, a client in `remote_store`, settings in `config/storage.py`.
"""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Final, NamedTuple

from cdc_lakehouse.config import StorageConfig
from cdc_lakehouse.errors import CdcError, SourceError
from cdc_lakehouse.sources.object_store.remote_store import open_remote_store
from cdc_lakehouse.sources.object_store.store import (
    LocalStore,
    Location,
    ObjectStore,
    StoredObject,
    UnreadableDirectory,
)

__all__ = [
    "SEGMENT_LIMIT", "LocalStore", "Location", "ObjectStore", "SegmentRef", "StoredObject", "UnreadableDirectory",
    "open_store", "read_in_parts", "shared_store",
]  # fmt: skip


def open_store(uri: str, storage: StorageConfig | None = None) -> ObjectStore:
    """Open the store at an absolute URI (see `config.anchor_uri`). No request is made yet.

    Raises `ConfigurationError` as `Location.of` and `open_remote_store` do.
    """
    location = Location.of(uri)
    if location.service == "file":
        return LocalStore(Path(location.prefix))
    return open_remote_store(location, storage or StorageConfig.nothing())


SEGMENT_LIMIT: Final = (1 << 31) - 1
"""The maximum bytes of an Arrow array."""


def shared_store(root: str, storage: StorageConfig) -> ObjectStore:
    """Return the store at the URI `root`: one for each process, to reuse its connections and credentials."""
    return _shared_store(root, storage.model_dump_json(exclude_unset=True))


@functools.lru_cache(maxsize=8)
def _shared_store(root: str, storage: str) -> ObjectStore:
    return open_store(root, StorageConfig.model_validate_json(storage))


# Segments read in tasks, with the same client that lists them: no Hadoop connector, the same credentials, and never an
# object that is not the listed one.

_AHEAD_BYTES: Final = 32 * 1024 * 1024
_REQUESTS_AT_ONCE: Final = 8
_PART_BYTES: Final = 8 * 1024 * 1024


class SegmentRef(NamedTuple):
    """A segment as it was listed. `size` is in bytes."""

    path: str
    size: int
    etag: str | None


def read_in_parts(
    root: str, storage: StorageConfig, segments: Sequence[SegmentRef]
) -> Iterator[tuple[SegmentRef, Iterator[bytes]]]:
    """Yield the content of each segment below the URI `root`, in order, in parts. For a file on a disk one part at a
    time is in memory: allocating memory for the whole file takes longer than reading it."""
    store = shared_store(root, storage)
    if root.startswith("file:"):
        for segment in segments:
            if segment.size > SEGMENT_LIMIT:
                raise SourceError(
                    f"the file is larger than {SEGMENT_LIMIT} bytes",
                    segment=segment.path,
                    advice="let the changefeed write smaller files (file-size)",
                )
            yield segment, store.pieces(segment.path, _PART_BYTES, etag=segment.etag)
        return
    # Whole; small ones are requested ahead, because each response takes time.
    asked: deque[tuple[SegmentRef, Future[bytes]]] = deque()
    with ThreadPoolExecutor(_REQUESTS_AT_ONCE) as pool:
        left = deque(segments)
        while asked or left:
            while left and (not asked or sum(each.size for each, _ in asked) + left[0].size <= _AHEAD_BYTES):
                segment = left.popleft()
                content = pool.submit(store.read, segment.path, limit=SEGMENT_LIMIT, etag=segment.etag)
                asked.append((segment, content))
            segment, content = asked.popleft()
            try:
                yield segment, iter([content.result()])
            except CdcError:
                pool.shutdown(cancel_futures=True)
                raise
