"""Whole segments, read where the work is: in tasks of other processes, which open a store of their own."""

from __future__ import annotations

import functools
from typing import Final

from cdc_lakehouse.config import StorageConfig
from cdc_lakehouse.sources.object_store.opening import open_store
from cdc_lakehouse.sources.object_store.store import ObjectStore

SEGMENT_LIMIT: Final = (1 << 31) - 1
"""What an Arrow array of bytes can hold."""


def read_segment(
    root: str, storage: StorageConfig, path: str, etag: str | None, *, limit: int = SEGMENT_LIMIT
) -> bytes:
    """The segment at `path` below the URI `root`, as it was when it was listed with `etag`. Raises as
    `ObjectStore.read` does."""
    return _store(root, storage.model_dump_json(exclude_unset=True)).read(path, limit=limit, etag=etag)


@functools.lru_cache(maxsize=8)
def _store(root: str, storage: str) -> ObjectStore:
    """One client for each store and process: its connections and credentials are used again."""
    return open_store(root, StorageConfig.model_validate_json(storage))
